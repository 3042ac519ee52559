"""Expressions of the interpreter of launches: one handler per node class, for scalars and vectors alike.

Lanes are the first dimension, threads the last, so that scalars broadcast against vectors.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.errors import InvalidKernel
from ..expr import (
    WARP_LANES,
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    ClusterLoad,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Logic,
    LogicOp,
    Ramp,
    ReduceLanes,
    Select,
    Shuffle,
    ShuffleMode,
    Unary,
    UnaryOp,
    Var,
)
from ..interpret_math import VECTOR_FUNCTIONS, vector_cast
from ..memory import Array, computed
from .access import load_code, under, watched_load
from .address import is_uniform, shared_flat
from .memory import SharedMemory
from .scope import Code, Machine, Scope

_BINARY: dict[BinaryOp, Callable[[Any, Any], Any]] = {
    BinaryOp.ADD: operator.add,
    BinaryOp.SUB: operator.sub,
    BinaryOp.MUL: operator.mul,
    BinaryOp.DIV: np.divide,
    BinaryOp.FLOORDIV: operator.floordiv,
    BinaryOp.MOD: operator.mod,
    BinaryOp.MIN: np.minimum,
    BinaryOp.MAX: np.maximum,
    BinaryOp.POW: np.power,
}
_COMPARE: dict[CompareOp, Callable[[Any, Any], Any]] = {
    CompareOp.LT: operator.lt,
    CompareOp.LE: operator.le,
    CompareOp.GT: operator.gt,
    CompareOp.GE: operator.ge,
    CompareOp.EQ: operator.eq,
    CompareOp.NE: operator.ne,
}
_LANE_REDUCTIONS: dict[BinaryOp, np.ufunc] = {
    BinaryOp.ADD: np.add,
    BinaryOp.MUL: np.multiply,
    BinaryOp.MIN: np.minimum,
    BinaryOp.MAX: np.maximum,
}


def value_code(expr: Expr, scope: Scope) -> Code:
    """``expr`` as code; scalars that launch variables alone decide are worked out once per chunk."""
    handler = _VALUES.get(type(expr))
    if handler is None:
        raise InvalidKernel(f"{type(expr).__name__} cannot be interpreted in a launch")
    if isinstance(expr, Shuffle) and expr in scope.ahead:
        early = scope.ahead[expr]
        return lambda m: m.env[early]
    if isinstance(expr, (Var, Const)) or expr.lanes > 1 or not scope.settled(expr):
        return handler(expr, scope)
    slot = scope.once.get(expr)
    if slot is None:
        code = handler(expr, scope)
        slot = scope.once[expr] = scope.slot()
        scope.prologue.append((slot, code))
    return lambda m: m.env[slot]


def _var(expr: Var, scope: Scope) -> Code:
    slot = scope.slots[expr.name]
    return lambda m: m.env[slot]


def _const(expr: Const, scope: Scope) -> Code:
    value: Any = expr.value
    if expr.type.name != "int64" and not expr.type.is_bool:
        value = vector_cast(expr.type, expr.type)(np.asarray(value, dtype=computed(expr.type)))[()]
    return lambda m: value


def _binary(expr: Binary, scope: Scope) -> Code:
    a, b, operation = value_code(expr.a, scope), value_code(expr.b, scope), _BINARY[expr.op]
    if expr.op not in (BinaryOp.FLOORDIV, BinaryOp.MOD) or (isinstance(expr.b, Const) and expr.b.value > 0):
        return lambda m: operation(a(m), b(m))
    lanes = expr.lanes

    def divide(m: Machine) -> Any:
        dividend, divisor = a(m), b(m)
        zero = np.equal(divisor, 0)
        if zero.any():
            shape = (m.threads,) if lanes == 1 else (lanes, m.threads)
            active = m.running(shape)
            wrong = np.broadcast_to(zero, shape) if active is None else zero & active
            if wrong.any():
                at = np.unravel_index(int(wrong.argmax()), shape)
                raise scope.fault(f"{np.broadcast_to(dividend, shape)[at]} {expr.op} 0", m, int(at[-1]))
            divisor = np.where(zero, 1, divisor)
        return operation(dividend, divisor)

    return divide


def _compare(expr: Compare, scope: Scope) -> Code:
    a, b, operation = value_code(expr.a, scope), value_code(expr.b, scope), _COMPARE[expr.op]
    return lambda m: operation(a(m), b(m))


def _logic(expr: Logic, scope: Scope) -> Code:
    a, b = value_code(expr.a, scope), value_code(expr.b, scope)
    if expr.op is LogicOp.AND:  # both sides are always evaluated: only select guards
        return lambda m: a(m) & b(m)
    return lambda m: a(m) | b(m)


_erf = np.frompyfunc(math.erf, 1, 1)


def _unary(expr: Unary, scope: Scope) -> Code:
    value = value_code(expr.value, scope)
    if expr.op is UnaryOp.ERF:
        dtype = computed(expr.dtype)
        return lambda m: np.asarray(_erf(value(m)), dtype=dtype)[()]
    function = VECTOR_FUNCTIONS[expr.op]
    return lambda m: function(value(m))


def _cast(expr: Cast, scope: Scope) -> Code:
    value, convert = value_code(expr.value, scope), vector_cast(expr.value.dtype, expr.type)
    source = computed(expr.value.dtype)
    return lambda m: convert(np.asarray(value(m), dtype=source))[()]


def _safe(expr: Expr) -> bool:
    """Whether evaluating ``expr`` where it is not wanted does no harm."""
    match expr:
        case Load() | ClusterLoad() | Shuffle():
            return False
        case Binary(op=BinaryOp.FLOORDIV | BinaryOp.MOD, b=b) if not (isinstance(b, Const) and b.value > 0):
            return False
    return all(_safe(c) for c in expr.children)


def _select(expr: Select, scope: Scope) -> Code:
    condition = value_code(expr.condition, scope)
    branches = then, otherwise = value_code(expr.then, scope), value_code(expr.otherwise, scope)
    safe = _safe(expr.then) and _safe(expr.otherwise)
    nothing = computed(expr.dtype).type(0)

    def select(m: Machine) -> Any:
        taken = condition(m)
        if is_uniform(taken):
            return then(m) if taken else otherwise(m)
        if safe:
            return np.where(taken, then(m), otherwise(m))
        outer = m.active
        results = []
        for branch, mask in zip(branches, (taken, ~taken), strict=True):
            results.append(branch(m) if under(m, mask) else nothing)
            m.active = outer
        return np.where(taken, *results)

    return select


def _ramp(expr: Ramp, scope: Scope) -> Code:
    base = value_code(expr.base, scope)
    if expr.count == 1:
        return base
    steps = np.arange(expr.count, dtype=np.int64)[:, None] * expr.stride
    return lambda m: steps + base(m)


def _reduce_lanes(expr: ReduceLanes, scope: Scope) -> Code:
    value, lanes = value_code(expr.value, scope), expr.value.lanes
    if lanes == 1:
        return value
    ufunc, dtype = _LANE_REDUCTIONS[expr.op], computed(expr.dtype)

    def reduce(m: Machine) -> Any:
        outer = m.active
        if outer is not None and outer.ndim == 2:  # its lanes are its own, not those of a select around it
            m.active = m.running((m.threads,))
        total = ufunc.reduce(np.broadcast_to(value(m), (lanes, m.threads)), axis=0, dtype=dtype)
        m.active = outer
        return total

    return reduce


# Exchange between threads --------------------------------------------------------------------------------------


def _shuffle(expr: Shuffle, scope: Scope) -> Code:
    value, lane, width = value_code(expr.value, scope), value_code(expr.lane, scope), expr.width
    source_of = _SOURCES[expr.mode]
    own = np.arange(WARP_LANES, dtype=np.int64)

    def shuffle(m: Machine) -> Any:
        who = m.divided(WARP_LANES, "a shuffle", scope)
        given, number = value(m), lane(m)
        m.order.meet(m.order.warp_level, who)
        if is_uniform(given):
            return given
        warps = np.broadcast_to(given, (m.threads,)).reshape(-1, WARP_LANES)
        if is_uniform(number):
            source = source_of(own % width, int(number), width) + own // width * width
            _check_lanes(source, m, scope)
            return warps[:, source].reshape(-1)
        place = m.thread % WARP_LANES
        source = source_of(place % width, number, width) + place // width * width
        _check_lanes(source if who is None else np.where(who, source, 0), m, scope)
        source = np.clip(source, 0, WARP_LANES - 1)
        return warps[m.places // WARP_LANES, source]

    return shuffle


def _check_lanes(source: Array, m: Machine, scope: Scope) -> None:
    wrong = (source < 0) | (source >= WARP_LANES)
    if wrong.any():
        at = int(wrong.argmax())
        raise scope.fault(f"a shuffle asks for lane {int(source[at])}", m, at)


def _down(own: Array, delta: Any, width: int) -> Array:
    return np.where(own + delta < width, own + delta, own)


_SOURCES: dict[ShuffleMode, Callable[[Array, Any, int], Array]] = {
    ShuffleMode.XOR: lambda own, lane, width: np.where((own ^ lane) < width, own ^ lane, WARP_LANES),
    ShuffleMode.DOWN: _down,
    ShuffleMode.INDEX: lambda own, lane, width: np.where((lane >= 0) & (lane < width), lane + own * 0, WARP_LANES),
}
"""The lane, within its group, whose value a lane gets."""


def _peer_load(expr: ClusterLoad, scope: Scope) -> Code:
    memory = scope.shared[expr.buffer.name]
    assert isinstance(memory, SharedMemory)
    here, block = shared_flat(expr.indices, memory, scope, value_code), value_code(expr.block, scope)

    def flat(m: Machine) -> Any:
        number = block(m)
        wrong = np.broadcast_to(np.less(number, 0) | np.greater_equal(number, m.cluster), (m.threads,))
        active = m.running((m.threads,))
        wrong = wrong if active is None else wrong & active
        if wrong.any():
            at = int(wrong.argmax())
            given = int(np.broadcast_to(number, (m.threads,))[at])
            raise scope.fault(f"block {given} is none of a cluster of {m.cluster}", m, at, expr.buffer.name)
        if active is not None:
            number = np.where(active, number, 0)
        m.peer_uses[slice(None) if active is None else active] = m.order.now
        return here(m) + (number - m.block % m.cluster) * memory.span

    return watched_load(memory, flat, expr.lanes, scope)


_VALUES: dict[type[Expr], Callable[[Any, Scope], Code]] = {
    Var: _var,
    Const: _const,
    Binary: _binary,
    Compare: _compare,
    Logic: _logic,
    Unary: _unary,
    Select: _select,
    Cast: _cast,
    Load: lambda expr, scope: load_code(expr, scope, value_code),
    Ramp: _ramp,
    Broadcast: lambda expr, scope: value_code(expr.value, scope),
    ReduceLanes: _reduce_lanes,
    Shuffle: _shuffle,
    ClusterLoad: _peer_load,
}
"""How each class of node is computed."""
