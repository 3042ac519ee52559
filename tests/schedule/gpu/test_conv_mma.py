"""Kernels of convolutions with few filters: what they take, what they compute, and how often they bring a pixel."""

from collections.abc import Callable
from math import prod

import numpy as np
import pytest

from tests.schedule.gpu.tiles import (
    EVERY_LEGAL,
    H200,
    assert_agrees,
    assert_schedule_agrees,
    legal_schedule_of,
    workload_of,
)
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.codegen.shared_memory import plan_shared_memory
from tilewright.core.target import Target
from tilewright.ir.expr import Expr
from tilewright.ir.gpu.mma import Mma
from tilewright.ir.gpu.tma import TmaLoad
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import For, Stmt, substatements
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.conv_mma.space import CUDA_CONV_MMA as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.reference import reference
from tilewright.te.workload import Workload

FEW = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)
"""A device on which blocks that stay have several rounds."""


def _conv(**more: object) -> Workload:
    given: dict[str, object] = dict(batch=2, channels=24, height=9, width=11, filters=3, kernel_h=3, kernel_w=3)
    return workload_of("conv2d", **{**given, "padding": 1, "layout": "NHWC", "dtype": "float16", **more})


TF32 = {"dtype": "float32", "precision": "tf32"}
DECODER = _conv(batch=1, channels=128, height=512, width=512)
"""The last layer of a decoder of images."""


VOLUME = {
    **{"batch": 1, "channels": 24, "depth": 5, "height": 6, "width": 9, "filters": 32, "layout": "NDHWC"},
    **{"kernel_d": 3, "kernel_h": 3, "kernel_w": 3, "padding": 1, "dtype": "float16"},
}
U_NET = workload_of("conv3d", **{**VOLUME, "channels": 32, "depth": 64, "height": 64, "width": 64})
"""A layer of a U-Net of volumes."""


def _transposed(**more: object) -> Workload:
    given: dict[str, object] = dict(batch=2, channels=24, height=7, width=9, filters=3, kernel_h=4, kernel_w=4)
    given |= {"stride": 2, "padding": 1, "layout": "NHWC", "dtype": "float16"}
    return workload_of("conv2d_transpose", **{**given, **more})


def _k_major() -> Workload:
    """Filters as (filter, row, column, channel), and outputs as (channel, row, column) with an activation."""
    x, w = te.placeholder((1, 10, 12, 72), "float16", "X"), te.placeholder((2, 3, 3, 72), "float16", "W")
    r, s, c = te.reduce_axis(3, "r"), te.reduce_axis(3, "s"), te.reduce_axis(72, "c")

    def product(n: Expr, y: Expr, z: Expr, o: Expr) -> te.Reduction:
        factors = te.cast(x[n, y + r, z + s, c], "float32") * te.cast(w[o, r, s, c], "float32")
        return te.sum(factors, axis=(r, s, c))

    total = te.compute((1, 8, 10, 2), product, "total")
    moved = te.compute((2, 8, 10), lambda o, y, z: te.cast(te.maximum(total[0, y, z, o], 0.0), "float16"), "Y")
    return te.workload(moved)


