"""What scores read of other tensors, such as a bias or a mask, and how it may be loaded."""

from ....ir.expr import Load, Var
from ....ir.linear_form import linear_form
from ....ir.rewrite import free_variables, loads_of
from ...problems.attention import Attention
from .operand_tiles import can_load


def pairs_of(p: Attention) -> tuple[Load, ...]:
    """Return the loads of scores and conditions that bring two neighbouring keys at once."""
    if p.dynamic_n is not None or p.n.extent % 2:
        return ()
    bodies = (*(() if p.score is None else (p.score,)), *p.conditions)
    loads = dict.fromkeys(load for body in bodies for load in loads_of(body) if load.buffer in p.inputs)
    return tuple(load for load in loads if _is_pair(load))


def tile_loads(p: Attention) -> tuple[Load, ...]:
    """Return those of ``pairs_of`` that TMA can bring as tiles of queries and keys."""
    if p.is_dynamic:
        return ()
    return tuple(
        load for load in pairs_of(p) if load.dtype.is_float and load.dtype.bits == 16 and can_load(load, "m", "n")
    )


def _is_pair(load: Load) -> bool:
    """Return whether a key and the next one, of even number, are neighbours that one aligned load brings."""
    elements = 0  # how many a key is behind the one before
    for i, stride in zip(load.indices, load.buffer.strides, strict=True):
        form = linear_form(i)
        elements += stride * form.coefficient("n")
        others = {atom: number for atom, number in form.terms.items() if atom != Var("n")}
        if any(number * stride % 2 for number in (form.constant, *others.values())):
            return False
        if any("n" in free_variables(atom) for atom in others):
            return False
    return elements == 1
