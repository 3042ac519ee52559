"""Stores shape families, and reads the times that they are made from."""

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from ..core.errors import NotFound
from ..core.schedule import Schedule
from .encode import now
from .rows import FamilyRow
from .tables import devices, families, tasks, toolchains, trials


def keep_family(connection: Connection, name: str, document: Mapping[str, object]) -> FamilyRow:
    """Store a family under its name, in place of one that had it."""
    connection.execute(delete(families).where(families.c.name == name))
    connection.execute(insert(families).values(name=name, document=dict(document), created_at=now()))
    return load_family(connection, name)


def load_family(connection: Connection, name: str) -> FamilyRow:
    """Return a family. Raises NotFound."""
    row = connection.execute(select(families).where(families.c.name == name)).first()
    if row is None:
        raise NotFound(f"there is no family {name[:80]!r}", field="name")
    return FamilyRow(*row)


def page_of_families(connection: Connection, before: int | None, limit: int) -> tuple[FamilyRow, ...]:
    """Return families with numbers below ``before``, newest first."""
    query = select(families) if before is None else select(families).where(families.c.id < before)
    return tuple(FamilyRow(*row) for row in connection.execute(query.order_by(families.c.id.desc()).limit(limit)))


def times_of(
    connection: Connection,
    operator: str,
    device_key: str,
    toolchain_key: str,
    profile: str,
    sketches: Mapping[str, int],
) -> Iterator[tuple[Mapping[str, Any], Schedule, float]]:
    """Yield (parameters, schedule, seconds) of every timed record of an operator under these conditions, of
    ``sketches`` in these versions."""
    query = (
        select(tasks.c.parameters, trials.c.sketch, trials.c.sketch_version, trials.c.knobs, trials.c.rank_seconds)
        .join(tasks, (tasks.c.job == trials.c.job) & (tasks.c.position == trials.c.task))
        .join(devices, devices.c.id == trials.c.device)
        .join(toolchains, toolchains.c.id == trials.c.toolchain)
        .where(
            tasks.c.operator == operator,
            devices.c.key == device_key,
            toolchains.c.key == toolchain_key,
            trials.c.profile == profile,
            trials.c.seconds.is_not(None),
        )
    )
    for parameters, sketch, version, knobs, seconds in connection.execute(query):
        if sketches.get(sketch) == version:
            yield parameters or {}, Schedule.of(sketch, version, knobs), seconds
