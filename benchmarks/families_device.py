"""Shape families on a GPU (``families --set device=1``): few kernels for layers of Llama 3 8B, against fresh tuning.

For each layer a small sweep (``settings`` of 24 at 10 numbers of rows) is recorded in place and kept as records of a
service. That makes a family, and chooses a schedule from it at numbers of rows that were not in the sweep. There the
chosen kernel, the winner of a fresh search (``--trials``, 30) and torch (``F.linear``) run interleaved by graph replay.
``regret`` is (chosen / tuned) - 1, and ``ratio`` (torch / chosen). Bars: those of ``families``, on these rows. Sweeps
come first, then one layer after the other. A family is made while its rows are searched, and never while rows are
timed: a thread that keeps Python's lock delays replays, which took up to 60 times as long. What is measured is kept
after each row.
"""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.nn import functional

from benchmarks.gpu_table import REPLAY_SECONDS, ROUNDS, difference, geometric_mean, inputs_sets, ours
from benchmarks.suite import Options, Result, Row, kept_result, printed, spread
from benchmarks.torch_peers import Call, interleaved
from benchmarks.tuned import TunedOperator, tune_rows
from tilewright.benchmarks import suite
from tilewright.benchmarks.families import MEAN, MOST, P95, ROWS, TARGET, sweeps
from tilewright.benchmarks.record import record
from tilewright.benchmarks.recorded_sweeps import layer_tables
from tilewright.benchmarks.recorded_tables import SWEEP
from tilewright.benchmarks.recorded_workloads import linear
from tilewright.benchmarks.served_families import OPERATOR, opened
from tilewright.core.schedule import Schedule
from tilewright.runtime.devices import open_device
from tilewright.search.families.family import Family
from tilewright.service.family_views import FamilyChoice, FamilySpec, FamilyView
from tilewright.service.service import Service
from tilewright.service.targets import DeviceSelector, measured_on
from tilewright.te.cost import minimum_bytes

LAYERS = {"qkv": (6144, 4096), "out": (4096, 4096), "up_gate": (28672, 4096)}
"""Name -> outputs, inputs."""
SWEPT = (1, 4, 16, 64, 100, 192, 320, 512, 1024, 2048)
HELD_OUT = (10, 150, 700)
SETTINGS, TRIALS = 24, 30


def run(options: Options) -> Result:
    """Return a row for each layer and number of rows whose name (``qkv-150``) matches."""
    named = {layer: [rows for rows in HELD_OUT if fnmatch(f"{layer}-{rows}", options.rows)] for layer in LAYERS}
    layers = [layer for layer, held_out in named.items() if held_out]
    settings = int(options.extra.get("settings", SETTINGS))
    spent = {"sweep_s": 0.0, "tuning_s": 0.0, "families_s": 0.0}
    began = time.perf_counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tables = [t for rows in SWEPT for layer in layers for t in layer_tables(rows, *LAYERS[layer], settings)]
        record(tables, folder, "cuda", suite.Options(seed=options.seed))
        spent["sweep_s"] = time.perf_counter() - began
        service = stack.enter_context(opened(folder, sweeps(folder / SWEEP), measured_on(DeviceSelector("cuda"))))
        making = stack.enter_context(ThreadPoolExecutor(1))  # without the device, while searches have it

        def measured() -> Iterator[Row]:
            for layer in layers:
                made = making.submit(_family, service, layer)
                rows = {f"{layer}-{n}": TunedOperator(OPERATOR, linear(n, *LAYERS[layer])) for n in named[layer]}
                tuned = tune_rows(rows, Options(trials=options.trials, seed=options.seed), TRIALS, "cuda", "cold")
                spent["tuning_s"] += tuned.seconds
                waiting = time.perf_counter()
                family = made.result().family
                spent["families_s"] += time.perf_counter() - waiting
                for name, held_out in zip(rows, named[layer], strict=True):
                    chosen = service.families.choose(layer, {ROWS: held_out})
                    try:
                        found = _row(family, chosen, tuned.schedules.get(name), options.seed)
                    except Exception as error:  # the other rows are worth having
                        found = {"kernels": len(family.schedules), "failed": f"{type(error).__name__}: {error}"}
                    yield {"row": name, **found}

        def judge(rows: list[Row]) -> Result:
            return _judged(rows, {**spent, "seconds": time.perf_counter() - began})

        return kept_result(printed(measured()), judge, options)


