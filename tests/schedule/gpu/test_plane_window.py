"""Kernels of windows of planes with weights: what they take, what they compute, and what a thread of them does."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
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
from tilewright.core.streams import stream
from tilewright.ir.expr import Expr
from tilewright.ir.gpu.ldmatrix import LoadMatrix
from tilewright.ir.gpu.mma import Mma
from tilewright.ir.rewrite import loads_of
from tilewright.ir.stmt import Allocate, Launch, Store, walk_statements
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.plane_window.kernel import aligned_vectors
from tilewright.schedule.gpu.plane_window.space import CUDA_PLANE_WINDOW as SKETCH
from tilewright.schedule.problems.plane_window import plane_window_of
from tilewright.schedule.sketches import sketches_for
from tilewright.te import build as te
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload


def _depthwise(size: tuple[int, int], kernel: int, padding: int, channels: int = 4, **further: Any) -> Workload:
    given = {"batch": 2, "channels": channels, "groups": channels, "filters": channels, "dtype": "float16"}
    given |= {"height": size[0], "width": size[1], "kernel_h": kernel, "kernel_w": kernel, "padding": padding}
    return workload_of("conv2d", **{**given, **further})


def _line(length: int, kernel: int, **further: Any) -> Workload:
    given = {"batch": 2, "channels": 4, "groups": 4, "filters": 4, "dtype": "float16", "padding": kernel // 2}
    return workload_of("conv1d", **{**given, "length": length, "kernel": kernel, **further})


def _volume(size: tuple[int, int, int], kernel: int, padding: int, channels: int = 4, **further: Any) -> Workload:
    given = {"batch": 2, "channels": channels, "groups": channels, "filters": channels, "dtype": "float16"}
    given |= {"depth": size[0], "height": size[1], "width": size[2], "padding": padding}
    given |= {f"kernel_{side}": kernel for side in "dhw"}
    return workload_of("conv3d", **{**given, **further})


def _two_images() -> Workload:
    """The greatest products of the differences of two images and a weight, and a part of them."""
    a, b, w = (te.placeholder(s, "float32", n) for n, s in (("A", (6, 10, 17)), ("B", (6, 10, 18)), ("W", (6, 4, 3))))
    r, s = te.reduce_axis(4, "r"), te.reduce_axis(3, "s")

    def body(n: Expr, y: Expr, x: Expr) -> te.Reduction:
        return te.max((a[n, y + r, x + s] - b[n, y + r, x + s + 1]) * w[n, r, s], axis=(r, s))

    greatest = te.compute((6, 7, 15), body, "M")
    return te.workload([greatest, te.compute((6, 7, 15), lambda n, y, x: a[n, y, x] * greatest[n, y, x], "Y")])


REPLICATED, REFLECTED = "min(max({i}, 0), {last})", "min(max({last} - abs({last} - abs({i})), 0), {last})"
CIRCULAR = "({i} + {n}) % {n}"


def _at(border: str, place: str, extent: int) -> str:
    """The index of a place along a dimension with a border."""
    return border.format(i=f"({place})", last=extent - 1, n=extent)


def _bordered(rows: str, columns: str, size: tuple[int, int], window: int, dtype: str = "float16") -> Workload:
    (height, width), middle = size, window // 2
    row, column = _at(rows, f"y + r - {middle}", height), _at(columns, f"x + s - {middle}", width)
    image = f"float32(X[n, c, {row}, {column}])"
    return parse_workload(f"""
        X: {dtype}[2, 3, {height}, {width}]
        W: {dtype}[3, {window}, {window}]
        S[n, c, y < {height}, x < {width}] = sum over r < {window}, s < {window} of {image} * float32(W[c, r, s])
        Y[n, c, y, x] = {dtype}(S[n, c, y, x])""")


def _variances() -> Workload:
    """Variances of windows with a border, from their sums and those of squares."""
    at = f"n, {_at(REPLICATED, 'y + r - 2', 9)}, {_at(REPLICATED, 'x + s - 2', 14)}"
    return parse_workload(f"""
        X: float16[3, 9, 14]
        M[n, y < 9, x < 14] = sum over r < 5, s < 5 of float32(X[{at}])
        V[n, y < 9, x < 14] = sum over r < 5, s < 5 of float32(X[{at}]) * float32(X[{at}])
        Y[n, y, x] = V[n, y, x] / 25 - M[n, y, x] * M[n, y, x] / 625""")


def _contrasts() -> Workload:
    """The least and the greatest bytes of windows, how far they are apart, and a weighted mean as another dtype."""
    return parse_workload("""
        X: uint8[5, 11, 20]
        W: float32[3, 3]
        A[n, y < 9, x < 18] = max over r < 3, s < 3 of X[n, y + r, x + s]
        B[n, y < 9, x < 18] = min over r < 3, s < 3 of X[n, y + r, x + s]                       # output
        Y[n, y, x] = A[n, y, x] - B[n, y, x]                                                    # output
        M[n, y < 9, x < 18] = sum over r < 3, s < 3 of W[r, s] * float32(X[n, y + r, x + s])    # output""")


