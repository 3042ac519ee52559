"""Transposed convolution of images (what is called deconvolution): the convolution that a gradient takes.

Shapes by layout, with ``o`` filters, ``c`` channels, a kernel of ``r`` by ``s``, and groups ``g`` over 1 in brackets:

    NCHW: X[n, (g,) c/g, h, w], W[(g,) c/g, o/g, r, s], Y[n, (g,) o/g, y, x]
    NHWC: X[n, h, w, (g,) c/g], W[r, s, (g,) o/g, c/g], Y[n, y, x, (g,) o/g]

Where a stride of more than 1 divides height and width of Y, its rows are split into (y, a) with ``a`` below the stride,
and its columns into (x, b): Y[n, (g,) o/g, y, a, x, b], Y[n, y, a, x, b, (g,) o/g]. That moves no element, so an array
of the usual dimensions is reshaped for free; it keeps every index affine. Of the kernel's rows only every ``stride``-th
meets a row of Y; the sum over ``t`` (over ``u`` for columns) runs through them. A dilated kernel is one with zeros in
it.
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
from .operator import Operator, accumulation, accumulation_parameter, precision_parameter
from .padding import padded
from .parameter import NUMBERS, Choice, Integer, Parameter, Values, dtype_parameter


@dataclass(frozen=True, slots=True)
class _SpatialDim:
    """One spatial dimension; ``kernel``: its rows, those of a dilation included. With ``ahead`` and ``offset`` below,
    row ``stride*y + a`` of Y takes row ``y + ahead - t`` of X by row ``a + stride*t + offset`` of the kernel, for every
    t where there are both. Where Y is not ``split``, that row is counted from -padding, which makes both 0."""

    extent: int
    kernel: int
    stride: int
    padding: int
    output_padding: int
    split: bool = True

    @property
    def output(self) -> int:
        return (self.extent - 1) * self.stride - 2 * self.padding + self.kernel + self.output_padding

    @property
    def ahead(self) -> int:
        return -(-self.padding // self.stride) if self.split else 0

    @property
    def offset(self) -> int:
        return self.padding - self.stride * self.ahead if self.split else 0

    @property
    def taps(self) -> int:
        return -(-(self.kernel - self.offset) // self.stride)

    @property
    def border(self) -> tuple[int, int]:
        """Rows of nothing that are reached before and behind X."""
        first, last = (0, self.output - 1) if self.split else (self.padding, self.padding + self.output - 1)
        before = self.taps - 1 - self.ahead - first // self.stride
        return max(0, before), max(0, last // self.stride + self.ahead - self.extent + 1)

    @property
    def kernel_border(self) -> tuple[int, int]:
        """Rows of nothing that a + stride*t + offset reaches before and behind the kernel."""
        return -self.offset, self.stride * self.taps + self.offset - self.kernel

    def places(self, at: tuple[Expr, ...], tap: Expr) -> tuple[Expr, Expr]:
        """(row of X with its border, row of the kernel with its) for the indices of Y over this dimension."""
        y, a = at if self.split else ((at[0] + self.padding) // self.stride, (at[0] + self.padding) % self.stride)
        return y + (self.ahead + self.border[0]) - tap, a + tap * self.stride


@dataclass(frozen=True, slots=True)
class TransposedConvolutionSizes:
    """Everything the shapes are made of. ``first``: whether channels come first."""

    batch: int
    channels: int
    filters: int
    kernel: tuple[int, int]
    dilation: int
    groups: int
    first: bool
    rows: _SpatialDim
    columns: _SpatialDim

    @property
    def sides(self) -> tuple[_SpatialDim, _SpatialDim]:
        return self.rows, self.columns

    @property
    def group(self) -> tuple[int, ...]:
        """The dimension of groups, if there is one."""
        return (self.groups,) if self.groups > 1 else ()

    @property
    def spatial(self) -> tuple[int, int]:
        """The spatial dimensions of X."""
        return (2 + len(self.group), 3 + len(self.group)) if self.first else (1, 2)

    @property
    def extents(self) -> tuple[int, ...]:
        """The spatial extents of Y."""
        if not self.rows.split:
            return tuple(side.output for side in self.sides)
        return tuple(n for side in self.sides for n in (side.output // side.stride, side.stride))

    @property
    def filter_dims(self) -> tuple[int, ...]:
        """The dimensions of Y over its filters."""
        start = 1 if self.first else 1 + len(self.extents)
        return tuple(range(start, start + len(self.group) + 1))

    def image(self, channels: int, extents: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a batch of images with ``channels`` in all."""
        split = (*self.group, channels // self.groups)
        return (self.batch, *split, *extents) if self.first else (self.batch, *extents, *split)

    @property
    def weights(self) -> tuple[int, ...]:
        depth, filters = self.channels // self.groups, self.filters // self.groups
        return (
            (*self.group, depth, filters, *self.kernel) if self.first else (*self.kernel, *self.group, filters, depth)
        )


def _sizes(v: Values) -> TransposedConvolutionSizes:
    """As the parameters say, checked."""
    stride, padding, more = v.integer("stride"), v.integer("padding"), v.integer("output_padding")
    dilation, groups = v.integer("dilation"), v.integer("groups")
    if more >= max(stride, dilation):
        raise InvalidParameter(
            f"output_padding is {more}; allowed: less than stride or dilation, {max(stride, dilation)}",
            field="output_padding",
        )
    for name in ("channels", "filters"):
        if v.integer(name) % groups:
            raise InvalidParameter(
                f"groups is {groups}, which does not divide {name} {v.integer(name)}; allowed: what divides both",
                field="groups",
            )
    sides = []
    for extent, kernel in (("height", "kernel_h"), ("width", "kernel_w")):
        span = dilation * (v.integer(kernel) - 1) + 1
        side = _SpatialDim(v.integer(extent), span, stride, padding, more)
        if side.output < 1:
            raise InvalidParameter(
                f"padding is {padding}; allowed: what leaves a row of the {side.output + 2 * padding} there are",
                field="padding",
            )
        sides.append(side)
    if stride == 1 or any(side.output % stride for side in sides):
        sides = [_SpatialDim(s.extent, s.kernel, stride, padding, more, split=False) for s in sides]
    kernel_extents = (v.integer("kernel_h"), v.integer("kernel_w"))
    first = v.text("layout") == "NCHW"
    return TransposedConvolutionSizes(
        v.integer("batch"), v.integer("channels"), v.integer("filters"), kernel_extents, dilation, groups, first, *sides
    )


def _build(v: Values) -> Workload:
    s, dtype, epilogue = _sizes(v), v.text("dtype"), epilogue_of(v)
    x = placeholder(s.image(s.channels, (s.rows.extent, s.columns.extent)), dtype, "X")
    weights = placeholder(s.weights, dtype, "W")
    source = padded(x, {d: side.border for d, side in zip(s.spatial, s.sides, strict=True)})
    over = s.spatial if s.first else (0, 1)
    borders = {d: side.kernel_border for d, side in zip(over, s.sides, strict=True)}
    taps = padded(weights, borders, name="taps", steps=dict.fromkeys(over, s.dilation))
    c = reduce_axis(s.channels // s.groups, "c")
    t, u = reduce_axis(s.rows.taps, "t"), reduce_axis(s.columns.taps, "u")

    def terms(*at: Expr) -> Reduction:
        *group, o = (at[d] for d in s.filter_dims)
        places = [i for d, i in enumerate(at) if d and d not in s.filter_dims]
        half = len(places) // 2
        row, r = s.rows.places(tuple(places[:half]), t)
        column, q = s.columns.places(tuple(places[half:]), u)
        pixel = source[(at[0], *group, c, row, column) if s.first else (at[0], row, column, *group, c)]
        weight = taps[(*group, c, o, r, q) if s.first else (r, q, *group, o, c)]
        return sum(cast(pixel, epilogue.wide) * cast(weight, epilogue.wide), axis=(c, t, u))

    spatial, channels = ("y", "a", "x", "b") if s.rows.split else ("y", "x"), (*("g" for _ in s.group), "o")
    names = ("n", *channels, *spatial) if s.first else ("n", *spatial, *channels)
    total = compute(s.image(s.filters, s.extents), terms, "Y" if epilogue.is_nothing else "total", names)
    y, further = epilogue.apply(total, "Y", s.filter_dims)
    return workload(y, inputs=[x, weights, *further], precision=v.text("precision"))


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """Return one product for each group and element of the kernel, added where its pixels go."""
    s, wide, stride = _sizes(v), accumulation(v)[0], v.integer("stride")
    depth, filters = s.channels // s.groups, s.filters // s.groups
    height, width = s.rows.extent, s.columns.extent
    if s.first:
        x = inputs["X"].reshape(s.batch, s.groups, depth, -1).transpose(1, 0, 3, 2)
        weights = inputs["W"].reshape(s.groups, depth, filters, *s.kernel).transpose(3, 4, 0, 1, 2)
    else:
        x = inputs["X"].reshape(s.batch, -1, s.groups, depth).transpose(2, 0, 1, 3)
        weights = inputs["W"].reshape(*s.kernel, s.groups, filters, depth).transpose(0, 1, 2, 4, 3)
    pixels = np.ascontiguousarray(x).reshape(s.groups, -1, depth)
    tall, broad = (side.output + 2 * side.padding for side in s.sides)
    full = np.zeros((s.groups, s.batch, tall, broad, filters), wide.numpy)
    for r in range(s.kernel[0]):
        for q in range(s.kernel[1]):
            part = product(pixels, weights[r, q], wide).reshape(s.groups, s.batch, height, width, filters)
            place = full[:, :, r * s.dilation :: stride, q * s.dilation :: stride][:, :, :height, :width]
            place += part
    inside = (slice(side.padding, side.padding + side.output) for side in s.sides)
    y = full[(slice(None), slice(None), *inside)].transpose((1, 0, 4, 2, 3) if s.first else (1, 2, 3, 0, 4))
    shape = s.image(s.filters, s.extents)
    bias = [n if d in s.filter_dims else 1 for d, n in enumerate(shape)]
    return (epilogue_of(v).numpy(np.ascontiguousarray(y).reshape(shape), inputs, bias),)


_SMALL = {"batch": 1, "channels": 3, "height": 3, "width": 5, "filters": 2}

CONV2D_TRANSPOSE = Operator(
    name="conv2d_transpose",
    summary="Y[n, o, y*stride + r*dilation - padding, x*stride + s*dilation - padding] += X[n, c, y, x] * "
    "W[c, o, r, s], from 0; then + B[o], + R, activation",
    parameters=(
        Parameter("batch", "how many images", Integer()),
        Parameter("channels", "channels of X", Integer()),
        Parameter("height", "height of X", Integer()),
        Parameter("width", "width of X", Integer()),
        Parameter("filters", "channels of Y", Integer()),
        Parameter("kernel_h", "height of the kernel", Integer()),
        Parameter("kernel_w", "width of the kernel", Integer()),
        Parameter("stride", "pixels of Y between neighbours of X", Integer(), 1),
        Parameter("padding", "rows and columns dropped on every side of Y", Integer(0, 1 << 16), 0),
        Parameter("output_padding", "rows and columns added behind those of Y", Integer(0, 1 << 16), 0),
        Parameter("dilation", "pixels of Y between neighbours of the kernel", Integer(), 1),
        Parameter("groups", "parts that channels and filters are split into, each convolved alone", Integer(), 1),
        Parameter("layout", "whether channels stand second or last", Choice(("NCHW", "NHWC")), "NCHW"),
        dtype_parameter(*NUMBERS),
        accumulation_parameter("float32", "float64", "int32", "int64"),
        *epilogue_parameters(),
        precision_parameter("ieee", "tf32"),
    ),
    examples=(
        {"batch": 1, "channels": 2, "height": 3, "width": 1, "filters": 1, "kernel_h": 4, "kernel_w": 2, "stride": 2},
        {**_SMALL, "kernel_h": 4, "kernel_w": 4, "stride": 2, "padding": 1, "dtype": "float32"},
        {**_SMALL, "kernel_h": 3, "kernel_w": 3, "stride": 2, "padding": 1, "output_padding": 1, "layout": "NHWC",
         "dtype": "bfloat16"},
        {**_SMALL, "kernel_h": 3, "kernel_w": 2, "bias": True, "activation": "relu", "dtype": "float16"},
        {**_SMALL, "kernel_h": 3, "kernel_w": 6, "stride": 3, "layout": "NHWC", "dtype": "int8"},
        {**_SMALL, "kernel_h": 3, "kernel_w": 3, "stride": 2, "padding": 1, "bias": True, "dtype": "float32"},
        {**_SMALL, "channels": 4, "groups": 2, "kernel_h": 2, "kernel_w": 3, "stride": 3, "dilation": 2,
         "output_padding": 2, "layout": "NHWC", "dtype": "float64"},
        {**_SMALL, "channels": 2, "groups": 2, "kernel_h": 3, "kernel_w": 1, "dilation": 2, "dtype": "uint8"},
    ),
    build=_build,
    baseline=_numpy,
)  # fmt: skip
