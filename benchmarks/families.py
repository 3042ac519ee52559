"""Shape families on recorded sweeps: what few kernels for 1 to 8192 rows cost, and how fast their dispatchers are.

A row is a layer of ``benchmarks/data/sweep`` (``record --rows 'sweep-*'``), of an H200. Its family has at most ``most``
(8) kernels and serves all numbers of rows. Legal is what the sketches say at every single one. Columns:

    mean, p95, most      regret at every third recorded number of rows, which the dispatcher was not made from: how much
                         slower the kernel that it chooses is than the fastest of all that were recorded there
    folds_mean, …        the same at all of them but the first and the last one, each held out once, in three thirds
    known_mean, …        regret of the family itself, at those that it was made from
    cover_mean, …        regret of the best of as many kernels at each recorded number of rows, where these are chosen
                         for it: with a perfect dispatcher, and nothing held out
    c_ns, python_ns      a call of the generated dispatcher: the median over repetitions of calls at random numbers of
                         rows, each of which waits for the one before

``--set folder=``, ``--set most=N``, ``--set target=R`` (0.005): a mean regret that is small enough for fewer kernels.
``--set device=1`` shows families on a device instead (``families_device``). Bars: at most 8 kernels; a mean of 2 % and
a 95th percentile of 5 % at shapes that were held out; a call in C takes less than a microsecond.
"""

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from tilewright.benchmarks.recorded_tables import FOLDER, SUFFIX, SWEEP
from tilewright.benchmarks.suite import Options, Result
from tilewright.core.renamed import current
from tilewright.core.schedule import Schedule
from tilewright.core.target import DeviceInfo, Target
from tilewright.core.trial import Timed
from tilewright.search.families.cover import covering_set
from tilewright.search.families.emit import dispatcher_in_c, dispatcher_in_python
from tilewright.search.families.expected import Learn
from tilewright.search.families.family import HELD_OUT, Family, fitted_family, make_family, regret_at
from tilewright.search.families.shapes import Dimension, Shape, ShapeTable
from tilewright.search.recorded import read_table
from tilewright.search.t4 import read_document
from tilewright.service.family_times import FamilyTimes
from tilewright.service.family_views import FamilySpec

RECORDED = FOLDER / SWEEP
ROWS = "rows"
MOST, TARGET = 8, 0.005
MEAN, P95, NANOSECONDS = 0.02, 0.05, 1000.0
CALLS, REPETITIONS = 1 << 12, 31


@dataclass(frozen=True)
class Sweep:
    """All that was recorded of a layer."""

    parameters: Mapping[str, object]
    device: DeviceInfo
    times: Mapping[Shape, Mapping[Schedule, float]]

    @property
    def spec(self) -> FamilySpec:
        low, high = (end(shape[0] for shape in self.times) for end in (min, max))
        fixed = {name: value for name, value in self.parameters.items() if name != ROWS}
        return FamilySpec(f"{fixed['outputs']}x{fixed['inputs']}", "linear", fixed, ((ROWS, low, high, 1),))


def run(options: Options) -> Result:
    """Return one row for each layer whose name matches."""
    if options.extra.get("device") == "1":
        result: Result = import_module("benchmarks.families_device").run(options)
        return result
    most, target = int(options.extra.get("most", MOST)), float(options.extra.get("target", TARGET))
    found = sweeps(Path(options.extra.get("folder", RECORDED)))
    rows = []
    for sweep in found:
        if fnmatch(sweep.spec.name, options.rows):
            rows.append(_row(sweep, most, target))
            print(rows[-1], flush=True)
    columns = ("kernels", "mean", "p95", "folds_mean", "folds_p95", "c_ns")
    worst = {name: max((float(str(row[name])) for row in rows), default=None) for name in columns}
    passed = bool(rows) and all(
        float(str(row[name])) <= bar
        for row in rows
        for name, bar in (("kernels", MOST), ("mean", MEAN), ("p95", P95), ("c_ns", NANOSECONDS))
    )
    devices = {"name": ", ".join(sorted({sweep.device.name for sweep in found}))}
    return Result(tuple(rows), {"layers": len(rows), **worst}, passed, {"most": most, "target": target}, devices)


def sweeps(folder: Path) -> list[Sweep]:
    """Return the layers of a folder of sweeps, without tables that are not complete. Raises ValueError where one was
    recorded on several devices."""
    times: dict[str, dict[Shape, dict[Schedule, float]]] = {}
    about: dict[str, tuple[Mapping[str, object], DeviceInfo]] = {}
    for path in sorted(folder.glob(f"{SWEEP}-*{SUFFIX}")):
        head, table = read_document(path)["metadata"], read_table(path)
        if head.get("complete") is False:
            continue
        parameters, device = head["parameters"], head["device"]
        target = Target(**{**device["target"], "features": tuple(device["target"]["features"])})
        info = DeviceInfo(device["name"], target, device["hardware"])
        layer = f"{parameters['outputs']}x{parameters['inputs']}"
        if about.setdefault(layer, (parameters, info))[1] != info:
            raise ValueError(f"{path.name} was recorded on another device than other tables of its layer")
        here = times.setdefault(layer, {}).setdefault((parameters[ROWS],), {})
        for row, outcome in enumerate(table.outcomes):
            schedule = table.space.schedule(row)
            if isinstance(outcome, Timed):
                here[Schedule(*current(schedule.sketch, schedule.version, dict(schedule.knobs)))] = outcome.seconds
    return [Sweep(*about[layer], found) for layer, found in times.items()]


