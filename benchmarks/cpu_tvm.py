"""TVM's MetaSchedule as a peer, with as many trials as ours, on the rows where it comes nearest to the others.

Tuning runs in a process of its own (``python -m benchmarks.cpu_tvm ROW TRIALS SEED THREADS FOLDER``), which may crash;
what it leaves is a shared library with the best kernel. apache-tvm 0.27 works with apache-tvm-ffi 0.1.14 (later ones
crash when tuning begins), and wants xgboost, psutil and cloudpickle.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from benchmarks.cpu_peers import Call, Inputs

_SECONDS = 1200
"""For tuning a row; it is left out after that."""
_PATIENCE_SECONDS = 120
"""With the 30 s that a build has by default, all of a batch fail where its imports alone take that long."""


def version() -> str | None:
    """None where it is not installed."""
    return metadata.version("apache-tvm") if find_spec("tvm") is not None else None


def call_for(row: str, trials: int, seed: int, threads: int, inputs: Inputs) -> Call | str:
    """Return the best kernel of a row of ``ROWS``, after tuning it now, or why there is none."""
    if version() is None:
        return "apache-tvm is not installed"
    with tempfile.TemporaryDirectory() as folder:
        module = f"{__package__}.{Path(__file__).stem}"
        command = [sys.executable, "-m", module, row, str(trials), str(seed), str(threads), folder]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            return f"tuning took over {_SECONDS} s"
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
            return f"tuning failed: {lines[-1]}"
        tvm = import_module("tvm")
        function = tvm.runtime.load_module(str(Path(folder) / "best.so"))["main"]
    shapes = [tuple(int(extent) for extent in t.shape) for t in ROWS[row](tvm.te)]
    arguments = [tvm.runtime.tensor(a.reshape(shape)) for a, shape in zip(inputs, shapes, strict=False)]
    arguments.append(out := tvm.runtime.empty(shapes[-1], "float32"))

    def call() -> object:
        function(*arguments)
        return out

    return call


def _products(te: Any) -> list[Any]:
    a, b = te.placeholder((16, 128, 128), name="A"), te.placeholder((16, 128, 64), name="B")
    k = te.reduce_axis((0, 128), "k")
    return [a, b, te.compute((16, 128, 64), lambda n, i, j: te.sum(a[n, i, k] * b[n, k, j], axis=k), name="C")]


def _convolution(te: Any) -> list[Any]:
    topi = import_module("tvm.topi")
    x, w = te.placeholder((1, 64, 56, 56), name="X"), te.placeholder((64, 64, 3, 3), name="W")
    return [x, w, topi.nn.conv2d_nchw(x, w, 1, 1, 1)]


def _depthwise(te: Any) -> list[Any]:
    topi = import_module("tvm.topi")
    x, w = te.placeholder((1, 128, 56, 56), name="X"), te.placeholder((128, 1, 3, 3), name="W")
    return [x, w, topi.nn.depthwise_conv2d_nchw(x, w, 1, 1, 1)]


ROWS: Mapping[str, Callable[[Any], list[Any]]] = {
    "batch_matmul-16x128x64x128": _products,
    "conv2d-56": _convolution,
    "depthwise-56": _depthwise,
}
"""Row -> its tensors by ``tvm.te``, the result last."""


def _tune(row: str, trials: int, seed: int, threads: int, folder: Path) -> None:
    tvm, schedules = import_module("tvm"), import_module("tvm.s_tir.meta_schedule")
    tensors = ROWS[row](tvm.te)
    module = tvm.IRModule({"main": tvm.te.create_prim_func(tensors)})
    target = tvm.target.Target({"kind": "llvm", "mcpu": llvm.get_host_cpu_name(), "num-cores": threads})
    patience = {
        "builder": schedules.builder.LocalBuilder(timeout_sec=_PATIENCE_SECONDS),
        "runner": schedules.runner.LocalRunner(timeout_sec=_PATIENCE_SECONDS),
    }
    found = schedules.tune_tir(module, target, str(folder), trials, num_tuning_cores=threads, seed=seed, **patience)
    schedule = schedules.tir_integration.compile_tir(found, module, target)
    if schedule is None:
        raise RuntimeError("no trial succeeded")
    tvm.compile(schedule.mod, target).export_library(str(folder / "best.so"))


if __name__ == "__main__":
    name, trials, seed, threads, where = sys.argv[1:]
    _tune(name, int(trials), int(seed), int(threads), Path(where))
