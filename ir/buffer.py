"""Buffers: named, shaped, typed memory with a scope and a layout."""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod

from ..core.dtypes import DType


class MemoryScope(StrEnum):
    """Where a buffer lives.

    - ``global``: parameters and workspace of the kernel.
    - ``shared``: one copy for all threads of a block (inside a Launch only).
    - ``tensor``: tensor memory, likewise one copy; only ``tcgen05`` operations access it (``ir.gpu.tcgen05``).
    - ``local``: private to one thread or iteration, on its stack.
    - ``register``: private likewise; every access must have constant indices once loops are unrolled.
    """

    GLOBAL = "global"
    SHARED = "shared"
    TENSOR = "tensor"
    LOCAL = "local"
    REGISTER = "register"


@dataclass(frozen=True, slots=True)
class Swizzle:
    """A permutation of offsets that spreads columns over the banks of shared memory.

    The offset ``p`` (in elements) becomes ``p ^ (((p >> (base + shift)) & (2**bits - 1)) << base)``: CUTLASS writes it
    ``Swizzle<bits, base, shift>``. It is its own inverse where ``shift >= bits``.
    """

    bits: int
    base: int
    shift: int

    def offset(self, p: int) -> int:
        """Return where the element at offset ``p`` is moved to."""
        return p ^ (((p >> (self.base + self.shift)) & ((1 << self.bits) - 1)) << self.base)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the element at some indices lies: ``swizzle(sum of index * stride)``, in elements from the start. Strides
    larger than the shape needs leave padding."""

    strides: tuple[int, ...]
    swizzle: Swizzle | None = None


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of ``shape`` elements. It is row-major unless a ``layout`` says otherwise, which only shared memory has.
    Buffers are told apart by name within a kernel. One with no dimensions has one element."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    scope: MemoryScope = MemoryScope.GLOBAL
    layout: Layout | None = None

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def squeezed(self) -> "Buffer":
        """Return the row-major buffer without its dimensions of one element (``numpy.squeeze``)."""
        return replace(self, shape=tuple(n for n in self.shape if n > 1))

    @property
    def bytes(self) -> int:
        """Return how many bytes of storage it takes, padding included."""
        return self.span * self.dtype.bytes

    @property
    def span(self) -> int:
        """Return how many elements lie from the first to the last, both included; a swizzle needs whole periods."""
        if self.layout is None:
            return self.elements
        last = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.layout.strides, strict=True))
        if self.layout.swizzle is None:
            return last + 1
        s = self.layout.swizzle
        period = 1 << (s.base + s.shift + s.bits)
        return -(-(last + 1) // period) * period

    @property
    def strides(self) -> tuple[int, ...]:
        """Return how many elements lie between neighbours along each dimension, before any swizzle."""
        if self.layout is not None:
            return self.layout.strides
        strides = [1] * len(self.shape)
        for i in range(len(self.shape) - 2, -1, -1):
            strides[i] = strides[i + 1] * self.shape[i + 1]
        return tuple(strides)
