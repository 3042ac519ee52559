"""Finds the fastest record of a workload with indexes alone.

One statement looks the first entry of four indexes up. Level 0 matches all identity parts. Level 1 accepts any
measuring profile, level 2 any toolchain as well, and level 3 any device as well. The lowest level that has a record
wins. The statement is built once, when this module is imported.
"""

from typing import Any

from sqlalchemy import Connection, Integer, Select, bindparam, literal, select, union_all
from sqlalchemy.sql.elements import ColumnElement

from .rows import BestRow
from .tables import devices, toolchains, trials, workloads
from .trials import FULL, best_of

_WORKLOAD = trials.c.workload == (
    select(workloads.c.id).where(workloads.c.key == bindparam("workload_key")).scalar_subquery()
)
_DEVICE = trials.c.device == select(devices.c.id).where(devices.c.key == bindparam("device_key")).scalar_subquery()
_TOOLCHAIN = trials.c.toolchain == (
    select(toolchains.c.id).where(toolchains.c.key == bindparam("toolchain_key")).scalar_subquery()
)
_PROFILE = trials.c.profile == bindparam("profile")


def _fastest(level: int, *conditions: ColumnElement[bool]) -> Select[Any]:
    found = (
        select(trials.c.id, literal(level, Integer).label("level"))
        .where(trials.c.seconds.is_not(None), *conditions)
        .order_by(trials.c.rank_seconds, trials.c.schedule_key, trials.c.id)
        .limit(1)
        .subquery()
    )
    return select(found.c.id, found.c.level)


_LEVELS = union_all(
    _fastest(0, _WORKLOAD, _DEVICE, _TOOLCHAIN, _PROFILE),
    _fastest(1, _WORKLOAD, _DEVICE, _TOOLCHAIN),
    _fastest(2, _WORKLOAD, _DEVICE),
    _fastest(3, _WORKLOAD),
).subquery()
_BEST = FULL.join(_LEVELS, _LEVELS.c.id == trials.c.id).order_by(_LEVELS.c.level).limit(1)


def find_best(
    connection: Connection, workload_key: str, device_key: str | None, toolchain_key: str | None, profile: str | None
) -> BestRow | None:
    """Return the fastest record of the lowest level that has one; among equals the schedule key and then the record id
    decide. A part that is None matches no record: the levels that ask for it are empty then."""
    identity = {
        "workload_key": workload_key,
        "device_key": device_key,
        "toolchain_key": toolchain_key,
        "profile": profile,
    }
    row = connection.execute(_BEST, identity).mappings().first()
    return None if row is None else best_of(row)
