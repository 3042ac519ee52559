"""Normalisations over the channels of images: batch norm with known statistics, and group norm."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InvalidParameter
from ...ir.expr import Expr
from ..build import Reduction, Tensor, absolute, cast, compute, placeholder, reduce_axis, rsqrt, sum, workload
from ..limits import MAX_RANK
from ..workload import Workload
from .maps import ACTIVATIONS, MAPS
from .operator import Operator, accumulation, accumulation_parameter, accumulator, widened
from .parameter import FLOATS, Choice, Flag, Integer, ListOf, Number, Parameter, Values, dtype_parameter

_EPSILON = Parameter("epsilon", "added to the variance before the root", Number(1e-12, 1.0), 1e-5)


def _channel_axis(v: Values) -> int:
    shape, axis = v.integers("shape"), v.integer("axis")
    if axis >= len(shape):
        raise InvalidParameter(f"axis is {axis}; allowed: 0 to {len(shape) - 1}, the dimensions of shape", field="axis")
    return axis


def _batch_norm(v: Values) -> Workload:
    shape, axis, dtype, activation = v.integers("shape"), _channel_axis(v), v.text("dtype"), v.text("activation")
    wide = accumulator(dtype)
    x = placeholder(shape, dtype, "X")
    mean, variance, *affine = (
        placeholder((shape[axis],), dtype, n) for n in ("M", "V", *(("G", "B") if v.flag("affine") else ()))
    )
    scale = compute((shape[axis],), lambda c: _scale(cast(variance[c], wide), v, affine, c), "scale")

    def value(*at: Expr) -> Expr:
        c = at[axis]
        e = (cast(x[at], wide) - cast(mean[c], wide)) * scale[c]
        return e + cast(affine[1][c], wide) if affine else e

    def body(*at: Expr) -> Expr:
        return cast(value(*at) if activation == "none" else MAPS[activation].expr(normed(*at)), dtype)

    normed = value
    if activation != "none" and MAPS[activation].uses > 1:
        stored = compute(shape, value, "normed")  # used several times: worth a tensor

        def normed(*at: Expr) -> Expr:
            return stored[at]

    return workload(compute(shape, body, "Y"), inputs=[x, mean, variance, *affine])


def _scale(variance: Expr, v: Values, affine: list[Tensor], channel: Expr) -> Expr:
    """Return what a channel is multiplied by. A variance has no sign; random inputs do, and the magnitude is taken."""
    e = rsqrt(absolute(variance) + v.number("epsilon"))
    return e * cast(affine[0][channel], variance.dtype) if affine else e


def _batch_norm_numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    x, axis = widened(inputs["X"]), _channel_axis(v)
    shape = [n if d == axis else 1 for d, n in enumerate(x.shape)]
    scale = 1.0 / np.sqrt(np.abs(widened(inputs["V"])) + x.dtype.type(v.number("epsilon")))
    if v.flag("affine"):
        scale *= widened(inputs["G"])
    y = x - widened(inputs["M"]).reshape(shape)
    y *= scale.reshape(shape)
    if v.flag("affine"):
        y += widened(inputs["B"]).reshape(shape)
    if v.text("activation") != "none":
        y = MAPS[v.text("activation")].numpy(y)
    return (y.astype(inputs["X"].dtype, copy=False),)


def _group_norm(v: Values) -> Workload:
    batch, groups, pixels, dtype, wide = (
        v.integer("batch"), v.integer("groups"), v.integer("pixels"), v.text("dtype"), accumulation(v)[0]
    )  # fmt: skip
    depth, first = _depth(v), v.text("layout") == "NCHW"
    x = placeholder((batch, groups, depth, pixels) if first else (batch, pixels, groups, depth), dtype, "X")
    affine = [placeholder((groups, depth), dtype, n) for n in ("G", "B")] if v.flag("affine") else []
    share = 1.0 / (depth * pixels)

    def element(n: Expr, g: Expr, c: Expr, p: Expr) -> Expr:
        return cast(x[n, g, c, p] if first else x[n, p, g, c], wide)

    c, p = reduce_axis(depth, "c"), reduce_axis(pixels, "p")
    total = compute((batch, groups), lambda n, g: sum(element(n, g, c, p), axis=(c, p)), "total")

    def centred(n: Expr, g: Expr, c: Expr, p: Expr) -> Expr:
        return element(n, g, c, p) - total[n, g] * share

    c2, p2 = reduce_axis(depth, "c"), reduce_axis(pixels, "p")

    def squares(n: Expr, g: Expr) -> Reduction:
        return sum(centred(n, g, c2, p2) * centred(n, g, c2, p2), axis=(c2, p2))

    square = compute((batch, groups), squares, "square")

    def body(n: Expr, g: Expr, c: Expr, p: Expr) -> Expr:
        e = centred(n, g, c, p) * rsqrt(square[n, g] * share + v.number("epsilon"))
        if affine:
            e = e * cast(affine[0][g, c], wide) + cast(affine[1][g, c], wide)
        return cast(e, dtype)

    if first:
        y = compute(x.shape, lambda n, g, c, p: body(n, g, c, p), "Y")
    else:
        y = compute(x.shape, lambda n, p, g, c: body(n, g, c, p), "Y")
    return workload(y, inputs=[x, *affine])


def _depth(v: Values) -> int:
    """Channels of a group."""
    channels, groups = v.integer("channels"), v.integer("groups")
    if channels % groups:
        raise InvalidParameter(f"groups is {groups}; allowed: what divides channels, {channels}", field="groups")
    return channels // groups


def _group_norm_numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    x, first = widened(inputs["X"]), v.text("layout") == "NCHW"
    over, wide = (2, 3) if first else (1, 3), accumulation(v)[0].numpy
    y = x - x.mean(axis=over, keepdims=True, dtype=wide)
    variance = np.mean(y * y, axis=over, keepdims=True, dtype=wide)
    y *= 1.0 / np.sqrt(variance + y.dtype.type(v.number("epsilon")))
    if v.flag("affine"):
        scale, shift = (widened(inputs[n]) for n in ("G", "B"))
        y *= scale[:, :, None] if first else scale
        y += shift[:, :, None] if first else shift
    return (y.astype(inputs["X"].dtype, copy=False),)


BATCH_NORM = Operator(
    name="batch_norm",
    summary="Y = activation((X - M) / sqrt(|V| + epsilon) * G + B), with M, V, G and B of one element per channel: "
    "inference, with mean M and variance V known",
    parameters=(
        Parameter("shape", "extents of X", ListOf(Integer())),
        Parameter("axis", "the dimension of X that is the channels, counted from 0", Integer(0, MAX_RANK - 1), 1),
        dtype_parameter(*FLOATS),
        _EPSILON,
        Parameter("affine", "whether there are G and B", Flag(), True),
        Parameter("activation", "what is applied last", Choice(ACTIVATIONS), "none"),
    ),
    examples=(
        {"shape": [2, 5, 3, 7]},
        {"shape": [3, 7, 11], "axis": 2, "activation": "relu"},
        {"shape": [1], "axis": 0, "affine": False},
        {"shape": [5, 13], "activation": "gelu_tanh", "dtype": "float16"},
    ),
    build=_batch_norm,
    baseline=_batch_norm_numpy,
)

GROUP_NORM = Operator(
    name="group_norm",
    summary="Y = (X - mean of the group) / sqrt(variance of the group + epsilon) * G + B, a group being some channels "
    "of one image. NCHW: X[n, g, c, p]; NHWC: X[n, p, g, c]; G[g, c], B[g, c]; c counts channels of group g, p pixels",
    parameters=(
        Parameter("batch", "how many images", Integer()),
        Parameter("channels", "channels of X", Integer()),
        Parameter("pixels", "pixels of an image: height times width", Integer()),
        Parameter("groups", "groups of channels: 1 for all together, channels for instance norm", Integer()),
        Parameter("layout", "whether channels stand second or last", Choice(("NCHW", "NHWC")), "NCHW"),
        dtype_parameter(*FLOATS),
        accumulation_parameter("float32", "float64"),
        _EPSILON,
        Parameter("affine", "whether there are G and B, of one element per channel", Flag(), True),
    ),
    examples=(
        {"batch": 2, "channels": 6, "pixels": 35, "groups": 3},
        {"batch": 1, "channels": 10, "pixels": 13, "groups": 2, "layout": "NHWC"},
        {"batch": 3, "channels": 1, "pixels": 1, "groups": 1, "affine": False},
        {"batch": 1, "channels": 4, "pixels": 17, "groups": 1, "accumulate": "float64", "dtype": "float16"},
    ),
    build=_group_norm,
    baseline=_group_norm_numpy,
)
