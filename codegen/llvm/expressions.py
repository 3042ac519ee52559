"""Expressions to instructions. A load that its ``select`` or mask rules out is never performed."""

from collections.abc import Callable

from ...core.dtypes import INDEX
from ...core.errors import CompileError
from ...ir.bounds import Interval
from ...ir.expr import (
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Logic,
    Ramp,
    ReduceLanes,
    Select,
    Shuffle,
    Unary,
    Var,
    walk,
)
from ...ir.linear_form import linear_form
from .arithmetic import binary, compare, logic, reduce_lanes, unary
from .body import Body
from .casts import cast
from .lanes import cut_reduction
from .memory import load
from .values import Value, computed, constant, dtype_constant

_INT32 = 1 << 31
_MOST_SPECULATED = 4
"""Loads in a branch of a select that are performed without need, where that is safe."""


def evaluate(body: Body, expr: Expr, mask: Value | None = None) -> Value:
    """The value of ``expr``. In a vector expression only the lanes of ``mask`` (all when None) are wanted, and
    loads happen in those alone."""
    if mask is not None and not reads(expr):
        mask = None
    known = body.known_result(expr, mask)
    if known is not None:
        return known
    return body.remember(expr, mask, _compute(body, expr, mask))


def _compute(body: Body, expr: Expr, mask: Value | None) -> Value:
    w = body.w
    match expr:
        case Var(name=name):
            return body.variable(name)
        case Const(value=value, type=dtype):
            return dtype_constant(value, dtype)
        case Binary(op=op, a=a, b=b):
            left, right = _pair(body, a, b, mask)
            return binary(w, op, left, right, a.dtype, positive=_positive_division(body, expr))
        case Compare(op=comparison, a=a, b=b):
            spaced = _compare_evenly_spaced(body, expr)
            if spaced is not None:
                return spaced
            return compare(w, comparison, *_pair(body, a, b, mask), a.dtype)
        case Logic(op=connective, a=a, b=b):
            return logic(w, connective, *_pair(body, a, b, mask))
        case Unary(op=operation, value=operand):
            return unary(w, operation, evaluate(body, operand, mask), operand.dtype)
        case Cast(value=operand, type=dtype):
            return cast(w, evaluate(body, operand, mask), operand.dtype, dtype)
        case Select():
            return _select(body, expr, mask)
        case Load():
            return _load(body, expr, mask)
        case Broadcast(value=operand, count=count):
            return w.splat(_under_any(body, operand, mask), count)
        case Ramp(base=base, stride=stride, count=count):
            steps = Value(f"<{', '.join(f'i64 {lane * stride}' for lane in range(count))}>", "i64", count)
            return w.op("add", w.splat(_under_any(body, base, mask), count), steps)
        case ReduceLanes(op=op, value=operand):
            cut = cut_reduction(expr)
            if cut is not expr:
                return evaluate(body, cut)
            return reduce_lanes(w, op, evaluate(body, operand), operand.dtype)
        case Shuffle(value=operand, lane=lane) if body.exchange is not None:
            return body.exchange(w, expr, evaluate(body, operand), evaluate(body, lane))
    raise CompileError(f"{type(expr).__name__} cannot be expressed in LLVM IR")


def _pair(body: Body, a: Expr, b: Expr, mask: Value | None) -> tuple[Value, Value]:
    left = evaluate(body, a, mask if a.lanes > 1 else None)
    right = evaluate(body, b, mask if b.lanes > 1 else None)
    lanes = max(left.lanes, right.lanes)
    return body.w.splat(left, lanes), body.w.splat(right, lanes)


def _compare_evenly_spaced(body: Body, expr: Compare) -> Value | None:
    """A comparison of index vectors whose difference is ``base + stride * lane``: the lanes' own numbers, which are
    constant, against one scalar, in 32 bits instead of 64. None where it is no such comparison."""
    if expr.lanes == 1 or expr.a.dtype != INDEX:
        return None
    difference = linear_form(expr.a) - linear_form(expr.b)
    if not difference.is_strided:
        return None
    base = difference.base.to_expr()
    reach = body.interval(base)
    last = difference.stride * (expr.lanes - 1)
    if not all(-_INT32 < edge + step < _INT32 for edge in (reach.low, reach.high) for step in (0, last)):
        return None
    w = body.w
    start = w.convert("trunc", evaluate(body, base), "i32")
    steps = ", ".join(f"i32 {lane * difference.stride}" for lane in range(expr.lanes))
    border = w.splat(w.sub(constant(0, "i32"), start), expr.lanes)
    return compare(w, expr.op, Value(f"<{steps}>", "i32", expr.lanes), border, INDEX)


