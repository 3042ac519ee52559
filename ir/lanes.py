"""Vectors whose lanes are all the same, and the scalars that they stand for."""

from ..core.dtypes import boolean
from .expr import Broadcast, Const, Expr


def scalar_of(expr: Expr) -> Expr:
    """Return the scalar in every lane of a Broadcast. Any other expression stands for itself."""
    return expr.value if isinstance(expr, Broadcast) else expr


def varies(expr: Expr) -> bool:
    """Return whether the lanes of ``expr`` may differ."""
    return expr.lanes > 1 and not isinstance(expr, Broadcast)


def truth(value: bool, lanes: int = 1) -> Expr:
    """Return a bool with one value in every lane."""
    scalar = Const(value, boolean)
    return scalar if lanes == 1 else Broadcast(scalar, lanes)


def truth_value(expr: Expr) -> bool | None:
    """Return the value of a bool constant, or of a vector of one; None for everything else."""
    scalar = scalar_of(expr)
    return bool(scalar.value) if isinstance(scalar, Const) and scalar.type.is_bool else None
