"""How much faster several GPUs of one host tune than one: the table of memory-bound work, through HTTP.

A server with one GPU, then one with all, each with an empty database, gets the table as one job of 64 trials a row.
``--set executors=local,ray``: the server with one GPU uses the first executor, and one with all GPUs each of them. Ray
is a cluster of one node, which ``ray start --head`` begins. The winners are then timed interleaved on the first GPU.
``chips`` says first how much GPUs of one kind differ: the anchors of all, timed at the same time, three times.

Bars in trials per second, times those of one GPU: BUSY while every GPU has a task, WHOLE to the job's end; winners
within 2 % in the geometric mean; with four GPUs, each is timing for 60 % of the time at least.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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
from tilewright.tests.ports import free_port
from tilewright.tests.service.killing import KillableServer
from tilewright.tests.service.ray_head import RayHead
from tilewright.workers.probe import local_unit, probe_unit

_TRIALS = 64
WARM_UP_TRIALS = 8
_POLL_SECONDS = 0.2
BUSY: Mapping[str, Mapping[int, float]] = {"local": {2: 1.85, 4: 3.6}, "ray": {2: 1.75, 4: 3.4}}
WHOLE: Mapping[int, float] = {2: 1.75, 4: 3.3}
SAME = 0.02
TIMING: Mapping[int, float] = {4: 0.6}
CHIP_ROUNDS = 3
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Tuning:
    """What a server with some GPUs did. ``busy``: trials per second while every GPU had a task; ``whole``: to the end
    of the job, both from the first trial on. ``timing``: the share of that time in which a GPU was timing."""

    gpus: int
    busy: float
    whole: float
    timing: float
    seconds: float
    winners: Mapping[str, Schedule]


def run(options: Options) -> Result:
    rows = options.chosen(ROWS)
    gpus = DEVICES["cuda"].count()
    trials, executors = options.trials or _TRIALS, options.extra.get("executors", "local").split(",")
    chips = _chips(gpus)
    _tuned(dict([*rows.items()][:1]), 1, WARM_UP_TRIALS, executors[0])  # so that the first does not pay for cold files
    one = _tuned(rows, 1, trials, executors[0])
    every = {executor: _tuned(rows, gpus, trials, executor) for executor in executors}
    table = [_compared(name, row, one, every, options.seed) for name, row in rows.items()]
    found = {executor: _figures(executor, one, every[executor], table) for executor in executors}
    device = open_device("cuda").info
    settings = {"trials": trials, "executors": executors}
    summary = {
        "gpus": gpus,
        "chips": chips,
        "one_trials_per_s": one.whole,
        "one_seconds": one.seconds,
        "one_timing_share": one.timing,
        **{executor: {name: value for name, value in f.items() if name != "passed"} for executor, f in found.items()},
    }
    passed = all(bool(figures["passed"]) for figures in found.values())
    return Result(tuple(table), summary, passed, settings, {"name": device.name, **device.hardware})


def _chips(gpus: int) -> Mapping[str, object]:
    """Return the anchors of every GPU, in seconds, and by how much the slowest takes longer than the fastest."""
    units = [local_unit("cuda", n) for n in range(gpus)]
    with ThreadPoolExecutor(gpus) as pool:
        rounds = [list(pool.map(probe_unit, units)) for _ in range(CHIP_ROUNDS)]
    found: dict[str, object] = {}
    for name in ("anchor_seconds", "power_anchor_seconds"):
        figures = [median(getattr(reports[n], name) or float("nan") for reports in rounds) for n in range(gpus)]
        found[name], found[name.replace("seconds", "spread")] = figures, max(figures) / min(figures) - 1
    return found


def _figures(executor: str, one: Tuning, every: Tuning, table: list[Mapping[str, object]]) -> dict[str, object]:
    """Return what all GPUs did with an executor, against one GPU and the bars."""
    gpus, same = every.gpus, geometric_mean([float(str(row[executor])) for row in table if executor in row])
    busy, whole = every.busy / one.busy, every.whole / one.whole
    bars = BUSY[executor].get(gpus, 0.9 * gpus), WHOLE.get(gpus, 0.8 * gpus), TIMING.get(gpus, 0.0)
    passed = all(figure >= bar for figure, bar in zip((busy, whole, every.timing), bars, strict=True))
    return {
        "busy_speedup": busy,
        "whole_speedup": whole,
        "trials_per_s": every.whole,
        "seconds": every.seconds,
        "timing_share": every.timing,
        "winners_geomean": same,
        "passed": passed and same is not None and abs(same - 1) <= SAME,
    }


@contextmanager
def _server(gpus: int, executor: str) -> Iterator[KillableServer]:
    """A server that sees the first ``gpus`` of this host's GPUs, on an empty database, and a cluster for Ray."""
    before = os.environ.get(_VISIBLE)
    visible = before.split(",") if before else [str(n) for n in range(gpus)]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ[_VISIBLE] = ",".join(visible[:gpus])
        try:
            cluster = {}
            if executor == "ray":
                head = stack.enter_context(RayHead(free_port(), len(os.sched_getaffinity(0))))
                cluster = {"TILEWRIGHT_RAY_ADDRESS": head.address}
            server = KillableServer(f"sqlite:///{folder}/db.sqlite3", Path(folder) / "log", environment=cluster)
            server.start()
        finally:
            if before is None:
                del os.environ[_VISIBLE]
            else:
                os.environ[_VISIBLE] = before
        stack.callback(server.kill)
        stack.callback(lambda: print((Path(folder) / "log").read_text()[-2000:]))
        server.wait_until_ready()
        yield server


def _tuned(rows: Mapping[str, Row], gpus: int, trials: int, executor: str) -> Tuning:
    tasks = [ExpressionIn(operator=row.operator, parameters=dict(row.parameters)) for row in rows.values()]
    with _server(gpus, executor) as server, Client(f"http://127.0.0.1:{server.port}") as client:
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
    seconds = now - first[0]
    busy = (full[1] - first[1]) / max(full[0] - first[0], 1e-9)
    timing = sum(task.timing_seconds or 0.0 for task in job.tasks) / (gpus * seconds)
    return Tuning(gpus, busy, (done - first[1]) / seconds, timing, now - began, winners)


def _compared(name: str, row: Row, one: Tuning, every: Mapping[str, Tuning], seed: int) -> Mapping[str, object]:
    """Return the winners of a row on the same buffers, in turn, by graph replay: seconds of one GPU's winner by those
    of each executor's with all GPUs."""
    others = {executor: tuning.winners[name] for executor, tuning in every.items()}
    found: dict[str, object] = {"row": name, **{e: 1.0 for e, winner in others.items() if winner == one.winners[name]}}
    if len(found) > len(others):
        return found
    workload = row.workload
    sets = inputs_sets(workload, minimum_bytes(workload), seed)
    winners = {"one": one.winners[name], **{e: winner for e, winner in others.items() if e not in found}}
    calls = {who: ours(workload, winner) for who, winner in winners.items()}
    times = interleaved(calls, sets, rounds=15, seconds=0.005)
    failed = {who: said for who, said in times.items() if isinstance(said, str)}
    if failed:
        return {"row": name, "failed": failed}
    medians = {who: median(float(t) for t in said) for who, said in times.items()}
    ratios = {who: medians["one"] / seconds for who, seconds in medians.items() if who != "one"}
    return {**found, **ratios, "one_us": 1e6 * medians["one"]}
