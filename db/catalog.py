"""Stores workloads, devices and toolchains once by content key; other rows refer to them by id."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, Table, Text, cast, exists, insert, select, update
from sqlalchemy.dialects import postgresql

from ..core.target import DeviceInfo, Toolchain
from .encode import device_from_json, device_to_json
from .rows import NewTask
from .tables import devices, tasks, toolchains, tuned_model_workloads, tuned_models, workloads
from .visibility import visible_record


def number_of(connection: Connection, table: Table, key: str, values: Mapping[str, object]) -> int:
    """Return the id of the row with ``key``; add the row with ``values`` when it is not there yet."""
    find = select(table.c.id).where(table.c.key == key)
    found = connection.execute(find).scalar()
    if found is None:
        row = {"key": key, **values}
        if connection.dialect.name == "sqlite":
            connection.execute(insert(table).values(row))
        else:  # another process may add the same row at the same moment
            connection.execute(postgresql.insert(table).values(row).on_conflict_do_nothing())
        found = connection.execute(find).scalar_one()
    return int(found)


def keep_workload(connection: Connection, task: NewTask) -> int:
    """Store a task's workload unless it is there; return its id."""
    return number_of(
        connection,
        workloads,
        task.workload_key,
        {
            "data": dict(task.workload),
            "expression": task.expression,
            "flops": task.flops,
            "minimum_bytes": task.minimum_bytes,
        },
    )


def keep_device(connection: Connection, info: DeviceInfo) -> int:
    """Store a device unless it is there; return its id. Its measurements are replaced when ``info`` has some."""
    data = device_to_json(info)
    number = number_of(connection, devices, info.key, data)
    if info.measured:
        connection.execute(update(devices).where(devices.c.id == number).values(measured=data["measured"]))
    return number


def keep_toolchain(connection: Connection, toolchain: Toolchain) -> int:
    """Store a toolchain unless it is there; return its id."""
    return number_of(connection, toolchains, toolchain.key, {"components": dict(toolchain.components)})


def load_devices(connection: Connection) -> tuple[DeviceInfo, ...]:
    """Return every device ever seen, in the order in which they were seen first."""
    rows = connection.execute(select(devices).order_by(devices.c.id)).mappings()
    return tuple(
        device_from_json({name: row[name] for name in ("name", "target", "hardware", "measured")}) for row in rows
    )


def load_measured(connection: Connection, device_key: str) -> Mapping[str, float] | None:
    """Return what was measured on a device; None when the device is unknown."""
    found = connection.execute(select(devices.c.measured).where(devices.c.key == device_key)).scalar()
    return None if found is None else {name: float(value) for name, value in found.items()}


def load_workload(connection: Connection, key: str) -> Mapping[str, object] | None:
    """Return the JSON of a workload; None when it is unknown."""
    found: Mapping[str, object] | None = connection.execute(
        select(workloads.c.data).where(workloads.c.key == key)
    ).scalar()
    return found


def load_workloads(connection: Connection, keys: Sequence[str]) -> dict[str, str]:
    """Return the JSON of those workloads that are known, as texts by their keys."""
    query = select(workloads.c.key, cast(workloads.c.data, Text)).where(workloads.c.key.in_(keys))
    return {key: text for key, text in connection.execute(query)}


def sees_workload(connection: Connection, key: str) -> bool:
    """Return whether a workload is one of a task, or of a model, that is seen."""
    this = select(workloads.c.id).where(workloads.c.key == key).scalar_subquery()
    of_task = exists().where(tasks.c.workload == this, visible_record(tasks.c.tenant))
    of_model = (
        exists()
        .where(tuned_model_workloads.c.workload == this, visible_record(tuned_models.c.tenant))
        .where(tuned_models.c.id == tuned_model_workloads.c.model)
    )
    return bool(connection.execute(select(of_task | of_model)).scalar())


def load_device(connection: Connection, key: str) -> Mapping[str, object] | None:
    """Return the JSON of a device; None when it is unknown."""
    row = connection.execute(select(devices).where(devices.c.key == key)).mappings().first()
    return None if row is None else {name: row[name] for name in ("name", "target", "hardware", "measured")}


def load_toolchain(connection: Connection, key: str) -> Mapping[str, object] | None:
    """Return the JSON of a toolchain; None when it is unknown."""
    found: Mapping[str, object] | None = connection.execute(
        select(toolchains.c.components).where(toolchains.c.key == key)
    ).scalar()
    return found
