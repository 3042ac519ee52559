"""Expressions become instructions. A load that its ``select`` or mask rules out is never performed."""

from collections.abc import Callable

from ...core.dtypes import INDEX
from ...core.errors import CompileError
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
from ...ir.lane_offsets import lane_offsets
from ...ir.linear_form import linear_form
from .arithmetic import binary, compare, logic, reduce_lanes, unary
from .casts import cast
from .function_context import FunctionContext
from .memory import is_in_bounds, load
from .narrow_lanes import is_positive_division, narrow_lanes
from .split_lanes import split_reduction
from .values import LlvmValue, computed, constant, dtype_constant

_INT32 = 1 << 31
_MOST_SPECULATED = 4
"""At most so many loads in a branch of a select are performed without need, where that is safe."""


def evaluate(ctx: FunctionContext, expr: Expr, mask: LlvmValue | None = None) -> LlvmValue:
    """Return the value of ``expr``. In a vector expression only the lanes of ``mask`` are wanted (all when it is
    None), and only those lanes are loaded."""
    if mask is not None and not may_read_memory(expr):
        mask = None
    known = ctx.known_result(expr, mask)
    if known is not None:
        return known
    return ctx.remember(expr, mask, _compute(ctx, expr, mask))


def _compute(ctx: FunctionContext, expr: Expr, mask: LlvmValue | None) -> LlvmValue:
    w = ctx.w
    match expr:
        case Var(name=name):
            return ctx.variable(name)
        case Const(value=value, type=dtype):
            return dtype_constant(value, dtype)
        case Binary(op=op, a=a, b=b):
            if op in (BinaryOp.FLOORDIV, BinaryOp.MOD) and expr.lanes > 1 and expr.dtype == INDEX:
                narrow = narrow_lanes(ctx, expr, evaluate)
                if narrow is not None:
                    return w.convert("sext", narrow, "i64")
            left, right = _pair(ctx, a, b, mask)
            return binary(w, op, left, right, a.dtype, positive=is_positive_division(ctx, expr))
        case Compare(op=comparison, a=a, b=b):
            spaced = _compare_offsets(ctx, expr)
            if spaced is not None:
                return spaced
            return compare(w, comparison, *_pair(ctx, a, b, mask), a.dtype)
        case Logic(op=connective, a=a, b=b):
            return logic(w, connective, *_pair(ctx, a, b, mask))
        case Unary(op=operation, value=operand):
            return unary(w, operation, evaluate(ctx, operand, mask), operand.dtype)
        case Cast(value=operand, type=dtype):
            return cast(w, evaluate(ctx, operand, mask), operand.dtype, dtype)
        case Select():
            return _select(ctx, expr, mask)
        case Load():
            return _load(ctx, expr, mask)
        case Broadcast(value=operand, count=count):
            return w.splat(_evaluate_if_any_lane(ctx, operand, mask), count)
        case Ramp(base=base, stride=stride, count=count):
            steps = LlvmValue(f"<{', '.join(f'i64 {lane * stride}' for lane in range(count))}>", "i64", count)
            return w.op("add", w.splat(_evaluate_if_any_lane(ctx, base, mask), count), steps)
        case ReduceLanes(op=op, value=operand):
            cut = split_reduction(expr)
            if cut is not expr:
                return evaluate(ctx, cut)
            return reduce_lanes(w, op, evaluate(ctx, operand), operand.dtype)
        case Shuffle(value=operand, lane=lane) if ctx.emit_shuffle is not None:
            return ctx.emit_shuffle(w, expr, evaluate(ctx, operand), evaluate(ctx, lane))
    raise CompileError(f"{type(expr).__name__} cannot be expressed in LLVM IR")


def _pair(ctx: FunctionContext, a: Expr, b: Expr, mask: LlvmValue | None) -> tuple[LlvmValue, LlvmValue]:
    left = evaluate(ctx, a, mask if a.lanes > 1 else None)
    right = evaluate(ctx, b, mask if b.lanes > 1 else None)
    lanes = max(left.lanes, right.lanes)
    return ctx.w.splat(left, lanes), ctx.w.splat(right, lanes)


def _compare_offsets(ctx: FunctionContext, expr: Compare) -> LlvmValue | None:
    """Compare two index vectors whose lanes differ by known numbers; return None for any other comparison. The offsets
    of the lanes are a constant vector, and it is compared with one scalar, in 32 bits instead of 64."""
    if expr.lanes == 1 or expr.a.dtype != INDEX:
        return None
    found = lane_offsets((linear_form(expr.a) - linear_form(expr.b)).widened(expr.lanes))
    if found is None:
        return None
    base, offsets = found[0].to_expr(), found[1]
    reach = ctx.interval(base)
    if not all(-_INT32 < edge + step < _INT32 for edge in (reach.low, reach.high) for step in offsets):
        return None
    w = ctx.w
    start = w.convert("trunc", evaluate(ctx, base), "i32")
    steps = ", ".join(f"i32 {offset}" for offset in offsets)
    border = w.splat(w.sub(constant(0, "i32"), start), expr.lanes)
    return compare(w, expr.op, LlvmValue(f"<{steps}>", "i32", expr.lanes), border, INDEX)


