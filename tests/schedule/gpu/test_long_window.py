"""Kernels of windows that are long along one axis: what they take, what they compute, and what a thread does for it."""

from collections.abc import Callable

import pytest

from tests.schedule.gpu.tiles import (
    EVERY_LEGAL,
    H200,
    assert_agrees,
    assert_schedule_agrees,
    compiled,
    legal_schedule_of,
    workload_of,
)
from tilewright.ir.rewrite import loads_of
from tilewright.ir.stmt import For, LoopKind, Store, walk_statements
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.long_window.space import CUDA_LONG_WINDOW as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload


def _filter(
    taps: int, outputs: int, rows: int = 2, step: int = 1, dilation: int = 1, dtype: str = "float32", to: str = "sum"
) -> Workload:
    """A filter of many taps along the rows of a signal."""
    length = (outputs - 1) * step + (taps - 1) * dilation + 1
    x, h = f"X[b, {step} * i + {dilation} * k]", "H[k]"
    if to != "sum":
        term = f"{x} + {h}"
    else:
        term = f"{x} * {h}" if dtype == "float32" else f"float32({x}) * float32({h})"
    return parse_workload(
        f"X: {dtype}[{rows}, {length}]\nH: {dtype}[{taps}]\nY[b, i < {outputs}] = {to} over k < {taps} of {term}"
    )


def _text(text: str) -> Callable[[], Workload]:
    return lambda: parse_workload(text)


