"""The verifier's rules for ``mbarrier`` operations."""

from collections.abc import Callable
from typing import Any

from ...core.dtypes import INDEX
from ..expr import Expr
from ..gpu.bulk_copy import BulkCopy
from ..gpu.mbarrier import MAX_TX_BYTES, TX_BYTES, MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ..gpu.tcgen05 import TensorMemoryCommit
from ..gpu.tma import TmaLoad
from ..stmt import HardwareAxis, Kernel, Operation, walk_statements
from .operands import check_mbarrier
from .types import BoundNames, RuleBroken, type_of


def mbarrier_buffers(kernel: Kernel) -> frozenset[str]:
    """Return the names of the buffers that hold mbarriers."""
    found: set[str] = set()
    users = MbarrierInit | BulkCopy | TmaLoad | MbarrierArrive | MbarrierArriveExpectTx | MbarrierWait
    for stmt in walk_statements(kernel.body):
        if isinstance(stmt, users | TensorMemoryCommit):
            found.add(stmt.barriers.name)
    return frozenset(found)


def check_cluster_operand(what: str, expr: Expr, names: BoundNames) -> None:
    """Raise unless ``expr`` is a scalar index in a launch with clusters; ``what`` is its name in the message."""
    if type_of(expr, names) != (INDEX, 1):
        raise RuleBroken("operation", f"{what} is no scalar of the index type")
    if names.launch is None or names.launch.extent(HardwareAxis.CLUSTER) == 1:
        raise RuleBroken("launch", f"{what} where there are no clusters")


def _init(stmt: MbarrierInit, names: BoundNames) -> None:
    check_mbarrier(stmt.barriers, stmt.index, names)
    if not 1 <= stmt.count < 1 << 20:
        raise RuleBroken("operation", f"an mbarrier for {stmt.count} arrivals")


def _arrive(stmt: MbarrierArrive, names: BoundNames) -> None:
    check_mbarrier(stmt.barriers, stmt.index, names)
    if stmt.rank is not None:
        check_cluster_operand("the block of an arrival", stmt.rank, names)


def _arrive_expect_tx(stmt: MbarrierArriveExpectTx, names: BoundNames) -> None:
    check_mbarrier(stmt.barriers, stmt.index, names)
    if isinstance(stmt.bytes, Expr):
        if type_of(stmt.bytes, names) != (INDEX, 1):
            raise RuleBroken("operation", "how many bytes are expected is no scalar of the index type")
    elif not 0 < stmt.bytes <= MAX_TX_BYTES or stmt.bytes % TX_BYTES:
        raise RuleBroken(
            "operation", f"{stmt.bytes} bytes are expected; a multiple of {TX_BYTES} up to {MAX_TX_BYTES} is allowed"
        )


def _wait(stmt: MbarrierWait, names: BoundNames) -> None:
    check_mbarrier(stmt.barriers, stmt.index, names)
    if type_of(stmt.parity, names) != (INDEX, 1):
        raise RuleBroken("operation", "the parity of a wait is no scalar of the index type")


MBARRIER_RULES: dict[type[Operation], Callable[[Any, BoundNames], None]] = {
    MbarrierInit: _init,
    MbarrierArrive: _arrive,
    MbarrierArriveExpectTx: _arrive_expect_tx,
    MbarrierWait: _wait,
}
"""What each mbarrier operation takes."""
