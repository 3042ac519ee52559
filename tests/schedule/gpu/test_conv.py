"""Convolutions by im2col and by patches: which workloads match, what the kernels compute, what the compiler says."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden import check_golden
from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, compiled, legal_schedule_of, schedule_of, workload_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import finish
from tilewright.core.errors import IllegalSchedule
from tilewright.core.policy import DEFAULT_POLICY
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.expr import Binary, BinaryOp, Const, Expr, Var
from tilewright.ir.gpu.tma import TmaLoad, TmaPrefetch, TmaStore
from tilewright.ir.gpu.wgmma import WarpgroupMma
from tilewright.ir.interpret import interpret
from tilewright.ir.simplify import simplify_kernel
from tilewright.ir.stmt import walk_statements
from tilewright.ir.text import kernel_text
from tilewright.schedule.gpu.conv.space import CUDA_CONV as SKETCH
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM
from tilewright.schedule.problems.image_window import ImageWindow
from tilewright.schedule.problems.implicit_gemm import implicit_gemm_of
from tilewright.schedule.sketches import sketches_for
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

FEW = Target("cuda", "sm_90a", (), threads=2, vector_bytes=16)
"""A device with two multiprocessors: a CTA works through many tiles even of a small product."""
F16 = "float16"


def conv2d(**changed: Any) -> Workload:
    parameters = {
        **{"batch": 2, "channels": 64, "height": 4, "width": 16, "filters": 40, "kernel_h": 3, "kernel_w": 3},
        **{"padding": 1, "layout": "NHWC", "dtype": F16},
    }
    return workload_of("conv2d", **{**parameters, **changed})


def conv1d(**changed: Any) -> Workload:
    parameters = {"batch": 3, "channels": 72, "length": 30, "filters": 40, "kernel": 3, "layout": "NWC", "dtype": F16}
    return workload_of("conv1d", **{**parameters, **changed})


def conv3d(**changed: Any) -> Workload:
    parameters = {
        **{"batch": 2, "channels": 32, "depth": 4, "height": 4, "width": 8, "filters": 48},
        **{"kernel_d": 3, "kernel_h": 2, "kernel_w": 3, "padding": 1, "layout": "NDHWC", "dtype": "bfloat16"},
    }
    return workload_of("conv3d", **{**parameters, **changed})


def transposed(**changed: Any) -> Workload:
    parameters = {
        **{"batch": 2, "channels": 64, "height": 4, "width": 8, "filters": 40, "kernel_h": 4, "kernel_w": 4},
        **{"stride": 2, "padding": 1, "layout": "NHWC", "dtype": F16},
    }
    return workload_of("conv2d_transpose", **{**parameters, **changed})


def gradient(stride: int, kernel: int, channels: int, size: int) -> Workload:
    """Return the gradient of a convolution with padding 1 towards its image of ``size`` by ``size`` pixels."""
    count = (size + 2 - kernel) // stride + 1
    places = f"(y + 1 - r) // {stride}", f"(x + 1 - s) // {stride}"
    inside = " and ".join(f"{p.replace('//', '%')} == 0 and {p} >= 0 and {p} < {count}" for p in places)
    return parse_workload(
        f"D: float16[2, {count}, {count}, 64]\nW: float16[64, {kernel}, {kernel}, {channels}]\n"
        f"G[n, y < {size}, x < {size}, c] = sum over r < {kernel}, s < {kernel}, k < 64 of "
        f"select({inside}, float32(D[n, {', '.join(places)}, k]), 0.0) * float32(W[k, r, s, c])"
    )


def _filters_first() -> Workload:
    """Filters that lie as (filter, taps, channel), no axis of images, other padding on every side, two outputs."""
    x, w = te.placeholder((9, 10, 64), F16, "X"), te.placeholder((40, 3, 2, 64), F16, "W")
    c, r, s = te.reduce_axis(64, "c"), te.reduce_axis(3, "r"), te.reduce_axis(2, "s")

    def seen(y: Expr, z: Expr) -> Expr:
        row, column = y + r - 2, z + s
        inside = te.all_of(row >= 0, row < 9, column < 10)
        return te.select(inside, x[row, column, c], te.constant(0, x.dtype))

    total = te.compute(
        (8, 10, 40),
        lambda y, z, o: te.sum(te.cast(w[o, r, s, c], "float32") * te.cast(seen(y, z), "float32"), axis=(c, r, s)),
        "total",
    )
    halved = te.compute((8, 10, 40), lambda y, z, o: te.cast(total[y, z, o] * 0.5, F16), "halved")
    return te.workload([halved, total])


CASES: dict[str, tuple[Target, Callable[[], Workload]]] = {
    "3x3": (H200, conv2d),
    "3x3, many tiles": (FEW, lambda: conv2d(height=7)),
    "strided": (H200, lambda: conv2d(stride=2, height=9, channels=80)),
    "dilated": (H200, lambda: conv2d(dilation=2, padding=2, kernel_w=2, dtype="bfloat16")),
    "one image, no padding": (H200, lambda: conv2d(batch=1, padding=0, filters=64)),
    "one tap": (H200, lambda: conv2d(kernel_h=1, kernel_w=1, padding=0, stride=3)),
    "fused": (H200, lambda: conv2d(bias=True, residual=True, activation="relu", channels=136)),
    "narrow groups": (H200, lambda: conv2d(groups=4, filters=64)),
    "wide groups": (H200, lambda: conv2d(groups=2, channels=128, filters=64, bias=True, height=4)),
    "channels between multiples of 16 bytes": (H200, lambda: conv2d(channels=20, kernel_h=2, filters=75)),
    "line": (H200, lambda: conv1d(padding=1, bias=True)),
    "volume": (H200, lambda: conv3d(activation="silu")),
    "volume, groups": (H200, lambda: conv3d(groups=2, filters=32)),
    "filters first": (H200, _filters_first),
    "transposed": (H200, lambda: transposed(bias=True, activation="relu")),
    "transposed, odd kernel": (H200, lambda: transposed(kernel_h=3, kernel_w=3, output_padding=1)),
    "transposed, kernel of the stride": (H200, lambda: transposed(kernel_h=2, kernel_w=2, padding=0)),
    "transposed, not of whole strides": (
        H200,
        lambda: transposed(kernel_h=3, kernel_w=3, bias=True, activation="relu"),
    ),
    "transposed, not of whole strides, residual": (
        FEW,
        lambda: transposed(kernel_h=5, kernel_w=4, stride=3, padding=2, residual=True, filters=37),
    ),
    "transposed, not of whole strides, TF32": (
        H200,
        lambda: transposed(kernel_h=3, kernel_w=3, groups=2, dtype="float32", precision="tf32"),
    ),
    "transposed, phases without a place": (FEW, lambda: transposed(kernel_h=1, kernel_w=3, stride=3, padding=0)),
    "gradient": (H200, lambda: gradient(2, 3, 40, 8)),
    "gradient, not of whole strides": (H200, lambda: gradient(3, 4, 40, 10)),
    "transposed, groups": (H200, lambda: transposed(groups=2, kernel_h=6, kernel_w=3, stride=3, padding=0)),
    "transposed, one image, kernel of the stride": (
        H200,
        lambda: transposed(batch=1, kernel_h=2, kernel_w=2, padding=0, bias=True, filters=64),
    ),
}


ANY_LEGAL = {
    "transposed, phases without a place",
    "3x3",
    "dilated",
    "narrow groups",
    "line",
    "filters first",
    "transposed, odd kernel",
    "transposed, groups",
}
"""Of these a schedule is interpreted that need not be promising."""


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    target, workload = CASES[case]
    assert assert_agrees(SKETCH, workload(), 1, target, WHOLE if case in ANY_LEGAL else DEFAULT_POLICY) == 1


def check(workload: Workload, target: Target, schedule: Schedule) -> None:
    inputs, (output,) = random_inputs(workload, 1), workload.outputs
    got = interpret(finish(SKETCH.lower(workload, target, schedule), target), inputs)[output]
    absolute, relative = tolerance(workload)[output]
    wanted = np.asarray(reference(workload, inputs)[output], np.float64)
    np.testing.assert_allclose(np.asarray(got, np.float64), wanted, relative, absolute)


KERNELS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "cluster": (("im2col", "2x4x8"), {"cluster_m": 2, "cluster_n": 2, "atoms_m": 2, "consumer_warpgroups": 1}),
    "cluster of halos": (("halo_2x4x8",), {"cluster_m": 2, "consumer_warpgroups": 1}),
    "split_k": (("im2col", "2x4x8"), {"split_k": 4, "k_atoms": 2}),
    "taps": (("im2col", "2x4x8"), {"split_k": 1, "k_atoms": 4, "taps_innermost": 1}),
    "taps of halos": (("halo_2x4x8",), {"split_k": 2, "taps_innermost": 1}),
    "ping_pong": (("im2col", "halo_2x4x8"), {"ping_pong": 1, "consumer_warpgroups": 2}),
    "stream_k": (("im2col",), {"stream_k": 1, "k_atoms": 2, "mma_n": 48}),  # with 32, no tile is shared
    "resident_b": (("im2col", "halo_2x4x8"), {"resident_b": 1, "cluster_m": 1}),
    "resident_b of cluster": (("im2col",), {"resident_b": 1, "cluster_m": 2, "consumer_warpgroups": 1}),
}


@pytest.mark.parametrize("channels", [80, 96])
@pytest.mark.parametrize(
    ("pixels", "knobs"),
    [
        ("im2col", {"k_atoms": 1}),
        ("im2col", {"k_atoms": 2}),
        ("im2col", {"k_atoms": 1, "taps_innermost": 1}),
        ("im2col", {"k_atoms": 1, "stream_k": 1}),
        ("halo_1x4x16", {"k_atoms": 1}),
    ],
)
def test_channels_that_fill_no_whole_rows_are_multiplied_alone(
    channels: int, pixels: str, knobs: dict[str, Any]
) -> None:
    """A tap of 80 channels of 16 bits has one wgmma of 64 of them and one of 16, in whatever order taps come. Of the
    three tiles, stream-K splits one in the midst of a tap."""
    workload, chosen = conv2d(channels=channels, batch=3), {"stream_k": 0, "taps_innermost": 0, "mma_n": 64, **knobs}
    chosen |= {"consumer_warpgroups": 1, "atoms_m": 1}
    schedule = legal_schedule_of(SKETCH, workload, FEW, pixels=pixels, **chosen)
    kernel = simplify_kernel(SKETCH.lower(workload, FEW, schedule))
    assert {s.k for s in walk_statements(kernel.body) if isinstance(s, WarpgroupMma)} == {64, channels - 64}
    check(workload, FEW, schedule)


@pytest.mark.parametrize(("kernel", "pixels"), [(name, p) for name, (values, _) in KERNELS.items() for p in values])
def test_pixels_may_be_loaded_in_every_kernel(kernel: str, pixels: str) -> None:
    _, knobs = KERNELS[kernel]
    several = {"ping_pong", "stream_k", "resident_b"} & set(knobs)
    workload, target = conv2d(channels=136), FEW if several else H200
    if "resident_b" in knobs:  # all columns, and several tiles of them
        workload, knobs = conv2d(channels=40, batch=6), {"mma_n": 48, **knobs}
    check(workload, target, legal_schedule_of(SKETCH, workload, target, **{"mma_n": 32, "pixels": pixels, **knobs}))


HALOS: dict[str, tuple[Workload, dict[str, Any]]] = {
    "dilated, along the second side": (
        conv2d(batch=4, height=2, width=8, dilation=2, padding=2, kernel_h=1, bias=True, channels=80),
        {"pixels": "halo_4x2x8"},
    ),
    "images within a patch": (conv2d(batch=4, height=4, width=12, residual=True), {"pixels": "halo_4x4x4"}),
    "beyond the last pixel": (
        conv2d(batch=3, height=9, width=11, dilation=2, padding=2, bias=True, residual=True),
        {"pixels": "halo_1x4x16"},
    ),
    "beyond the last pixel, from registers": (
        conv2d(batch=1, height=5, width=13, filters=42),
        {"pixels": "halo_1x8x8", "epilogue_stages": 0},
    ),
    "volume": (conv3d(batch=1, width=4, kernel_h=3), {"pixels": "halo_1x4x4x4"}),
    "volume, beyond the last image": (
        conv3d(batch=3, depth=5, height=7, width=9, kernel_h=3, bias=True),
        {"pixels": "halo_4x1x8x2"},
    ),
    "line": (conv1d(batch=8, length=24, padding=1), {"pixels": "halo_8x8"}),
    "folded": (
        conv2d(channels=3, kernel_h=7, kernel_w=7, padding=3, stride=2, height=16, width=16),
        {"pixels": "halo_1x8x8"},
    ),
    "folded, volume": (
        conv3d(channels=3, kernel_h=3, batch=1, height=8),
        {"pixels": "halo_1x2x8x4", "overlapped": 1},
    ),
    "folded, in planes": (
        conv2d(channels=3, kernel_h=11, kernel_w=11, padding=1, stride=4, height=38, width=38, batch=1),
        {"pixels": "halo_1x1x8x8", "overlapped": 1},
    ),
}


@pytest.mark.parametrize("case", HALOS)
def test_taps_read_from_a_patch_with_a_halo(case: str) -> None:
    """A patch and its halo are loaded once for all taps along one dimension."""
    workload, knobs = HALOS[case]
    schedule = legal_schedule_of(SKETCH, workload, atoms_m=1, **knobs)
    kernel = SKETCH.lower(workload, H200, schedule)
    loads = [s for s in walk_statements(kernel.body) if isinstance(s, TmaLoad) and s.source.name != "W"]
    multiplied = [s for s in walk_statements(kernel.body) if isinstance(s, WarpgroupMma)]
    pixels = max(math.prod(s.box[:-1]) for s in loads)
    assert 64 < pixels < 64 * len(multiplied) and len({s.a_indices[2] for s in multiplied}) > 1
    check(workload, H200, schedule)


def test_what_it_takes_and_what_it_leaves_to_others() -> None:
    def takers(workload: Workload) -> list[str]:
        return [s.name for s in sketches_for(workload, H200)]

    assert takers(conv2d(filters=72)) == ["cuda_conv"] and takers(conv1d()) == ["cuda_conv"]
    assert takers(conv2d()) == ["cuda_conv_mma", "cuda_conv"]
    assert takers(conv2d(kernel_h=1, kernel_w=1, padding=0)) == ["cuda_gemm"]
    assert takers(conv2d(kernel_h=1, kernel_w=1, padding=0, filters=16)) == ["cuda_gemm"]
    assert takers(conv2d(kernel_h=1, kernel_w=1, padding=0, filters=72)) == ["cuda_gemm", "cuda_gemm_swap_ab"]
    assert "cuda_conv" in takers(conv2d(kernel_h=1, kernel_w=1, padding=0, stride=2))
    for other in (
        conv2d(layout="NCHW"),
        conv2d(dtype="float32"),
        conv2d(groups=64, channels=64, filters=64),
        conv2d(
            groups=32, channels=2304, filters=64
        ),  # 72 channels a group: the last wgmma would take those of the next
        conv2d(stride=9),
        conv2d(kernel_h=2, kernel_w=1, dilation=255, padding=127),
        conv2d(padding=129),
        workload_of("linear", rows=16, inputs=64, outputs=64, dtype=F16),
        workload_of("matmul", m=128, n=128, k=64, dtype=F16),
    ):
        assert "cuda_conv" not in takers(other)
    assert not SKETCH.matches(conv2d(), Target("cuda", "sm_80", (), threads=108, vector_bytes=16))


def test_one_tap_is_a_plain_product() -> None:
    """TMA sees images and outputs as matrices."""
    workload = conv2d(kernel_h=1, kernel_w=1, padding=0, residual=True)
    assert assert_agrees(CUDA_GEMM, workload, 2) == 2
    kernel = CUDA_GEMM.lower(workload, H200, schedule_of(CUDA_GEMM, workload, epilogue_stages=2))
    loads = [s for s in walk_statements(kernel.body) if isinstance(s, TmaLoad) and s.source.name == "X"]
    stores = [s for s in walk_statements(kernel.body) if isinstance(s, TmaStore)]
    assert loads and {s.source.shape for s in loads} == {(128, 64)}
    assert stores and {s.target.shape for s in stores} == {(128, 40)}


def test_knobs_that_change_nothing_are_fixed() -> None:
    def values(workload: Workload, knob: str) -> set[object]:
        space = SKETCH.space(workload, H200, policy=WHOLE, limit=5000)
        return {dict(space.schedule(row).knobs)[knob] for row in range(0, len(space), 7)}

    assert values(conv2d(), "taps_innermost") == {0}
    assert values(conv2d(channels=128), "taps_innermost") == {0, 1}
    assert values(conv2d(channels=128, kernel_h=1, kernel_w=1, padding=0, stride=2), "taps_innermost") == {0}
    assert values(conv2d(stride=2), "pixels") == {"im2col"}
    assert values(conv2d(stride=2, channels=32, width=64), "space_to_depth") == {1, 2}
    assert values(conv2d(height=9, width=7), "pixels") == {"im2col", "halo_2x4x8"}
    assert values(conv2d(), "pixels") == {"im2col", "1x4x16", "2x4x8", "halo_2x4x8", "halo_1x4x16"}
    with pytest.raises(IllegalSchedule, match="no whole patches of 64 rows"):
        knobs = dict(legal_schedule_of(SKETCH, conv2d(), cluster_n=2, atoms_m=1, consumer_warpgroups=1).knobs)
        SKETCH.lower(conv2d(), H200, Schedule.of(SKETCH.name, SKETCH.version, {**knobs, "pixels": "2x4x8"}))


def test_unused_channels_are_not_multiplied() -> None:
    """Of 16 channels a wgmma takes 16, though a row in shared memory has 64: the others may be of another group."""
    texts = [
        kernel_text(SKETCH.lower(w, H200, schedule_of(SKETCH, w, mma_n=32)))
        for w in (conv2d(groups=4, filters=64), conv2d(channels=40))
    ]
    assert ", 32, 16, accumulates" in texts[0] and ", 32, 48, accumulates" in texts[1]


@given(
    extents=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    images=st.integers(1, 8),
    pixels=st.sampled_from([4, 8]),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_patches_go_through_every_position_once(
    extents: list[int], images: int, pixels: int, data: st.DataObject
) -> None:
    ones = (1,) * len(extents)
    plain = ImageWindow(images, ones, ones, tuple(extents), ones, ones, 8)
    patches = plain.patches(pixels)
    for sides in patches:
        assert math.prod(sides) == pixels
        assert all(n % side == 0 for n, side in zip((images, *extents), sides, strict=True))
    patch = data.draw(st.sampled_from(((), *patches)))
    window = ImageWindow(images, ones, ones, tuple(extents), ones, ones, 8, patch=patch)
    count = images * math.prod(extents)
    *found, beyond = _rows(window.position(Var("m")), count + 1)
    assert sorted(found) == list(np.ndindex(images, *extents))
    assert any(i >= extent for i, extent in zip(beyond, (images, *extents), strict=True))
    if not patch:
        assert found == sorted(found)


def _rows(indices: tuple[Expr, ...], count: int) -> list[tuple[int, ...]]:
    """The values of indices where the variable in them is 0, 1, 2, …"""
    operations = {
        BinaryOp.ADD: operator.add,
        BinaryOp.MUL: operator.mul,
        BinaryOp.FLOORDIV: operator.floordiv,
        BinaryOp.MOD: operator.mod,
    }

    def value(expr: Expr) -> Any:
        if isinstance(expr, Binary):
            return operations[expr.op](value(expr.a), value(expr.b))
        return expr.value if isinstance(expr, Const) else np.arange(count)

    columns = [np.broadcast_to(value(i), count).tolist() for i in indices]
    return list(zip(*columns, strict=True))


def test_padding_of_any_kind_is_part_of_the_window() -> None:
    gemm = implicit_gemm_of(_filters_first())
    assert gemm is not None and gemm.window is not None
    assert gemm.window.lower == (-2, 0) and gemm.window.positions == (8, 10) and gemm.window.taps == (3, 2)
    x, w = te.placeholder((9, 10, 64), F16, "X"), te.placeholder((3, 64, 40), F16, "W")
    c, r = te.reduce_axis(64, "c"), te.reduce_axis(3, "r")

    def odd(y: Expr, z: Expr, o: Expr) -> te.Reduction:
        """The middle row is missing: that is no padding."""
        row = te.select(te.equal(y + r, 4), te.constant(0, x.dtype), x[y + r, z, c])
        return te.sum(te.cast(row, "float32") * te.cast(w[r, c, o], "float32"), axis=(c, r))

    assert implicit_gemm_of(te.workload(te.compute((7, 10, 40), odd, "Y"))) is None


@pytest.mark.parametrize(
    ("parameters", "knobs"),
    [
        ({"batch": 32, "height": 28, "width": 28, "channels": 128, "filters": 128}, {"mma_n": 128, "pixels": "4x4x4"}),
        ({"batch": 32, "height": 56, "width": 56, "filters": 64}, {"mma_n": 64, "pixels": "im2col", "ping_pong": 1}),
        (
            {"batch": 32, "height": 14, "width": 14, "channels": 256, "filters": 256, "bias": True, "residual": True},
            {"mma_n": 128, "cluster_n": 2},
        ),
    ],
)
def test_no_registers_are_spilled(parameters: dict[str, Any], knobs: dict[str, Any]) -> None:
    resources = compiled(SKETCH, conv2d(**parameters), **knobs)
    assert resources.spill_bytes == 0 and resources.stack_bytes == 0


def test_pixels_are_prefetched_as_they_are_loaded() -> None:
    workload = conv2d(batch=32, filters=256)
    for pixels in ("im2col", "1x4x16"):
        kernel = SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, pixels=pixels, split_k=1, mma_n=64))
        of = {
            kind: {
                (s.box, s.im2col) for s in walk_statements(kernel.body) if isinstance(s, kind) and s.source.name == "X"
            }
            for kind in (TmaLoad, TmaPrefetch)
        }
        assert of[TmaPrefetch] == of[TmaLoad]


def test_source() -> None:
    workload = conv2d(bias=True, activation="relu")
    schedule = schedule_of(SKETCH, workload, mma_n=48, atoms_m=1, cluster_m=1, split_k=1, pixels="im2col", stream_k=0)
    source = backend_for(H200).emit(finish(SKETCH.lower(workload, H200, schedule), H200), H200)
    check_golden("codegen/golden/conv_im2col.cu", source.text)
