"""Scaled dot-product attention. Weights are rounded to the dtype of V before they are multiplied with it, as all
libraries do; their sum is that of the weights before."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import INDEX
from ...core.errors import InvalidParameter
from ...ir.expr import Expr
from ..build import cast, compute, constant, exp, extent, max, placeholder, reduce_axis, select, sum, workload
from ..workload import Workload
from .operator import Operator, accumulation, accumulation_parameter
from .parameter import FLOATS, Flag, Integer, Parameter, Values, dtype_parameter


def _check(v: Values) -> None:
    if v.flag("causal") and v.integer("queries") > v.integer("keys"):
        raise InvalidParameter(
            f"queries is {v.integer('queries')}; allowed with causal: at most keys, {v.integer('keys')}, so that every "
            "query has a key",
            field="queries",
        )


def _build(v: Values, queries_measured: int = 0, keys_measured: int = 0, sequence_measured: int = 0) -> Workload:
    """Return the workload. The length of queries, that of keys, or that of both is dynamic where it is measured at more
    than 0."""
    _check(v)
    heads, shared, m, n = v.integer("heads"), v.integer("queries_per_key"), v.integer("queries"), v.integer("keys")
    depth, columns, dtype, wide = v.integer("depth"), _value_depth(v), v.text("dtype"), accumulation(v)[0]
    q = placeholder((heads, shared, m, depth), dtype, "Q")
    k, value = placeholder((heads, n, depth), dtype, "K"), placeholder((heads, n, columns), dtype, "V")
    rows, r = (heads, shared, m), reduce_axis(depth, "r")
    lengths = {"m": extent("queries_extent", {q: 2}, queries_measured)} if queries_measured else {}
    lengths |= {"n": extent("keys_extent", {k: 1, value: 1}, keys_measured)} if keys_measured else {}
    if sequence_measured:
        lengths = dict.fromkeys("mn", extent("sequence_extent", {q: 2, k: 1, value: 1}, sequence_measured))
    behind: Expr | int = n - m
    if queries_measured or keys_measured:
        behind = lengths.get("n", constant(n, INDEX)) - lengths.get("m", m)
    product = compute(
        (*rows, n), lambda h, g, i, j: sum(cast(q[h, g, i, r], wide) * cast(k[h, j, r], wide), axis=r), "product"
    )

    def score(h: Expr, g: Expr, i: Expr, j: Expr) -> Expr:
        e = product[h, g, i, j] * (1.0 / math.sqrt(depth))
        return select(j <= i + behind, e, constant(-math.inf, wide)) if v.flag("causal") else e

    scores = compute((*rows, n), score, "scores")
    t, u, w = (reduce_axis(n, name) for name in ("t", "u", "w"))
    top = compute(rows, lambda h, g, i: max(scores[h, g, i, t], axis=t), "top")
    power = compute((*rows, n), lambda h, g, i, j: exp(scores[h, g, i, j] - top[h, g, i]), "power")
    total = compute(rows, lambda h, g, i: sum(power[h, g, i, u], axis=u), "total")

    def weighted(h: Expr, g: Expr, i: Expr, d: Expr) -> Expr:
        return cast(cast(power[h, g, i, w], dtype), wide) * cast(value[h, w, d], wide)

    mixed = compute((*rows, columns), lambda h, g, i, d: sum(weighted(h, g, i, d), axis=w), "mixed")
    y = compute((*rows, columns), lambda h, g, i, d: cast(mixed[h, g, i, d] / total[h, g, i], dtype), "Y")
    return workload(y, inputs=[q, k, value], dynamic=list(dict.fromkeys(lengths.values())))


def attention_of_lengths(
    parameters: Mapping[str, object], queries: int = 0, keys: int = 0, *, sequence: int = 0
) -> Workload:
    """Attention with lengths that every call gives, up to those in ``parameters``: the number of queries, measured at
    ``queries``, and the number of keys, measured at ``keys``; 0: that length is static. ``sequence``: where a call has
    as many queries as keys, that number is one length, measured there. Under a causal mask a call has at most as many
    queries as keys. Raises InvalidParameter for parameters of ``ATTENTION`` that are wrong, and for a sequence with
    other lengths; InvalidWorkload for a length that is measured beyond its bound."""
    v = ATTENTION.values(parameters)
    if sequence and (queries or keys or v.integer("queries") != v.integer("keys")):
        raise InvalidParameter("a sequence has as many queries as keys, and no other length", field="sequence")
    return _build(v, queries, keys, sequence)


def _value_depth(v: Values) -> int:
    return v.integer("value_depth") or v.integer("depth")


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    _check(v)
    wide, (m, n) = accumulation(v)[0].numpy, (v.integer("queries"), v.integer("keys"))
    q, k, value = (inputs[name].astype(wide, copy=False) for name in ("Q", "K", "V"))
    scores = np.matmul(q, k[:, None].swapaxes(-1, -2))
    scores *= 1.0 / math.sqrt(v.integer("depth"))
    if v.flag("causal"):
        scores[..., ~np.tri(m, n, n - m, dtype=bool)] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    y = np.matmul(scores.astype(inputs["Q"].dtype).astype(wide), value[:, None])
    y /= scores.sum(axis=-1, keepdims=True)
    return (y.astype(inputs["Q"].dtype, copy=False),)


ATTENTION = Operator(
    name="attention",
    summary="Y[h, g, i] = softmax over j of Q[h, g, i] . K[h, j] / sqrt(depth), times V[h, j]; causal: over j up to "
    "i + keys - queries",
    parameters=(
        Parameter("heads", "heads of K and V, those of all batches together", Integer()),
        Parameter("queries", "rows of Q and Y of a head", Integer()),
        Parameter("keys", "rows of K and V of a head", Integer()),
        Parameter("depth", "length of a row of Q and K", Integer()),
        Parameter("queries_per_key", "heads of Q that share a head of K and V (grouped queries)", Integer(), 1),
        Parameter("causal", "whether a query sees only the keys that are not behind it", Flag(), False),
        Parameter("value_depth", "length of a row of V and Y; 0: that of Q and K", Integer(0), 0),
        dtype_parameter(*FLOATS),
        accumulation_parameter("float32", "float64"),
    ),
    examples=(
        {"heads": 3, "queries": 5, "keys": 11, "depth": 7},
        {"heads": 1, "queries": 7, "keys": 7, "depth": 4, "causal": True},
        {"heads": 1, "queries": 1, "keys": 13, "depth": 8, "queries_per_key": 3, "causal": True, "dtype": "float16"},
        {"heads": 1, "queries": 1, "keys": 1, "depth": 1, "dtype": "bfloat16"},
        {"heads": 2, "queries": 9, "keys": 12, "depth": 8, "value_depth": 16, "causal": True, "dtype": "float16"},
    ),
    build=_build,
    baseline=_numpy,
)
