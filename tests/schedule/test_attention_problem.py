"""Attention is found in expressions however they are written, and nothing else is taken for it."""

from dataclasses import replace
from math import isclose, sqrt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.attention_expressions import COLUMNS, DEPTH, HEADS, KEYS, MASKS, QUERIES, QUOTIENTS, Spelling
from tests.schedule.gpu.tiles import assert_agrees
from tilewright.core.dtypes import DType, float16, float32
from tilewright.core.policy import SpacePolicy
from tilewright.ir.expr import Expr
from tilewright.schedule.gpu.attention.space import CUDA_ATTENTION
from tilewright.schedule.problems.attention import attention_of
from tilewright.schedule.problems.attention_forms import without_sink
from tilewright.te import build as te
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

PLAIN_SPELLINGS = st.builds(
    Spelling,
    group=st.sampled_from((1, 2, 4)),
    causal=st.booleans(),
    window=st.sampled_from((0, 40)),
    prefix=st.sampled_from((0, 50)),
    mask=st.sampled_from(MASKS),
    cap=st.sampled_from((0.0, 5.0)),
    slope=st.sampled_from((0.0, 0.05)),
    bias=st.booleans(),
    pitch=st.sampled_from((KEYS, KEYS + 1)),
    quotient=st.sampled_from(QUOTIENTS),
    power_of_two=st.booleans(),
    scaled_after=st.booleans(),
    rows_last=st.booleans(),
    gated=st.booleans(),
    maximum=st.booleans(),
)
FURTHER: tuple[dict[str, Any], ...] = (
    {},
    {"sink": True, "maximum": True, "power_of_two": False, "scaled_after": False},
    {"copied": False, "quotient": "before", "gated": False, "rows_last": True},
)
SPELLINGS = st.builds(lambda plain, further: replace(plain, **further), PLAIN_SPELLINGS, st.sampled_from(FURTHER))


@settings(max_examples=60, deadline=None)
@given(SPELLINGS)
def test_every_spelling_is_attention(spelling: Spelling) -> None:
    p = attention_of(spelling.workload())
    assert p is not None
    assert (p.m.extent, p.n.extent, p.k.extent, p.d.extent) == (QUERIES, KEYS, DEPTH, COLUMNS)
    assert (p.q.buffer.name, p.key.buffer.name, p.v.buffer.name) == ("queries", "keys", "values")
    assert [a.extent for a in p.batch] == [HEADS] and p.weights == float16
    assert len(p.bounds) == spelling.hides and not p.conditions
    plain = not (spelling.cap or spelling.slope or spelling.bias)
    assert (p.score is None) == plain and (p.sink is not None) == spelling.sink
    assert not plain or isclose(p.scale, 1 / sqrt(DEPTH), rel_tol=1e-6)


@settings(max_examples=8, deadline=None)
@given(SPELLINGS)
def test_kernels_compute_what_the_spelling_says(spelling: Spelling) -> None:
    assert_agrees(CUDA_ATTENTION, spelling.workload(), 2, policy=SpacePolicy(prune=False))


@pytest.mark.parametrize(
    "spelling",
    [
        Spelling(causal=True, window=40, cap=5.0, mask="weights", quotient="before"),
        Spelling(bias=True, slope=0.05, group=2, mask="additive", causal=True, dtype="bfloat16"),
        Spelling(bias=True, pitch=KEYS + 1, causal=True, prefix=30),
        Spelling(gated=True, causal=True),
        Spelling(window=40, mask="negated", scaled_after=True, power_of_two=True, rows_last=False),
        Spelling(sink=True, window=40, causal=True),
        Spelling(maximum=False, copied=False, quotient="before"),
        Spelling(bias=True, bias_dtype="float16", pitch=KEYS + 6, causal=True),
        Spelling(bias=True, bias_dtype="bfloat16", pitch=KEYS + 6, window=40),
        Spelling(shown="bool", causal=True),
        Spelling(shown="uint8"),
        Spelling(log_sum=True, window=40, causal=True),
        Spelling(log_sum=True, sink=True, copied=False, quotient="before"),
        Spelling(rounds=False),
        Spelling(rounds=False, dtype="bfloat16", copied=False, quotient="before"),
    ],
    ids=[
        "capped",
        "biased",
        "prefix",
        "gated",
        "window",
        "sink",
        "sums alone",
        "tiles",
        "tiles of a window",
        "shown",
        "shown bytes",
        "log of the sum",
        "log of the sum with a sink",
        "float16 parts",
        "bfloat16 parts",
    ],
)
def test_kernels_of_some_spellings(spelling: Spelling) -> None:
    assert_agrees(CUDA_ATTENTION, spelling.workload(), 4, policy=SpacePolicy(prune=False))


