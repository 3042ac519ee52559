"""A tuned kernel on device arrays of the user's process."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...codegen.backend import KernelParameter
from ...codegen.lowering import build
from ...core.errors import InvalidParameter
from ...core.schedule import Schedule
from ...core.target import Target
from ...te.workload import Workload
from ..constants import check_constants
from . import arrays
from .arrays import ArrayView, Framework
from .device import CudaDevice
from .driver import call
from .kernel import CudaKernel
from .memory import CudaMemory, array_bytes

_PER_THREAD_STREAM = 2


class CudaModule:
    """``module(a, b)`` runs the kernel on arrays of torch, CuPy or JAX, or on anything with ``__dlpack__`` or
    ``__cuda_array_interface__``. Arrays are used where they lie, without a copy.

    The kernel is put into a stream and not waited for. The stream is ``stream``, or else the current one of the arrays'
    library. JAX does not tell its stream, so that calls on its arrays wait. Outputs are new arrays of the same library
    as the first input, or ``out``. NumPy arrays are copied to the device and the results back, which costs far more
    than most kernels. It is safe to call from several threads; every stream has a workspace of its own.

    Where the workload has dynamic dimensions, the extent of each is that of the first array that has it. ``bind``
    returns a module that need not pack constant inputs, such as weights, in every call.
    """

    def __init__(
        self,
        workload: Workload,
        schedule: Schedule,
        device: CudaDevice,
        kernel: CudaKernel,
        bound: Mapping[str, Any] | None = None,
    ) -> None:
        """``bound`` maps names to the constant inputs that calls are not given."""
        self.workload = workload
        self.schedule = schedule
        self._device = device
        self._kernel = kernel
        self._lock = threading.Lock()
        self._workspaces: dict[tuple[int, int], dict[str, CudaMemory]] = {}
        self._bound = dict(bound or {})
        self._inputs = [b.name for b in workload.inputs if b.name not in self._bound]
        self._constants: dict[str, ArrayView] = {}
        self._prepared: dict[str, CudaMemory] = {}
        self._kept: dict[str, int] = {}
        if self._bound:
            self._prepare()

    def bind(self, **constants: Any) -> "CudaModule":
        """Return a module whose calls take only the other inputs. What the kernel computes from the constant inputs,
        which is mostly a copy in another order, is computed now and used by every call. The arrays must not change any
        more. NumPy arrays are copied to the device.

        Raises InvalidParameter unless ``constants`` are all inputs that the workload marks constant, and where one
        would not be accepted as an input of a call.
        """
        check_constants(self.workload, self._bound, constants)
        return CudaModule(self.workload, self.schedule, self._device, self._kernel, {**self._bound, **constants})

    def _prepare(self) -> None:
        """Run the prologue of the kernel on the constants that are bound, and wait for it."""
        kernel = self._kernel.at_extent(*(d.most for d in self._kernel.dynamic))
        parameters = {p.name: p for p in kernel.parameters}
        for name, array in self._bound.items():
            if isinstance(array, np.ndarray):
                _check_host(parameters[name], array)
                self._bound[name] = self._device.hold(np.ascontiguousarray(array))
        given = {name: array for name, array in self._bound.items() if not isinstance(array, CudaMemory)}
        handle, _ = self._stream_for(arrays.framework_of(next(iter(given.values()), None)), None)
        with self._device.context:
            for name, array in self._bound.items():
                if isinstance(array, CudaMemory):
                    self._constants[name] = ArrayView(array.address, array.nbytes)
                else:
                    self._constants[name] = arrays.view(parameters[name], array, handle, self._device.ordinal)
            self._prepared = {name: self._device.allocate(parameters[name].bytes) for name in kernel.prepared}
            self._kept = {name: kept.address for name, kept in (self._constants | self._prepared).items()}
            kernel.prepare_at([self._kept.get(p.name, 0) for p in kernel.parameters], handle)
            call("cuStreamSynchronize", handle)

    def __call__(self, *inputs: Any, out: Sequence[Any] | None = None, stream: object | None = None) -> tuple[Any, ...]:
        """Return the outputs, in the order of ``workload.outputs``.

        Raises InvalidParameter for a wrong number of arrays, a wrong shape, dtype or device, arrays that are not
        contiguous or not aligned to 16 bytes, and ``out`` arrays that overlap another array. It is also raised where an
        output's library is unknown and no ``out`` is given.
        """
        given = _named("arrays", self._inputs, inputs, "inputs")
        results = None if out is None else _named("out arrays", self.workload.outputs, out, "out")
        if inputs and all(isinstance(a, np.ndarray) for a in inputs):
            return self._on_host(given, results)
        return self._on_device(given, results, stream)

    def _on_device(
        self, given: Mapping[str, Any], results: Mapping[str, Any] | None, stream: object | None
    ) -> tuple[Any, ...]:
        first = next(iter([*given.values(), *(results or {}).values()]), None)
        framework = arrays.framework_of(first)
        handle, wait = self._stream_for(framework, stream)
        ordinal = self._device.ordinal
        with self._device.context:
            kernel = self._kernel_for(given)
            parameters = {p.name: p for p in kernel.parameters}
            views = {name: arrays.view(parameters[name], a, handle, ordinal) for name, a in given.items()}
            written = results is not None
            if results is None:
                if framework is None:
                    raise InvalidParameter(
                        f"no library is known to make outputs like a {type(first).__name__}: give out=", field="out"
                    )
                results = {n: framework.empty(parameters[n], first, handle) for n in self.workload.outputs}
            for name, array in results.items():
                views[name] = arrays.view(parameters[name], array, handle, ordinal, written=written)
            named = {name: f"input {name}" for name in given} | {name: f"constant {name}" for name in self._constants}
            _check_no_overlap(named, results, views | self._constants)
            with self._lock:
                workspace = self._workspace(handle)
            addresses = {n: v.address for n, v in views.items()} | {n: m.address for n, m in workspace.items()}
            self._enqueue(kernel, addresses, handle)
            if wait:
                self._device.stream.wait()
        return tuple(results.values())

    def _enqueue(self, kernel: CudaKernel, addresses: Mapping[str, int], handle: int) -> None:
        known = {**addresses, **self._kept}
        ordered = tuple(known[p.name] for p in kernel.parameters)
        kernel.enqueue(ordered, handle, prepared=bool(self._bound))

    def _kernel_for(self, given: Mapping[str, Any]) -> CudaKernel:
        """Return the kernel for the extents that the arrays have along the dynamic dimensions, if there are some."""
        extents = []
        for dynamic in self._kernel.dynamic:
            name, d = next((name, d) for name in given for place, d in dynamic.places if place == name)
            shape = getattr(given[name], "shape", ())
            if len(shape) <= d:
                raise InvalidParameter(f"{name} is a {type(given[name]).__name__} without dimension {d}", field=name)
            extents.append(int(shape[d]))
        return self._kernel.at_extent(*extents)

    def _stream_for(self, framework: Framework | None, stream: object | None) -> tuple[int, bool]:
        """Return the handle of the stream to use, and whether to wait for it."""
        if stream is not None:
            return arrays.stream_handle(stream), framework is not None and framework.current_stream is None
        if framework is not None and framework.current_stream is not None:
            return framework.current_stream(self._device.ordinal), False
        return int(self._device.stream.handle), True

    def _workspace(self, handle: int) -> Mapping[str, CudaMemory]:
        """Return the workspace of a stream. Launches of one stream follow each other, so that they can share it. The
        per-thread default stream is a different one on each thread."""
        key = (handle, threading.get_ident() if handle == _PER_THREAD_STREAM else 0)
        if key not in self._workspaces:
            needed = [p for p in self._kernel.parameters if p.role == "workspace" and p.name not in self._prepared]
            self._workspaces[key] = {p.name: self._device.allocate(p.bytes) for p in needed}
        return self._workspaces[key]

    def _on_host(self, given: Mapping[str, Any], results: Mapping[str, Any] | None) -> tuple[Any, ...]:
        """Copy NumPy arrays to the device, run, wait, and copy the outputs back."""
        kernel = self._kernel_for(given)
        parameters = {p.name: p for p in kernel.parameters}
        for name, array in given.items():
            _check_host(parameters[name], array)
        for name, array in (results or {}).items():
            _check_host(parameters[name], array)
            if not array.flags.c_contiguous or not array.flags.writeable:
                raise InvalidParameter(f"out {name} must be contiguous and writeable", field=name)
        memories = {name: self._device.hold(np.ascontiguousarray(array)) for name, array in given.items()}
        for parameter in kernel.parameters:
            if parameter.name not in {*memories, *self._constants, *self._prepared}:
                memories[parameter.name] = self._device.allocate(parameter.bytes)
        with self._device.context:
            at = {name: memory.address for name, memory in memories.items()}
            self._enqueue(kernel, at, self._device.stream.handle)
            self._device.stream.wait()
        outputs = []
        for name in self.workload.outputs:
            parameter = parameters[name]
            array = np.empty(parameter.shape, parameter.dtype.numpy) if results is None else results[name]
            array_bytes(array)[...] = memories[name].read()
            outputs.append(array)
        return tuple(outputs)


def load_cuda_module(workload: Workload, schedule: Schedule, target: Target | None, ordinal: int) -> CudaModule:
    """Compile ``schedule`` for ``target`` (default: device ``ordinal``) and load it there.

    Raises IllegalSchedule, CompileError, and UnsupportedTarget where the target cannot run here.
    """
    device = CudaDevice(target, ordinal)
    return CudaModule(workload, schedule, device, device.load(build(workload, device.target, schedule)))


def _named(what: str, names: Sequence[str], given: Sequence[Any], field: str) -> dict[str, Any]:
    if not isinstance(given, Sequence):
        allowed = f"a list of arrays: {', '.join(names)}"
        raise InvalidParameter(f"{field} is of type {type(given).__name__}; allowed: {allowed}", field=field)
    if len(given) != len(names):
        raise InvalidParameter(f"{len(given)} {what} given, {len(names)} needed: {', '.join(names)}", field=field)
    return dict(zip(names, given, strict=True))


def _check_no_overlap(inputs: Mapping[str, str], outputs: Mapping[str, Any], views: Mapping[str, ArrayView]) -> None:
    """A kernel assumes that no two of its arrays overlap, unless it reads both. ``inputs``: what each is called."""
    earlier = dict(inputs)
    for name in outputs:
        for other, words in earlier.items():
            if views[name].overlaps(views[other]):
                raise InvalidParameter(f"out {name} overlaps {words}", field=name)
        earlier[name] = f"out {name}"


def _check_host(parameter: KernelParameter, array: Any) -> None:
    name = parameter.name
    if not isinstance(array, np.ndarray):
        raise InvalidParameter(f"{name} is a {type(array).__name__}, the inputs are NumPy arrays", field=name)
    if array.dtype != parameter.dtype.numpy:
        raise InvalidParameter(f"{name} is {array.dtype}, needed: {parameter.dtype}", field=name)
    if array.shape != parameter.shape:
        raise InvalidParameter(f"{name} has shape {list(array.shape)}, needed: {list(parameter.shape)}", field=name)
