"""The same workload with factors that a sum does not depend on behind that sum.

    S[i, j] = sum over k of A[i, k] * B[j, k] * C[i, j]

becomes a product of two matrices, and what multiplies its results:

    S_sum[i, j] = sum over k of A[i, k] * B[j, k]
    S[i, j] = S_sum[i, j] * C[i, j]
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, reduce
from operator import mul

from ..ir.buffer import Buffer
from ..ir.expr import Expr, Load, Var
from ..ir.rewrite import free_variables, fresh_name, loads_of
from .contraction_path import with_own_axes
from .functions import factors_of, uncast
from .workload import Reducer, Stage, Workload


@lru_cache(maxsize=64)  # every sketch of products asks it of a workload
def with_hoisted_factors(workload: Workload) -> Workload | None:
    """Return ``workload`` with sums of products of two elements of tensors, or casts of these, and with all other
    factors behind these sums. None where that changes nothing: where there are no other factors that read tensors, or
    where they depend on what a sum goes over."""
    taken = {b.name for b in workload.inputs} | {s.name for s in workload.stages}
    taken |= {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    stages = tuple(part for stage in workload.stages for part in _parts(stage, taken))
    return replace(workload, stages=stages) if len(stages) > len(workload.stages) else None


def _parts(stage: Stage, taken: set[str]) -> Iterator[Stage]:
    reduced = {a.name for a in stage.reduce_axes}
    inner, outer = list[Expr](), list[Expr]()
    for factor in factors_of(stage.body):
        (outer if free_variables(factor).isdisjoint(reduced) else inner).append(factor)
    product = len(inner) == 2 and all(isinstance(uncast(factor), Load) for factor in inner)
    if stage.reducer is not Reducer.SUM or not product or not any(map(loads_of, outer)):
        yield stage
        return
    total = Buffer(fresh_name(f"{stage.name}_sum", taken), stage.tensor.shape, stage.tensor.dtype)
    taken.add(total.name)
    element = Load(total, tuple(Var(a.name) for a in stage.axes))
    yield replace(stage, tensor=total, body=reduce(mul, inner))
    yield with_own_axes(Stage(stage.tensor, stage.axes, reduce(mul, [element, *outer])), taken)
