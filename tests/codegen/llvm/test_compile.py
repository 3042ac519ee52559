"""Source becomes object code: what the machine code holds, what is refused, and that only the input decides."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from tilewright.codegen.backend import Source
from tilewright.codegen.llvm.backend import LlvmBackend
from tilewright.codegen.llvm.frame_layout import SCRATCH_BYTES
from tilewright.codegen.llvm.instructions import count_instructions
from tilewright.codegen.llvm.split_lanes import power_of_two_chunks
from tilewright.core.dtypes import float32
from tilewright.core.errors import CompileError, UnsupportedTarget
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.expr import Broadcast, Load, Ramp, Var, const, index
from tilewright.ir.stmt import Allocate, For, Kernel, LoopKind, Store, seq
from tilewright.runtime.hardware import host_target
from tilewright.tests.codegen.kernels import (
    guarded_loads,
    large_locals,
    masked_strides,
    masks,
    matmul,
    nested_parallel,
    strides,
)
from tilewright.tests.golden import check_golden

BACKEND = LlvmBackend()
AVX512 = Target(
    "llvm",
    "x86-64",
    ("avx", "avx2", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", "f16c", "fma", "sse4.2"),
    2,
    64,
)
AVX2 = Target("llvm", "x86-64", ("avx", "avx2", "f16c", "fma", "sse4.2"), 2, 32)


def assembly(kernel: Kernel, target: Target = AVX512) -> str:
    return BACKEND.assembly(BACKEND.emit(kernel, target), target)


def micro_kernel(rows: int, columns: int, lanes: int) -> Kernel:
    """Return an unrolled matmul of ``rows`` by ``columns * lanes`` in registers, over a serial k."""
    k, n = 64, columns * lanes
    a, b, c = Buffer("A", (rows, k), float32), Buffer("B", (k, n), float32), Buffer("C", (rows, n), float32)
    acc = Buffer("acc", (rows, n), float32, MemoryScope.REGISTER)
    places = [(index(i), Ramp(index(v * lanes), 1, lanes)) for i in range(rows) for v in range(columns)]
    step = [Load(acc, p) + Broadcast(Load(a, (p[0], Var("k"))), lanes) * Load(b, (Var("k"), p[1])) for p in places]
    start = [Store(acc, p, Broadcast(const(0.0, float32), lanes)) for p in places]
    update = [Store(acc, p, e) for p, e in zip(places, step, strict=True)]
    finish = [Store(c, p, Load(acc, p)) for p in places]
    body = Allocate(acc, seq(*start, For("k", k, LoopKind.SERIAL, seq(*update)), *finish))
    return Kernel("micro", (a, b), (c,), (), body)


@pytest.mark.parametrize(("rows", "columns", "lanes"), [(14, 2, 16), (8, 3, 16), (6, 4, 16), (28, 1, 16), (6, 1, 64)])
def test_accumulators_stay_in_registers(rows: int, columns: int, lanes: int) -> None:
    text = assembly(micro_kernel(rows, columns, lanes))
    assert "(%rsp)" not in text
    counts = count_instructions(text)
    assert counts["vector_fma"] == rows * columns * lanes // 16
    assert counts["vector_store"] == rows * columns * lanes // 16
    assert counts["gather"] == counts["scalar_fp"] == counts["call"] == 0


@pytest.mark.parametrize("lanes", [48, 24])
def test_odd_widths_cost_no_shuffles(lanes: int) -> None:
    text = assembly(micro_kernel(4, 1, lanes))
    assert "(%rsp)" not in text
    assert count_instructions(text)["shuffle"] == 0


def test_narrow_machines_get_narrow_registers() -> None:
    text = assembly(micro_kernel(4, 2, 8), AVX2)
    assert "%zmm" not in text
    assert count_instructions(text)["vector_fma"] == 8


def test_contiguous_masks_use_mask_registers_and_spread_lanes_gather() -> None:
    assert count_instructions(assembly(masks(16, float32)))["masked"] > 0
    counts = count_instructions(assembly(strides(8)))
    assert counts["gather"] > 0


@pytest.mark.parametrize("target", [AVX512, AVX2], ids=["avx512", "avx2"])
def test_lanes_that_lie_close_together_are_shuffled_with_a_mask_too(target: Target) -> None:
    counts = count_instructions(assembly(masked_strides(8), target))
    assert counts["gather"] == 0 < counts["shuffle"]


def test_accumulators_whose_last_lanes_are_masked_stay_in_registers() -> None:
    """A masked store forwards nothing to the load that follows it."""
    terms, k, lanes = 5, 64, 16
    a, c = Buffer("A", (k, terms), float32), Buffer("C", (lanes,), float32)
    acc, lane = Buffer("acc", (lanes,), float32, MemoryScope.REGISTER), Ramp(index(0), 1, lanes)
    inside = lane < Broadcast(index(terms), lanes)
    total = Load(acc, (lane,)) + Load(a, (Broadcast(Var("k"), lanes), lane), inside)
    step = Store(acc, (lane,), total, inside)
    loop = For("k", k, LoopKind.SERIAL, step)
    start, finish = Store(acc, (lane,), Broadcast(const(0.0, float32), lanes)), Store(c, (lane,), Load(acc, (lane,)))
    text = assembly(Kernel("lanes", (a,), (c,), (), Allocate(acc, seq(start, loop, finish))))
    assert "(%rsp)" not in text and not re.search(r"vmov\w+\s+%[xyz]mm\d+, .*\{%k", text)


def test_pieces_cover_all_lanes() -> None:
    for lanes in range(1, 70):
        parts = power_of_two_chunks(lanes)
        assert [start for start, _ in parts] == [sum(c for _, c in parts[:n]) for n in range(len(parts))]
        assert sum(count for _, count in parts) == lanes
        assert all(count & (count - 1) == 0 for _, count in parts)


def test_the_source_is_readable() -> None:
    check_golden("codegen/llvm/golden/matmul.ll.txt", BACKEND.emit(matmul(8, 64, 32, 16), AVX512).text)
    check_golden("codegen/llvm/golden/guarded.ll.txt", BACKEND.emit(guarded_loads(8), AVX512).text)


def test_one_thread_needs_no_pool() -> None:
    alone = replace(AVX512, threads=1)
    assert "tilewright_parallel_for" not in BACKEND.emit(nested_parallel(), alone).text
    assert "tilewright_parallel_for" in BACKEND.emit(nested_parallel(), AVX512).text


def test_large_buffers_are_not_on_the_stack() -> None:
    text = BACKEND.emit(large_locals(), AVX512).text
    assert "tilewright_scratch" in text
    assert "x float], align" not in text


def test_more_scratch_than_allowed_is_refused() -> None:
    result = Buffer("O", (1,), float32)
    huge = Buffer("huge", (SCRATCH_BYTES // 4 + 16,), float32, MemoryScope.LOCAL)
    body = Allocate(
        huge, seq(Store(huge, (index(0),), const(1.0, float32)), Store(result, (index(0),), Load(huge, (index(0),))))
    )
    with pytest.raises(CompileError, match=r"need \d+ bytes for each thread; allowed"):
        BACKEND.emit(Kernel("huge", (), (result,), (), body), AVX512)


def test_broken_source_brings_the_compilers_message() -> None:
    with pytest.raises(CompileError, match=r"expected"):
        BACKEND.compile(Source("llvm-ir", "define nonsense", "f", ()), AVX512)


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(UnsupportedTarget, match="'pdp-11' here; known: x86-64"):
        BACKEND.emit(matmul(2, 16, 2, 16), Target("llvm", "pdp-11"))


def test_toolchains_tell_features_apart() -> None:
    assert BACKEND.toolchain(AVX512).key != BACKEND.toolchain(AVX2).key
    assert set(BACKEND.toolchain(AVX2).components) == {"tilewright", "codegen", "llvmlite", "llvm", "features", "opt"}


def test_another_process_makes_the_same_bytes() -> None:
    program = (
        "import hashlib\n"
        "from tilewright.tests.codegen.llvm.test_compile import AVX512, BACKEND, micro_kernel\n"
        "code = BACKEND.compile(BACKEND.emit(micro_kernel(6, 2, 16), AVX512), AVX512).code\n"
        "print(hashlib.sha256(code).hexdigest())\n"
    )
    run = [sys.executable, "-c", program]
    first, second = (subprocess.run(run, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first == second
    assert re.fullmatch(r"[0-9a-f]{64}\n", first)


def test_code_for_the_host_uses_what_the_host_has() -> None:
    target = host_target()
    widest = {64: "%zmm", 32: "%ymm", 16: "%xmm"}[target.vector_bytes]
    assert widest in assembly(micro_kernel(4, 2, target.vector_bytes // 4), target)


@pytest.mark.parametrize(("rows", "columns", "lanes"), [(14, 2, 16), (6, 4, 16), (6, 1, 64)])
def test_few_passes_keep_the_accumulators_of_a_kernel_as_written_in_registers(
    rows: int, columns: int, lanes: int
) -> None:
    source = BACKEND.emit(replace(micro_kernel(rows, columns, lanes), minimal_passes=True), AVX512)
    assert source.minimal_passes
    text = BACKEND.assembly(source, AVX512)
    assert "(%rsp)" not in text
    few, all_passes = count_instructions(text), count_instructions(assembly(micro_kernel(rows, columns, lanes)))
    same = ("vector_fma", "vector_load", "vector_store", "broadcast", "gather", "scalar_fp")
    assert {name: few[name] for name in same} == {name: all_passes[name] for name in same}
