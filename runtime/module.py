"""A tuned kernel in the user's process: a schedule compiled here, called with NumPy arrays, or on device arrays."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codegen.backend import Parameter
from ..codegen.road import build
from ..core.errors import InvalidParameter, UnsupportedTarget
from ..core.schedule import Schedule
from ..core.target import Target
from ..te.workload import Workload
from .cpu import CpuDevice, CpuKernel
from .cuda.module import CudaModule, load_cuda_module

Array = NDArray[Any]


class Module:
    """``module(a, b)`` runs the kernel; arrays go in as they lie in memory, no copy if they are contiguous.

    Safe to call from several threads: calls run one after the other, since they share the workspace.
    """

    def __init__(self, workload: Workload, schedule: Schedule, kernel: CpuKernel) -> None:
        self.workload = workload
        self.schedule = schedule
        self._kernel = kernel
        self._lock = threading.Lock()
        self._parameters = {p.name: p for p in kernel.parameters}
        self._workspace = {p.name: _empty(p) for p in kernel.parameters if p.role == "workspace"}

    def __call__(self, *inputs: Array, out: Sequence[Array] | None = None) -> tuple[Array, ...]:
        """The outputs, in the order of ``workload.outputs``; written into ``out`` where it is given.

        Raises InvalidParameter for a wrong number of arrays, a wrong shape or dtype, or an ``out`` array that is
        not contiguous, not writeable, or overlaps an input.
        """
        names = [b.name for b in self.workload.inputs]
        if len(inputs) != len(names):
            raise InvalidParameter(
                f"{len(inputs)} arrays given, {len(names)} needed: {', '.join(names)}", field="inputs"
            )
        given = {n: _checked_input(self._parameters[n], a) for n, a in zip(names, inputs, strict=True)}
        results = self._outputs(out)
        if out is not None:
            _check_apart(given, results)
        arrays = {**given, **results, **self._workspace}
        with self._lock:
            self._kernel.launch_at([int(arrays[p.name].ctypes.data) for p in self._kernel.parameters])
        return tuple(results[name] for name in self.workload.outputs)

    def _outputs(self, out: Sequence[Array] | None) -> dict[str, Array]:
        names = self.workload.outputs
        if out is None:
            return {name: _empty(self._parameters[name]) for name in names}
        if len(out) != len(names):
            raise InvalidParameter(f"{len(out)} out arrays given, {len(names)} needed: {', '.join(names)}", field="out")
        for name, array in zip(names, out, strict=True):
            _check(self._parameters[name], array)
            if not array.flags.c_contiguous or not array.flags.writeable or not array.flags.aligned:
                raise InvalidParameter(f"out {name} must be contiguous, aligned and writeable", field=name)
        return dict(zip(names, out, strict=True))


def load_module(
    workload: Workload, schedule: Schedule, target: Target | None = None, *, ordinal: int = 0
) -> Module | CudaModule:
    """Compile ``schedule`` for ``target`` (default: this machine's CPU) and load it on its device ``ordinal``.

    Raises IllegalSchedule, CompileError, and UnsupportedTarget where the target cannot run here.
    """
    kind = "llvm" if target is None else target.kind
    if kind not in _LOADERS:
        raise UnsupportedTarget(f"no modules for {target}; known: {', '.join(_LOADERS)}", field="target")
    return _LOADERS[kind](workload, schedule, target, ordinal)


def _load_cpu_module(workload: Workload, schedule: Schedule, target: Target | None, ordinal: int) -> Module:
    device = CpuDevice(target, ordinal)
    return Module(workload, schedule, device.load(build(workload, device.target, schedule)))


_LOADERS: dict[str, Callable[[Workload, Schedule, Target | None, int], Module | CudaModule]] = {
    "llvm": _load_cpu_module,
    "cuda": load_cuda_module,
}
"""Target kind -> how its modules are made."""


def _check_apart(inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
    """A kernel takes it that no two of its arrays overlap, unless it reads both."""
    earlier = {f"input {name}": array for name, array in inputs.items()}
    for name, result in outputs.items():
        for other, array in earlier.items():
            if np.may_share_memory(result, array):
                raise InvalidParameter(f"out {name} overlaps {other}", field=name)
        earlier[f"out {name}"] = result


def _empty(parameter: Parameter) -> Array:
    """Uninitialised, aligned to 64 bytes."""
    block = np.empty(parameter.bytes + 64, dtype=np.uint8)
    offset = -block.ctypes.data % 64
    return block[offset : offset + parameter.bytes].view(parameter.dtype.numpy).reshape(parameter.shape)


def _check(parameter: Parameter, array: Array) -> None:
    if not isinstance(array, np.ndarray):
        raise InvalidParameter(f"{parameter.name} is a {type(array).__name__}, not a NumPy array", field=parameter.name)
    if array.dtype != parameter.dtype.numpy:
        raise InvalidParameter(f"{parameter.name} is {array.dtype}, needed: {parameter.dtype}", field=parameter.name)
    if array.shape != parameter.shape:
        raise InvalidParameter(
            f"{parameter.name} has shape {list(array.shape)}, needed: {list(parameter.shape)}", field=parameter.name
        )


def _checked_input(parameter: Parameter, array: Array) -> Array:
    """``array`` itself, or a contiguous copy of it."""
    _check(parameter, array)
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy()
