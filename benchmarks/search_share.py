"""What search led by the model finds in 100 trials, of what 1,000 random trials find: on real hardware, 5 seeds a row.

Each row is measured at random once; where there are fewer settings than that, all of them. Then the model tunes it for
each seed, knowing nothing of the row, and its winners and the fastest of the random trials are timed once more,
interleaved, so that luck in single timings decides nothing. A row's share is (best random / winner). Bar: 0.95 for
every row and seed. How far the winners of the seeds are apart is what tuning again would change.

Settings: ``seeds``; ``random``: how many random trials; ``folder`` keeps every trial as it comes, ROW-random.jsonl
being the row as a recorded space, which a later run goes on with; ``replay=FOLDER`` searches such spaces again without
hardware.
"""

import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.suite import Options, Result
from tilewright.core.budget import Budget
from tilewright.core.errors import InvalidParameter
from tilewright.core.schedule import Schedule
from tilewright.core.target import DeviceInfo
from tilewright.core.trial import Outcome, Timed, Trial
from tilewright.db.encode import (
    device_from_json,
    device_to_json,
    evidence_from_json,
    evidence_to_json,
    outcome_from_json,
    outcome_to_json,
)
from tilewright.runtime.devices import host_target
from tilewright.schedule.sketches import sketches_for
from tilewright.search.drift import drift_corrected, noise
from tilewright.search.pool import CandidatePool
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import SearchProblem
from tilewright.search.tuner import Measure, tune
from tilewright.service import wiring
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload
from tilewright.workers.local import LocalExecutor

BAR = 0.95
RANDOM, TRIALS, SEEDS = 1000, 100, 5
REMATCHED = 12
"""Of the random trials, how many of the fastest meet the winners again."""

PLAYS = 2
"""How often the winners of each half are measured again."""

_IMAGE = {"batch": 1, "height": 56, "width": 56, "kernel_h": 3, "kernel_w": 3, "padding": 1}

ROWS: dict[str, tuple[str, dict[str, object]]] = {
    "matmul-512": ("matmul", {"m": 512, "n": 512, "k": 512}),
    "matmul-bf16-1024": ("matmul", {"m": 1024, "n": 1024, "k": 1024, "dtype": "bfloat16"}),
    "linear-128x1024x1024": ("linear", {"rows": 128, "inputs": 1024, "outputs": 1024, "activation": "gelu_erf"}),
    "depthwise-56": ("conv2d", {**_IMAGE, "channels": 128, "filters": 128, "groups": 128}),
    "conv2d-56": ("conv2d", {**_IMAGE, "channels": 64, "filters": 64}),
    "softmax-4096x1024": ("softmax", {"rows": 4096, "columns": 1024}),
    "layer_norm-4096x1024": ("layer_norm", {"rows": 4096, "columns": 1024}),
}

Json = dict[str, Any]