CASES: dict[str, Callable[[], Workload]] = {
    "3 x 3": _conv,
    "one filter": lambda: _conv(filters=1),
    "sixteen filters": lambda: _conv(filters=16, dtype="bfloat16", height=5),
    "7 x 5": lambda: _conv(kernel_h=7, kernel_w=5, padding=2),
    "1 x 3, 8 channels": lambda: _conv(kernel_h=1, padding=0, channels=8),
    "stride": lambda: _conv(stride=2, filters=5),
    "dilation": lambda: _conv(dilation=2, padding=2, channels=72, height=5),
    "bias": lambda: _conv(filters=4, bias=True, residual=True, activation="sigmoid"),
    "filters K-major, channels first": _k_major,
    "TF32": lambda: _conv(channels=36, filters=5, **TF32),
    "TF32, transposed": lambda: _transposed(channels=20, height=4, bias=True, **TF32),
    "transposed, 4 x 4": lambda: _transposed(),
    "transposed, 3 x 3": lambda: _transposed(kernel_h=3, kernel_w=3, output_padding=1, bias=True),
    "transposed, 2 x 2": lambda: _transposed(kernel_h=2, kernel_w=2, padding=0, channels=72),
    "transposed, not of whole strides": lambda: _transposed(kernel_h=3, kernel_w=5, stride=3, bias=True, residual=True),
    "transposed, narrower than a stride": lambda: _transposed(kernel_h=4, kernel_w=2, stride=3, padding=2),
    "1-D": lambda: workload_of(
        "conv1d", batch=2, channels=64, length=50, filters=3, kernel=7, padding=3, layout="NWC", dtype="float16"
    ),
    "3-D": lambda: workload_of(
        "conv3d",
        **{"batch": 2, "channels": 16, "depth": 3, "height": 4, "width": 6, "filters": 2, "layout": "NDHWC"},
        **{"kernel_d": 3, "kernel_h": 3, "kernel_w": 3, "padding": 1, "dtype": "float16"},
    ),
    "32 filters": lambda: _conv(filters=32, channels=40, width=20, batch=1),
    "24 filters of 8 channels, stride": lambda: _conv(filters=24, channels=8, stride=2, height=17, width=33),
    "64 filters": lambda: _conv(filters=64, channels=48, dtype="bfloat16", bias=True, residual=True, activation="relu"),
    "72 filters, 5 x 5": lambda: _conv(filters=72, kernel_h=5, kernel_w=5, padding=2, batch=1),
    "128 filters": lambda: _conv(filters=128, channels=16, bias=True, dtype="bfloat16"),
    "20 filters": lambda: _conv(filters=20, dilation=2, padding=2, bias=True),
    "32 filters, TF32": lambda: _conv(filters=32, channels=12, **TF32),
    "1-D, 48 filters": lambda: workload_of(
        "conv1d", batch=2, channels=32, length=390, filters=48, kernel=5, stride=2, layout="NWC", dtype="float16"
    ),
    "a long row of taps": lambda: _conv(filters=24, channels=16, kernel_h=1, kernel_w=11, padding=5, width=24),
    "3-D, 32 filters": lambda: workload_of("conv3d", **{**VOLUME, "bias": True, "activation": "silu"}),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    workload = CASES[case]()
    assert assert_agrees(SKETCH, workload, 5, policy=EVERY_LEGAL) == 5
    assert assert_agrees(SKETCH, workload, 1, FEW, policy=EVERY_LEGAL) == 1


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("column_taps", [1, 3, 9])
def test_blocks_that_stay_go_on_with_further_patches(stages: int, column_taps: int) -> None:
    """There are three chunks of channels, and in the last round some blocks have nothing to do."""
    workload = _conv(channels=136, height=21)
    knobs = {"persistent": 1, "stages": stages, "column_taps": column_taps, "tile_h": 4, "tile_w": 8}
    assert_schedule_agrees(SKETCH, workload, legal_schedule_of(SKETCH, workload, FEW, **knobs), FEW)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("tile_d", [1, 2, 4])
def test_patches_have_several_planes(stages: int, tile_d: int) -> None:
    """Five planes, and nine columns, are no multiple of those of a patch."""
    workload = workload_of("conv3d", **VOLUME)
    knobs = {"persistent": 1, "stages": stages, "tile_d": tile_d, "tile_h": 4, "tile_w": 8}
    assert_schedule_agrees(SKETCH, workload, legal_schedule_of(SKETCH, workload, FEW, **knobs), FEW)


@pytest.mark.parametrize("channels", [8, 24, 64])
def test_what_no_window_sees_is_not_multiplied(channels: int) -> None:
    """An infinity times 0 would be NaN: an output is finite where its window is, though what lies beside its channels
    in shared memory is not."""
    workload = _conv(filters=32, channels=channels, batch=1)
    kernel = finish(SKETCH.lower(workload, H200, legal_schedule_of(SKETCH, workload, staged_epilogue=0)), H200)
    inputs = random_inputs(workload, 1)
    inputs["X"][:, 4, 5] = np.inf
    got, wanted = (np.asarray(f["Y"], np.float64) for f in (interpret(kernel, inputs), reference(workload, inputs)))
    assert 0 < np.isfinite(wanted).mean() < 1
    assert np.array_equal(np.isfinite(got), np.isfinite(wanted))


def test_what_it_leaves_to_others() -> None:
    for workload in (
        _conv(filters=129),
        _conv(filters=72, channels=48),
        _conv(filters=17, channels=72),
        _transposed(filters=20),
        _conv(channels=20),
        _conv(channels=18, **TF32),
        _conv(dtype="float32"),
        _conv(dtype="int8"),
        _conv(kernel_h=1, kernel_w=1, padding=0),
        _conv(filters=4, channels=32, groups=2),
        _conv(layout="NCHW"),
    ):
        assert not SKETCH.matches(workload, H200)
    assert SKETCH.matches(_conv(), H200) and not SKETCH.matches(_conv(), Target("cuda", "sm_80", (), 108, 16))


def _found(root: Stmt, kind: type[Stmt]) -> list[Stmt]:
    own = [root] if isinstance(root, kind) else []
    return [*own, *(found for child in substatements(root) for found in _found(child, kind))]


def _products(root: Stmt) -> int:
    """How many matrix instructions a warp runs that has as many pixels as any."""
    if isinstance(root, For):
        return root.extent * _products(root.body)
    return isinstance(root, Mma) + sum(map(_products, substatements(root)))


@pytest.mark.parametrize(("column_taps", "products"), [(9, 340 / 16 * 4), (3, 272 / 16 * 3 * 2), (1, 270 / 16 * 9)])
def test_taps_fill_the_columns_of_products(column_taps: int, products: float) -> None:
    """A patch of 8 x 32 outputs sees 10 x 34 pixels, each of which is loaded once. With all taps as columns, all of
    them are multiplied with 27 columns. Otherwise only those are at which windows begin, but once for each shift."""
    knobs = {"column_taps": column_taps, "tile_h": 8, "tile_w": 32, "threads": 64, "stages": 2}
    kernel = SKETCH.lower(DECODER, H200, legal_schedule_of(SKETCH, DECODER, **knobs))
    loaded = {prod(load.box) for load in _found(kernel.body, TmaLoad) if isinstance(load, TmaLoad)}
    assert loaded == {10 * 34 * 64}
    per_warp = -(-products // 2) * (128 / 16)
    assert per_warp <= _products(kernel.body) <= 1.15 * per_warp


@pytest.mark.parametrize("workload", [DECODER, U_NET, _conv(channels=520, filters=4, height=64, width=64)])
def test_blocks_take_no_more_shared_memory_than_is_counted(workload: Workload) -> None:
    """What blocks with one patch store lies in the place of the stages."""
    space = SKETCH.space(workload, H200, policy=EVERY_LEGAL)
    taken = space.quantities["shared_bytes"]
    for row in (int(taken.argmax()), *range(0, len(space), len(space) // 12)):
        (launch,) = SKETCH.lower(workload, H200, space.schedule(row)).launches
        assert 0.75 * taken[row] <= plan_shared_memory(launch.body).bytes <= taken[row]


@pytest.mark.parametrize("workload", [DECODER, _conv(channels=128, height=512, width=512, **TF32)])
@pytest.mark.parametrize("column_taps", [1, 3, 9])
def test_compiled_kernels_keep_to_registers(column_taps: int, workload: Workload) -> None:
    schedule = legal_schedule_of(SKETCH, workload, column_taps=column_taps, tile_h=8, tile_w=32, threads=128)
    (resources,) = build_kernel(SKETCH.lower(workload, H200, schedule), H200).resources.values()
    assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)


@pytest.mark.parametrize("atoms_m", [2, 4])
def test_sums_that_stay_in_registers_leave_room_for_what_is_loaded(atoms_m: int) -> None:
    knobs = {"tile_d": 8, "tile_h": 8, "tile_w": 8, "threads": 512 // 16 // atoms_m * 32, "persistent": 1}
    schedule = legal_schedule_of(SKETCH, U_NET, stages=2, **knobs)
    (resources,) = build_kernel(SKETCH.lower(U_NET, H200, schedule), H200).resources.values()
    assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)


@pytest.mark.parametrize("filters", [72, 128])
def test_sums_of_many_filters_stay_in_registers(filters: int) -> None:
    """Of settings with as many registers as there may be."""
    workload = _conv(filters=filters, height=150, width=150)
    space = SKETCH.space(workload, H200)
    schedule = space.schedule(int(space.quantities["registers_estimate"].argmax()))
    (resources,) = build_kernel(SKETCH.lower(workload, H200, schedule), H200).resources.values()
    assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)


def test_it_is_the_default_where_filters_are_few() -> None:
    assert default_schedule(U_NET, H200).sketch == SKETCH.name
    assert default_schedule(DECODER, H200).sketch == SKETCH.name
    wide = _conv(batch=6, height=150, width=150, filters=72, kernel_h=5, kernel_w=5, padding=2)
    assert default_schedule(wide, H200).sketch == SKETCH.name
    assert [s.name for s in sketches_for(_conv(filters=1), H200)] == [SKETCH.name]
