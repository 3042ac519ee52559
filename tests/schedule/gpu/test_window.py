"""Kernels of small windows: what they take, what they compute, and that no pixel is loaded twice."""

from collections.abc import Callable

import pytest

from tests.schedule.gpu.tiles import H200, assert_agrees, compiled, schedule_of, workload_of
from tilewright.core.policy import SpacePolicy
from tilewright.ir.rewrite import loads_of
from tilewright.ir.stmt import For, If, Launch, Stmt, Store, substatements, walk_statements
from tilewright.schedule.gpu.loops.space import CUDA_LOOPS
from tilewright.schedule.gpu.window.space import CUDA_WINDOW as SKETCH
from tilewright.te import build as te
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

DEPTHWISE = workload_of(
    "conv2d", batch=32, channels=128, height=56, width=56, filters=128, kernel_h=3, kernel_w=3, padding=1, groups=128,
    layout="NHWC", dtype="float16",
)  # fmt: skip
POOL = workload_of(
    "pool2d", batch=32, channels=128, height=56, width=56, kernel_h=3, kernel_w=3, padding=1, kind="average",
    layout="NHWC", dtype="float16",
)  # fmt: skip


def _pool(**more: object) -> Workload:
    given: dict[str, object] = dict(batch=2, channels=8, height=9, width=10, kernel_h=3, kernel_w=2, layout="NHWC")
    return workload_of("pool2d", **{**given, **more})


def _depthwise(**more: object) -> Workload:
    given: dict[str, object] = dict(
        batch=1, channels=6, filters=6, groups=6, height=9, width=11, kernel_h=3, kernel_w=3, layout="NHWC"
    )
    return workload_of("conv2d", **{**given, **more})


