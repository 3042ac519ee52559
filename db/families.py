"""Stores shape families, and reads the times that they are made from."""

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from ..core.errors import NotFound
from ..core.schedule import Schedule
from .encode import now
from .rows import FamilyRow
from .tables import devices, families, tasks, toolchains, trials
from .visibility import visible, visible_record

_SEEN = select(families.c.id, families.c.name, families.c.document, families.c.created_at)


def keep_family(connection: Connection, tenant: str, name: str, document: Mapping[str, object]) -> FamilyRow:
    """Store a family of a tenant under its name, in place of one that had it."""
    connection.execute(delete(families).where(families.c.tenant == tenant, families.c.name == name))
    values = {"tenant": tenant, "name": name, "document": dict(document), "created_at": now()}
    connection.execute(insert(families).values(**values))
    return load_family(connection, name)


def load_family(connection: Connection, name: str) -> FamilyRow:
    """Return a family; who sees those of all tenants is shown the newest of this name. Raises NotFound."""
    query = _SEEN.where(families.c.name == name, visible(families.c.tenant)).order_by(families.c.id.desc()).limit(1)
    row = connection.execute(query).first()
    if row is None:
        raise NotFound(f"there is no family {name[:80]!r}", field="name")
    return FamilyRow(*row)


def page_of_families(connection: Connection, before: int | None, limit: int) -> tuple[FamilyRow, ...]:
    """Return families with numbers below ``before``, newest first."""
    query = _SEEN.where(visible(families.c.tenant))
    query = query if before is None else query.where(families.c.id < before)
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
            visible_record(tasks.c.tenant),
        )
    )
    for parameters, sketch, version, knobs, seconds in connection.execute(query):
        if sketches.get(sketch) == version:
            yield parameters or {}, Schedule.of(sketch, version, knobs), seconds
