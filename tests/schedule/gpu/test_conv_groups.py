"""Convolutions by groups of few channels: widened, joined, or of rows that are not whole."""

from typing import Any

import pytest

from tests.schedule.gpu.test_conv import F16, FEW, check, conv2d
from tests.schedule.gpu.tiles import H200, compiled, legal_schedule_of, schedule_of
from tilewright.core.schedule import Schedule
from tilewright.ir.gpu.wgmma import WarpgroupMma
from tilewright.ir.stmt import walk_statements
from tilewright.schedule.gpu.conv.space import CUDA_CONV as SKETCH

JOINED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "four groups": ({"groups": 8, "bias": True, "residual": True, "activation": "relu"}, {"pixels": "2x4x8"}),
    "two groups of more filters": ({"groups": 4, "filters": 256, "stride": 2, "height": 7}, {"cluster_m": 2}),
    "ping_pong": ({"groups": 4, "height": 7, "dtype": "bfloat16"}, {"ping_pong": 1, "epilogue_stages": 1}),
    "of 4 channels": ({"groups": 32, "bias": True}, {"pixels": "halo_2x4x8", "widened_groups": 4}),
    "of 8 channels": ({"groups": 16, "filters": 256, "stride": 2}, {"pixels": "im2col", "widened_groups": 2}),
}


@pytest.mark.parametrize(
    ("parameters", "widened"),
    [
        ({"groups": 3, "channels": 48, "filters": 96}, 3),  # of 16 channels, of which a row of 128 bytes holds 64
        ({"groups": 16, "channels": 48, "filters": 64, "stride": 2}, 16),  # of 3
        ({"groups": 6, "channels": 144, "filters": 144}, 2),  # of 24
        ({"groups": 13, "channels": 104, "filters": 104, "bias": True}, 13),  # of 8, an odd number of them
        ({"groups": 6, "channels": 432, "filters": 96}, 2),  # of 72, which are no whole steps of a wgmma
    ],
)
def test_groups_without_whole_rows_are_widened(parameters: dict[str, Any], widened: int) -> None:
    workload = conv2d(**parameters)
    schedule = schedule_of(SKETCH, workload)
    assert dict(schedule.knobs)["widened_groups"] == widened
    check(workload, H200, schedule)


@pytest.mark.parametrize("case", JOINED)
def test_groups_of_few_channels_are_joined(case: str) -> None:
    """A wgmma takes the channels and the filters of one group."""
    parameters, knobs = JOINED[case]
    workload, target = conv2d(channels=128, **{"filters": 128, **parameters}), FEW if case == "ping_pong" else H200
    widened = knobs.get("widened_groups", 1)
    count = parameters["groups"] // (2 * widened)
    schedule = legal_schedule_of(SKETCH, workload, target, joined_groups=count, **knobs)
    kernel = SKETCH.lower(workload, target, schedule)
    multiplied = [(s.n, s.k) for s in walk_statements(kernel.body) if isinstance(s, WarpgroupMma)]
    filters = parameters.get("filters", 128) // parameters["groups"] * widened
    assert set(multiplied) == {(filters, 64 // count)} and len(multiplied) % count == 0
    assert [launch.name for launch in kernel.launches[:-1]] == ["widen"] * (widened > 1)
    check(workload, target, schedule)


RAGGED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "of 16 channels": (
        {"groups": 6, "channels": 96, "filters": 96, "bias": True, "residual": True, "activation": "relu"},
        {"pixels": "halo_2x4x8"},
    ),
    "of 8 channels": ({"groups": 10, "channels": 80, "filters": 80, "bias": True}, {"widened_groups": 2}),
    "of 32 channels": ({"groups": 3, "channels": 96, "filters": 96, "stride": 2}, {"split_k": 2}),
    "filters first": ({"groups": 6, "channels": 96, "filters": 96, "filters_first": True}, {"cluster_m": 2}),
    "from registers": ({"groups": 7, "channels": 112, "filters": 112, "residual": True}, {"epilogue_stages": 0}),
    "ping_pong": ({"groups": 5, "channels": 80, "filters": 80, "height": 7}, {"ping_pong": 1, "epilogue_stages": 1}),
}


@pytest.mark.parametrize("case", RAGGED)
def test_the_last_joined_groups_may_be_fewer(case: str) -> None:
    parameters, knobs = RAGGED[case]
    workload, target = conv2d(**parameters), FEW if case == "ping_pong" else H200
    rows = {"of 32 channels": 2}.get(case, 4)
    schedule = legal_schedule_of(SKETCH, workload, target, joined_groups=rows, **knobs)
    check(workload, target, schedule)


def test_groups_of_several_rows_end_within_one() -> None:
    """Of the last row, a wgmma takes the channels of the group alone."""
    workload = conv2d(groups=2, channels=160, filters=64)
    schedule = legal_schedule_of(SKETCH, workload, pixels="im2col")
    multiplied = walk_statements(SKETCH.lower(workload, H200, schedule).body)
    assert {s.k for s in multiplied if isinstance(s, WarpgroupMma)} == {64, 16}
    check(workload, H200, schedule)


def test_joined_groups_are_promising_where_they_are_few() -> None:
    workload = conv2d(batch=32, channels=512, height=28, width=28, filters=512, groups=32)
    space = SKETCH.space(workload, H200)
    assert set(space.column("joined_groups")) == {4} and len(space) > 12
    assert set(space.column("pixels")) >= {"4x4x4", "8x2x4", "halo_4x4x4"}
    resources = compiled(SKETCH, workload, pixels="halo_4x4x4")
    assert resources.spill_bytes == 0 and resources.stack_bytes == 0
    plain = Schedule.of(SKETCH.name, SKETCH.version, {"mma_n": 32, "pixels": "im2col"})
    assert space.prior_seconds is not None
    assert SKETCH.prior_seconds(workload, H200, [plain])[0] > 2 * space.prior_seconds.min()


@pytest.mark.parametrize(("channels", "groups", "dtype"), [(4, 4, F16), (12, 4, "int8"), (6, 2, "bfloat16")])
def test_groups_of_images_with_odd_pixels_are_not_widened(channels: int, groups: int, dtype: str) -> None:
    """TMA would read pixels of 8 or 12 bytes in place."""
    assert not SKETCH.matches(conv2d(channels=channels, groups=groups, filters=512, dtype=dtype), H200)
    assert SKETCH.matches(conv2d(channels=16, groups=4, filters=512, dtype=dtype), H200)
