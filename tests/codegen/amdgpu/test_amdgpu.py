"""Tests of code for AMD's graphics processors, none of which is needed: its instructions, and what is refused."""

import re
from functools import cache

import numpy as np
import pytest

from tilewright.codegen.amdgpu.backend import AmdgpuBackend
from tilewright.codegen.backend import Packaging
from tilewright.codegen.export import exported
from tilewright.codegen.llvm.instructions import classify, total
from tilewright.codegen.lowering import LoweringStages, build, build_kernel, finish, lower, lowering_stages
from tilewright.core.dtypes import float16, float32
from tilewright.core.errors import CompileError, InvalidKernel, KernelFault, UnsupportedTarget
from tilewright.core.policy import SpacePolicy
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Compare, CompareOp, Load, const, index
from tilewright.ir.gpu.mma import MFMA_ATOMS, WAVEFRONT_LANES, Mma, MmaAtom
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import HardwareAxis, Kernel
from tilewright.ir.verify import verify
from tilewright.runtime.devices import open_device
from tilewright.runtime.module import load_module
from tilewright.schedule.sketches import sketches_for
from tilewright.service.targets import compiled_for, parse_device
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.tests.codegen.cuda.launches import LAUNCHES

GFX942 = Target("amdgpu", "gfx942", (), 304, 16)
GFX950 = Target("amdgpu", "gfx950", (), 256, 16)
WORKLOADS = {
    "matmul float16": OPERATORS["matmul"].workload({"m": 256, "n": 192, "k": 128, "dtype": "float16"}),
    "matmul bfloat16": OPERATORS["matmul"].workload({"m": 256, "n": 192, "k": 128, "dtype": "bfloat16"}),
    "matmul float32": OPERATORS["matmul"].workload({"m": 256, "n": 192, "k": 128}),
    "softmax float16": OPERATORS["softmax"].workload({"rows": 64, "columns": 1024, "dtype": "float16"}),
    "softmax float32": OPERATORS["softmax"].workload({"rows": 64, "columns": 1024}),
}
MFMA = {"float16": "f32_16x16x16_f16", "bfloat16": "f32_16x16x16_bf16", "float32": "f32_16x16x4_f32"}
ELF_MACHINE = 224
ABSENT = {
    "cluster": "clusters",
    "copied": "CopyAsync",
    "bulk": "MbarrierInit",
    "matrix": "swizzled",
    "grid": "GridBarrierArrive",
    "reduced": "AtomicReduce",
}
"""It maps the beginnings of names of launches that use what these processors do not have to a word of the error."""


