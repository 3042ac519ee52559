"""Bar: after 50 illegal accesses, 50 hangs and 20 launch failures on a device, each only that candidate has failed, the
good kernel after it times as before, and no process is left. ``--set illegal=N``, ``hangs=N``, ``launch-failures=N``
for other numbers. Needs a CUDA device."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import cycle, islice
from statistics import median

import psutil

from benchmarks.suite import Options, Result
from tilewright.core.schedule import Schedule
from tilewright.core.target import Profile
from tilewright.core.trial import Failed, Timed, Trial
from tilewright.runtime.devices import host_target
from tilewright.tests.workers.faulty_cuda import HANGS, ILLEGAL, LAUNCH_FAILURES, VERDICTS, add_one, schedule
from tilewright.workers.local import LocalExecutor
from tilewright.workers.settings import Deadlines, ExecutorSettings, settings_for

_BAND = 0.03
"""A good kernel whose median is this close to the median of those before any fault (relative) times as before."""
_BEFORE = 8


@dataclass(frozen=True)
class Kind:
    """A way of going wrong: the kernels that do, and how often one is injected by default."""

    faults: Sequence[str]
    count: int


KINDS = {
    "illegal": Kind(ILLEGAL, 50),
    "hangs": Kind(HANGS, 50),
    "launch-failures": Kind(LAUNCH_FAILURES, 20),
}


def run(options: Options) -> Result:
    """Every fault is followed by a good kernel, all on one executor as a job would have it."""
    deadlines = Deadlines(check=2.0, time=2.0, load=10.0)
    settings = settings_for("cuda", deadlines)
    settings = ExecutorSettings(
        "tilewright.tests.workers.faulty_cuda:build", deadlines, settings.timing, builders=settings.builders
    )
    started = time.perf_counter()
    with LocalExecutor(host_target("cuda"), profile=Profile("cold"), settings=settings) as executor:
        before = [_seconds(t) for t in _measure(executor, [schedule("good", -n) for n in range(1, _BEFORE + 1)])]
        usual = median(before)
        rows = [
            _inject(executor, name, kind.faults, int(options.extra.get(name, kind.count)), usual)
            for name, kind in KINDS.items()
            if fnmatch(name, options.rows)
        ]
        family = psutil.Process().children(recursive=True)
        info = executor.measured_on.device
    _, left = psutil.wait_procs(family, timeout=20)
    summary = {
        "good_before_us": 1e6 * usual,
        "misjudged": sum(len(_list(r["misjudged"])) for r in rows),
        "good_failed": sum(int(str(r["good_failed"])) for r in rows),
        "slowest_good_ratio": max((float(str(r["slowest_good_ratio"])) for r in rows), default=1.0),
        "processes_left": len(left),
        "seconds": time.perf_counter() - started,
    }
    passed = not left and all(r["met"] for r in rows)
    return Result(tuple(rows), summary, passed, {"band": _BAND}, {"name": info.name, **info.hardware})


def _inject(executor: LocalExecutor, name: str, faults: Sequence[str], count: int, usual: float) -> dict[str, object]:
    chosen = list(islice(cycle(faults), count))
    schedules = [s for n, fault in enumerate(chosen) for s in (schedule(fault, n), schedule("good", n))]
    began = time.perf_counter()
    trials = _measure(executor, schedules)
    misjudged = [
        _said(fault, trial) for fault, trial in zip(chosen, trials[::2], strict=True) if _is_other(fault, trial)
    ]
    good = [t.outcome for t in trials[1::2]]
    ratios = [o.seconds / usual for o in good if isinstance(o, Timed)]
    off = [r for r in ratios if not 1 / (1 + _BAND) <= r <= 1 + _BAND]
    failed = [str(o) for o in good if not isinstance(o, Timed)]
    print(f"{name}: {count} injected, {len(misjudged)} misjudged, {len(failed)} good ones failed", flush=True)
    return {
        "row": name,
        "injected": count,
        "misjudged": misjudged,
        "good_failed": len(failed),
        "good_failures": failed[:3],
        "good_out_of_band": len(off),
        "fastest_good_ratio": min(ratios, default=0.0),
        "slowest_good_ratio": max(ratios, default=0.0),
        "seconds_each": (time.perf_counter() - began) / max(count, 1),
        "met": not misjudged and not failed and not off,
    }


def _measure(executor: LocalExecutor, schedules: Sequence[Schedule]) -> list[Trial]:
    found = dict(executor.measure(add_one(), schedules))
    return [found[n] for n in range(len(schedules))]


def _seconds(trial: Trial) -> float:
    if not isinstance(trial.outcome, Timed):
        raise RuntimeError(f"the good kernel does not run here: {trial.outcome}")
    return trial.outcome.seconds


def _is_other(fault: str, trial: Trial) -> bool:
    """Return whether it was reported as something else than it is."""
    outcome = trial.outcome
    return not isinstance(outcome, Failed) or (outcome.stage, outcome.reason) != VERDICTS[fault]


def _said(fault: str, trial: Trial) -> str:
    return f"{fault}: {trial.outcome}"


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value
