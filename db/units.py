"""Reads and writes units: the physical devices of the fleet, their states and who holds them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import RowMapping

from ..core.errors import NotFound
from ..core.fleet import Lease, Unit, UnitState
from .catalog import keep_device
from .clock import clock
from .encode import device_from_json
from .leases import UNIT, take
from .rows import UnitRow
from .tables import devices, leases, units

PROCESSOR = "llvm"
"""The kind of target whose units disturb, and are disturbed by, all else that is timed on their host."""

DEVICE = [devices.c.name, devices.c.target, devices.c.hardware, devices.c.measured]
FULL: Select[Any] = (
    select(units, *DEVICE, leases.c.owner, leases.c.until.label("held_until"))
    .join(devices, devices.c.id == units.c.device)
    .outerjoin(leases, and_(leases.c.kind == UNIT, leases.c.subject == units.c.uuid))
)
"""Selects everything that a UnitRow holds."""


def register(connection: Connection, found: Sequence[Unit], seen_seconds: float) -> None:
    """Add these units, or note that they are there for so many seconds. A lost unit becomes ready. One that its own
    host sees and a cluster sees too stays a local one."""
    kinds = {unit.device.key: unit.device for unit in found}
    # all transactions change devices, and units, in one order, so that none waits for another that waits for it
    numbers = {key: keep_device(connection, kinds[key]) for key in sorted(kinds)}
    kind = sqlite if connection.dialect.name == "sqlite" else postgresql
    for unit in sorted(found, key=lambda unit: unit.uuid):
        place = {
            "device": numbers[unit.device.key],
            "host": unit.host,
            "executor": unit.executor,
            "ordinal": unit.ordinal,
            "seen_until": clock() + seen_seconds,
        }
        new = {"uuid": unit.uuid, "state": UnitState.READY.value, "since": clock(), "health": {}}
        added = kind.insert(units).values(**new, **place)
        free = or_(units.c.executor != "local", units.c.seen_until <= clock())
        changes = None if unit.executor == "local" else free
        connection.execute(added.on_conflict_do_update(index_elements=[units.c.uuid], set_=place, where=changes))
        found_again = update(units).where(units.c.uuid == unit.uuid, units.c.state == UnitState.LOST.value)
        connection.execute(found_again.values(state=UnitState.READY.value, reason=None, since=clock()))


def load_units(connection: Connection) -> tuple[UnitRow, ...]:
    """Return every unit, by host and number."""
    query = FULL.order_by(units.c.host, units.c.executor, units.c.ordinal, units.c.uuid)
    return tuple(_unit_row(row) for row in connection.execute(query).mappings())


def load_unit(connection: Connection, uuid: str) -> UnitRow:
    """Return a unit. Raises NotFound."""
    row = connection.execute(FULL.where(units.c.uuid == uuid)).mappings().first()
    if row is None:
        raise NotFound(f"there is no unit {uuid!r}", field="uuid")
    return _unit_row(row)


def change_state(
    connection: Connection,
    uuid: str,
    state: UnitState,
    reason: str | None,
    health: Mapping[str, float] | None,
    anchor_seconds: float | None,
    only_from: UnitState | None = None,
) -> UnitRow:
    """Store a unit's state, and what a probe found of it; with ``only_from``, only if that is its state. Raises
    NotFound."""
    before = connection.execute(
        select(units.c.state).where(units.c.uuid == uuid).with_for_update(key_share=True)
    ).scalar()
    if only_from is not None and before != only_from.value:
        return load_unit(connection, uuid)
    values: dict[str, Any] = {"state": state.value, "reason": reason}
    if before != state.value:
        values["since"] = clock()
    if health is not None:
        values["health"] = dict(health)
    if anchor_seconds is not None:
        values["anchor_seconds"] = anchor_seconds
    if health is not None or anchor_seconds is not None:
        values["probed_at"] = clock()
    connection.execute(update(units).where(units.c.uuid == uuid).values(values))
    return load_unit(connection, uuid)


def lease(connection: Connection, uuid: str, owner: str, seconds: float) -> Lease | None:
    """Lease a unit; None while it is not ready, not seen, held, or shut out by what is held on its host."""
    host = select(units.c.host).where(units.c.uuid == uuid).scalar_subquery()
    on_host = (
        select(units, devices.c.target["kind"].as_string().label("kind"), (units.c.seen_until > clock()).label("seen"))
        .join(devices, devices.c.id == units.c.device)
        .where(units.c.host == host)
        .order_by(units.c.uuid)
        .with_for_update(of=units, key_share=True)
    )
    rows = {row["uuid"]: row for row in connection.execute(on_host).mappings()}
    wanted = rows.get(uuid)
    if wanted is None or wanted["state"] != UnitState.READY.value or not wanted["seen"]:
        return None
    held = set(
        connection.execute(select(leases.c.subject).where(leases.c.kind == UNIT, leases.c.subject.in_(rows))).scalars()
    )
    alone = wanted["kind"] == PROCESSOR
    if uuid in held or any(alone or rows[other]["kind"] == PROCESSOR for other in held):
        return None
    fence = wanted["fence"] + 1
    connection.execute(update(units).where(units.c.uuid == uuid).values(fence=fence))
    return take(connection, UNIT, uuid, fence, owner, seconds)


def mark_lost(connection: Connection) -> int:
    """Make ready units that nobody saw in time lost; return how many."""
    gone = (
        select(units.c.id)
        .where(units.c.state == UnitState.READY.value, units.c.seen_until <= clock())
        .order_by(units.c.uuid)
        .with_for_update(key_share=True, skip_locked=True)
    )
    values = {"state": UnitState.LOST.value, "reason": "nobody has seen it lately", "since": clock()}
    return connection.execute(update(units).where(units.c.id.in_(gone)).values(values)).rowcount


def all_ready(connection: Connection, uuids: Sequence[str]) -> bool:
    """Return whether all these units are ready. Those that are not registered count as ready."""
    if not uuids:
        return True
    unfit = select(func.count()).where(units.c.uuid.in_(uuids), units.c.state != UnitState.READY.value)
    return connection.execute(unfit).scalar_one() == 0


def _unit_row(row: RowMapping) -> UnitRow:
    device = device_from_json({name: row[name] for name in ("name", "target", "hardware", "measured")})
    return UnitRow(
        Unit(row["uuid"], device, row["host"], row["executor"], row["ordinal"]),
        UnitState(row["state"]),
        row["reason"],
        row["since"],
        row["seen_until"],
        row["health"],
        row["anchor_seconds"],
        row["probed_at"],
        row["fence"],
        row["owner"],
        row["held_until"],
    )