@cache
def stages_of(name: str, target: Target = GFX942) -> LoweringStages:
    space = sketches_for(WORKLOADS[name], target)[0].space(WORKLOADS[name], target, limit=64)
    return lowering_stages(WORKLOADS[name], target, space.schedule(len(space) // 2))


@pytest.mark.parametrize("target", [GFX942, GFX950], ids=str)
@pytest.mark.parametrize("name", WORKLOADS)
def test_products_and_softmax_reach_the_instructions_for_them(name: str, target: Target) -> None:
    found = stages_of(name, target)
    text, counts = found.artifacts.layers[-1].text, found.artifacts.instructions
    operator, dtype = name.split()
    if operator == "matmul":
        assert re.search(rf"^\s+v_mfma_{MFMA[dtype]} ", text, re.MULTILINE) and counts["matrix"] >= 4
        assert re.search(r"^\s+ds_(read|write)\w*_b64 ", text, re.MULTILINE) or dtype == "float32"
        assert re.search(r"^\s+s_barrier$", text, re.MULTILINE)
    else:
        assert "ds_bpermute_b32" in text and counts["matrix"] == 0 and counts["vector_fma"] >= 8
    assert re.search(r"^\s+global_load_dwordx[24] ", text, re.MULTILINE)
    assert not re.search(r"^\s+(flat|scratch)_", text, re.MULTILINE)  # the address spaces were found, nothing spilled
    assert counts["vector_load"] and counts["vector_store"] and counts["other"] < total(counts) // 3
    (taken,) = found.artifacts.resources.values()
    assert taken.spill_bytes == taken.stack_bytes == 0 and 0 < taken.registers <= 256


@pytest.mark.parametrize("name", ["matmul float16", "softmax float32"])
def test_objects_are_of_that_machine_and_exported(name: str) -> None:
    workload = WORKLOADS[name]
    schedule = sketches_for(workload, GFX942)[0].space(workload, GFX942, limit=16).schedule(3)
    binary = build(workload, GFX942, schedule)
    assert binary.code[:4] == b"\x7fELF" and int.from_bytes(binary.code[18:20], "little") == ELF_MACHINE
    (grid,) = binary.launches
    assert binary.resources[grid.function].static_shared_bytes == grid.shared_bytes
    files = exported(workload, GFX942, schedule)
    assert files["kernel.o"] == binary.code and files.keys() == {"kernel.ll", "kernel.s", "kernel.o", "kernel.json"}
    with pytest.raises(UnsupportedTarget, match="kernels for processors"):
        exported(workload, GFX942, schedule, Packaging("kernel", True))


@pytest.mark.parametrize("name", LAUNCHES)
def test_what_cuda_kernels_are_made_of_compiles_or_is_refused_by_name(name: str) -> None:
    said = next((said for begin, said in ABSENT.items() if name.startswith(begin)), None)
    if said is None and name != "transpose_float16":
        functions = {grid.function for grid in build_kernel(LAUNCHES[name], GFX942).launches}
        assert len(functions) == len(LAUNCHES[name].launches)
        return
    with pytest.raises(CompileError, match=said or "swizzled"):
        build_kernel(LAUNCHES[name], GFX942)


@pytest.mark.parametrize("atom", MFMA_ATOMS.values(), ids=lambda a: a.name)
@pytest.mark.parametrize("part", ["a", "b", "d"])
def test_every_element_of_a_fragment_belongs_to_one_lane(atom: MmaAtom, part: str) -> None:
    rows, columns = {"a": (atom.m, atom.k), "b": (atom.k, atom.n), "d": (atom.m, atom.n)}[part]
    indices = {atom.fragment(part, lane, e) for lane in range(WAVEFRONT_LANES) for e in range(atom.elements(part))}
    assert indices == {(row, column) for row in range(rows) for column in range(columns)}


def product(threads: int, guarded: bool) -> Kernel:
    """Return a kernel with one instruction of every wavefront, or of the first alone where it is ``guarded``."""
    atom = MFMA_ATOMS["wave_m16n16k16_f16"]
    result = Buffer("O", (threads, 4), float32)
    w = Writer()
    with w.launch("product", [("t", threads, HardwareAxis.THREAD)]) as (t,):
        a, b = (w.allocate(n, (4,), float16, MemoryScope.REGISTER) for n in "ab")
        d = w.allocate("d", (4,), float32, MemoryScope.REGISTER)
        for e in range(4):
            for buffer, value in ((a, 1.0), (b, 2.0), (d, 0.0)):
                w.store(buffer, (index(e),), const(value, buffer.dtype))
        with w.when(Compare(CompareOp.LT, t, index(WAVEFRONT_LANES)) if guarded else None):
            w.emit(Mma(atom.name, d, (index(0),), a, (index(0),), b, (index(0),)))
        for e in range(4):
            w.store(result, (t, index(e)), Load(d, (index(e),)))
    return Kernel("product", (), (result,), (), w.finish())


def test_wavefronts_are_whole() -> None:
    (sums,) = interpret(product(128, guarded=False), {}).values()
    assert (sums == 32.0).all()
    with pytest.raises(KernelFault, match="blocks that are no multiple"):
        interpret(product(96, guarded=False), {})
    with pytest.raises(InvalidKernel, match="an mma of waves under"):
        verify(product(128, guarded=True))
    source = AmdgpuBackend().emit(product(128, guarded=False), GFX942)
    assert source.text.count("call <4 x float> @llvm.amdgcn.mfma.f32.16x16x16f16(") == 1
    with pytest.raises(CompileError, match="no matrix instruction 'wave_m16n16k16_f16'"):
        build_kernel(product(128, guarded=False), Target("cuda", "sm_90a", (), 132, 16))


def test_more_shared_memory_is_used_where_there_is_more() -> None:
    """A tile whose stages need over 64 KiB is for gfx950 alone. Its kernel computes the product there."""
    workload = OPERATORS["matmul"].workload({"m": 256, "n": 256, "k": 64, "dtype": "float16"})
    spaces = [
        sketches_for(workload, t)[0].space(workload, t, policy=SpacePolicy(prune=False)) for t in (GFX942, GFX950)
    ]
    row = int(spaces[1].quantities["shared_bytes"].argmax())
    schedule = spaces[1].schedule(row)
    assert spaces[1].quantities["shared_bytes"][row] > 64 << 10 and spaces[0].row_of(schedule) is None
    assert build(workload, GFX950, schedule).code
    inputs = random_inputs(workload, 1)
    (got,) = interpret(finish(lower(workload, GFX950, schedule), GFX950), inputs).values()
    ((name, wanted),) = reference(workload, inputs).items()
    absolute, relative = tolerance(workload)[name]
    np.testing.assert_allclose(np.asarray(got, np.float64), wanted, relative, absolute)


def test_nothing_is_timed_on_one() -> None:
    workload = WORKLOADS["softmax float32"]
    schedule = sketches_for(workload, GFX942)[0].space(workload, GFX942, limit=16).schedule(0)
    for text in ("amdgpu", "amdgpu:gfx942", "amdgpu:0"):
        with pytest.raises(UnsupportedTarget, match=rf"'{text}' cannot be timed here; allowed: llvm, cuda"):
            parse_device(text)
    with pytest.raises(UnsupportedTarget, match="no device of kind 'amdgpu'; known: llvm, cuda"):
        open_device("amdgpu")
    with pytest.raises(UnsupportedTarget, match="no modules for amdgpu gfx942"):
        load_module(workload, schedule, GFX942)
    assert compiled_for("amdgpu:gfx942", ()).device.target == GFX942
    with pytest.raises(UnsupportedTarget, match="amdgpu has no architecture 'gfx90a' here; known: gfx942, gfx950"):
        compiled_for("amdgpu:gfx90a", ())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]", "matrix"),
        ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7]", "vector_fma"),
        ("v_fmac_f32_e32 v0, v1, v2", "vector_fma"),
        ("v_max_f32_e32 v0, v1, v2", "vector_arithmetic"),
        ("v_cmp_nlt_f32_e64 s[0:1], v1, v2", "vector_arithmetic"),
        ("v_lshl_add_u32 v0, v1, 2, v3", "vector_integer"),
        ("v_lshl_add_u64 v[0:1], v[2:3], 0, v[4:5]", "vector_integer"),
        ("v_cvt_f32_f16_sdwa v0, v1", "convert"),
        ("v_cndmask_b32_e64 v0, v1, v2, vcc", "shuffle"),
        ("ds_bpermute_b32 v0, v1, v2", "shuffle"),
        ("ds_read2_b64 v[0:3], v4 offset1:1", "vector_load"),
        ("ds_write_b16_d16_hi v0, v1", "vector_store"),
        ("global_load_dwordx4 v[0:3], v[4:5], off", "vector_load"),
        ("global_store_short v[0:1], v2, off", "vector_store"),
        ("s_load_dwordx4 s[0:3], s[4:5], 0x0", "scalar_load_store"),
        ("s_and_saveexec_b64 s[0:1], vcc", "integer"),
        ("s_cbranch_execz .LBB0_2", "branch"),
        ("s_barrier", "other"),
        ("s_waitcnt vmcnt(0)", "other"),
    ],
)
def test_classes(line: str, expected: str) -> None:
    mnemonic, _, operands = line.partition(" ")
    assert classify(mnemonic, operands, "gfx942") == expected
