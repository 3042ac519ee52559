"""What a device can do. Workers and users see devices through these ports only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..codegen.backend import CompiledKernel
from ..core.dtypes import DType
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


@dataclass(frozen=True, slots=True)
class Matches:
    """Elements of a memory that hold a pattern: how many, the flat number of the first, and one bit for each element
    (uint8, the lowest bit of a byte first; empty when there is no match)."""

    count: int
    first: int | None
    bits: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Comparison:
    """``largest``: the largest error (see ``Device.compare``). ``wrong``: the flat number of the first element whose
    error is over 1, with what it ``got`` and should be (``want``); all three None when there is none."""

    largest: float
    wrong: int | None = None
    got: np.generic | None = None
    want: np.generic | None = None


class LoadedKernel(Protocol):
    """A binary ready to launch."""

    def prepare(self, arguments: Sequence[Memory]) -> None:
        """Fill the workspace with what the kernel makes of constant inputs alone, and wait; often nothing. Raises as
        ``launch`` does."""
        ...

    def launch(self, arguments: Sequence[Memory]) -> None:
        """Prepare, run once and wait. ``arguments`` follow ``CompiledKernel.parameters``. Raises InvalidParameter on a
        mismatch, DeviceFault when the device refuses the launch or the kernel breaks off."""
        ...

    def time(self, argument_sets: Sequence[Sequence[Memory]], launches: int) -> float:
        """Seconds that ``launches`` launches back to back take in all, rotating through the argument sets, on all of
        which ``prepare`` has been called before."""
        ...


class Device(Protocol):
    """One physical device; open in one process at a time while it times."""

    @property
    def info(self) -> DeviceInfo: ...

    @property
    def lock_name(self) -> str:
        """What programs that time on this device lock: its own among all devices of this machine; empty where programs
        share it anyway."""
        ...

    def allocate(self, nbytes: int) -> Memory:
        """Uninitialised memory; raises MemoryError."""
        ...

    def hold(self, data: NDArray[np.generic]) -> Memory:
        """Memory that holds the bytes of a C-contiguous array and is only read: the array itself where that can be."""
        ...

    def fill(self, memory: Memory, pattern: bytes) -> None:
        """Repeat ``pattern`` (1, 2, 4 or 8 bytes, a divisor of the memory's size) all over ``memory``."""
        ...

    def copy(self, into: Memory, source: Memory) -> None:
        """Copy memory of the same size on the device."""
        ...

    def sweep(self, memory: Memory) -> None:
        """Read all of ``memory`` through the caches, so that what they held is gone; writes nothing."""
        ...

    def changed(self, memory: Memory, pattern: bytes) -> tuple[int, int] | None:
        """The first and the last byte of ``memory`` that are not as ``fill`` leaves them; None when all are."""
        ...

    def differs(self, memory: Memory, other: Memory) -> bool:
        """Whether any byte of two memories of the same size differs."""
        ...

    def matching(self, memory: Memory, pattern: bytes, among: Matches | None = None) -> Matches:
        """Which elements, of the size of ``pattern``, are equal to it bit by bit; of those in ``among`` only, where it
        is given (no work at all when ``among`` has none)."""
        ...

    def compare(self, got: Memory, dtype: DType, want: Memory, absolute: float, relative: float) -> Comparison:
        """How far ``got``, elements of ``dtype``, is from ``want``: float64, or the same dtype for integers and bool.

        The error of an element is ``|got - want| / (absolute + relative * |want|)`` in float64. Equal values, two NaNs
        and equal infinities have error 0. Where the tolerance is 0 any difference is an infinite error, as are a NaN or
        an infinity on one side only. A bool is compared as the byte it is: 2 is no truth value. Elements after the
        first wrong one may be left out of ``largest``.
        """
        ...

    def environment(self) -> dict[str, float]:
        """What the device is doing just now (clocks, power, temperature and why it is throttled), name_unit -> value;
        read only, under a millisecond. Empty where nothing is known."""
        ...

    def load(self, binary: CompiledKernel) -> LoadedKernel:
        """Raises CompileError when the binary does not load here."""
        ...

    def measure_peaks(self) -> dict[str, float]:
        """Measured ceilings: ``peak_float32_flops_per_second``, ``peak_float64_flops_per_second``,
        ``copy_bytes_per_second`` (read + write), ``read_bytes_per_second``, ``launch_seconds``; where there are matrix
        units, ``peak_tensor_bfloat16_flops_per_second`` and the like; a device may know more. Takes a few seconds."""
        ...
