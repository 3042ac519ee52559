"""NVIDIA's compute-sanitizer on kernels of every CUDA sketch: memcheck and racecheck must find nothing.

Of a sketch of products, schedules that between them have every value of its knobs, every layout, batches and epilogues
(see ``variants``); of the others one. Each kernel runs once in a process of its own under the tool (``python -m
benchmarks.one_launch``). ``--set at_once=N``: how many side by side.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch

from benchmarks.one_launch import case_of, case_to_json, kernels_of
from benchmarks.suite import Options, Result
from benchmarks.variants import variants
from tilewright.core.errors import UnsupportedTarget
from tilewright.core.schedule import KnobValue, Schedule
from tilewright.core.target import Target
from tilewright.runtime.devices import host_target, open_device
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.operators import OPERATORS
from tilewright.te.text import workload_text
from tilewright.te.workload import Workload

TOOLS = ("memcheck", "racecheck")
_SECONDS = 300


@dataclass(frozen=True)
class Case:
    """A kernel to be checked; ``about``: what it is there for."""

    name: str
    workload: Workload
    schedule: Schedule
    about: str = ""
    has: Mapping[str, KnobValue] = field(default_factory=dict)


def run(options: Options) -> Result:
    """Return one row for each kernel and tool; passes when every one is clean."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        raise UnsupportedTarget("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit", field="PATH")
    todo = [(c, t) for c in cases(host_target("cuda"), options.seed) for t in TOOLS]
    todo = [(c, t) for c, t in todo if fnmatch(f"{c.name}-{t}", options.rows)]
    at_once = int(options.extra.get("at_once", len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(at_once) as pool:  # most of a check is the start of a process
        rows = list(pool.map(lambda one: _checked(tool, one[0], one[1], options.seed), todo))
    unclean = [str(r["row"]) for r in rows if not r["clean"]]
    device = open_device("cuda").info
    summary = {"kernels": len(rows), "unclean": unclean}
    return Result(tuple(rows), summary, not unclean, {"at_once": at_once}, {"name": device.name})


def cases(target: Target, seed: int) -> Iterator[Case]:
    """Yield all kernels that are checked."""
    for name in kernels_of(target):
        found = [] if SKETCHES[name].generic else variants(SKETCHES[name], target)
        if not found:
            yield Case(name, *case_of(name, target, seed))
        for number, v in enumerate(found):
            workload = OPERATORS[v.operator].workload(v.parameters)
            yield Case(f"{name}-{number}", workload, v.schedule, v.case, v.has)


def _checked(tool: str, case: Case, check: str, seed: int) -> dict[str, object]:
    """Return one kernel under one tool."""
    command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-m", "benchmarks.one_launch"]
    command += [case_to_json(case.workload, case.schedule), str(seed)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        said = done.stdout.strip().splitlines()[-3:] + done.stderr.strip().splitlines()[-2:]
        clean = done.returncode == 0 and "launched" in done.stdout
    except subprocess.TimeoutExpired:
        said, clean = [f"nothing after {_SECONDS} s"], False
    return {
        "row": f"{case.name}-{check}",
        "about": case.about,
        "has": dict(case.has),
        "workload": workload_text(case.workload),
        "schedule": case.schedule.to_json(),
        "clean": clean,
        "said": said,
    }
