"""Two-dimensional convolution (cross-correlation, as in deep learning).

Shapes by layout, with ``o`` filters, ``c`` channels, a kernel of ``r`` by ``s``, and groups ``g`` over 1 in brackets:

    NCHW: X[n, (g,) c/g, h, w], W[(g,) o/g, c/g, r, s], Y[n, (g,) o/g, y, x]
    NHWC: X[n, h, w, (g,) c/g], W[r, s, c/g, (g,) o/g], Y[n, y, x, (g,) o/g]

Splitting channels into (group, channel of the group) moves no element, so arrays of the usual four dimensions are
reshaped for free; it keeps every index affine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ...core.errors import InvalidParameter
from ...ir.expr import Expr
from ..build import Reduction, cast, compute, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .matmul import product, returned
from .operator import Operator, accumulator, result_dtype
from .padding import padded
from .parameter import NUMBERS, Choice, Integer, Parameter, Values, dtype_parameter


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Everything the shapes are made of."""

    batch: int
    channels: int
    height: int
    width: int
    filters: int
    kernel_h: int
    kernel_w: int
    stride: int
    padding: int
    dilation: int
    groups: int
    first: bool
    """Whether channels come first (NCHW)."""

    @property
    def group(self) -> tuple[int, ...]:
        """The dimension of groups, if there is one."""
        return (self.groups,) if self.groups > 1 else ()

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of Y."""
        return (
            (self.height + 2 * self.padding - self.dilation * (self.kernel_h - 1) - 1) // self.stride + 1,
            (self.width + 2 * self.padding - self.dilation * (self.kernel_w - 1) - 1) // self.stride + 1,
        )

    def image(self, channels: int, height: int, width: int) -> tuple[int, ...]:
        """The shape of a batch of images with ``channels`` in all."""
        split = (*self.group, channels // self.groups)
        return (self.batch, *split, height, width) if self.first else (self.batch, height, width, *split)

    @property
    def weights(self) -> tuple[int, ...]:
        depth, filters = self.channels // self.groups, self.filters // self.groups
        if self.first:
            return (*self.group, filters, depth, self.kernel_h, self.kernel_w)
        return (self.kernel_h, self.kernel_w, depth, *self.group, filters)


def _sizes(v: Values) -> _Sizes:
    s = _Sizes(
        batch=v.integer("batch"),
        channels=v.integer("channels"),
        height=v.integer("height"),
        width=v.integer("width"),
        filters=v.integer("filters"),
        kernel_h=v.integer("kernel_h"),
        kernel_w=v.integer("kernel_w"),
        stride=v.integer("stride"),
        padding=v.integer("padding"),
        dilation=v.integer("dilation"),
        groups=v.integer("groups"),
        first=v.text("layout") == "NCHW",
    )
    for name, count in (("channels", s.channels), ("filters", s.filters)):
        if count % s.groups:
            raise InvalidParameter(
                f"groups is {s.groups}, which does not divide {name} {count}; allowed: what divides both",
                field="groups",
            )
    for name, size, kernel, extent in (
        ("kernel_h", s.output[0], s.kernel_h, s.height),
        ("kernel_w", s.output[1], s.kernel_w, s.width),
    ):
        if size < 1:
            raise InvalidParameter(
                f"{name} is {kernel}: at dilation {s.dilation} that spans {s.dilation * (kernel - 1) + 1}; "
                f"allowed: a span of at most {extent + 2 * s.padding}, the padded image",
                field=name,
            )
    return s


def _build(v: Values) -> Workload:
    s, dtype = _sizes(v), v.text("dtype")
    x = placeholder(s.image(s.channels, s.height, s.width), dtype, "X")
    weights = placeholder(s.weights, dtype, "W")
    row = len(x.shape) - 2 if s.first else 1
    image = padded(x, {row: s.padding, row + 1: s.padding}) if s.padding else x
    wide = accumulator(dtype)
    c = reduce_axis(s.channels // s.groups, "c")
    r, q = reduce_axis(s.kernel_h, "r"), reduce_axis(s.kernel_w, "s")

    def terms(group: tuple[Expr, ...], n: Expr, o: Expr, y: Expr, z: Expr) -> Reduction:
        row, column = y * s.stride + r * s.dilation, z * s.stride + q * s.dilation
        if s.first:
            pixel, weight = image[(n, *group, c, row, column)], weights[(*group, o, c, r, q)]
        else:
            pixel, weight = image[(n, row, column, *group, c)], weights[(r, q, c, *group, o)]
        return sum(cast(pixel, wide) * cast(weight, wide), axis=(c, r, q))

    shape = s.image(s.filters, *s.output)
    name = "Y" if result_dtype(dtype) == wide else "total"
    if s.groups == 1 and s.first:
        total = compute(shape, lambda n, o, y, x: terms((), n, o, y, x), name)
    elif s.groups == 1:
        total = compute(shape, lambda n, y, x, o: terms((), n, o, y, x), name)
    elif s.first:
        total = compute(shape, lambda n, g, o, y, x: terms((g,), n, o, y, x), name)
    else:
        total = compute(shape, lambda n, y, x, g, o: terms((g,), n, o, y, x), name)
    return workload(returned(total, dtype, "Y"), inputs=[x, weights])


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """Windows laid out as a matrix (no copy for a 1x1 kernel without stride), then one product per group."""
    s, dtype = _sizes(v), v.text("dtype")
    x, weights = inputs["X"], inputs["W"]
    row = x.ndim - 2 if s.first else 1
    if s.padding:
        x = np.pad(x, [(s.padding,) * 2 if d in (row, row + 1) else (0, 0) for d in range(x.ndim)])
    span = (s.dilation * (s.kernel_h - 1) + 1, s.dilation * (s.kernel_w - 1) + 1)
    windows = sliding_window_view(x, span, axis=(row, row + 1))[..., :: s.dilation, :: s.dilation]
    depth, filters, (height, width) = s.channels // s.groups, s.filters // s.groups, s.output
    if s.first:
        windows = windows[..., :: s.stride, :: s.stride, :, :]
        windows = windows.reshape(s.batch, s.groups, depth, height, width, s.kernel_h, s.kernel_w)
        columns = windows.transpose(0, 1, 2, 5, 6, 3, 4).reshape(s.batch, s.groups, -1, height * width)
        y = product(weights.reshape(s.groups, filters, -1), columns, dtype)
        return (y.reshape(s.image(s.filters, height, width)),)
    windows = windows[:, :: s.stride, :: s.stride]
    windows = windows.reshape(s.batch, height, width, s.groups, depth, s.kernel_h, s.kernel_w)
    pixels = windows.transpose(3, 0, 1, 2, 5, 6, 4).reshape(s.groups, s.batch * height * width, -1)
    kernels = weights.reshape(-1, s.groups, filters).transpose(1, 0, 2)
    y = product(pixels, kernels, dtype).transpose(1, 0, 2)
    return (np.ascontiguousarray(y).reshape(s.image(s.filters, height, width)),)


_SMALL = {"batch": 1, "channels": 3, "height": 7, "width": 11, "filters": 5, "kernel_h": 3, "kernel_w": 2}

CONV2D = Operator(
    name="conv2d",
    summary="Y[n, o, y, x] = sum over c, r, s of X[n, c, y*stride + r*dilation, x*stride + s*dilation] * W[o, c, r, s]",
    parameters=(
        Parameter("batch", "how many images", Integer()),
        Parameter("channels", "channels of X", Integer()),
        Parameter("height", "height of X", Integer()),
        Parameter("width", "width of X", Integer()),
        Parameter("filters", "channels of Y", Integer()),
        Parameter("kernel_h", "height of the kernel", Integer()),
        Parameter("kernel_w", "width of the kernel", Integer()),
        Parameter("stride", "pixels of X between neighbours of Y", Integer(), 1),
        Parameter("padding", "zeros added on every side of X", Integer(0, 1 << 16), 0),
        Parameter("dilation", "pixels of X between neighbours of the kernel", Integer(), 1),
        Parameter("groups", "parts that channels and filters are split into, each convolved alone", Integer(), 1),
        Parameter("layout", "whether channels stand second or last", Choice(("NCHW", "NHWC")), "NCHW"),
        dtype_parameter(*NUMBERS),
    ),
    examples=(
        {**_SMALL, "padding": 1},
        {**_SMALL, "layout": "NHWC", "stride": 2},
        {**_SMALL, "kernel_h": 1, "kernel_w": 1, "batch": 2},
        {**_SMALL, "groups": 2, "filters": 4, "channels": 6, "padding": 2, "dilation": 2},
        {**_SMALL, "groups": 2, "filters": 2, "channels": 2, "layout": "NHWC", "padding": 1, "stride": 3},
        {"batch": 1, "channels": 1, "height": 1, "width": 1, "filters": 1, "kernel_h": 1, "kernel_w": 1},
    ),
    build=_build,
    baseline=_numpy,
)
