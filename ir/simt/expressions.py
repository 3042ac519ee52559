"""Expressions of the interpreter of launches: a handler for each node class, for scalars and vectors alike.

Lanes are the first dimension, threads the last, so that scalars broadcast against vectors.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import replace
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
from ..fold import BIT_OPERATIONS, COMPARISONS
from ..interpreter.functions import VECTOR_FUNCTIONS, vector_cast
from ..interpreter.memory import Array, computed
from .access import checked_load, load_closure, under
from .address import is_uniform, shared_flat
from .context import LaunchClosure, LaunchContext, LaunchState
from .memory import SharedMemory

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
    **BIT_OPERATIONS,
}
_LANE_REDUCTIONS: dict[BinaryOp, np.ufunc] = {
    BinaryOp.ADD: np.add,
    BinaryOp.MUL: np.multiply,
    BinaryOp.MIN: np.minimum,
    BinaryOp.MAX: np.maximum,
}


def value_closure(expr: Expr, context: LaunchContext) -> LaunchClosure:
    """Return ``expr`` as a closure. Scalars that depend on variables of the launch alone are computed once per
    chunk, and those that depend on variables of loops alone once for all values of these."""
    handler = _VALUES.get(type(expr))
    if handler is None:
        raise InvalidKernel(f"{type(expr).__name__} cannot be interpreted in a launch")
    if isinstance(expr, Shuffle) and expr in context.precomputed:
        early = context.precomputed[expr]
        return lambda state: state.env[early]
    if isinstance(expr, (Var, Const)) or expr.lanes > 1:
        return handler(expr, context)
    if not context.is_launch_invariant(expr):
        # one operation takes no longer than to look its result up
        if not context.remembers or all(isinstance(child, (Var, Const)) for child in expr.children):
            return handler(expr, context)
        if context.depends_on_loops(expr):
            return context.remembered(handler(expr, replace(context, remembers=False)), expr)
        return handler(expr, context)
    slot = context.hoisted.get(expr)
    if slot is None:
        closure = handler(expr, context)
        slot = context.hoisted[expr] = context.slot()
        context.prologue.append((slot, closure))
    return lambda state: state.env[slot]


def _var(expr: Var, context: LaunchContext) -> LaunchClosure:
    slot = context.slots[expr.name]
    return lambda state: state.env[slot]


def _const(expr: Const, context: LaunchContext) -> LaunchClosure:
    value: Any = expr.value
    if expr.type.name != "int64" and not expr.type.is_bool:
        value = vector_cast(expr.type, expr.type)(np.asarray(value, dtype=computed(expr.type)))[()]
    return lambda state: value


def _binary(expr: Binary, context: LaunchContext) -> LaunchClosure:
    a, b, operation = value_closure(expr.a, context), value_closure(expr.b, context), _BINARY[expr.op]
    if expr.op not in (BinaryOp.FLOORDIV, BinaryOp.MOD) or (isinstance(expr.b, Const) and expr.b.value > 0):
        return lambda state: operation(a(state), b(state))
    lanes = expr.lanes

    def divide(state: LaunchState) -> Any:
        dividend, divisor = a(state), b(state)
        zero = np.equal(divisor, 0)
        if zero.any():
            shape = (state.threads,) if lanes == 1 else (lanes, state.threads)
            active = state.running(shape)
            wrong = np.broadcast_to(zero, shape) if active is None else zero & active
            if wrong.any():
                at = np.unravel_index(int(wrong.argmax()), shape)
                raise context.fault(f"{np.broadcast_to(dividend, shape)[at]} {expr.op} 0", state, int(at[-1]))
            divisor = np.where(zero, 1, divisor)
        return operation(dividend, divisor)

    return divide


def _compare(expr: Compare, context: LaunchContext) -> LaunchClosure:
    a, b, operation = value_closure(expr.a, context), value_closure(expr.b, context), COMPARISONS[expr.op]
    return lambda state: operation(a(state), b(state))


def _logic(expr: Logic, context: LaunchContext) -> LaunchClosure:
    a, b = value_closure(expr.a, context), value_closure(expr.b, context)
    if expr.op is LogicOp.AND:  # both sides are always evaluated: only select guards
        return lambda state: a(state) & b(state)
    return lambda state: a(state) | b(state)


_erf = np.frompyfunc(math.erf, 1, 1)


def _unary(expr: Unary, context: LaunchContext) -> LaunchClosure:
    value = value_closure(expr.value, context)
    if expr.op is UnaryOp.ERF:
        dtype = computed(expr.dtype)
        return lambda state: np.asarray(_erf(value(state)), dtype=dtype)[()]
    function = VECTOR_FUNCTIONS[expr.op]
    return lambda state: function(value(state))


def _cast(expr: Cast, context: LaunchContext) -> LaunchClosure:
    value, convert = value_closure(expr.value, context), vector_cast(expr.value.dtype, expr.type)
    source = computed(expr.value.dtype)
    return lambda state: convert(np.asarray(value(state), dtype=source))[()]


def _safe(expr: Expr) -> bool:
    """Return whether ``expr`` may be evaluated in threads that do not need it."""
    match expr:
        case Load() | ClusterLoad() | Shuffle():
            return False
        case Binary(op=BinaryOp.FLOORDIV | BinaryOp.MOD, b=b) if not (isinstance(b, Const) and b.value > 0):
            return False
    return all(_safe(c) for c in expr.children)


def _select(expr: Select, context: LaunchContext) -> LaunchClosure:
    condition = value_closure(expr.condition, context)
    branches = then, otherwise = value_closure(expr.then, context), value_closure(expr.otherwise, context)
    safe = _safe(expr.then) and _safe(expr.otherwise)
    nothing = computed(expr.dtype).type(0)

    def select(state: LaunchState) -> Any:
        taken = condition(state)
        if is_uniform(taken):
            return then(state) if taken else otherwise(state)
        if safe:
            return np.where(taken, then(state), otherwise(state))
        outer = state.active
        results = []
        for branch, mask in zip(branches, (taken, ~taken), strict=True):
            results.append(branch(state) if under(state, mask) else nothing)
            state.active = outer
        return np.where(taken, *results)

    return select


def _ramp(expr: Ramp, context: LaunchContext) -> LaunchClosure:
    base = value_closure(expr.base, context)
    if expr.count == 1:
        return base
    steps = np.arange(expr.count, dtype=np.int64)[:, None] * expr.stride
    return lambda state: steps + base(state)


def _reduce_lanes(expr: ReduceLanes, context: LaunchContext) -> LaunchClosure:
    value, lanes = value_closure(expr.value, context), expr.value.lanes
    if lanes == 1:
        return value
    ufunc, dtype = _LANE_REDUCTIONS[expr.op], computed(expr.dtype)

    def reduce(state: LaunchState) -> Any:
        outer = state.active
        if outer is not None and outer.ndim == 2:  # its lanes are its own, not those of a select around it
            state.active = state.running((state.threads,))
        total = ufunc.reduce(np.broadcast_to(value(state), (lanes, state.threads)), axis=0, dtype=dtype)
        state.active = outer
        return total

    return reduce


# Exchange between threads --------------------------------------------------------------------------------------


def _shuffle(expr: Shuffle, context: LaunchContext) -> LaunchClosure:
    value, lane, width = value_closure(expr.value, context), value_closure(expr.lane, context), expr.width
    source_of = _SOURCES[expr.mode]
    own = np.arange(WARP_LANES, dtype=np.int64)

    def shuffle(state: LaunchState) -> Any:
        who = state.converged(WARP_LANES, "a shuffle", context)
        given, number = value(state), lane(state)
        state.order.synchronise(state.order.warp_level, who)
        if is_uniform(given):
            return given
        warps = np.broadcast_to(given, (state.threads,)).reshape(-1, WARP_LANES)
        if is_uniform(number):
            source = source_of(own % width, int(number), width) + own // width * width
            _check_lanes(source, state, context)
            return warps[:, source].reshape(-1)
        lane_number = state.thread % WARP_LANES
        source = source_of(lane_number % width, number, width) + lane_number // width * width
        _check_lanes(source if who is None else np.where(who, source, 0), state, context)
        source = np.clip(source, 0, WARP_LANES - 1)
        return warps[state.positions // WARP_LANES, source]

    return shuffle


def _check_lanes(source: Array, state: LaunchState, context: LaunchContext) -> None:
    wrong = (source < 0) | (source >= WARP_LANES)
    if wrong.any():
        at = int(wrong.argmax())
        raise context.fault(f"a shuffle asks for lane {int(source[at])}", state, at)


def _down(own: Array, delta: Any, width: int) -> Array:
    return np.where(own + delta < width, own + delta, own)


_SOURCES: dict[ShuffleMode, Callable[[Array, Any, int], Array]] = {
    ShuffleMode.XOR: lambda own, lane, width: np.where((own ^ lane) < width, own ^ lane, WARP_LANES),
    ShuffleMode.DOWN: _down,
    ShuffleMode.INDEX: lambda own, lane, width: np.where((lane >= 0) & (lane < width), lane + own * 0, WARP_LANES),
}
"""The lane within the group whose value a lane gets."""


def _cluster_load(expr: ClusterLoad, context: LaunchContext) -> LaunchClosure:
    memory = context.shared[expr.buffer.name]
    assert isinstance(memory, SharedMemory)
    here, block = shared_flat(expr.indices, memory, context, value_closure), value_closure(expr.block, context)

    def flat(state: LaunchState) -> Any:
        number = block(state)
        wrong = np.broadcast_to(np.less(number, 0) | np.greater_equal(number, state.cluster), (state.threads,))
        active = state.running((state.threads,))
        wrong = wrong if active is None else wrong & active
        if wrong.any():
            at = int(wrong.argmax())
            given = int(np.broadcast_to(number, (state.threads,))[at])
            raise context.fault(f"block {given} is none of a cluster of {state.cluster}", state, at, expr.buffer.name)
        if active is not None:
            number = np.where(active, number, 0)
        state.cluster_uses[slice(None) if active is None else active] = state.order.now
        return here(state) + (number - state.block % state.cluster) * memory.span

    return checked_load(memory, flat, expr.lanes, context)


_VALUES: dict[type[Expr], Callable[[Any, LaunchContext], LaunchClosure]] = {
    Var: _var,
    Const: _const,
    Binary: _binary,
    Compare: _compare,
    Logic: _logic,
    Unary: _unary,
    Select: _select,
    Cast: _cast,
    Load: lambda expr, context: load_closure(expr, context, value_closure),
    Ramp: _ramp,
    Broadcast: lambda expr, context: value_closure(expr.value, context),
    ReduceLanes: _reduce_lanes,
    Shuffle: _shuffle,
    ClusterLoad: _cluster_load,
}
"""The closure of each class of node."""
