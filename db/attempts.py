"""Reads and writes attempts: who searched a task with which units, and how that ended."""

from collections.abc import Sequence

from sqlalchemy import Connection, insert, select, update

from ..core.fleet import AttemptEnd, Lease
from .clock import clock
from .jobs import load_task, number_of_job
from .rows import AttemptRow
from .tables import attempts


def begin_attempt(connection: Connection, number: int, position: int, lease: Lease, units: Sequence[str]) -> None:
    """Store that the holder of a lease begins with a task."""
    row = {"job": number, "task": position, "fence": lease.fence, "owner": lease.owner, "units": list(units)}
    connection.execute(insert(attempts).values(**row, began_at=clock()))


def change_units(
    connection: Connection, number: int, position: int, fence: int, *, add: str | None = None, remove: str | None = None
) -> None:
    """Add a unit to those of an attempt that goes on, or remove one. Its holder alone changes them."""
    this = (attempts.c.job == number, attempts.c.task == position, attempts.c.fence == fence)
    query = select(attempts.c.units).where(*this, attempts.c.ended_at.is_(None)).with_for_update()
    before = connection.execute(query).scalar()
    if before is not None:
        after = [uuid for uuid in before if uuid != remove] + ([] if add is None else [add])
        connection.execute(update(attempts).where(*this).values(units=after))


def end_attempt(
    connection: Connection, number: int, position: int, fence: int, how: AttemptEnd, detail: str
) -> tuple[str, ...]:
    """Store how an attempt ended; return its units."""
    this = (attempts.c.job == number, attempts.c.task == position, attempts.c.fence == fence)
    # PostgreSQL's text type holds no NUL
    values = {"ended_at": clock(), "how": how.value, "detail": detail.replace("\x00", "")[:4000]}
    ended = update(attempts).where(*this).values(values).returning(attempts.c.units)
    return tuple(connection.execute(ended).scalar_one())


def last_end(connection: Connection, number: int, position: int) -> str:
    """Return for people how the last attempt at a task ended."""
    query = select(attempts.c.how, attempts.c.detail).where(attempts.c.job == number, attempts.c.task == position)
    found = connection.execute(query.order_by(attempts.c.fence.desc()).limit(1)).first()
    return "before anybody began with it" if found is None else found[1] or f"at last by {found[0]}"


def load_attempts(connection: Connection, job_id: str, position: int) -> tuple[AttemptRow, ...]:
    """Return the attempts at a task, oldest first. Raises NotFound."""
    number = number_of_job(connection, job_id)
    load_task(connection, number, position)
    query = select(attempts).where(attempts.c.job == number, attempts.c.task == position).order_by(attempts.c.fence)
    return tuple(
        AttemptRow(
            job_id,
            position,
            row["fence"],
            row["owner"],
            tuple(row["units"]),
            row["began_at"],
            row["ended_at"],
            None if row["how"] is None else AttemptEnd(row["how"]),
            row["detail"],
        )
        for row in connection.execute(query).mappings()
    )
