"""How fast the model ranks a space, and what search costs for each candidate, training, ranking and choosing included.

Nothing is compiled: candidates get made-up times, so that only search itself is measured. What it costs is the time of
all processors that work for it, which other programs on the machine change little. Columns:

    cold_ms_per_candidate   a search by the strategy ``model`` with no history: what it takes to be made, to propose
                            ``--trials N`` (128) candidates and to be told their times, for each of them
    model_ms_per_candidate  the same with the history that a task of a service has where ``--set records=N`` (100,000)
                            of earlier tasks are in the database; choosing and reading it counts, too
    warm_ms_per_candidate   the same by the strategy ``warm``
    history_ms              what choosing and reading those records takes of it, once for a task

Earlier tasks are of other shapes of the rows' operators, with 256 records each. Bars: the XGBoost model ranks at least
100,000 schedules a second, and no search takes more than 3 ms for each candidate.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import product, zip_longest
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from benchmarks.suite import Options, Result
from tilewright.core.budget import Budget
from tilewright.core.record import MeasuredOn
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.trial import Clocks, Evidence, Timed, Trial
from tilewright.cost_model.dataset import Experience
from tilewright.cost_model.models import new_model
from tilewright.cost_model.similarity import Situation
from tilewright.db.encode import clocks_to_json, device_to_json, evidence_to_json, now, outcome_to_json
from tilewright.db.store import RecordStore
from tilewright.search.pool import CandidatePool
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import SearchProblem
from tilewright.search.tuner import tune
from tilewright.service.history import experiences, related_groups
from tilewright.service.targets import DeviceSelector, measured_on
from tilewright.service.task_runner import RELATED_RECORDS
from tilewright.service.wiring import LEARNS
from tilewright.te.json import workload_to_json
from tilewright.te.key import workload_key
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

RECORDS, RECORDS_PER_TASK = 100_000, 256
TRIALS, REPEATS = 128, 3
LEAST_RANKED, MOST_MILLISECONDS = 100_000, 3.0


@dataclass(frozen=True)
class Ranked:
    """A row. ``others``: the values of some parameters that earlier tasks have, in every combination."""

    operator: str
    parameters: Mapping[str, int]
    others: Mapping[str, Sequence[int]]

    @property
    def workload(self) -> Workload:
        return OPERATORS[self.operator].workload(self.parameters)

    def relatives(self) -> Iterator["Ranked"]:
        """Yield other workloads of the operator."""
        for values in product(*self.others.values()):
            parameters = {**self.parameters, **dict(zip(self.others, values, strict=True))}
            if parameters != self.parameters:
                yield replace(self, parameters=parameters)


_SIZES = (256, 384, 512, 768, 1024, 1536, 2048, 4096)
_CHANNELS, _SIDES = (32, 64, 128, 256), (7, 14, 28, 56, 112)
_LENGTHS = tuple(256 * n for n in range(1, 21))
WORKLOADS: dict[str, Ranked] = {
    "matmul-1024": Ranked("matmul", {"m": 1024, "n": 1024, "k": 1024}, dict.fromkeys("mnk", _SIZES)),
    "conv2d-56": Ranked(
        "conv2d",
        {
            **{"batch": 1, "channels": 64, "height": 56, "width": 56, "filters": 64},
            **{"kernel_h": 3, "kernel_w": 3, "padding": 1},
        },
        {"channels": _CHANNELS, "filters": _CHANNELS, "height": _SIDES, "width": _SIDES},
    ),
    "softmax-4096x1024": Ranked("softmax", {"rows": 4096, "columns": 1024}, {"rows": _LENGTHS, "columns": _LENGTHS}),
}


def run(options: Options) -> Result:
    """Fill a database with records of earlier tasks, and search each row whose name matches."""
    records, trials = int(options.extra.get("records", RECORDS)), options.trials or TRIALS
    on = measured_on(DeviceSelector("llvm"))
    rows: list[dict[str, object]] = []
    with TemporaryDirectory() as folder, RecordStore(f"sqlite:///{Path(folder) / 'records.sqlite3'}") as store:
        added, _ = store.import_lines(map(json.dumps, _up_to(records, _earlier(on, options.seed))))
        for name, row in WORKLOADS.items():
            if fnmatch(name, options.rows):
                found = _searched(row, on, store, trials, options.seed)
                rows.append({"row": name, **_ranked(row, on, options.seed), **found})
    speeds = [float(str(r["ranked_per_second"])) for r in rows]
    costs = [float(str(value)) for r in rows for name, value in r.items() if name.endswith("_ms_per_candidate")]
    summary = {
        "rows": len(rows),
        "min_ranked_per_second": min(speeds, default=None),
        "max_ms_per_candidate": max(costs, default=None),
    }
    passed = bool(rows) and min(speeds) >= LEAST_RANKED and max(costs) <= MOST_MILLISECONDS
    return Result(tuple(rows), summary, passed, {"records": added, "trials": trials})


def _ranked(row: Ranked, on: MeasuredOn, seed: int) -> dict[str, object]:
    """Return how long listing, describing and ranking a space takes, on the clock."""
    started = time.perf_counter()
    pool = CandidatePool.of(row.workload, on.device, seed=seed)
    enumerated = time.perf_counter()
    features = pool.features
    described = time.perf_counter()
    rng = stream(seed, "labels")
    model = new_model("xgboost")
    model.fit(features[rng.integers(0, len(pool), 256)], rng.random(256, "f4"), seed=seed)
    ranked = [_seconds(lambda: model.predict(features)) for _ in range(7)]
    return {
        "schedules": len(pool),
        "legal": pool.total,
        "enumerate_seconds": enumerated - started,
        "describe_seconds": described - enumerated,
        "ranked_per_second": len(pool) / median(ranked),
    }


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _searched(row: Ranked, on: MeasuredOn, store: RecordStore, trials: int, seed: int) -> dict[str, object]:
    """Return what searches cost, the median of ``REPEATS``: the first one also loads libraries."""
    found = {"cold": [_task(row, on, None, "model", trials, seed) for _ in range(REPEATS)]}
    found |= {name: [_task(row, on, store, name, trials, seed) for _ in range(REPEATS)] for name in LEARNS}
    costs = {f"{name}_ms_per_candidate": median(cost.per_candidate for cost in costs) for name, costs in found.items()}
    own = [cost for name in LEARNS for cost in found[name]]
    return {**costs, "history_ms": median(cost.history for cost in own), "learned_from": own[0].records}


class Cost(NamedTuple):
    """Of a task, in milliseconds of processors: of search for each candidate, its history included, and of that
    history, which has so many records."""

    per_candidate: float
    history: float
    records: int


def _task(row: Ranked, on: MeasuredOn, store: RecordStore | None, strategy: str, trials: int, seed: int) -> Cost:
    """Search as a task of a service does."""
    pool = CandidatePool.of(row.workload, on.device, seed=seed)
    began = time.process_time()
    history = () if store is None else _history(row, on, store)
    read = time.process_time()
    rng = stream(seed, "times")

    def measure(schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        for position, schedule in enumerate(schedules):
            yield position, Trial(schedule, Timed((_made_up(rng),)))

    found = STRATEGIES[strategy](SearchProblem(pool, seed, history))
    count = sum(1 for _ in tune(pool, found, measure, Budget(trials)))
    each = 1e3 * (time.process_time() - began) / count
    return Cost(each, 1e3 * (read - began), sum(len(earlier.results) for earlier in history))


def _history(row: Ranked, on: MeasuredOn, store: RecordStore) -> tuple[Experience, ...]:
    until = store.newest_record()
    situation = Situation(row.workload, on.device, on.toolchain.key, str(on.profile))
    groups = related_groups(store, situation, operator=row.operator, until=until, but=None, limit=RELATED_RECORDS)
    return experiences(store, store.history(groups, until=until))


def _earlier(on: MeasuredOn, seed: int) -> Iterator[dict[str, object]]:
    """Yield a task for each relative of the rows, as ``db.json_lines`` reads them. The operators take turns."""
    yield {"kind": "device", "key": on.device.key, "data": device_to_json(on.device)}
    yield {"kind": "toolchain", "key": on.toolchain.key, "data": dict(on.toolchain.components)}
    rng, turns = stream(seed, "records"), zip_longest(*(row.relatives() for row in WORKLOADS.values()))
    for number, row in enumerate(row for turn in turns for row in turn if row is not None):
        yield from _task_lines(f"earlier-{number}", row, on, rng)


def _up_to(records: int, lines: Iterable[dict[str, object]]) -> Iterator[dict[str, object]]:
    """Yield lines until there are so many records among them."""
    for line in lines:
        records -= line["kind"] == "record"
        if records < 0:
            return
        yield line


def _task_lines(job: str, row: Ranked, on: MeasuredOn, rng: np.random.Generator) -> Iterator[dict[str, object]]:
    key, made = workload_key(row.workload), now()
    conditions = {"device": on.device.key, "toolchain": on.toolchain.key, "profile": str(on.profile)}
    yield {"kind": "workload", "key": key, "data": workload_to_json(row.workload)}
    yield {
        **{"kind": "job", "id": job, "state": "succeeded", "created_at": made, "strategy": "random", "seed": 0},
        **{"budget": Budget(RECORDS_PER_TASK).to_json(), "target": "llvm", "executor": "local", "cache": "warm"},
        "tasks": [{"workload": key, "operator": row.operator, "parameters": dict(row.parameters)}],
    }
    pool = CandidatePool.of(row.workload, on.device, seed=0, limit=RECORDS_PER_TASK)
    for sequence, candidate in enumerate(rng.permutation(len(pool))[:RECORDS_PER_TASK]):
        yield {
            **{"kind": "record", "job": job, "task": 0, "sequence": sequence, **conditions, "created_at": made},
            "schedule": pool.schedule(int(candidate)).to_json(),
            "outcome": outcome_to_json(Timed((_made_up(rng),))),
            **{"clocks": clocks_to_json(Clocks()), "evidence": evidence_to_json(Evidence()), "elapsed_seconds": 0.1},
        }


def _made_up(rng: np.random.Generator) -> float:
    """Return seconds."""
    return float(rng.lognormal(-7, 1))
