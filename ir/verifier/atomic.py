"""The verifier's rule for reductions in memory (``red``)."""

from collections.abc import Callable
from typing import Any

from ...core.dtypes import float32, int32, int64
from ..buffer import MemoryScope
from ..expr import BinaryOp
from ..gpu.atomic import AtomicReduce
from ..stmt import Operation
from .operands import check_element
from .types import BoundNames, RuleBroken, type_of

_TAKEN = {
    BinaryOp.ADD: (int32, int64),
    BinaryOp.MIN: (int32, int64, float32),
    BinaryOp.MAX: (int32, int64, float32),
}


def _atomic_reduce(stmt: AtomicReduce, names: BoundNames) -> None:
    check_element(stmt.target, stmt.target_indices, names, MemoryScope.GLOBAL, MemoryScope.SHARED)
    dtype = stmt.target.dtype
    if dtype not in _TAKEN.get(stmt.op, ()):
        raise RuleBroken("operation", f"{stmt.op.value} of {dtype} in memory, whose result would depend on the order")
    if type_of(stmt.value, names) != (dtype, 1):
        raise RuleBroken("operation", f"{stmt.target.name} of {dtype} is reduced with what is no scalar of it")


ATOMIC_RULES: dict[type[Operation], Callable[[Any, BoundNames], None]] = {AtomicReduce: _atomic_reduce}
"""What a reduction in memory takes."""
