"""Expressions of the interpreter: one table of handlers by node class for scalars, and one for vectors.

Scalars of the index type are Python integers. Other scalars are NumPy scalars of the dtype in which they are computed,
and vectors are NumPy arrays of that dtype.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.dtypes import DType
from ...core.errors import InvalidKernel
from ..bounds import affine_interval, binary_interval, dtype_interval, interval_of
from ..expr import (
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Logic,
    LogicOp,
    Ramp,
    ReduceLanes,
    Select,
    Unary,
    UnaryOp,
    Var,
)
from ..fold import BIT_OPERATIONS, COMPARISONS, wrap
from ..linear_form import affine_form
from .access import affine_closure, scalar_load, vector_load
from .context import ACTIVE, Closure, Env, InterpreterContext
from .functions import SCALAR_FUNCTIONS, VECTOR_FUNCTIONS, scalar_cast, vector_cast
from .memory import Array, computed


def expr_closure(expr: Expr, context: InterpreterContext) -> Closure:
    """Return ``expr`` as a closure. Raises InvalidKernel for a node class that the interpreter does not know."""
    table = _SCALARS if expr.lanes == 1 else _VECTORS
    handler = table.get(type(expr))
    if handler is None:
        raise InvalidKernel(f"{type(expr).__name__} cannot be interpreted")
    return handler(expr, context)


def _is_index(dtype: DType) -> bool:
    return dtype.name == "int64"


def _smaller(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b


def _larger(a: Any, b: Any) -> Any:
    return a if a > b or a != a else b


_SCALAR_BINARY: dict[BinaryOp, Callable[[Any, Any], Any]] = {
    BinaryOp.ADD: operator.add,
    BinaryOp.SUB: operator.sub,
    BinaryOp.MUL: operator.mul,
    BinaryOp.DIV: operator.truediv,
    BinaryOp.FLOORDIV: operator.floordiv,
    BinaryOp.MOD: operator.mod,
    BinaryOp.MIN: _smaller,
    BinaryOp.MAX: _larger,
    BinaryOp.POW: np.power,
    **BIT_OPERATIONS,
}
_VECTOR_BINARY: dict[BinaryOp, Callable[[Any, Any], Any]] = {
    **_SCALAR_BINARY,
    BinaryOp.MIN: np.minimum,
    BinaryOp.MAX: np.maximum,
}
_ELEMENTWISE = (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV, BinaryOp.MIN, BinaryOp.MAX)


def _binary(expr: Binary, context: InterpreterContext) -> Closure:
    is_index = _is_index(expr.dtype)
    form = affine_form(expr) if is_index else None
    if form is not None and affine_interval(form, context.ranges).within(dtype_interval(expr.dtype)):
        return affine_closure(form, context)
    a, b = expr_closure(expr.a, context), expr_closure(expr.b, context)
    if expr.op in (BinaryOp.FLOORDIV, BinaryOp.MOD):
        return _division(expr, a, b, context)
    operation = _SCALAR_BINARY[expr.op]
    if is_index and _may_wrap(expr, context):
        return lambda env: wrap(operation(a(env), b(env)), expr.dtype)
    if expr.op is BinaryOp.ADD:
        return lambda env: a(env) + b(env)
    if expr.op is BinaryOp.MUL:
        return lambda env: a(env) * b(env)
    return lambda env: operation(a(env), b(env))


def _may_wrap(expr: Binary, context: InterpreterContext) -> bool:
    """Return whether the result may not fit the index type."""
    bounds = binary_interval(expr.op, interval_of(expr.a, context.ranges), interval_of(expr.b, context.ranges))
    return bounds is None or not bounds.within(dtype_interval(expr.dtype))


def _division(expr: Binary, a: Closure, b: Closure, context: InterpreterContext) -> Closure:
    operation, is_index = _SCALAR_BINARY[expr.op], _is_index(expr.dtype)
    if isinstance(expr.b, Const) and expr.b.value > 0:
        return lambda env: operation(a(env), b(env))

    def divide(env: Env) -> Any:
        dividend, divisor = a(env), b(env)
        if divisor == 0:
            raise context.fault(f"{dividend} {expr.op} 0", "", env)
        result = operation(dividend, divisor)
        return wrap(result, expr.dtype) if is_index else result

    return divide


def _compare(expr: Compare, context: InterpreterContext) -> Closure:
    a, b = expr_closure(expr.a, context), expr_closure(expr.b, context)
    operation = COMPARISONS[expr.op]
    return lambda env: operation(a(env), b(env))


def _logic(expr: Logic, context: InterpreterContext) -> Closure:
    a, b = expr_closure(expr.a, context), expr_closure(expr.b, context)
    if expr.op is LogicOp.AND:  # both sides are always evaluated: only select guards
        return lambda env: a(env) & b(env)
    return lambda env: a(env) | b(env)


def _unary(expr: Unary, context: InterpreterContext) -> Closure:
    value = expr_closure(expr.value, context)
    if _is_index(expr.dtype):
        operation = operator.neg if expr.op is UnaryOp.NEG else abs
        return lambda env: wrap(operation(value(env)), expr.dtype)
    function = SCALAR_FUNCTIONS[expr.op]
    return lambda env: function(value(env))


def _select(expr: Select, context: InterpreterContext) -> Closure:
    condition = expr_closure(expr.condition, context)
    then, otherwise = expr_closure(expr.then, context), expr_closure(expr.otherwise, context)
    return lambda env: then(env) if condition(env) else otherwise(env)


def _cast(expr: Cast, context: InterpreterContext) -> Closure:
    value, convert = expr_closure(expr.value, context), scalar_cast(expr.value.dtype, expr.type)
    return lambda env: convert(value(env))


def _const(expr: Const, context: InterpreterContext) -> Closure:
    value: Any = expr.value
    if not _is_index(expr.type) and not expr.type.is_bool:
        value = scalar_cast(expr.type, expr.type)(computed(expr.type).type(value))
    return lambda env: value


def _var(expr: Var, context: InterpreterContext) -> Closure:
    slot = context.slots[expr.name]
    return lambda env: env[slot]


def _scalar_alias(expr: Ramp | Broadcast, context: InterpreterContext) -> Closure:
    """A vector of one lane is a scalar."""
    return expr_closure(expr.base if isinstance(expr, Ramp) else expr.value, context)


_LANE_REDUCTIONS: dict[BinaryOp, np.ufunc] = {
    BinaryOp.ADD: np.add,
    BinaryOp.MUL: np.multiply,
    BinaryOp.MIN: np.minimum,
    BinaryOp.MAX: np.maximum,
}


def _reduce_lanes(expr: ReduceLanes, context: InterpreterContext) -> Closure:
    # Its lanes are its own, not those of a select around it.
    value = expr_closure(expr.value, context.inside_select(False))
    if expr.value.lanes == 1:
        return value
    ufunc, dtype, is_index = _LANE_REDUCTIONS[expr.op], computed(expr.dtype), _is_index(expr.dtype)

    def reduce(env: Env) -> Any:
        outer, env[ACTIVE] = env[ACTIVE], None
        total = ufunc.reduce(value(env), dtype=dtype)
        env[ACTIVE] = outer
        return int(total) if is_index else total

    return reduce


# Vectors -------------------------------------------------------------------------------------------------------


def _vector_binary(expr: Binary, context: InterpreterContext) -> Closure:
    a, b = expr_closure(expr.a, context), expr_closure(expr.b, context)
    operation = _VECTOR_BINARY[expr.op]
    if expr.op in _ELEMENTWISE and expr.dtype.is_float:  # NumPy spreads a scalar itself
        if isinstance(expr.a, Broadcast) and not isinstance(expr.b, Broadcast):
            a = expr_closure(expr.a.value, context)
        elif isinstance(expr.b, Broadcast) and not isinstance(expr.a, Broadcast):
            b = expr_closure(expr.b.value, context)
    if expr.op not in (BinaryOp.FLOORDIV, BinaryOp.MOD):
        return lambda env: operation(a(env), b(env))

    def divide(env: Env) -> Array:
        dividend, divisor = a(env), b(env)
        zero = divisor == 0
        if context.guarded and env[ACTIVE] is not None:
            zero = zero & env[ACTIVE]
        if zero.any():
            raise context.fault(f"{dividend[zero.argmax()]} {expr.op} 0 in lane {zero.argmax()}", "", env)
        result: Array = operation(dividend, divisor)
        return result

    return divide


def _vector_unary(expr: Unary, context: InterpreterContext) -> Closure:
    value, function = expr_closure(expr.value, context), VECTOR_FUNCTIONS[expr.op]
    return lambda env: function(value(env))


def _vector_select(expr: Select, context: InterpreterContext) -> Closure:
    condition = expr_closure(expr.condition, context)
    inner = context.inside_select()
    branches = expr_closure(expr.then, inner), expr_closure(expr.otherwise, inner)
    nothing = np.zeros(expr.lanes, dtype=computed(expr.dtype))

    def select(env: Env) -> Array:
        taken = condition(env)
        outer = env[ACTIVE] if context.guarded else None
        results = []
        for branch, lanes in zip(branches, (taken, ~taken), strict=True):
            active = lanes if outer is None else lanes & outer
            env[ACTIVE] = active
            results.append(branch(env) if active.any() else nothing)
        env[ACTIVE] = outer
        return np.where(taken, *results)

    return select


def _vector_cast(expr: Cast, context: InterpreterContext) -> Closure:
    value, convert = expr_closure(expr.value, context), vector_cast(expr.value.dtype, expr.type)
    return lambda env: convert(value(env))


def _ramp(expr: Ramp, context: InterpreterContext) -> Closure:
    base = expr_closure(expr.base, context)
    offsets = np.arange(expr.count, dtype=np.int64) * expr.stride
    return lambda env: offsets + base(env)


def _broadcast(expr: Broadcast, context: InterpreterContext) -> Closure:
    value, count, dtype = expr_closure(expr.value, context), expr.count, computed(expr.dtype)
    if isinstance(expr.value, Const):
        constant = np.full(count, value([]), dtype=dtype)
        constant.flags.writeable = False
        return lambda env: constant
    return lambda env: np.full(count, value(env), dtype=dtype)


_SCALARS: dict[type[Expr], Callable[[Any, InterpreterContext], Closure]] = {
    Var: _var,
    Const: _const,
    Binary: _binary,
    Compare: _compare,
    Logic: _logic,
    Unary: _unary,
    Select: _select,
    Cast: _cast,
    Load: lambda expr, context: scalar_load(expr, context, expr_closure),
    Ramp: _scalar_alias,
    Broadcast: _scalar_alias,
    ReduceLanes: _reduce_lanes,
}
"""The closure of each class of node with one lane."""

_VECTORS: dict[type[Expr], Callable[[Any, InterpreterContext], Closure]] = {
    Binary: _vector_binary,
    Compare: _compare,
    Logic: _logic,
    Unary: _vector_unary,
    Select: _vector_select,
    Cast: _vector_cast,
    Load: lambda expr, context: vector_load(expr, context, expr_closure),
    Ramp: _ramp,
    Broadcast: _broadcast,
}
"""The closure of each class of node with several lanes."""