@dataclass(frozen=True)
class Space:
    """A row as it was measured at random, in the order of the trials."""

    row: str
    device: DeviceInfo
    seed: int
    trials: Sequence[Trial]

    @property
    def pool(self) -> CandidatePool:
        """The candidates that were measured, no others."""
        every = CandidatePool.of(_workload(self.row), self.device, seed=self.seed)
        found = [every.locate(c) for t in self.trials if (c := every.candidate_of(t.schedule)) is not None]
        kept = [sorted(row for number, row in found if number == n) for n in range(len(every.spaces))]
        spaces = [
            replace(s, codes=s.codes[rows], quantities={q: c[rows] for q, c in s.quantities.items()}, total=len(rows))
            for s, rows in zip(every.spaces, kept, strict=True)
            if rows
        ]
        return CandidatePool(spaces, every.workload, every.device)

    @cached_property
    def outcomes(self) -> Mapping[str, Outcome]:
        """By the key of the schedule, drift_corrected."""
        return {t.schedule.key: o for t, o in zip(self.trials, drift_corrected(self.trials), strict=True)}

    @property
    def best_seconds(self) -> float:
        return min(o.seconds for o in self.outcomes.values() if isinstance(o, Timed))

    def measure(self, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        """Trials of ``schedules`` without hardware."""
        for position, schedule in enumerate(schedules):
            yield position, Trial(schedule, self.outcomes[schedule.key])

    @property
    def head(self) -> Json:
        """The first line of its file. Other versions of a sketch make other spaces."""
        versions = {s.name: s.version for s in sketches_for(_workload(self.row), self.device.target)}
        return {"row": self.row, "device": device_to_json(self.device), "seed": self.seed, "sketches": versions}


def read_space(path: Path) -> Space:
    """Return a space from its file: a line about it, then one for each trial. Raises InvalidParameter for one of other
    versions of the sketches, which cannot be searched any more."""
    head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    trials = [_trial(line) for line in lines]
    space = Space(str(head["row"]), device_from_json(head["device"]), int(head["seed"]), trials)
    if space.head != head:
        raise InvalidParameter(
            f"{path.name} has {head.get('sketches')}, there are {space.head['sketches']}", field="folder"
        )
    return space


def run(options: Options) -> Result:
    """Return one row for each workload; passes when every seed of every row reached the bar."""
    seeds = range(options.seed, options.seed + int(options.extra.get("seeds", SEEDS)))
    trials, names = options.trials or TRIALS, [n for n in ROWS if fnmatch(n, options.rows)]
    settings: Json = {"bar": BAR, "trials": trials, "seeds": list(seeds), **options.extra}
    if "replay" in options.extra:
        files = [Path(options.extra["replay"]) / f"{name}-random.jsonl" for name in names]
        found = [_replayed(read_space(f), seeds, trials) for f in files if f.exists()]
        return _result(found, settings, {})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.extra.get("folder", temporary))
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        with LocalExecutor(host_target("llvm")) as executor:
            device = executor.measured_on.device
            for name in names:
                live = Live(name, executor, device, folder, int(options.extra.get("random", RANDOM)), options.seed)
                rows.append(live.row(seeds, trials))
                (folder / f"{name}.json").write_text(json.dumps(rows[-1], indent=1), encoding="utf-8")
                print(name, rows[-1]["shares"], f"{rows[-1]['seconds']:.0f} s", flush=True)
    return _result(rows, settings, {"name": device.name, **device.hardware})


def _result(rows: Sequence[Json], settings: Json, device: Mapping[str, object]) -> Result:
    least = min((r["share"] for r in rows), default=0.0)
    below = [r["row"] for r in rows if r["share"] < BAR]
    summary = {"rows": len(rows), "least_share": least, "below_bar": below}
    return Result(tuple(rows), summary, bool(rows) and not below, settings, device)


