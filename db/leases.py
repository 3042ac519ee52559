"""Leases: who may work on a task or time on a unit, until when, and under which fence.

A lease is a row that exists while the right does. Whoever takes one counts the fence of its subject up, in the row of
the task or the unit, so that deleting a lease never resets a fence. A holder proves its right with ``guard``, the first
statement of each of its transactions. The row stays locked until that transaction ends: nobody takes the lease away in
between, however long the transaction waits for other locks.

Every transaction of the fleet locks in this order, so that no two wait for each other: leases, units, task, job,
tenant. Whoever holds the lock of a job changes other tasks of it only where that needs no waiting (SKIP LOCKED).
"""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update
from sqlalchemy.engine import RowMapping

from ..core.errors import InvalidParameter
from ..core.fleet import Lease, LeaseLost
from .clock import clock
from .tables import leases

TASK, UNIT = "task", "unit"
"""The kinds of a lease."""


def task_subject(job_id: str, position: int) -> str:
    """Return the subject of a task's lease."""
    return f"{job_id}/{position}"


def task_in(lease: Lease) -> tuple[str, int]:
    """Return the (job, position) of the task that is leased. Raises InvalidParameter for the lease of a unit."""
    if lease.kind != TASK:
        raise InvalidParameter(f"a lease of the {lease.kind} {lease.subject} given; allowed: of a task", field="lease")
    job_id, _, position = lease.subject.rpartition("/")
    return job_id, int(position)


def guard(connection: Connection, lease: Lease) -> None:
    """Check that the lease is alive, and lock it until the transaction ends. Raises LeaseLost."""
    held = select(leases.c.fence).where(*_row_of(lease), leases.c.until > clock()).with_for_update(key_share=True)
    if connection.execute(held).first() is None:
        raise lost(lease)


def check(connection: Connection, lease: Lease) -> None:
    """Check that the lease is alive, without locking it. Raises LeaseLost."""
    if connection.execute(select(leases.c.fence).where(*_row_of(lease), leases.c.until > clock())).first() is None:
        raise lost(lease)


def guard_task(connection: Connection, lease: Lease | None, job_id: str, position: int | None = None) -> None:
    """``guard`` a write about a task, or about its job where ``position`` is None. No lease means no check. Raises
    LeaseLost, also where the lease is that of another task."""
    if lease is None:
        return
    leased = task_in(lease)
    if leased[0] != job_id or position not in (None, leased[1]):
        raise LeaseLost(f"the lease is for task {leased[1]} of job {leased[0]}", field="lease")
    guard(connection, lease)


def lost(lease: Lease) -> LeaseLost:
    """Return the error that says that this lease is held no longer."""
    return LeaseLost(f"the lease of the {lease.kind} {lease.subject} with fence {lease.fence} is lost", field="lease")


def take(connection: Connection, kind: str, subject: str, fence: int, owner: str, seconds: float) -> Lease:
    """Add a lease. The caller has locked the subject's row and stored the new fence there."""
    row = {"kind": kind, "subject": subject, "fence": fence, "owner": owner, "until": clock() + seconds}
    until = connection.execute(insert(leases).values(row).returning(leases.c.until)).scalar_one()
    return Lease(kind, subject, fence, owner, until)


def renew(connection: Connection, held: Sequence[Lease], seconds: float) -> None:
    """Renew all these leases. Raises LeaseLost for the first that is held no longer."""
    for lease in sorted(held, key=lambda lease: (lease.kind, lease.subject)):
        renewed = update(leases).where(*_row_of(lease), leases.c.until > clock()).values(until=clock() + seconds)
        if connection.execute(renewed).rowcount != 1:
            raise lost(lease)


def drop(connection: Connection, lease: Lease) -> None:
    """Delete a lease, unless it is lost already."""
    connection.execute(delete(leases).where(*_row_of(lease)))


def load_leases(connection: Connection, *, alive: bool) -> list[Lease]:
    """Return the leases that ran out, and with ``alive`` all others as well, the oldest first."""
    query = select(leases).order_by(leases.c.until)
    found = connection.execute(query if alive else query.where(leases.c.until <= clock()))
    return [_lease(row) for row in found.mappings()]


def lock(connection: Connection, lease: Lease) -> bool:
    """Lock a lease, whether it ran out or not, and wait for whoever has it locked. Return False where it is gone."""
    held = select(leases.c.fence).where(*_row_of(lease)).with_for_update(key_share=True)
    return connection.execute(held).first() is not None


def lock_to_end(connection: Connection, lease: Lease, *, alive: bool) -> bool:
    """Lock a lease that ran out, with ``alive`` also one that did not. Return False when it was renewed or dropped
    meanwhile, or when somebody else has it locked: a holder in the middle of a write, or another process that ends
    it."""
    query = select(leases.c.fence).where(*_row_of(lease))
    query = query if alive else query.where(leases.c.until <= clock())
    return connection.execute(query.with_for_update(key_share=True, skip_locked=True)).first() is not None


def of_job(connection: Connection, job_id: str) -> list[Lease]:
    """Lock the leases of all tasks of a job and return them. This waits for writes of their holders."""
    of_it = func.substr(leases.c.subject, 1, len(job_id) + 1) == f"{job_id}/"
    query = select(leases).where(leases.c.kind == TASK, of_it).order_by(leases.c.subject)
    return [_lease(row) for row in connection.execute(query.with_for_update(key_share=True)).mappings()]


def _row_of(lease: Lease) -> tuple[ColumnElement[bool], ...]:
    return (leases.c.kind == lease.kind, leases.c.subject == lease.subject, leases.c.fence == lease.fence)


def _lease(row: RowMapping) -> Lease:
    return Lease(row["kind"], row["subject"], row["fence"], row["owner"], row["until"])
