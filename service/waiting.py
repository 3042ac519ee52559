"""Says what waiting tasks wait for, and foretells when they begin."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite

from ..core.fleet import TaskState, UnitState
from ..db.rows import QueueRow, UnitRow


def serving(target: str, executor: str, units: Iterable[UnitRow]) -> list[UnitRow]:
    """Return the units on which tasks for ``target`` run: those of that class, or with that number on their host. Where
    no such unit is reached by ``executor``, the host of a local one reaches it itself: by a Ray of its own."""
    of_class = [
        row for row in units if target in (*row.unit.classes, f"{row.unit.device.target.kind}:{row.unit.ordinal}")
    ]
    return [row for row in of_class if row.unit.executor == executor] or [
        row for row in of_class if row.unit.executor == "local"
    ]


def usable(row: UnitRow, now: float) -> bool:
    """Return whether a unit takes tasks at the database's time ``now``: its state is ready, and it was seen lately."""
    return row.state is UnitState.READY and row.seen_until > now


def why_no_unit(target: str, executor: str, units: Iterable[UnitRow], now: float) -> str | None:
    """Say why no unit takes tasks for a target; None where one does."""
    able = serving(target, executor, units)
    if not able:
        return f"no unit of the fleet serves {target}"
    if any(usable(row, now) for row in able):
        return None
    states = Counter(UnitState.LOST if row.state is UnitState.READY else row.state for row in able)
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"no unit that serves {target} is ready: {counted}"


def waits_for(
    state: TaskState,
    target: str,
    executor: str,
    source: tuple[str, int] | None,
    units: Iterable[UnitRow],
    now: float,
) -> str | None:
    """Say what a task waits for; None where it runs, or only waits for its turn. ``source`` is the (job, task) that it
    shares a search with."""
    if state is TaskState.BLOCKED:
        if source is None:
            return "its job is paused"
        return f"an equal task is searched: task {source[1]} of job {source[0]}"
    return why_no_unit(target, executor, units, now) if state is TaskState.READY else None


def expected_starts(
    queue: Sequence[QueueRow], units: Sequence[UnitRow], task_seconds: Mapping[str, float], now: float
) -> list[float | None]:
    """Return when each task of the queue is expected to begin, by the database's clock; None where that is not known,
    and for tasks that run or are blocked.

    Tasks are dealt out in their order, each to the unit that is free first. A task takes as long as those for its
    target took lately; of one that runs, the share of its budget is left that it has not measured. A unit with a task
    of unknown length is free at an unknown time.
    """
    free_at = {row.unit.uuid: now for row in units if usable(row, now)}
    for row in queue:
        if row.state is TaskState.LEASED:
            left = task_seconds.get(row.target, inf) * max(0.0, 1.0 - row.trials / max(1, row.budget_trials))
            for uuid in free_at.keys() & set(row.units):
                free_at[uuid] += left
    able = {
        wanted: [row.unit.uuid for row in serving(*wanted, units) if row.unit.uuid in free_at]
        for wanted in {(row.target, row.executor) for row in queue}
    }
    starts = list[float | None]()
    for row in queue:
        chosen = able[row.target, row.executor] if row.state is TaskState.READY else []
        first = min(chosen, key=lambda uuid: free_at[uuid], default=None)
        start = inf if first is None else free_at[first]
        if first is not None:
            free_at[first] = start + task_seconds.get(row.target, inf)
        starts.append(start if isfinite(start) else None)
    return starts
