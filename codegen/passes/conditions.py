"""Takes conditions apart."""

from ...ir.expr import Expr, Logic, LogicOp


def conjuncts(condition: Expr) -> list[Expr]:
    """Return the operands of a conjunction, which must all hold; ``condition`` alone where it is none."""
    if isinstance(condition, Logic) and condition.op is LogicOp.AND:
        return conjuncts(condition.a) + conjuncts(condition.b)
    return [condition]
