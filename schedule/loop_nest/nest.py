"""The plain loop nest of a workload, from which every schedule starts."""

from collections.abc import Iterable

from ...core.dtypes import DType
from ...ir.buffer import Buffer
from ...ir.expr import Binary, BinaryOp, Const, Load, Var, const
from ...ir.rewrite import fresh_name
from ...ir.stmt import For, Kernel, LoopKind, Stmt, Store, seq
from ...te.positions import without_positions
from ...te.workload import Axis, Reducer, Stage, Workload
from ..tile.accumulation import limit_of

KERNEL_NAME = "kernel"

COMBINE: dict[Reducer, BinaryOp] = {
    Reducer.SUM: BinaryOp.ADD,
    Reducer.PROD: BinaryOp.MUL,
    Reducer.MAX: BinaryOp.MAX,
    Reducer.MIN: BinaryOp.MIN,
}
"""How a reducer combines two values. A loop nest has no argmax and argmin: ``te.positions`` makes plain reductions of
them."""


def identity(op: BinaryOp, dtype: DType) -> Const:
    """Return the identity of ``op`` (add, mul, max or min), from which a reduction starts.

    It is 0 for add, 1 for mul, the lowest value of the dtype (-inf for floats) for max, and the highest for min.
    """
    if op in (BinaryOp.ADD, BinaryOp.MUL):
        return const(int(op is BinaryOp.MUL), dtype)
    return limit_of(dtype, low=op is BinaryOp.MAX)


def nested(axes: Iterable[Axis], body: Stmt) -> Stmt:
    """``body`` inside one serial loop for each axis, the first one outermost."""
    for axis in reversed(tuple(axes)):
        body = For(axis.name, axis.extent, LoopKind.SERIAL, body)
    return body


def loop_nest(workload: Workload) -> Kernel:
    """Return the workload as nests of serial loops, one after the other, in the order of its stages.

    A stage without a reducer is one nest. A reduction is two: the first writes the reducer's start value, the second
    updates the tensor in place::

        for i_init:                     # C[i, j] = sum over k of A[i, k] * B[k, j]
          for j_init:
            C[i_init, j_init] = 0
        for i:
          for j:
            for k:
              C[i, j] = C[i, j] + A[i, k] * B[k, j]

    Loops are named after the axes. Those that initialise have ``_init`` behind the name, and a number where that is
    taken. Stages that are no outputs live in workspace buffers, in the order of the stages. An argmax or argmin is two
    reductions, as ``te.positions`` makes of it: the extreme value, and the first position that has it.
    """
    workload = without_positions(workload).workload
    taken = {axis.name for stage in workload.stages for axis in (*stage.axes, *stage.reduce_axes)}
    taken |= {buffer.name for buffer in workload.inputs} | {stage.name for stage in workload.stages}
    statements: list[Stmt] = []
    for stage in workload.stages:
        statements.extend(_stage_nests(stage, taken))
    workspace = tuple(stage.tensor for stage in workload.stages if stage.name not in workload.outputs)
    return kernel_of(workload, seq(*statements), workspace)


def kernel_of(workload: Workload, body: Stmt, workspace: tuple[Buffer, ...] = ()) -> Kernel:
    """Return the kernel of a workload whose statements are ``body``."""
    outputs = tuple(dict.fromkeys(workload.output_buffers))
    return Kernel(KERNEL_NAME, workload.inputs, outputs, workspace, body)


def _stage_nests(stage: Stage, taken: set[str]) -> Iterable[Stmt]:
    """Return the nests of one stage. The names of new loops are added to ``taken``."""
    tensor = stage.tensor
    at = tuple(Var(axis.name) for axis in stage.axes)
    if stage.reducer is None:
        return (nested(stage.axes, Store(tensor, at, stage.body)),)
    op = COMBINE[stage.reducer]
    init_axes = []
    for axis in stage.axes:
        name = fresh_name(f"{axis.name}_init", taken)
        taken.add(name)
        init_axes.append(Axis(name, axis.extent))
    init = Store(tensor, tuple(Var(axis.name) for axis in init_axes), identity(op, tensor.dtype))
    update = Store(tensor, at, Binary(op, Load(tensor, at), stage.body))
    return nested(init_axes, init), nested((*stage.axes, *stage.reduce_axes), update)
