"""The steps of a sum of products along a contraction path (``cpu_chain``, ``cuda_chain``, ``amdgpu_chain``).

    out[i, l] = sum over j, k of A[i, j] * B[j, k] * C[k, l]
        ->  T[i, k] = sum over j of A[i, j] * B[j, k]          step 1
            out[i, l] = sum over k of T[i, k] * C[k, l]        step 2

``te.contraction_path`` says in which orders the axes can be summed. Each sum is a step of a ``StepChain``.

An intermediate has the dtype that the sum is kept in. It is legal for float32, float64 and integers. Sums kept in 16
bits stay as they are written, since an intermediate would leave their range where the sum does not.
"""

from collections.abc import Callable
from dataclasses import replace

from ..core.errors import InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Expr, Load, Var
from ..ir.rewrite import free_variables, fresh_name
from ..te.contraction import contraction_of
from ..te.contraction_path import contraction_paths, path_as_written
from ..te.inline import inline_stages
from ..te.steps import step_of
from ..te.workload import Stage, Workload
from .step_chain import Decomposer

_MOST_STEPS = 4
"""Paths with more steps are left out."""


def contraction_steps(
    workload: Workload, has_class: Callable[[Workload], bool]
) -> list[tuple[str, tuple[Workload, ...]]]:
    """Return the contraction paths of a workload as workloads of their steps, and the workload itself as its last path.
    Factors of a step are computed first where it has a class then, and else has none."""
    found = []
    for path, steps in _steps_of(workload):
        if len(steps) > 1:
            steps = tuple(s for step in steps for s in _with_classes(step, has_class))
        if len(steps) <= _MOST_STEPS:
            found.append((path, steps))
    return found


def _with_classes(step: Workload, has_class: Callable[[Workload], bool]) -> tuple[Workload, ...]:
    """Return the step, or two that kernel classes take where none takes the step as it is."""
    if has_class(step):
        return (step,)
    steps = _with_computed_factors(step)
    return steps if all(map(has_class, steps)) else (step,)


def _steps_of(workload: Workload) -> list[tuple[str, tuple[Workload, ...]]]:
    """Return the contraction paths of a workload, as workloads of their steps, and the workload itself as its last
    path. There are none where the workload is anything but one sum of products and pointwise functions of it."""
    inlined = inline_stages(workload)
    total, *rest = inlined.stages
    dtype = total.tensor.dtype
    if workload.dynamic or workload.skews or any(s.reducer is not None for s in rest):
        return []
    if not (dtype.is_integer or (dtype.is_float and dtype.bits >= 32)):
        return []
    taken = frozenset(b.name for b in inlined.inputs) | {s.name for s in rest}
    taken |= {a.name for s in rest for a in s.axes}
    found = []
    for path in contraction_paths(total, taken):
        final = 2 if path.stages[-1].reducer is None else 1  # a product without a sum goes with the sum before it
        own, last = path.stages[:-final], (*path.stages[-final:], *rest)
        try:
            first = [step_of(inlined, path.intermediates, [s], (s.name,)) for s in own]
            found.append((path.name, (*first, step_of(inlined, path.intermediates, last, inlined.outputs))))
        except InvalidWorkload:  # an intermediate beyond the limits of tensors
            continue
    return [*found, (path_as_written(total), (inlined,))] if found else []


def _with_computed_factors(step: Workload) -> tuple[Workload, ...]:
    """Return a product as two steps, of which the first one computes each factor that is more than a load: a cast, a
    function, or a factor with its scale. It is the step alone where there is no such factor, or no product."""
    total, *rest = step.stages
    found = contraction_of(total)
    if found is None:
        return (step,)
    axes = {a.name: a for a in (*total.axes, *total.reduce_axes)}
    taken = {b.name for b in step.inputs} | {s.name for s in step.stages} | {a.name for s in rest for a in s.axes}
    computed, loads = list[Stage](), list[Expr]()
    for factor in (found.left, found.right):
        own = [a for name, a in axes.items() if name in free_variables(factor)]
        name = fresh_name(f"{total.name}_factor", {*taken, *axes})
        taken.add(name)
        tensor = Buffer(name, tuple(a.extent for a in own), factor.dtype)
        loads.append(factor if isinstance(factor, Load) else Load(tensor, tuple(Var(a.name) for a in own)))
        if not isinstance(factor, Load):
            computed.append(Stage(tensor, tuple(own), factor))
    tensors = [s.tensor for s in computed]
    last = [replace(total, body=loads[0] * loads[1]), *rest]
    try:
        first = tuple(step_of(step, (), [s], (s.name,)) for s in computed)
        return (*first, step_of(step, tensors, last, step.outputs))
    except InvalidWorkload:  # a factor beyond the limits of tensors
        return (step,)


CONTRACTIONS = Decomposer(
    contraction_steps,
    knob="contraction_path",
    meaning="the order of contractions: a parenthesis is summed before what is outside of it",
    takes="one sum of products over two axes or more, kept in float32, float64 or integers, that no kernel class takes "
    "as it is written",
)
"""Of chains of contractions."""
