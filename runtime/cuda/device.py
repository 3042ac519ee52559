"""NVIDIA graphics processors as devices."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ...codegen.backend import CompiledKernel
from ...core.dtypes import DType
from ...core.errors import InvalidParameter, UnsupportedTarget
from ...core.target import DeviceInfo, Target
from ..device import Comparison, Memory, PatternMatches
from . import nvml, peaks
from .checks import MemoryChecks
from .driver import DriverDevice, PrimaryContext, call, device_count
from .kernel import CudaKernel
from .launch import CudaGraph, EventTimer
from .memory import CudaMemory, CudaStream, DeviceAllocation, Transfers, array_bytes
from .peaks import MeasurementResources

VECTOR_BYTES = 16

_ARCHITECTURES: dict[int, Mapping[int, str]] = {8: {0: "sm_80", 9: "sm_89"}, 9: {0: "sm_90a"}, 10: {0: "sm_100a"}}
"""This maps a major compute capability to its architectures, each by the least minor one. Code also runs on later
minor ones of the same major, unless the name of its architecture ends in a letter: such code runs on that
architecture only (CUDA C++ Programming Guide, "Compute Capabilities")."""

_COLUMNS = {
    "cores": "MULTIPROCESSOR_COUNT",
    "multiprocessors": "MULTIPROCESSOR_COUNT",
    "warp_threads": "WARP_SIZE",
    "threads_per_block": "MAX_THREADS_PER_BLOCK",
    "threads_per_multiprocessor": "MAX_THREADS_PER_MULTIPROCESSOR",
    "blocks_per_multiprocessor": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "registers_per_block": "MAX_REGISTERS_PER_BLOCK",
    "registers_per_multiprocessor": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "shared_bytes_per_block": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "shared_bytes_per_multiprocessor": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "reserved_shared_bytes_per_block": "RESERVED_SHARED_MEMORY_PER_BLOCK",
    "l2_bytes": "L2_CACHE_SIZE",
    "constant_bytes": "TOTAL_CONSTANT_MEMORY",
    "memory_bus_bits": "GLOBAL_MEMORY_BUS_WIDTH",
    "copy_engines": "ASYNC_ENGINE_COUNT",
}
"""This maps a column to the driver's attribute. None of them depends on a setting, the driver's version or the last
boot."""
_KILOHERTZ = {"clock_hertz": "CLOCK_RATE", "memory_clock_hertz": "MEMORY_CLOCK_RATE"}
_GIB = 1 << 30


class CudaDevice:
    """An NVIDIA device; see ``runtime.device.Device``. Opening it retains its primary context in this process, which
    takes a fifth of a second. Only one thread at a time may use it."""

    def __init__(self, target: Target | None = None, ordinal: int = 0) -> None:
        """``target`` defaults to the whole device. One with fewer multiprocessors, or an earlier architecture whose
        code runs here, is allowed. Raises UnsupportedTarget where there is no driver, no such device, or no memory
        for a context."""
        self._driver_device = DriverDevice(ordinal)
        host = _target(self._driver_device)
        self.target = target or host
        _check_target(self.target, host, self._driver_device.capability)
        self._info = _info(self._driver_device, self.target)
        self._context = PrimaryContext(self._driver_device)
        self._stream = CudaStream(self._context)
        self._timer = EventTimer(self._stream)
        self._transfers = Transfers(self._stream)
        self._checks = MemoryChecks(self._stream, self._transfers, host)
        self._bus_id = self._driver_device.bus_id
        self._uuid = _uuid(self._driver_device)

    @property
    def info(self) -> DeviceInfo:
        return self._info

    @property
    def lock_name(self) -> str:
        return self._uuid

    @property
    def ordinal(self) -> int:
        """The number of the device on this machine, as the driver counts."""
        return self._driver_device.ordinal

    @property
    def context(self) -> PrimaryContext:
        return self._context

    @property
    def stream(self) -> CudaStream:
        """The stream of the device's own work."""
        return self._stream

    def allocate(self, nbytes: int) -> CudaMemory:
        if nbytes < 0:
            raise InvalidParameter(f"{nbytes} bytes; allowed: 0 and more", field="nbytes")
        allocation = DeviceAllocation(self._context, nbytes)
        return CudaMemory(self._transfers, allocation.address, nbytes, allocation)

    def hold(self, data: NDArray[np.generic]) -> CudaMemory:
        memory = self.allocate(data.nbytes)
        memory.write(array_bytes(data))
        return memory

    def fill(self, memory: Memory, pattern: bytes) -> None:
        self._checks.fill(self._own(memory), pattern)

    def copy(self, into: Memory, source: Memory) -> None:
        target, origin = self._own(into), self._own(source)
        if target.nbytes != origin.nbytes:
            raise InvalidParameter(f"{origin.nbytes} bytes written to a span of {target.nbytes}", field="source")
        with self._context:
            if origin.nbytes:
                call("cuMemcpyDtoDAsync", target.address, origin.address, origin.nbytes, self._stream.handle)
            self._stream.wait()

    def sweep(self, memory: Memory) -> None:
        self._checks.sweep(self._own(memory))

    def changed(self, memory: Memory, pattern: bytes) -> tuple[int, int] | None:
        return self._checks.changed(self._own(memory), pattern)

    def differs(self, memory: Memory, other: Memory) -> bool:
        return self._checks.differs(self._own(memory), self._own(other))

    def matching(self, memory: Memory, pattern: bytes, among: PatternMatches | None = None) -> PatternMatches:
        return self._checks.matching(self._own(memory), pattern, among)

    def compare(self, got: Memory, dtype: DType, want: Memory, absolute: float, relative: float) -> Comparison:
        return self._checks.compare(self._own(got), dtype, self._own(want), absolute, relative)

    def environment(self) -> dict[str, float]:
        return nvml.environment(self._bus_id)

    def load(self, binary: CompiledKernel) -> CudaKernel:
        return CudaKernel(self._stream, self._timer, binary)

    def capture(self, enqueue: Callable[[int], None]) -> Callable[[int], None]:
        """Return what puts all that ``enqueue`` puts into a stream (its handle) into one at once, as a CUDA graph."""
        return CudaGraph(self._stream, lambda: enqueue(self._stream.handle)).replay_in

    def measure_peaks(self) -> dict[str, float]:
        return peaks.measure(self._resources())

    def power_anchor_seconds(self) -> float:
        return peaks.power_anchor_seconds(self._resources())

    def _resources(self) -> MeasurementResources:
        whole, memory_bytes = _target(self._driver_device), self._driver_device.memory_bytes
        return MeasurementResources(self._stream, self._transfers, self._timer, whole, memory_bytes)

    def _own(self, memory: Memory) -> CudaMemory:
        if not isinstance(memory, CudaMemory) or memory.ordinal != self.ordinal:
            raise InvalidParameter("not memory of this device", field="memory")
        return memory


