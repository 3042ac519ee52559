"""How the trials of a job with one budget are dealt out to its tasks.

    each task gets a first slice; then, until the budget is spent:
        the next slice goes to the task with the largest expected saving

What a slice is expected to save is an estimate, as in Ansor's task scheduler: a part of what the last slice saved, and
a part of what the roofline leaves, which shrinks with the trials that have been spent on it. Both count as often as the
workload occurs in the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

SLICE_TRIALS = 16
"""How many trials are granted at once: a task that goes on later has its set-up to repeat."""
UNTIMED_TRIALS = 64
"""A task of which no trial could be timed goes first until it has had so many."""
RECENT = 0.2
"""The weight of what the last slice saved; the rest is that of what is left to the roofline."""


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far a task is. ``weight``: how often its workload occurs. ``seconds`` is the best time, ``before`` the best
    time before the last slice; None where there was none. ``limit_seconds`` is the roofline, 0 where it is unknown."""

    weight: float
    trials: int
    seconds: float | None
    before: float | None
    limit_seconds: float


def first_trials(trials: int, tasks: int) -> int:
    """The first slice of each of ``tasks`` tasks that share ``trials`` trials."""
    return min(SLICE_TRIALS, trials // tasks)


def expected_saving(task: TaskProgress) -> float:
    """The seconds of one run of the model that a further slice is expected to save."""
    if task.seconds is None:
        return inf if task.trials < UNTIMED_TRIALS else 0.0
    recent = 0.0 if task.before is None else max(0.0, task.before - task.seconds)
    left = max(0.0, task.seconds - task.limit_seconds) * min(1.0, SLICE_TRIALS / max(1, task.trials))
    return task.weight * (RECENT * recent + (1 - RECENT) * left)


def most_worthwhile(tasks: Sequence[TaskProgress]) -> int | None:
    """The position of the task with the largest expected saving, the first of equals; None where there is no task."""
    return max(range(len(tasks)), key=lambda n: expected_saving(tasks[n]), default=None)
