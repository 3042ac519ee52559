"""Two-dimensional pooling of images: the greatest or the mean element of each window."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ...core.dtypes import DTYPES
from ...core.errors import InvalidParameter
from ...ir.expr import Expr
from ..build import Reduction, cast, compute, constant, max, maximum, minimum, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .operator import Operator, accumulation, accumulation_parameter, widened
from .padding import padded
from .parameter import NUMBERS, Choice, Flag, Integer, Parameter, Values, dtype_parameter


@dataclass(frozen=True, slots=True)
class _PooledDim:
    """The windows along one dimension."""

    extent: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def span(self) -> int:
        """What the window covers."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def count(self) -> int:
        return (self.extent + 2 * self.padding - self.span) // self.stride + 1

    def inside(self, at: Expr) -> Expr:
        """Return how many elements of window ``at``, which is not dilated, are not padding (int64)."""
        first = at * self.stride - self.padding
        return minimum(first + self.kernel, self.extent) - maximum(first, 0)


def _windows(v: Values) -> tuple[_PooledDim, _PooledDim]:
    """Return those along height and width, checked."""
    stride, padding, dilation = v.integer("stride"), v.integer("padding"), v.integer("dilation")
    found = []
    for name, extent in (("kernel_h", v.integer("height")), ("kernel_w", v.integer("width"))):
        window = _PooledDim(extent, v.integer(name), stride, padding, dilation)
        if window.count < 1:
            raise InvalidParameter(
                f"{name} is {window.kernel}: at dilation {dilation} that spans {window.span}; allowed: at most "
                f"{extent + 2 * padding}, the padded image",
                field=name,
            )
        if padding >= window.kernel:
            raise InvalidParameter(
                f"padding is {padding}; allowed: less than {name}, which is {window.kernel}, else a window is empty",
                field="padding",
            )
        found.append(window)
    return found[0], found[1]


def _check_kind(v: Values) -> None:
    if v.text("kind") == "average" and not DTYPES[v.text("dtype")].is_float:
        raise InvalidParameter(f"kind is average, which does not take {v.text('dtype')}; allowed: max", field="kind")
    if v.text("kind") == "average" and v.integer("dilation") > 1:
        raise InvalidParameter(
            f"dilation is {v.integer('dilation')}, and kind is average; allowed: 1", field="dilation"
        )


def _build(v: Values) -> Workload:
    _check_kind(v)
    rows, columns = _windows(v)
    dtype, first, average = DTYPES[v.text("dtype")], v.text("layout") == "NCHW", v.text("kind") == "average"
    batch, channels = v.integer("batch"), v.integer("channels")
    row = 2 if first else 1

    def image(height: int, width: int) -> tuple[int, ...]:
        return (batch, channels, height, width) if first else (batch, height, width, channels)

    x = placeholder(image(rows.extent, columns.extent), dtype, "X")
    border = 0 if average else float("-inf") if dtype.is_float else dtype.integer_range[0]
    source = padded(x, dict.fromkeys((row, row + 1), (rows.padding, rows.padding)), border)
    wide = accumulation(v)[0] if average else dtype
    r, s = reduce_axis(rows.kernel, "r"), reduce_axis(columns.kernel, "s")

    def window(*at: Expr) -> Reduction:
        y = at[row] * rows.stride + r * rows.dilation
        z = at[row + 1] * columns.stride + s * columns.dilation
        return (sum if average else max)(cast(source[(*at[:row], y, z, *at[row + 2 :])], wide), axis=(r, s))

    shape = image(rows.count, columns.count)
    names = ("n", "c", "y", "x") if first else ("n", "y", "x", "c")
    total = compute(shape, window, "total" if average else "Y", names)
    if not average:
        return workload(total)
    every = v.flag("count_include_pad") or not v.integer("padding")

    def mean(*at: Expr) -> Expr:
        if every:
            return cast(total[at] * constant(1.0 / (rows.kernel * columns.kernel), wide), dtype)
        count = rows.inside(at[row]) * columns.inside(at[row + 1])
        return cast(total[at] / cast(count, wide), dtype)

    return workload(compute(shape, mean, "Y", names))


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """Return one pass over the whole image for each element of the kernel."""
    rows, columns = _windows(v)
    average, row = v.text("kind") == "average", 2 if v.text("layout") == "NCHW" else 1
    x = inputs["X"].astype(accumulation(v)[0].numpy, copy=False) if average else widened(inputs["X"])
    if v.integer("padding"):
        border = 0 if average else -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        widths = [(v.integer("padding"),) * 2 if d in (row, row + 1) else (0, 0) for d in range(4)]
        x = np.pad(x, widths, constant_values=border)
    y: NDArray[Any] | None = None
    for r in range(rows.kernel):
        for s in range(columns.kernel):
            where = [slice(None)] * 4
            for d, window, tap in ((row, rows, r), (row + 1, columns, s)):
                first = tap * window.dilation
                where[d] = slice(first, first + (window.count - 1) * window.stride + 1, window.stride)
            part = x[tuple(where)]
            if y is None:
                y = part.copy()
            else:
                (np.add if average else np.maximum)(y, part, out=y)
    assert y is not None
    if average:
        y /= _counts(v, rows, columns, row).astype(y.dtype)
    return (y.astype(inputs["X"].dtype, copy=False),)


