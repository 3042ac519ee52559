"""NVIDIA's compute-sanitizer on one kernel of every CUDA sketch: memcheck and racecheck must find nothing.

Each kernel runs once in a process of its own under the tool (``python -m benchmarks.one_launch``).
"""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch

from benchmarks.one_launch import case_of, kernels_of
from benchmarks.suite import Options, Result
from tilewright.core.errors import UnsupportedTarget
from tilewright.core.target import Target
from tilewright.runtime.devices import host_target, open_device

TOOLS = ("memcheck", "racecheck")
_SECONDS = 300
_AT_ONCE = 6
"""Kernels that are checked side by side: most of a check is the start of a process."""


def run(options: Options) -> Result:
    """One row for each sketch and tool; passes when every one is clean."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        raise UnsupportedTarget("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit", field="PATH")
    target = host_target("cuda")
    cases = [(s, c) for s in kernels_of(target) for c in TOOLS if fnmatch(f"{s}-{c}", options.rows)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        rows = list(pool.map(lambda case: _checked(tool, case[0], case[1], target, options.seed), cases))
    unclean = [str(r["row"]) for r in rows if not r["clean"]]
    device = open_device("cuda").info
    return Result(tuple(rows), {"kernels": len(rows), "unclean": unclean}, not unclean, {}, {"name": device.name})


def _checked(tool: str, sketch: str, check: str, target: Target, seed: int) -> dict[str, object]:
    """One kernel of a sketch under one tool."""
    name, parameters, schedule = case_of(sketch, target, seed)
    command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-m", "benchmarks.one_launch"]
    done = subprocess.run([*command, sketch, str(seed)], capture_output=True, text=True, timeout=_SECONDS, check=False)
    return {
        "row": f"{sketch}-{check}",
        "operator": name,
        "parameters": parameters,
        "schedule": schedule.to_json(),
        "clean": done.returncode == 0 and "launched" in done.stdout,
        "said": done.stdout.strip().splitlines()[-3:] + done.stderr.strip().splitlines()[-2:],
    }
