"""Chooses and groups the records of earlier tasks that a cost model learns from.

A group has the five parts of an identity in common: times of different profiles, toolchains or devices are never
compared. Which groups a task learns from, their similarity to it decides (``cost_model.similarity``).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import groupby
from math import inf, log2
from typing import TYPE_CHECKING

from ..core.errors import InvalidWorkload
from ..core.record import Record
from ..core.schedule import Schedule
from ..core.trial import Outcome, Trial
from ..cost_model.dataset import Experience
from ..cost_model.similarity import Situation, distance, least_distance, nearest
from ..db.history_rows import HistoryGroup, HistoryTask
from ..search.drift import comparable_outcomes
from ..te.cost import flops, minimum_bytes
from ..te.json import workload_from_json
from ..te.workload import Workload

if TYPE_CHECKING:  # it loads SQLAlchemy, which the task worker of an embedded database does without
    from ..db.store import RecordStore

MOST_TASKS = 2000
"""So many of the newest tasks are looked at."""
MOST_WORKLOADS = 64
"""So many workloads are compared in detail: those of the same operator first, then those with as many operations."""


def related_groups(
    store: "RecordStore", task: Situation, *, operator: str | None, until: int, but: tuple[str, int] | None, limit: int
) -> tuple[HistoryGroup, ...]:
    """Return the groups that are most similar to a task, nearest first: at most ``limit`` records, of which none is of
    the task itself or newer than ``until``.

    What a workload costs says how near it can be at most, the workload itself says how near it is, and its groups may
    be of other devices. The nearest are looked at first, each as closely as it takes to know them (best-first search).
    """
    tasks = store.history_tasks(target_kind=task.device.target.kind, until=until, but=but, limit=MOST_TASKS)
    cost = flops(task.workload), minimum_bytes(task.workload)
    operations = log2(1 + cost[0])
    of_workload: dict[str, list[HistoryTask]] = {}
    for other in sorted(tasks, key=lambda t: (t.operator != operator, abs(log2(1 + t.flops) - operations))):
        of_workload.setdefault(other.workload_key, []).append(other)
    keys = list(of_workload)[:MOST_WORKLOADS]
    texts, devices = store.workloads(keys), {info.key: info for info in store.devices(imported=True)}
    workloads, queue = dict[str, Workload](), list[tuple[float, str]]()
    for key in texts:
        other = of_workload[key][0]
        heappush(queue, (least_distance(cost, (other.flops, other.minimum_bytes)), key))
    found: list[tuple[float, int, HistoryGroup]] = []
    while queue:
        least, key = heappop(queue)
        if sum(group.records for apart, _, group in found if apart < least) >= limit:
            break
        if key in workloads:
            groups = store.history_groups(of_workload[key], until=until)
            others = [Situation(workloads[key], devices[g.device_key], g.toolchain_key, g.profile) for g in groups]
            found += [(apart, -groups[n].newest, groups[n]) for apart, n in nearest(task, others)]
        elif (workload := _workload(texts[key])) is not None:
            workloads[key] = workload
            if (apart := distance(task, replace(task, workload=workload))) < inf:
                heappush(queue, (apart, key))
    chosen, records = list[HistoryGroup](), 0
    for _, _, group in sorted(found, key=lambda one: one[:2]):
        if records >= limit:
            break
        chosen.append(group)
        records += group.records
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
    texts = store.workloads(list(dict.fromkeys(key for key, *_ in groups)))
    workloads = {key: _workload(text) for key, text in texts.items()}
    found = []
    for (workload_key, device_key, toolchain_key, profile), members in groups.items():
        workload = workloads.get(workload_key)
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


@lru_cache(maxsize=256)
def _workload(text: str) -> Workload | None:
    """Return a workload; None where a version that allowed more wrote it: there is nothing to learn from it here. The
    tasks of a job have relatives in common."""
    try:
        return workload_from_json(json.loads(text))
    except InvalidWorkload:
        return None
