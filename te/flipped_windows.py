"""Windows that run against the axes of a result, as in gradients of convolutions towards images and in convolutions of
signal processing, as windows that run along them: the order of what is summed does not matter.

    sum over s < 3 of X[x - s + 1] * W[s]    ->    sum over s < 3 of X[x + s - 1] * W[2 - s]
"""

from dataclasses import replace

from ..ir.expr import Var, index
from ..ir.linear_form import affine_form
from ..ir.rewrite import loads_of, substitute
from .workload import Axis, Stage


def unflipped(reduction: Stage) -> Stage:
    """Return a reduction, of a reducer that takes its terms in any order, whose axes run along those of the result
    wherever an index has both. Axes that run along some and against others stay."""
    flipped = [a for a in reduction.reduce_axes if _runs_against(reduction, a)]
    turned = {a.name: index(a.extent - 1) - Var(a.name) for a in flipped}
    return replace(reduction, body=substitute(reduction.body, turned)) if turned else reduction


def _runs_against(reduction: Stage, reduced: Axis) -> bool:
    """Return whether all indices with an axis of the result go the other way along ``reduced``, and there are some."""
    forms = (affine_form(i) for load in loads_of(reduction.body) for i in load.indices)
    kept = {a.name for a in reduction.axes if a.extent > 1}
    ways = [
        form.coefficient(name) * form.coefficient(reduced.name) < 0
        for form in forms
        if form is not None and form.coefficient(reduced.name)
        for name in kept
        if form.coefficient(name)
    ]
    return bool(ways) and all(ways)
