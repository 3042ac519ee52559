"""Operators of ATen that combine elements."""

import math
from collections.abc import Sequence
from typing import Any

from ...core.dtypes import DTYPES
from ...graph.graph import Value
from .pointwise import truth
from .rule import RULES, Emitter, Rule, cast, dims_of, need, number, reshape, rule


def _ordered(b: Emitter, x: Value) -> Value:
    """Return ``x`` as reductions take it, which have no greatest or least truth value."""
    return cast(b, x, DTYPES["int32"]) if x.dtype.is_bool else x


def _reduce(op: str) -> Rule:
    def apply(b: Emitter, x: Value, dims: Any = None, keep: bool = False, *, dtype: Any = None, keepdim: bool = False,
              dim: Any = None) -> Value:  # fmt: skip
        x = cast(b, x, b.dtype)
        if not x.shape:
            return b.node("identity", x)
        found = b.node(
            op, _ordered(b, x), dims=dims_of(dims if dim is None else dim, len(x.shape)), keep=keep or keepdim
        )
        return cast(b, found, b.dtype)

    return apply


RULES.update(
    {f"aten.{name}": _reduce(op) for name, op in (
        ("sum.dim_IntList", "sum"), ("sum.default", "sum"), ("mean.dim", "mean"), ("mean.default", "mean"),
        ("amax.default", "max"), ("amin.default", "min"), ("prod.dim_int", "prod"), ("prod.default", "prod"),
        ("max.default", "max"), ("min.default", "min"))}
)  # fmt: skip


def _any(op: str) -> Rule:
    def apply(b: Emitter, x: Value, dims: Any = None, keep: bool = False) -> Value:
        x = truth(b, x)
        if not x.shape:
            return b.node("identity", cast(b, x, b.dtype))
        found = b.node(op, cast(b, x, DTYPES["int32"]), dims=dims_of(dims, len(x.shape)), keep=keep)
        return cast(b, truth(b, found), b.dtype)  # that of bytes is a byte

    return apply


for _kind in ("default", "dim", "dims"):
    RULES[f"aten.any.{_kind}"], RULES[f"aten.all.{_kind}"] = _any("max"), _any("min")


def _position(op: str) -> Rule:
    def apply(b: Emitter, x: Value, dim: Any = None, keep: bool = False) -> Value:
        if dim is None or not x.shape:
            return reshape(b, b.node(op, reshape(b, x, (x.elements,)), dim=0, keep=False), b.shape)
        return b.node(op, x, dim=dim % len(x.shape), keep=keep)

    return apply


RULES["aten.argmax.default"], RULES["aten.argmin.default"] = _position("argmax"), _position("argmin")


@rule("max.dim", "min.dim")
def _extreme(b: Emitter, x: Value, dim: int, keep: bool = False) -> Sequence[Value]:
    d, name = dim % len(x.shape), "max" if "max" in b.target else "min"
    x = _ordered(b, x)
    return [cast(b, b.node(name, x, dims=(d,), keep=keep), b.dtype), b.node(f"arg{name}", x, dim=d, keep=keep)]


@rule("var.correction", "var.dim")
def _var(b: Emitter, x: Value, dims: Any = None, *rest: Any, correction: Any = 1, keepdim: bool = False) -> Value:
    need(not rest and (correction is None or correction == int(correction)) and bool(x.shape), "another form of var")
    correction = 1 if correction is None else int(correction)
    return b.node("variance", x, dims=dims_of(dims, len(x.shape)), keep=keepdim, correction=correction)


