"""Checks that loads from other CTAs of a cluster arrive before the shared memory that they read may change or go
away."""

from ....ir.expr import ClusterLoad
from ....ir.gpu.barrier import Barrier, SyncScope
from ....ir.gpu.cluster import ClusterLoadWait
from ....ir.rewrite import reads_of
from ....ir.stmt import Allocate, For, If, Seq, Stmt, expressions


class _NotAwaited(Exception):
    """A barrier of the cluster is reached while loads are in flight."""


def awaits_cluster_loads(body: Stmt) -> bool:
    """Return whether on every path a ClusterLoadWait stands between a ClusterLoad and the next barrier of the cluster.

    Without it a load may still be in flight when its thread is at the barrier, since the assembler moves the first use
    of its value behind it. (A ``barrier.cluster`` in its usual form waits for loads, and for all else.)
    """
    try:
        return not _in_flight(body, False)
    except _NotAwaited:
        return False


def _in_flight(stmt: Stmt, before: bool) -> bool:
    """Return whether loads may be in flight after ``stmt``, given whether some may be ``before`` it."""
    match stmt:
        case Barrier(scope=SyncScope.CLUSTER):
            if before:
                raise _NotAwaited
            return False
        case ClusterLoadWait():
            return False
        case Seq():
            for below in stmt.statements:
                before = _in_flight(below, before)
            return before
        case Allocate():
            return _in_flight(stmt.body, before)
        case For():
            return _in_flight(stmt.body, _in_flight(stmt.body, before)) or before
        case If():
            return _in_flight(stmt.then, before) or before
    return before | any(isinstance(e, ClusterLoad) for root in expressions(stmt) for e in reads_of(root))
