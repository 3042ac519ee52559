"""How far a right kernel may be from the reference: a first-order error analysis on a sample.

Each tensor is represented by a few hundred of its values under ``random_inputs``, each with a bound on its rounding
error. Expressions are evaluated on draws from those samples, the errors carried along by the derivative of each
operation plus its own rounding (Higham, Accuracy and Stability of Numerical Algorithms, section 3.3, running error
analysis). So a softmax gets a tight tolerance, a sum one that grows with its length, and a normalisation by a small
variance one that grows as that amplifies. Draws are independent: correlation between tensors is not seen.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import DType, float32
from ..core.errors import InvalidWorkload
from ..core.precision import PRECISIONS
from ..core.streams import stream
from ..ir.buffer import Buffer
from ..ir.expr import (
    BITWISE,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Logic,
    Select,
    Unary,
    UnaryOp,
    Var,
    walk,
)
from ..ir.rewrite import map_expr
from .contraction import contraction_of
from .contraction_path import contraction_paths
from .data import EXPONENTS, exponents, random_inputs
from .evaluate import BINARY, COMPARE, LOGIC, UNARY, rounded
from .packed_floats import read_dtypes
from .scatter import with_usual_terms
from .workload import Reducer, Stage, Workload

_SAFETY = 4.0
"""Tolerance over estimated error. It allows for other orders of summation, faster functions, and tails that a sample
misses."""

_POINTS = 1024
"""How many points of a stage without a reduction are sampled."""

_NEAR_ZERO = np.outer((-1.0, 1.0), (0.01, 0.1, 0.5, 1.0, 4.0)).ravel()
"""Sums that are sampled besides those that are drawn, where these have both signs. Functions such as sigmoid take the
error of a sum over near 0. Of a hundred sums that are mostly in the hundreds none may be there; of millions some are.
"""

_ROWS, _TERMS = 128, 256
"""How many points of a reduction are sampled, and how many terms of each."""

MATRIX_UNIT_ROUNDOFF = 2.0**-13
"""The relative error of a sum of products of floats of 8 bits that one matrix instruction makes: on Hopper its
accumulators keep about 14 bits (DeepSeek-V3 Technical Report, section 3.3.2)."""
FLOAT8_MMA_K, PROMOTED_K = 32, 128
"""An instruction takes so many places of k; after the second number of them accumulators are added to float32."""

_FUNCTION = 4.0
"""The error of a fast exp, tanh and the like, in units of roundoff."""

MOST_HIDDEN = 0.75
"""A mask hides up to this share of the sampled scores of a softmax."""

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


def tolerance(workload: Workload) -> dict[str, tuple[float, float]]:
    """For each output ``(absolute, relative)``: a result is right where
    ``|result - reference| <= absolute + relative * |reference|`` (equal infinities and NaN where the reference has
    NaN are right too). For inputs as ``random_inputs`` draws them.

    Integers and bools are ``(0, 0)`` unless they are made from floats that were computed. Comparisons are taken to
    be exact: an expression that compares computed floats can differ from its reference where they nearly meet.
    """
    powers = exponents(workload)
    tensors = {t.name: _input(t, n, t.name in powers) for n, t in enumerate(workload.inputs)}
    maxima = {s.name: _anywhere(s.body) for s in workload.stages if s.reducer is Reducer.MAX}
    with np.errstate(all="ignore"):
        for n, stage in enumerate(workload.stages):
            draw = stream(0, "tolerance", n)
            tensors[stage.name] = _stage(stage, tensors, maxima, draw, workload.precision)
        return {t.name: _limits(tensors[t.name], t.dtype) for t in workload.output_buffers}


@dataclass(frozen=True, slots=True)
class _Bounded:
    """Values, and a bound on the error of each."""

    value: Floats
    error: Floats


def _input(tensor: Buffer, position: int, is_exponent: bool) -> _Bounded:
    if is_exponent:
        return _exact(np.resize(np.arange(*EXPONENTS, dtype=np.float64), _POINTS))
    sampled = Workload((Buffer(tensor.name, (_POINTS,), tensor.dtype),), (), ())
    return _exact(random_inputs(sampled, position)[tensor.name].astype(np.float64))


def _roundoff(dtype: DType) -> float:
    """Half the distance from 1 to the next number of the dtype. It is 0 for exact dtypes."""
    return {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype.name, 0.0)


def _limits(sample: _Bounded, dtype: DType) -> tuple[float, float]:
    finite = np.isfinite(sample.value) & np.isfinite(sample.error)
    value, error = np.abs(sample.value[finite]), sample.error[finite]
    if not dtype.is_float:
        return float(math.ceil(error.max(initial=0.0))), 0.0
    # The smallest numbers are lost where a processor flushes them (halves are computed in float32: not flushed). A
    # GPU's fast division makes 0 of x/y where |y| is beyond 2^126, as in x * sigmoid(x) at -88: of up to 2^-119.
    smallest = {16: 2.0**-22, 32: 2.0**-118, 64: 2.0**-1021}[dtype.bits]
    if dtype.name == "bfloat16":
        smallest = 2.0**-118
    relative, absolute = 2.0 * _roundoff(dtype), 0.0
    if len(value):
        large = (value >= np.median(value)) & (value > 0)
        # What relative errors leave over; at least the least error there is, for values smaller than any sampled, and
        # what large values have besides their own rounding: a function of a sum has that near zero as well.
        least = float(np.min(error))
        if large.any():
            relative = max(relative, float(np.median(error[large] / value[large])))
            least = max(least, float(np.min((error - _roundoff(dtype) * value)[large])))
        absolute = max(float(np.max(error - relative * value)), least)
    return _SAFETY * absolute + smallest, _SAFETY * relative


def _anywhere(e: Expr) -> Expr:
    """Return ``e`` with all variables alike, so that what is reduced equals what reads the result on other axes."""
    return map_expr(e, lambda node: Var("anywhere") if isinstance(node, Var) else node)


def _stage(
    stage: Stage,
    tensors: Mapping[str, _Bounded],
    maxima: Mapping[str, Expr],
    draw: np.random.Generator,
    precision: str,
) -> _Bounded:
    reduced = {a.name for a in stage.reduce_axes}
    extents = {a.name: a.extent for a in (*stage.axes, *stage.reduce_axes)}
    stage, length = with_usual_terms(stage)
    shape = (_ROWS, min(length, _TERMS)) if reduced else (_POINTS, 1)
    terms = _Sampler(tensors, maxima, extents, reduced, shape, draw, {}).of(stage.body)
    value, error = np.broadcast_to(terms.value, shape), np.broadcast_to(terms.error, shape)
    if stage.reducer is None:
        return _Bounded(value[:, 0], error[:, 0])
    match stage.reducer:
        case Reducer.SUM:
            products, read = _products(stage)
            factors = products * PRECISIONS[precision].factor_error if float32 in read else 0.0  # they err at random
            steps = _matrix_unit_steps(length, precision) if any(d.is_float and d.bits <= 8 for d in read) else 0.0
            return _sum(value, error, length, _roundoff(stage.tensor.dtype), factors + MATRIX_UNIT_ROUNDOFF * steps)
        case Reducer.PROD:
            return _product(value, error, length, _roundoff(stage.tensor.dtype))
        case Reducer.ARGMAX | Reducer.ARGMIN:  # a value that is not exact may be overtaken by any other
            found = value.argmax(axis=1) if stage.reducer is Reducer.ARGMAX else value.argmin(axis=1)
            return _Bounded(found * (length / shape[1]), np.where(error.max(axis=1) > 0, length - 1.0, 0.0))
    best = value.max(axis=1) if stage.reducer is Reducer.MAX else value.min(axis=1)
    return _Bounded(best, error.max(axis=1))


def _products(stage: Stage) -> tuple[int, set[DType]]:
    """Return how many sums of products the sum of a stage can be, one after the other, and the dtypes of what they
    multiply; (0, none) where it is no sum of products."""
    steps = max((len(path.intermediates) + 1 for path in contraction_paths(stage)), default=0)
    if not steps and contraction_of(stage) is None:
        return 0, set()
    read = read_dtypes(stage.body)
    return max(steps, 1), {*read, stage.tensor.dtype} if steps else read


def _product(value: Floats, error: Floats, length: int, unit: float) -> _Bounded:
    """Products of ``length`` terms like those of ``value[rows, terms]``: relative errors add up, one for each term and
    one for each rounding."""
    sampled = value.shape[1]
    total = np.sign(value).prod(axis=1) * np.exp(np.log(np.abs(value)).mean(axis=1) * length)
    relative = np.where(error > 0, error / np.abs(value), 0.0).mean(axis=1) * length
    roundings = unit * length if length > 1 else 0.0
    return _Bounded(value.prod(axis=1) if sampled == length else total, np.abs(total) * (relative + roundings))


def _matrix_unit_steps(length: int, precision: str) -> float:
    """Return how many instructions add up products of narrow floats before their accumulators are added to float32."""
    return min(length, length if precision == "fast_accumulation" else PROMOTED_K) / FLOAT8_MMA_K


def _sum(value: Floats, error: Floats, length: int, unit: float, further: float) -> _Bounded:
    """Sums of ``length`` terms like those of ``value[rows, terms]``. ``further``: the relative error of partial sums
    that is none of the rounding of the result's dtype.

    The terms' errors add up. The rounding of the partial sums is a random walk of ``length`` steps of up to a unit
    of the largest partial sum. All steps may go one way where the terms of a sum are all alike. They may too where the
    sum outgrows its terms, so that their digits are lost in it.
    """
    sampled = value.shape[1]
    means, within = value.mean(axis=1), float(value.var(axis=1).mean())
    mean = float(means.mean())
    between = max(0.0, float(means.var()) - within / sampled)  # the rest is the noise of sampling only some terms
    noise = between + within / sampled
    shrink = math.sqrt((between + within / length) / noise) if noise > 0.0 else 1.0
    total, spread, of_terms = length * (mean + (means - mean) * shrink), math.sqrt(length * within), error.mean(axis=1)
    size = float(np.abs(value).mean())
    one_way = float((np.abs(total) + spread).mean()) * unit > 0.25 * size or math.sqrt(within) < 0.01 * size
    steps = float(length) if one_way else 2.0 * math.sqrt(length)
    if total.min() < _NEAR_ZERO.min() and total.max() > _NEAR_ZERO.max():
        total = np.append(total, _NEAR_ZERO)
        of_terms = np.append(of_terms, np.full(len(_NEAR_ZERO), of_terms.mean()))
    rounding = (np.abs(total) + spread) * (unit * steps + further) if length > 1 else 0.0
    return _Bounded(total, length * of_terms + rounding)


@dataclass(frozen=True, slots=True)
class _Sampler:
    """Evaluates the body of a stage on draws. ``shape``: (points, terms); what does not vary within a point has one
    term. Equal loads are one draw. ``maxima``: tensor -> what it is the maximum of, which is never above it.
    ``opened``: condition of a mask -> the draws that it does not hide, though it says so."""

    tensors: Mapping[str, _Bounded]
    maxima: Mapping[str, Expr]
    extents: Mapping[str, int]
    reduced: set[str]
    shape: tuple[int, int]
    draw: np.random.Generator
    drawn: dict[Expr, _Bounded]
    opened: dict[Expr, Bools] = field(default_factory=dict)

    def of(self, e: Expr) -> _Bounded:
        match e:
            case Load() | Var():
                if e not in self.drawn:
                    self.drawn[e] = self._leaf(e)
                return self.drawn[e]
            case Const(value=value):
                return _exact(np.full((1, 1), float(value)))
            case Compare(op=compare, a=a, b=b):
                return _exact(COMPARE[compare](self.of(a).value, self.of(b).value).astype(np.float64))
            case Logic(op=logic, a=a, b=b):
                return _exact(LOGIC[logic](self.of(a).value != 0, self.of(b).value != 0).astype(np.float64))
            case Select():
                condition, then, otherwise = (self.of(c) for c in e.children)
                where = self._shown(e, condition.value != 0)
                return _Bounded(
                    np.where(where, then.value, otherwise.value), np.where(where, then.error, otherwise.error)
                )
            case Cast(value=value, type=dtype):
                return _cast(self.of(value), value.dtype, dtype)
            case Binary(op=BinaryOp.MUL, a=a, b=Const(value=factor)) if _is_power_of_two(factor):
                x = self.of(a)
                return _Bounded(x.value * float(factor), x.error * abs(float(factor)))
            case Unary(op=unary, value=value):
                return _unary(unary, self.of(value), e.dtype)
            case Binary(op=BinaryOp.SUB, a=a, b=Load(buffer=top)) if self.maxima.get(top.name) == _anywhere(a):
                below = _binary(BinaryOp.SUB, self.of(a), self.of(e.children[1]), e.dtype)
                return _Bounded(np.minimum(below.value, 0.0), below.error)
            case Binary(op=op, a=a, b=b):
                return _binary(op, self.of(a), self.of(b), e.dtype)
        raise InvalidWorkload(f"{type(e).__name__} has no place in a tensor expression")

    def _shown(self, e: Select, where: Bools) -> Bools:
        """Return where ``e`` takes its first branch. A mask of infinities that hides nearly all draws hides fewer of
        them, at random: what it compares goes together in real rows, as the numbers of documents do, and draws are
        independent."""
        hides = [isinstance(branch, Const) and math.isinf(branch.value) for branch in (e.then, e.otherwise)]
        if hides[0] == hides[1] or np.mean(where == hides[0]) <= MOST_HIDDEN:
            return where
        if e.condition not in self.opened:
            self.opened[e.condition] = self.draw.random(self.shape) >= MOST_HIDDEN
        return where & ~self.opened[e.condition] if hides[0] else where | self.opened[e.condition]

    def _leaf(self, e: Expr) -> _Bounded:
        varies = any(isinstance(v, Var) and v.name in self.reduced for v in walk(e))
        shape = self.shape if varies else (self.shape[0], 1)
        if isinstance(e, Var):
            return _exact(self.draw.integers(0, self.extents[e.name], shape).astype(np.float64))
        assert isinstance(e, Load)
        sample = self.tensors[e.buffer.name]
        at = self.draw.integers(0, len(sample.value), shape)
        return _Bounded(sample.value[at], sample.error[at])


def _exact(value: Floats) -> _Bounded:
    return _Bounded(value, np.zeros_like(value))


def _cast(x: _Bounded, given: DType, wanted: DType) -> _Bounded:
    if wanted.is_bool:
        return _exact((x.value != 0).astype(np.float64))
    if wanted.is_float:
        return _Bounded(x.value, x.error + _own(x.value, (x.error,), wanted))
    low, high = wanted.integer_range
    value = np.clip(np.trunc(x.value), low, high) if given.is_float else x.value
    return _Bounded(value, np.where(x.error > 0, np.ceil(x.error) + given.is_float, 0.0))


def _is_power_of_two(value: float) -> bool:
    return math.isfinite(value) and abs(math.frexp(value)[0]) == 0.5


def _own(f: Floats, errors: tuple[Floats, ...], dtype: DType) -> Floats:
    """Return the rounding of results ``f`` to ``dtype``: none where the operands are exact and ``f`` is a number of it
    (for float64, one of so few digits that its own computation was hardly rounded)."""
    unit = _roundoff(dtype)
    size: Floats = np.where(np.isinf(f), 0.0, unit * np.abs(f))  # an infinity is exact: masked scores are
    if unit == 0.0:
        return size
    inexact = rounded(f, float32 if dtype.bits == 64 else dtype) != f
    for error in errors:
        inexact = inexact | (error > 0)
    return np.where(inexact, size, 0.0)


def _unary(op: UnaryOp, x: _Bounded, dtype: DType) -> _Bounded:
    a, e = x.value, x.error
    if op is UnaryOp.NOT:
        return _exact((a == 0).astype(np.float64))
    f = np.asarray(UNARY[op](a), dtype=np.float64)
    if op in (UnaryOp.NEG, UnaryOp.ABS):
        return _Bounded(f, e)
    if op in (UnaryOp.FLOOR, UnaryOp.CEIL):
        return _Bounded(f, np.where(e > 0, np.ceil(e), 0.0))
    if op is UnaryOp.RINT:
        return _Bounded(f, np.where(e > 0, np.floor(e) + 1.0, 0.0))
    unit = _function_unit(dtype)
    own = unit * np.abs(f)
    match op:
        case UnaryOp.EXP:
            slope = np.abs(f)
        case UnaryOp.EXP2:
            slope = math.log(2.0) * np.abs(f)
        case UnaryOp.LOG:
            slope, own = 1.0 / np.abs(a), own + unit
        case UnaryOp.TANH:
            slope = 1.0 - f * f
        case UnaryOp.ERF:
            slope, own = 2.0 / math.sqrt(math.pi) * np.exp(-a * a), own + unit
        case UnaryOp.SQRT:
            slope = np.where(e > 0, 0.5 / f, 0.0)
        case UnaryOp.RSQRT:
            slope = 0.5 * np.abs(f / a)
        case _:  # sin, cos: reducing the argument costs a rounding of it
            slope, own = np.ones_like(a), unit * (1.0 + np.abs(a))
    return _Bounded(f, np.where(e > 0, slope * e, 0.0) + own)


def _function_unit(dtype: DType) -> float:
    """Return the relative error of a fast function: half floats are computed in float32 and rounded."""
    unit = _roundoff(dtype)
    return _FUNCTION * unit if dtype.bits > 16 else unit + _FUNCTION * 2.0**-24


def _binary(op: BinaryOp, x: _Bounded, y: _Bounded, dtype: DType) -> _Bounded:
    a, b = x.value, y.value
    if op in BITWISE:
        return _exact(np.asarray(BINARY[op](a.astype(dtype.numpy), b.astype(dtype.numpy)), dtype=np.float64))
    f = np.asarray(BINARY[op](a, b), dtype=np.float64)
    own = _own(f, (x.error, y.error), dtype)
    match op:
        case BinaryOp.ADD | BinaryOp.SUB:
            error = x.error + y.error + own
        case BinaryOp.MUL:
            error = np.abs(a) * y.error + np.abs(b) * x.error + own
        case BinaryOp.DIV:
            error = x.error / np.abs(b) + np.abs(f / b) * y.error + own
        case BinaryOp.FLOORDIV:
            error = np.where(x.error > 0, np.ceil(x.error / b), 0.0)
        case BinaryOp.MOD:
            error = np.where(x.error > 0, b, 0.0)
        case BinaryOp.POW:
            powers = np.where(y.error > 0, np.abs(np.log(np.abs(a))) * y.error, 0.0)
            error = np.abs(f) * (np.abs(b / a) * x.error + powers) + _function_unit(dtype) * np.abs(f)
        case _:  # min, max
            error = np.maximum(x.error, y.error)
    return _Bounded(f, error)
