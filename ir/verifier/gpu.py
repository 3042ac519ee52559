"""The verifier's rules for all operations of graphics processors, as one table."""

from collections.abc import Callable
from typing import Any

from ..gpu.async_copy import CopyAsyncCommit
from ..gpu.barrier import Barrier, SyncScope
from ..gpu.cluster import ClusterLoadWait
from ..gpu.fence import AsyncProxyFence
from ..gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from ..gpu.tma import TmaStoreCommit
from ..stmt import Operation
from .async_copy import COPY_RULES
from .atomic import ATOMIC_RULES
from .flagged import FLAGGED_RULES
from .mbarrier import MBARRIER_RULES
from .mma import MMA_RULES
from .ordered_sequence import ORDERED_SEQUENCE_RULES
from .tcgen05 import TCGEN05_RULES
from .tma import TMA_RULES
from .types import BoundNames, RuleBroken, type_of
from .wgmma import WARPGROUP_RULES


def check_operation(stmt: Operation, names: BoundNames) -> None:
    """Raise RuleBroken where the operands of an operation inside a launch are not what it takes."""
    check = _OPERATIONS.get(type(stmt))
    if check is None:
        raise RuleBroken("types", f"{type(stmt).__name__} is no operation of launches")
    check(stmt, names)


def _cluster_load_wait(stmt: ClusterLoadWait, names: BoundNames) -> None:
    if type_of(stmt.value, names)[1] != 1:
        raise RuleBroken("operation", "a wait for the loads behind a vector; a scalar of it is enough")


def _barrier(stmt: Barrier, names: BoundNames) -> None:
    if stmt.scope is SyncScope.GRID:
        raise RuleBroken("operation", "a barrier of the grid; it is a GridBarrierArrive and a GridBarrierWait")


def _no_operands(stmt: Operation, names: BoundNames) -> None:
    """The operation has no operands."""


_OPERATIONS: dict[type[Operation], Callable[[Any, BoundNames], None]] = {
    Barrier: _barrier,
    GridBarrierArrive: _no_operands,
    GridBarrierWait: _no_operands,
    AsyncProxyFence: _no_operands,
    CopyAsyncCommit: _no_operands,
    TmaStoreCommit: _no_operands,
    ClusterLoadWait: _cluster_load_wait,
    **ATOMIC_RULES,
    **COPY_RULES,
    **FLAGGED_RULES,
    **MBARRIER_RULES,
    **TMA_RULES,
    **MMA_RULES,
    **WARPGROUP_RULES,
    **TCGEN05_RULES,
    **ORDERED_SEQUENCE_RULES,
}
"""What each operation takes."""
