"""What search loses when it must choose candidates far ahead of their results, as it would for a task that has several
devices of one class: on recorded tables, no device.

With k devices 12 k candidates are under way (``ExecutorSettings.ahead``), so that the strategy learns of a result only
after so many further choices. Rows are tables (``folder``: ``benchmarks/data``), their columns the share of the fastest
recorded (mean over seeds) for each k, with equal trials; ``--trials`` (96), ``--set seeds=N`` (3), ``--set
strategy=NAME`` (model). k devices are done in a k-th of the time. Bar: the mean share over all tables with k devices,
for k up to trials / 48, is at most 0.01 below that with one.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from tilewright.benchmarks.recorded_tables import FOLDER, SUFFIX
from tilewright.benchmarks.suite import Options, Result
from tilewright.core.budget import Budget
from tilewright.core.schedule import Schedule
from tilewright.core.trial import Timed, Trial
from tilewright.search.recorded import Recorded, read_table
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import SearchProblem
from tilewright.search.tuner import Measure, tune
from tilewright.workers.settings import ExecutorSettings

DEVICES = (1, 2, 4)
BAR = 0.01
TRIALS, SEEDS = 96, 3
LEAST_TRIALS = 48
"""A task with fewer trials for each device is not to have so many."""


def run(options: Options) -> Result:
    """Return one row for each table."""
    folder = Path(options.extra.get("folder", FOLDER))
    strategy = options.extra.get("strategy", "model")
    trials, seeds = options.trials or TRIALS, int(options.extra.get("seeds", SEEDS))
    rows: list[dict[str, object]] = []
    for path in sorted(folder.glob("*" + SUFFIX)):
        name = path.name.removesuffix(SUFFIX)
        if fnmatch(name, options.rows):
            table, all_seeds = read_table(path), range(options.seed, options.seed + seeds)
            found = {f"{k} devices": _shares(table, strategy, trials, all_seeds, k) for k in DEVICES}
            rows.append({"row": name, **{k: float(np.mean(shares)) for k, shares in found.items()}, "shares": found})
            print(rows[-1], flush=True)
    means = {k: float(np.mean([float(str(row[f"{k} devices"])) for row in rows])) for k in DEVICES}
    losses = {f"loss_of_{k}": means[1] - means[k] for k in DEVICES[1:]}
    allowed = [k for k in DEVICES[1:] if k <= trials / LEAST_TRIALS]
    passed = bool(rows) and all(losses[f"loss_of_{k}"] <= BAR for k in allowed)
    settings = {"trials": trials, "seeds": seeds, "strategy": strategy, "folder": folder.name}
    return Result(tuple(rows), {"tables": len(rows), "one_device": means[1], **losses}, passed, settings)


def _shares(table: Recorded, strategy: str, trials: int, seeds: Sequence[int], devices: int) -> list[float]:
    """(fastest recorded / fastest of ``trials``) for each seed; 0 where none could be timed."""
    found = []
    for seed in seeds:
        pool = table.pool
        measure = delayed(table, ExecutorSettings().ahead * devices)
        steps = tune(pool, STRATEGIES[strategy](SearchProblem(pool, seed)), measure, Budget(trials))
        times = [s.trial.outcome.seconds for s in steps if isinstance(s.trial.outcome, Timed)]
        found.append(table.best_seconds / min(times) if times else 0.0)
    return found


def delayed(table: Recorded, ahead: int) -> Measure:
    """Measure on a table with so many candidates under way: one is drawn before the result of the one that was drawn
    ``ahead`` before it is told."""

    def measure(schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        under_way: deque[tuple[int, Trial]] = deque()
        for trial in table.measure(schedules):
            under_way.append(trial)
            if len(under_way) == ahead:
                yield under_way.popleft()
        yield from under_way

    return measure
