"""Reductions of an element in memory by many threads at once, in any order (``red``)."""

from dataclasses import dataclass

from ..buffer import Buffer
from ..expr import BinaryOp, Expr
from ..stmt import Operation


@dataclass(frozen=True, slots=True)
class AtomicReduce(Operation):
    """``target[target_indices] = op(target[target_indices], value)``, as if no other thread did anything meanwhile.

    The element lies in global or shared memory. ``op`` is ADD on int32 or int64, which wraps around, or MIN or MAX on
    these and on float32, where NaN wins. The result then depends on no order. Of threads that reduce an element none
    need wait for another; what reads or stores it otherwise needs a barrier in between, as for a store.
    """

    op: BinaryOp
    target: Buffer
    target_indices: tuple[Expr, ...]
    value: Expr
