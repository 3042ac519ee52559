"""Device memory, and how bytes get there and back."""

import ctypes
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InvalidParameter
from .driver import PrimaryContext, attribute, call

Bytes = NDArray[np.uint8]

STAGE_BYTES = 8 << 20
STAGES = 2
"""Page-locked buffers that big transfers go through: one is filled while the card reads another."""
COPIERS = 4
"""Threads that fill a stage: one alone is slower than the bus."""


class CudaStream:
    """A queue of work of the device, apart from the default stream of other libraries."""

    def __init__(self, context: PrimaryContext) -> None:
        self.context = context
        with context:
            flags = int(attribute("CUstream_flags.CU_STREAM_NON_BLOCKING"))
            self.handle = context.own(self, "cuStreamDestroy", call("cuStreamCreate", flags))

    def wait(self) -> None:
        """Until all queued work is done. Raises DeviceFault when some of it broke off."""
        call("cuStreamSynchronize", self.handle)


class Transfers:
    """Copies between host and device; several threads may ask, one is served at a time."""

    def __init__(self, stream: CudaStream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._stages: list[tuple[int, Bytes, object]] = []
        self._copiers = ThreadPoolExecutor(COPIERS, thread_name_prefix="tilewright-transfer")

    @property
    def ordinal(self) -> int:
        return self._stream.context.card.ordinal

    def upload(self, address: int, data: Bytes) -> None:
        """Copy flat host bytes to the device and wait."""
        with self._lock, self._stream.context:
            if data.nbytes < STAGE_BYTES:
                call("cuMemcpyHtoDAsync", address, data.ctypes.data, data.nbytes, self._stream.handle)
            else:
                for start, size, (pinned, stage, event) in self._chunks(data.nbytes):
                    call("cuEventSynchronize", event)
                    self._copy(stage[:size], data[start : start + size])
                    call("cuMemcpyHtoDAsync", address + start, pinned, size, self._stream.handle)
                    call("cuEventRecord", event, self._stream.handle)
            self._stream.wait()

    def download(self, address: int, data: Bytes) -> None:
        """Copy from the device into flat host bytes."""
        with self._lock, self._stream.context:
            if data.nbytes < STAGE_BYTES:
                call("cuMemcpyDtoHAsync", data.ctypes.data, address, data.nbytes, self._stream.handle)
                self._stream.wait()
                return
            under_way: list[tuple[int, int, Bytes, object]] = []
            for start, size, (pinned, stage, event) in self._chunks(data.nbytes):
                if len(under_way) == STAGES:
                    self._arrive(data, *under_way.pop(0))
                call("cuMemcpyDtoHAsync", pinned, address + start, size, self._stream.handle)
                call("cuEventRecord", event, self._stream.handle)
                under_way.append((start, size, stage, event))
            for piece in under_way:
                self._arrive(data, *piece)

    def _arrive(self, data: Bytes, start: int, size: int, stage: Bytes, event: object) -> None:
        call("cuEventSynchronize", event)
        self._copy(data[start : start + size], stage[:size])

    def _chunks(self, nbytes: int) -> Iterator[tuple[int, int, tuple[int, Bytes, object]]]:
        """(first byte, bytes, stage to use), the stages in turn."""
        if not self._stages:
            self._stages = [self._stage() for _ in range(STAGES)]
        for n, start in enumerate(range(0, nbytes, STAGE_BYTES)):
            yield start, min(STAGE_BYTES, nbytes - start), self._stages[n % STAGES]

    def _stage(self) -> tuple[int, Bytes, object]:
        context = self._stream.context
        pinned = int(context.own(self, "cuMemFreeHost", call("cuMemHostAlloc", STAGE_BYTES, 0)))
        event = context.own(self, "cuEventDestroy", call("cuEventCreate", 0))
        array = np.ctypeslib.as_array((ctypes.c_uint8 * STAGE_BYTES).from_address(pinned))
        return pinned, array, event

    def _copy(self, into: Bytes, source: Bytes) -> None:
        """On several threads: NumPy releases the interpreter while it copies."""
        part = -(-into.nbytes // COPIERS)
        starts = range(0, into.nbytes, part)
        list(self._copiers.map(lambda at: np.copyto(into[at : at + part], source[at : at + part]), starts))


class CudaMemory:
    """See ``runtime.device.Memory``. ``address`` is one of the device."""

    def __init__(self, transfers: Transfers, address: int, nbytes: int, owner: object) -> None:
        """``owner``: what keeps the memory from being freed."""
        self._transfers = transfers
        self._owner = owner
        self.address = address
        self._nbytes = nbytes

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def ordinal(self) -> int:
        """The device it is on; those who opened the same device share its memory."""
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
    """Device memory of its own, freed with the object."""

    def __init__(self, context: PrimaryContext, nbytes: int) -> None:
        """Raises MemoryError saying how much is free."""
        self.nbytes = nbytes
        with context:
            try:
                pointer = call("cuMemAlloc", max(nbytes, 1))
            except MemoryError as error:
                free, whole = call("cuMemGetInfo")
                raise MemoryError(
                    f"{nbytes} bytes asked of cuda device {context.card.ordinal}, {free} of {whole} are free"
                ) from error
            self.address = int(context.own(self, "cuMemFree", pointer))


def array_bytes(data: NDArray[np.generic]) -> Bytes:
    """The bytes of a C-contiguous array, flat and without a copy."""
    return data.reshape(-1).view(np.uint8)
