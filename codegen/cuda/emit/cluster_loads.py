"""Whether what a launch loads from other blocks of a cluster is there before their memory may change or go away."""

from ....ir.expr import ClusterLoad, walk
from ....ir.gpu.barrier import Barrier, SyncScope
from ....ir.gpu.cluster import ClusterLoadWait
from ....ir.stmt import Allocate, For, If, Seq, Stmt, expressions


class _Unawaited(Exception):
    pass


def awaits_peers(body: Stmt) -> bool:
    """Whether on every path an ClusterLoadWait stands between a ClusterLoad and the next barrier of the cluster.

    Without it a load may still be under way when its thread is at the barrier: the assembler moves the first use of
    what was loaded behind it. (Barriers of the cluster in their usual form wait for loads, and for all else.)
    """
    try:
        return not _open(body, False)
    except _Unawaited:
        return False


def _open(stmt: Stmt, before: bool) -> bool:
    """Whether loads are not awaited after ``stmt``, given whether some were not ``before``."""
    match stmt:
        case Barrier(scope=SyncScope.CLUSTER):
            if before:
                raise _Unawaited
            return False
        case ClusterLoadWait():
            return False
        case Seq():
            for part in stmt.statements:
                before = _open(part, before)
            return before
        case Allocate():
            return _open(stmt.body, before)
        case For():
            return _open(stmt.body, _open(stmt.body, before)) or before
        case If():
            return _open(stmt.then, before) or before
    return before | any(isinstance(e, ClusterLoad) for root in expressions(stmt) for e in walk(root))
