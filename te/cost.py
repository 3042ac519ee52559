"""What a workload costs at least: arithmetic operations and bytes moved."""

from math import prod

from ..ir.expr import Binary, Compare, Expr, Load, Logic, Select, Unary
from .workload import Stage, Workload


def flops(workload: Workload) -> int:
    """Arithmetic operations of one run: 2MNK for a matrix product.

    Every arithmetic node and math function of a body counts one for each point, and so does each combination of a
    reduction; index arithmetic, conditions, casts and loads count nothing. A select costs its dearer branch.
    """
    return sum(_stage_operations(stage) for stage in workload.stages)


def minimum_bytes(workload: Workload) -> int:
    """Bytes that cross the memory bus at least: each input that is read once, each output written once."""
    read = {load.buffer.name for stage in workload.stages for load in _loads(stage.body)}
    inputs = sum(tensor.bytes for tensor in workload.inputs if tensor.name in read)
    return inputs + sum(tensor.bytes for tensor in workload.output_buffers)


def _stage_operations(stage: Stage) -> int:
    points = prod(a.extent for a in (*stage.axes, *stage.reduce_axes))
    return points * (_operations(stage.body) + (stage.reducer is not None))


def _operations(expr: Expr) -> int:
    match expr:
        case Load() | Compare() | Logic():
            return 0
        case Select(then=then, otherwise=otherwise):
            return max(_operations(then), _operations(otherwise))
        case Binary() | Unary() if not _is_index(expr):
            return 1 + sum(_operations(child) for child in expr.children)
    return sum(_operations(child) for child in expr.children)


def _is_index(expr: Expr) -> bool:
    """Whether the expression is arithmetic on axes alone, which an address computation gives for free."""
    return not _loads(expr)


def _loads(expr: Expr) -> list[Load]:
    found = [expr] if isinstance(expr, Load) else []
    return found + [load for child in expr.children for load in _loads(child)]
