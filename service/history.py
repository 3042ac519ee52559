"""Chooses and groups the records of earlier tasks that a cost model learns from.

A group has the five parts of an identity in common: times of different profiles, toolchains or devices are never
compared. Which groups a task learns from, their similarity to it decides (``cost_model.similarity``).
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import log2
from typing import TYPE_CHECKING

from ..core.errors import InvalidWorkload
from ..core.record import Record
from ..core.schedule import Schedule
from ..core.trial import Outcome, Trial
from ..cost_model.dataset import Experience
from ..cost_model.similarity import Situation, nearest
from ..db.rows import HistoryGroup
from ..search.drift import comparable_outcomes
from ..te.cost import flops
from ..te.json import workload_from_json
from ..te.workload import Workload

if TYPE_CHECKING:  # it loads SQLAlchemy, which the task worker of an embedded database does without
    from ..db.store import RecordStore

MOST_GROUPS = 2000
"""So many of the newest groups are looked at."""
MOST_WORKLOADS = 64
"""So many workloads are compared in detail: those of the same operator first, then those with as many operations."""


def related_groups(
    store: "RecordStore", task: Situation, *, operator: str | None, until: int, but: tuple[str, int] | None, limit: int
) -> tuple[HistoryGroup, ...]:
    """Return the groups that are most similar to a task, nearest first: at most ``limit`` records, of which none is of
    the task itself or newer than ``until``."""
    groups = store.history_groups(target_kind=task.device.target.kind, until=until, but=but, limit=MOST_GROUPS)
    operations = log2(1 + flops(task.workload))
    roughly = sorted(groups, key=lambda g: (g.operator != operator, abs(log2(1 + g.flops) - operations)))
    keys = list(dict.fromkeys(group.workload_key for group in roughly))[:MOST_WORKLOADS]
    workloads = {key: found for key in keys if (found := _workload(store, key)) is not None}
    devices = {info.key: info for info in store.devices(imported=True)}
    known = [group for group in groups if group.workload_key in workloads]
    situations = [
        Situation(workloads[g.workload_key], devices[g.device_key], g.toolchain_key, g.profile) for g in known
    ]
    chosen, records = list[HistoryGroup](), 0
    for _, number in nearest(task, situations):
        if records >= limit:
            break
        chosen.append(known[number])
        records += known[number].records
    return tuple(chosen)


def experiences(store: "RecordStore", records: Sequence[Record]) -> tuple[Experience, ...]:
    """Return one experience for each workload, device, toolchain and profile, in the order of their first record. Times
    are corrected for drift as those of a search's own trials are."""
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    for record in records:
        part = record.identity
        key = (part.workload_key, part.device_key, part.toolchain_key, part.profile)
        groups.setdefault(key, []).append(record)
    devices = {info.key: info for info in store.devices(imported=True)}
    found = []
    for (workload_key, device_key, toolchain_key, profile), members in groups.items():
        workload = _workload(store, workload_key)
        if workload is not None:
            results = tuple(_results(members))
            found.append(Experience(workload, devices[device_key], results, toolchain_key, profile))
    return tuple(found)


def _results(records: Iterable[Record]) -> Iterable[tuple[Schedule, Outcome]]:
    ordered = sorted(records, key=lambda record: (record.job_id, record.task, record.sequence))
    tasks: list[list[Trial]] = [
        [record.trial for record in of_task] for _, of_task in groupby(ordered, lambda r: (r.job_id, r.task))
    ]
    schedules = (trial.schedule for trials in tasks for trial in trials)
    return zip(schedules, comparable_outcomes(tasks), strict=True)


def _workload(store: "RecordStore", key: str) -> Workload | None:
    """Return a workload; None where it is gone, or a version that allowed more wrote it: there is nothing to learn from
    it here."""
    data = store.workload(key)
    try:
        return None if data is None else workload_from_json(data)
    except InvalidWorkload:
        return None
