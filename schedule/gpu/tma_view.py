"""Tensors as TMA sees them: dimensions that are indexed as one are one dimension."""

from ...ir.buffer import Buffer
from ...ir.expr import Expr, Load, Var
from ...ir.linear_form import flat_form
from ...ir.rewrite import free_variables


def tma_view(load: Load) -> Load:
    """``load`` on a shape of as few dimensions as possible: neighbouring dimensions that hold the quotients and the
    remainder of one variable become one (the height and width of an image, where an index counts pixels)."""
    shape, indices, strides = load.buffer.shape, load.indices, load.buffer.strides
    merged_shape, merged, begin = list[int](), list[Expr](), 0
    while begin < len(shape):
        end = begin + 1
        for last in range(len(shape), begin + 1, -1):
            number = _joined(indices[begin:last], strides[begin:last])
            if number is not None:
                end = last
                break
        else:
            number = indices[begin]
        elements = 1
        for extent in shape[begin:end]:
            elements *= extent
        merged_shape.append(elements)
        merged.append(number)
        begin = end
    if len(merged) == len(shape):
        return load
    tensor = load.buffer
    return Load(Buffer(tensor.name, tuple(merged_shape), tensor.dtype, tensor.scope), tuple(merged))


def _joined(indices: tuple[Expr, ...], strides: tuple[int, ...]) -> Expr | None:
    """The variable whose quotients and remainder these indices are; None where they are anything else."""
    if sum(bool(free_variables(i)) for i in indices) < 2:
        return None
    form = flat_form(indices, [stride // strides[-1] for stride in strides])
    atoms = list(form.terms.items())
    if len(atoms) != 1 or form.constant or atoms[0][1] != 1 or not isinstance(atoms[0][0], Var):
        return None
    return atoms[0][0]