def _family(service: Service, layer: str) -> FamilyView:
    outputs, inputs = LAYERS[layer]
    fixed = {name: value for name, value in linear(1, outputs, inputs).items() if name != ROWS}
    spec = FamilySpec(layer, OPERATOR, fixed, ((ROWS, SWEPT[0], SWEPT[-1], 1),), MOST, TARGET)
    return service.families.make(spec, target="cuda")


def _row(family: Family, chosen: FamilyChoice, tuned: Schedule | None, seed: int) -> Row:
    """Return what the chosen kernel, the tuned one and torch take."""
    stated = {} if family.regret is None else {"stated_mean": family.regret.mean}
    row: Row = {"kernels": len(family.schedules), "place": chosen.place, **stated}
    if tuned is None:
        return {**row, "failed": "no schedule could be timed"}
    workload = TunedOperator(OPERATOR, chosen.parameters).workload
    sets = inputs_sets(workload, minimum_bytes(workload), seed)
    calls: dict[str, Call] = {
        "chosen": ours(workload, chosen.schedule),
        "tuned": ours(workload, tuned),
        "torch": lambda inputs: functional.linear(*inputs),
    }
    wrong = difference(calls["chosen"](sets[0]), calls["torch"](sets[0]))
    times = interleaved(calls, sets, rounds=ROUNDS, seconds=REPLAY_SECONDS)
    failed = {call: told for call, told in times.items() if isinstance(told, str)}
    if failed:
        return {**row, "failed": str(failed)}
    found = {call: [float(t) for t in taken] for call, taken in times.items()}
    middle = {call: median(taken) for call, taken in found.items()}
    torch.cuda.empty_cache()
    return {
        **row,
        **{f"{call}_us": 1e6 * seconds for call, seconds in middle.items()},
        "regret": middle["chosen"] / middle["tuned"] - 1,
        "ratio": middle["torch"] / middle["chosen"],
        "spread": max(map(spread, found.values())),
        "difference": wrong,
        "schedule": chosen.schedule.to_json(),
        "tuned": tuned.to_json(),
    }


def _judged(rows: list[Row], spent: dict[str, float]) -> Result:
    timed = [row for row in rows if "regret" in row]
    regrets = [float(str(row["regret"])) for row in timed]
    summary: dict[str, object] = {
        "rows": len(rows),
        "failed": len(rows) - len(timed),
        "kernels": max((int(str(row["kernels"])) for row in rows), default=0),
        "mean_regret": float(np.mean(regrets)) if regrets else None,
        "p95_regret": float(np.percentile(regrets, 95)) if regrets else None,
        "most_regret": max(regrets, default=None),
        "ratio_geomean": geometric_mean([float(str(row["ratio"])) for row in timed]),
        "least_ratio": min((float(str(row["ratio"])) for row in timed), default=None),
        **spent,
    }
    passed = bool(rows) and len(timed) == len(rows) and float(str(summary["mean_regret"])) <= MEAN
    passed = passed and float(str(summary["p95_regret"])) <= P95 and int(str(summary["kernels"])) <= MOST
    device = open_device("cuda").info
    toolchain = measured_on(DeviceSelector("cuda")).toolchain.components
    versions = {"torch": torch.__version__, "cuda": str(torch.version.cuda), **toolchain}
    about = {"name": device.name, **device.hardware}
    return Result(tuple(rows), summary, passed, {"swept": SWEPT, "held_out": HELD_OUT}, about, versions)