def _moving_variances() -> Workload:
    return parse_workload("""
        X: float32[4, 131]
        M[b, t < 100] = sum over k < 32 of X[b, t + k]
        V[b, t < 100] = sum over k < 32 of X[b, t + k] * X[b, t + k]
        Y[b, t] = V[b, t] / 32 - M[b, t] * M[b, t] / 1024""")


def _transposed(kernel: int, padding: int) -> Workload:
    """The gradient of a convolution towards its images: windows run against rows and columns."""
    shape = dict(batch=2, channels=3, height=13, width=16, filters=3, groups=3, kernel_h=kernel, kernel_w=kernel)
    return workload_of("conv2d_transpose", **shape, padding=padding, dtype="float16")


CASES: Mapping[str, Callable[[], Workload]] = {
    "aligned": lambda: _depthwise((16, 24), 3, 1),
    "large": lambda: _depthwise((9, 16), 7, 3, dtype="bfloat16"),
    "smaller than its windows": lambda: _depthwise((7, 7), 7, 3),
    "pairs": lambda: _depthwise((14, 14), 5, 2, bias=True, activation="relu"),
    "odd": lambda: _depthwise((13, 11), 3, 1, residual=True),
    "strided": lambda: _depthwise((17, 24), 3, 1, stride=2, dtype="float32"),
    "dilated": lambda: _depthwise((12, 16), 3, 2, dilation=2, dtype="int8"),
    "no padding": lambda: _depthwise((11, 20), 4, 0),
    "two filters a channel": lambda: _depthwise((8, 8), 3, 1, filters=8),
    "rows alone": lambda: _depthwise((6, 16), 5, 0, kernel_h=1),
    "columns alone": lambda: _depthwise((9, 16), 5, 0, kernel_w=1),
    "line": lambda: _line(100, 31),
    "transposed": lambda: _transposed(5, 2),
    "causal": lambda: _line(65, 4, padding=3),
    "two images": _two_images,
    "many points": lambda: _depthwise((15, 16), 11, 5),
    "many points, strided": lambda: _depthwise((21, 13), 9, 4, stride=2, dtype="float32"),
    "long line": lambda: _line(200, 71),
    "volume": lambda: _volume((4, 8, 16), 3, 1),
    "odd volume": lambda: _volume((6, 7, 11), 3, 1, bias=True, filters=8),
    "strided volume": lambda: _volume((9, 9, 12), 3, 1, stride=2, dtype="float32"),
    "many planes": lambda: _volume((6, 9, 16), 5, 2),
    "greatest of a volume": lambda: parse_workload(
        "X: float16[2, 3, 5, 8, 16]\nY[n, c, z < 5, y < 8, x < 16] = max over r < 3, p < 3, q < 3 of select("
        "z + r >= 1 and z + r < 6 and y + p >= 1 and y + p < 9 and x + q >= 1 and x + q < 17, "
        "X[n, c, z + r - 1, y + p - 1, x + q - 1], -10000)"
    ),
    "replicated border": lambda: _bordered(REPLICATED, REPLICATED, (9, 16), 5),
    "reflected border, odd": lambda: _bordered(REFLECTED, REFLECTED, (11, 13), 5, "float32"),
    "circular and replicated border": lambda: _bordered(CIRCULAR, REPLICATED, (10, 14), 3),
    "volume with a border": lambda: parse_workload(
        "X: float32[2, 5, 8, 16]\nW: float32[3, 3, 3]\nY[n, z < 5, y < 6, x < 16] = sum over r < 3, p < 3, q < 3 of "
        f"X[n, {_at(REPLICATED, 'z + r - 1', 5)}, y + p, {_at(CIRCULAR, 'x + q - 1', 16)}] * W[r, p, q]"
    ),
    "variances": _variances,
    "contrasts": _contrasts,
    "moving variances": _moving_variances,
    "planes alone": lambda: _volume((6, 6, 16), 3, 0, kernel_h=1, kernel_w=1),
    "two volumes": lambda: parse_workload(
        "A: float16[2, 6, 7, 18]\nB: float16[2, 6, 7, 18]\nY[n, z < 4, y < 5, x < 16] = sum over r < 3, p < 3, q < 3 "
        "of float32(A[n, z + r, y + p, x + q]) * float32(B[n, z + r, y + p, x + q])"
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case](), 2) >= 2
    assert assert_agrees(SKETCH, CASES[case](), 4, policy=EVERY_LEGAL) == 4


