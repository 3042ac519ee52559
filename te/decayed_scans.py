"""Running sums whose terms decay at a constant rate: discounted returns, moving averages, RWKV.

    Y[i, t] = sum over s of select(s <= t, exp(c[i] * float32(t - s)) * X[i, s], 0)

As written that takes n terms for an element. Sums of eight terms of sums of eight terms, and so on, are the same:

    Y_1[i, t] = sum over j < 8 of exp(c[i] * j) * X[i, t - j]
    Y_2[i, t] = sum over j < 8 of exp(c[i] * 8 * j) * Y_1[i, t - 8 * j]           and so on

No factor in between is beyond those of the whole sum, since a rate is constant: each is a power of the same number.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add, mul

from ..core.dtypes import float32, float64
from ..ir.expr import Binary, BinaryOp, Cast, Compare, CompareOp, Const, Expr, Load, Select, Unary, UnaryOp, Var, const
from ..ir.rewrite import free_variables, fresh_name, loads_of, substitute
from .contraction_path import with_own_axes
from .functions import TURNED, factors_of, summands_of
from .workload import Axis, Reducer, Stage, Workload

FEW, MANY = 8, 16
"""How many terms are added up at once; many where few would take more than ``MOST_LEVELS`` rounds."""
MOST_LEVELS = 4

_Weight = Callable[[int], Expr]
"""The weight of a term that is so many places away."""


@dataclass(frozen=True, slots=True)
class _DecayedScan:
    """``stage`` adds up, along ``axis``, ``value`` (on the axes of the stage) at all places up to each. ``reverse``:
    from each on. ``exclusive``: without its own place."""

    stage: Stage
    axis: Axis
    weight: _Weight
    value: Expr
    reverse: bool
    exclusive: bool


def with_doubled_scans(whole: Workload) -> Workload | None:
    """Return ``whole``, whose stages are inlined, with such sums in a few rounds; None where it has none. Sums that
    stand one behind the other make their rounds together."""
    taken = {b.name for b in whole.inputs} | {s.name for s in whole.stages}
    taken |= {a.name for s in whole.stages for a in (*s.axes, *s.reduce_axes)}
    stages: list[Stage] = []
    group: list[_DecayedScan] = []
    for stage in whole.stages:
        found = _decayed_scan_of(stage)
        if found is None or {load.buffer.name for load in loads_of(stage.body)} & {s.stage.name for s in group}:
            stages += _rounds(group, taken)
            group = []
        if found is None:
            stages.append(stage)
        else:
            group.append(found)
    stages += _rounds(group, taken)
    return replace(whole, stages=tuple(stages)) if len(stages) > len(whole.stages) else None


def _rounds(group: Sequence[_DecayedScan], taken: set[str]) -> Iterator[Stage]:
    """Yield the stages of scans, the first rounds of all of them first."""
    each = [list(_rounds_of(scan, taken)) for scan in group]
    for number in range(max(map(len, each), default=0)):
        for stages in each:
            if number < len(stages):
                yield stages[number]


def _rounds_of(scan: _DecayedScan, taken: set[str]) -> Iterator[Stage]:
    stage, extent = scan.stage, scan.axis.extent
    terms = FEW if extent <= FEW**MOST_LEVELS else MANY
    value, distance = scan.value, 1
    while distance < extent:
        total: Expr = value
        for n in range(1, terms):
            if n * distance < extent:
                total = total + _further(scan, value, n * distance)
        distance *= terms
        last = distance >= extent and not scan.exclusive
        tensor = stage.tensor if last else replace(stage.tensor, name=fresh_name(f"{stage.name}_part", taken))
        taken.add(tensor.name)
        yield with_own_axes(Stage(tensor, stage.axes, total), taken)
        value = Load(tensor, tuple(Var(a.name) for a in stage.axes))
    if scan.exclusive:
        yield with_own_axes(Stage(stage.tensor, stage.axes, _further(scan, value, 1)), taken)


def _further(scan: _DecayedScan, value: Expr, distance: int) -> Expr:
    """Return ``value`` so many places away with its weight; 0 where there is no such place."""
    place = Var(scan.axis.name)
    there = place + distance if scan.reverse else place - distance
    exists = there < scan.axis.extent if scan.reverse else place >= distance
    weighted = scan.weight(distance) * substitute(value, {scan.axis.name: there})
    return Select(exists, weighted, const(0.0, value.dtype))


def _decayed_scan_of(stage: Stage) -> _DecayedScan | None:
    """Return a stage as such a sum; None where it is none."""
    body = stage.body
    if stage.reducer is not Reducer.SUM or len(stage.reduce_axes) != 1 or stage.tensor.dtype not in (float32, float64):
        return None
    if not isinstance(body, Select) or not isinstance(body.otherwise, Const) or body.otherwise.value != 0:
        return None
    (reduced,), condition = stage.reduce_axes, body.condition
    if not isinstance(condition, Compare) or not isinstance(condition.a, Var) or not isinstance(condition.b, Var):
        return None
    op, names = condition.op, (condition.a.name, condition.b.name)
    if names[1] == reduced.name:
        op, names = TURNED.get(op, op), (names[1], names[0])
    axis = next((a for a in stage.axes if a.name == names[1]), None)
    if names[0] != reduced.name or axis is None or axis.extent != reduced.extent or op not in TURNED:
        return None
    reverse = op in (CompareOp.GE, CompareOp.GT)
    weights: list[_Weight] = []
    rest: list[Expr] = []
    for factor in factors_of(body.then):
        if axis.name not in free_variables(factor):
            rest.append(factor)
            continue
        found = _weight(factor, axis.name, reduced.name, reverse)
        if found is None:
            return None
        weights.append(found[0])
        rest += found[1]
    if not weights or not rest:
        return None

    def weight(distance: int) -> Expr:
        return reduce(mul, [w(distance) for w in weights])

    value = substitute(reduce(mul, rest), {reduced.name: Var(axis.name)})
    return _DecayedScan(stage, axis, weight, value, reverse, op in (CompareOp.LT, CompareOp.GT))


def _weight(e: Expr, place: str, term: str, reverse: bool) -> tuple[_Weight, list[Expr]] | None:
    """Return the weight that ``e`` is by the distance of a term from its place, and factors of the term alone."""
    if isinstance(e, Binary) and e.op is BinaryOp.POW and (sign := _distance_sign(e.b, place, term, reverse)):
        base, dtype = e.a, e.dtype
        if not free_variables(base) & {place, term}:
            return (lambda n: Binary(BinaryOp.POW, base, const(float(sign * n), dtype))), []
    if not isinstance(e, Unary) or e.op is not UnaryOp.EXP:
        return None
    rates: list[Expr] = []
    others: list[Expr] = []
    whole = bool(_distance_sign(e.value, place, term, reverse))
    for summand in (s if sign > 0 else _negated(s) for s, sign in ([(e.value, 1)] if whole else summands_of(e.value))):
        if place not in free_variables(summand):
            others.append(Unary(UnaryOp.EXP, summand))
            continue
        signs = [(f, _distance_sign(f, place, term, reverse)) for f in _factors_and_divisors(summand)]
        rate = [f for f, sign in signs if not sign]
        if len(signs) - len(rate) != 1 or any(free_variables(f) & {place, term} for f in rate):
            return None
        rates.append(reduce(mul, rate, const(float(sum(sign for _, sign in signs)), e.dtype)))
    rate_of_all = reduce(add, rates)
    return (lambda n: Unary(UnaryOp.EXP, rate_of_all * const(float(n), e.dtype))), others


def _distance_sign(e: Expr, place: str, term: str, reverse: bool) -> int:
    """Return 1 where ``e`` is how far a term is from its place, as a float, -1 where it is less than 0 by as much, and
    0 where it is anything else."""
    if not e.dtype.is_float:
        return 0
    ends: list[Expr] = [Var(term), Var(place)]
    if isinstance(e, Cast):
        e = e.value
    else:
        ends = [Cast(end, e.dtype) for end in ends]
    near, far = ends if reverse else reversed(ends)
    return 1 if e == near - far else -1 if e == far - near else 0


def _factors_and_divisors(e: Expr) -> Iterator[Expr]:
    """Yield what is multiplied in an expression, and the reciprocals of what it is divided by."""
    for factor in factors_of(e):
        if isinstance(factor, Binary) and factor.op is BinaryOp.DIV:
            yield from _factors_and_divisors(factor.a)
            yield const(1.0, e.dtype) / factor.b
        elif isinstance(factor, Unary) and factor.op is UnaryOp.NEG:
            yield const(-1.0, e.dtype)
            yield from _factors_and_divisors(factor.value)
        else:
            yield factor


def _negated(e: Expr) -> Expr:
    """Return ``e`` with another sign; of a product or a quotient, the first factor has it."""
    if isinstance(e, Binary) and e.op in (BinaryOp.MUL, BinaryOp.DIV):
        return replace(e, a=_negated(e.a))
    return Unary(UnaryOp.NEG, e)