def _counts(v: Values, rows: _PooledDim, columns: _PooledDim, row: int) -> NDArray[Any]:
    """Return what each window's sum is divided by."""
    if v.flag("count_include_pad"):
        return np.array(rows.kernel * columns.kernel)
    counts = []
    for window in (rows, columns):
        inside = np.pad(np.ones(window.extent, int), window.padding)
        counts.append(sliding_window_view(inside, window.kernel)[:: window.stride].sum(axis=1))
    shape = [1, 1, 1, 1]
    shape[row], shape[row + 1] = rows.count, columns.count
    return np.asarray(np.multiply.outer(*counts)).reshape(shape)


_SMALL = {"batch": 1, "channels": 3, "height": 7, "width": 11, "kernel_h": 3, "kernel_w": 2}

POOL2D = Operator(
    name="pool2d",
    summary="Y[n, c, y, x] = the greatest or the mean over r and s of "
    "X[n, c, y*stride + r*dilation, x*stride + s*dilation]",
    parameters=(
        Parameter("batch", "how many images", Integer()),
        Parameter("channels", "channels of X", Integer()),
        Parameter("height", "height of X", Integer()),
        Parameter("width", "width of X", Integer()),
        Parameter("kernel_h", "height of a window", Integer()),
        Parameter("kernel_w", "width of a window", Integer()),
        Parameter("stride", "pixels of X between neighbouring windows", Integer(), 1),
        Parameter(
            "padding", "border added on every side of X: zeros for average, never the greatest", Integer(0, 1 << 16), 0
        ),
        Parameter("dilation", "max: pixels of X between neighbours of a window", Integer(), 1),
        Parameter("kind", "what is taken of a window", Choice(("max", "average")), "max"),
        Parameter(
            "count_include_pad",
            "average: whether a sum is divided by the size of the whole window, or of what is inside X",
            Flag(),
            True,
        ),
        Parameter("layout", "whether channels stand second or last", Choice(("NCHW", "NHWC")), "NCHW"),
        dtype_parameter(*NUMBERS),
        accumulation_parameter("float32", "float64"),
    ),
    examples=(
        {**_SMALL, "padding": 1},
        {**_SMALL, "layout": "NHWC", "stride": 2},
        {**_SMALL, "kind": "average", "layout": "NHWC", "padding": 1, "dtype": "float16"},
        {**_SMALL, "kind": "average", "padding": 1, "count_include_pad": False, "stride": 2, "dtype": "float32"},
        {**_SMALL, "kind": "average", "batch": 2, "accumulate": "float64", "dtype": "bfloat16"},
        {"batch": 1, "channels": 1, "height": 1, "width": 1, "kernel_h": 1, "kernel_w": 1},
        {**_SMALL, "padding": 1, "dilation": 2, "dtype": "float32"},
        {"batch": 1, "channels": 6, "height": 1, "width": 70, "kernel_h": 1, "kernel_w": 5, "dtype": "float32"},
    ),
    build=_build,
    baseline=_numpy,
)
