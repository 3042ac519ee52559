"""Streams, device memory, and transfers between host and device."""

import ctypes
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InvalidParameter
from .driver import PrimaryContext, attribute, call

Bytes = NDArray[np.uint8]

STAGING_BYTES = 8 << 20
STAGING_BUFFERS = 2
"""Big transfers go through so many page-locked buffers: one is filled while the device reads another."""
COPY_THREADS = 4
"""So many threads fill a staging buffer. One alone is slower than the bus."""


class CudaStream:
    """A CUDA stream of our own; it does not wait for the default stream of other libraries."""

    def __init__(self, context: PrimaryContext) -> None:
        self.context = context
        with context:
            flags = int(attribute("CUstream_flags.CU_STREAM_NON_BLOCKING"))
            self.handle = context.own(self, "cuStreamDestroy", call("cuStreamCreate", flags))

    def wait(self) -> None:
        """Wait until all queued work is done. Raises DeviceFault when some of it broke off."""
        call("cuStreamSynchronize", self.handle)


class Transfers:
    """Copies between host and device. Several threads may ask, and one at a time is served."""

    def __init__(self, stream: CudaStream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._staging: list[tuple[int, Bytes, object]] = []
        self._copy_threads = ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="tilewright-transfer")

    @property
    def ordinal(self) -> int:
        return self._stream.context.device.ordinal

    def upload(self, address: int, data: Bytes) -> None:
        """Copy flat host bytes to the device and wait."""
        with self._lock, self._stream.context:
            if data.nbytes < STAGING_BYTES:
                call("cuMemcpyHtoDAsync", address, data.ctypes.data, data.nbytes, self._stream.handle)
            else:
                for start, size, (pinned, staging, event) in self._chunks(data.nbytes):
                    call("cuEventSynchronize", event)
                    self._copy(staging[:size], data[start : start + size])
                    call("cuMemcpyHtoDAsync", address + start, pinned, size, self._stream.handle)
                    call("cuEventRecord", event, self._stream.handle)
            self._stream.wait()

    def download(self, address: int, data: Bytes) -> None:
        """Copy from the device into flat host bytes."""
        with self._lock, self._stream.context:
            if data.nbytes < STAGING_BYTES:
                call("cuMemcpyDtoHAsync", data.ctypes.data, address, data.nbytes, self._stream.handle)
                self._stream.wait()
                return
            in_flight: list[tuple[int, int, Bytes, object]] = []
            for start, size, (pinned, staging, event) in self._chunks(data.nbytes):
                if len(in_flight) == STAGING_BUFFERS:
                    self._copy_out(data, *in_flight.pop(0))
                call("cuMemcpyDtoHAsync", pinned, address + start, size, self._stream.handle)
                call("cuEventRecord", event, self._stream.handle)
                in_flight.append((start, size, staging, event))
            for chunk in in_flight:
                self._copy_out(data, *chunk)

    def _copy_out(self, data: Bytes, start: int, size: int, staging: Bytes, event: object) -> None:
        call("cuEventSynchronize", event)
        self._copy(data[start : start + size], staging[:size])

    def _chunks(self, nbytes: int) -> Iterator[tuple[int, int, tuple[int, Bytes, object]]]:
        """Yield (first byte, bytes, staging buffer) of each chunk; the staging buffers alternate."""
        if not self._staging:
            self._staging = [self._staging_buffer() for _ in range(STAGING_BUFFERS)]
        for n, start in enumerate(range(0, nbytes, STAGING_BYTES)):
            yield start, min(STAGING_BYTES, nbytes - start), self._staging[n % STAGING_BUFFERS]

    def _staging_buffer(self) -> tuple[int, Bytes, object]:
        context = self._stream.context
        pinned = int(context.own(self, "cuMemFreeHost", call("cuMemHostAlloc", STAGING_BYTES, 0)))
        event = context.own(self, "cuEventDestroy", call("cuEventCreate", 0))
        array = np.ctypeslib.as_array((ctypes.c_uint8 * STAGING_BYTES).from_address(pinned))
        return pinned, array, event

    def _copy(self, into: Bytes, source: Bytes) -> None:
        """Copy on several threads: NumPy releases the interpreter while it copies."""
        size = -(-into.nbytes // COPY_THREADS)
        starts = range(0, into.nbytes, size)
        list(self._copy_threads.map(lambda at: np.copyto(into[at : at + size], source[at : at + size]), starts))


class CudaMemory:
    """Memory of a CUDA device; see ``runtime.device.Memory``. ``address`` is an address on the device."""

    def __init__(self, transfers: Transfers, address: int, nbytes: int, owner: object) -> None:
        """``owner`` keeps the memory from being freed."""
        self._transfers = transfers
        self._owner = owner
        self.address = address
        self._nbytes = nbytes

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def ordinal(self) -> int:
        """The device that the memory is on. All who have opened the same device share its memory."""
        return self._transfers.ordinal

    def view(self, offset: int, nbytes: int) -> "CudaMemory":
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise InvalidParameter(
                f"a view of bytes {offset} to {offset + nbytes} of a span of {self.nbytes}", field="offset"
            )
        return CudaMemory(self._transfers, self.address + offset, nbytes, self._owner)

    def write(self, data: Bytes) -> None:
        if data.nbytes != self.nbytes:
            raise InvalidParameter(f"{data.nbytes} bytes written to a span of {self.nbytes}", field="data")
        if data.nbytes:
            self._transfers.upload(self.address, np.ascontiguousarray(data).reshape(-1).view(np.uint8))

    def read(self) -> Bytes:
        data = np.empty(self.nbytes, np.uint8)
        if data.nbytes:
            self._transfers.download(self.address, data)
        return data


class DeviceAllocation:
    """An allocation on the device, freed with the object."""

    def __init__(self, context: PrimaryContext, nbytes: int) -> None:
        """Raises MemoryError, which says how much is free."""
        self.nbytes = nbytes
        with context:
            try:
                pointer = call("cuMemAlloc", max(nbytes, 1))
            except MemoryError as error:
                free, whole = call("cuMemGetInfo")
                raise MemoryError(
                    f"{nbytes} bytes asked of cuda device {context.device.ordinal}, {free} of {whole} are free"
                ) from error
            self.address = int(context.own(self, "cuMemFree", pointer))


def array_bytes(data: NDArray[np.generic]) -> Bytes:
    """Return the bytes of a C-contiguous array, flat and without a copy."""
    return data.reshape(-1).view(np.uint8)
