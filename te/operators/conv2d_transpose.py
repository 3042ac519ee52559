"""Transposed convolution of images (what is called deconvolution): the convolution that a gradient takes.

Shapes by layout, with ``o`` filters, ``c`` channels and a kernel of ``r`` by ``s``:

    NCHW: X[n, c, h, w], W[c, o, r, s], Y[n, o, y, a, x, b]
    NHWC: X[n, h, w, c], W[r, s, o, c], Y[n, y, a, x, b, o]

The rows of Y are split into (y, a) with ``a`` below the stride, and its columns into (x, b): that moves no element, so
an array of the usual four dimensions is reshaped for free; it keeps every index affine. Of the kernel's rows only every
``stride``-th meets a row of Y; the sum over ``t`` (over ``u`` for columns) runs through them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InvalidParameter
from ...ir.expr import Expr
from ..build import Reduction, cast, compute, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .epilogue import epilogue_of, epilogue_parameters
from .matmul import product
from .operator import Operator, accumulation, accumulation_parameter
from .padding import padded
from .parameter import NUMBERS, Choice, Integer, Parameter, Values, dtype_parameter


@dataclass(frozen=True, slots=True)
class _Side:
    """One spatial dimension. Row ``stride*y + a`` of Y takes row ``y + ahead - t`` of X by row
    ``a + stride*t + offset`` of the kernel, for every t where there are both."""

    extent: int
    kernel: int
    stride: int
    padding: int
    output_padding: int

    @property
    def output(self) -> int:
        return (self.extent - 1) * self.stride - 2 * self.padding + self.kernel + self.output_padding

    @property
    def ahead(self) -> int:
        return -(-self.padding // self.stride)

    @property
    def offset(self) -> int:
        return self.padding - self.stride * self.ahead

    @property
    def taps(self) -> int:
        return -(-(self.kernel - self.offset) // self.stride)

    @property
    def border(self) -> tuple[int, int]:
        """Rows of nothing that y + ahead - t reaches before and behind X."""
        reach = self.output // self.stride + self.ahead - self.extent
        return max(0, self.taps - 1 - self.ahead), max(0, reach)

    @property
    def kernel_border(self) -> tuple[int, int]:
        """Rows of nothing that a + stride*t + offset reaches before and behind the kernel."""
        return -self.offset, self.stride * self.taps + self.offset - self.kernel


def _sides(v: Values) -> tuple[_Side, _Side]:
    """Height and width, checked."""
    stride, padding, more = v.integer("stride"), v.integer("padding"), v.integer("output_padding")
    if more >= stride:
        raise InvalidParameter(f"output_padding is {more}; allowed: less than stride, {stride}", field="output_padding")
    sides = []
    for extent, kernel in (("height", "kernel_h"), ("width", "kernel_w")):
        side = _Side(v.integer(extent), v.integer(kernel), stride, padding, more)
        if side.output < 1:
            raise InvalidParameter(
                f"padding is {padding}; allowed: what leaves a row of the {side.output + 2 * padding} there are",
                field="padding",
            )
        if side.output % stride:
            raise InvalidParameter(
                f"output_padding is {more}, which makes {side.output} rows of Y from {extent} and {kernel}; allowed: "
                f"what makes a multiple of stride, {stride}",
                field="output_padding",
            )
        sides.append(side)
    return sides[0], sides[1]


def _build(v: Values) -> Workload:
    (rows, columns), dtype, epilogue = _sides(v), v.text("dtype"), epilogue_of(v)
    batch, channels, filters, first = (
        v.integer("batch"), v.integer("channels"), v.integer("filters"), v.text("layout") == "NCHW"
    )  # fmt: skip
    image, kernel = (rows.extent, columns.extent), (rows.kernel, columns.kernel)
    x = placeholder((batch, channels, *image) if first else (batch, *image, channels), dtype, "X")
    weights = placeholder((channels, filters, *kernel) if first else (*kernel, filters, channels), dtype, "W")
    down, along = (2, 3) if first else (1, 2)
    source = padded(x, {down: rows.border, along: columns.border})
    down, along = (2, 3) if first else (0, 1)
    taps = padded(weights, {down: rows.kernel_border, along: columns.kernel_border}, name="taps")
    c, t, u = reduce_axis(channels, "c"), reduce_axis(rows.taps, "t"), reduce_axis(columns.taps, "u")

    def terms(*at: Expr) -> Reduction:
        n, (o, y, a, z, b) = at[0], at[1:] if first else (at[5], *at[1:5])
        row, column = y + (rows.ahead + rows.border[0]) - t, z + (columns.ahead + columns.border[0]) - u
        r, s = a + t * rows.stride, b + u * columns.stride
        pixel = source[n, c, row, column] if first else source[n, row, column, c]
        weight = taps[c, o, r, s] if first else taps[r, s, o, c]
        return sum(cast(pixel, epilogue.wide) * cast(weight, epilogue.wide), axis=(c, t, u))

    stride = v.integer("stride")
    split = (rows.output // stride, stride, columns.output // stride, stride)
    names = ("n", "o", "y", "a", "x", "b") if first else ("n", "y", "a", "x", "b", "o")
    shape = (batch, filters, *split) if first else (batch, *split, filters)
    total = compute(shape, terms, "Y" if epilogue.is_nothing else "total", names)
    y, further = epilogue.apply(total, "Y", (1 if first else 5,))
    return workload(y, inputs=[x, weights, *further])


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """One product for each element of the kernel, added where its pixels go."""
    (rows, columns), wide, stride = _sides(v), accumulation(v)[0], v.integer("stride")
    first, filters = v.text("layout") == "NCHW", v.integer("filters")
    x = inputs["X"] if not first else inputs["X"].transpose(0, 2, 3, 1)
    weights = inputs["W"].transpose(2, 3, 0, 1) if first else inputs["W"].transpose(0, 1, 3, 2)
    batch, height, width, channels = x.shape
    pixels = np.ascontiguousarray(x).reshape(-1, channels)
    full = np.zeros((batch, rows.output + 2 * rows.padding, columns.output + 2 * columns.padding, filters), wide.numpy)
    for r in range(rows.kernel):
        for s in range(columns.kernel):
            part = product(pixels, weights[r, s], wide).reshape(batch, height, width, filters)
            place = full[:, r::stride, s::stride][:, :height, :width]
            place += part
    y = full[:, rows.padding : rows.padding + rows.output, columns.padding : columns.padding + columns.output]
    split = (rows.output // stride, stride, columns.output // stride, stride)
    y = np.ascontiguousarray(y.transpose(0, 3, 1, 2) if first else y)
    y = y.reshape((batch, filters, *split) if first else (batch, *split, filters))
    return (epilogue_of(v).numpy(y, inputs, (filters, 1, 1, 1, 1) if first else (filters,)),)


_SMALL = {"batch": 1, "channels": 3, "height": 3, "width": 5, "filters": 2}

CONV2D_TRANSPOSE = Operator(
    name="conv2d_transpose",
    summary="Y[n, o, y*stride + r - padding, x*stride + s - padding] += X[n, c, y, x] * W[c, o, r, s], from 0; then "
    "+ B[o], + R, activation",
    parameters=(
        Parameter("batch", "how many images", Integer()),
        Parameter("channels", "channels of X", Integer()),
        Parameter("height", "height of X", Integer()),
        Parameter("width", "width of X", Integer()),
        Parameter("filters", "channels of Y", Integer()),
        Parameter("kernel_h", "height of the kernel", Integer()),
        Parameter("kernel_w", "width of the kernel", Integer()),
        Parameter("stride", "pixels of Y between neighbours of X; divides height and width of Y", Integer(), 1),
        Parameter("padding", "rows and columns dropped on every side of Y", Integer(0, 1 << 16), 0),
        Parameter("output_padding", "rows and columns added behind those of Y", Integer(0, 1 << 16), 0),
        Parameter("layout", "whether channels stand second or last", Choice(("NCHW", "NHWC")), "NCHW"),
        dtype_parameter(*NUMBERS),
        accumulation_parameter("float32", "float64", "int32", "int64"),
        *epilogue_parameters(),
    ),
    examples=(
        {"batch": 1, "channels": 2, "height": 3, "width": 1, "filters": 1, "kernel_h": 4, "kernel_w": 2, "stride": 2},
        {**_SMALL, "kernel_h": 4, "kernel_w": 4, "stride": 2, "padding": 1, "dtype": "float32"},
        {**_SMALL, "kernel_h": 3, "kernel_w": 3, "stride": 2, "padding": 1, "output_padding": 1, "layout": "NHWC",
         "dtype": "bfloat16"},
        {**_SMALL, "kernel_h": 3, "kernel_w": 2, "bias": True, "activation": "relu", "dtype": "float16"},
        {**_SMALL, "kernel_h": 3, "kernel_w": 6, "stride": 3, "layout": "NHWC", "dtype": "int8"},
    ),
    build=_build,
    baseline=_numpy,
)  # fmt: skip
