"""Waiting for loads of distributed shared memory: that of other blocks of a cluster."""

from dataclasses import dataclass

from ..expr import Expr
from ..stmt import Operation


@dataclass(frozen=True, slots=True)
class ClusterLoadWait(Operation):
    """Waits until the loads from other blocks (``ir.expr.ClusterLoad``) that ``value`` was computed from are done;
    ``value`` is a scalar.

    A cluster's barrier waits for all such loads anyway, and for all stores to global memory too. Where every load is
    awaited before it, the barrier need not.
    """

    value: Expr
