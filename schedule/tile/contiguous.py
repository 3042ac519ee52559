"""Runs of neighbours along the last axis."""

from collections.abc import Sequence

from ...ir.expr import Expr, Ramp


def run_of(indices: Sequence[Expr], lanes: int) -> tuple[Expr, ...]:
    """``lanes`` neighbours along the last axis, from ``indices`` on."""
    return tuple(indices) if lanes == 1 else (*indices[:-1], Ramp(indices[-1], 1, lanes))
