"""Tuned loop-sketch kernels against NumPy and torch on this machine's CPU, all threads.

Each row is tuned first; then ours and the peers run interleaved in one process on the same data, with every output
in memory that is used again. Bars are ratios peer / ours: matmul 0.5 of NumPy, softmax, layer_norm and the
elementwise chain 2 times NumPy, conv2d 0.4 of torch.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.suite import Options, Result
from tilewright.codegen import road
from tilewright.core.budget import Budget
from tilewright.core.schedule import Schedule
from tilewright.core.trial import Timed
from tilewright.runtime.cpu import CpuDevice
from tilewright.search.finals import finalists, ranked
from tilewright.search.pool import Pool
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import Problem
from tilewright.search.tuner import tune
from tilewright.te.cost import flops, minimum_bytes
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload
from tilewright.workers.local import LocalExecutor

Arrays = Mapping[str, NDArray[np.float32]]
_ROUNDS = 15
_TRIALS = 192
_PAUSE_SECONDS = 0.05
"""Between blocks: OpenBLAS's threads spin for some 25 ms after a call and would take time from whoever comes next."""


@dataclass(frozen=True)
class Row:
    """``peers``: name -> a function that, given the inputs, prepares a call to time. ``bar``: (peer, least ratio)."""

    operator: str
    parameters: Mapping[str, object]
    peers: Mapping[str, Callable[[list[NDArray[np.float32]]], Callable[[], object]]]
    bar: tuple[str, float]


def _numpy_matmul(inputs: list[NDArray[np.float32]]) -> Callable[[], object]:
    a, b = inputs
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    return lambda: np.matmul(a, b, out=out)


def _numpy_softmax(inputs: list[NDArray[np.float32]]) -> Callable[[], object]:
    (x,) = inputs
    out = np.empty_like(x)

    def call() -> None:
        np.subtract(x, x.max(axis=1, keepdims=True), out=out)
        np.exp(out, out=out)
        np.divide(out, out.sum(axis=1, keepdims=True), out=out)

    return call


def _numpy_layer_norm(inputs: list[NDArray[np.float32]]) -> Callable[[], object]:
    x, gamma, beta = inputs
    out, squares = np.empty_like(x), np.empty_like(x)

    def call() -> None:
        np.subtract(x, x.mean(axis=1, keepdims=True), out=out)
        np.multiply(out, out, out=squares)
        np.divide(out, np.sqrt(squares.mean(axis=1, keepdims=True) + np.float32(1e-5)), out=out)
        np.multiply(out, gamma, out=out)
        np.add(out, beta, out=out)

    return call


def _numpy_chain(inputs: list[NDArray[np.float32]]) -> Callable[[], object]:
    (x,) = inputs
    out = np.empty_like(x)

    def call() -> None:
        np.maximum(x, 0, out=out)
        np.multiply(out, 2, out=out)
        np.add(out, 1, out=out)
        np.negative(out, out=out)
        np.exp(out, out=out)
        np.add(out, 1, out=out)
        np.reciprocal(out, out=out)

    return call


def _torch_conv(inputs: list[NDArray[np.float32]]) -> Callable[[], object]:
    x, weight = (torch.from_numpy(a) for a in inputs)
    return lambda: torch.nn.functional.conv2d(x, weight, padding=1)


def _torch_matmul(inputs: list[NDArray[np.float32]]) -> Callable[[], object]:
    a, b = (torch.from_numpy(x) for x in inputs)
    out = torch.empty(a.shape[0], b.shape[1])
    return lambda: torch.matmul(a, b, out=out)


def _torch_softmax(inputs: list[NDArray[np.float32]]) -> Callable[[], object]:
    x = torch.from_numpy(inputs[0])
    out = torch.empty_like(x)
    return lambda: torch.softmax(x, 1, out=out)


ROWS: dict[str, Row] = {
    "matmul-1024": Row(
        "matmul", {"m": 1024, "n": 1024, "k": 1024}, {"numpy": _numpy_matmul, "torch": _torch_matmul}, ("numpy", 0.5)
    ),
    "softmax-4096x1024": Row(
        "softmax", {"rows": 4096, "columns": 1024}, {"numpy": _numpy_softmax, "torch": _torch_softmax}, ("numpy", 2.0)
    ),
    "layer_norm-4096x1024": Row(
        "layer_norm", {"rows": 4096, "columns": 1024}, {"numpy": _numpy_layer_norm}, ("numpy", 2.0)
    ),
    "chain-4096x4096": Row(
        "elementwise",
        {"shape": [4096, 4096], "functions": ["relu", "mul2", "add1", "sigmoid"]},
        {"numpy": _numpy_chain},
        ("numpy", 2.0),
    ),
    "conv2d-56": Row(
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
        {"torch": _torch_conv},
        ("torch", 0.4),
    ),
}


