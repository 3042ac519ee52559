"""How many measurements a job of many tasks needs for what equal shares reach: replays of recorded tables.

A job is 20 tasks: workloads that were recorded in ``folder`` (``benchmarks/data``) by all sketches that take them, each
searched from its prior as the service does. Where there are fewer than 20, they come again. Each has a seed and a
weight of its own, drawn log-uniformly so that the largest share of the latency is up to
``spread`` times the least (30). With ``--set blind=1`` a task is a single table, searched without prior or workload.
``folder`` may then name several with commas between, tables of other tools too.

Equal shares give every task ``--trials`` trials (64), each searched for itself. A row is a job with the share of these
measurements after which another way stands where equal shares end:

- ``allocated``: slices by expected saving (``core.allocation``), each of which begins with the winners of other tasks
  (``search.winners``), though never of the same table: what a job of the service does;
- ``alone``: slices by expected saving, each task searched for itself; ``gradient``: the same with Ansor's rule;
- ``hindsight``: each task searched for itself, just until equal shares have found what they end with;
- ``oracle``: each task searched for itself, by the fewest trials that reach it: it knows how every search will go.

``ended`` is the share after which ``allocated`` would have given up all tasks, and ``ended_above`` by which share its
latency then lies above that of equal shares. ``equal_above``, ``allocated_above`` and ``oracle_above`` say the same
of each way after an eighth, a quarter, and half of the measurements. No way goes on beyond twice the measurements of
equal shares.

``jobs``: how many (6). Bar: ``allocated`` is at most a half in the median of the jobs.
"""

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.suite import Options, Result
from tilewright.benchmarks.prior_search import recorded_workloads
from tilewright.benchmarks.recorded_tables import FOLDER, searched_tables
from tilewright.core.allocation import (
    FASTEST,
    SLICE_TRIALS,
    TaskProgress,
    first_trials,
    given_up,
    most_worthwhile,
    usual_gap,
)
from tilewright.core.budget import Budget
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.trial import Outcome, Timed, Trial
from tilewright.search.pool import CandidatePool
from tilewright.search.recorded import read_table
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import ExpectsImprovement, SearchProblem
from tilewright.search.tuner import Measure, tune
from tilewright.search.winners import Winner, winning_candidates
from tilewright.te.cost import flops, minimum_bytes
from tilewright.te.workload import Workload

TASKS, TRIALS, JOBS, SPREAD = 20, 64, 6, 30.0
BAR = 0.5
ENDS = (".t4.json.gz", ".csv.gz")
POINTS = (0.125, 0.25, 0.5)
"""After which shares of the measurements the ways are compared."""


@dataclass(frozen=True, eq=False)
class Replayed:
    """What a task searches. ``workload`` is None where a table does not say what was computed."""

    name: str
    pool: CandidatePool
    measure: Measure
    outcomes: Sequence[Outcome]
    workload: Workload | None

    @cached_property
    def times(self) -> Sequence[float]:
        return [o.seconds for o in self.outcomes if isinstance(o, Timed)]

    @cached_property
    def size(self) -> tuple[int, int]:
        """Operations and bytes, as far as they are known."""
        return (1, 1) if self.workload is None else (flops(self.workload), minimum_bytes(self.workload))