def _load(ctx: FunctionContext, expr: Load, mask: LlvmValue | None) -> LlvmValue:
    lanes = expr.lanes
    own = None if expr.mask is None else evaluate(ctx, expr.mask)
    if lanes == 1:
        if own is None:
            return load(ctx, expr.buffer, expr.indices, 1, None, evaluate)
        zero = constant(0, computed(expr.dtype))
        return _branch(ctx, own, lambda: load(ctx, expr.buffer, expr.indices, 1, None, evaluate), lambda: zero)
    if own is not None:
        own = ctx.w.splat(own, lanes)
        mask = own if mask is None else ctx.w.op("and", mask, own)
    return load(ctx, expr.buffer, expr.indices, lanes, mask, evaluate)


def _select(ctx: FunctionContext, expr: Select, mask: LlvmValue | None) -> LlvmValue:
    w = ctx.w
    condition_expr = expr.condition
    while isinstance(condition_expr, Broadcast):
        condition_expr = condition_expr.value
    uniform = condition_expr.lanes == 1
    condition = evaluate(ctx, condition_expr, None if uniform else mask)
    idle = not may_read_memory(expr.then) and not may_read_memory(expr.otherwise)
    by_lane = expr.lanes == 1 or not uniform
    if idle or (by_lane and _is_safe_to_speculate(ctx, expr.then) and _is_safe_to_speculate(ctx, expr.otherwise)):
        yes, no = _pair(ctx, expr.then, expr.otherwise, mask)
        return w.select(condition, yes, no)
    lanes = expr.lanes
    if uniform:
        return _branch(
            ctx,
            condition,
            lambda: w.splat(evaluate(ctx, expr.then, mask), lanes),
            lambda: w.splat(evaluate(ctx, expr.otherwise, mask), lanes),
        )
    opposite = w.op("xor", condition, constant(True, "i1", lanes))
    yes_mask = condition if mask is None else w.op("and", mask, condition)
    no_mask = opposite if mask is None else w.op("and", mask, opposite)
    yes = w.splat(_evaluate_masked(ctx, expr.then, yes_mask), lanes)
    no = w.splat(_evaluate_masked(ctx, expr.otherwise, no_mask), lanes)
    return w.select(condition, yes, no)


def _evaluate_masked(ctx: FunctionContext, expr: Expr, mask: LlvmValue) -> LlvmValue:
    return evaluate(ctx, expr, mask) if expr.lanes > 1 else _evaluate_if_any_lane(ctx, expr, mask)


def _evaluate_if_any_lane(ctx: FunctionContext, expr: Expr, mask: LlvmValue | None) -> LlvmValue:
    """Evaluate a scalar that all lanes share. Where that reads memory, it happens only if some lane is wanted."""
    if mask is None or not may_read_memory(expr):
        return evaluate(ctx, expr)
    w = ctx.w
    name = f"llvm.vector.reduce.or.{mask.suffix}"
    w.module.declare(f"declare i1 @{name}({mask.type})")
    wanted = w.call(name, [mask], "i1")
    zero = constant(0, computed(expr.dtype))
    return _branch(ctx, wanted, lambda: evaluate(ctx, expr), lambda: zero)


def _branch(
    ctx: FunctionContext, condition: LlvmValue, then: Callable[[], LlvmValue], otherwise: Callable[[], LlvmValue]
) -> LlvmValue:
    """Write a branch, so that exactly one of the two values is computed, and join them with a phi."""
    w = ctx.w
    yes, no, join = w.label("then"), w.label("else"), w.label("join")
    w.branch(condition, yes, no)
    results = []
    for label, compute in ((yes, then), (no, otherwise)):
        w.begin_block(label)
        with ctx.scope():
            value = compute()
        results.append((value, w.block))
        w.jump(join)
    w.begin_block(join)
    return w.phi(results)


def _is_safe_to_speculate(ctx: FunctionContext, expr: Expr) -> bool:
    """Say whether every load in ``expr`` has happened, or stays in its buffer at every iteration of the loops around
    it, guarded or not. Then it costs less to compute both branches of a select than to branch."""
    loads = {e for e in walk(expr) if isinstance(e, Load) and ctx.known_result(e, None) is None}
    return len(loads) <= _MOST_SPECULATED and all(
        load.mask is None and is_in_bounds(ctx, load.buffer, load.indices) for load in loads
    )


def may_read_memory(expr: Expr) -> bool:
    """Say whether computing ``expr`` may read memory."""
    return any(isinstance(e, Load) for e in walk(expr))
