"""Blocked products on vector registers: what the sketch takes, its spaces, and what the compiler makes of it."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.schedule.gpu.tiles import workload_of
from tests.sketch_agreement import check_schedules
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import finish
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.core.target import Target
from tilewright.ir.text import kernel_text
from tilewright.runtime.devices import host_target
from tilewright.runtime.module import load_module
from tilewright.schedule.cpu.gemm.fma import CPU_GEMM as SKETCH
from tilewright.schedule.cpu.gemm.promising import CACHE_BYTES
from tilewright.schedule.sketches import sketches_for
from tilewright.schedule.space.space import Space
from tilewright.te.data import random_inputs
from tilewright.te.workload import Workload

WIDE = Target("llvm", "x86-64", ("avx512f", "avx512vl", "fma"), threads=2, vector_bytes=64)
AVX2 = replace(WIDE, features=("avx2", "fma"), vector_bytes=32)
SQUARE = workload_of("matmul", m=1024, n=1024, k=1024)
FLAT = workload_of("matmul", m=32, n=4096, k=4096)
LINEAR = workload_of("linear", rows=128, inputs=1024, outputs=1024, activation="gelu_tanh")
ODD = workload_of("matmul", m=333, n=501, k=717, transpose_a=True)
SEVERAL = workload_of("batch_matmul", batch=16, m=128, n=128, k=64)
PIXELS = workload_of("conv2d", batch=1, channels=256, height=28, width=28, filters=512, kernel_h=1, kernel_w=1)
IMAGE = workload_of("conv2d", batch=1, channels=64, height=56, width=56, filters=64, kernel_h=3, kernel_w=3, padding=1)
LARGE = {"pixels": PIXELS, "square": SQUARE, "flat": FLAT, "linear": LINEAR, "odd": ODD, "several": SEVERAL}

SMALL = {
    "odd": workload_of("matmul", m=67, n=71, k=131),
    "several": workload_of("batch_matmul", batch=3, m=33, n=49, k=129, transpose_b=True),
    "linear": workload_of("linear", rows=21, inputs=300, outputs=100, activation="silu", residual=True),
    "half": workload_of("matmul", m=64, n=64, k=256, dtype="float16", transpose_a=True),
    "double": workload_of("matmul", m=40, n=56, k=256, dtype="float64"),
}


@pytest.mark.parametrize("case", SMALL)
def test_kernels_compute_their_expression(case: str) -> None:
    assert check_schedules(SKETCH.name, host_target("llvm"), SMALL[case], 3, 2) == 2


def test_what_it_leaves_to_others() -> None:
    assert sketches_for(SQUARE, WIDE) == (SKETCH,)
    assert not SKETCH.matches(SQUARE, Target("cuda", "sm_90a", threads=132))
    assert not SKETCH.matches(workload_of("matmul", m=1, n=4096, k=4096), WIDE)
    assert not SKETCH.matches(workload_of("matmul", m=32, n=32, k=32), WIDE)
    assert not SKETCH.matches(workload_of("matmul", m=512, n=512, k=512, dtype="int32"), WIDE)
    assert not SKETCH.matches(workload_of("softmax", rows=4096, columns=1024), WIDE)


@pytest.mark.parametrize("case", LARGE)
@pytest.mark.parametrize(
    "target",
    [WIDE, replace(WIDE, threads=64), AVX2],
    ids=["avx512", "64 threads", "avx2"],
)
def test_spaces_are_of_some_hundreds_and_sensible(case: str, target: Target) -> None:
    space = SKETCH.space(LARGE[case], target)
    assert 4 <= len(space) <= 1000
    q = space.quantities
    registers = 32 if target.vector_bytes == 64 else 16
    assert (q["accumulators"] < registers).all() and (q["accumulators"] >= registers // 2).all()
    assert (q["edge_waste"] <= 0.2).all() and (q["idle_share"] <= 0.25).all()
    # of a packed B, whose panels are read once in a block of k, two panels stay beside A, and half of the cache is left
    panel = q["kc"] * space.column("nr_vectors").astype(np.int64) * target.vector_bytes
    whole, passing = q["a_block_bytes"] + q["b_block_bytes"], 2 * (q["a_block_bytes"] + 2 * panel)
    packed = np.asarray(space.column("pack_b")) != "never"
    assert (np.where(packed, np.minimum(whole, passing), whole) <= CACHE_BYTES).all()
    assert (q["tasks"] >= target.threads).all()


def test_an_operand_on_few_lines_of_the_cache_is_copied() -> None:
    space = SKETCH.space(SQUARE, WIDE)
    never = np.asarray(space.column("pack_b")) == "never"
    assert not never.any()
    assert (np.asarray(SKETCH.space(FLAT, WIDE).column("pack_b")) == "never").any()


def test_rows_on_few_sets_of_a_cache_are_no_block_that_it_holds() -> None:
    """Rows of 4,096 bytes, of which 512 are read at a time, have an eighth of the sets."""
    space = SKETCH.space(SQUARE, WIDE)
    tall = (np.asarray(space.column("pack_a")) == "never") & (space.column("m_blocks") == 1)
    assert not (tall & (space.column("kc") == 128)).any()
    even = SKETCH.space(workload_of("matmul", m=1024, n=1024, k=1088), WIDE)
    tall = (np.asarray(even.column("pack_a")) == "never") & (even.column("m_blocks") == 1)
    assert (tall & (even.column("kc") == 136)).any()


def test_pixels_are_read_in_whole_vectors() -> None:
    backend = backend_for(WIDE)
    kernel = finish(SKETCH.lower(PIXELS, WIDE, SKETCH.space(PIXELS, WIDE).schedule(0)), WIDE)
    text = backend.assembly(backend.emit(kernel, WIDE), WIDE)
    assert "gather" not in text and "scatter" not in text


@pytest.mark.parametrize("case", ["square", "odd"])
def test_accumulators_stay_in_registers(case: str) -> None:
    """Every vector multiply-add of a tile is there, and the loops that have them leave the stack alone."""
    space = SKETCH.space(LARGE[case], WIDE)
    backend = backend_for(WIDE)
    for row in range(0, len(space), len(space) // 5):
        schedule = space.schedule(row)
        kernel = finish(SKETCH.lower(LARGE[case], WIDE, schedule), WIDE)
        text = backend.assembly(backend.emit(kernel, WIDE), WIDE)
        blocks = [block for block in re.split(r"^\.\w+:|\tj\w+\t", text, flags=re.MULTILINE) if "vfmadd" in block]
        tile = int(schedule["mr"]) * int(schedule["nr_vectors"])
        assert max(block.count("vfmadd") for block in blocks) >= tile
        for block in blocks:
            on_stack = [line for line in block.splitlines() if "zmm" in line and "(%rsp)" in line]
            assert len(on_stack) <= 8, schedule  # constants of the loops around


@pytest.mark.parametrize("workload", [SQUARE, IMAGE], ids=["product", "convolution"])
def test_tiles_of_avx2_keep_no_accumulator_on_the_stack(workload: Workload) -> None:
    """Tiles that need all 16 registers are legal, and not promising: LLVM stores an accumulator in each step."""
    space, backend = SKETCH.space(workload, AVX2), backend_for(AVX2)
    mr, vectors = np.asarray(space.column("mr")), np.asarray(space.column("nr_vectors"))
    assert ((mr + 1) * vectors + 1 < 16).all()
    assert "4 3" in _tiles(SKETCH.space(workload, AVX2, policy=SpacePolicy(prune=False)))
    for row in {str(tile): n for n, tile in enumerate(zip(mr, vectors, strict=True))}.values():
        kernel = finish(SKETCH.lower(workload, AVX2, space.schedule(row)), AVX2)
        text = backend.assembly(backend.emit(kernel, AVX2), AVX2)
        blocks = [block for block in re.split(r"^\.\w+:|\tj\w+\t", text, flags=re.MULTILINE) if "vfmadd" in block]
        assert blocks
        assert not any(re.search(r"vmov\w+\t%ymm\d+, \d*\(%rsp\)", block) for block in blocks), space.schedule(row)


def _tiles(space: Space) -> set[str]:
    return {f"{mr} {vectors}" for mr, vectors in zip(space.column("mr"), space.column("nr_vectors"), strict=True)}


@pytest.mark.parametrize(("packing", "prefetches"), [("whole", True), ("never", False)])
def test_the_next_panel_of_packed_weights_is_prefetched(packing: str, prefetches: bool) -> None:
    space = SKETCH.space(SQUARE, WIDE, policy=SpacePolicy(prune=False))
    schedules = (space.schedule(row) for row in range(len(space)))
    schedule = next(s for s in schedules if s["pack_b"] == packing and s["m_blocks"] == 1)
    backend = backend_for(WIDE)
    text = backend.assembly(backend.emit(finish(SKETCH.lower(SQUARE, WIDE, schedule), WIDE), WIDE), WIDE)
    assert ("prefetch" in text) is prefetches


@pytest.mark.parametrize(("rows", "prefetches"), [(16, True), (128, False)])
def test_few_rows_prefetch_what_they_read_in_place(rows: int, prefetches: bool) -> None:
    workload = workload_of("matmul", m=rows, n=5000, k=512)
    knobs: dict[str, KnobValue] = {
        "mr": 8,
        "nr_vectors": 3,
        "m_blocks": 1,
        "n_blocks": 2,
        "kc": 512,
        "pack_a": "never",
        "pack_b": "never",
    }
    schedule = Schedule.of(SKETCH.name, SKETCH.version, knobs)
    text = kernel_text(SKETCH.lower(workload, WIDE, schedule))
    assert ("prefetch_line(B[" in text) is prefetches


@pytest.mark.parametrize(("columns", "most"), [(8192, 128), (4096, 128), (2048, 256), (5000, 512)])
def test_rows_on_many_pages_are_read_a_few_at_a_time(columns: int, most: int) -> None:
    """Pages at a pitch of 32 KiB share 16 sets of a translation buffer."""
    space = SKETCH.space(workload_of("matmul", m=64, n=columns, k=512), WIDE)
    in_place = np.asarray(space.column("pack_b")) == "never"
    assert max(np.asarray(space.column("kc"))[in_place]) == most


def test_blocks_of_k_are_added_up_for_themselves() -> None:
    """The error of a long sum is that of blocks then. With each product added to the sum of all before it, it is 5
    times as large."""
    workload = workload_of("matmul", m=64, n=64, k=4096)
    inputs = random_inputs(workload, 1)
    a, b = (inputs[x.name].astype(np.float64) for x in workload.inputs)
    given: dict[str, KnobValue] = {"mr": 4, "nr_vectors": 2, "m_blocks": 1, "n_blocks": 1, "kc": 128}
    given |= {"pack_a": "never", "pack_b": "task", "order": "rows_inside", "store": "cached"}
    names = [knob.name for knob in SKETCH.knobs(workload, host_target())]
    schedule = Schedule.of(SKETCH.name, SKETCH.version, {name: given[name] for name in names})
    (summed,) = load_module(workload, schedule)(*(inputs[x.name] for x in workload.inputs))
    error = np.sqrt(np.mean((np.asarray(summed) - a @ b) ** 2)) / np.sqrt(np.mean((a @ b) ** 2))
    assert error < 4 * np.finfo(np.float32).eps