def info(ordinal: int = 0) -> DeviceInfo:
    """Describe device ``ordinal`` as a whole, without a context. Raises UnsupportedTarget where there is none, or
    one that nothing can be compiled for."""
    device = DriverDevice(ordinal)
    return _info(device, _target(device))


def uuid(ordinal: int = 0) -> str:
    """Return the UUID of device ``ordinal``, as ``CUDA_VISIBLE_DEVICES`` takes it. Raises UnsupportedTarget."""
    return _uuid(DriverDevice(ordinal))


def count() -> int:
    """Return how many devices the driver shows, and 0 without a driver. (``CUDA_VISIBLE_DEVICES`` hides some from
    it.)"""
    try:
        return device_count()
    except UnsupportedTarget:
        return 0


def arch_of(capability: tuple[int, int]) -> str:
    """Return the architecture to compile for. Raises UnsupportedTarget for a compute capability that nothing can be
    compiled for."""
    major, minor = capability
    fitting = [arch for least, arch in sorted(_ARCHITECTURES.get(major, {}).items()) if _fits(arch, least, minor)]
    if not fitting:
        known = ", ".join(arch for archs in _ARCHITECTURES.values() for arch in archs.values())
        raise UnsupportedTarget(
            f"a device of compute capability {major}.{minor}; code is made for {known} only", field="target"
        )
    return fitting[-1]


def _fits(arch: str, least: int, minor: int) -> bool:
    return least == minor if arch[-1].isalpha() else least <= minor


def _target(device: DriverDevice) -> Target:
    return Target("cuda", arch_of(device.capability), (), device.number("MULTIPROCESSOR_COUNT"), VECTOR_BYTES)


def _uuid(device: DriverDevice) -> str:
    return f"{'MIG' if nvml.has_slices(device.bus_id) else 'GPU'}-{device.uuid}"


def _info(device: DriverDevice, target: Target) -> DeviceInfo:
    return DeviceInfo(device.name, target, _columns(device, target))


def _check_target(target: Target, host: Target, capability: tuple[int, int]) -> None:
    major, minor = capability
    runs = {arch for least, arch in _ARCHITECTURES[major].items() if _fits(arch, least, minor)}
    if target.kind != host.kind or target.arch not in runs:
        raise UnsupportedTarget(f"{target} does not run here; this device is {host}", field="target")
    if not 0 < target.threads <= host.threads:
        raise UnsupportedTarget(
            f"{target.threads} multiprocessors asked for; this device has {host.threads}", field="threads"
        )


def _columns(device: DriverDevice, target: Target) -> dict[str, float]:
    """Return numbers that tell this device from another of any kind. Memory is in whole GiB, because the system
    takes a share."""
    major, minor = device.capability
    columns = {name: float(device.number(attribute)) for name, attribute in _COLUMNS.items()}
    columns.update({name: 1e3 * device.number(attribute) for name, attribute in _KILOHERTZ.items()})
    columns["threads"] = float(target.threads)
    columns["vector_bytes"] = float(target.vector_bytes)
    columns["compute_capability"] = major + minor / 10
    columns["memory_bytes"] = float(device.memory_bytes // _GIB * _GIB)
    columns["cluster_blocks"] = 16.0 if device.number("CLUSTER_LAUNCH") else 1.0
    return {name: value for name, value in columns.items() if value > 0}
