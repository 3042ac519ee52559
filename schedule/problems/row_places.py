"""Where loads stand in tensors of rows: along which axes each dimension goes, and where the first row begins."""

from collections.abc import Mapping, Sequence

from ...core.dtypes import int64
from ...ir.buffer import Buffer
from ...ir.expr import Const, Expr, Load, Var
from ...ir.linear_form import LinearForm, affine_form
from ...ir.rewrite import free_variables, loads_of
from ...te.workload import Axis
from ..tile.load_analysis import conditions_inside

_LONGEST_VECTOR = 16
"""No vector has more elements."""


def variable_forms(names: Sequence[str]) -> list[LinearForm | None]:
    """Return the affine forms of indices that are just these variables."""
    return [LinearForm({Var(n): 1}) for n in names]


def is_below(form: LinearForm, extents: Mapping[str, int], end: int) -> bool:
    """Return whether an index is in an axis of ``end`` elements, wherever those that it depends on are."""
    ends = [c * (extents[name] - 1) for name, c in form.coefficients.items()]
    return form.constant + sum(min(e, 0) for e in ends) >= 0 and form.constant + sum(max(e, 0) for e in ends) < end


def dimensions_of(load: Load, axes: Sequence[Axis], *, shifted: bool = False) -> tuple[int, ...]:
    """Return along which one of ``axes`` a load reads each dimension, by number; -1 for an axis of one element, and for
    the constant 0. Empty where some of them are read in another way. ``shifted``: they may be read further on."""
    numbers = {LinearForm({Var(a.name): 1}): n if a.extent > 1 else -1 for n, a in enumerate(axes)}
    numbers[LinearForm({})] = -1
    forms = [affine_form(i) for i in load.indices]
    forms = [f and LinearForm(f.terms) for f in forms] if shifted else forms
    found = tuple(numbers[f] for f in forms if f is not None and f in numbers)
    return found if load.mask is None and len(found) == len(forms) else ()


def with_axes_of_one(dimensions: tuple[int, ...], axes: Sequence[Axis]) -> tuple[int, ...]:
    """Return along which axis each dimension is, where those of one element are along the axes of one element as they
    come."""
    free = iter([n for n, a in enumerate(axes) if a.extent == 1])
    return tuple(next(free, -1) if d < 0 else d for d in dimensions)


def row_offsets(reductions: Sequence[Expr], own: Sequence[LinearForm | None]) -> Mapping[Buffer, tuple[int, ...]]:
    """Return at which index along each dimension the first row begins in tensors of whose first rows no reduction reads
    anything, one for a reduction that reads no other row input. ``reductions``: their bodies. ``own``: the indices in
    the first rows."""
    found: dict[Buffer, tuple[int, ...]] = {}
    reads = [[(load.buffer, _offset(load, own)) for load in loads_of(body)] for body in reductions]
    rows = {buffer for of_one in reads for buffer, offset in of_one if offset is not None and not any(offset)}
    for of_one in reads:
        if not any(buffer in rows for buffer, _ in of_one):
            apart = ((buffer, offset) for buffer, offset in of_one if offset is not None)
            found |= dict([(buffer, o) for buffer, o in apart if _begins_whole_vectors(buffer, o)][:1])
            rows |= set(found)
    return found


def _offset(load: Load, own: Sequence[LinearForm | None]) -> tuple[int, ...] | None:
    """Return by how much a load is read further on than at the indices ``own``, along each dimension; None where it is
    read elsewhere."""
    forms = [affine_form(i) for i in load.indices]
    apart = [f - o for f, o in zip(forms, own, strict=False) if f is not None and o is not None]
    same = load.mask is None and len(forms) == len(own) == len(apart) and all(f.is_constant for f in apart)
    return tuple(f.constant for f in apart) if same else None


def _begins_whole_vectors(buffer: Buffer, offset: tuple[int, ...]) -> bool:
    """Return whether rows that begin at an offset are as far from the multiples of a vector as those that begin at
    0."""
    steps = zip(offset, buffer.strides, strict=True)
    return not offset[-1] and all(n * stride % _LONGEST_VECTOR == 0 for n, stride in steps)


def kind_of(load: Load, own: Sequence[LinearForm | None], extents: Mapping[str, int]) -> str | None:
    """Return which of the loads in ``RowwiseProblem`` it is: ``row input``, which is read at the indices ``own``,
    ``broadcast`` or ``segment``; None for any other. ``extents``: those of all axes, the last column axis last."""
    forms = [f for f in map(affine_form, load.indices) if f is not None]
    if load.mask is not None or len(forms) < len(load.indices):
        return None
    last = list(extents)[-1]
    if not any(last in f.variables for f in forms):
        return "segment"
    # The first two are read whole, also where a body reads them under a condition.
    inside = all(is_below(f, extents, extent) for f, extent in zip(forms, load.buffer.shape, strict=True))
    if forms == own:
        return "row input" if inside else None
    plain = inside and forms[-1:] == variable_forms([last]) and not any(last in f.variables for f in forms[:-1])
    return "broadcast" if plain else None


def is_neighbour(load: Load, own: Sequence[LinearForm | None]) -> bool:
    """Return whether a load reads its own row so many columns further on."""
    apart = _offset(load, own)
    return apart is not None and not any(apart[:-1])


def is_gathered_row(load: Load, column: str, extents: Mapping[str, int]) -> bool:
    """Return whether a load reads a whole row, along the axis ``column``, whose number is loaded as well and always is
    one of the tensor. Rows are whole vectors. ``extents``: those of all axes."""
    *leading, last = load.indices or (Const(0, int64),)
    whole = (
        last == Var(column) and load.buffer.shape[-1:] == (extents[column],) and not extents[column] % _LONGEST_VECTOR
    )
    if load.mask is not None or not whole or any(column in free_variables(i) for i in leading):
        return False
    return any(loads_of(i) for i in leading) and not conditions_inside(load, extents)


def is_along_a_row(load: Load, column: str) -> bool:
    """Return whether a load depends on the last column axis by its last index alone."""
    return load.mask is None and not any(column in free_variables(i) for i in load.indices[:-1])
