"""The steps of a sum of products along a contraction path (``cpu_chain``, ``cuda_chain``, ``amdgpu_chain``).

    out[i, l] = sum over j, k of A[i, j] * B[j, k] * C[k, l]
        ->  T[i, k] = sum over j of A[i, j] * B[j, k]          step 1
            out[i, l] = sum over k of T[i, k] * C[k, l]        step 2

``te.contraction_path`` says in which orders the axes can be summed. Each sum is a step of a ``StepChain``.

An intermediate has the dtype that the sum is kept in. It is legal for float32, float64 and integers. Sums kept in 16
bits stay as they are written, since an intermediate would leave their range where the sum does not.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..core.errors import InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Expr, Load, Var
from ..ir.rewrite import free_variables, fresh_name, map_loads
from ..te.contraction import Contraction, contraction_of
from ..te.contraction_path import contraction_paths, path_as_written, with_own_axes
from ..te.inline import inline_stages
from ..te.steps import step_of
from ..te.workload import Stage, Workload
from .step_chain import Decomposer

AS_MATRICES = "as matrices"
"""Names of paths end so whose products are of matrices."""
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
    found, as_matrices = list[tuple[str, tuple[Workload, ...]]](), list[tuple[str, tuple[Workload, ...]]]()
    for path in contraction_paths(total, taken):
        final = 2 if path.stages[-1].reducer is None else 1  # a product without a sum goes with the sum before it
        in_order = _as_matrices(path.stages, len(path.stages) - final, {*taken, total.name})
        for done, name, stages in (
            (found, path.name, path.stages),
            (as_matrices, f"{path.name} {AS_MATRICES}", in_order),
        ):
            own, last = stages[:-final], (*stages[-final:], *rest)
            made = [s.tensor for s in stages[:-1]]
            try:
                first = [step_of(inlined, made, [s], (s.name,)) for s in own]
                done.append((name, (*first, step_of(inlined, made, last, inlined.outputs))))
            except InvalidWorkload:  # an intermediate beyond the limits of tensors
                continue
    others = [(name, steps) for name, steps in as_matrices if all(steps != own for _, own in found)]
    return [*found, (path_as_written(total), (inlined,)), *others] if found else []


def _as_matrices(stages: Sequence[Stage], count: int, taken: set[str]) -> tuple[Stage, ...]:
    """Return stages that compute the same, of which the first ``count`` multiply matrices where they multiply: factors
    whose axes lie in another order are copied first, and results have their rows ahead of their columns, or behind
    them, so that their last axis stays the last."""
    found, orders = list[Stage](), dict[Buffer, tuple[Buffer, list[int]]]()
    taken = taken | {s.name for s in stages}

    def in_new_order(load: Load) -> Load:
        tensor, order = orders.get(load.buffer, (load.buffer, list(range(len(load.indices)))))
        return Load(tensor, tuple(load.indices[n] for n in order))

    for number, given in enumerate(stages):
        stage = replace(given, body=map_loads(given.body, in_new_order))
        product = contraction_of(stage) if number < count else None
        if product is not None:
            *copies, stage = _as_matrix(product, taken)
            found += copies
            orders[given.tensor] = stage.tensor, [given.axes.index(a) for a in stage.axes]
        found.append(stage)
    return tuple(found)


def _as_matrix(product: Contraction, taken: set[str]) -> list[Stage]:
    """Return the copies of its factors that a product of matrices needs, and that product. The tensors have names that
    are not ``taken``, and are afterwards."""
    total, found, copies = product.stage, list[Stage](), dict[Expr, Load]()
    axes = {a.name: a for a in (*total.axes, *total.reduce_axes)}
    for factor, own in ((product.left, product.rows), (product.right, product.columns)):
        if order := _order_of_matrix(factor, product.batch, own, product.shared):
            kept = tuple(axes[n] for n in order)
            copy = Buffer(fresh_name(f"{total.name}_factor", taken), tuple(a.extent for a in kept), factor.dtype)
            copies[factor] = Load(copy, tuple(Var(n) for n in order))
            found.append(with_own_axes(Stage(copy, kept, factor), taken))
            taken.add(copy.name)
    first, second = sorted((product.rows, product.columns), key=lambda own: total.axes[-1].name in own)
    kept = tuple(axes[n] for n in (*product.batch, *first, *second))
    tensor = replace(total.tensor, shape=tuple(a.extent for a in kept))
    body = map_loads(total.body, lambda load: copies.get(load, load))
    return [*found, replace(total, tensor=tensor, axes=kept, body=body)]


def _order_of_matrix(factor: Expr, batch: Sequence[str], own: Sequence[str], shared: Sequence[str]) -> tuple[str, ...]:
    """Return the order of axes in which a load is one of matrices, where it is one of a tensor in another order; ()
    elsewhere."""
    names = tuple(i.name for i in factor.indices if isinstance(i, Var)) if isinstance(factor, Load) else ()
    orders = ((*batch, *own, *shared), (*batch, *shared, *own))
    is_other = names not in orders and sorted(names) == sorted(orders[0])
    return orders[names[-1] in own] if is_other else ()


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
    meaning="the order of contractions: a parenthesis is summed before what is outside of it; `as matrices`: factors "
    "whose axes are in another order are copied, and intermediates have rows and columns",
    takes="one sum of products over two axes or more, kept in float32, float64 or integers, that no kernel class takes "
    "as it is written",
)
"""Of chains of contractions."""
