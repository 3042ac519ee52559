"""What retuning saves and what it loses, by replay: recorded tables before and after a change of the toolchain.

A case is a pair of tables of one space, one before the change and one after it:

- ``noise``: each table of ``folder`` (``benchmarks/data``) and itself with every setting's time multiplied by a random
  factor, log-normal with the standard deviation ``noise`` (0.005): a change that changes no kernel;
- ``moved``: the same with 0.1: a change after which other settings are the best;
- ``device``: each table of ``hub`` (``benchmarks/hub``) and that of the next device for the same kernel, far more than
  a toolchain ever changes.

Before the change a task was tuned with ``--trials`` trials (64). After it there are two ways: retuning, as a job of the
service does (``search.retuning``, eight runners-up), whose search goes on from what was measured; and tuning afresh. A
row is a case, the mean over ``seeds`` (3): the share of the trials that retuning saved, how often the winner was kept,
and what it lost, the fastest time found over that of tuning afresh, less 1. Times are those of the table, without noise
of measuring. Bar: where no kernel changed, 0.8 of the trials are saved, and 0.02 is lost in the mean of any kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks.suite import Options, Result
from tilewright.benchmarks.recorded_tables import FOLDER, SUFFIX
from tilewright.core.budget import Budget
from tilewright.core.retuning import RUNNERS_UP
from tilewright.core.streams import stream
from tilewright.core.trial import Outcome, Timed, Trial
from tilewright.search.recorded import Recorded, read_table
from tilewright.search.retuning import compared, measured_again
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import SearchProblem
from tilewright.search.tuner import tune

TRIALS, SEEDS = 64, 3
NOISE = {"noise": 0.005, "moved": 0.1}
HUB = Path(__file__).parent / "hub"
SAVED, LOSS = 0.8, 0.02


@dataclass(frozen=True)
class Case:
    """``before`` and ``after`` are two tables of one space."""

    kind: str
    name: str
    before: Recorded
    after: Recorded


def run(options: Options) -> Result:
    """Return one row for each case."""
    trials, seeds = options.trials or TRIALS, int(options.extra.get("seeds", SEEDS))
    noise = {**NOISE, "noise": float(options.extra.get("noise", NOISE["noise"]))}
    folder, hub = Path(options.extra.get("folder", FOLDER)), Path(options.extra.get("hub", HUB))
    rows: list[dict[str, object]] = []
    for case in (*_changed(folder, noise), *_devices(hub)):
        if not Path(case.name).match(options.rows):
            continue
        found = [_replayed(case, trials, seed) for seed in range(options.seed, options.seed + seeds)]
        columns = {name: mean(one[name] for one in found) for name in found[0]}
        rows.append({"row": case.name, "kind": case.kind, **columns})
        print(rows[-1], flush=True)
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in dict.fromkeys(str(r["kind"]) for r in rows)}
    summary: dict[str, object] = {
        f"{kind}_{name}": mean(float(str(row[name])) for row in of_kind)
        for kind, of_kind in kinds.items()
        for name in ("kept", "saved", "loss")
    }
    passed = bool(rows) and float(str(summary.get("noise_saved", 1.0))) >= SAVED
    passed = passed and all(float(str(summary[f"{kind}_loss"])) <= LOSS for kind in kinds)
    settings = {"trials": trials, "seeds": seeds, "runners_up": RUNNERS_UP, "noise": noise}
    return Result(tuple(rows), {"cases": len(rows), **summary}, passed, settings)


def _changed(folder: Path, noise: dict[str, float]) -> list[Case]:
    paths = sorted(folder.glob("*" + SUFFIX))
    return [
        Case(
            kind, f"{kind}:{path.name.removesuffix(SUFFIX)}", _table(path), _shaken(_table(path), path.name, deviation)
        )
        for kind, deviation in noise.items()
        for path in paths
    ]


def _devices(hub: Path) -> list[Case]:
    kernels: dict[str, list[tuple[str, Path]]] = {}
    for path in sorted(hub.glob("*.csv.gz")):
        kernel, device = path.name.removesuffix(".csv.gz").split("__")
        kernels.setdefault(kernel, []).append((device, path))
    return [
        Case("device", f"device:{kernel}:{device}-{onto}", _table(before), _table(after))
        for kernel, tables in kernels.items()
        for (device, before), (onto, after) in pairwise([*tables, tables[0]])
    ]


def _replayed(case: Case, trials: int, seed: int) -> dict[str, float]:
    earlier = _searched(case.before, trials, seed)
    best = sorted((t for t in earlier if isinstance(t.outcome, Timed)), key=lambda t: t.outcome.rank_seconds)  # type: ignore[union-attr]
    again = best[: 1 + RUNNERS_UP]
    known = [t.schedule for t in again if case.after.space.row_of(t.schedule) is not None]
    now = [step.trial for step in measured_again(known, case.after.measure, done=0, stopped=lambda: False)]
    comparison = compared(again, now)
    kept = comparison.verdict.ends_the_task
    after = now if kept else _searched(case.after, trials, seed + 1, now)
    afresh = _searched(case.after, trials, seed + 1)
    return {
        "kept": float(kept),
        "saved": 1 - len(after) / len(earlier),
        "loss": _best(after) / _best(afresh) - 1,
    }


def _searched(table: Recorded, trials: int, seed: int, resumed: Sequence[Trial] = ()) -> list[Trial]:
    strategy = STRATEGIES["model"](SearchProblem(table.pool, seed))
    steps = tune(table.pool, strategy, table.measure, Budget(trials), resumed=resumed)
    return [*resumed, *(step.trial for step in steps)]


def _best(trials: Sequence[Trial]) -> float:
    return min((t.outcome.seconds for t in trials if isinstance(t.outcome, Timed)), default=float("inf"))


def _shaken(table: Recorded, name: str, deviation: float) -> Recorded:
    factors = np.exp(deviation * stream(0, "retune", name, str(deviation)).standard_normal(len(table.outcomes)))
    outcomes = [_scaled(outcome, float(factor)) for outcome, factor in zip(table.outcomes, factors, strict=True)]
    return replace(table, outcomes=outcomes)


def _scaled(outcome: Outcome, factor: float) -> Outcome:
    if not isinstance(outcome, Timed):
        return outcome
    return replace(outcome, samples=tuple(sample * factor for sample in outcome.samples))


@cache
def _table(path: Path) -> Recorded:
    return read_table(path)