def _volume(kernel: int, *, channels: int = 8, **more: object) -> Workload:
    given: dict[str, object] = dict(batch=1, depth=5, height=9, width=8, padding=kernel // 2, layout="NDHWC", bias=True)
    given |= {f"kernel_{side}": kernel for side in "dhw"} | dict.fromkeys(("channels", "filters", "groups"), channels)
    return workload_of("conv3d", **{"dtype": "float16", **given, **more})


def _with_epilogue() -> Workload:
    x, w, b = (te.placeholder(s, "float16", n) for n, s in (("X", (7, 6, 8)), ("W", (3, 8)), ("B", (8,))))
    k = te.reduce_axis(3, "k")
    total = te.compute(
        (7, 4, 8),
        lambda y, z, c: te.sum(te.cast(x[y, z + k, c], "float32") * te.cast(w[k, c], "float32"), axis=k),
        "total",
    )
    y = te.compute(
        (7, 4, 8), lambda i, j, c: te.cast(te.maximum(total[i, j, c] + te.cast(b[c], "float32"), 0.0), "float16"), "Y"
    )
    return te.workload([total, y])


def _several_terms() -> Workload:
    """Two images and two axes of windows, one of which does not slide."""
    x, z = te.placeholder((2, 5, 12, 4), "float32", "X"), te.placeholder((5, 12, 4), "float32", "Z")
    g, s = te.reduce_axis(2, "g"), te.reduce_axis(3, "s")
    return te.workload(
        te.compute((5, 10, 4), lambda i, j, c: te.max(x[g, i, j + s, c] + z[i, j + s, c], axis=(g, s)), "Y")
    )


def _bordered(kind: str, width: int, channels: int, dtype: str, weight: str = "") -> Workload:
    """Windows of 3 x 3 or weighted sums of them over images with a border along both sides."""
    row, column = (
        "min(max(y + r - 1, 0), 8)",
        f"min(max({width - 1} - abs({width - 1} - abs(x + s - 1)), 0), {width - 1})",
    )
    value = f"float32(X[n, {row}, {column}, c])"
    return parse_workload(f"""
        X: {dtype}[2, 9, {width}, {channels}]
        W: float32[3, 3]
        S[n, y < 9, x < {width}, c] = {kind} over r < 3, s < 3 of {value}{weight}
        Y[n, y, x, c] = {dtype}(S[n, y, x, c] + W[0, 0])""")


CASES = {
    "bytes with a border": lambda: _bordered("max", 10, 3, "uint8"),
    "weights with a border": lambda: _bordered("sum", 11, 16, "float16", " * W[r, s]"),
    "greatest": lambda: _pool(padding=1, dtype="float16"),
    "strided": lambda: _pool(stride=2, dtype="float32"),
    "counted": lambda: _pool(kind="average", padding=1, count_include_pad=False, dtype="float16"),
    "apart": lambda: _pool(kernel_h=2, kernel_w=2, stride=2, kind="average", dtype="bfloat16"),
    "bytes": lambda: _pool(padding=1, dtype="int8"),
    "depthwise": lambda: _depthwise(padding=1, dtype="float16"),
    "depthwise strided": lambda: _depthwise(padding=1, stride=2, dtype="float32"),
    "depthwise dilated": lambda: _depthwise(padding=2, dilation=2, dtype="float16"),
    "transposed": lambda: workload_of(
        "conv2d_transpose",
        batch=2,
        channels=8,
        height=9,
        width=8,
        filters=8,
        groups=8,
        kernel_h=3,
        kernel_w=3,
        padding=1,
        layout="NHWC",
        dtype="float16",
    ),
    "filters with channels first": lambda: parse_workload(
        "X: float16[2, 9, 10, 8]\nW: float16[8, 3, 3]\nY[n, y < 7, x < 8, c] = sum over r < 3, s < 3 of "
        "float32(X[n, y + r, x + s, c]) * float32(W[c, r, s])"
    ),
    "rows in a ring": lambda: _depthwise(height=20, kernel_h=5, kernel_w=5, padding=2, stride=1, dtype="float16"),
    "planes one after the other": lambda: _volume(5),
    "planes with strides": lambda: _volume(5, stride=2, dtype="float32", channels=4),
    "9 x 9": lambda: _depthwise(
        channels=20, filters=20, groups=20, height=14, width=15, kernel_h=9, kernel_w=9, padding=4, dtype="float16"
    ),
    "13 x 11, strided, dilated": lambda: _depthwise(
        batch=2,
        channels=24,
        filters=24,
        groups=24,
        height=20,
        width=20,
        kernel_h=13,
        kernel_w=11,
        padding=12,
        stride=2,
        dilation=2,
        bias=True,
        dtype="bfloat16",
    ),
    "greatest of 17 x 5": lambda: _pool(channels=16, height=26, kernel_h=17, kernel_w=5, padding=2, dtype="float16"),
    "epilogue": _with_epilogue,
    "several terms": _several_terms,
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 5) >= 2


LARGE = {
    "13 x 9": lambda: _pool(height=6, width=10, kernel_h=13, kernel_w=9, padding=6, dtype="float16"),
    "odd channels": lambda: _pool(channels=3, height=6, kernel_h=9, kernel_w=8, padding=4, dtype="bfloat16"),
    "mean of 7 x 7": lambda: _pool(kernel_h=7, kernel_w=7, padding=3, kind="average", dtype="float16"),
    "strided": lambda: _pool(kernel_h=5, kernel_w=5, stride=2, padding=2, height=13, dtype="bfloat16"),
}


@pytest.mark.parametrize("case", LARGE)
def test_rows_of_large_windows_share_what_their_parts_have_in_common(case: str) -> None:
    assert assert_agrees(SKETCH, LARGE[case](), 3) >= 2
    assert assert_agrees(SKETCH, LARGE[case](), 2, policy=SpacePolicy(prune=False)) == 2


@pytest.mark.parametrize("case", CASES)
def test_settings_that_are_pruned_compute_it_too(case: str) -> None:
    assert_agrees(SKETCH, CASES[case](), 6, policy=SpacePolicy(prune=False))


def test_what_it_leaves_to_others() -> None:
    channels_first = workload_of("pool2d", batch=1, channels=8, height=32, width=32, kernel_h=3, kernel_w=3)
    for workload in (
        channels_first,
        _pool(height=40, width=40, kernel_h=33, kernel_w=33),
        _depthwise(height=90, width=90, kernel_h=33, kernel_w=33),
        _depthwise(kernel_h=9, kernel_w=9, padding=4),  # 594 results
        _volume(9),  # 81 in each plane
        _depthwise(stride=2, dilation=3, height=20, width=20),  # neither positions nor windows are neighbours
        workload_of("matmul", m=64, n=64, k=32),
        workload_of("reduce", shape=[64, 16, 64], axes=[1]),
    ):
        assert not SKETCH.matches(workload, H200)


@pytest.mark.parametrize("workload", [DEPTHWISE, POOL], ids=["depthwise", "pool"])
def test_spaces_are_small_and_every_setting_fits(workload: Workload) -> None:
    space = SKETCH.space(workload, H200)
    assert 40 <= len(space) <= 100
    assert (space.quantities["registers_estimate"] <= 200).all()
    assert 1.6 < space.quantities["loads_per_output"].min() < space.quantities["loads_per_output"].max() <= 6


@pytest.mark.parametrize("kernel", [9, 13, 31])
def test_rows_of_windows_with_many_weights_come_one_after_the_other(kernel: int) -> None:
    """All taps at once would be a long program, and hold more than there are registers."""
    workload = workload_of(
        "conv2d", batch=16, channels=128, height=56, width=56, filters=128, kernel_h=kernel, kernel_w=kernel,
        padding=kernel // 2, groups=128, layout="NHWC", dtype="float16",
    )  # fmt: skip
    taken = compiled(SKETCH, workload)
    assert taken.spill_bytes == taken.stack_bytes == 0
    generic = CUDA_LOOPS.space(workload, H200).prior_seconds
    own = SKETCH.space(workload, H200).prior_seconds
    assert own is not None and generic is not None and own.min() < generic.min() / 5


def test_a_large_window_has_settings_that_hold_a_few_rows_of_many() -> None:
    large = workload_of(
        "conv2d", batch=32, channels=96, height=56, width=56, filters=96, kernel_h=7, kernel_w=7, padding=3, groups=96,
        layout="NHWC", dtype="float16",
    )  # fmt: skip
    space = SKETCH.space(large, H200)
    assert set(space.column("stages")) == {0, 2, 3}
    assert space.quantities["loads_per_output"].min() < 4
    assert dict(schedule_of(SKETCH, DEPTHWISE).knobs).keys() == {"vector_width", "tile_w", "tile_h", "threads"}


def _times(root: Stmt, count: Callable[[Store], int]) -> int:
    """What ``count`` says of the stores that a thread performs, all together, a vector counting one."""
    match root:
        case For(extent=extent, kind=kind, body=body):
            return (1 if kind == "vectorized" else extent) * _times(body, count)
        case Store():
            return count(root)
    return sum(_times(s, count) for s in substatements(root))


def _loads(name: str) -> Callable[[Store], int]:
    return lambda store: sum(x.buffer.name == name for x in loads_of(store))


def _updates(store: Store) -> int:
    """1 for a store to what it reads."""
    return any(x.buffer.name == store.buffer.name for x in loads_of(store))


@pytest.mark.parametrize(("tile_w", "tile_h"), [(4, 4), (4, 2), (2, 7)])
def test_a_thread_loads_no_pixel_and_no_weight_twice(tile_w: int, tile_h: int) -> None:
    kernel = SKETCH.lower(DEPTHWISE, H200, schedule_of(SKETCH, DEPTHWISE, vector_width=4, tile_w=tile_w, tile_h=tile_h))
    assert isinstance(kernel.body, Launch)
    assert _times(kernel.body, _loads("X")) == (tile_w + 2) * (tile_h + 2)
    assert _times(kernel.body, _loads("W")) == 9


def _kernel(workload: Workload) -> Stmt:
    """Of threads with four by four outputs."""
    return SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, tile_w=4, tile_h=4)).body


