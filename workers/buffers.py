"""Device buffers between guard bands, filled with values that no kernel leaves there by accident."""

from collections.abc import Sequence

import numpy as np

from ..codegen.backend import KernelParameter
from ..core.dtypes import DType
from ..runtime.device import Device, Memory, PatternMatches

GUARD_BYTES = 64 * 1024
"""On each side of every buffer: sixteen pages, so that a whole stray tile or row still lands inside."""

_QUIET = {"float64": 0x7FF8 << 48, "float32": 0x7FC0 << 16, "float16": 0x7E00, "bfloat16": 0x7FC0}
"""Type of NumPy -> the bits of a quiet NaN."""

FILLINGS = 2
"""How many different fillings there are: a check launches once on each."""


def filling(dtype: DType, number: int, which: int) -> bytes:
    """Return one element of filling ``which`` (0 or 1) for purpose ``number``; neighbouring numbers differ.

    For floats the first is a plain number, so that adding to it by mistake shows. The second is a quiet NaN with a
    payload of its own, so that reading it by mistake spoils the result. (A NaN alone would not do: arithmetic on it
    keeps its payload.) Types of one byte and integers get a byte pattern and its complement: NaNs of 8-bit floats have
    no payloads. Different buffers get different numbers, because a stray kernel copies from one buffer to another. No
    deterministic value equals both fillings.
    """
    number %= 31
    if not dtype.is_float or dtype.bytes == 1:
        byte = 0x20 + 6 * number
        return bytes([byte if which == 0 else byte ^ 0xFF]) * dtype.bytes
    if which == 0:
        return np.array((33 + number) / 64, dtype.numpy).tobytes()  # six bits: exact in every float type
    return (_QUIET[dtype.numpy.name] | (number + 1)).to_bytes(dtype.bytes, "little")


class GuardedBuffer:
    """One parameter's memory: guard band, payload, guard band in one allocation. ``number`` tells it from the others
    of a launch."""

    def __init__(self, device: Device, parameter: KernelParameter, number: int) -> None:
        self.parameter = parameter
        self.nbytes = parameter.bytes
        self._device = device
        whole = device.allocate(2 * GUARD_BYTES + self.nbytes)
        self.payload: Memory = whole.view(GUARD_BYTES, self.nbytes)
        self._before = whole.view(0, GUARD_BYTES)
        self._after = whole.view(GUARD_BYTES + self.nbytes, GUARD_BYTES)
        self._guards = [filling(parameter.dtype, 2 * number, which) for which in range(FILLINGS)]
        self._fills = [filling(parameter.dtype, 2 * number + 1, which) for which in range(FILLINGS)]

    @property
    def name(self) -> str:
        """As messages call it: ``output C``."""
        return f"{self.parameter.role} {self.parameter.name}"

    def guard(self, which: int) -> None:
        """Fill both bands with filling ``which``."""
        self._device.fill(self._before, self._guards[which])
        self._device.fill(self._after, self._guards[which])

    def poison(self, which: int) -> None:
        """Fill the payload with filling ``which``."""
        self._device.fill(self.payload, self._fills[which])

    def trespass(self, which: int) -> str | None:
        """Return what was written into the bands since ``guard(which)``, in words; None when they are intact."""
        changed = self._device.changed(self._after, self._guards[which])
        if changed is not None:
            return f"{self.name} was written past its end: bytes {changed[0]} to {changed[1]} after it"
        changed = self._device.changed(self._before, self._guards[which])
        if changed is not None:
            first, last = GUARD_BYTES - changed[1], GUARD_BYTES - changed[0]
            return f"{self.name} was written before its start: bytes {first} to {last} before it"
        return None

    def poisoned(self, which: int, among: PatternMatches | None = None) -> PatternMatches:
        """Return the elements that still hold filling ``which``, of those ``among`` others where these are given."""
        return self._device.matching(self.payload, self._fills[which], among)


def position(index: int, shape: Sequence[int]) -> str:
    """Return the element with flat number ``index`` as a person writes it: ``[3, 0]``."""
    return str([int(i) for i in np.unravel_index(index, tuple(shape))]) if shape else "[]"