def test_what_it_leaves_to_others() -> None:
    for workload in (
        workload_of("pool2d", batch=1, channels=4, height=32, width=32, kernel_h=3, kernel_w=3),  # no weights
        _depthwise((16, 16), 3, 1, layout="NHWC"),
        workload_of("pool2d", batch=1, channels=8, height=32, width=32, kernel_h=3, kernel_w=3, layout="NHWC"),
        _depthwise((16, 16), 3, 1, groups=2),  # sums over channels
        _depthwise((16, 16), 3, 1, groups=1, channels=1, filters=16),  # a product of patches and filters
        _depthwise((16, 16), 2, 0, stride=2),  # windows share nothing
        _line(300, 127, dtype="float32"),  # more positions than registers hold
        _volume((4, 8, 8), 3, 1, layout="NDHWC"),
        workload_of("matmul", m=64, n=64, k=32),
        workload_of("linear", rows=8, inputs=64, outputs=64),
    ):
        assert not SKETCH.matches(workload, H200)


@pytest.mark.parametrize(
    ("columns", "dtype", "vector"),
    [
        (56, "float16", (8, 5)),
        (28, "float16", (4, 1)),
        (14, "float16", (2, 1)),
        (7, "float16", (1, 0)),
        (56, "float32", (4, 1)),
    ],
)
def test_rows_are_loaded_by_aligned_vectors_that_the_padding_does_not_cut(
    columns: int, dtype: str, vector: tuple[int, int]
) -> None:
    problem = plane_window_of(_depthwise((56, columns), 7, 3, dtype=dtype))
    assert problem is not None and aligned_vectors(problem, columns) == vector


def test_tiles_that_lie_beyond_the_outputs_are_masked() -> None:
    """Three tiles of rows and two of columns, of which the last ones have fewer outputs."""
    workload = _depthwise((22, 37), 3, 1)
    for staged in (0, 1):
        schedule = legal_schedule_of(
            SKETCH, workload, tile_w=4, tile_h=4, tiles_w=2, tiles_h=3, row_tiles=2, staged_epilogue=staged
        )
        assert_schedule_agrees(SKETCH, workload, schedule)


MULTIPLIED = (
    "aligned",
    "large",
    "smaller than its windows",
    "pairs",
    "odd",
    "two filters a channel",
    "line",
    "causal",
    "many points",
    "long line",
    "volume",
    "odd volume",
    "many planes",
    "planes alone",
)


