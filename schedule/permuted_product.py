"""Products of tensors whose axes lie in an order that no kernel of a product reads or writes well (``cuda_permuted``).

    O[i, j, b] = sum over k of X[k, i, b] * Y[b, j, k]
        ->  X_permuted[b, i, k] = X[k, i, b]                                        step 1
            O_permuted[b, i, j] = sum over k of X_permuted[b, i, k] * Y[b, j, k]    step 2: a batch of products
            O[i, j, b] = O_permuted[b, i, j]                                        step 3

``torch.einsum`` does the same. The last axis of a tensor is one that a product goes along, none of its batch. Axes that
are one in the product stand together, in the same order everywhere.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.errors import InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Const, Expr, Load, Var, index
from ..ir.rewrite import fresh_name, loads_of, map_loads, substitute
from ..te.contraction import Contraction, contraction_of
from ..te.contraction_path import with_own_axes
from ..te.functions import uncast
from ..te.hoisted_factors import with_hoisted_factors
from ..te.inline import inline_stages
from ..te.steps import step_of
from ..te.workload import Axis, Stage, Workload
from .reduction_parts import element_of
from .step_chain import Decomposer

_ASKED = {"both": (True, True), "operands": (True, False), "results": (False, True)}
"""Names of decompositions, and whether operands and results are permuted."""


@dataclass(frozen=True, slots=True)
class _PlainFactor:
    """A factor that is an element of a tensor, or a cast of one. ``axes``: those of more than one element, in the order
    of memory. ``own``: those that the other factor lacks, in the order of the product."""

    load: Load
    axes: tuple[str, ...]
    own: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Product:
    """A product ``total`` with one output, which is ``total`` or a pointwise function of it. ``places``: the axis of
    the output for each axis of ``total`` of more than one element. ``batch`` and ``shared`` are such axes, in the order
    of the product."""

    whole: Workload
    total: Stage
    output: Stage
    places: Mapping[str, Axis]
    left: _PlainFactor
    right: _PlainFactor
    batch: tuple[str, ...]
    shared: tuple[str, ...]

    @property
    def permuted_operands(self) -> list[_PlainFactor]:
        """The operands that lie in no order of the product."""
        operands = (self.left, self.right)
        return [o for o in operands if not _is_in_order(o.axes, self.batch, (o.own, self.shared))]

    @property
    def permutes_results(self) -> bool:
        """Whether the output lies in no order of the product."""
        stored = _stored(self.output, self.places)
        return not _is_in_order(stored, self.batch, (self.left.own, self.right.own))

    def steps(self, operands: Sequence[_PlainFactor], results: bool) -> tuple[Workload, ...]:
        """Return the steps, with ``operands`` permuted first, and perhaps the results last. Raises InvalidWorkload
        where a tensor is beyond the limits."""
        whole, axes = self.whole, {a.name: a for a in (*self.total.axes, *self.total.reduce_axes)}
        taken = {b.name for b in whole.inputs} | {s.name for s in whole.stages}
        taken |= {a.name for s in whole.stages for a in (*s.axes, *s.reduce_axes)}
        copies, elements = list[Stage](), dict[Load, Load]()
        for operand in operands:
            own = tuple(axes[n] for n in (*self.batch, *operand.own, *self.shared))
            tensor = _permuted(operand.load.buffer, own, taken)
            copies.append(with_own_axes(Stage(tensor, own, operand.load), taken))
            elements[operand.load] = element_of(tensor, own)
        body = map_loads(self.total.body, lambda load: elements.get(load, load))
        if self.output is self.total and not results:
            stages, last = [replace(self.total, body=body)], []
        else:
            order = tuple(axes[n] for n in (*self.batch, *self.left.own, *self.right.own))
            stored = tuple(self.places[a.name] for a in order)
            stages, last = self._on_long_axes(body, order, stored), list[Stage]()
            if results:
                tensor = _permuted(self.output.tensor, stored, taken)
                stages[-1] = replace(stages[-1], tensor=tensor, axes=stored)
                copy = Stage(self.output.tensor, self.output.axes, element_of(tensor, stored))
                last.append(with_own_axes(copy, taken))
        steps = [step_of(whole, (), [copy], (copy.name,)) for copy in copies]
        steps.append(step_of(whole, [c.tensor for c in copies], stages, (stages[-1].name,)))
        return (*steps, *(step_of(whole, [stages[-1].tensor], [copy], whole.outputs) for copy in last))

    def _on_long_axes(self, body: Expr, order: tuple[Axis, ...], stored: tuple[Axis, ...]) -> list[Stage]:
        """Return the product on the axes of more than one element, in their ``order``, and the output that reads it;
        ``stored`` are the same axes of the output."""
        tensor = replace(self.total.tensor, shape=tuple(a.extent for a in order))
        total = replace(self.total, tensor=tensor, axes=order, body=body)
        if self.output is self.total:
            return [total]

        def read(load: Load) -> Load:
            return element_of(tensor, stored) if load.buffer.name == tensor.name else load

        return [total, replace(self.output, body=map_loads(self.output.body, read))]


def permuted_steps(workload: Workload, has_class: Callable[[Workload], bool]) -> list[tuple[str, tuple[Workload, ...]]]:
    """Return the steps of a product whose operands, results, or both are permuted. There are none where they lie in an
    order of the product."""
    inlined = inline_stages(workload)
    whole = inline_stages(with_hoisted_factors(inlined) or inlined)
    found = contraction_of(whole.stages[0]) if whole.stages else None
    product = None if found is None or workload.dynamic or workload.skews else _product_of(whole, found)
    if product is None:
        return []
    made = dict[str, tuple[Workload, ...]]()
    for name, (operands, results) in _ASKED.items():
        moved, stores = product.permuted_operands if operands else [], results and product.permutes_results
        try:
            steps = product.steps(moved, stores) if moved or stores else ()
        except InvalidWorkload:  # a tensor beyond the limits
            continue
        if steps and steps not in made.values() and all(map(has_class, steps)):
            made[name] = steps
    return list(made.items())


def _product_of(whole: Workload, found: Contraction) -> _Product | None:
    """Return the product that a workload is; None where it is no product of elements with one such output."""
    axes = {a.name: a.extent for a in (*found.stage.axes, *found.stage.reduce_axes)}
    long = {name for name, extent in axes.items() if extent > 1}
    units: dict[str, Expr] = {name: index(0) for name in axes if name not in long}
    over = tuple(a for a in found.stage.reduce_axes if a.extent > 1) or found.stage.reduce_axes[:1]
    total = replace(found.stage, body=substitute(found.stage.body, units), reduce_axes=over)
    output = whole.stages[-1]
    of_output: dict[str, Expr] = {a.name: index(0) for a in output.axes if a.extent == 1}
    output = replace(output, body=substitute(output.body, of_output))
    groups = (found.batch, found.rows, found.columns, found.shared)
    batch, rows, columns, shared = (tuple(n for n in group if n in long) for group in groups)
    if len(whole.stages) == 1:
        output = total
    places = _places(total, output, long)
    given = [_elements(substitute(f, units), long) for f in (found.left, found.right)]
    if len(whole.stages) > 2 or whole.outputs != (output.name,) or not places or None in given:
        return None
    if {*shared} != {a.name for a in total.reduce_axes if a.extent > 1}:
        return None
    (left, in_left), (right, in_right) = (g for g in given if g is not None)
    larger, smaller = (in_left, in_right) if left.buffer.elements >= right.buffer.elements else (in_right, in_left)
    stored = _stored(output, places)
    if _is_in_order(stored, batch, [_of(stored, rows), _of(stored, columns)]):
        batch, rows, columns = _of(stored, batch), _of(stored, rows), _of(stored, columns)
    else:
        batch, rows, columns = _of(larger, batch), _of(in_left, rows), _of(in_right, columns)
    sums = next((axes for axes in (larger, smaller) if _is_in_order(axes, (), [_of(axes, shared)])), larger)
    operands = (_PlainFactor(left, in_left, rows), _PlainFactor(right, in_right, columns))
    return _Product(whole, total, output, places, *operands, batch, _of(sums, shared))


def _permuted(tensor: Buffer, axes: Sequence[Axis], taken: set[str]) -> Buffer:
    """Return a tensor of the elements of another one along ``axes``, under a name that is not ``taken``."""
    name = fresh_name(f"{tensor.name}_permuted", taken)
    taken.add(name)
    return Buffer(name, tuple(a.extent for a in axes), tensor.dtype)


def _places(total: Stage, output: Stage, long: Collection[str]) -> dict[str, Axis]:
    """Return the axis of the output for each axis of the product of more than one element; none where its axes are not
    the same."""
    extents = {a.name: a for a in output.axes}
    if output is total:
        return {name: axis for name, axis in extents.items() if name in long}
    reads = {load.indices for load in loads_of(output.body) if load.buffer.name == total.name}
    indices = reads.pop() if len(reads) == 1 else ()
    found = {
        axis.name: extents[i.name]
        for axis, i in zip(total.axes if indices else (), indices, strict=True)
        if axis.name in long and isinstance(i, Var) and i.name in extents
    }
    same = sorted(a.name for a in found.values()) == sorted(a.name for a in output.axes if a.extent > 1)
    return found if same and len(found) == sum(a.name in long for a in total.axes) else {}


def _stored(output: Stage, places: Mapping[str, Axis]) -> tuple[str, ...]:
    """Return the axes of the product in the order in which the output has them."""
    names = {axis.name: name for name, axis in places.items()}
    return tuple(names[a.name] for a in output.axes if a.name in names)


def _elements(factor: Expr, long: Collection[str]) -> tuple[Load, tuple[str, ...]] | None:
    """Return the load that a factor is, or is a cast of, and its axes of more than one element in their order; None
    where it is anything else."""
    element = uncast(factor)
    if not isinstance(element, Load) or not all(isinstance(i, Var | Const) for i in element.indices):
        return None
    return element, tuple(i.name for i in element.indices if isinstance(i, Var) and i.name in long)


def _of(axes: Sequence[str], group: Collection[str]) -> tuple[str, ...]:
    """Return those of ``axes`` that belong to a group, in their order."""
    return tuple(name for name in axes if name in group)


def _is_in_order(axes: Sequence[str], batch: Collection[str], groups: Sequence[Sequence[str]]) -> bool:
    """Return whether the last one of ``axes`` is none of the batch, and those of each group stand together, in its
    order."""
    begins = [axes.index(group[0]) if group else 0 for group in groups]
    together = all([*axes[n : n + len(g)]] == [*g] for n, g in zip(begins, groups, strict=True))
    return together and not (axes and axes[-1] in batch)


PERMUTED = Decomposer(
    permuted_steps,
    knob="permuted",
    meaning="what is copied into an order of axes that the product has: `operands` before it, `results` behind it, or "
    "`both`",
    takes="products of tensors whose axes lie in an order that no kernel of a product reads or writes well",
    beside_classes=True,
)
"""Of products whose operands or results are permuted."""


def _cpu_steps(workload: Workload, has_class: Callable[[Workload], bool]) -> list[tuple[str, tuple[Workload, ...]]]:
    """Return the same for a processor, where the generic sketch is as good as a class for copies, and for short sums in
    an order of the product."""
    return permuted_steps(workload, lambda step: True)


CPU_PERMUTED = replace(PERMUTED, steps=_cpu_steps)
