"""Block-scaled products with accumulators in tensor memory: results, faults, machine code, descriptors."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.ir.block_scaled_gemm import FAULTS, FORMS, LINES, BlockScaledForm, M, N, block_scaled_gemm, data
from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.compile.compiler import compiled
from tilewright.codegen.cuda.tcgen05_descriptors import block_scaled_descriptor, scales_descriptor
from tilewright.codegen.lowering import finish
from tilewright.codegen.memory_traffic import matrix_operations
from tilewright.core.dtypes import float8_e4m3fn, float8_e5m2, uint8
from tilewright.core.errors import InvalidKernel, KernelFault
from tilewright.core.target import Target
from tilewright.ir.expr import index
from tilewright.ir.gpu.tcgen05 import BLOCK_SCALED_ATOMS, BlockScaledMma, TensorMemoryCopy
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import map_statements
from tilewright.ir.stmt import Stmt
from tilewright.ir.verify import verify

B200 = Target("cuda", "sm_100a", (), threads=148, vector_bytes=16)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_they_give_the_product(form: BlockScaledForm) -> None:
    inputs, wanted = data(form)
    result = interpret(finish(block_scaled_gemm(form), B200), inputs)["C"]
    np.testing.assert_allclose(np.asarray(result, np.float64), wanted, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    form = FORMS["nvfp4"]
    with pytest.raises(KernelFault, match=FAULTS[fault]):
        interpret(block_scaled_gemm(form, fault), data(form)[0])


INSTRUCTIONS = {
    "mxfp8": ("kind::mxf8f6f4.block_scale.scale_vec::1X", "UTCQMMA", 1),
    "mxfp4": ("kind::mxf4.block_scale.scale_vec::2X", "UTCOMMA", 2),
    "nvfp4": ("kind::mxf4nvf4.block_scale.scale_vec::4X", "UTCOMMA.4X", 4),
}


@pytest.mark.parametrize("name", FORMS)
def test_they_compile_to_block_scaled_instructions(name: str) -> None:
    kernel, backend = finish(block_scaled_gemm(FORMS[name]), B200), backend_for(B200)
    source = backend.emit(kernel, B200)
    qualifiers, mnemonic, groups = INSTRUCTIONS[name]
    ptx = compiled(source, B200).ptx
    assert ptx.count(f"tcgen05.mma.cta_group::1.{qualifiers}") == 4
    assert ptx.count("tcgen05.cp.cta_group::1.32x128b.warpx4") == 3 * groups
    sass = backend.assembly(source, B200)
    assert sass.count(f"{mnemonic} ") == 4 and sass.count("UTCCP") == 3 * groups
    assert matrix_operations(kernel) == 2 * M * N * LINES * FORMS[name].atom.line


def test_descriptors_have_the_bits_of_the_ptx_isa() -> None:
    """Worked out by hand from the tables of the PTX ISA."""
    # 128 / 16 = 8 in bits 32-45, 1 in bit 46, no swizzle
    assert scales_descriptor() == 0x0000400800000000
    # e4m3 (0), e5m2 (1 << 10), 256 columns (32 << 17), powers of two (1 << 23), 128 rows (1 << 27)
    mxfp8, mxfp4, nvfp4 = (BLOCK_SCALED_ATOMS[name] for name in ("mxfp8", "mxfp4", "nvfp4"))
    assert block_scaled_descriptor(mxfp8, 256, float8_e4m3fn, float8_e5m2) == 0x08C00400
    # e2m1 (1 << 7, 1 << 10), 64 columns (8 << 17)
    assert block_scaled_descriptor(mxfp4, 64, uint8, uint8) == 0x08900480
    assert block_scaled_descriptor(nvfp4, 64, uint8, uint8) == 0x08100480


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"atom": "mxfp6"}, "a tcgen05.mma of 'mxfp6'; mxfp8, mxfp4, nvfp4 are allowed"),
        ({"atom": "mxfp8"}, "a of mxfp8 is uint8, not 8-bit floats"),
        ({"n": 264}, "a block-scaled tcgen05.mma of 264 columns"),
        ({"k": 96}, "a tcgen05.mma of 96 places of k; up to 256 in steps of 64 are allowed"),
        ({"b_scales_indices": (index(0), index(48))}, r"32 columns do not fit scales \[128, 64\]"),
        ({"a_scales_indices": (index(16), index(0))}, "an access of scales begins at another lane than 0"),
    ],
)
def test_products_that_do_not_exist_are_refused(changed: dict[str, Any], message: str) -> None:
    def change(stmt: Stmt) -> Stmt:
        changes = {**changed, "k": 128} if changed.get("atom") == "mxfp8" else changed
        return replace(stmt, **changes) if isinstance(stmt, BlockScaledMma) else stmt

    kernel = block_scaled_gemm(FORMS["nvfp4"])
    with pytest.raises(InvalidKernel, match=message):
        verify(replace(kernel, body=map_statements(kernel.body, change)))


def test_scales_are_copied_from_multiples_of_128_bytes() -> None:
    def change(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, TensorMemoryCopy) or stmt.source.name != "a_scales":
            return stmt
        return replace(stmt, source_indices=(index(0), index(64)), chunks=1)

    kernel = block_scaled_gemm(FORMS["nvfp4"])
    with pytest.raises(InvalidKernel, match="a_scales is accessed at bytes that are no multiple of 128"):
        verify(replace(kernel, body=map_statements(kernel.body, change)))
