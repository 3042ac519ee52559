"""How fast the model ranks a space, and what search costs for each measured candidate.

Bars: the XGBoost model ranks at least 100,000 schedules a second; a search led by it spends under 10 ms for each
measured candidate, training, ranking and choosing included.
"""

import time
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from statistics import median

from benchmarks.suite import Options, Result
from tilewright.core.budget import Budget
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.trial import Timed, Trial
from tilewright.cost_model.models import new_model
from tilewright.runtime.devices import open_device
from tilewright.search.pool import CandidatePool
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import SearchProblem
from tilewright.search.tuner import tune
from tilewright.te.operators import OPERATORS

WORKLOADS: dict[str, tuple[str, dict[str, object]]] = {
    "matmul-1024": ("matmul", {"m": 1024, "n": 1024, "k": 1024}),
    "conv2d-56": (
        "conv2d",
        {
            "batch": 1,
            "channels": 64,
            "height": 56,
            "width": 56,
            "filters": 64,
            "kernel_h": 3,
            "kernel_w": 3,
            "padding": 1,
        },
    ),
    "softmax-4096x1024": ("softmax", {"rows": 4096, "columns": 1024}),
}


def run(options: Options) -> Result:
    """Nothing is compiled: candidates get made-up times, so that only search itself is on the clock."""
    device = open_device("llvm").info
    rows: list[dict[str, object]] = []
    for name, (operator, parameters) in WORKLOADS.items():
        if not fnmatch(name, options.rows):
            continue
        workload = OPERATORS[operator].workload(parameters)
        started = time.perf_counter()
        pool = CandidatePool.of(workload, device, seed=options.seed)
        enumerated = time.perf_counter()
        features = pool.features
        described = time.perf_counter()
        rng = stream(options.seed, "labels")
        model = new_model("xgboost")
        model.fit(features[rng.integers(0, len(pool), 256)], rng.random(256, "f4"), seed=options.seed)
        ranked = [_seconds(lambda m=model, f=features: m.predict(f)) for _ in range(7)]
        rows.append(
            {
                "row": name,
                "schedules": len(pool),
                "legal": pool.total,
                "enumerate_seconds": enumerated - started,
                "describe_seconds": described - enumerated,
                "ranked_per_second": len(pool) / median(ranked),
                "search_ms_per_candidate": 1e3 * _search_seconds(pool, options.trials or 128, options.seed),
            }
        )
    speeds = [float(str(r["ranked_per_second"])) for r in rows]
    costs = [float(str(r["search_ms_per_candidate"])) for r in rows]
    summary = {"min_ranked_per_second": min(speeds), "max_search_ms_per_candidate": max(costs), "rows": len(rows)}
    return Result(tuple(rows), summary, passed=min(speeds) >= 100_000 and max(costs) < 10)


def _seconds(call: object) -> float:
    assert callable(call)
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _search_seconds(pool: CandidatePool, trials: int, seed: int) -> float:
    """Mean seconds of search for each candidate of a task of ``trials``."""
    rng = stream(seed, "times")

    def measure(schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        for position, schedule in enumerate(schedules):
            yield position, Trial(schedule, Timed((float(rng.lognormal(-7, 1)),)))

    steps = tune(pool, STRATEGIES["model"](SearchProblem(pool, seed)), measure, Budget(trials))
    spent = [finished.trial.clocks.search for finished in steps]
    return sum(spent) / len(spent)
