"""What a device can do. Workers and users see devices through these ports only."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..codegen.backend import Binary
from ..core.target import DeviceInfo


class Memory(Protocol):
    """A span of bytes on a device, aligned to 64 bytes at its start; freed when no view of it is left."""

    @property
    def nbytes(self) -> int: ...

    def view(self, offset: int, nbytes: int) -> "Memory":
        """The same memory, narrowed (any offset); raises InvalidParameter outside the span."""
        ...

    def write(self, data: NDArray[np.uint8]) -> None:
        """Copy host bytes, exactly ``nbytes`` of them, to the device."""
        ...

    def read(self) -> NDArray[np.uint8]:
        """A host copy of the bytes."""
        ...


class LoadedKernel(Protocol):
    """A binary ready to launch."""

    def launch(self, arguments: Sequence[Memory]) -> None:
        """Run once and wait. ``arguments`` follow ``Binary.parameters``. Raises InvalidParameter on a mismatch."""
        ...

    def time(self, argument_sets: Sequence[Sequence[Memory]], launches: int) -> float:
        """Seconds that ``launches`` launches back to back take in all, rotating through the argument sets."""
        ...


class Device(Protocol):
    """One physical device; open in one process at a time while it times."""

    @property
    def info(self) -> DeviceInfo: ...

    def allocate(self, nbytes: int) -> Memory:
        """Uninitialised memory; raises MemoryError."""
        ...

    def load(self, binary: Binary) -> LoadedKernel:
        """Raises CompileError when the binary does not load here."""
        ...

    def measure_peaks(self) -> dict[str, float]:
        """Measured ceilings: ``peak_float32_flops_per_second``, ``peak_float64_flops_per_second``,
        ``copy_bytes_per_second`` (read + write), ``read_bytes_per_second``, ``launch_seconds``. Takes a few seconds."""
        ...
