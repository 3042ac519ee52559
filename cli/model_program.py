"""Model files as programs, and whole runs of a program that are timed on this processor."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..core.errors import InvalidParameter, TilewrightError
from ..core.schedule import Schedule
from ..core.streams import stream
from ..core.target import Target
from ..graph.graph import Node
from ..graph.operators.operator import Array
from ..graph.partition import ForeignCall
from ..graph.program import Program, compile_program
from ..runtime.cpu import CpuDevice
from ..runtime.kernels import ProgramKernel, load_kernels
from ..runtime.numpy_tensors import NumpyTensors
from ..runtime.program import BoundProgram
from ..schedule.defaults import has_class

WARM_UP = 3
STABLEHLO = (".mlir", ".mlirbc", ".stablehlo")
"""What names of files with StableHLO modules end with."""

Foreign = Callable[[Node], Callable[[Sequence[Array]], Sequence[Array]]]


class NoKernel(TilewrightError):
    """A program has a part that neither a kernel nor NumPy computes."""

    code = "NO_KERNEL"


@dataclass(frozen=True, slots=True)
class ModelProgram:
    """A program, and the data of its constants in order."""

    program: Program
    weights: tuple[Array, ...]
    foreign: Foreign | None = None
    """What computes a foreign node here, if anything does."""

    def labels(self) -> Mapping[str, str]:
        """Return what each workload is, by key: the operators of the first kernel that computes it."""
        found: dict[str, str] = {}
        for key, call in zip(self.program.kernel_keys, self.program.kernels, strict=True):
            found.setdefault(key, " ".join(self.program.graph.producers[name].op for name in call.nodes))
        return found

    def foreign_calls(self) -> Mapping[str, int]:
        """Return the operators that no kernel computes, and how often each occurs."""
        return Counter(str(c.node.attributes["target"]) for c in self.program.calls if isinstance(c, ForeignCall))


def read_model(path: Path, dims: Sequence[str], target: Target) -> ModelProgram:
    """Read an ONNX file, or one of StableHLO by its name, as a program for ``target``. ``dims`` are NAME=NUMBER, for
    ONNX. Raises InvalidParameter for a file that cannot be read, and UnsupportedModel."""
    named = dict(_dim(text) for text in dims)
    foreign: Foreign | None = None
    package = "jax" if path.suffix in STABLEHLO else "onnx"
    try:
        if package == "onnx":
            from ..importers.onnx.model import load_onnx

            imported = load_onnx(path, named)
        else:
            from ..importers.stablehlo.foreign import xla_function as foreign
            from ..importers.stablehlo.model import load_stablehlo

            if named:
                raise InvalidParameter("a StableHLO module has shapes of its own", field="dim")
            imported = load_stablehlo(path)
    except ImportError as error:
        install = "'tilewright[stablehlo]'" if package == "jax" else package
        message = f"to read {path.name}, the package {package} is needed: pip install {install}"
        raise InvalidParameter(message, field="file") from error
    program = compile_program(imported.graph, lambda w: has_class(w, target), gpu=target.kind == "cuda")
    return ModelProgram(program, tuple(imported.weights[v.name] for v in program.graph.constants), foreign)


def _dim(text: str) -> tuple[str, int]:
    name, equals, number = text.partition("=")
    if not equals or not number.isdecimal():
        raise InvalidParameter(f"{text!r} is no dimension; write NAME=NUMBER", field="dim")
    return name, int(number)


def time_programs(
    model: ModelProgram, schedules: Mapping[str, Schedule], runs: int
) -> tuple[float, float, dict[str, ProgramKernel]]:
    """Time whole runs with ``schedules`` and with default ones alone, interleaved, on the same random inputs. Return
    the median of each in seconds, and the kernels of the first. Raises NoKernel."""
    device = CpuDevice()
    workloads = {key: task.workload for key, task in model.program.tasks.items()}
    tuned, default = (load_kernels(workloads, given, device) for given in (schedules, {}))
    run_tuned, run_default = (_runner(model, kernels) for kernels in (tuned, default))
    seconds: tuple[list[float], list[float]] = ([], [])
    for n in range(WARM_UP + runs):
        for run, kept in ((run_tuned, seconds[0]), (run_default, seconds[1])):
            began = time.perf_counter()
            run()
            if n >= WARM_UP:
                kept.append(time.perf_counter() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1]), tuned


def _runner(model: ModelProgram, kernels: Mapping[str, ProgramKernel]) -> Callable[[], object]:
    missing = set(model.program.tasks) - set(kernels)
    if missing or (model.foreign_calls() and model.foreign is None):
        raise NoKernel(f"{len(missing)} workloads have no kernel here, and these are foreign: {model.foreign_calls()}")
    bound = BoundProgram(model.program, {key: k.kernel for key, k in kernels.items()}, NumpyTensors(model.foreign))
    inputs = [_random(v.tensor.shape, v.dtype.numpy, n) for n, v in enumerate(model.program.graph.inputs)]
    weights = list(model.weights)
    return lambda: bound(inputs, weights)


def _random(shape: tuple[int, ...], dtype: "np.dtype[np.generic]", number: int) -> Array:
    random = stream(number, "model input")
    if dtype.kind in "iub":
        return random.integers(0, 2, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)