@pytest.mark.parametrize("case", MULTIPLIED)
def test_matrix_instructions_compute_the_same(case: str) -> None:
    """Rows of one to four blocks, tiles beyond the outputs, and strips that do not fill a warp."""
    workload = CASES[case]()
    space = SKETCH.space(workload, H200, policy=EVERY_LEGAL)
    rows = np.flatnonzero(space.column("mma") == 1)
    assert len(rows) >= 20
    for row in stream(1, "rows").permutation(rows)[:4]:
        assert_schedule_agrees(SKETCH, workload, space.schedule(int(row)))


@pytest.mark.parametrize("case", ["pairs", "odd", "two filters a channel", "line"])
def test_warps_have_strips_of_several_images_with_one_filter(case: str) -> None:
    workload = CASES[case]()
    space = SKETCH.space(workload, H200, policy=EVERY_LEGAL)
    rows = np.flatnonzero(space.column("shared_filter") == 1)
    assert len(rows) >= 20 and set(space.column("row_tiles")[rows]) >= {2}
    for row in stream(1, "rows").permutation(rows)[:4]:
        assert_schedule_agrees(SKETCH, workload, space.schedule(int(row)))


def test_blocks_have_one_filter_where_planes_are_small() -> None:
    """Of 14 rows, 16 strips of 7 rows are four planes, of four images, which share the load of the filter."""
    workload = _depthwise((14, 14), 5, 2, channels=672, batch=32)
    knobs = dict(default_schedule(workload, H200).knobs)
    assert knobs["mma"] == 1 and knobs["shared_filter"] == 1 and int(knobs["row_tiles"]) >= 4


def test_matrix_instructions_are_for_sums_of_products_of_16_bit_floats_by_windows_that_move_by_one() -> None:
    for case in ("strided", "dilated", "two images"):
        assert "mma" not in {knob.name for knob in SKETCH.space(CASES[case](), H200).knobs}


