"""Device functions are loaded from a cubin, launched with packed arguments, captured into CUDA graphs, and timed."""

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from ...codegen.backend import LaunchConfig
from ...core.errors import CompileError, DeviceFault
from .driver import PrimaryContext, attribute, call, error_of
from .memory import CudaStream

PORTABLE_CLUSTER = 8
"""Every device with clusters takes so many blocks in a cluster. More must be allowed by an attribute (CUDA C++
Programming Guide)."""


_BLOCK_ALIGNMENT = 64


class LoadedCubin:
    """A cubin that is loaded on the device (a ``CUmodule``)."""

    def __init__(self, context: PrimaryContext, cubin: bytes) -> None:
        """Raises CompileError when ``cubin`` is none, or is for another architecture."""
        if not cubin.startswith(b"\x7fELF"):
            raise CompileError("the binary is no cubin: it does not begin as an ELF file")
        self.context = context
        with context:
            self.handle = context.own(self, "cuModuleUnload", call("cuModuleLoadData", cubin))

    def function(self, grid: LaunchConfig) -> "CudaFunction":
        """Return a function by its name. Raises CompileError when there is none of the name, or it cannot have the
        shared memory or the clusters of ``grid``."""
        with self.context:
            handle = call("cuModuleGetFunction", self.handle, grid.function.encode())
            try:
                if grid.shared_bytes:
                    _allow(handle, "MAX_DYNAMIC_SHARED_SIZE_BYTES", grid.shared_bytes)
                if grid.cluster > PORTABLE_CLUSTER:
                    _allow(handle, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
            except DeviceFault as error:
                raise CompileError(
                    f"{grid.function} cannot have {grid.shared_bytes} bytes of dynamic shared memory and clusters of "
                    f"{grid.cluster} here: {error}"
                ) from error
        return CudaFunction(self, handle, grid)


class CudaFunction:
    """A device function with its launch configuration."""

    def __init__(self, cubin: LoadedCubin, handle: Any, grid: LaunchConfig) -> None:
        self._cubin = cubin
        self._handle = handle
        self._grid = grid
        self._cuda_launch_config = _cuda_launch_config(grid)
        self._stream: Any = None
        self._launch: Callable[..., Any] = attribute("cuLaunchKernelEx")

    def enqueue(self, stream: Any, arguments: "KernelArguments") -> None:
        """Put one launch into ``stream`` (a handle), which must belong to the current context."""
        if stream != self._stream:  # The bindings take longer to set it than to launch.
            self._cuda_launch_config.hStream = self._stream = stream
        (status,) = self._launch(self._cuda_launch_config, self._handle, arguments.address, 0)
        if status:
            raise error_of(int(status), f"launch of {self._grid.function}")


class KernelArguments:
    """The arguments of a launch, packed as the driver takes them (``kernelParams``). Integers (addresses) and floats
    (doubles) have eight bytes each; the ``blocks`` of bytes after them each begin at a multiple of 64."""

    def __init__(self, values: Sequence[int | float], blocks: Sequence[bytes] = ()) -> None:
        count = len(values)
        codes = "".join("d" if isinstance(v, float) else "Q" for v in values)
        self._values = ctypes.create_string_buffer(struct.pack(f"={codes}", *values), max(8 * count, 1))
        start = ctypes.addressof(self._values)
        addresses = [start + 8 * n for n in range(count)]
        self._blocks = [ctypes.create_string_buffer(len(block) + _BLOCK_ALIGNMENT) for block in blocks]
        for block, buffer in zip(blocks, self._blocks, strict=True):
            addresses.append(-(-ctypes.addressof(buffer) // _BLOCK_ALIGNMENT) * _BLOCK_ALIGNMENT)
            ctypes.memmove(addresses[-1], block, len(block))
        self._pointers = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        self.address = ctypes.addressof(self._pointers)


class CudaGraph:
    """A CUDA graph: launches that were captured once and are replayed as a whole."""

    def __init__(self, stream: CudaStream, enqueue: Callable[[], None]) -> None:
        """``enqueue`` puts the launches into ``stream``, which captures them and runs none now."""
        self._stream = stream
        mode = attribute("CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL")
        with stream.context as context:
            call("cuStreamBeginCapture", stream.handle, mode)
            try:
                enqueue()
            finally:
                graph = call("cuStreamEndCapture", stream.handle)
            try:
                self._handle = context.own(self, "cuGraphExecDestroy", call("cuGraphInstantiate", graph, 0))
            finally:
                call("cuGraphDestroy", graph)
            call("cuGraphUpload", self._handle, stream.handle)
        self._launch: Callable[..., Any] = attribute("cuGraphLaunch")

    def replay(self) -> None:
        """Put one run of the graph into its stream."""
        self.replay_in(self._stream.handle)

    def replay_in(self, stream: Any) -> None:
        """Put one run of the graph into ``stream`` (a handle)."""
        (status,) = self._launch(self._handle, stream)
        if status:
            raise error_of(int(status), "cuGraphLaunch")


class EventTimer:
    """Measures seconds between two events of a stream, by the device's clock (in steps of half a microsecond)."""

    def __init__(self, stream: CudaStream) -> None:
        self._stream = stream
        with stream.context as context:
            self._events = [context.own(self, "cuEventDestroy", call("cuEventCreate", 0)) for _ in range(2)]

    def seconds(self, enqueue: Callable[[], None]) -> float:
        """Return how long the device takes for what ``enqueue`` puts into the stream, and wait for it."""
        start, end = self._events
        call("cuEventRecord", start, self._stream.handle)
        enqueue()
        call("cuEventRecord", end, self._stream.handle)
        call("cuEventSynchronize", end)
        milliseconds: float = call("cuEventElapsedTime", start, end)
        return milliseconds / 1e3


def _cuda_launch_config(grid: LaunchConfig) -> Any:
    config = attribute("CUlaunchConfig")()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid.blocks
    config.blockDimX, config.blockDimY, config.blockDimZ = grid.threads, 1, 1
    config.sharedMemBytes = grid.shared_bytes
    attributes = []
    if grid.cluster > 1:
        size = attribute("CUlaunchAttributeValue")()
        size.clusterDim.x, size.clusterDim.y, size.clusterDim.z = grid.cluster, 1, 1
        attributes.append(_launch_attribute("CLUSTER_DIMENSION", size))
    if grid.programmatic_dependent_launch:
        allowed = attribute("CUlaunchAttributeValue")()
        allowed.programmaticStreamSerializationAllowed = 1
        attributes.append(_launch_attribute("PROGRAMMATIC_STREAM_SERIALIZATION", allowed))
    if grid.cooperative:
        together = attribute("CUlaunchAttributeValue")()
        together.cooperative = 1
        attributes.append(_launch_attribute("COOPERATIVE", together))
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def _launch_attribute(name: str, value: Any) -> Any:
    found = attribute("CUlaunchAttribute")()
    found.id = attribute(f"CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_{name}")
    found.value = value
    return found


def _allow(handle: Any, name: str, value: int) -> None:
    call("cuFuncSetAttribute", handle, attribute(f"CUfunction_attribute.CU_FUNC_ATTRIBUTE_{name}"), value)