CASES: dict[str, Callable[[], Workload]] = {
    "rows": lambda: _filter(33, 368),
    "many taps": lambda: _filter(301, 400),
    "halves": lambda: _filter(65, 300, dtype="float16"),
    "strided": lambda: _filter(65, 200, step=3),
    "dilated by less than a block has lanes": lambda: _filter(65, 300, dilation=3),
    "dilated by more than a block has lanes": lambda: _filter(31, 250, dilation=100),
    "few taps that are far from each other": lambda: _filter(9, 300, dilation=10),
    "greatest sums": lambda: _filter(65, 300, dtype="int32", to="max"),
    "causal, a filter for each row": _text(
        "X: float16[2, 300]\nH: float16[2, 65]\n"
        "S[b, i < 300] = sum over k < 65 of select(i - k >= 0, float32(X[b, i - k]), 0) * float32(H[b, k])\n"
        "Y[b, i] = float16(S[b, i] * 2)"
    ),
    "products under a condition": _text(
        "X: float32[2, 300]\nH: float32[2, 65]\n"
        "Y[b, i < 300] = sum over k < 65 of select(i - k >= 0, X[b, i - k] * H[b, k], 0)"
    ),
    "halves, a filter for each row": _text(
        "X: bfloat16[2, 1000]\nH: bfloat16[2, 400]\n"
        "S[b, i < 600] = sum over k < 400 of float32(X[b, i + k]) * float32(H[b, k])\nY[b, i] = bfloat16(S[b, i])"
    ),
    "columns": _text(
        "X: float32[150, 50]\nH: float32[33]\nY[i < 118, c] = sum over k < 33 of H[k] * X[i + k, c]"
    ),
    "dilated columns with a filter each": _text(
        "X: float32[2, 200, 50]\nH: float32[33, 50]\n"
        "Y[b, i < 100, c] = sum over k < 33 of H[k, c] * X[b, i + 2 * k, c]"
    ),
    "computed taps": _text(
        "X: float32[2, 300]\nY[b, i < 200] = sum over k < 65 of exp(-0.001 * float32(k)) * X[b, i + k]"
    ),
    "means": _text(
        "X: float16[2, 500]\nS[b, i < 300] = sum over k < 65 of float32(X[b, i + k])\nY[b, i] = S[b, i] / 65"
    ),
    "greatest of columns": _text("X: int32[150, 50]\nY[i < 118, c] = max over k < 33 of X[i + k, c]"),
    "greatest of dilated windows": _text("X: float16[2, 900]\nY[b, i < 300] = max over k < 90 of X[b, i + 3 * k]"),
    "greatest of every second window": _text("X: float32[2, 300]\nY[b, i < 100] = max over k < 60 of X[b, 2 * i + k]"),
    "correlation": _text(
        "A: float32[2, 1000]\nB: float32[2, 1100]\nY[b, lag < 100] = sum over t < 1000 of A[b, t] * B[b, t + lag]"
    ),
    "differences from a template": _text(
        "X: int32[50, 90]\nH: int32[5, 31]\n"
        "Y[i < 46, j < 60] = sum over r < 5, s < 31 of abs(H[r, s] - X[i + r, j + s])"
    ),
    "several filters": _text(
        "X: float32[2, 300]\nH: float32[3, 33]\nY[b, f < 3, i < 268] = sum over k < 33 of H[f, k] * X[b, i + k]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 1) == 1
    assert assert_agrees(SKETCH, CASES[case](), 5, policy=EVERY_LEGAL) == 5


def test_matrix_units_multiply_halves() -> None:
    """Strips of any length, stages whose last one has fewer taps, or taps for a part of a matrix, and several phases,
    also with a filter each."""
    assert dict(default_schedule(_filter(400, 1 << 16, 8, dtype="float16"), H200).knobs)["mma"] == 1
    columns = parse_workload(
        "X: float16[2, 400, 20]\nH: float16[70, 20]\n"
        "Y[b, i < 300, c] = sum over k < 70 of float32(X[b, i + k, c]) * float32(H[k, c])"
    )
    for workload in (columns, _filter(65, 900, dilation=4, dtype="bfloat16")):
        lanes = 8 if workload is columns else 4
        phased = legal_schedule_of(SKETCH, workload, mma=1, tile_w=16, lanes=lanes, block_k=64, k_unroll=32)
        assert_schedule_agrees(SKETCH, workload, phased)
    workload = CASES["halves, a filter for each row"]()
    for tile_w, k_unroll, block_k in ((8, 16, 32), (16, 32, 64), (32, 32, 256), (64, 64, 512)):
        knobs = {"mma": 1, "tile_w": tile_w, "k_unroll": k_unroll, "block_k": block_k, "threads": 64}
        assert_schedule_agrees(SKETCH, workload, legal_schedule_of(SKETCH, workload, **knobs))


def test_what_it_leaves_to_others() -> None:
    for workload in (
        _filter(9, 1000),  # few taps
        _filter(65, 8),  # few outputs share anything
        _filter(65, 100, step=16),
        workload_of("matmul", m=64, n=64, k=32),
        workload_of("reduce", shape=[64, 1024], axes=[1]),
        workload_of("conv1d", batch=1, channels=32, length=100, filters=32, kernel=31),
    ):
        assert not SKETCH.matches(workload, H200)


def test_matrix_units_multiply_many_channels_of_few_filters() -> None:
    """272 channels of 16 signals and one filter of 31 taps took an H200 194 us by the prior, and take 5."""

    def sketches(channels: int, dtype: str) -> set[str]:
        given = {"batch": 16, "channels": channels, "length": 400, "filters": 1, "kernel": 31, "padding": 15}
        return {s.name for s in sketches_for(workload_of("conv1d", **given, dtype=dtype), H200)}

    assert sketches(272, "float16") == {"cuda_loops", "cuda_decomposed"}
    assert SKETCH.name in sketches(16, "float16") & sketches(272, "float32")


def test_a_thread_reads_each_position_once() -> None:
    """For each tap it reads one position from shared memory, which serves all its outputs."""
    workload = _filter(129, 1 << 16)
    schedule = legal_schedule_of(SKETCH, workload, tile_w=15, k_unroll=16, block_k=256, warps_k=1, threads=128)
    kernel = SKETCH.lower(workload, H200, schedule)
    stores = [s for s in walk_statements(kernel.body) if isinstance(s, Store)]
    read = [s for s in stores if any(load.buffer.name == "position_tile" for load in loads_of(s))]
    products = [s for s in stores if s.buffer.name == "Y_acc" and loads_of(s)]
    assert len(read) == 14 + 16 + 1 and len(products) == (16 + 1) * 15  # ahead, in the loop, and for the last tap


def test_windows_without_taps_take_a_few_steps_an_output_however_long_they_are() -> None:
    """They are joined of running reductions, and take one step more for each part between."""
    counts = []
    for points in (120, 240):
        workload = parse_workload(f"X: float32[4, 100000]\nY[b, i < 50000] = max over k < {points} of X[b, i + k]")
        assert dict(default_schedule(workload, H200).knobs)["scanned"] == 1
        kernel = SKETCH.lower(workload, H200, legal_schedule_of(SKETCH, workload, scanned=1, tile_w=15, threads=128))
        counts.append(sum(s.buffer.name == "Y_acc" for s in walk_statements(kernel.body) if isinstance(s, Store)))
    assert counts == [1 + 3 * 15] * 2


@pytest.mark.parametrize(("length", "lanes"), [(4096, 4), (4098, 2), (4097, 1)])
def test_positions_are_loaded_by_aligned_vectors(length: int, lanes: int) -> None:
    """They are as wide as the pitch of rows allows."""
    workload = _filter(129, length - 128, 4)
    kernel = SKETCH.lower(workload, H200, legal_schedule_of(SKETCH, workload, block_k=64, k_unroll=16, threads=64))
    vectors = [s for s in walk_statements(kernel.body) if isinstance(s, For) and s.kind is LoopKind.VECTORIZED]
    stored = [s.extent for s in vectors if isinstance(s.body, Store) and s.body.buffer.name == "position_tile"]
    assert stored and set(stored) == {lanes}


@pytest.mark.parametrize("taps", [129, 1000])
def test_the_default_keeps_accumulators_in_registers(taps: int) -> None:
    workload = _filter(taps, 1 << 18, 32)
    schedule = default_schedule(workload, H200)
    assert schedule.sketch == SKETCH.name
    resources = compiled(SKETCH, workload, **dict(schedule.knobs))
    assert not resources.spill_bytes and resources.registers <= 128
