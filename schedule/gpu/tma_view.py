"""Tensors as TMA sees them: dimensions that are indexed as one are one dimension."""

from collections.abc import Mapping
from functools import lru_cache
from math import prod

from ...ir.buffer import Buffer, Layout
from ...ir.expr import Binary, BinaryOp, Expr, Load, Var
from ...ir.linear_form import LinearForm, affine_form, flat_form
from ...ir.rewrite import free_variables
from ...te.workload import Axis


def tma_view(load: Load, first: int = 0) -> Load:
    """``load`` on a shape of as few dimensions as possible, where those before ``first`` stay. Neighbouring dimensions
    that hold the quotients and the remainder of one variable become one (the height and width of an image, where an
    index counts pixels). If they hold those of ``x * extent + y``, they become a dimension for ``x`` and one of
    ``extent`` for ``y`` (the channels of several groups)."""
    shape, indices, strides = load.buffer.shape, load.indices, load.buffer.strides
    merged_shape, merged, begin = [*shape[:first]], [*indices[:first]], first
    while begin < len(shape):
        end = begin + 1
        found: tuple[tuple[int, Expr], ...] = ((shape[begin], indices[begin]),)
        for last in range(len(shape), begin + 1, -1):
            joined = _joined(shape[begin:last], indices[begin:last], strides[begin:last])
            if joined:
                end, found = last, joined
                break
        for extent, number in found:
            merged_shape.append(extent)
            merged.append(number)
        begin = end
    if tuple(merged) == indices:
        return load
    tensor = load.buffer
    return Load(Buffer(tensor.name, tuple(merged_shape), tensor.dtype, tensor.scope), tuple(merged))


def _joined(
    shape: tuple[int, ...], indices: tuple[Expr, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, Expr], ...]:
    """(extent, variable) for each of the one or two dimensions that these become; none where they stay as they are."""
    if sum(bool(free_variables(i)) for i in indices) < 2:
        return ()
    form, elements = flat_form(indices, [stride // strides[-1] for stride in strides]), prod(shape)
    atoms = sorted(form.terms.items(), key=lambda term: -term[1])
    if form.constant or not all(isinstance(atom, Var) for atom, _ in atoms) or not atoms or atoms[-1][1] != 1:
        return ()
    if len(atoms) == 1:
        return ((elements, atoms[0][0]),)
    (outer, extent), (inner, _) = atoms[0], atoms[-1]
    is_remainder = indices[-1] != inner and free_variables(indices[-1]) == free_variables(inner)
    if len(atoms) > 2 or not is_remainder or extent % shape[-1] or elements % extent:
        return ()
    return ((elements // extent, outer), (extent, inner))


def merged_digits(load: Load, axis: str) -> Load:
    """``load`` on a tensor where two neighbouring dimensions are one, if they hold the quotient and the remainder of
    ``x * extent`` plus an axis. The last ``x`` may have fewer than ``extent`` of them."""
    tensor, indices = load.buffer, load.indices
    at = next((n for n, i in enumerate(indices[:-1]) if axis in free_variables(i) & free_variables(indices[n + 1])), -1)
    form = flat_form(indices[at : at + 2], (tensor.shape[at + 1], 1)) if at >= 0 else LinearForm({})
    if form.constant or form.coefficient(axis) != 1 or len(form.terms) != 2:
        return load
    ((x, extent),) = (term for term in form.terms.items() if term[0] != Var(axis))
    shape = (*tensor.shape[:at], prod(tensor.shape[at : at + 2]), *tensor.shape[at + 2 :])
    merged = Buffer(tensor.name, shape, tensor.dtype, tensor.scope)
    return Load(merged, (*indices[:at], x * extent + Var(axis), *indices[at + 2 :]))


def is_along(i: Expr, axis: str) -> bool:
    """Return whether an index goes along an axis of a tile, from where other axes say."""
    return i == Var(axis) or (isinstance(i, Binary) and i.op is BinaryOp.ADD and i.b == Var(axis))


@lru_cache(maxsize=64)  # constraints, sizes and the prior ask for the same operands again and again
def operand_view(load: Load) -> Load:
    """``load`` as TMA sees an operand: without the last dimensions of one element, such as those of a filter of one
    place, since TMA loads elements that are neighbours along its last dimension."""
    tensor, rank = load.buffer, len(load.indices)
    while rank > 1 and tensor.shape[rank - 1] == 1:
        rank -= 1
    if rank < len(load.indices):
        load = Load(Buffer(tensor.name, tensor.shape[:rank], tensor.dtype, tensor.scope), load.indices[:rank])
    return tma_view(load)


def ending_at(load: Load, extents: Mapping[str, int]) -> Load:
    """``load`` on a tensor that ends where the axes do by which it is read, so that TMA brings zeros for what lies
    behind. It stays as it is where the tensor goes no further anyway. ``extents``: axis -> how many places it has."""
    tensor = load.buffer
    ends: dict[Expr, int] = {Var(axis): extent for axis, extent in extents.items()}
    shape = tuple(min(n, ends.get(i, n)) for i, n in zip(load.indices, tensor.shape, strict=True))
    if shape == tensor.shape:
        return load
    return Load(Buffer(tensor.name, shape, tensor.dtype, tensor.scope, Layout(tensor.strides)), load.indices)


def moved_dimensions(load: Load, first: tuple[int, ...]) -> Load:
    """``load`` with some dimensions as its first ones, on a tensor that lies as before. It stays as it is where these
    follow one another anyway."""
    if first == tuple(sorted(first)):
        return load
    tensor, order = load.buffer, (*first, *(n for n in range(len(load.indices)) if n not in first))
    layout = Layout(tuple(tensor.strides[n] for n in order))
    shape = tuple(tensor.shape[n] for n in order)
    moved = Buffer(tensor.name, shape, tensor.dtype, tensor.scope, layout)
    return Load(moved, tuple(load.indices[n] for n in order))


def in_slices(load: Load, outer: Axis, inner: Axis) -> Load:
    """``load`` with a dimension for each of two axes where one index is ``outer`` times the extent of ``inner``, plus
    ``inner``: slices of that dimension. It stays as it is where no index is that. What lies behind the last slice is no
    part of what TMA sees then."""
    tensor, form = load.buffer, LinearForm({Var(outer.name): inner.extent, Var(inner.name): 1})
    at = next((n for n, i in enumerate(load.indices) if affine_form(i) == form), None)
    if at is None:
        return load
    shape = (*tensor.shape[:at], outer.extent, inner.extent, *tensor.shape[at + 1 :])
    step = tensor.strides[at]
    layout = Layout((*tensor.strides[:at], inner.extent * step, *tensor.strides[at:]))
    indices = (*load.indices[:at], Var(outer.name), Var(inner.name), *load.indices[at + 1 :])
    return Load(Buffer(tensor.name, shape, tensor.dtype, tensor.scope, layout), indices)
