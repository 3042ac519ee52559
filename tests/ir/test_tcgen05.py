"""Products of one thread with accumulators in tensor memory: results, faults, rules, machine code."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.ir.tcgen05_gemm import FAULTS, FORMS, K_TILES, TILE_N, TILES, Tcgen05Form, data, tcgen05_gemm
from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.compile.compiler import compiled
from tilewright.codegen.cuda.tcgen05_descriptors import instruction_descriptor, matrix_descriptor
from tilewright.codegen.lowering import finish
from tilewright.codegen.memory_traffic import matrix_operations
from tilewright.core.dtypes import float32, int32
from tilewright.core.errors import CompileError, InvalidKernel, KernelFault
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Load, const, index
from tilewright.ir.gpu.tcgen05 import TCGEN05_ATOMS, TensorMemoryAllocate, TensorMemoryDeallocate, TensorMemoryMma
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import map_statements
from tilewright.ir.stmt import HardwareAxis, Kernel, Stmt
from tilewright.ir.verify import verify

B200 = Target("cuda", "sm_100a", (), threads=148, vector_bytes=16)
H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_they_give_the_product(form: Tcgen05Form) -> None:
    inputs, wanted = data(form)
    result = interpret(finish(tcgen05_gemm(form), B200), inputs)["C"]
    np.testing.assert_array_equal(np.asarray(result, np.int64), wanted)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    form = Tcgen05Form()
    with pytest.raises((KernelFault, InvalidKernel), match=FAULTS[fault]):
        interpret(tcgen05_gemm(form, fault), data(form)[0])


INSTRUCTIONS = {
    "K-major": ("kind::f16", "UTCHMMA"),
    "64 rows, a transposed": ("kind::f16", "UTCHMMA"),
    "8-bit floats": ("kind::f8f6f4", "UTCQMMA"),
    "integers": ("kind::i8", "UTCIMMA"),
}


@pytest.mark.parametrize("form", INSTRUCTIONS)
def test_they_compile_to_instructions_of_tensor_memory(form: str) -> None:
    kernel, backend = finish(tcgen05_gemm(FORMS[form]), B200), backend_for(B200)
    source = backend.emit(kernel, B200)
    ptx = compiled(source, B200).ptx
    kind, mnemonic = INSTRUCTIONS[form]
    assert ptx.count(f"tcgen05.mma.cta_group::1.{kind}") == 4
    assert ptx.count("tcgen05.alloc.") == ptx.count("tcgen05.dealloc.") == 1
    assert ptx.count("tcgen05.commit.") == 2 and "tcgen05.ld.sync.aligned.16x256b.x4.b32" in ptx
    sass = backend.assembly(source, B200)
    assert sass.count(f"{mnemonic} ") == 4 and sass.count("LDTM.16dp256bit") == 2 * FORMS[form].m // 64
    assert matrix_operations(kernel) == 2 * FORMS[form].m * TILES * TILE_N * K_TILES * FORMS[form].line


def test_other_architectures_have_none() -> None:
    backend = backend_for(H200)
    with pytest.raises(
        CompileError, match="sm_90a has no such instruction as tensor_memory_allocate; only sm_100a has"
    ):
        backend.emit(finish(tcgen05_gemm(Tcgen05Form()), H200), H200)


def test_descriptors_have_the_bits_of_the_ptx_isa() -> None:
    """Worked out by hand from the tables of the PTX ISA."""
    # 1024 / 16 = 0x40 in bits 32-45, 16 / 16 = 1 in bits 16-29, 1 in bit 46, 2 in bits 61-63
    assert matrix_descriptor(16, 1024) == 0x4000404000010000
    assert matrix_descriptor(8192, 1024) == 0x4000404002000000
    # float32 (1 << 4), float16 (0), 256 columns (32 << 17), 128 rows (8 << 24)
    assert instruction_descriptor(TCGEN05_ATOMS["float16", "float16"], 128, 256, False, False) == 0x08400010
    # bfloat16 (1 << 7, 1 << 10), 48 columns (6 << 17), 64 rows (4 << 24), both MN-major (3 << 15)
    assert instruction_descriptor(TCGEN05_ATOMS["bfloat16", "bfloat16"], 64, 48, True, True) == 0x040D8490
    # e4m3 (0), e5m2 (1 << 10), 16 columns (2 << 17), 128 rows
    assert instruction_descriptor(TCGEN05_ATOMS["float8_e4m3fn", "float8_e5m2"], 128, 16, False, False) == 0x08040410
    # TF32 (2 << 7, 2 << 10), 8 columns, 64 rows
    assert instruction_descriptor(TCGEN05_ATOMS["tfloat32", "tfloat32"], 64, 8, False, False) == 0x04020910
    # int32 (2 << 4), signed A (1 << 7), unsigned B (0)
    assert instruction_descriptor(TCGEN05_ATOMS["int8", "uint8"], 128, 32, False, False) == 0x080800A0


@pytest.mark.parametrize(
    ("m", "n", "allowed"),
    [
        (64, 8, True),
        (128, 8, False),
        (128, 16, True),
        (128, 24, False),
        (64, 24, True),
        (64, 264, False),
        (32, 64, False),
    ],
)
def test_shapes_are_those_of_the_ptx_isa(m: int, n: int, allowed: bool) -> None:
    assert TCGEN05_ATOMS["float16", "float16"].takes(m, n) == allowed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"m": 32}, "a tcgen05.mma of 32 rows and 48 columns"),
        ({"n": 40}, "a tcgen05.mma of 128 rows and 40 columns"),
        ({"n": 80}, r"80 rows of 64 do not fit b \[2, 48, 64\]|80 columns do not fit d \[128, 64\]"),
        ({"k": 24}, "a tcgen05.mma of 24 places of k; up to 64 in steps of 16 are allowed"),
        ({"d_indices": (index(16), index(0))}, "an access of d begins at another lane than 0"),
        ({"d_indices": (index(0), index(32))}, r"48 columns do not fit d \[128, 64\]"),
        ({"accumulates": index(1)}, "whether a tcgen05.mma accumulates is no scalar bool"),
    ],
)
def test_products_that_do_not_exist_are_refused(changed: dict[str, Any], message: str) -> None:
    def change(stmt: Stmt) -> Stmt:
        return replace(stmt, **changed) if isinstance(stmt, TensorMemoryMma) else stmt

    kernel = tcgen05_gemm(Tcgen05Form())
    with pytest.raises(InvalidKernel, match=message):
        verify(replace(kernel, body=map_statements(kernel.body, change)))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((128, 48), r"d has shape \[128, 48\]; 128 lanes of 32, 64, 128, 256, 512 columns are allowed"),
        ((128, 1024), r"d has shape \[128, 1024\]; 128 lanes of 32, 64, 128, 256, 512 columns are allowed"),
        ((64, 64), r"d has shape \[64, 64\]; 128 lanes"),
    ],
)
def test_allocations_that_do_not_exist_are_refused(shape: tuple[int, int], message: str) -> None:
    w = Writer()
    d, c = Buffer("d", shape, float32, MemoryScope.TENSOR), Buffer("C", (1,), float32)
    with w.launch("f", [("t", 128, HardwareAxis.THREAD)]):
        w.allocate(d.name, d.shape, d.dtype, d.scope)
        w.store(c, (index(0),), const(0.0, float32))
    with pytest.raises(InvalidKernel, match=message):
        verify(Kernel("k", (), (c,), (), w.finish()))


def test_blocks_have_no_more_columns_than_a_multiprocessor() -> None:
    w, c = Writer(), Buffer("C", (1,), float32)
    with w.launch("f", [("t", 128, HardwareAxis.THREAD)]):
        address = w.allocate("address", (1,), int32, MemoryScope.SHARED)
        both = [w.allocate(name, (128, 512), float32, MemoryScope.TENSOR) for name in ("d", "e")]
        for buffer in both:
            w.emit(TensorMemoryAllocate(buffer, address))
        w.store(c, (index(0),), const(0.0, float32))
        for buffer in both:
            w.emit(TensorMemoryDeallocate(buffer))
    with pytest.raises(InvalidKernel, match="a block has 1024 columns; a multiprocessor has 512"):
        verify(Kernel("k", (), (c,), (), w.finish()))


def test_tensor_memory_is_no_data() -> None:
    w, c = Writer(), Buffer("C", (1,), float32)
    with w.launch("f", [("t", 128, HardwareAxis.THREAD)]):
        address = w.allocate("address", (1,), int32, MemoryScope.SHARED)
        d = w.allocate("d", (128, 32), float32, MemoryScope.TENSOR)
        w.emit(TensorMemoryAllocate(d, address))
        w.store(c, (index(0),), Load(d, (index(0), index(0))))
        w.emit(TensorMemoryDeallocate(d))
    with pytest.raises(InvalidKernel, match="tensor memory is accessed as data"):
        verify(Kernel("k", (), (c,), (), w.finish()))
