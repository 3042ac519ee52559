"""Finds workloads of the operator of one, whose schedules may serve it: those that differ in sizes alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..core.errors import InvalidParameter, NotFound
from ..core.schedule import Schedule
from ..core.target import Target
from ..db.store import RecordStore
from ..te.workload import Workload
from . import wiring

NEWEST_TASKS = 400
"""Among so many of the newest tasks of the operator near shapes are looked for."""
MOST_SHAPES = 8
"""So many near shapes are tried."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Says what a workload came from: an operator of the library and its parameters."""

    operator: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class NearShapes:
    """Holds the keys of workloads that differ from ``workload`` in sizes alone, nearest first."""

    operator: str
    workload: Workload
    keys: tuple[str, ...]

    def fits(self, schedule: Schedule, target: Target) -> bool:
        """Return whether the schedule can be built for the workload."""
        return wiring.is_legal(self.workload, target, schedule)


def near_shapes(store: RecordStore, workload_key: str, origin: Origin | None = None) -> NearShapes | None:
    """Return the near shapes of a workload that have records; None where it came from no operator, or is not known and
    ``origin`` is not given."""
    known = store.origin(workload_key) if origin is None else None
    chosen = Origin(*known) if known is not None else origin
    if chosen is None:
        return None
    try:
        operator = wiring.operator_named(chosen.operator)
        values = operator.values(chosen.parameters).values
        workload = operator.workload(chosen.parameters)
    except (InvalidParameter, NotFound):  # the operator was another one when the record was made
        return None
    found: list[tuple[float, str]] = []
    for row in store.near(chosen.operator, limit=NEWEST_TASKS):
        try:
            others = operator.values(row.parameters).values
        except InvalidParameter:
            continue
        if row.workload_key != workload_key and _differ_in_sizes(values, others):
            found.append((distance(values, others), row.workload_key))
    found.sort()
    return NearShapes(chosen.operator, workload, tuple(key for _, key in found[:MOST_SHAPES]))


def _differ_in_sizes(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    return all(value == other[name] or (type(value) is int and type(other[name]) is int) for name, value in one.items())


def distance(wanted: Mapping[str, object], given: Mapping[str, object]) -> float:
    """Return how far two settings of an operator's parameters are apart: the octaves between sizes, and 4 for any other
    difference."""
    total = 0.0
    for name in wanted.keys() | given.keys():
        a, b = wanted.get(name), given.get(name)
        if a == b:
            continue
        if type(a) is int and type(b) is int and a > 0 and b > 0:
            total += abs(math.log2(a) - math.log2(b))
        else:
            total += 4.0
    return total
