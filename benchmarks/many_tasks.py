"""How many measurements a job of many tasks needs for what equal shares reach: replays of recorded tables.

A job is 20 tasks: tables of ``folder`` (``benchmarks/data``; several with commas between), again and again where there
are fewer, each with a seed of its own and a weight of its own, drawn log-uniformly so that the largest share of the
latency is up to ``spread`` times the least (30). Equal shares give every task ``--trials`` trials (64), each searched
for itself. A row is a job with the share of these measurements after which another way stands where equal shares end:

- ``allocated``: slices by expected saving (``core.allocation``), each of which begins with the winners of other tasks
  (``search.winners``), though never of the same table: what a job of the service does;
- ``alone``: slices by expected saving, each task searched for itself; ``gradient``: the same with Ansor's rule;
- ``hindsight``: each task searched for itself, just until equal shares have found what they end with.

``jobs``: how many (6). Bar: ``allocated`` is at most a half in the median of the jobs.
"""

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.suite import Options, Result
from tilewright.benchmarks.recorded_tables import FOLDER
from tilewright.core.allocation import (
    FASTEST,
    SLICE_TRIALS,
    TaskProgress,
    first_trials,
    most_worthwhile,
    usual_gap,
)
from tilewright.core.budget import Budget
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.trial import Timed, Trial
from tilewright.search.recorded import Recorded, read_table
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import Problem
from tilewright.search.tuner import tune
from tilewright.search.winners import Winner, winning_candidates
from tilewright.te.cost import flops, minimum_bytes

TASKS, TRIALS, JOBS, SPREAD = 20, 64, 6, 30.0
BAR = 0.5
ENDS = (".t4.json.gz", ".csv.gz")


@dataclass
class Task:
    """One task of a job: its search goes on as far as it is asked to."""

    path: Path
    seed: int
    weight: float
    trials: list[Trial] = field(default_factory=list)
    fastest: list[tuple[float, Schedule]] = field(default_factory=list)

    def measure(self, trials: int, winners: Sequence[Winner] = ()) -> int:
        """Measure so many more settings, ``winners`` of other tasks first; return how many there were."""
        table, before = _table(self.path), len(self.trials)
        pool = table.pool
        strategy = STRATEGIES["model"](Problem(pool, self.seed))
        first = winning_candidates(pool, winners, *_size(self.path))
        for step in tune(
            pool, strategy, table.measure, Budget(before + trials), resumed=tuple(self.trials), first=first
        ):
            self.trials.append(step.trial)
            if isinstance(step.trial.outcome, Timed):
                bisect.insort(self.fastest, (step.trial.outcome.seconds, step.trial.schedule), key=lambda one: one[0])
        return len(self.trials) - before

    @property
    def latency(self) -> float:
        return self.weight * (self.fastest[0][0] if self.fastest else max(_times(self.path)))

    @property
    def found_at(self) -> int:
        """After how many trials the best one was found."""
        outcomes = [trial.outcome for trial in self.trials]
        return next(
            (n for n, o in enumerate(outcomes, 1) if isinstance(o, Timed) and o.seconds == self.fastest[0][0]), 0
        )

    @property
    def progress(self) -> TaskProgress:
        return TaskProgress(self.weight, len(self.trials), [seconds for seconds, _ in self.fastest[:FASTEST]])

    @property
    def winner(self) -> Winner:
        return Winner(self.fastest[0][1], *_size(self.path))


Choose = Callable[[Sequence[Task], Sequence[Task]], int | None]
"""Which of the tasks that can go on does, in a job of these tasks."""


def run(options: Options) -> Result:
    """One row for each job."""
    folders = options.extra.get("folder", str(FOLDER)).split(",")
    paths = [p for f in folders for p in sorted(Path(f).iterdir()) if p.name.endswith(ENDS)]
    trials, jobs = options.trials or TRIALS, int(options.extra.get("jobs", JOBS))
    spread = float(options.extra.get("spread", SPREAD))
    rows: list[dict[str, object]] = []
    for seed in range(options.seed, options.seed + jobs):
        rows.append({"row": f"job-{seed}", **_job(paths, seed, trials, spread)})
        print(rows[-1], flush=True)
    shares = {name: [float(str(row[name])) for row in rows] for name in WAYS}
    summary: dict[str, object] = {
        "jobs": len(rows),
        **{f"median_{name}": median(found) for name, found in shares.items()},
    }
    summary["worst_allocated"] = max(shares["allocated"])
    settings = {"tasks": TASKS, "trials": trials, "spread": spread, "tables": len(paths), "slice": SLICE_TRIALS}
    return Result(tuple(rows), summary, median(shares["allocated"]) <= BAR, settings)