@pytest.mark.parametrize(("dtype", "kernel"), [("float16", 31), ("float32", 13)])
def test_rows_of_large_filters_are_loaded_one_after_the_other(dtype: str, kernel: int) -> None:
    """Otherwise they would take all registers, and a kernel would be as long as a strip has products."""
    workload = _depthwise((28, 28), kernel, kernel // 2, channels=256, batch=16, dtype=dtype)
    schedule = default_schedule(workload, H200)
    assert schedule.sketch == SKETCH.name
    resources = compiled(SKETCH, workload, **dict(schedule.knobs))
    assert resources.registers <= 168 and resources.spill_bytes == 0


def test_a_row_of_the_input_is_loaded_once_for_all_rows_of_the_window() -> None:
    """Strips of 7 rows see 13 rows of the input, and take 7 instructions for each of theirs. Rows are loaded in vectors
    of four elements: wider ones would lie too far ahead of what a window sees."""
    workload = _depthwise((56, 56), 7, 3, channels=96)
    knobs = {"tile_w": 8, "tile_h": 7, "tiles_w": 1, "tiles_h": 1, "row_tiles": 1, "mma": 1, "staged_epilogue": 0}
    schedule = legal_schedule_of(SKETCH, workload, **knobs)
    kernel = SKETCH.lower(workload, H200, schedule)
    statements = list(walk_statements(kernel.body))
    assert (
        sum(isinstance(s, LoadMatrix) for s in statements) == 13 and sum(isinstance(s, Mma) for s in statements) == 49
    )
    registers = next(s.buffer for s in statements if isinstance(s, Allocate) and s.buffer.name == "X_regs")
    assert registers.shape[-1] == 4
    resources = compiled(SKETCH, workload, **knobs)
    assert resources.registers <= 96 and resources.spill_bytes == 0


def test_a_thread_loads_each_position_once_and_everything_ahead_of_the_barrier() -> None:
    workload = _depthwise((56, 56), 7, 3, channels=96)
    schedule = legal_schedule_of(SKETCH, workload, tile_w=8, tile_h=7, tiles_w=1, tiles_h=1, row_tiles=2, mma=0)
    kernel = SKETCH.lower(workload, H200, schedule)
    launch = next(s for s in walk_statements(kernel.body) if isinstance(s, Launch))
    stores = [s for s in walk_statements(launch) if isinstance(s, Store)]
    assert [s.buffer.name for s in stores if any(load.buffer.name == "X" for load in loads_of(s))] == ["X_regs"]
    names = [s.buffer.name for s in stores]
    assert max(n for n, name in enumerate(names) if name == "W_regs") < names.index("X_near")


def test_threads_have_many_outputs_and_fit_their_registers() -> None:
    """The default of a large window is neither left to kernels that load each point of each window nor spilled."""
    for dtype, mma in (("float16", 1), ("float32", 0)):
        workload = _depthwise((56, 56), 7, 3, channels=96, batch=16, dtype=dtype)
        schedule = default_schedule(workload, H200)
        knobs = dict(schedule.knobs)
        assert schedule.sketch == SKETCH.name and int(knobs["tile_w"]) * int(knobs["tile_h"]) >= 16
        assert knobs.get("mma", 0) == mma
        resources = compiled(SKETCH, workload, **knobs)
        assert resources.registers <= 168 and resources.spill_bytes == 0


@pytest.mark.parametrize(("dtype", "mma"), [("float16", 1), ("float32", 0)])
def test_a_block_shares_planes_among_neighbouring_planes_of_outputs(dtype: str, mma: int) -> None:
    """Four planes of outputs or more see half as many planes more, so that little is read from memory again."""
    workload = _volume((16, 56, 56), 3, 1, channels=64, dtype=dtype)
    schedule = default_schedule(workload, H200)
    knobs = dict(schedule.knobs)
    assert schedule.sketch == SKETCH.name and knobs.get("mma", 0) == mma and int(knobs["tile_d"]) >= 4
    resources = compiled(SKETCH, workload, **knobs)
    assert resources.registers <= 168 and resources.spill_bytes == 0


@pytest.mark.parametrize(
    ("dtype", "rows", "taps", "stride", "dilation"), [("float16", 16, 65, 1, 2), ("float32", 1024, 64, 3, 1)]
)
def test_windows_that_fit_no_registers_are_left_to_other_kernels(
    dtype: str, rows: int, taps: int, stride: int, dilation: int
) -> None:
    """A sketch that matches has a legal setting: a task of a workload that had none ended with an error."""
    length = 249_999 * stride + (taps - 1) * dilation + 1
    workload = parse_workload(
        f"A: {dtype}[{rows}, {length}]\nW: {dtype}[{taps}]\nC[i, j < 250000] = "
        f"sum over k < {taps} of float32(A[i, j * {stride} + k * {dilation}]) * float32(W[k])"
    )
    assert all(len(sketch.space(workload, H200, limit=10)) for sketch in sketches_for(workload, H200))


def test_long_signals_have_many_tiles() -> None:
    """Filters of many taps of 16-bit floats are multiplied by matrix instructions, however long the rows are."""
    workload = parse_workload(
        "X: float16[2, 16512]\nH: float16[129]\n"
        "S[b, i < 16384] = sum over k < 129 of float32(H[k]) * float32(X[b, i + k])\nY[b, i] = float16(S[b, i])"
    )
    schedule = default_schedule(workload, H200)
    assert schedule.sketch == SKETCH.name and dict(schedule.knobs)["mma"] == 1
    assert_schedule_agrees(SKETCH, workload, legal_schedule_of(SKETCH, workload, mma=1, tiles_w=64, tile_w=16))


def test_windows_that_span_more_than_shared_memory_holds_are_left_to_others() -> None:
    """There is no legal setting for them, and a task would end with an error."""
    far = parse_workload(
        "X: float32[10000, 1280]\nH: float32[17]\nY[i < 9800, c] = sum over k < 17 of H[k] * X[i + 10 * k, c]"
    )
    assert not SKETCH.matches(far, H200) and sketches_for(far, H200)
