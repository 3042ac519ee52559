"""How windows see pixels: several in a row as one, wide ones, any lines of a patch; and packed filters."""

from typing import Any

import pytest

from tests.schedule.gpu.test_conv import F16, FEW, check, conv1d, conv2d, conv3d
from tests.schedule.gpu.tiles import H200, legal_schedule_of, schedule_of
from tests.sketch_agreement import assert_kernel_agrees
from tilewright.codegen.lowering import build_kernel
from tilewright.core.errors import IllegalSchedule
from tilewright.core.schedule import Schedule
from tilewright.ir.gpu.wgmma import WarpgroupMma
from tilewright.ir.stmt import walk_statements
from tilewright.schedule.gpu.conv.space import CUDA_CONV as SKETCH
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

ROWS: dict[str, tuple[Workload, int, dict[str, Any]]] = {
    "line": (conv1d(channels=16, length=40, batch=2), 48, {"pixels": "im2col"}),
    "strided": (conv2d(channels=16, height=9, width=33, padding=0, stride=2), 48, {"pixels": "im2col", "split_k": 1}),
    "patches": (conv2d(channels=8, height=10, width=10, padding=0), 32, {"pixels": "1x8x8"}),
    "halo, TF32": (
        conv2d(channels=8, height=10, width=10, padding=0, filters_first=True, dtype="float32", precision="tf32"),
        24,
        {"pixels": "halo_1x8x8"},
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_places_in_a_row_are_loaded_as_one(case: str) -> None:
    """A row of shared memory has the channels of three neighbours, and nothing is copied."""
    workload, k, knobs = ROWS[case]
    schedule = legal_schedule_of(SKETCH, workload, row_taps=3, atoms_m=1, **knobs)
    kernel = SKETCH.lower(workload, H200, schedule)
    taps = {s.k for s in walk_statements(kernel.body) if isinstance(s, WarpgroupMma)}
    assert taps == {k} and not kernel.workspace and len(kernel.launches) == 1
    check(workload, H200, schedule)


WIDE: dict[str, tuple[Workload, dict[str, Any]]] = {
    "line": (
        conv1d(channels=16, length=66, batch=2, kernel=5, padding=2, stride=2, bias=True),
        {"pixels": "halo_1x64"},
    ),
    "halo": (
        conv2d(channels=32, height=9, width=64, stride=2, residual=True, activation="relu"),
        {"pixels": "halo_2x1x32"},
    ),
    "halo, odd rows": (conv2d(channels=24, height=5, width=62, stride=2, filters=20), {"pixels": "halo_2x1x32"}),
    "even window": (
        conv2d(channels=64, width=64, kernel_h=4, kernel_w=4, stride=2, dtype="bfloat16"),
        {"pixels": "halo_2x1x32"},
    ),
    "filters side by side": (conv2d(channels=32, width=64, stride=2, filters=64), {"pixels": "halo_2x1x32"}),
    "four pixels": (
        conv2d(channels=16, width=64, kernel_h=5, kernel_w=7, stride=4, padding=3, batch=3),
        {"pixels": "halo_4x1x16"},
    ),
    "volume": (conv3d(channels=32, depth=3, height=3, width=64, padding=1, stride=2), {"pixels": "halo_2x1x1x32"}),
    "TF32": (
        conv2d(channels=16, width=64, stride=2, filters_first=True, dtype="float32", precision="tf32"),
        {"pixels": "halo_2x1x32"},
    ),
}


@pytest.mark.parametrize("case", WIDE)
def test_windows_that_move_by_several_pixels_move_by_a_wide_one(case: str) -> None:
    workload, knobs = WIDE[case]
    stride = 4 if case == "four pixels" else 2
    schedule = legal_schedule_of(SKETCH, workload, space_to_depth=stride, atoms_m=1, **knobs)
    kernel = SKETCH.lower(workload, H200, schedule)
    assert [launch.name for launch in kernel.launches][:2] == ["space_to_depth", "kernel"]
    check(workload, H200, schedule)


PACKED: dict[str, tuple[Workload, dict[str, Any]]] = {
    "by im2col": (conv2d(filters=80, bias=True, stride=2, height=9), {"pixels": "im2col", "mma_n": 80}),
    "halo": (conv2d(channels=96, filters=96, height=8, residual=True), {"pixels": "halo_1x8x8", "mma_n": 96}),
    "odd filters": (conv2d(channels=72, filters=21, height=7), {"pixels": "im2col"}),
    "volume": (conv3d(filters=24, depth=5, padding=1), {"pixels": "im2col", "split_k": 2}),
}


@pytest.mark.parametrize("case", PACKED)
def test_filters_are_packed_where_rows_along_them_are_not_whole(case: str) -> None:
    workload, knobs = PACKED[case]
    schedule = legal_schedule_of(SKETCH, workload, pack_b=1, **knobs)
    kernel = SKETCH.lower(workload, H200, schedule)
    assert kernel.launches[0].name == "pack_n"
    multiplied = [s for s in walk_statements(kernel.body) if isinstance(s, WarpgroupMma)]
    assert multiplied and not any(s.b_transposed for s in multiplied)
    check(workload, H200, schedule)


def test_wide_pixels_are_whole_and_begin_where_tma_loads() -> None:
    def values(workload: Workload) -> set[object]:
        knobs = SKETCH.space(workload, H200, limit=64).knobs
        return {value for knob in knobs if knob.name == "space_to_depth" for value in knob.values}

    strided = {"channels": 32, "height": 5, "width": 64, "stride": 2}
    assert values(conv2d(**strided)) == values(conv2d(**{**strided, "channels": 12})) == {1, 2}
    for other in ({"width": 63}, {"channels": 10}, {"dilation": 2}, {"stride": 1}, {"groups": 2}):
        assert not values(conv2d(**{**strided, "filters": 64, **other}))
    assert not values(conv2d(**{**strided, "kernel_h": 2, "kernel_w": 2, "padding": 0}))  # a window is a wide pixel


def test_more_wgmma_than_may_be_pending_end_a_row_alike() -> None:
    """Seven taps read from a patch, each by two wgmma, and the second row of channels is half full."""
    workload = conv1d(batch=2, channels=96, length=200, filters=96, kernel=7, padding=27, dilation=9)
    knobs: dict[str, Any] = {"pixels": "halo_1x64", "atoms_m": 2, "consumer_warpgroups": 1, "mma_n": 48, "split_k": 1}
    check(workload, FEW, legal_schedule_of(SKETCH, workload, FEW, **knobs))


def test_taps_begin_to_read_at_any_line_of_a_patch() -> None:
    """Windows move by two rows of pixels and by one pixel in a row, along which patches have a halo."""
    workload = parse_workload(
        "X: float16[2, 9, 32, 32]\nW: float16[3, 3, 32, 24]\n"
        "P[n, i < 11, j < 34, c] = select(i >= 1 and i < 10 and j >= 1 and j < 33, X[n, i - 1, j - 1, c], 0.0f16)\n"
        "S[n, y < 5, x < 32, o] = sum over c < 32, r < 3, s < 3 of "
        "float32(P[n, y*2 + r, x + s, c]) * float32(W[r, s, c, o])\n"
        "Y[n, y, x, o] = float16(S[n, y, x, o])"
    )
    schedule = legal_schedule_of(SKETCH, workload, pixels="halo_2x1x32", atoms_m=1)
    multiplied = walk_statements(SKETCH.lower(workload, H200, schedule).body)
    lines = {s.a_indices[2] for s in multiplied if isinstance(s, WarpgroupMma)}
    assert len(lines) == 3
    check(workload, H200, schedule)


PADDED: dict[str, tuple[Workload, int, dict[str, Any]]] = {
    "line": (conv1d(channels=16, length=40, batch=2, kernel=5, padding=2, bias=True), 5, {"pixels": "im2col"}),
    "strided": (
        conv2d(channels=24, height=9, width=22, kernel_h=5, kernel_w=5, padding=2, stride=2, activation="relu"),
        5,
        {"pixels": "im2col", "split_k": 1},
    ),
    "patches": (conv2d(channels=8, height=8, width=8, residual=True), 3, {"pixels": "1x8x8"}),
    "halo, TF32": (
        conv2d(channels=8, height=8, width=8, filters_first=True, dtype="float32", precision="tf32"),
        3,
        {"pixels": "halo_1x8x8"},
    ),
    "volume": (conv3d(channels=8, depth=3, height=5, width=9, padding=1), 3, {"pixels": "im2col"}),
}


@pytest.mark.parametrize("case", PADDED)
def test_rows_are_padded_so_that_places_in_them_are_loaded_as_one(case: str) -> None:
    workload, taps, knobs = PADDED[case]
    schedule = legal_schedule_of(SKETCH, workload, row_taps=taps, atoms_m=1, **knobs)
    kernel = SKETCH.lower(workload, H200, schedule)
    first, _ = kernel.launches
    assert first.name == "pad_rows"
    check(workload, H200, schedule)


def test_padding_is_worth_a_copy_where_channels_leave_rows_empty() -> None:
    workload = conv2d(
        batch=8, channels=24, height=112, width=111, filters=80, kernel_h=5, kernel_w=5, padding=2, stride=2
    )
    space = SKETCH.space(workload, H200)
    assert space.prior_seconds is not None
    assert space.column("row_taps")[int(space.prior_seconds.argmin())] == 5
    kernel = SKETCH.lower(workload, H200, space.schedule(int(space.prior_seconds.argmin())))
    assert all(r.spill_bytes == 0 for r in build_kernel(kernel, H200).resources.values())


def test_places_in_a_row_stay_apart_where_some_are_missing_or_channels_fill_rows() -> None:
    def values(workload: Workload) -> set[object]:
        knobs = SKETCH.space(workload, H200, limit=64).knobs
        return {value for knob in knobs if knob.name == "row_taps" for value in knob.values}

    few = {"channels": 16, "padding": 0, "height": 10, "width": 10}
    assert values(conv2d(**few)) == {1, 3} == values(conv2d(**{**few, "padding": 1}))
    for other in ({"dilation": 2}, {"channels": 64}, {"groups": 2}, {"filters": 20}):
        assert not values(conv2d(**{**few, "filters": 64, **other}))
    narrow = conv2d(channels=8, height=6, width=18, padding=0, filters=24)
    knobs = dict(schedule_of(SKETCH, narrow).knobs) | {"pixels": "halo_2x4x8"}
    with pytest.raises(IllegalSchedule, match="a halo along a row"):
        SKETCH.lower(narrow, H200, Schedule.of(SKETCH.name, SKETCH.version, {**knobs, "row_taps": 3}))


@pytest.mark.parametrize("row_taps", [1, 3])
def test_rows_of_pixels_that_a_window_sees_at_once_need_no_repacking(row_taps: int) -> None:
    """Pixels of four channels have 8 bytes, which TMA cannot load; three of them in a row are copied together."""
    sizes = {"depth": 5, "height": 9, "width": 12, "kernel_d": 3, "kernel_h": 3, "kernel_w": 3, "stride": 2}
    workload = conv3d(**sizes, batch=1, channels=4, filters=16, padding=0, dtype=F16)
    space = SKETCH.space(workload, FEW, limit=200)
    rows = [n for n in range(len(space)) if dict(space.schedule(n).knobs)["row_taps"] == row_taps]
    assert_kernel_agrees(workload, SKETCH.lower(workload, FEW, space.schedule(rows[0])), FEW)