def test_all_loads_stand_before_the_first_sum() -> None:
    stores = [s for s in walk_statements(_kernel(DEPTHWISE)) if isinstance(s, Store)]
    loads = [n for n, s in enumerate(stores) if any(x.buffer.name in "XW" for x in loads_of(s))]
    sums = [n for n, s in enumerate(stores) if s.buffer.name.startswith("Y")]
    assert max(loads) < min(sums)


def test_only_pixels_at_the_rim_of_what_a_thread_reads_can_lie_in_the_padding() -> None:
    conditions = [s for s in walk_statements(_kernel(DEPTHWISE)) if isinstance(s, If)]
    assert len(conditions) == 6 * 6 - 4 * 4


@pytest.mark.parametrize(("workload", "sums"), [(DEPTHWISE, 4 * 4 * 8), (POOL, 6 * 4 * 2 + 4 * 4 * 2)])
def test_a_row_that_counts_the_same_for_all_is_added_up_once(workload: Workload, sums: int) -> None:
    """Additions to what stands already, for each channel: pooling adds three neighbours of each of six rows up, and
    three such sums for each output."""
    assert _times(_kernel(workload), _updates) == sums


@pytest.mark.parametrize(("width", "tile_w", "tile_h"), [(4, 2, 8), (2, 7, 7)])
@pytest.mark.parametrize("workload", [DEPTHWISE, POOL], ids=["depthwise", "pool"])
def test_compiled_kernels_keep_to_registers(workload: Workload, width: int, tile_w: int, tile_h: int) -> None:
    resources = compiled(SKETCH, workload, vector_width=width, tile_w=tile_w, tile_h=tile_h, threads=128)
    assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)