def run(options: Options) -> Result:
    """Tune and time every row whose name matches."""
    device = CpuDevice()
    torch.set_num_threads(device.info.target.threads)
    executor = LocalExecutor(device.info.target)
    try:
        peaks = executor.peaks()
        rows = [
            _row(name, row, executor, device, peaks, options)
            for name, row in ROWS.items()
            if fnmatch(name, options.rows)
        ]
    finally:
        executor.close()
    missed = [str(r["row"]) for r in rows if not r["met"]]
    ratios = [float(str(r["ratio"])) for r in rows]
    geomean = float(np.exp(np.mean(np.log(ratios)))) if ratios else 0.0
    summary = {"geomean_ratio": geomean, "min_ratio": min(ratios), "rows": len(rows), "below_bar": missed}
    about = {"name": device.info.name, **device.info.hardware, **peaks}
    return Result(tuple(rows), summary, not missed, {"rounds": _ROUNDS, "threads": device.info.target.threads}, about)


def _row(
    name: str, row: Row, executor: LocalExecutor, device: CpuDevice, peaks: Mapping[str, float], options: Options
) -> dict[str, object]:
    workload = OPERATORS[row.operator].workload(row.parameters)
    started = time.perf_counter()
    schedule, trials = _tune(workload, executor, device, options)
    tuning = time.perf_counter() - started
    inputs = random_inputs(workload, options.seed)
    ordered = [inputs[b.name] for b in workload.inputs]
    ours = _ours(workload, schedule, device, ordered)
    calls = {"ours": ours, **{peer: prepare(ordered) for peer, prepare in row.peers.items()}}
    times = _interleaved(calls)
    peer, least = row.bar
    by_flops = flops(workload) / peaks["peak_float32_flops_per_second"]
    by_bytes = minimum_bytes(workload) / peaks["copy_bytes_per_second"]
    best_peer = min(row.peers, key=lambda p: median(times[p]))
    mine = median(times["ours"])
    quartiles = np.percentile(times["ours"], [25, 75])
    return {
        "row": name,
        "ours_us": 1e6 * mine,
        "peers_us": {p: 1e6 * median(times[p]) for p in row.peers},
        "best_peer": best_peer,
        "ratio": median(times[best_peer]) / mine,
        "bar": f"{peer} / ours >= {least}",
        "bar_ratio": median(times[peer]) / mine,
        "met": median(times[peer]) / mine >= least,
        "gflops": flops(workload) / mine / 1e9,
        "limit_us": 1e6 * max(by_flops, by_bytes),
        "limit_by": "flops" if by_flops > by_bytes else "bytes",
        "spread": float((quartiles[1] - quartiles[0]) / mine),
        "schedule": schedule.to_json(),
        "trials": trials,
        "tuning_s": tuning,
    }


def _tune(workload: Workload, executor: LocalExecutor, device: CpuDevice, options: Options) -> tuple[Schedule, int]:
    pool = Pool.of(workload, device.info, seed=options.seed)
    strategy = STRATEGIES["model"](Problem(pool, options.seed))
    steps = tune(pool, strategy, lambda s: executor.measure(workload, s), Budget(options.trials or _TRIALS))
    trials = [finished.trial for finished in steps]
    outcomes = [trial.outcome for trial in trials]
    places = finalists(outcomes)
    samples = executor.final(workload, [trials[n].schedule for n in places]) if places else []
    final = ranked(outcomes, dict(zip(places, samples, strict=True)))
    timed = [(final.get(n, o), trials[n].schedule) for n, o in enumerate(outcomes) if isinstance(o, Timed)]
    best = min(timed, key=lambda pair: (pair[0].rank_seconds, pair[1].key))
    return best[1], len(trials)


def _ours(
    workload: Workload, schedule: Schedule, device: CpuDevice, inputs: list[NDArray[np.float32]]
) -> Callable[[], object]:
    """The tuned kernel on aligned copies of the inputs; its output is compared with the operator's own NumPy form
    by the executor's check while tuning."""
    kernel = device.load(road.build(workload, device.info.target, schedule))
    memories = [device.allocate(p.bytes) for p in kernel.parameters]
    for memory, array in zip(memories, inputs, strict=False):
        memory.write(np.ascontiguousarray(array).view(np.uint8).reshape(-1))
    return lambda: kernel.launch(memories)


def _interleaved(calls: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds per call: rounds in which each is warmed up and timed in turn, enough calls to last 20 ms."""
    repeats = {}
    for name, call in calls.items():
        call()
        started = time.perf_counter()
        call()
        repeats[name] = max(1, int(0.02 / max(time.perf_counter() - started, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            time.sleep(_PAUSE_SECONDS)
            call()
            started = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - started) / repeats[name])
    return times
