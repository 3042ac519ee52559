"""The fastest record of a workload, by index alone.

Four places are looked up at once, each the first entry of an index: all identity parts as wanted; any measuring
profile; any toolchain as well; any device as well. The first that holds something wins. The statement is built once.
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


def _first(place: int, *conditions: ColumnElement[bool]) -> Select[Any]:
    found = (
        select(trials.c.id, literal(place, Integer).label("place"))
        .where(trials.c.seconds.is_not(None), *conditions)
        .order_by(trials.c.rank_seconds, trials.c.schedule_key, trials.c.id)
        .limit(1)
        .subquery()
    )
    return select(found.c.id, found.c.place)


_PLACES = union_all(
    _first(0, _WORKLOAD, _DEVICE, _TOOLCHAIN, _PROFILE),
    _first(1, _WORKLOAD, _DEVICE, _TOOLCHAIN),
    _first(2, _WORKLOAD, _DEVICE),
    _first(3, _WORKLOAD),
).subquery()
_BEST = FULL.join(_PLACES, _PLACES.c.id == trials.c.id).order_by(_PLACES.c.place).limit(1)


def find_best(
    connection: Connection, workload_key: str, device_key: str | None, toolchain_key: str | None, profile: str | None
) -> BestRow | None:
    """The fastest record in the first place that has one, by schedule key and number among equals. A part that is
    None is in no record: then the places that ask for it are empty."""
    wanted = {
        "workload_key": workload_key,
        "device_key": device_key,
        "toolchain_key": toolchain_key,
        "profile": profile,
    }
    row = connection.execute(_BEST, wanted).mappings().first()
    return None if row is None else best_of(row)
