"""Tenants share the units by weighted fair queueing.

Each trial adds its seconds, divided by the tenant's weight, to the tenant's *virtual time*. Whoever has the least goes
first, so that tenants with work get seconds in the ratio of their weights. A tenant that was idle enters at the least
virtual time of those that run tasks: it can neither save time up nor owe any.

A task that runs has been charged for little yet. Until it is, each unit that a tenant holds counts as ``UNIT_SECONDS``
of work, so that several units which become free at once do not all go to the same tenant. Half a unit more is added for
each (the divisors of Webster's method of apportionment): without it, the whole units favour tenants of little weight.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, exists, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import RowMapping

from ..core.errors import InvalidParameter, QuotaExceeded
from .rows import TenantRow
from .tables import IS_LEASED, IS_READY, attempts, tasks, tenants

UNIT_SECONDS = 60.0
"""What a unit that a tenant holds counts for, in seconds of work."""

WAITING = ("ready", "blocked")


def keep_tenant(connection: Connection, name: str) -> None:
    """Add a tenant with weight 1 and without quotas, unless it is there."""
    kind = sqlite if connection.dialect.name == "sqlite" else postgresql
    if connection.execute(select(tenants.c.name).where(tenants.c.name == name)).first() is None:
        connection.execute(kind.insert(tenants).values(name=name).on_conflict_do_nothing())


def is_idle(connection: Connection, name: str) -> bool:
    """Return whether no task of a tenant runs or is ready. Ask this before its tasks become ready."""
    return not connection.execute(select(_has_tasks(name))).scalar_one()


def enter(connection: Connection, name: str) -> None:
    """Let a tenant that was idle go on from the least virtual time of the others that run tasks. Where none does, all
    start again from the same time. This locks the tenant's row: it comes last in a transaction."""
    others = select(tenants.c.virtual_seconds).where(tenants.c.name != name)
    running = others.where(exists().where(tasks.c.tenant == tenants.c.name, IS_LEASED))
    least = connection.execute(select(func.min(running.subquery().c.virtual_seconds))).scalar()
    if least is None:
        least = connection.execute(select(func.max(others.subquery().c.virtual_seconds))).scalar() or 0.0
    behind = update(tenants).where(tenants.c.name == name, tenants.c.virtual_seconds < least)
    connection.execute(behind.values(virtual_seconds=least))


def charge(connection: Connection, name: str, seconds: float) -> None:
    """Add seconds of work to a tenant's virtual time. This locks the tenant's row: it comes last in a transaction."""
    grown = tenants.c.virtual_seconds + seconds / tenants.c.weight
    connection.execute(update(tenants).where(tenants.c.name == name).values(virtual_seconds=grown))


def check_queue(connection: Connection, name: str, added: int) -> None:
    """Check that a tenant, whose ``added`` new tasks this transaction has stored, may have as many in the queue.
    Raises QuotaExceeded. This locks the row of a tenant that has a quota: it comes last in a transaction."""
    query = select(tenants.c.most_queued).where(tenants.c.name == name, tenants.c.most_queued.is_not(None))
    allowed = connection.execute(query.with_for_update(key_share=True)).scalar()
    if allowed is None:
        return
    waiting = select(func.count()).where(tasks.c.tenant == name, tasks.c.state.in_(WAITING))
    before = connection.execute(waiting).scalar_one() - added
    if before + added > allowed:
        raise QuotaExceeded(
            f"{before} tasks of tenant {name!r} are queued and {added} more were given; allowed: {allowed} in all",
            field="tasks",
        )


def by_virtual_time(connection: Connection, targets: Sequence[str], executor: str, units: int) -> list[str]:
    """Return the tenants that have a ready task for these targets and may hold ``units`` more units; the one that is
    to have the next task stands first."""
    rows = connection.execute(turn_query(targets, executor)).mappings().all()
    allowed = [row for row in rows if row["most_units"] is None or row["units"] + units <= row["most_units"]]
    return [row["name"] for row in sorted(allowed, key=_turn)]


def turn_query(targets: Sequence[str], executor: str) -> Select[Any]:
    """Select the tenants that have a ready task for these targets, with the units that they hold."""
    ready = exists().where(
        tasks.c.tenant == tenants.c.name,
        tasks.c.executor == executor,
        tasks.c.target.in_(targets),
        IS_READY,
    )
    return _with_units().where(ready)


def _turn(row: RowMapping) -> tuple[float, str]:
    return (row["virtual_seconds"] + (row["units"] + 0.5) * UNIT_SECONDS / row["weight"], row["name"])


def load_tenants(connection: Connection) -> tuple[TenantRow, ...]:
    """Return every tenant, by name."""
    query = _with_units().add_columns(_count("running", "leased"), _count("waiting", *WAITING))
    return tuple(TenantRow(**row) for row in connection.execute(query.order_by(tenants.c.name)).mappings())


def store_tenant(
    connection: Connection, name: str, weight: float, most_units: int | None, most_queued: int | None
) -> TenantRow:
    """Add a tenant or change it. Raises InvalidParameter."""
    if not 1 <= len(name) <= 64:
        raise InvalidParameter(f"a tenant's name of {len(name)} characters; allowed: 1 to 64", field="name")
    if not 0 < weight <= 1e6:
        raise InvalidParameter(f"weight {weight}; allowed: over 0, at most 1000000", field="weight")
    for field, quota in (("most_units", most_units), ("most_queued", most_queued)):
        if quota is not None and not 0 <= quota < 1 << 31:
            raise InvalidParameter(f"{field} of {quota}; allowed: 0 to {(1 << 31) - 1}, or none", field=field)
    keep_tenant(connection, name)
    changed = {"weight": weight, "most_units": most_units, "most_queued": most_queued}
    connection.execute(update(tenants).where(tenants.c.name == name).values(changed))
    return next(row for row in load_tenants(connection) if row.name == name)


def _with_units() -> Select[Any]:
    held = (
        select(tasks.c.tenant, func.sum(func.json_array_length(attempts.c.units)).label("units"))
        .join(attempts, (attempts.c.job == tasks.c.job) & (attempts.c.task == tasks.c.position))
        .where(attempts.c.ended_at.is_(None))
        .group_by(tasks.c.tenant)
        .subquery()
    )
    return select(tenants, func.coalesce(held.c.units, 0).label("units")).outerjoin(
        held, held.c.tenant == tenants.c.name
    )


def _has_tasks(name: str) -> ColumnElement[bool]:
    of_it = exists().where(tasks.c.tenant == name)
    return of_it.where(IS_READY) | of_it.where(IS_LEASED)


def _count(label: str, *states: str) -> ColumnElement[int]:
    counted = select(func.count()).where(tasks.c.tenant == tenants.c.name, tasks.c.state.in_(states))
    return counted.scalar_subquery().label(label)
