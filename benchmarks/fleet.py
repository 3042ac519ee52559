"""How much faster several GPUs of one host tune than one: the table of memory-bound work, through HTTP.

A server with one GPU, then one with all, each with an empty database, gets the table as one job of 64 trials a row. The
winners of both are then timed interleaved on the first GPU. Bars for k GPUs, in trials per second: ``1.85`` times those
of one GPU (k = 2; 3.6 for k = 4) while every GPU has a task, and 3.3 (k = 4) or 1.75 (k = 2) to the job's end; winners
within 2 % in the geometric mean. ``--set executor=ray``: through Ray.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from statistics import median

from benchmarks.gpu_table import Row, geometric_mean, inputs_sets, ours
from benchmarks.h200_memory import ROWS
from benchmarks.suite import Options, Result
from benchmarks.torch_peers import interleaved
from tilewright.api.client import Client
from tilewright.api.requests import ExpressionIn
from tilewright.core.budget import Budget
from tilewright.core.schedule import Schedule
from tilewright.runtime.devices import DEVICES, open_device
from tilewright.te.cost import minimum_bytes
from tilewright.tests.service.killing import KillableServer

_TRIALS = 64
WARM_UP_TRIALS = 8
_POLL_SECONDS = 0.2
_BUSY, _WHOLE, _SAME = {2: 1.85, 4: 3.6}, {2: 1.75, 4: 3.3}, 0.02
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Tuning:
    """What a server with some GPUs did. ``busy``: trials per second while every GPU had a task; ``whole``: to the end
    of the job, both from the first trial on."""

    gpus: int
    busy: float
    whole: float
    seconds: float
    winners: Mapping[str, Schedule]


def run(options: Options) -> Result:
    rows = {name: row for name, row in ROWS.items() if fnmatch(name, options.rows)}
    gpus = DEVICES["cuda"].count()
    trials, executor = options.trials or _TRIALS, options.extra.get("executor", "local")
    _tuned(dict([*rows.items()][:1]), 1, WARM_UP_TRIALS, executor)  # so that the first does not pay for cold files
    one, all_of_them = (_tuned(rows, n, trials, executor) for n in (1, gpus))
    table = [_compared(name, row, one, all_of_them, options.seed) for name, row in rows.items()]
    same = geometric_mean([float(str(r["ratio"])) for r in table if "ratio" in r])
    busy, whole = all_of_them.busy / one.busy, all_of_them.whole / one.whole
    summary = {
        "gpus": gpus,
        "busy_speedup": busy,
        "whole_speedup": whole,
        "one_trials_per_s": one.whole,
        "all_trials_per_s": all_of_them.whole,
        "winners_geomean": same,
        "seconds": [one.seconds, all_of_them.seconds],
    }
    passed = busy >= _BUSY.get(gpus, 0.9 * gpus) and whole >= _WHOLE.get(gpus, 0.8 * gpus)
    passed = passed and same is not None and abs(same - 1) <= _SAME
    device = open_device("cuda").info
    settings = {"trials": trials, "executor": executor}
    return Result(tuple(table), summary, passed, settings, {"name": device.name, **device.hardware})


@contextmanager
def _server(gpus: int) -> Iterator[KillableServer]:
    """A server that sees the first ``gpus`` of this host's GPUs, on an empty database."""
    before = os.environ.get(_VISIBLE)
    visible = before.split(",") if before else [str(n) for n in range(gpus)]
    with tempfile.TemporaryDirectory() as folder:
        server = KillableServer(f"sqlite:///{folder}/fleet.sqlite3", Path(folder) / "log")
        os.environ[_VISIBLE] = ",".join(visible[:gpus])
        try:
            server.start()
        finally:
            if before is None:
                del os.environ[_VISIBLE]
            else:
                os.environ[_VISIBLE] = before
        try:
            server.wait_until_ready()
            yield server
        finally:
            print((Path(folder) / "log").read_text()[-2000:])
            server.kill()


def _tuned(rows: Mapping[str, Row], gpus: int, trials: int, executor: str) -> Tuning:
    tasks = [ExpressionIn(operator=row.operator, parameters=dict(row.parameters)) for row in rows.values()]
    with _server(gpus) as server, Client(f"http://127.0.0.1:{server.port}") as client:
        began = time.monotonic()
        job = client.submit(*tasks, budget=Budget(trials), target="cuda", cache="cold", executor=executor)
        first = full = (0.0, 0)
        while not job.state.is_final:
            time.sleep(_POLL_SECONDS)
            job = client.job(job.id)
            now, done = time.monotonic(), sum(task.trials for task in job.tasks)
            if done and not first[1]:
                first = (now, done)
            if sum(task.stop_reason is None for task in job.tasks) >= gpus:
                full = (now, done)
    if job.error is not None:
        raise RuntimeError(job.error)
    winners = {
        n: Schedule.of(t.best.schedule.sketch, t.best.schedule.version, t.best.schedule.knobs)
        for n, t in zip(rows, job.tasks, strict=True)
        if t.best is not None
    }
    busy = (full[1] - first[1]) / max(full[0] - first[0], 1e-9)
    return Tuning(gpus, busy, (done - first[1]) / (now - first[0]), now - began, winners)


def _compared(name: str, row: Row, one: Tuning, others: Tuning, seed: int) -> Mapping[str, object]:
    """Both winners of a row on the same buffers, in turn, by graph replay."""
    if one.winners[name] == others.winners[name]:
        return {"row": name, "ratio": 1.0, "same": True}
    workload = row.workload
    sets = inputs_sets(workload, minimum_bytes(workload), seed)
    calls = {"one": ours(workload, one.winners[name]), "all": ours(workload, others.winners[name])}
    times = interleaved(calls, sets, rounds=15, seconds=0.005)
    first, second = times["one"], times["all"]
    if isinstance(first, str) or isinstance(second, str):
        return {"row": name, "failed": [str(first), str(second)]}
    return {"row": name, "ratio": median(first) / median(second), "one_us": 1e6 * median(first), "same": False}