def _load(body: Body, expr: Load, mask: Value | None) -> Value:
    lanes = expr.lanes
    own = None if expr.mask is None else evaluate(body, expr.mask)
    if lanes == 1:
        if own is None:
            return load(body, expr.buffer, expr.indices, 1, None, evaluate)
        zero = constant(0, computed(expr.dtype))
        return _choose(body, own, lambda: load(body, expr.buffer, expr.indices, 1, None, evaluate), lambda: zero)
    if own is not None:
        own = body.w.splat(own, lanes)
        mask = own if mask is None else body.w.op("and", mask, own)
    return load(body, expr.buffer, expr.indices, lanes, mask, evaluate)


def _select(body: Body, expr: Select, mask: Value | None) -> Value:
    w = body.w
    condition_expr = expr.condition
    while isinstance(condition_expr, Broadcast):
        condition_expr = condition_expr.value
    uniform = condition_expr.lanes == 1
    condition = evaluate(body, condition_expr, None if uniform else mask)
    idle = not reads(expr.then) and not reads(expr.otherwise)
    by_lane = expr.lanes == 1 or not uniform
    if idle or (by_lane and _harmless(body, expr.then) and _harmless(body, expr.otherwise)):
        yes, no = _pair(body, expr.then, expr.otherwise, mask)
        return w.select(condition, yes, no)
    lanes = expr.lanes
    if uniform:
        return _choose(
            body,
            condition,
            lambda: w.splat(evaluate(body, expr.then, mask), lanes),
            lambda: w.splat(evaluate(body, expr.otherwise, mask), lanes),
        )
    opposite = w.op("xor", condition, constant(True, "i1", lanes))
    yes_mask = condition if mask is None else w.op("and", mask, condition)
    no_mask = opposite if mask is None else w.op("and", mask, opposite)
    yes = w.splat(_under(body, expr.then, yes_mask), lanes)
    no = w.splat(_under(body, expr.otherwise, no_mask), lanes)
    return w.select(condition, yes, no)


def _under(body: Body, expr: Expr, mask: Value) -> Value:
    return evaluate(body, expr, mask) if expr.lanes > 1 else _under_any(body, expr, mask)


def _under_any(body: Body, expr: Expr, mask: Value | None) -> Value:
    """A scalar that lanes share: computed only if some lane wants it, where computing it reads memory."""
    if mask is None or not reads(expr):
        return evaluate(body, expr)
    w = body.w
    name = f"llvm.vector.reduce.or.{mask.suffix}"
    w.module.declare(f"declare i1 @{name}({mask.type})")
    wanted = w.call(name, [mask], "i1")
    zero = constant(0, computed(expr.dtype))
    return _choose(body, wanted, lambda: evaluate(body, expr), lambda: zero)


def _choose(body: Body, condition: Value, then: Callable[[], Value], otherwise: Callable[[], Value]) -> Value:
    """Control flow: exactly one of the two is computed."""
    w = body.w
    yes, no, join = w.label("then"), w.label("else"), w.label("join")
    w.branch(condition, yes, no)
    results = []
    for label, compute in ((yes, then), (no, otherwise)):
        w.begin(label)
        with body.scope():
            value = compute()
        results.append((value, w.block))
        w.jump(join)
    w.begin(join)
    return w.phi(results)


def _harmless(body: Body, expr: Expr) -> bool:
    """Whether every load in ``expr`` stays in its buffer at every iteration of the loops around, guarded or not: then
    computing both branches of a select costs less than choosing."""
    loads = [e for e in walk(expr) if isinstance(e, Load)]
    return len(loads) <= _MOST_SPECULATED and all(_stays_inside(body, load) for load in loads)


def _stays_inside(body: Body, load: Load) -> bool:
    return load.mask is None and all(
        body.interval(index).within(Interval(0, extent - 1))
        for index, extent in zip(load.indices, load.buffer.shape, strict=True)
    )


def _positive_division(body: Body, expr: Binary) -> bool:
    """Whether ``expr`` divides an index that is never negative by one that is always positive."""
    if expr.op not in (BinaryOp.FLOORDIV, BinaryOp.MOD) or expr.dtype != INDEX:
        return False
    return body.interval(expr.a).low >= 0 and body.interval(expr.b).low > 0


def reads(expr: Expr) -> bool:
    """Whether computing ``expr`` may read memory."""
    return any(isinstance(e, Load) for e in walk(expr))
