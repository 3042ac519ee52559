"""A tuned kernel in the user's process. A schedule is compiled here and called with NumPy arrays or device arrays."""

import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codegen.lowering import build
from ..core.errors import InvalidParameter, UnsupportedTarget
from ..core.schedule import Schedule
from ..core.target import Target
from ..te.workload import Workload
from .constants import check_constants
from .cpu import CpuDevice, CpuKernel
from .cuda.module import CudaModule, load_cuda_module

Array = NDArray[Any]


class Module:
    """``module(a, b)`` runs the kernel on NumPy arrays. Contiguous arrays are used where they lie, without a copy.

    It is safe to call from several threads: calls share the workspace, so they run one after the other. ``bind``
    returns a module that need not copy constant inputs, such as weights, in every call.
    """

    def __init__(
        self, workload: Workload, schedule: Schedule, kernel: CpuKernel, bound: Mapping[str, Array] | None = None
    ) -> None:
        """``bound`` maps names to the constant inputs that calls are not given."""
        self.workload = workload
        self.schedule = schedule
        self._kernel = kernel
        self._lock = threading.Lock()
        slots = {p.name: ArraySpec(p.name, p.dtype.numpy, p.shape, p.bytes) for p in kernel.parameters}
        self._bound = {name: slots[name].checked_input(array) for name, array in (bound or {}).items()}
        self._inputs = [slots[b.name] for b in workload.inputs if b.name not in self._bound]
        self._outputs = [slots[name] for name in workload.outputs]
        self._workspace = {p.name: slots[p.name].empty() for p in kernel.parameters if p.role == "workspace"}
        names = [*(s.name for s in (*self._inputs, *self._outputs)), *self._bound, *self._workspace]
        self._order = [names.index(p.name) for p in kernel.parameters]
        self._kept_addresses = [_address(a) for a in (*self._bound.values(), *self._workspace.values())]
        if bound is not None:
            kept = dict(zip((*self._bound, *self._workspace), self._kept_addresses, strict=True))
            kernel.prepare_at([kept.get(p.name, 0) for p in kernel.parameters])

    def bind(self, **constants: Array) -> "Module":
        """Return a module whose calls take only the other inputs. What the kernel computes from the constant inputs,
        which is mostly a copy in another order, is computed now and used by every call. The arrays must not change any
        more.

        Raises InvalidParameter unless ``constants`` are all inputs that the workload marks constant, and where one
        would not be accepted as an input of a call.
        """
        check_constants(self.workload, self._bound, constants)
        return Module(self.workload, self.schedule, self._kernel, {**self._bound, **constants})

    def __call__(self, *inputs: Array, out: Sequence[Array] | None = None) -> tuple[Array, ...]:
        """Return the outputs, in the order of ``workload.outputs``. Where ``out`` is given, they are written there.

        Raises InvalidParameter for a wrong number of arrays, a wrong shape or dtype, or an ``out`` array that is not
        contiguous, not writeable, or overlaps an input.
        """
        if len(inputs) != len(self._inputs):
            raise InvalidParameter(
                f"{len(inputs)} arrays given, {len(self._inputs)} needed: {_names(self._inputs)}", field="inputs"
            )
        given = [slot.checked_input(array) for slot, array in zip(self._inputs, inputs, strict=True)]
        results = tuple(slot.empty() for slot in self._outputs) if out is None else self._checked_outputs(out)
        addresses = [_address(array) for array in (*given, *results)]
        if out is not None:
            self._check_no_overlap(addresses)
        addresses += self._kept_addresses
        ordered = [addresses[n] for n in self._order]
        with self._lock:
            if not self._bound:
                self._kernel.prepare_at(ordered)
            self._kernel.launch_prepared_at(ordered)
        return results

    def _checked_outputs(self, out: Sequence[Array]) -> tuple[Array, ...]:
        if not isinstance(out, Sequence):
            raise InvalidParameter(
                f"out is of type {type(out).__name__}; allowed: a list of arrays: {_names(self._outputs)}", field="out"
            )
        if len(out) != len(self._outputs):
            raise InvalidParameter(
                f"{len(out)} out arrays given, {len(self._outputs)} needed: {_names(self._outputs)}", field="out"
            )
        for slot, array in zip(self._outputs, out, strict=True):
            slot.check(array)
            flags = array.flags
            if not (flags.c_contiguous and flags.writeable and flags.aligned):
                raise InvalidParameter(f"out {slot.name} must be contiguous, aligned and writeable", field=slot.name)
        return tuple(out)

    def _check_no_overlap(self, addresses: Sequence[int]) -> None:
        """A kernel assumes that no two of its arrays overlap, unless it reads both."""
        count = len(self._inputs)
        earlier = [(f"input {s.name}", at, at + s.nbytes) for s, at in zip(self._inputs, addresses, strict=False)]
        earlier += [(f"constant {n}", _address(a), _address(a) + a.nbytes) for n, a in self._bound.items()]
        for slot, begin in zip(self._outputs, addresses[count:], strict=True):
            end = begin + slot.nbytes
            for other, first, last in earlier:
                if begin < last and first < end:
                    raise InvalidParameter(f"out {slot.name} overlaps {other}", field=slot.name)
            earlier.append((f"out {slot.name}", begin, end))


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What one array of a call must be."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int

    def empty(self) -> Array:
        """Return an uninitialised array, aligned to 64 bytes."""
        block = np.empty(self.nbytes + 64, dtype=np.uint8)
        offset = -_address(block) % 64
        return block[offset : offset + self.nbytes].view(self.dtype).reshape(self.shape)

    def check(self, array: Array) -> None:
        """Raise InvalidParameter unless the array fits."""
        if not isinstance(array, np.ndarray):
            raise InvalidParameter(f"{self.name} is a {type(array).__name__}, not a NumPy array", field=self.name)
        if array.dtype != self.dtype:
            raise InvalidParameter(f"{self.name} is {array.dtype}, needed: {self.dtype}", field=self.name)
        if array.shape != self.shape:
            raise InvalidParameter(
                f"{self.name} has shape {list(array.shape)}, needed: {list(self.shape)}", field=self.name
            )

    def checked_input(self, array: Array) -> Array:
        """Return ``array`` itself, or a contiguous copy of it."""
        self.check(array)
        flags = array.flags
        return array if flags.c_contiguous and flags.aligned else array.copy()


def _names(slots: Sequence[ArraySpec]) -> str:
    return ", ".join(slot.name for slot in slots)


def _address(array: Array) -> int:
    """Return the address of the first element. The buffer protocol, for arrays that are writeable, is four times as
    fast."""
    try:
        return addressof(c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return int(array.ctypes.data)


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
"""This maps the kind of a target to how its modules are made."""