@dataclass
class Task:
    """One task of a job: its search goes on as far as it is asked to."""

    replayed: Replayed
    seed: int
    weight: float
    trials: list[Trial] = field(default_factory=list)
    fastest: list[tuple[float, Schedule]] = field(default_factory=list)
    improvement: float | None = None

    def measure(self, trials: int, winners: Sequence[Winner] = ()) -> int:
        """Measure so many more settings, ``winners`` of other tasks first; return how many there were."""
        pool, before = self.replayed.pool, len(self.trials)
        strategy = STRATEGIES["model"](SearchProblem(pool, self.seed))
        first = winning_candidates(pool, winners, *self.replayed.size)
        budget = Budget(before + trials)
        for step in tune(pool, strategy, self.replayed.measure, budget, resumed=tuple(self.trials), first=first):
            self.trials.append(step.trial)
            if isinstance(step.trial.outcome, Timed):
                bisect.insort(self.fastest, (step.trial.outcome.seconds, step.trial.schedule), key=lambda one: one[0])
        self.improvement = strategy.expected_improvement() if isinstance(strategy, ExpectsImprovement) else None
        return len(self.trials) - before

    @property
    def latency(self) -> float:
        return self.weight * (self.fastest[0][0] if self.fastest else max(self.replayed.times))

    @property
    def curve(self) -> NDArray[np.float64]:
        """float64[trials]: the latency after each trial."""
        outcomes = [trial.outcome for trial in self.trials]
        seconds = [o.seconds if isinstance(o, Timed) else np.inf for o in outcomes]
        return self.weight * np.minimum.accumulate([min(s, max(self.replayed.times)) for s in seconds])

    @property
    def progress(self) -> TaskProgress:
        fastest = [seconds for seconds, _ in self.fastest[:FASTEST]]
        found = int(np.argmin(self.curve)) + 1
        return TaskProgress(self.weight, len(self.trials), fastest, improvement=self.improvement, found=found)

    @property
    def winner(self) -> Winner:
        return Winner(self.fastest[0][1], *self.replayed.size)


Choose = Callable[[Sequence[Task], Sequence[Task]], int | None]
"""Which of the tasks that can go on does, in a job of these tasks."""


def run(options: Options) -> Result:
    """Return one row for each job."""
    blind = options.extra.get("blind", "0") == "1"
    folders = [Path(f) for f in options.extra.get("folder", str(FOLDER)).split(",")]
    replayed = list(_tables(folders) if blind else _workloads(folders))
    trials, jobs = options.trials or TRIALS, int(options.extra.get("jobs", JOBS))
    spread = float(options.extra.get("spread", SPREAD))
    rows: list[dict[str, object]] = []
    for seed in range(options.seed, options.seed + jobs):
        rows.append({"row": f"job-{seed}", **_job(replayed, seed, trials, spread)})
        print(rows[-1], flush=True)
    columns = {name: [float(str(row[name])) for row in rows] for name in rows[0] if name not in ("row", "measurements")}
    summary: dict[str, object] = {"jobs": len(rows)}
    for name, found in columns.items():
        summary[f"median_{name}"] = median(found)
    for name in (*WAYS, "oracle"):
        summary[f"quartiles_{name}"] = [float(q) for q in np.quantile(columns[name], (0.25, 0.75))]
        summary[f"worst_{name}"] = max(columns[name])
    settings = {"tasks": TASKS, "trials": trials, "spread": spread, "replayed": len(replayed), "slice": SLICE_TRIALS}
    return Result(tuple(rows), summary, median(columns["allocated"]) <= BAR, {**settings, "blind": blind})


def _workloads(folders: Sequence[Path]) -> Iterator[Replayed]:
    for workload in recorded_workloads(sorted(p for f in folders for p in searched_tables(f))):
        outcomes = [outcome for table in workload.tables for outcome in table.outcomes]
        yield Replayed(workload.name, workload.pool(), workload.measure, outcomes, workload.workload)


def _tables(folders: Sequence[Path]) -> Iterator[Replayed]:
    for path in [p for f in folders for p in sorted(f.iterdir()) if p.name.endswith(ENDS)]:
        table = read_table(path)
        yield Replayed(path.name, table.pool, table.measure, table.outcomes, table.workload)