@pytest.mark.parametrize(
    ("spelling", "weights", "parts"),
    [
        (Spelling(), float16, 1),
        (Spelling(rounds=False), float32, 2),
        (Spelling(rounds=False, dtype="bfloat16"), float32, 3),
        (Spelling(rounds=False, precision="tf32"), float16, 1),
        (Spelling(rounds=False, precision="tf32", dtype="bfloat16"), float16, 3),
    ],
)
def test_weights_are_rounded_only_where_the_expression_or_its_precision_says_so(
    spelling: Spelling, weights: DType, parts: int
) -> None:
    p = attention_of(spelling.workload())
    assert p is not None and (p.weights, p.weight_parts) == (weights, parts)


def test_the_maximum_that_is_added_has_a_name_of_its_own() -> None:
    """V is called what the maximum of the scores below ``Z`` would be called first."""
    workload = parse_workload("""
Q: float16[64, 16]
K: float16[64, 16]
Z_max: float16[64, 16]
S[i, j] = sum over r < 16 of float32(Q[i, r]) * float32(K[j, r])
E[i, j] = exp(S[i, j])
Z[i] = sum over t < 64 of E[i, t]
O[i, e] = sum over w < 64 of float32(float16(E[i, w])) * float32(Z_max[w, e])
Y[i, e] = float16(O[i, e] / Z[i])""")
    p = attention_of(workload)
    assert p is not None and p.v.buffer.name == "Z_max"


def test_a_sink_beside_a_total_without_it_is_no_attention() -> None:
    """The output reads the sum of the weights once with the sink, and once without."""
    rows, sink = te.placeholder((64, 64), "float32", "rows"), te.placeholder((64,), "float32", "sink")
    t, u, w = (te.reduce_axis(64, name) for name in "tuw")
    top = te.compute((64,), lambda i: te.max(rows[i, t], axis=t))
    total = te.compute((64,), lambda i: te.sum(te.exp(rows[i, u] - top[i]), axis=u))
    mixed = te.compute((64, 64), lambda i, d: te.sum(te.exp(rows[i, w] - top[i]) * rows[w, d], axis=w))
    output = te.compute((64, 64), lambda i, d: mixed[i, d] / (total[i] + te.exp(sink[i] - top[i])) * total[i])
    _, found = without_sink(te.workload(output).stages)
    assert found is None


def _sums(kind: str) -> Workload:
    """Two sums over the same axis that only look like attention."""
    q, k = te.placeholder((64, 64), "float16", "q"), te.placeholder((64, 64), "float16", "k")
    v = te.placeholder((64, 64), "float16", "v")
    other = te.placeholder((64, 64), "float32", "other")
    r, t, u, w = (te.reduce_axis(64, name) for name in "rtuw")
    product = te.compute(
        (64, 64), lambda i, j: te.sum(te.cast(q[i, r], "float32") * te.cast(k[j, r], "float32"), axis=r)
    )
    top = te.compute((64,), lambda i: te.max(product[i, t], axis=t))

    def weight(i: Expr, j: Expr) -> Expr:
        score = other[i, j] if kind == "another score" else product[i, j]
        power = te.exp(top[i] - score if kind == "negative" else score - top[i])
        return power * power if kind == "squared" else power + 1.0 if kind == "offset" else power

    total = te.compute((64,), lambda i: te.sum(weight(i, u), axis=u))
    mixed = te.compute(
        (64, 64),
        lambda i, d: te.sum(te.cast(te.cast(weight(i, w), "float16"), "float32") * te.cast(v[w, d], "float32"), axis=w),
    )

    def output(i: Expr, d: Expr) -> Expr:
        y = mixed[i, d] if kind == "no quotient" else mixed[i, d] / total[i]
        y = y + total[i] if kind == "no quotient" else y
        return te.cast(y + top[i] if kind == "maximum" else y, "float16")

    return te.workload(te.compute((64, 64), output))


@pytest.mark.parametrize("kind", ["another score", "negative", "squared", "offset", "no quotient", "maximum"])
def test_what_is_not_homogeneous_is_no_attention(kind: str) -> None:
    assert attention_of(_sums("")) is not None
    assert attention_of(_sums(kind)) is None
