"""Code for processors that are not here: what it consists of, what it calls, and what is refused."""

import re
from functools import cache

import pytest

from tilewright.codegen.llvm.architectures import ARCHITECTURES, function_attributes, target_named
from tilewright.codegen.llvm.backend import LlvmBackend
from tilewright.codegen.llvm.instructions import DIALECTS, classify, count_instructions, total
from tilewright.codegen.lowering import LoweringStages, build, lowering_stages
from tilewright.core.errors import CompileError, UnsupportedTarget
from tilewright.core.target import Target
from tilewright.ir.stmt import Kernel
from tilewright.runtime.devices import host_target, open_device
from tilewright.runtime.jit_session import load_object
from tilewright.runtime.module import load_module
from tilewright.schedule.sketches import sketches_for
from tilewright.te.operators import OPERATORS
from tilewright.tests.codegen.kernels import KERNELS

BACKEND = LlvmBackend()
NAMES = ("aarch64", "aarch64+sve", "riscv64+v+zvfh", "riscv64+v+zvl256b+zvfh", "riscv64+zfh")
MACHINES = {"x86-64": 62, "aarch64": 183, "riscv64": 243}
"""As ELF numbers them."""
WORKLOADS = {
    "matmul": OPERATORS["matmul"].workload({"m": 48, "n": 64, "k": 40}),
    "softmax": OPERATORS["softmax"].workload({"rows": 16, "columns": 256}),
    "matmul in blocks": OPERATORS["matmul"].workload({"m": 512, "n": 512, "k": 512}),
}
SAMPLE = [name for number, name in enumerate(KERNELS) if number % 4 == 0 or "float16" in name or "masks" in name]
OUTSIDE = {"tilewright_parallel_for", "tilewright_scratch", "memcpy", "memset", "sin", "cos", "sinf", "cosf"}
"""What kernels may call that is not in their module: the thread pool and the C library."""


@cache
def lowered(operator: str, name: str) -> LoweringStages:
    """Of the schedule whose vectors are widest, or which has most of them."""
    workload, target = WORKLOADS[operator], target_named(name)
    space = sketches_for(workload, target)[0].space(workload, target, limit=500)
    schedules = [space.schedule(n) for n in range(len(space))]
    width = "nr_vectors" if operator == "matmul in blocks" else "lanes"
    return lowering_stages(workload, target, max(schedules, key=lambda s: int(s[width])))


def assembly(lowered: LoweringStages) -> str:
    return lowered.artifacts.layers[-1].text


@pytest.mark.parametrize("operator", WORKLOADS)
@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("aarch64", r"fmla\s+v\d+\.4s"),
        ("aarch64+sve", r"fml?ad?\s+z\d+\.s, p\d+/m"),
        ("riscv64+v", r"vfmacc\.v[vf]\s+v\d+"),
        ("riscv64+v+zvl256b", r"vfmacc\.v[vf]\s+v\d+"),
        ("x86-64+avx2+fma", r"vfmadd\w+ps\s.*%ymm"),
        ("x86-64+avx512f+fma", r"vfmadd\w+ps\s.*%zmm"),
    ],
)
def test_products_and_softmax_reach_the_vector_instructions(operator: str, name: str, fused: str) -> None:
    found = lowered(operator, name)
    counts = found.artifacts.instructions
    assert re.search(fused, assembly(found))
    assert counts["vector_fma"] >= 4 and counts["vector_load"] and counts["vector_store"]
    assert counts["scalar_fma"] == 0 and counts["scalar_fp"] <= 8  # the end of a row
    assert counts["other"] < total(counts) // 3


def test_vectors_are_as_wide_as_the_target_says() -> None:
    lanes = {name: widest(lowered("matmul", name)) for name in (*NAMES, "x86-64+avx512f")}
    assert lanes == {
        "aarch64": 4,
        "aarch64+sve": 8,
        "riscv64+v+zvfh": 4,
        "riscv64+v+zvl256b+zvfh": 8,
        "riscv64+zfh": 2,
        "x86-64+avx512f": 16,
    }
    assert "ptrue" in assembly(lowered("matmul", "aarch64+sve")) and "ptrue" not in assembly(
        lowered("matmul", "aarch64")
    )
    assert re.search(r"vsetivli\s+zero, 8, e32, m1,", assembly(lowered("matmul", "riscv64+v+zvl256b")))


