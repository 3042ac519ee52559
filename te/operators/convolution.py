"""Convolutions (cross-correlations, as in deep learning) over one, two and three dimensions.

Shapes by layout, with ``o`` filters, ``c`` channels, a kernel of ``r`` by ``s``, and groups ``g`` over 1 in brackets:

    NCHW: X[n, (g,) c/g, h, w], W[(g,) o/g, c/g, r, s], Y[n, (g,) o/g, y, x]
    NHWC: X[n, h, w, (g,) c/g], W[r, s, c/g, (g,) o/g], Y[n, y, x, (g,) o/g]
          with filters_first W[(g,) o/g, r, s, c/g]

and likewise with one spatial dimension (NCW, NWC) and three (NCDHW, NDHWC). Splitting channels into (group, channel of
the group) moves no element, so arrays of the usual dimensions are reshaped for free; it keeps every index affine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ...core.errors import InvalidParameter
from ...ir.expr import Expr
from ..build import Reduction, cast, compute, placeholder, reduce_axis, sum, workload
from ..workload import Workload
from .epilogue import epilogue_of, epilogue_parameters
from .matmul import product
from .operator import Operator, accumulation, accumulation_parameter, constant_parameter, precision_parameter
from .padding import padded
from .parameter import NUMBERS, Choice, Flag, Integer, Parameter, Values, dtype_parameter


@dataclass(frozen=True, slots=True)
class _Form:
    """A convolution of so many dimensions: what its parameters are called, its layouts (channels first, then last)."""

    extents: tuple[str, ...]
    kernels: tuple[str, ...]
    layouts: tuple[str, str]

    @property
    def rank(self) -> int:
        return len(self.extents)


_FORMS = (
    _Form(("length",), ("kernel",), ("NCW", "NWC")),
    _Form(("height", "width"), ("kernel_h", "kernel_w"), ("NCHW", "NHWC")),
    _Form(("depth", "height", "width"), ("kernel_d", "kernel_h", "kernel_w"), ("NCDHW", "NDHWC")),
)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Everything the shapes are made of."""

    batch: int
    channels: int
    extents: tuple[int, ...]
    filters: int
    kernels: tuple[int, ...]
    stride: int
    padding: int
    dilation: int
    groups: int
    first: bool
    """Whether channels come first."""
    filters_first: bool
    """Whether channels come last, but filters come first in W."""

    @property
    def group(self) -> tuple[int, ...]:
        """The dimension of groups, if there is one."""
        return (self.groups,) if self.groups > 1 else ()

    @property
    def spans(self) -> tuple[int, ...]:
        """What the kernel covers of X."""
        return tuple(self.dilation * (kernel - 1) + 1 for kernel in self.kernels)

    @property
    def output(self) -> tuple[int, ...]:
        """The spatial extents of Y."""
        return tuple(
            (extent + 2 * self.padding - span) // self.stride + 1
            for extent, span in zip(self.extents, self.spans, strict=True)
        )

    @property
    def spatial(self) -> range:
        """The spatial dimensions of X and Y."""
        start = 2 + len(self.group) if self.first else 1
        return range(start, start + len(self.extents))

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
        if self.first:
            return (*self.group, filters, depth, *self.kernels)
        if self.filters_first:
            return (*self.group, filters, *self.kernels, depth)
        return (*self.kernels, depth, *self.group, filters)


def _sizes(form: _Form, v: Values) -> _Sizes:
    s = _Sizes(
        batch=v.integer("batch"),
        channels=v.integer("channels"),
        extents=tuple(v.integer(n) for n in form.extents),
        filters=v.integer("filters"),
        kernels=tuple(v.integer(n) for n in form.kernels),
        stride=v.integer("stride"),
        padding=v.integer("padding"),
        dilation=v.integer("dilation"),
        groups=v.integer("groups"),
        first=v.text("layout") == form.layouts[0],
        filters_first=v.flag("filters_first"),
    )
    if s.first and s.filters_first:
        raise InvalidParameter(
            f"filters_first is true in the layout {form.layouts[0]}; allowed: only in {form.layouts[1]}",
            field="filters_first",
        )
    for name, count in (("channels", s.channels), ("filters", s.filters)):
        if count % s.groups:
            raise InvalidParameter(
                f"groups is {s.groups}, which does not divide {name} {count}; allowed: what divides both",
                field="groups",
            )
    for name, size, kernel, span, extent in zip(form.kernels, s.output, s.kernels, s.spans, s.extents, strict=True):
        if size < 1:
            raise InvalidParameter(
                f"{name} is {kernel}: at dilation {s.dilation} that spans {span}; "
                f"allowed: a span of at most {extent + 2 * s.padding}, the padded image",
                field=name,
            )
    return s


