"""How the trials of a job with one budget are dealt out to its tasks, and when a task is given up.

    each task gets a slice; then, until the budget is spent:
        the next slice goes to the task with the largest expected saving, among those that are worth it

The fastest times of a task tell how far its best one may still fall. By the law of extremes for two knobs that matter,
the least of n times lies above the least possible one by about n^(-1/2). The gaps between the fastest times are then of
the size of what is left, and s further trials take 1 - (n / (n + s))^(1/2) of it away:

    times        |best|  |   |     |        gap = (mean of the next fastest - best) / best
    possible   ..|                          usual = geometric mean over the job of gap x (trials / n)^(1/2)
    left = (gap x usual)^(1/2)              gain = best x left x (1 - (n / (n + s))^(1/2)), never below the roofline

A task's own gap misleads where a search is on a plateau: many settings are as fast as the best one, so that it has no
gap, though better ones are far away. Such a task starved. One with a lone optimum keeps its gap for ever, and took all
trials. What is usual among the tasks of the job, at the same number of trials, moderates both.

Where the cost model of a task says what it expects of the next trials, that tells more. A search that starts from a
prior falls towards its best as the square of the trials, and the geometric mean of both moderates the model. Of gains
that the model expects beyond ``MOST_IMPROVEMENT``, the searches of recorded tables then found no more. Whether a model
is right shows in what its task has realised: searches that had found nothing for two slices and more gained next to
nothing, whatever their model expected. The expectation therefore counts by the share of the trials that were needed
to find the best time:

    gain = best x min(improvement, MOST_IMPROVEMENT)^(1/2) x found / n^2 x s / (n + s), never below the roofline

The saving counts as often as the workload occurs in the model. An expectation errs by more than what is left late in a
search: of two tasks that are expected to save as much, the one that was searched for less and found something lately
gains more. Where models say what they expect of all tasks, the next one is therefore that with the largest

    saving x (found / n)^3 / n^2

Over 12 jobs of recorded tables, what equal shares reach took 0.51 of their trials so in the median, each task searched
for itself, and 0.59 in the order of the savings alone. ``python -m benchmarks many-tasks`` replays recorded tables by
this rule, alone and with the winners of other tasks, and by Ansor's (slope of the last slices and best / trials), and
says what an oracle needs that knows how every search will go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, sqrt
from statistics import geometric_mean

SLICE_TRIALS = 8
"""How many trials are granted at once: one batch of a search. A task that goes on later has its set-up to repeat."""
UNTIMED_TRIALS = 64
"""A task of which no trial could be timed goes first until it has had so many."""
MOST_IMPROVEMENT = 0.003
"""A cost model that expects a larger share of a task's time counts as if it expected this one: else a task whose model
hopes for ever takes the trials of the others."""
STAGNATION, CROWDING = 3, 2
"""The exponents with which the order of the tasks counts the share of trials that found something, and the trials."""
LEAST_GAP = 1e-4
"""Smaller relative gaps count as this."""
FASTEST = 9
"""Of how many of its fastest times a task's expected gain is computed."""
LEAST_TRIALS = 5 * SLICE_TRIALS
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
    ``trial_seconds`` is what a trial takes, 0 where that is unknown. ``improvement``: by which share of the best time
    its cost model expects the next trials to lower it; None where no model says. ``found``: after how many trials the
    best time was known; None counts as after the last one."""

    weight: float
    trials: int
    fastest: Sequence[float]
    limit_seconds: float = 0.0
    trial_seconds: float = 0.0
    improvement: float | None = None
    found: int | None = None


def first_trials(trials: int, tasks: int) -> int:
    """Return the first slice of each of ``tasks`` tasks that share ``trials`` trials."""
    return min(SLICE_TRIALS, trials // tasks)


def relative_gap(task: TaskProgress) -> float:
    """Return how far the next fastest times lie above the best one, as a share of it; 0 where less than two are
    known."""
    if len(task.fastest) < 2:
        return 0.0
    best, *others = task.fastest[:FASTEST]
    return sum(others) / len(others) / best - 1


def usual_gap(tasks: Sequence[TaskProgress]) -> float | None:
    """Return the relative gap that is usual in a job after one trial; after n of them it is n^(-1/2) of that. None
    where no task has two times."""
    found = [max(relative_gap(task), LEAST_GAP) * sqrt(task.trials) for task in tasks if len(task.fastest) > 1]
    return geometric_mean(found) if found else None


def expected_gain(task: TaskProgress, further: int = SLICE_TRIALS, usual: float | None = None) -> float:
    """Return the seconds by which ``further`` trials are expected to lower a task's best time; 0 where less than two
    trials could be timed. ``usual`` is the ``usual_gap`` of its job; None: its own gap alone counts. Gaps count where
    no cost model says what it expects."""
    if len(task.fastest) < 2:
        return 0.0
    best, trials, gap = task.fastest[0], max(1, task.trials), relative_gap(task)
    limited = max(0.0, best - task.limit_seconds)
    if task.improvement is not None:
        left = best * sqrt(min(task.improvement, MOST_IMPROVEMENT)) / trials * _realised(task)
        return min(left, limited) * further / (trials + further)
    if usual is not None:
        gap = sqrt(max(gap, LEAST_GAP) * usual / sqrt(trials))
    return min(gap * best, limited) * (1 - sqrt(trials / (trials + further)))


def expected_saving(task: TaskProgress, usual: float | None = None) -> float:
    """Return the seconds of one run of the model that a further slice is expected to save; endless before a time is
    known. ``usual``: as of ``expected_gain``."""
    if len(task.fastest) < 2 and task.trials < UNTIMED_TRIALS:
        return inf
    return task.weight * expected_gain(task, usual=usual)


def given_up(task: TaskProgress, runs: float | None = None, usual: float | None = None) -> GivenUp | None:
    """Why a task is not worth a further slice; None where it is. ``runs``: how often the model is to run; None where
    no time is too long. ``usual``: as of ``expected_gain``."""
    saving = expected_saving(task, usual)
    if saving == inf:
        return None
    if runs is not None and saving * runs < SLICE_TRIALS * task.trial_seconds:
        return GivenUp.COST
    if task.trials < LEAST_TRIALS or not task.fastest:
        return None
    if task.fastest[0] <= NEAR_ROOFLINE * task.limit_seconds:
        return GivenUp.ROOFLINE
    return GivenUp.NOISE if expected_gain(task, usual=usual) < NOISE * task.fastest[0] else None


def most_worthwhile(tasks: Sequence[TaskProgress], usual: float | None = None) -> int | None:
    """Return the position of the task with the largest expected saving, the first of equals; None where there is no
    task. Where cost models say what is expected of all of them, a saving counts for less the more trials were made, and
    the fewer of them found something (see above). ``usual``: as of ``expected_gain``."""
    expected = all(task.improvement is not None for task in tasks)

    def priority(task: TaskProgress) -> float:
        saving = expected_saving(task, usual)
        return saving * _realised(task) ** STAGNATION / max(1, task.trials) ** CROWDING if expected else saving

    return max(range(len(tasks)), key=lambda n: priority(tasks[n]), default=None)


def _realised(task: TaskProgress) -> float:
    """Return the share of a task's trials that were needed to find its best time, a slice at least."""
    trials = max(1, task.trials)
    return min(max(task.found or trials, SLICE_TRIALS) / trials, 1.0)
