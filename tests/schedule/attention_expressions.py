"""Attention as people write it: the same function in many spellings."""

from dataclasses import dataclass
from math import e as EULER
from math import inf, log2, sqrt

from tilewright.ir.expr import Expr
from tilewright.te import build as te
from tilewright.te.workload import Workload

HEADS, QUERIES, KEYS, DEPTH, COLUMNS = 4, 70, 90, 16, 24
ROWS = (HEADS, QUERIES)
MASKS = ("select", "negated", "additive", "weights")
QUOTIENTS = ("after", "before", "reciprocal")


@dataclass(frozen=True)
class Spelling:
    """One way to write attention.

    ``group``: how many heads share one of K and V, by an index quotient. ``causal`` and ``window`` (0: none) hide
    keys, written as ``mask`` says; the first ``prefix`` keys are never hidden by ``causal``. ``cap``, ``slope`` and
    ``bias`` change scores. The tensor of the bias has rows of ``pitch`` elements of ``bias_dtype``. ``shown`` is
    the dtype of a tensor of what is not hidden. ``sink`` puts one more score beside those of the keys, a number for
    each head. ``maximum``: whether scores are taken from their maximum. ``quotient`` says where it is divided by
    the sum. ``power_of_two``: exp2 in place of exp. ``scaled_after``: the scale is applied to the difference from
    the maximum. ``gated``: what follows reads other tensors too. ``log_sum``: the logarithm of the sum of the
    exponentials of scores is an output, too. ``copied``: the sum over V is no output itself. ``rows_last``: the
    output has its rows as the last axis but one, or else in front of the heads.
    """

    group: int = 1
    causal: bool = False
    window: int = 0
    prefix: int = 0
    mask: str = "select"
    cap: float = 0.0
    slope: float = 0.0
    bias: bool = False
    pitch: int = KEYS
    bias_dtype: str = "float32"
    shown: str = ""
    sink: bool = False
    maximum: bool = True
    quotient: str = "after"
    power_of_two: bool = False
    scaled_after: bool = False
    rows_last: bool = True
    gated: bool = False
    copied: bool = True
    log_sum: bool = False
    rounds: bool = True
    dtype: str = "float16"
    precision: str = "ieee"

    def __post_init__(self) -> None:
        if self.sink and (self.power_of_two or self.scaled_after or not self.maximum):
            raise ValueError("a sink is written with exp(score - maximum) alone")
        if not self.copied and (self.quotient != "before" or self.gated or not self.rows_last):
            raise ValueError("a sum that is the output is divided inside, and nothing follows it")

    @property
    def hides(self) -> int:
        """How many bounds there are on the keys that a query sees."""
        return int(self.causal) + int(self.window > 0)

    def workload(self) -> Workload:
        """The expression, on small extents."""
        q = te.placeholder((HEADS, QUERIES, DEPTH), self.dtype, "queries")
        k = te.placeholder((HEADS // self.group, KEYS, DEPTH), self.dtype, "keys")
        v = te.placeholder((HEADS // self.group, KEYS, COLUMNS), self.dtype, "values")
        added = te.placeholder((QUERIES, self.pitch), self.bias_dtype, "added")
        shown = te.placeholder((QUERIES, KEYS), self.shown or "bool", "shown")
        sinks = te.placeholder((HEADS,), "float32", "sinks")
        gate, residual = (
            te.placeholder((COLUMNS,), self.dtype, "gate"),
            te.placeholder((*ROWS, COLUMNS), name="residual"),
        )
        r, t, u, w = (te.reduce_axis(n, name) for n, name in ((DEPTH, "r"), (KEYS, "t"), (KEYS, "u"), (KEYS, "w")))
        rows, scale = ROWS, 1.0 / sqrt(DEPTH)
        product = te.compute(
            (*rows, KEYS),
            lambda h, i, j: te.sum(
                te.cast(k[h // self.group, j, r], "float32") * te.cast(q[h, i, r], "float32"), axis=r
            ),
        )

        def score(h: Expr, i: Expr, j: Expr) -> Expr:
            s: Expr = product[h, i, j] if self.scaled_after else scale * product[h, i, j]
            if self.cap:
                s = te.tanh(s / self.cap) * self.cap
            if self.slope:
                s = s + te.cast(j - i, "float32") * self.slope
            return s + te.cast(added[i, j], "float32") if self.bias else s

        def seen(i: Expr, j: Expr) -> Expr:
            conditions = []
            if self.causal:
                behind = j <= i + (KEYS - QUERIES)
                conditions.append(te.any_of(behind, j < self.prefix) if self.prefix else behind)
            if self.window:
                conditions.append(i + (KEYS - QUERIES) - j < self.window)
            if self.shown:
                conditions.append(te.cast(shown[i, j], "bool"))
            return te.all_of(*conditions)

        def masked(h: Expr, i: Expr, j: Expr) -> Expr:
            s = score(h, i, j)
            if not (self.hides or self.shown) or self.mask == "weights":
                return s
            if self.mask == "additive":
                return s + te.select(seen(i, j), te.constant(0.0, "float32"), -inf)
            if self.mask == "negated":
                return te.select(te.negated(seen(i, j)), te.constant(-inf, "float32"), s)
            return te.select(seen(i, j), s, -inf)

        scores = te.compute((*rows, KEYS), masked)
        top = te.compute(rows, lambda h, i: te.max(scores[h, i, t], axis=t))

        def bound(h: Expr, i: Expr) -> Expr:
            return te.maximum(top[h, i], sinks[h]) if self.sink else top[h, i]

        def weight(h: Expr, i: Expr, j: Expr) -> Expr:
            difference = scores[h, i, j] - bound(h, i) if self.maximum else scores[h, i, j]
            if self.scaled_after:
                difference = difference * scale
            power = te.exp2(difference * log2(EULER)) if self.power_of_two else te.exp(difference)
            hidden = self.hides and self.mask == "weights"
            return te.select(seen(i, j), power, 0.0) if hidden else power

        weights = te.compute((*rows, KEYS), weight)
        of_keys = te.compute(rows, lambda h, i: te.sum(weights[h, i, u], axis=u))

        def with_sink(h: Expr, i: Expr) -> Expr:
            return of_keys[h, i] + te.exp(sinks[h] - bound(h, i)) if self.sink else of_keys[h, i]

        total = te.compute(rows, with_sink)

        def rounded(h: Expr, i: Expr, j: Expr) -> Expr:
            share = weights[h, i, j] / total[h, i] if self.quotient == "before" else weights[h, i, j]
            return te.cast(te.cast(share, self.dtype), "float32") if self.rounds else share

        mixed = te.compute(
            (*rows, COLUMNS),
            lambda h, i, d: te.sum(rounded(h, i, w) * te.cast(v[h // self.group, w, d], "float32"), axis=w),
        )

        def divided(h: Expr, i: Expr, d: Expr) -> Expr:
            y: Expr = mixed[h, i, d]
            if self.quotient == "after":
                y = y / total[h, i]
            elif self.quotient == "reciprocal":
                y = y * (1.0 / total[h, i])
            return te.cast(y * te.cast(gate[d], "float32") + residual[h, i, d] if self.gated else y, self.dtype)

        if not self.copied:
            output = mixed
        elif self.rows_last:
            output = te.compute((HEADS, QUERIES, COLUMNS), divided)
        else:
            output = te.compute((QUERIES, HEADS, COLUMNS), lambda i, h, d: divided(h, i, d))
        outputs = [output]
        if self.log_sum:
            outputs = [te.compute(rows, lambda h, i: te.log(total[h, i]) + bound(h, i)), output]
        others = [
            *([added] * self.bias),
            *([shown] * bool(self.shown)),
            *([sinks] * self.sink),
            *([gate, residual] * self.gated),
        ]
        return te.workload(outputs, inputs=[q, k, v, *others], precision=self.precision)