@dataclass(frozen=True)
class Live:
    """One row on this machine."""

    name: str
    executor: LocalExecutor
    device: DeviceInfo
    folder: Path
    most: int
    seed: int

    def row(self, seeds: Sequence[int], trials: int) -> Json:
        began = time.perf_counter()
        workload = _workload(self.name)
        every = CandidatePool.of(workload, self.device, seed=self.seed)
        random = self._recorded(every)
        recorded = time.perf_counter() - began
        winners = []
        for seed in seeds:
            pool = CandidatePool.of(workload, self.device, seed=seed)
            found = list(_searched("model", pool, seed, trials, self._measure))
            lines = "".join(_line(t) for t in found)
            (self.folder / f"{self.name}-model-{seed}.jsonl").write_text(lines, encoding="utf-8")
            winners.append(_winner(found, wiring.remeasure(workload, self.executor, found)))
        first, second = self._rematch(workload, [*_fastest(random), *winners])
        best = min(_fastest(random), key=lambda s: first[s.key])
        times = [second[w.key] for w in winners]
        shares = [second[best.key] / t for t in times]
        return {
            "row": self.name,
            "settings": every.total,
            "random_trials": len(random),
            "noise": noise(random),
            "random_failures": sum(not isinstance(t.outcome, Timed) for t in random),
            "best_random_us": 1e6 * second[best.key],
            "winners_us": [1e6 * t for t in times],
            "winners_apart": max(times, default=1.0) / min(times, default=1.0) - 1,
            "share": min(shares, default=0.0),
            "shares": [round(s, 4) for s in shares],
            "seconds": time.perf_counter() - began,
            "random_trials_per_second": len(random) / recorded,
            "best_random": best.to_json(),
            "winners": [w.to_json() for w in winners],
        }

    def _recorded(self, pool: CandidatePool) -> list[Trial]:
        """Return the random trials: those that an earlier run has in its file, and the rest."""
        path = self.folder / f"{self.name}-random.jsonl"
        space = Space(self.name, self.device, self.seed, [])
        head = json.dumps(space.head) + "\n"
        if path.exists() and path.read_text(encoding="utf-8").startswith(head):
            space = read_space(path)
        else:
            path.write_text(head, encoding="utf-8")
        trials = list(space.trials)
        with path.open("a", encoding="utf-8") as file:
            for trial in _searched("random", pool, self.seed, self.most, self._measure, trials):
                file.write(_line(trial))
                file.flush()
                trials.append(trial)
        return trials

    def _measure(self, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        return self.executor.measure(_workload(self.name), schedules)

    def _rematch(self, workload: Workload, schedules: Sequence[Schedule]) -> tuple[dict[str, float], dict[str, float]]:
        """Median seconds of each, by key, timed interleaved; endless for what failed. Twice: which random trial is the
        best is not decided by what it is compared by, where the luckiest of them would always win."""
        different = list({s.key: s for s in schedules}.values())
        halves = []
        for _ in range(2):
            played = [self.executor.remeasure(workload, different) for _ in range(PLAYS)]
            samples = [[t for play in played for t in play[n]] for n in range(len(different))]
            halves.append({s.key: median(x) if x else float("inf") for s, x in zip(different, samples, strict=True)})
        return halves[0], halves[1]


def _replayed(space: Space, seeds: Sequence[int], trials: int) -> Json:
    """Return the searches on a recorded space: the seconds that a candidate had at random are those it has."""
    pool = space.pool
    bests = []
    for seed in seeds:
        outcomes = [t.outcome for t in _searched("model", pool, seed, trials, space.measure)]
        bests.append(min(o.seconds for o in outcomes if isinstance(o, Timed)))
    shares = [space.best_seconds / b for b in bests]
    return {
        "row": space.row,
        "random_trials": len(space.trials),
        "best_random_us": 1e6 * space.best_seconds,
        "share": min(shares, default=0.0),
        "shares": [round(s, 4) for s in shares],
    }


def _searched(
    strategy: str, pool: CandidatePool, seed: int, trials: int, measure: Measure, resumed: Sequence[Trial] = ()
) -> Iterator[Trial]:
    for finished in tune(
        pool, STRATEGIES[strategy](SearchProblem(pool, seed)), measure, Budget(trials), resumed=resumed
    ):
        yield finished.trial


def _winner(trials: Sequence[Trial], changed: Mapping[int, Timed]) -> Schedule:
    """Return what a job would choose after its final: among equals the schedule's key decides."""
    outcomes = [changed.get(n, t.outcome) for n, t in enumerate(trials)]
    timed = [
        (o.rank_seconds, t.schedule.key, n)
        for n, (o, t) in enumerate(zip(outcomes, trials, strict=True))
        if isinstance(o, Timed)
    ]
    return trials[min(timed)[2]].schedule


def _fastest(trials: Sequence[Trial]) -> list[Schedule]:
    outcomes = enumerate(drift_corrected(trials))
    timed = sorted((o.seconds, n) for n, o in outcomes if isinstance(o, Timed))
    return [trials[n].schedule for _, n in timed[:REMATCHED]]


def _workload(row: str) -> Workload:
    operator, parameters = ROWS[row]
    return OPERATORS[operator].workload(parameters)


def _line(trial: Trial) -> str:
    outcome, evidence = outcome_to_json(trial.outcome), evidence_to_json(trial.evidence)
    return json.dumps({"schedule": trial.schedule.to_json(), "outcome": outcome, "evidence": evidence}) + "\n"


def _trial(data: Json) -> Trial:
    outcome, evidence = outcome_from_json(data["outcome"]), evidence_from_json(data["evidence"])
    return Trial(Schedule.from_json(data["schedule"]), outcome, evidence=evidence)
