"""Filling, searching and comparing host memory for ``runtime.cpu``: block by block, in blocks that stay in a
second-level cache. Memory comes as flat uint8 arrays; see ``runtime.device.Device`` for what each function does."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import DType
from ..core.errors import InvalidParameter
from .device import Comparison, Matches

BLOCK_BYTES = 512 * 1024
PATTERN_BYTES = (1, 2, 4, 8)

Bytes = NDArray[np.uint8]


def fill(memory: Bytes, pattern: bytes) -> None:
    check_pattern(memory.nbytes, pattern)
    _elements(memory, pattern)[...] = _value(pattern)


def sweep(memory: Bytes) -> None:
    for _, block in _blocks(memory):
        block.copy()


def changed(memory: Bytes, pattern: bytes) -> tuple[int, int] | None:
    check_pattern(memory.nbytes, pattern)
    first = last = None
    size, value = len(pattern), _value(pattern)
    for start, block in _blocks(memory):
        wrong = np.flatnonzero(_elements(block, pattern) != value)
        if len(wrong):
            first = start + int(wrong[0]) * size if first is None else first
            last = start + int(wrong[-1]) * size
    if first is None or last is None:
        return None
    wanted = np.frombuffer(pattern, np.uint8)
    head, tail = (np.flatnonzero(memory[at : at + size] != wanted) for at in (first, last))
    return first + int(head[0]), last + int(tail[-1])


def differs(memory: Bytes, other: Bytes) -> bool:
    same_size(memory.nbytes, other.nbytes)
    return any(not np.array_equal(block, other[start : start + len(block)]) for start, block in _blocks(memory))


def matching(memory: Bytes, pattern: bytes, among: Matches | None) -> Matches:
    if among is not None and not among.count:
        return among
    check_pattern(memory.nbytes, pattern)
    value = _value(pattern)
    found = [np.packbits(_elements(b, pattern) == value, bitorder="little") for _, b in _blocks(memory)]
    return matches(np.concatenate(found) if found else np.empty(0, np.uint8), among)


def matches(bits: Bytes, among: Matches | None) -> Matches:
    """``bits`` counted, of those in ``among`` only where it is given."""
    if among is not None:
        bits = bits & among.bits
    count = int(np.bitwise_count(bits).sum())
    if not count:
        return Matches(0, None, np.empty(0, np.uint8))
    byte = int((bits != 0).argmax())
    return Matches(count, 8 * byte + int(np.unpackbits(bits[byte : byte + 1], bitorder="little").argmax()), bits)


def compare(got: Bytes, dtype: DType, want: Bytes, absolute: float, relative: float) -> Comparison:
    """Stops at the first block with a wrong element."""
    values = want.view(wanted_dtype(dtype, got.nbytes, want.nbytes))
    largest = 0.0
    for start, block in _blocks(got):
        first = start // dtype.bytes
        part = values[first : first + len(block) // dtype.bytes]
        found = block if dtype.is_bool else block.view(dtype.numpy)
        errors = _errors(found, part, absolute, relative, dtype)
        worst = float(errors.max())
        if not worst <= 1.0:
            at = int((errors > 1.0).argmax())
            return Comparison(worst, first + at, found[at], part[at])
        largest = max(largest, worst)
    return Comparison(largest)


def _errors(
    got: NDArray[np.generic], want: NDArray[np.generic], absolute: float, relative: float, dtype: DType
) -> NDArray[np.float64]:
    """Error of each element, never NaN."""
    with np.errstate(all="ignore"):
        wide_got, wide_want = got.astype(np.float64), want.astype(np.float64)
        errors: NDArray[np.float64] = np.abs(wide_got - wide_want)
        errors /= absolute + relative * np.abs(wide_want)
        if np.isfinite(errors).all():
            return errors
        # Integers are compared in their own type: float64 cannot tell large neighbours apart.
        equal = got == want if dtype.is_integer else wide_got == wide_want
        same = equal | (np.isnan(wide_got) & np.isnan(wide_want))
        return np.where(same, 0.0, np.where(np.isfinite(errors) & np.isfinite(wide_want), errors, np.inf))


def wanted_dtype(dtype: DType, got_bytes: int, want_bytes: int) -> np.dtype[np.generic]:
    """What the elements to compare with are stored as. Raises InvalidParameter where the sizes do not fit."""
    wanted = np.dtype(np.float64) if dtype.is_float else dtype.numpy
    if got_bytes % dtype.bytes or want_bytes != got_bytes // dtype.bytes * wanted.itemsize:
        raise InvalidParameter(
            f"{got_bytes} bytes of {dtype} compared with {want_bytes} bytes of {wanted}; allowed: as many elements",
            field="want",
        )
    return wanted


def same_size(nbytes: int, other: int) -> None:
    """Raises InvalidParameter when two memories differ in size."""
    if nbytes != other:
        raise InvalidParameter(f"{other} bytes against a span of {nbytes}; allowed: the same size", field="other")


def check_pattern(nbytes: int, pattern: bytes) -> None:
    """Raises InvalidParameter when ``pattern`` does not tile ``nbytes`` bytes."""
    if len(pattern) not in PATTERN_BYTES or nbytes % len(pattern):
        raise InvalidParameter(
            f"a pattern of {len(pattern)} bytes over {nbytes}; allowed: 1, 2, 4 or 8 bytes, a divisor of the size",
            field="pattern",
        )


def _elements(memory: Bytes, pattern: bytes) -> NDArray[np.unsignedinteger]:
    """``memory`` as unsigned integers of the size of ``pattern``, no copy."""
    return memory.view(f"u{len(pattern)}")


def _value(pattern: bytes) -> np.unsignedinteger:
    value: np.unsignedinteger = np.frombuffer(pattern, f"u{len(pattern)}")[0]
    return value


def _blocks(memory: Bytes) -> Iterator[tuple[int, Bytes]]:
    """(first byte, bytes): blocks of whole elements of any type."""
    for start in range(0, memory.nbytes, BLOCK_BYTES):
        yield start, memory[start : start + BLOCK_BYTES]