def widest(lowered: LoweringStages) -> int:
    """Lanes of the widest vectors in the source."""
    return max(int(n) for n in re.findall(r"<(\d+) x float>", lowered.source.text))


@pytest.mark.parametrize("name", NAMES)
def test_objects_are_the_architectures_and_call_nothing_strange(name: str) -> None:
    target = target_named(name)
    for kernel in SAMPLE:
        text = BACKEND.assembly(BACKEND.emit(KERNELS[kernel], target), target)
        called = re.findall(r"^\s+(?:bl|b|call|tail|j)\s+([A-Za-z_][\w.]*)\s*$", text, re.MULTILINE)
        assert {c for c in called if not c.startswith("tw")} <= OUTSIDE, kernel
        counts = count_instructions(text, target.arch)
        assert counts["other"] <= max(12, total(counts) // 3), (kernel, counts)
    workload = WORKLOADS["softmax"]
    schedule = sketches_for(workload, target)[0].space(workload, target, limit=16).schedule(0)
    code = build(workload, target, schedule).code
    assert code[:4] == b"\x7fELF" and int.from_bytes(code[18:20], "little") == MACHINES[target.arch]
    assert code == build(workload, target, schedule).code


def test_every_architecture_can_be_read_and_is_told_apart() -> None:
    assert ARCHITECTURES.keys() == DIALECTS.keys() - {"gfx942", "gfx950"} == MACHINES.keys()
    targets = [target_named(name) for name in (*ARCHITECTURES, *NAMES)]
    assert len({t.key for t in targets}) == len(set(targets)) == len({*ARCHITECTURES, *NAMES})
    assert function_attributes(target_named("aarch64+sve")) == "nounwind vscale_range(2,16)"
    assert function_attributes(host_target()) == function_attributes(target_named("aarch64")) == "nounwind"


@pytest.mark.parametrize("name", ["aarch64", "riscv64+v"])
def test_nothing_of_another_processor_runs_here(name: str) -> None:
    workload, target = WORKLOADS["softmax"], target_named(name)
    schedule = sketches_for(workload, target)[0].space(workload, target, limit=16).schedule(0)
    with pytest.raises(UnsupportedTarget, match=f"{target.arch} does not run here; this machine is llvm x86-64"):
        load_module(workload, schedule, target)
    binary = build(workload, target, schedule)
    with pytest.raises(UnsupportedTarget, match=f"an object for ELF machine {MACHINES[target.arch]}"):
        load_object(binary.code, (binary.entry,), {})
    with pytest.raises(UnsupportedTarget, match=f"ELF machine {MACHINES[target.arch]}"):
        open_device("llvm").load(binary)


def test_what_is_unknown_is_named() -> None:
    with pytest.raises(UnsupportedTarget, match=r"'armv7' here; known: x86-64, aarch64, riscv64"):
        target_named("armv7+neon")
    with pytest.raises(UnsupportedTarget, match=r"llvm:aarch64 has no extension 'avx2' here; known: .*sve2"):
        target_named("aarch64+avx2")
    with pytest.raises(UnsupportedTarget, match="has no extension ''"):
        target_named("riscv64+")
    with pytest.raises(UnsupportedTarget, match="no assembly of 'pdp-11' is read; known: x86-64"):
        count_instructions("", "pdp-11")


def test_half_precision_needs_an_extension_where_it_is_one() -> None:
    half: Kernel = KERNELS["reduce_float16_8"]
    BACKEND.emit(half, target_named("aarch64"))
    BACKEND.emit(half, target_named("riscv64+v+zfhmin"))
    with pytest.raises(CompileError, match="float16 needs the zfhmin or zfh or zvfh extension"):
        BACKEND.emit(half, Target("llvm", "riscv64", ("a", "c", "d", "f", "m", "v")))


@pytest.mark.parametrize(
    ("arch", "line", "expected"),
    [
        ("aarch64", "fmla v3.2d, v2.2d, v5.d[0]", "vector_fma"),
        ("aarch64", "fmad z5.d, p5/m, z20.d, z19.d", "vector_fma"),
        ("aarch64", "fmadd d0, d11, d0, d1", "scalar_fma"),
        ("aarch64", "bfmmla v0.4s, v1.8h, v2.8h", "matrix"),
        ("aarch64", "fadd v0.4s, v1.4s, v2.4s", "vector_arithmetic"),
        ("aarch64", "fadd s0, s1, s2", "scalar_fp"),
        ("aarch64", "add v0.4s, v1.4s, v2.4s", "vector_integer"),
        ("aarch64", "add x3, x3, #1", "integer"),
        ("aarch64", "ldp q17, q19, [x5, #32]", "vector_load"),
        ("aarch64", "ldr d1, [x9, x3, lsl #3]", "scalar_load_store"),
        ("aarch64", "ld1 { v16.s }[3], [x0]", "scalar_load_store"),
        ("aarch64", "ld1w { z1.s }, p0/z, [x5]", "vector_load"),
        ("aarch64", "ld1w { z1.s }, p0/z, [x5, z2.s, sxtw #2]", "gather"),
        ("aarch64", "st1w { z3.s }, p0, [x5]", "vector_store"),
        ("aarch64", "st1d { z3.d }, p0, [z5.d]", "scatter"),
        ("aarch64", "ld1r { v17.4s }, [x1]", "broadcast"),
        ("aarch64", "mov z0.s, s1", "broadcast"),
        ("aarch64", "mov v0.s[1], v1.s[0]", "shuffle"),
        ("aarch64", "mov v1.16b, v2.16b", "other"),
        ("aarch64", "zip1 v2.8b, v2.8b, v0.8b", "shuffle"),
        ("aarch64", "fcvtl v6.4s, v3.4h", "convert"),
        ("aarch64", "b.ne .LBB0_1", "branch"),
        ("aarch64", "bl tilewright_parallel_for", "call"),
        ("riscv64", "vfmacc.vf v10, fa5, v17", "vector_fma"),
        ("riscv64", "vfwmacc.vf v10, fa5, v17", "vector_fma"),
        ("riscv64", "fmadd.s fa2, fa5, fa1, fa2", "scalar_fma"),
        ("riscv64", "vfadd.vv v16, v8, v12", "vector_arithmetic"),
        ("riscv64", "vfredusum.vs v11, v8, v10", "vector_arithmetic"),
        ("riscv64", "fadd.d fa2, fa4, fa3", "scalar_fp"),
        ("riscv64", "vadd.vi v16, v16, 1", "vector_integer"),
        ("riscv64", "addi sp, sp, -32", "integer"),
        ("riscv64", "vle32.v v8, (s0)", "vector_load"),
        ("riscv64", "vlse32.v v10, (a2), t6", "gather"),
        ("riscv64", "vluxei64.v v12, (a5), v10", "gather"),
        ("riscv64", "vse32.v v8, (s0)", "vector_store"),
        ("riscv64", "vsse32.v v9, (a2), s6", "scatter"),
        ("riscv64", "vfmv.v.f v8, fa5", "broadcast"),
        ("riscv64", "vslidedown.vi v8, v8, 1", "shuffle"),
        ("riscv64", "vfncvt.f.f.w v11, v8", "convert"),
        ("riscv64", "vsetivli zero, 8, e32, m1, ta, ma", "other"),
        ("riscv64", "flw fa4, 0(s1)", "scalar_load_store"),
        ("riscv64", "bltu s0, s1, .LBB0_4", "branch"),
        ("riscv64", "tail cos", "call"),
    ],
)
def test_classes(arch: str, line: str, expected: str) -> None:
    mnemonic, _, operands = line.partition(" ")
    assert classify(mnemonic, operands, arch) == expected


def test_immediates_of_arm_are_no_comments_and_masks_are_seen() -> None:
    text = "\tld1w\t{ z1.s }, p0/z, [x5, #1, mul vl]  // spilled\n\tadd\tv0.4s, v1.4s, #1\n\tptrue\tp0.s\n"
    counts = count_instructions(text, "aarch64")
    assert (counts["vector_load"], counts["vector_integer"], counts["masked"], total(counts)) == (1, 1, 1, 3)
    assert count_instructions("\tvadd.vv v1, v1, v2, v0.t\n", "riscv64")["masked"] == 1