def _job(paths: Sequence[Path], seed: int, trials: int, spread: float) -> dict[str, object]:
    equal = _tasks(paths, seed, spread)
    measured = sum(task.measure(trials) for task in equal)
    target = sum(task.latency for task in equal)
    hindsight = sum(task.found_at for task in equal) / measured
    found: dict[str, object] = {"measurements": measured, "weighted_latency": target, "hindsight": hindsight}
    for name, (choose, share_winners) in WAYS.items():
        tasks = _tasks(paths, seed, spread)
        found[name] = _until(tasks, first_trials(measured, TASKS), target, choose, share_winners) / measured
    return found


def _tasks(paths: Sequence[Path], seed: int, spread: float) -> list[Task]:
    """The tasks of a job, in the order in which they begin."""
    rng = stream(seed, "many-tasks")
    order = [paths[n] for _ in range(-(-TASKS // len(paths))) for n in rng.permutation(len(paths))][:TASKS]
    shares = np.exp(rng.uniform(0, np.log(spread), TASKS))
    seeds = rng.integers(1 << 31, size=TASKS)
    made = [Task(p, int(s), float(w) / median(_times(p))) for p, s, w in zip(order, seeds, shares, strict=True)]
    return [made[n] for n in rng.permutation(TASKS)]


def _until(tasks: Sequence[Task], first: int, target: float, choose: Choose, share_winners: bool) -> int:
    """How many measurements it takes until the latency is no more than ``target``."""

    def slice_of(task: Task, trials: int) -> int:
        others = [t.winner for t in tasks if t.path != task.path and t.fastest] if share_winners else []
        return task.measure(trials, others)

    used = sum(slice_of(task, first) for task in tasks)
    while sum(task.latency for task in tasks) > target:
        open_ = [task for task in tasks if len(task.trials) < len(_table(task.path).space)]
        chosen = choose(open_, tasks)
        if chosen is None:
            break
        used += slice_of(open_[chosen], SLICE_TRIALS)
    return used


def _by_saving(tasks: Sequence[Task], job: Sequence[Task]) -> int | None:
    return most_worthwhile([task.progress for task in tasks], usual_gap([task.progress for task in job]))


def _by_gradient(tasks: Sequence[Task], job: Sequence[Task]) -> int | None:
    """Ansor's rule: a fifth of the slope of the last slice, and four fifths of best / trials."""

    def gain(task: Task) -> float:
        outcomes = [trial.outcome for trial in task.trials]
        times = [o.seconds for o in outcomes if isinstance(o, Timed)]
        before = [o.seconds for o in outcomes[:-SLICE_TRIALS] if isinstance(o, Timed)]
        recent = min(before) - min(times) if before else 0.0
        return task.weight * (0.2 * recent + 0.8 * min(times) * min(1.0, SLICE_TRIALS / len(task.trials)))

    return max(range(len(tasks)), key=lambda n: gain(tasks[n]), default=None)


WAYS: Mapping[str, tuple[Choose, bool]] = {
    "allocated": (_by_saving, True),
    "alone": (_by_saving, False),
    "gradient": (_by_gradient, False),
}
"""Name -> how the next slice is chosen, and whether tasks begin with the winners of others."""


@cache
def _table(path: Path) -> Recorded:
    return read_table(path)


@cache
def _times(path: Path) -> tuple[float, ...]:
    return tuple(o.seconds for o in _table(path).outcomes if isinstance(o, Timed))


@cache
def _size(path: Path) -> tuple[int, int]:
    """Operations and bytes of a table's workload; 1 where the table does not say what was computed."""
    workload = _table(path).workload
    return (1, 1) if workload is None else (flops(workload), minimum_bytes(workload))
