"""Buffers: named, shaped, typed memory with a scope."""

from dataclasses import dataclass
from enum import StrEnum
from math import prod

from ..core.dtypes import DType


class Scope(StrEnum):
    """Where a buffer lives. ``global``: parameters and workspace. ``local``: private to one thread's iteration,
    on its stack. ``register``: local, and every access must have constant indices once loops are unrolled."""

    GLOBAL = "global"
    LOCAL = "local"
    REGISTER = "register"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Row-major memory of ``shape`` elements; told apart by name within a kernel. Zero dimensions: one element."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    scope: Scope = Scope.GLOBAL

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype.bytes

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each dimension."""
        strides = [1] * len(self.shape)
        for i in range(len(self.shape) - 2, -1, -1):
            strides[i] = strides[i + 1] * self.shape[i + 1]
        return tuple(strides)
