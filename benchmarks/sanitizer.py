"""NVIDIA's compute-sanitizer on one kernel of every CUDA sketch: memcheck and racecheck must find nothing.

Each kernel runs once in a process of its own under the tool (``python -m benchmarks.one_launch``).
"""

import shutil
import subprocess
import sys
from fnmatch import fnmatch

from benchmarks.one_launch import case_of, kernels_of
from benchmarks.suite import Options, Result
from tilewright.core.errors import UnsupportedTarget
from tilewright.runtime.devices import host_target, open_device

TOOLS = ("memcheck", "racecheck")
_SECONDS = 300


def run(options: Options) -> Result:
    """One row for each sketch and tool; passes when every one is clean."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        raise UnsupportedTarget("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit", field="PATH")
    target = host_target("cuda")
    rows: list[dict[str, object]] = []
    for sketch in kernels_of(target):
        name, parameters, schedule = case_of(sketch, target, options.seed)
        for check in TOOLS:
            row = f"{sketch}-{check}"
            if not fnmatch(row, options.rows):
                continue
            command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-m", "benchmarks.one_launch"]
            done = subprocess.run(
                [*command, sketch, str(options.seed)], capture_output=True, text=True, timeout=_SECONDS, check=False
            )
            rows.append(
                {
                    "row": row,
                    "operator": name,
                    "parameters": parameters,
                    "schedule": schedule.to_json(),
                    "clean": done.returncode == 0 and "launched" in done.stdout,
                    "said": done.stdout.strip().splitlines()[-3:] + done.stderr.strip().splitlines()[-2:],
                }
            )
    unclean = [str(r["row"]) for r in rows if not r["clean"]]
    device = open_device("cuda").info
    return Result(tuple(rows), {"kernels": len(rows), "unclean": unclean}, not unclean, {}, {"name": device.name})
