"""The masked loads of a stage's body: found, and replaced by values that were loaded before."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...ir.expr import Const, Expr, Load, Logic, LogicOp, Select, conjunction, logical_and, rebuild
from ...ir.rewrite import free_variables, loads_of
from ...te.functions import negated


@dataclass(frozen=True, slots=True)
class MaskedLoad:
    """A load of a body, as ``tl.load(pointer, mask, other)`` in Triton; all three are on the axes of the stage.

    ``mask``: the condition under which the load happens; None where it always does. ``other``: the value where the
    mask is false; None where no value is needed there. It may be another element of the tensor, which is at hand
    wherever the axes are, and which is the same one where the mask is true.
    """

    load: Load
    mask: Expr | None = None
    other: Const | Load | None = None

    @property
    def variables(self) -> frozenset[str]:
        """The variables that the load and its mask depend on."""
        return free_variables(self.load) | (frozenset() if self.mask is None else free_variables(self.mask))


def masked_loads_of(body: Expr, *, bordered: bool = False) -> tuple[MaskedLoad, ...]:
    """Return the distinct masked loads of ``body`` in the order in which they occur: what a thread can load into
    registers before it computes anything.

    A select between a load and a constant is one masked load. A condition on data is no mask, since it keeps no load in
    bounds. ``bordered``: a select between two elements of a tensor, as ``te.borders`` writes it, is one as well.
    """
    found: dict[MaskedLoad, None] = {}

    def note(masked: MaskedLoad, expr: Expr) -> Expr:
        found[masked] = None
        return expr

    _visit(body, (), note, bordered=bordered)
    return tuple(found)


def replace_masked_loads(body: Expr, values: Mapping[MaskedLoad, Expr]) -> Expr:
    """``body`` with each masked load (as ``masked_loads_of`` finds them) replaced by its value; others stay.

    A value must be defined where the mask is true, and be ``other`` elsewhere if there is one.
    """
    bordered = any(isinstance(masked.other, Load) for masked in values)
    return _visit(body, (), lambda masked, expr: values.get(masked, expr), bordered=bordered)


def conjuncts(condition: Expr | None) -> list[Expr]:
    """Return the conditions that ``condition`` is the conjunction of; none where it is None."""
    match condition:
        case None:
            return []
        case Logic(op=LogicOp.AND, a=a, b=b):
            return [*conjuncts(a), *conjuncts(b)]
    return [condition]


def _visit(
    expr: Expr, masks: tuple[Expr, ...], f: Callable[[MaskedLoad, Expr], Expr], *, bordered: bool = False
) -> Expr:
    """``expr`` with everything that is one masked load replaced by ``f`` of it and of the expression that it was.
    ``masks`` are the conditions of the selects around ``expr``."""
    match expr:
        case Select(condition=condition, then=Load() as load, otherwise=Const() as otherwise) if _on_axes(condition):
            return f(MaskedLoad(load, logical_and(*masks, condition), otherwise), expr)
        case Select(condition=condition, then=Load() as load, otherwise=Load() as otherwise) if (
            bordered and not masks and _on_axes(condition) and load.buffer == otherwise.buffer
        ):
            return f(MaskedLoad(load, condition, otherwise), expr)
        case Select(condition=condition, then=then, otherwise=otherwise):
            inside = () if not _on_axes(condition) else (condition,)
            outside = tuple(map(negated, inside))
            parts = ((condition, ()), (then, inside), (otherwise, outside))
            return rebuild(expr, [_visit(part, (*masks, *more), f, bordered=bordered) for part, more in parts])
        case Load():
            return f(MaskedLoad(expr, conjunction(*masks)), expr)
    return rebuild(expr, [_visit(child, masks, f, bordered=bordered) for child in expr.children])


def _on_axes(condition: Expr) -> bool:
    """Return whether ``condition`` reads no tensor."""
    return not loads_of(condition)
