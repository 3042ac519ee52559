"""Normalisations of ATen."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.dtypes import float64
from ...graph.graph import Value
from .rule import Emitter, cast, need, number, reshape, rule


def _scaled(b: Emitter, y: Value, weight: Value | None, bias: Value | None) -> Value:
    y = y if weight is None else b.node("mul", y, weight)
    return y if bias is None else b.node("add", y, bias)


@rule("native_layer_norm.default")
def _layer_norm(b: Emitter, x: Value, shape: Sequence[int], weight: Any, bias: Any, epsilon: float) -> Value:
    given = [cast(b, w, x.dtype) for w in (weight, bias) if w is not None]
    if weight is None and bias is not None:
        return _scaled(b, b.node("layer_norm", x, dims=len(shape), epsilon=epsilon), None, given[0])
    return b.node("layer_norm", x, *given, dims=len(shape), epsilon=epsilon)


@rule("_fused_rms_norm.default", "rms_norm.default")
def _rms_norm(b: Emitter, x: Value, shape: Sequence[int], weight: Any = None, epsilon: Any = None) -> Value:
    """Without an epsilon torch takes that of the type in which it computes, which is float32 for shorter floats."""
    if epsilon is None:
        epsilon = float(np.finfo(np.float64 if x.dtype == float64 else np.float32).eps)
    given = [] if weight is None else [cast(b, weight, x.dtype)]
    return b.node("rms_norm", x, *given, dims=len(shape), epsilon=epsilon)


@rule("native_group_norm.default")
def _group_norm(b: Emitter, x: Value, weight: Any, bias: Any, n: int, c: int, hw: int, groups: int,
                epsilon: float) -> Value:  # fmt: skip
    if weight is None and bias is None:
        return b.node("group_norm", x, groups=groups, epsilon=epsilon)
    given = [_vector(b, weight, 1.0, x, (c,)), _vector(b, bias, 0.0, x, (c,))]
    return b.node("group_norm", x, *given, groups=groups, epsilon=epsilon)


def _vector(b: Emitter, given: Value | None, value: float, x: Value, shape: Sequence[int]) -> Value:
    """Return a weight or a bias, or the number that stands for one that is not given."""
    if given is not None:
        return cast(b, given, x.dtype)
    return b.node("expand", number(b, value, x.dtype), shape=tuple(shape))


@rule("_native_batch_norm_legit_no_training.default")
def _batch_norm(b: Emitter, x: Value, weight: Any, bias: Any, mean: Value, variance: Value, momentum: float,
                epsilon: float) -> Value:  # fmt: skip
    own = [_vector(b, weight, 1.0, x, mean.shape), _vector(b, bias, 0.0, x, mean.shape)]
    return b.node("batch_norm", x, *own, cast(b, mean, x.dtype), cast(b, variance, x.dtype), epsilon=epsilon)


@rule("_native_batch_norm_legit.no_stats")
def _batch_norm_of_batch(b: Emitter, x: Value, weight: Any, bias: Any, training: bool, momentum: float,
                         epsilon: float) -> Value:  # fmt: skip
    if x.shape[0] == 1:  # an instance norm, for which torch makes one image of all
        y = b.node("group_norm", x, groups=x.shape[1], epsilon=epsilon)
        columns = (x.shape[1], *[1] * (len(x.shape) - 2))
        given = [None if w is None else reshape(b, cast(b, w, x.dtype), columns) for w in (weight, bias)]
        return _scaled(b, y, *given)
    mean, variance = _statistics(b, x)
    return _batch_norm(b, x, weight, bias, mean, variance, momentum, epsilon)


@rule("_native_batch_norm_legit_functional.default")
def _batch_norm_training(b: Emitter, x: Value, weight: Any, bias: Any, mean: Value, variance: Value, training: bool,
                         momentum: float, epsilon: float) -> Sequence[Value]:  # fmt: skip
    need(training and mean.dtype == x.dtype, "another form of batch norm")
    own, spread = _statistics(b, x)
    count = x.elements // x.shape[1]
    need(count > 1, "one element a channel")

    def moved(old: Value, new: Value, factor: float) -> Value:
        kept = b.node("mul", old, number(b, 1.0 - momentum, old.dtype))
        return b.node("add", kept, b.node("mul", new, number(b, momentum * factor, old.dtype)))

    result = _batch_norm(b, x, weight, bias, own, spread, momentum, epsilon)
    inverse = b.node("rsqrt", b.node("add", spread, number(b, epsilon, x.dtype)))
    return [result, own, inverse, moved(mean, own, 1.0), moved(variance, spread, count / (count - 1))]


def _statistics(b: Emitter, x: Value) -> tuple[Value, Value]:
    """Return the mean and the variance of each channel."""
    dims = (0, *range(2, len(x.shape)))
    return b.node("mean", x, dims=dims), b.node("variance", x, dims=dims, correction=0)
