"""Reductions that no kernel class takes as a whole, as two of them: of parts, and of what these give.

partial[i, j] = sum over k of X[i, j, k]          total[i] = sum over j of partial[i, j]       along the last axes
partial[b, j] = sum over p of X[16 * b + p, j]    total[]  = sum over b, j of partial[b, j]    in blocks
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, product
from math import prod

from ..ir.buffer import Buffer
from ..ir.expr import Expr, Load, Select, Var
from ..ir.linear_form import affine_form
from ..ir.rewrite import free_variables, fresh_name, loads_of, map_loads, substitute
from ..te.contraction import contraction_of
from ..te.functions import cast, within
from ..te.workload import Axis, Reducer, Stage
from .tile.accumulation import Accumulation

SMALL_BLOCKS = (16, 32, 8, *range(64, 7, -1))
"""So many elements are reduced at once in what is reduced in blocks: the first of these that divides the axis, or else
the first one."""
LARGE_BLOCKS = (64, *SMALL_BLOCKS)
"""The same where blocks may be larger. A processor takes a fifth less time with them. An H200 takes a sixth more where
a thread reads pieces of rows that are 256 bytes long."""


def reductions_in_parts(stage: Stage, taken: set[str], blocks: Sequence[int]) -> Iterator[Sequence[Stage]]:
    """Yield the stages that give what ``stage`` does, in each of these ways, where it reduces values. Their names are
    not ``taken``. There are none of a sum that is kept in 16 bits, since its parts would be rounded, and none of a
    matrix product, whose parts are larger than its factors. Blocks are those of a tensor that has an element for each
    term."""
    reducer, dtype, found = stage.reducer, stage.tensor.dtype, contraction_of(stage)
    if reducer is None or reducer.is_position:
        return
    if reducer in (Reducer.SUM, Reducer.PROD) and dtype.is_float and dtype.bits < 32:
        return
    along = _along_last_axes(stage, taken) if found is None else ()
    axes = {a.name for a in (*stage.axes, *stage.reduce_axes) if a.extent > 1}
    in_blocks: Iterable[Sequence[Stage]] = ()
    if any(axes <= free_variables(load) for load in loads_of(stage.body)):
        in_blocks = _in_blocks(stage, Accumulation(reducer, stage.body.dtype, dtype), taken, blocks)
    yield from chain(in_blocks, along) if _axes_of_rows_beside(stage) else chain(along, in_blocks)


def _axes_of_rows_beside(stage: Stage) -> set[str]:
    """Return the axes along which a stage reads two rows of one tensor that are as far apart everywhere. A thread that
    goes through a block of such rows has one of them from its step before."""
    found: set[str] = set()
    for one, other in combinations(loads_of(stage.body), 2):
        forms = [(affine_form(i), affine_form(j)) for i, j in zip(one.indices, other.indices, strict=False)]
        apart = [f - g for f, g in forms if f is not None and g is not None]
        if one.buffer == other.buffer and len(apart) == len(one.indices) and all(f.is_constant for f in apart):
            further = (i for i, f in zip(one.indices[:-1], apart, strict=False) if f.constant)
            found |= {name for i in further for name in free_variables(i)}
    return found


def reads_across(stage: Stage) -> bool:
    """Return whether a stage reduces many elements of two tensors, each of which has its rows along an axis that leads
    across the rows of the other one, as a matrix and a transposed one."""
    if stage.reducer is None or prod(a.extent for a in stage.reduce_axes) <= max(SMALL_BLOCKS):
        return False
    loads = [(set(_contiguous_axes(load)), free_variables(load)) for load in loads_of(stage.body)]
    return any(
        not along & other and along & their_names and other & names
        for (along, names), (other, their_names) in combinations(loads, 2)
    )


def _along_last_axes(stage: Stage, taken: set[str]) -> Iterator[Sequence[Stage]]:
    """Yield stages that reduce the last axes first, and then the others. Results may be copied last, as those of
    columns that are no neighbours in the output."""
    whole = largest(loads_of(stage.body))
    for order, first in product((in_order_of_load, _in_order_of_dimensions), range(1, len(stage.reduce_axes))):
        outer, inner = stage.reduce_axes[:first], stage.reduce_axes[first:]
        kept = order(whole, (*outer, *stage.axes))
        tensor = Buffer(fresh_name("partial", taken), tuple(a.extent for a in kept), stage.tensor.dtype)
        parts = Stage(tensor, kept, stage.body, inner, stage.reducer)
        total = replace(stage, body=element_of(tensor, kept), reduce_axes=outer)
        yield [parts, total]
        ordered = tuple(a for a in kept if a in stage.axes)
        if ordered != stage.axes:
            moved = Buffer(fresh_name("ordered", taken), tuple(a.extent for a in ordered), stage.tensor.dtype)
            copy = Stage(stage.tensor, stage.axes, element_of(moved, ordered))
            yield [parts, replace(total, tensor=moved, axes=ordered), copy]


def _in_blocks(stage: Stage, how: Accumulation, taken: set[str], sizes: Sequence[int]) -> Iterator[Sequence[Stage]]:
    """Yield stages that reduce a few elements along one axis first, with the rows of a tensor as the fastest axis of
    what is left, so that threads read neighbours: of elements and of those beside them, as in differences. Where
    another tensor has its rows along the axis that is reduced, as a transposed matrix, a thread reads a piece of a row
    of it."""
    axes = {a.name: a for a in (*stage.axes, *stage.reduce_axes)}
    along = dict.fromkeys(name for load in loads_of(stage.body) for name in _contiguous_axes(load) if name in axes)
    tensor_name, *names = (fresh_name(name, taken) for name in ("partial", "block", "place", "blocks"))
    beside = _axes_of_rows_beside(stage)
    reduced = sorted(stage.reduce_axes, key=lambda a: (a.name not in beside, a.name not in along))
    for axis, row in product(reduced, along):
        if axis.name == row and len(reduced) > 1:
            continue
        size = next((n for n in sizes if axis.extent % n == 0), sizes[0])
        count = -(-axis.extent // size)
        block, place, total = (Axis(name, extent) for name, extent in zip(names, (count, size, count), strict=True))
        others = [a for a in axes.values() if a.name not in (axis.name, row)]
        kept = (*others, block) if axis.name == row else (*others, block, axes[row])
        tensor = Buffer(tensor_name, tuple(a.extent for a in kept), stage.tensor.dtype)
        at = Var(place.name) * count + Var(block.name) if axis.name == row else Var(block.name) * size + Var(place.name)
        body = substitute(stage.body, {axis.name: at})
        if size * count > axis.extent:
            there = map_loads(stage.body, partial(_moved_inside, name=axis.name, at=at))
            there = substitute(there, {axis.name: at})
            body = Select(at < axis.extent, there, cast(how.identity[0], stage.body.dtype))
        element = element_of(tensor, tuple(total if a is block else a for a in kept))
        yield [
            Stage(tensor, kept, body, (place,), stage.reducer),
            replace(stage, body=element, reduce_axes=tuple(total if a is axis else a for a in stage.reduce_axes)),
        ]


def element_of(tensor: Buffer, axes: Sequence[Axis]) -> Load:
    """Return the element of a tensor at some axes."""
    return Load(tensor, tuple(Var(a.name) for a in axes))


def in_order_of_load(load: Load | None, axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return axes in the order in which a load has them as indices, behind those that it has not."""
    places = {} if load is None else {i.name: n for n, i in enumerate(load.indices) if isinstance(i, Var)}
    return tuple(sorted(axes, key=lambda a: places.get(a.name, -1)))


def _in_order_of_dimensions(load: Load | None, axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return axes in the order of the first dimensions that a load has at an index on them, behind those that it has
    not."""
    indices = () if load is None else load.indices
    places = {a.name: next((n for n, i in enumerate(indices) if a.name in free_variables(i)), -1) for a in axes}
    return tuple(sorted(axes, key=lambda a: places[a.name]))


def largest(loads: Iterable[Load]) -> Load | None:
    """Return the load of the tensor with most elements; None where there is no load."""
    return max(loads, key=lambda load: load.buffer.elements, default=None)


def _contiguous_axes(load: Load) -> Iterator[str]:
    """Yield the axes along which neighbours in a load are neighbours in memory."""
    form = affine_form(load.indices[-1]) if load.indices else None
    if form is not None:
        yield from (term.name for term, step in form.terms.items() if isinstance(term, Var) and abs(step) == 1)


def _moved_inside(load: Load, name: str, at: Expr) -> Load:
    """Return a load with its axis ``name`` at ``at``, which stays inside where that goes beyond the end."""
    places = zip(load.indices, load.buffer.shape, strict=True)
    read = (within(substitute(i, {name: at}), n) if name in free_variables(i) else i for i, n in places)
    return replace(load, indices=tuple(read))
