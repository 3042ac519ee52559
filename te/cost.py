"""What a workload costs at least: operations and bytes, for GFLOP/s and the roofline."""

import math

from ..ir.expr import Binary, Expr, Load, Unary, UnaryOp, walk
from .workload import Stage, Workload


def flops(workload: Workload) -> int:
    """Arithmetic operations on data: one for each binary operation, unary operation (a whole ``exp`` counts one) and
    combination of a reduction, at every point of its stage; 2*m*n*k for a matrix product. Casts, comparisons,
    selects and arithmetic on axes alone count nothing."""
    return sum(stage_flops(s) for s in workload.stages)


def stage_flops(stage: Stage) -> int:
    """The operations of one stage."""
    points = math.prod(a.extent for a in (*stage.axes, *stage.reduce_axes))
    return points * (_operations(stage.body)[0] + (stage.reducer is not None))


def _operations(e: Expr) -> tuple[int, bool]:
    """Operations of ``e``, and whether it reads a tensor."""
    if isinstance(e, Load):
        return 0, True
    below = [_operations(c) for c in e.children]
    reads = any(r for _, r in below)
    own = reads and isinstance(e, Binary | Unary) and not (isinstance(e, Unary) and e.op is UnaryOp.NOT)
    return sum(n for n, _ in below) + own, reads


def minimum_bytes(workload: Workload) -> int:
    """Bytes that have to move: every input that is read once, every output written once."""
    read = {e.buffer.name for s in workload.stages for e in walk(s.body) if isinstance(e, Load)}
    inputs = sum(t.bytes for t in workload.inputs if t.name in read)
    return inputs + sum(t.bytes for t in workload.output_buffers)