def _row(sweep: Sweep, most: int, target: float) -> dict[str, object]:
    spec = sweep.spec
    known = FamilyTimes(spec, sweep.device)
    table, learn = known.table(sweep.times), known.learn
    began = time.process_time()
    family = make_family(spec.dimensions, table, learn, most=most, target=target)
    made = time.process_time() - began
    at_known = regret_at(family, table)
    if family.regret is None or at_known is None:
        raise ValueError(f"{spec.name}: too few settings were recorded at many numbers of rows")
    best = table.regret[:, covering_set(table.regret, most, 0.0)].min(axis=1)
    return {
        "row": spec.name,
        "shapes": len(table.shapes),
        "settings": int(np.isfinite(table.seconds).sum()),
        "kernels": len(family.schedules),
        **{"held_out": family.regret.shapes, "mean": family.regret.mean, "p95": family.regret.p95},
        "most": family.regret.most,
        **_figures("folds", _folds(spec.dimensions, table, learn, most, target)),
        **{"known_mean": at_known.mean, "known_p95": at_known.p95, "known_most": at_known.most},
        **_figures("cover", best),
        **_dispatchers(family),
        "made_cpu_s": made,
        "schedules": [schedule.to_json() for schedule in family.schedules],
    }


def _folds(
    dimensions: Sequence[Dimension], table: ShapeTable, learn: Learn, most: int, target: float
) -> NDArray[np.float64]:
    """Return the regrets at shapes that are held out in turns."""
    found: list[float] = []
    for first in range(1, 1 + HELD_OUT):
        held_out = list(range(first, len(table.shapes) - 1, HELD_OUT))
        kept = [n for n in range(len(table.shapes)) if n not in held_out]
        family = fitted_family(dimensions, table.rows(kept), learn, most, target)
        places = [table.schedules.index(schedule) for schedule in family.schedules]
        found += [table.regret[n, places[family.choose(table.shapes[n])]] for n in held_out]
    regrets: NDArray[np.float64] = np.array([regret for regret in found if np.isfinite(regret)])
    return regrets


def _figures(name: str, regrets: NDArray[np.float64]) -> dict[str, object]:
    mean, p95, most = regrets.mean(), np.percentile(regrets, 95), regrets.max()
    return {f"{name}_mean": float(mean), f"{name}_p95": float(p95), f"{name}_most": float(most)}


_TIMER = """
#include <stdint.h>
#include <time.h>
int choose_schedule(int64_t rows);
double time_calls(const int64_t *rows, int64_t calls, int64_t *sum) {
    struct timespec begin, end;
    int64_t i, place = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (i = 0; i < calls; i++) place = choose_schedule(rows[(i + place) % calls]), *sum += place;
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec);
}
"""
"""Which call is next depends on the result of the one before, and the dispatcher is compiled apart."""


def _dispatchers(family: Family) -> dict[str, object]:
    """Return how long calls of the generated dispatchers take, in nanoseconds. Both choose as the family does, at every
    shape, or this raises ValueError."""
    (dimension,) = family.dimensions
    drawn = np.random.default_rng(0).integers(dimension.low, dimension.high + 1, CALLS)
    space: dict[str, Callable[[int], int]] = {}
    exec(dispatcher_in_python(family, "choose_schedule"), space)
    in_python = space["choose_schedule"]
    with tempfile.TemporaryDirectory() as folder:
        library = _compiled(family, Path(folder))
        in_c, timer = library.choose_schedule, library.time_calls
        in_c.argtypes = [ctypes.c_int64]
        timer.restype, timer.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
        for rows in dimension.extents:
            if not in_c(rows) == in_python(rows) == family.choose((rows,)):
                raise ValueError(f"the dispatchers disagree at {rows} rows")
        given, total = np.ascontiguousarray(drawn, np.int64), ctypes.c_int64(0)
        times = [timer(given.ctypes.data, CALLS, ctypes.byref(total)) / CALLS for _ in range(REPETITIONS)]
    listed = drawn.tolist()
    return {"c_ns": median(times), "python_ns": median(_python_ns(in_python, listed) for _ in range(REPETITIONS))}


def _python_ns(choose: Callable[[int], int], drawn: Sequence[int]) -> float:
    began = time.perf_counter_ns()
    for rows in drawn:
        choose(rows)
    return (time.perf_counter_ns() - began) / len(drawn)


def _compiled(family: Family, folder: Path) -> ctypes.CDLL:
    compiler = next((c for c in map(shutil.which, ("cc", "gcc", "clang")) if c), None)
    if compiler is None:
        raise ValueError("there is no C compiler: cc, gcc or clang")
    sources = {"dispatcher.c": dispatcher_in_c(family, "choose_schedule"), "timer.c": _TIMER}
    for name, text in sources.items():
        (folder / name).write_text(text)
    library = folder / "dispatcher.so"
    files = [str(folder / name) for name in sources]
    subprocess.run([compiler, "-O2", "-std=gnu99", "-shared", "-fPIC", *files, "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))