def _build(form: _Form, v: Values) -> Workload:
    s, dtype, epilogue = _sizes(form, v), v.text("dtype"), epilogue_of(v)
    x = placeholder(s.image(s.channels, s.extents), dtype, "X")
    weights = placeholder(s.weights, dtype, "W")
    image = padded(x, dict.fromkeys(s.spatial, (s.padding, s.padding)))
    c = reduce_axis(s.channels // s.groups, "c")
    taps = tuple(reduce_axis(k, n) for k, n in zip(s.kernels, ("q", "r", "s")[-form.rank :], strict=True))

    def terms(*at: Expr) -> Reduction:
        pixels = tuple(at[d] * s.stride + tap * s.dilation for d, tap in zip(s.spatial, taps, strict=True))
        *group, o = (at[d] for d in s.filter_dims)
        if s.first:
            pixel, weight = image[(at[0], *group, c, *pixels)], weights[(*group, o, c, *taps)]
        else:
            place = (*group, o, *taps, c) if s.filters_first else (*taps, c, *group, o)
            pixel, weight = image[(at[0], *pixels, *group, c)], weights[place]
        return sum(cast(pixel, epilogue.wide) * cast(weight, epilogue.wide), axis=(c, *taps))

    places, channels = ("z", "y", "x")[-form.rank :], (*("g" for _ in s.group), "o")
    names = ("n", *channels, *places) if s.first else ("n", *places, *channels)
    total = compute(s.image(s.filters, s.output), terms, "Y" if epilogue.is_nothing else "total", names)
    y, further = epilogue.apply(total, "Y", s.filter_dims)
    constants = [weights] if v.flag("constant_weights") else []
    return workload(y, inputs=[x, weights, *further], constants=constants, precision=v.text("precision"))


def _numpy(form: _Form, v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """Windows laid out as a matrix (no copy for a kernel of one element without stride), then one product per group."""
    s, wide, rank = _sizes(form, v), accumulation(v)[0], form.rank
    x, weights = inputs["X"], inputs["W"]
    if s.padding:
        x = np.pad(x, [(s.padding,) * 2 if d in s.spatial else (0, 0) for d in range(x.ndim)])
    windows = sliding_window_view(x, s.spans, axis=tuple(s.spatial))
    steps = [slice(None)] * x.ndim + [slice(None, None, s.dilation)] * rank
    for d in s.spatial:
        steps[d] = slice(None, None, s.stride)
    windows = windows[tuple(steps)]
    depth, filters, pixels = s.channels // s.groups, s.filters // s.groups, prod(s.output)
    shape = s.image(s.filters, s.output)
    if s.first:
        windows = windows.reshape(s.batch, s.groups, depth, *s.output, *s.kernels)
        inner, outer = range(3 + rank, 3 + 2 * rank), range(3, 3 + rank)
        columns = windows.transpose(0, 1, 2, *inner, *outer).reshape(s.batch, s.groups, -1, pixels)
        y = product(weights.reshape(s.groups, filters, -1), columns, wide)
    else:
        windows = windows.reshape(s.batch, *s.output, s.groups, depth, *s.kernels)
        outer, inner = range(1, 1 + rank), range(3 + rank, 3 + 2 * rank)
        rows = windows.transpose(1 + rank, 0, *outer, *inner, 2 + rank).reshape(s.groups, s.batch * pixels, -1)
        if s.filters_first:
            matrices = weights.reshape(s.groups, filters, -1).transpose(0, 2, 1)
        else:
            matrices = weights.reshape(-1, s.groups, filters).transpose(1, 0, 2)
        y = product(rows, matrices, wide).transpose(1, 0, 2)
    bias = [n if d in s.filter_dims else 1 for d, n in enumerate(shape)]
    return (epilogue_of(v).numpy(np.ascontiguousarray(y).reshape(shape), inputs, bias),)


def _operator(form: _Form, summary: str, examples: tuple[Mapping[str, object], ...]) -> Operator:
    image = "pixels" if form.rank > 1 else "elements"
    return Operator(
        name=f"conv{form.rank}d",
        summary=summary,
        parameters=(
            Parameter("batch", "how many images", Integer()),
            Parameter("channels", "channels of X", Integer()),
            *(Parameter(n, f"{n} of X", Integer()) for n in form.extents),
            Parameter("filters", "channels of Y", Integer()),
            *(Parameter(k, f"{e} of the kernel", Integer()) for k, e in zip(form.kernels, form.extents, strict=True)),
            Parameter("stride", f"{image} of X between neighbours of Y", Integer(), 1),
            Parameter("padding", "zeros added on every side of X", Integer(0, 1 << 16), 0),
            Parameter("dilation", f"{image} of X between neighbours of the kernel", Integer(), 1),
            Parameter("groups", "parts that channels and filters are split into, each convolved alone", Integer(), 1),
            Parameter("layout", "whether channels stand second or last", Choice(form.layouts), form.layouts[0]),
            dtype_parameter(*NUMBERS),
            accumulation_parameter("float32", "float64", "int32", "int64"),
            *epilogue_parameters(),
            constant_parameter("W"),
            Parameter("filters_first", "with channels last, whether W is [(g,) o/g, …, c/g]", Flag(), False),
            precision_parameter("ieee", "tf32"),
        ),
        examples=examples,
        build=lambda v: _build(form, v),
        baseline=lambda v, inputs: _numpy(form, v, inputs),
    )


_LINE = {"batch": 1, "channels": 3, "length": 13, "filters": 5, "kernel": 3}

CONV1D = _operator(
    _FORMS[0],
    "Y[n, o, x] = activation(sum over c, s of X[n, c, x*stride + s*dilation] * W[o, c, s] + B[o] + R[n, o, x])",
    (
        {**_LINE, "padding": 1},
        {**_LINE, "layout": "NWC", "stride": 2, "bias": True, "dtype": "float16"},
        {**_LINE, "channels": 4, "filters": 6, "groups": 2, "dilation": 2, "dtype": "float32"},
        {"batch": 1, "channels": 1, "length": 1, "filters": 1, "kernel": 1, "dtype": "bfloat16"},
    ),
)

_SMALL = {"batch": 1, "channels": 3, "height": 7, "width": 11, "filters": 5, "kernel_h": 3, "kernel_w": 2}

CONV2D = _operator(
    _FORMS[1],
    "Y[n, o, y, x] = activation(sum over c, r, s of X[n, c, y*stride + r*dilation, x*stride + s*dilation] * "
    "W[o, c, r, s] + B[o] + R[n, o, y, x])",
    (
        {**_SMALL, "padding": 1},
        {**_SMALL, "layout": "NHWC", "stride": 2},
        {**_SMALL, "kernel_h": 1, "kernel_w": 1, "batch": 2},
        {**_SMALL, "groups": 2, "filters": 4, "channels": 6, "padding": 2, "dilation": 2},
        {**_SMALL, "groups": 2, "filters": 2, "channels": 2, "layout": "NHWC", "padding": 1, "stride": 3},
        {"batch": 1, "channels": 1, "height": 1, "width": 1, "filters": 1, "kernel_h": 1, "kernel_w": 1},
        {**_SMALL, "padding": 1, "bias": True, "residual": True, "activation": "relu", "dtype": "float32"},
        {**_SMALL, "groups": 3, "filters": 3, "layout": "NHWC", "bias": True, "activation": "silu", "dtype": "float16"},
        {**_SMALL, "layout": "NHWC", "filters_first": True, "precision": "tf32", "dtype": "float32", "padding": 1},
        {**_SMALL, "groups": 3, "filters": 6, "layout": "NHWC", "filters_first": True, "stride": 2},
    ),
)

_BLOCK = {"batch": 1, "channels": 2, "depth": 5, "height": 3, "width": 7, "filters": 3}

CONV3D = _operator(
    _FORMS[2],
    "Y[n, o, z, y, x] = activation(sum over c, q, r, s of X[n, c, z*stride + q*dilation, y*stride + r*dilation, "
    "x*stride + s*dilation] * W[o, c, q, r, s] + B[o] + R[n, o, z, y, x])",
    (
        {"batch": 1, "channels": 2, "depth": 3, "height": 1, "width": 5, "filters": 1,
         "kernel_d": 2, "kernel_h": 1, "kernel_w": 3},
        {**_BLOCK, "kernel_d": 2, "kernel_h": 3, "kernel_w": 3, "dtype": "float64"},
        {**_BLOCK, "kernel_d": 3, "kernel_h": 1, "kernel_w": 2, "padding": 1, "stride": 2, "dtype": "float32"},
        {**_BLOCK, "kernel_d": 1, "kernel_h": 2, "kernel_w": 3, "layout": "NDHWC", "bias": True, "dtype": "float16"},
    ),
)  # fmt: skip
