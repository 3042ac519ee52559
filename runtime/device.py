"""What a device can do. Workers and users see devices through these protocols only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..codegen.backend import CompiledKernel
from ..core.dtypes import DType
from ..core.target import DeviceInfo


class Memory(Protocol):
    """A span of bytes on a device, aligned to 64 bytes at its start. It is freed when no view of it is left."""

    @property
    def nbytes(self) -> int: ...

    def view(self, offset: int, nbytes: int) -> "Memory":
        """Return a part of the same memory, at any offset. Raises InvalidParameter outside the span."""
        ...

    def write(self, data: NDArray[np.uint8]) -> None:
        """Copy host bytes, exactly ``nbytes`` of them, to the device."""
        ...

    def read(self) -> NDArray[np.uint8]:
        """Return a host copy of the bytes."""
        ...


@dataclass(frozen=True, slots=True)
class PatternMatches:
    """The elements of a memory that hold a pattern. ``count`` is how many there are and ``first`` the flat number of
    the first. ``bits`` has one bit for each element (uint8, the lowest bit of a byte first); it is empty when there
    is no match."""

    count: int
    first: int | None
    bits: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of ``Device.compare``. ``largest`` is the largest error. ``wrong`` is the flat number of the first
    element whose error is over 1, with the value it has (``got``) and should have (``want``); all three are None
    when there is none."""

    largest: float
    wrong: int | None = None
    got: np.generic | None = None
    want: np.generic | None = None


class LoadedKernel(Protocol):
    """A binary that is ready to launch."""

    def prepare(self, arguments: Sequence[Memory]) -> None:
        """Fill the workspace with what the kernel computes from constant inputs alone, and wait. Often there is
        nothing to do. Raises as ``launch`` does."""
        ...

    def launch(self, arguments: Sequence[Memory]) -> None:
        """Prepare, run once and wait. ``arguments`` follow ``CompiledKernel.parameters``. Raises InvalidParameter on a
        mismatch, and DeviceFault when the device refuses the launch or the kernel breaks off."""
        ...

    def time(self, argument_sets: Sequence[Sequence[Memory]], launches: int) -> float:
        """Return how many seconds ``launches`` launches take together, back to back. They rotate through the
        argument sets; ``prepare`` must have been called on each set before."""
        ...


class Device(Protocol):
    """One physical device. Only one process at a time has it open while it times."""

    @property
    def info(self) -> DeviceInfo: ...

    @property
    def lock_name(self) -> str:
        """The name that programs lock while they time on this device: its UUID. It is empty where programs share the
        device anyway."""
        ...

    def allocate(self, nbytes: int) -> Memory:
        """Return uninitialised memory. Raises MemoryError."""
        ...

    def hold(self, data: NDArray[np.generic]) -> Memory:
        """Return memory with the bytes of a C-contiguous array, which is only read: the array itself where that is
        possible."""
        ...

    def fill(self, memory: Memory, pattern: bytes) -> None:
        """Repeat ``pattern`` (1, 2, 4 or 8 bytes, a divisor of the memory's size) all over ``memory``."""
        ...

    def copy(self, into: Memory, source: Memory) -> None:
        """Copy between memories of the same size on the device."""
        ...

    def sweep(self, memory: Memory) -> None:
        """Read all of ``memory`` through the caches, so that their earlier content is evicted. Nothing is written."""
        ...

    def changed(self, memory: Memory, pattern: bytes) -> tuple[int, int] | None:
        """Return the first and the last byte of ``memory`` that differ from what ``fill`` wrote, and None when none
        does."""
        ...

    def differs(self, memory: Memory, other: Memory) -> bool:
        """Say whether any byte of two memories of the same size differs."""
        ...

    def matching(self, memory: Memory, pattern: bytes, among: PatternMatches | None = None) -> PatternMatches:
        """Find the elements, of the size of ``pattern``, that are equal to it bit by bit. Where ``among`` is given,
        only its elements count, and nothing is done when it has none."""
        ...

    def compare(self, got: Memory, dtype: DType, want: Memory, absolute: float, relative: float) -> Comparison:
        """Measure how far ``got``, elements of ``dtype``, is from ``want``: float64, or the same dtype for integers and
        bool.

        The error of an element is ``|got - want| / (absolute + relative * |want|)`` in float64. Equal values, two NaNs
        and equal infinities have error 0. Where the tolerance is 0, any difference is an infinite error. So is a NaN or
        an infinity on one side only. A bool is compared as the byte it is: 2 is no truth value. Elements after the
        first wrong one may be left out of ``largest``.
        """
        ...

    def environment(self) -> dict[str, float]:
        """Return what the device is doing now (clocks, power, temperature and why it is throttled), from name_unit
        to value. This only reads and takes under a millisecond. The dictionary is empty where nothing is known."""
        ...

    def load(self, binary: CompiledKernel) -> LoadedKernel:
        """Load a binary. Raises CompileError when it does not load here."""
        ...

    def measure_peaks(self) -> dict[str, float]:
        """Measure the peaks of the device: ``peak_float32_flops_per_second``, ``peak_float64_flops_per_second``,
        ``copy_bytes_per_second`` (read + write), ``read_bytes_per_second`` and ``launch_seconds``. Where there are
        matrix units, there is ``peak_tensor_bfloat16_flops_per_second`` and the like; a device may add more. It
        takes a few seconds."""
        ...

    def power_anchor_seconds(self) -> float | None:
        """Time the second anchor: about a millisecond of bfloat16 matrix products, on a chip that many of them have
        made hot, so that its power limit shows. Takes a second. None for a device without a power limit of its own."""
        ...