def _job(replayed: Sequence[Replayed], seed: int, trials: int, spread: float) -> dict[str, object]:
    equal = _tasks(replayed, seed, spread)
    measured = sum(task.measure(trials) for task in equal)
    target = sum(task.latency for task in equal)
    curves = [task.curve for task in equal]
    found: dict[str, object] = {"measurements": measured, "weighted_latency": target}
    found["hindsight"] = sum(int(np.argmin(curve)) + 1 for curve in curves) / measured
    for share in POINTS:
        at = int(share * trials)
        found[f"equal_above_{share}"] = float(sum(c[min(len(c), at) - 1] for c in curves)) / target - 1
    for task in equal:
        task.measure(min(trials, len(task.replayed.pool) - len(task.trials)))
    least = _least_latency([task.curve for task in equal], measured)
    found["oracle"] = int(np.argmax(least <= target * (1 + 1e-12))) / measured
    for share in POINTS:
        found[f"oracle_above_{share}"] = float(least[int(share * measured)]) / target - 1
    first = first_trials(measured, TASKS)
    for name, (choose, share_winners) in WAYS.items():
        path = list(_path(_tasks(replayed, seed, spread), first, 2 * measured, target, choose, share_winners))
        found[name] = path[-1][0] / measured
        if name == "allocated":
            for share in POINTS:
                latency = next((after for used, after in reversed(path) if used <= share * measured), path[0][1])
                found[f"allocated_above_{share}"] = latency / target - 1
    *_, (used, latency) = _path(_tasks(replayed, seed, spread), first, 2 * measured, 0.0, _by_saving_while_worth, True)
    return {**found, "ended": used / measured, "ended_above": latency / target - 1}


def _tasks(replayed: Sequence[Replayed], seed: int, spread: float) -> list[Task]:
    """Return the tasks of a job, in the order in which they begin."""
    rng = stream(seed, "many-tasks")
    order = [replayed[n] for _ in range(-(-TASKS // len(replayed))) for n in rng.permutation(len(replayed))][:TASKS]
    shares = np.exp(rng.uniform(0, np.log(spread), TASKS))
    seeds = rng.integers(1 << 31, size=TASKS)
    made = [Task(r, int(s), float(w) / median(r.times)) for r, s, w in zip(order, seeds, shares, strict=True)]
    return [made[n] for n in rng.permutation(TASKS)]


def _least_latency(curves: Iterable[NDArray[np.float64]], most: int) -> NDArray[np.float64]:
    """float64[most + 1]: the least latency of a job that any split of so many measurements reaches."""
    least = np.zeros(most + 1)
    for curve in curves:
        after = np.full(most + 1, np.inf)
        for trials in np.flatnonzero(np.diff(curve, prepend=np.inf) < 0) + 1:
            after[trials:] = np.minimum(after[trials:], least[: most + 1 - trials] + curve[trials - 1])
        least = after
    return np.minimum.accumulate(least)


def _path(
    tasks: Sequence[Task], first: int, most: int, target: float, choose: Choose, share_winners: bool
) -> Iterator[tuple[int, float]]:
    """(measurements, latency) after each slice, until the latency is no more than ``target`` or ``most`` are made."""

    def slice_of(task: Task, trials: int) -> int:
        others = [t.winner for t in tasks if t.replayed is not task.replayed and t.fastest] if share_winners else []
        return task.measure(trials, others)

    used = sum(slice_of(task, first) for task in tasks)
    while True:
        latency = sum(task.latency for task in tasks)
        yield used, latency
        open_ = [task for task in tasks if len(task.trials) < len(task.replayed.pool)]
        chosen = choose(open_, tasks) if latency > target and used < most else None
        if chosen is None:
            return
        used += slice_of(open_[chosen], SLICE_TRIALS)


def _by_saving(tasks: Sequence[Task], job: Sequence[Task]) -> int | None:
    return most_worthwhile([task.progress for task in tasks], usual_gap([task.progress for task in job]))


def _by_saving_while_worth(tasks: Sequence[Task], job: Sequence[Task]) -> int | None:
    usual = usual_gap([task.progress for task in job])
    worth = [n for n, task in enumerate(tasks) if given_up(task.progress, usual=usual) is None]
    chosen = most_worthwhile([tasks[n].progress for n in worth], usual)
    return None if chosen is None else worth[chosen]


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