@rule("var_mean.correction")
def _var_mean(b: Emitter, x: Value, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Sequence[Value]:
    variance = _var(b, x, dims, correction=correction, keepdim=keepdim)
    return [variance, b.node("mean", x, dims=dims_of(dims, len(x.shape)), keep=keepdim)]


@rule("var_mean.dim")
def _var_mean_of_dims(b: Emitter, x: Value, dims: Any, unbiased: bool = True, keepdim: bool = False) -> Sequence[Value]:
    return _var_mean(b, x, dims, correction=int(unbiased), keepdim=keepdim)


@rule("var_mean.default")
def _var_mean_of_all(b: Emitter, x: Value, unbiased: bool = True) -> Sequence[Value]:
    return _var_mean(b, x, correction=int(unbiased))


@rule("linalg_vector_norm.default")
def _vector_norm(b: Emitter, x: Value, order: Any = 2, dims: Any = None, keep: bool = False, **keywords: Any) -> Value:
    need(bool(x.shape), "a scalar")
    x, over, order = cast(b, x, b.dtype), dims_of(dims, len(x.shape)), float(order)
    if abs(order) == math.inf:
        return b.node("max" if order > 0 else "min", b.node("abs", x), dims=over, keep=keep)
    if order == 0:
        return b.node("sum", cast(b, b.node("ne", x, number(b, 0.0, x.dtype)), x.dtype), dims=over, keep=keep)
    if order == 2:
        return b.node("sqrt", b.node("sum", b.node("square", x), dims=over, keep=keep))
    if order == 1:
        return b.node("sum", b.node("abs", x), dims=over, keep=keep)
    powers = b.node("pow", b.node("abs", x), number(b, order, x.dtype))
    return b.node("pow", b.node("sum", powers, dims=over, keep=keep), number(b, 1 / order, x.dtype))


@rule("logsumexp.default")
def _logsumexp(b: Emitter, x: Value, dims: Any, keep: bool = False) -> Value:
    over = dims_of(dims, len(x.shape))
    x = cast(b, x, b.dtype)
    top = b.node("max", x, dims=over, keep=True)
    top = b.node("where", b.node("eq", b.node("abs", top), number(b, math.inf, x.dtype)), number(b, 0.0, x.dtype), top)
    total = b.node("sum", b.node("exp", b.node("sub", x, top)), dims=over, keep=True)
    return reshape(b, b.node("add", b.node("log", total), top), b.shape)


@rule("_softmax.default", "softmax.int")
def _softmax(b: Emitter, x: Value, dim: int, *rest: Any, **keywords: Any) -> Value:
    return b.node("softmax", cast(b, x, b.dtype), dim=dim % len(x.shape)) if x.shape else number(b, 1.0, b.dtype)


@rule("_log_softmax.default", "log_softmax.int")
def _log_softmax(b: Emitter, x: Value, dim: int, *rest: Any, **keywords: Any) -> Value:
    return b.node("log_softmax", cast(b, x, b.dtype), dim=dim % len(x.shape)) if x.shape else number(b, 0.0, b.dtype)


_MOST_DIFFERENCES = 1 << 24
"""Where a kernel for GPUs stores the differences of all pairs, more of them would cost more than torch's own kernel."""
_FEW_ROWS, _EXACT_MODE = 8, 2
"""Differences of up to so many rows are stored. The mode of ``cdist`` that takes no products."""


@rule("_cdist_forward.default")
def _cdist(b: Emitter, x: Value, y: Value, order: float, mode: Any = None) -> Value:
    """Distances by their definition: torch takes products where there are many of them, and ``order`` is 2. Many of any
    other order are one kernel, without stored differences."""
    need(x.dtype == y.dtype, "another distance")
    is_fused = min(x.shape[-2], y.shape[-2]) > _FEW_ROWS and (order != 2 or mode == _EXACT_MODE)
    need(is_fused or math.prod(b.shape) * x.shape[-1] <= _MOST_DIFFERENCES, "so many differences")
    rows = reshape(b, x, (*x.shape[:-1], 1, x.shape[-1]))
    columns = reshape(b, y, (*y.shape[:-2], 1, *y.shape[-2:]))
    apart = b.node("sub", rows, columns)
    return _vector_norm(b, apart, order, (-1,))


@rule("_pdist_forward.default")
def _pdist(b: Emitter, x: Value, order: float = 2.0) -> Value:
    """Distances of all pairs of rows, of which the first is ahead of the second: pair k of n rows begins with row i
    where (2n - i - 1) i / 2 is at most k, so that i is what a square root says, rounded down."""
    n, pairs = x.shape[0], b.shape[0]
    need(pairs * x.shape[1] <= _MOST_DIFFERENCES and n < 1 << 15, "so many differences")
    wide = DTYPES["float64"]
    k = b.node("range", count=pairs, dtype=wide.name)
    left = b.node(
        "sub", number(b, (2 * n - 1) ** 2 - 7.5, wide), b.node("mul", k, number(b, 8.0, wide))
    )  # between wholes
    root = b.node("sub", number(b, 2 * n - 1, wide), b.node("sqrt", left))
    first = b.node("floor", b.node("mul", root, number(b, 0.5, wide)))
    before = b.node("mul", b.node("mul", first, b.node("sub", number(b, 2 * n - 1, wide), first)), number(b, 0.5, wide))
    second = b.node("add", b.node("sub", k, before), b.node("add", first, number(b, 1.0, wide)))
    rows = [b.node("gather", x, cast(b, i, DTYPES["int64"]), dim=0) for i in (first, second)]
    return _vector_norm(b, b.node("sub", *rows), order, (1,))


@rule("dist.default")
def _dist(b: Emitter, x: Value, y: Value, order: float = 2.0) -> Value:
    apart = b.node("sub", x, y)
    return _vector_norm(b, apart, order) if apart.shape else b.node("abs", apart)
