"""``python -m benchmarks.peers_ahead MODULE ROW LOCK``: compile the peers of one row of a table and leave them in
PyTorch's caches, where the program that times them finds them.

Rows are compiled side by side, each in a process of its own, since most of it is work of the processor. What PyTorch
times to choose from, it times alone: LOCK is held meanwhile.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import torch

from benchmarks.torch_peers import peers

DEVICE = "cuda"
_SECONDS = 150
"""That a row may take; its peers are compiled when they are timed, else."""
_THREADS = {"TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "1"}


def compile_ahead(module: str, rows: Sequence[str]) -> float:
    """Compile the peers of all ``rows`` of a table's ``module``; returns the seconds it took. What fails is told and
    left to the timing."""
    began = time.perf_counter()
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        compiled = pool.map(lambda row: (row, _compiled(module, row, lock.name)), rows)
        import_module("torch._inductor.compile_fx")  # takes seconds, which nobody waits for here
        for row, error in compiled:
            if error:
                print(f"{row}: peers were not compiled ahead: {error}")
    return time.perf_counter() - began


def _compiled(module: str, row: str, lock: str) -> str:
    """Compile one row's peers; why that failed, or nothing."""
    command = [sys.executable, "-m", __name__, module, row, lock]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, env={**os.environ, **_THREADS}
        )
    except subprocess.TimeoutExpired:
        return f"nothing after {_SECONDS} s"
    return "" if done.returncode == 0 else " ".join(done.stderr.strip().splitlines()[-1:])


def _alone(call: Callable[..., Any], path: str) -> Callable[..., Any]:
    """``call`` with the lock held, unless a call that made this one holds it."""
    holders = 0

    def locked(*arguments: Any, **named: Any) -> Any:
        nonlocal holders
        with open(path, "rb") as file:
            if not holders:
                torch.cuda.synchronize()  # our own work is no part of what the others time
                fcntl.flock(file, fcntl.LOCK_EX)
            holders += 1
            try:
                return call(*arguments, **named)
            finally:
                holders -= 1

    return locked


def main() -> None:
    module, name, path = sys.argv[1:]
    row = import_module(module).ROWS[name]
    benchmarker = import_module("torch._inductor.runtime.benchmarking").benchmarker
    for method in ("benchmark", "benchmark_gpu"):
        setattr(benchmarker, method, _alone(getattr(benchmarker, method), path))
    inputs = tuple(torch.rand(b.shape, device=DEVICE).to(getattr(torch, b.dtype.name)) for b in row.workload.inputs)
    given = row.prepare(inputs)
    with torch.no_grad():
        for call in peers(row.peer).values():
            call(given)


if __name__ == "__main__":
    main()
