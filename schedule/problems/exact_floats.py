"""Sums of products of bytes in floats, which hold them exactly: processors without instructions for bytes multiply
floats faster than integers of 32 bits."""

from dataclasses import replace
from math import prod

from ...core.dtypes import DType, float32, float64, int8, int32, uint8
from ...ir.buffer import Buffer
from ...ir.expr import Binary, BinaryOp, Cast, Expr, Load, Var
from ...ir.rewrite import fresh_name
from ...te.workload import Axis, Reducer, Stage, Workload

_BITS = {int8: 7, uint8: 8}
"""How many bits the magnitude of a byte has at most, where -128 counts as 7."""
_MOST_BITS = {float32: 24, float64: 31}
"""Below two to this, sums are exact. Those of int32 wrap around beyond 31 bits, and casts of floats do not."""


def summed_in_floats(workload: Workload) -> Workload:
    """``workload`` with sums of products of bytes in floats, and what they are as int32 behind them; ``workload``
    itself where there are none, or where a sum may wrap around."""
    taken = {b.name for b in workload.inputs}
    taken |= {name for s in workload.stages for name in (s.name, *(a.name for a in (*s.axes, *s.reduce_axes)))}
    stages: list[Stage] = []
    for stage in workload.stages:
        body = _product_in_floats(stage)
        if body is None:
            stages.append(stage)
            continue
        total = Buffer(fresh_name(f"{stage.name}_exact", taken), stage.tensor.shape, body.dtype)
        axes = tuple(Axis(fresh_name(f"{a.name}_exact", taken), a.extent) for a in stage.axes)
        taken |= {total.name, *(a.name for a in axes)}
        stages.append(replace(stage, tensor=total, body=body))
        stages.append(Stage(stage.tensor, axes, Cast(Load(total, tuple(Var(a.name) for a in axes)), int32)))
    return workload if len(stages) == len(workload.stages) else replace(workload, stages=tuple(stages))


def _product_in_floats(stage: Stage) -> Expr | None:
    """Return the product that a stage sums up, of floats; None where it sums up anything but products of bytes."""
    match stage.body:
        case Binary(op=BinaryOp.MUL, a=Cast(value=left), b=Cast(value=right)) if stage.body.dtype == int32:
            pass
        case _:
            return None
    if stage.reducer is not Reducer.SUM or left.dtype not in _BITS or right.dtype not in _BITS:
        return None
    most = prod(a.extent for a in stage.reduce_axes) << (_BITS[left.dtype] + _BITS[right.dtype])
    dtype: DType | None = next((d for d, bits in _MOST_BITS.items() if most < 1 << bits), None)
    return None if dtype is None else Binary(BinaryOp.MUL, Cast(left, dtype), Cast(right, dtype))
