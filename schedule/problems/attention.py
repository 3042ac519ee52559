"""Attention: workloads that weigh rows of V by a softmax over scores of Q and K.

    product[m, n] = sum over k of Q[m, k] * K[n, k]
    Y[m, d]       = sum over n of w[m, n] * V[n, d] / sum over n of w[m, n],  w = exp(score(product) - max over n)

They are recognised by a rewrite, not by the name of an operator. Sums over one axis that read an earlier maximum only
as a factor ``exp(score - maximum)`` are homogeneous of degree 1 in it. So their quotient does not depend on the
maximum, and both may be found in one scan of the axis with any growing bound in place of the maximum:

    state (bound, sums);  a larger bound b' scales every sum by exp(b - b')

Factors that do not depend on the axis are taken out of the sums, and casts between floats are left out. The score may
be any function of the product and of the indices, such as a bias, a soft cap, or a mask of minus infinities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log, prod

from ...core.dtypes import DType, float16, float32
from ...ir.buffer import Buffer
from ...ir.expr import (
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    UnaryOp,
    Var,
    const,
    index,
    rebuild,
    walk,
)
from ...ir.linear_form import LinearForm, affine_form
from ...ir.rewrite import free_variables, loads_of, map_loads, substitute
from ...te.dynamic import dynamic_axes, dynamic_extents
from ...te.functions import negated
from ...te.inline import inline_stages
from ...te.workload import Axis, Reducer, Stage, Workload
from .attention_forms import log_sum, with_maximum, with_output, without_sink
from .gemm import Result
from .key_bounds import KeyBound, conjuncts, hides_nothing, split_masks


@dataclass(frozen=True, slots=True)
class Attention:
    """A workload as attention. Its expressions read the variables ``m`` (queries), ``n`` (keys), ``k`` and ``d``
    (elements of a row of Q or K, and of V) and those of ``batch`` alone.

    A weight is ``exp(scale * score)``, where loads of the tensor ``product`` in ``score`` stand for the product,
    times ``product_scale``; ``score`` is None where it is the product itself. It is 0 where one of ``bounds`` or of
    ``conditions`` does not hold. ``weights`` is the dtype that the expression, or its precision, rounds weights to
    before they are multiplied with V. The sum of the weights of a query has ``exp(sink)`` beside them. In
    ``result``, loads of the tensor ``normalised`` stand for the quotient of the sums. ``dynamic_m`` and
    ``dynamic_n``: how many queries and keys a call has, where that is dynamic; ``m`` and ``n`` have the most then.
    ``log_sum``: a second output, in which ``LOG_SUM`` stands for the logarithm of the sum of ``exp(scale *
    score)``.
    """

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    batch: tuple[Axis, ...]
    m: Axis
    n: Axis
    k: Axis
    d: Axis
    q: Load
    key: Load
    v: Load
    product: Buffer
    score: Expr | None
    scale: float
    bounds: tuple[KeyBound, ...]
    conditions: tuple[Expr, ...]
    weights: DType
    normalised: Buffer
    result: Result
    dynamic_m: Expr | None = None
    dynamic_n: Expr | None = None
    sink: Expr | None = None
    log_sum: Result | None = None

    @property
    def is_dynamic(self) -> bool:
        """Whether a call gives the number of queries or that of keys."""
        return self.dynamic_m is not None or self.dynamic_n is not None

    @property
    def m_end(self) -> Expr:
        """How many queries a call has."""
        return index(self.m.extent) if self.dynamic_m is None else self.dynamic_m

    @property
    def n_end(self) -> Expr:
        """How many keys a call has."""
        return index(self.n.extent) if self.dynamic_n is None else self.dynamic_n

    def of_one_head(self, *loads: Load) -> tuple[str, ...]:
        """Return the tensors of ``loads`` of which no two heads or members of the batch read the same element."""
        heads = {axis.name for axis in self.batch if axis.extent > 1}
        found = dict.fromkeys(
            e.buffer.name for e in loads if heads <= {v for i in e.indices for v in free_variables(i)}
        )
        return tuple(found)

    @property
    def last_m(self) -> Expr:
        """The last query of a call."""
        return index(self.m.extent - 1) if self.dynamic_m is None else self.dynamic_m - 1

    @property
    def last_n(self) -> Expr:
        """The last key of a call."""
        return index(self.n.extent - 1) if self.dynamic_n is None else self.dynamic_n - 1

    def beyond_last_key(self, limit: LinearForm) -> int | None:
        """Return how far behind the last key a limit lets the last query see; None where a call decides that."""
        beyond = affine_form(substitute(limit.to_expr(), {"m": self.last_m}) - self.last_n)
        return beyond.constant if beyond is not None and beyond.is_constant else None

    @property
    def weight_parts(self) -> int:
        """How many numbers of the dtype of V add up to a weight that is not rounded to that dtype: a mantissa of 24
        bits, of which float16 holds 11 and bfloat16 8. No weight is above 1, so that what falls below the least float16
        counts as little as the rounding of a float32."""
        if self.weights == self.v.buffer.dtype:
            return 1
        return 2 if self.v.buffer.dtype == float16 else 3

    @property
    def heads(self) -> int:
        """How many members the batch has."""
        return prod(a.extent for a in self.batch)

    @property
    def names(self) -> set[str]:
        """All names that a kernel cannot use for anything else."""
        axes = {a.name for a in (self.m, self.n, self.k, self.d, *self.batch)}
        axes |= free_variables(self.m_end) | free_variables(self.n_end)
        return {b.name for b in (*self.inputs, *self.outputs, self.product, self.normalised)} | axes


def attention_of(workload: Workload) -> Attention | None:
    """``workload`` as attention; None where it is none."""
    inlined = inline_stages(workload)
    stages = with_maximum(with_output([_without_units(s) for s in inlined.stages], workload.outputs))
    stages, sink = without_sink(stages)
    reducing = [s for s in stages if s.reducer is not None]
    outputs = [s for s in stages if s.reducer is None]
    if len(reducing) != 4 or {s.name for s in outputs} != set(workload.outputs):
        return None
    product, top, *sums = reducing
    logs = [s for s in outputs if _reads(s.body, top.name)]
    outputs = [s for s in outputs if s not in logs]
    if len(outputs) != 1 or len(logs) > 1:
        return None
    if product.reducer is not Reducer.SUM or top.reducer is not Reducer.MAX or len(top.reduce_axes) != 1:
        return None
    if any(s.reducer is not Reducer.SUM or len(s.reduce_axes) != 1 or s.tensor.dtype != float32 for s in sums):
        return None
    log = logs[0] if logs else None
    return _Recogniser(workload, product, top, outputs[0], log, sink, dynamic_axes(inlined)).attention(sums)


@dataclass(frozen=True)
class _Score:
    """``scale * value``, or minus infinity where one of ``masks`` does not hold."""

    value: Expr
    scale: float
    masks: tuple[Expr, ...]


@dataclass(frozen=True)
class _HomogeneousSum:
    """The sum over ``n`` of ``exp(score) * factor``, times the quotient of the products of ``outer`` and ``below``."""

    stage: Stage
    at: Mapping[str, Expr]
    score: _Score
    factor: Expr | None
    outer: tuple[Expr, ...]
    below: tuple[Expr, ...]


class _Recogniser:
    """Brings all stages onto common axes: ``row0``, ``row1``, ... are those of the maximum, ``n`` what is reduced.
    ``dynamic``: the dynamic dimension that an axis goes along, by its number."""

    def __init__(
        self,
        workload: Workload,
        product: Stage,
        top: Stage,
        output: Stage,
        log: Stage | None,
        sink: Expr | None,
        dynamic: Mapping[str, int],
    ) -> None:
        self.workload, self.product, self.top, self.output = workload, product, top, output
        self.log, self.sink, self.dynamic = log, sink, dynamic
        self.rows = {a.name: Var(f"row{n}") for n, a in enumerate(top.axes) if a.extent > 1}

    def attention(self, sums: Sequence[Stage]) -> Attention | None:
        found = [self._homogeneous(s) for s in sums]
        totals = [s for s in found if s is not None and s.factor is None]
        mixed = [s for s in found if s is not None and s.factor is not None]
        at_top = {name: row for name, row in self.rows.items()} | {self.top.reduce_axes[0].name: Var("n")}
        score = _score(substitute(self.top.body, at_top))
        if len(totals) != 1 or len(mixed) != 1 or score is None:
            return None
        total, sum_ = totals[0], mixed[0]
        same = (total.score, total.outer, total.below) == (sum_.score, (), ())
        if not same or score.value != sum_.score.value or total.outer or total.below:
            return None
        return self._attention(total, sum_)

    def _homogeneous(self, stage: Stage) -> _HomogeneousSum | None:
        """``stage`` as a homogeneous sum, on the common axes."""
        loads = [e for e in loads_of(stage.body) if e.buffer.name == self.top.name]
        at: dict[str, Expr] = {stage.reduce_axes[0].name: Var("n")}
        if not loads or any(load.indices != loads[0].indices for load in loads):
            return None
        for i, axis in zip(loads[0].indices, self.top.axes, strict=True):
            if axis.extent > 1:
                if not isinstance(i, Var) or i.name in at:
                    return None
                at[i.name] = self.rows[axis.name]
        others = [a for a in stage.axes if a.extent > 1 and a.name not in at]
        if len(others) > 1:
            return None
        at |= {a.name: Var("d") for a in others}
        above, below = _factors(substitute(stage.body, at))
        weights = [f for f in above if _reads(f, self.top.name)]
        factors = [f for f in above if f not in weights and "n" in free_variables(f)]
        if len(weights) != 1 or len(factors) > 1 or any("n" in free_variables(f) for f in below):
            return None
        score = _weight(weights[0], self.top.name)
        outer = tuple(f for f in above if f not in weights and f not in factors and f != const(1.0, float32))
        return (
            None
            if score is None
            else _HomogeneousSum(stage, at, score, factors[0] if factors else None, outer, tuple(below))
        )

    def _attention(self, total: _HomogeneousSum, sum_: _HomogeneousSum) -> Attention | None:
        products = {e for e in loads_of(sum_.score.value) if e.buffer.name == self.product.name}
        extents = {f"row{n}": a.extent for n, a in enumerate(self.top.axes) if a.extent > 1}
        d = next((a.extent for a in sum_.stage.axes if sum_.at.get(a.name) == Var("d")), 1)
        if len(products) != 1 or len(self.product.reduce_axes) != 1 or self.product.tensor.dtype != float32:
            return None
        (load,) = products
        operands = self._operands(load)
        v = sum_.factor
        if operands is None or not isinstance(v, Load) or v.buffer.name not in {b.name for b in self.workload.inputs}:
            return None
        q, key, product_scale = operands
        shared = {name for load in (key, v) for i in load.indices for name in free_variables(i)}
        rows = [name for name in extents if name not in shared]
        if "n" not in shared or any("n" in free_variables(i) for i in q.indices):
            return None
        m = max(rows, key=lambda name: (name in self._dynamic_rows, extents[name], int(name[3:])), default="")
        known = {self._dynamic_rows.get(m), self.dynamic.get(self.top.reduce_axes[0].name)}
        if not known.issuperset(range(len(self.workload.dynamic))) or not known.issuperset(self.dynamic.values()):
            return None
        batch = tuple(Axis(f"batch_{n}", extents[name]) for n, name in enumerate(x for x in extents if x != m))
        names: dict[str, Expr] = {m: Var("m")}
        names |= {name: Var(f"batch_{n}") for n, name in enumerate(x for x in extents if x != m)}
        result = self._result(total, sum_, names)
        score = _canonical(sum_.score, self.product.tensor, product_scale, names)
        log_sum = None if self.log is None else self._log_sum(self.log, total, names)
        if result is None or score is None or (log_sum is None) != (self.log is None):
            return None
        bounds, conditions = split_masks(score.masks)
        if any(_reads(e, name) for e in (score.value, *conditions) for name in (self.top.name, total.stage.name)):
            return None
        last_n = self._extent(self.dynamic.get(self.top.reduce_axes[0].name))
        if last_n is not None:  # where the number of keys is static, the prior and the simplifier see that
            bounds = tuple(b for b in bounds if not hides_nothing(b, last_n - 1))
        own = isinstance(score.value, Load) and score.value.buffer.name == self.product.name
        q, key, v = (Load(e.buffer, tuple(substitute(i, names) for i in e.indices)) for e in (q, key, v))
        if not m:
            q, result = (
                _with_a_row(q),
                replace(result, indices=_with_a_row(Load(result.tensor, result.indices)).indices),
            )
        return Attention(
            self.workload.inputs,
            self.workload.output_buffers,
            batch,
            Axis("m", extents.get(m, 1)),
            Axis("n", self.top.reduce_axes[0].extent),
            Axis("k", self.product.reduce_axes[0].extent),
            Axis("d", d),
            q,
            key,
            v,
            self.product.tensor,
            None if own else score.value,
            score.scale,
            bounds,
            conditions,
            self._weights(sum_),
            sum_.stage.tensor,
            result,
            self._extent(self._dynamic_rows.get(m)),
            self._extent(self.dynamic.get(self.top.reduce_axes[0].name)),
            None if self.sink is None else substitute(substitute(self.sink, self.rows), names),
            log_sum,
        )

    def _log_sum(self, log: Stage, total: _HomogeneousSum, names: Mapping[str, Expr]) -> Result | None:
        """Return the output ``log``, with the logarithm of the sum of the exponentials of scores in it as a load."""
        at_top = {**self.rows, self.top.reduce_axes[0].name: Var("n")}
        value = log_sum(log.body, self.top.name, total.stage.name)
        at = _axes_read(log, total)
        if value is None or at is None or _score(substitute(self.top.body, at_top)).scale != total.score.scale:
            return None
        indices = tuple(substitute(at.get(a.name, index(0)), names) for a in log.axes)
        return Result(log.tensor, indices, substitute(substitute(value, at), names))

    def _weights(self, sum_: _HomogeneousSum) -> DType:
        """Return what weights are rounded to. float16 has the mantissa of TF32, and no weight is above 1."""
        weights = _rounded_to(sum_.stage.body, self.top.name)
        return float16 if weights == float32 and self.workload.precision == "tf32" else weights

    @property
    def _dynamic_rows(self) -> dict[str, int]:
        """The axes of the maximum that are dynamic -> the number of their dimension."""
        rows = {f"row{n}": self.dynamic.get(a.name) for n, a in enumerate(self.top.axes) if a.extent > 1}
        return {name: n for name, n in rows.items() if n is not None}

    def _extent(self, number: int | None) -> Expr | None:
        return None if number is None else Var(dynamic_extents(self.workload)[number].var)

    def _operands(self, load: Load) -> tuple[Load, Load, float] | None:
        """Q, K, and the constant factor of the product that ``load`` reads."""
        at = {a.name: i for a, i in zip(self.product.axes, load.indices, strict=True)}
        body = substitute(self.product.body, {**at, self.product.reduce_axes[0].name: Var("k")})
        above, below = _factors(body)
        constants = [f.value for f in above if isinstance(f, Const)]
        loads = [f for f in above if isinstance(f, Load)]
        inputs = {b.name for b in self.workload.inputs}
        if below or len(loads) != 2 or len(constants) + 2 != len(above):
            return None
        if any(f.buffer.name not in inputs for f in loads):
            return None
        keys = [any("n" in free_variables(i) for i in f.indices) for f in loads]
        if sum(keys) != 1 or prod(constants) <= 0:
            return None
        return loads[1 - keys.index(True)], loads[keys.index(True)], float(prod(constants))

    def _result(self, total: _HomogeneousSum, sum_: _HomogeneousSum, names: Mapping[str, Expr]) -> Result | None:
        """Return the output on the common axes, with the quotient of the sums in it as a load of what ``sum_``
        computes."""
        at = _axes_read(self.output, sum_)
        if at is None:
            return None
        normalised, whole = Load(sum_.stage.tensor, ()), Load(total.stage.tensor, ())
        at_total = [tuple(total.at.get(a.name, index(0)) for a in total.stage.axes)]

        def plain(load: Load) -> Expr:
            if load.buffer.name == total.stage.name:
                return whole if [load.indices] == at_total else load
            return normalised if load.buffer.name == sum_.stage.name else load

        outer, below = ([map_loads(f, plain) for f in group] for group in (sum_.outer, sum_.below))
        value = _cancelled(map_loads(substitute(self.output.body, at), plain), normalised, whole, outer, below)
        if value is None or _reads(value, total.stage.name) or _reads(value, self.top.name):
            return None
        indices = tuple(substitute(at.get(a.name, index(0)), names) for a in self.output.axes)
        return Result(self.output.tensor, indices, substitute(value, names))


def _without_units(stage: Stage) -> Stage:
    """``stage`` with 0 in place of axes of one element."""
    units: dict[str, Expr] = {a.name: index(0) for a in stage.axes if a.extent == 1}
    return Stage(stage.tensor, stage.axes, substitute(stage.body, units), stage.reduce_axes, stage.reducer)


def _with_a_row(load: Load) -> Load:
    """``load`` of a single row, with the axis ``m`` as its last index along a dimension of one element, if any."""
    places = [n for n, extent in enumerate(load.buffer.shape[:-1]) if extent == 1]
    return Load(load.buffer, tuple(Var("m") if n in places[-1:] else i for n, i in enumerate(load.indices)))


def _reads(e: Expr, name: str) -> bool:
    return any(load.buffer.name == name for load in loads_of(e))


def _rounded_to(body: Expr, top: str) -> DType:
    """Return the narrowest float that ``body`` rounds weights to, which read the tensor ``top``."""
    rounded = [e.type for e in walk(body) if isinstance(e, Cast) and e.type.is_float and _reads(e, top)]
    return min([float32, *rounded], key=lambda dtype: dtype.bits)


def _uncast(e: Expr) -> Expr:
    """``e`` without the casts between floats around it."""
    while isinstance(e, Cast) and e.type.is_float and e.value.dtype.is_float:
        e = e.value
    return e


def _factors(e: Expr, *, rounded: bool = False) -> tuple[list[Expr], list[Expr]]:
    """Return the factors of a quotient of products: those above and those below the line. ``rounded``: casts stay."""
    e = e if rounded else _uncast(e)
    if isinstance(e, Binary) and e.op in (BinaryOp.MUL, BinaryOp.DIV):
        above, below = _factors(e.a, rounded=rounded)
        more, less = _factors(e.b, rounded=rounded)
        return (above + more, below + less) if e.op is BinaryOp.MUL else (above + less, below + more)
    return [e], []


def _number(e: Expr) -> float | None:
    return float(e.value) if isinstance(e, Const) and e.type.is_float else None


def _scaled(e: Expr) -> tuple[Expr, float]:
    """``e`` without positive constant factors, and their product."""
    e = _uncast(e)
    if isinstance(e, Binary) and e.op in (BinaryOp.MUL, BinaryOp.DIV):
        right = _number(e.b)
        if right is not None and 0 < right < inf:
            value, scale = _scaled(e.a)
            return value, scale * right if e.op is BinaryOp.MUL else scale / right
        left = _number(e.a) if e.op is BinaryOp.MUL else None
        if left is not None and 0 < left < inf:
            value, scale = _scaled(e.b)
            return value, scale * left
    return e, 1.0


def _score(e: Expr) -> _Score:
    """``e`` with its scale and the masks around it told apart."""
    e, scale = _scaled(e)
    if isinstance(e, Select):
        hidden = [_number(branch) == -inf for branch in (e.then, e.otherwise)]
        if hidden[0] != hidden[1]:
            inner = _score(e.otherwise if hidden[0] else e.then)
            mask: Expr = negated(e.condition) if hidden[0] else e.condition
            return _Score(inner.value, scale * inner.scale, (*conjuncts(mask), *inner.masks))
    if isinstance(e, Binary) and e.op is BinaryOp.ADD:
        for other, added in ((e.a, e.b), (e.b, e.a)):
            if isinstance(added, Select) and {_number(added.then), _number(added.otherwise)} == {0.0, -inf}:
                inner = _score(other)
                shown = added.condition if _number(added.then) == 0.0 else negated(added.condition)
                return _Score(inner.value, scale * inner.scale, (*conjuncts(shown), *inner.masks))
    return _Score(e, scale, ())


def _weight(e: Expr, top: str) -> _Score | None:
    """Return the score in ``exp(factor * (score - top))``, where the whole may be 0 under a mask; None for anything
    else."""
    e = _uncast(e)
    if isinstance(e, Select):
        zero = [_number(branch) == 0.0 for branch in (e.then, e.otherwise)]
        inner = _weight(e.otherwise if zero[0] else e.then, top) if zero[0] != zero[1] else None
        if inner is None:
            return None
        mask: Expr = negated(e.condition) if zero[0] else e.condition
        return _Score(inner.value, inner.scale, (*conjuncts(mask), *inner.masks))
    if not isinstance(e, Unary) or e.op not in (UnaryOp.EXP, UnaryOp.EXP2):
        return None
    difference, factor = _scaled(e.value)
    if not isinstance(difference, Binary):
        return None
    a, b = difference.a, difference.b
    if difference.op is BinaryOp.ADD:
        a, b = (b, a) if isinstance(a, Unary) and a.op is UnaryOp.NEG and _reads(a, top) else (a, b)
        if not isinstance(b, Unary) or b.op is not UnaryOp.NEG:
            return None
        b = b.value
    elif difference.op is not BinaryOp.SUB:
        return None
    if not isinstance(b, Load) or b.buffer.name != top or _reads(a, top):
        return None
    score = _score(a)
    factor *= log(2.0) if e.op is UnaryOp.EXP2 else 1.0
    return _Score(score.value, score.scale * factor, score.masks)


def _canonical(score: _Score, product: Buffer, product_scale: float, names: Mapping[str, Expr]) -> _Score | None:
    """``score`` on the axes of the problem, with the constant factor of the product in it."""
    masks = tuple(substitute(m, names) for m in score.masks)
    if any(_reads(m, product.name) for m in masks):
        return None
    if isinstance(score.value, Load):
        return _Score(Load(product, ()), score.scale * product_scale, masks)

    def scaled(load: Load) -> Expr:
        if load.buffer.name != product.name:
            return load
        return Load(product, ()) if product_scale == 1.0 else Load(product, ()) * product_scale

    return _Score(substitute(map_loads(score.value, scaled), names), score.scale, masks)


def _axes_read(output: Stage, sum_: _HomogeneousSum) -> dict[str, Expr] | None:
    """Return the axes of the output on the common ones, found from where it reads the sum; None where it reads it in
    several places, or has other axes."""
    loads = {e for e in loads_of(output.body) if e.buffer.name == sum_.stage.name}
    if len(loads) != 1:
        return None
    at: dict[str, Expr] = {}
    for i, axis in zip(next(iter(loads)).indices, sum_.stage.axes, strict=True):
        if axis.extent > 1:
            if not isinstance(i, Var) or i.name in at:
                return None
            at[i.name] = sum_.at[axis.name]
    return at if {a.name for a in output.axes if a.extent > 1} == set(at) else None


def _cancelled(e: Expr, normalised: Load, total: Load, outer: Sequence[Expr], below: Sequence[Expr]) -> Expr | None:
    """``e`` with each load ``normalised``, which stands for a sum, written as (normalised * total * outer / below), and
    with ``total`` cancelled where it stands above and below a line."""
    if not _reads(e, normalised.buffer.name):
        return e
    if e != normalised and not (isinstance(e, Binary) and e.op in (BinaryOp.MUL, BinaryOp.DIV)):
        children = [_cancelled(c, normalised, total, outer, below) for c in e.children]
        return None if any(c is None for c in children) else rebuild(e, [c for c in children if c is not None])
    above, under = _factors(e, rounded=True)
    if above.count(normalised) != 1 or any(_reads(f, normalised.buffer.name) for f in under):
        return None
    above, under = [*above, total, *outer], [*under, *below]
    while total in above and total in under:
        above.remove(total)
        under.remove(total)
    above = [f for f in above if f != const(1.0, float32)]
    value = above[0]
    for factor in above[1:]:
        value = value * factor
    for factor in under:
        value = value / factor
    return value
