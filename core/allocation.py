"""How the trials of a job with one budget are dealt out to its tasks, and when a task is given up.

    each task gets a first slice; then, until the budget is spent:
        the next slice goes to the task with the largest expected saving, among those that are worth it

The fastest times of a task tell how far its best one may still fall. If the least of n times lies above the least
possible one by about n^(-1/2), which is the law of extremes for two knobs that matter, then the gaps between the
fastest times are of the size of what is left, and s further trials take 1 - (n / (n + s))^(1/2) of it away:

    times        |best|  |   |     |        gap = mean of the next fastest - best
    possible   ..|                          gain = gap x (1 - (n / (n + s))^(1/2)), never below the roofline

The saving counts as often as the workload occurs in the model. ``python -m benchmarks many-tasks`` replays recorded
tables by this rule, alone and with the winners of other tasks, and by Ansor's (slope of the last slices and
best / trials). Alone the two rules differ by less than their jobs do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, sqrt

SLICE_TRIALS = 16
"""How many trials are granted at once: a task that goes on later has its set-up to repeat."""
UNTIMED_TRIALS = 64
"""A task of which no trial could be timed goes first until it has had so many."""
FASTEST = 9
"""Of how many of its fastest times a task's expected gain is computed."""
LEAST_TRIALS = 2 * SLICE_TRIALS
"""No task is given up for a small gain or near its roofline before it has had so many trials."""
NOISE = 0.002
"""A slice that is expected to gain less than this share of a task's time gains nothing: re-measurement takes times that
are closer for equal."""
NEAR_ROOFLINE = 1.02
"""A task that takes at most so many times its roofline is done."""


class GivenUp(StrEnum):
    """Why a task gets no further slice though trials are left."""

    NOISE = "noise"
    """The expected gain is less than what can be measured."""
    ROOFLINE = "roofline"
    """Its best time is next to the least that the measured peaks allow."""
    COST = "cost"
    """Measuring takes longer than it is expected to save in all runs that are to come."""


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far a task is. ``weight``: how often its workload occurs. ``fastest``: its fastest times in seconds,
    ascending, at most ``FASTEST`` of them. ``limit_seconds`` is the roofline, 0 where it is unknown;
    ``trial_seconds`` is what a trial takes, 0 where that is unknown."""

    weight: float
    trials: int
    fastest: Sequence[float]
    limit_seconds: float = 0.0
    trial_seconds: float = 0.0


def first_trials(trials: int, tasks: int) -> int:
    """The first slice of each of ``tasks`` tasks that share ``trials`` trials."""
    return min(SLICE_TRIALS, trials // tasks)


def expected_gain(task: TaskProgress, further: int = SLICE_TRIALS) -> float:
    """The seconds by which ``further`` trials are expected to lower a task's best time; 0 where less than two trials
    could be timed."""
    if len(task.fastest) < 2:
        return 0.0
    best, *others = task.fastest[:FASTEST]
    gap = sum(others) / len(others) - best
    left = min(gap, max(0.0, best - task.limit_seconds))
    trials = max(1, task.trials)
    return left * (1 - sqrt(trials / (trials + further)))


def expected_saving(task: TaskProgress) -> float:
    """The seconds of one run of the model that a further slice is expected to save; endless before a time is known."""
    if len(task.fastest) < 2 and task.trials < UNTIMED_TRIALS:
        return inf
    return task.weight * expected_gain(task)


def given_up(task: TaskProgress, runs: float | None = None) -> GivenUp | None:
    """Why a task is not worth a further slice; None where it is. ``runs``: how often the model is to run; None where
    no time is too long."""
    saving = expected_saving(task)
    if saving == inf:
        return None
    if runs is not None and saving * runs < SLICE_TRIALS * task.trial_seconds:
        return GivenUp.COST
    if task.trials < LEAST_TRIALS or not task.fastest:
        return None
    if task.fastest[0] <= NEAR_ROOFLINE * task.limit_seconds:
        return GivenUp.ROOFLINE
    return GivenUp.NOISE if expected_gain(task) < NOISE * task.fastest[0] else None


def most_worthwhile(tasks: Sequence[TaskProgress]) -> int | None:
    """The position of the task with the largest expected saving, the first of equals; None where there is no task."""
    return max(range(len(tasks)), key=lambda n: expected_saving(tasks[n]), default=None)
