"""Host memory is filled, searched and compared here, for ``runtime.cpu``. The work goes block by block, in blocks
that stay in a second-level cache; large memory is shared among all processors. Memory comes as flat uint8 arrays;
``runtime.device.Device`` says what each function does."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL, c_int, c_size_t, c_void_p
from functools import cache
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import DType, float32
from ..core.errors import InvalidParameter
from .cpu_errors import LANES, largest_error
from .device import Comparison, PatternMatches

BLOCK_BYTES = 512 * 1024
LARGE_BYTES = 4 << 20
"""From this size on, memory is worth several threads."""
PATTERN_BYTES = (1, 2, 4, 8)

Bytes = NDArray[np.uint8]
R = TypeVar("R")


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
    same = _memory_compare()
    at = other.ctypes.data
    return any(_map_blocks(memory, lambda start, block: same(block.ctypes.data, at + start, len(block)) != 0))


def matching(memory: Bytes, pattern: bytes, among: PatternMatches | None) -> PatternMatches:
    if among is not None and not among.count:
        return among
    check_pattern(memory.nbytes, pattern)
    value = _value(pattern)
    found = _map_blocks(memory, lambda _, block: np.packbits(_elements(block, pattern) == value, bitorder="little"))
    return matches(np.concatenate(found) if found else np.empty(0, np.uint8), among)


def matches(bits: Bytes, among: PatternMatches | None) -> PatternMatches:
    """Count ``bits``; where ``among`` is given, only those that are set there too."""
    if among is not None:
        bits = bits & among.bits
    count = int(np.bitwise_count(bits).sum())
    if not count:
        return PatternMatches(0, None, np.empty(0, np.uint8))
    byte = int((bits != 0).argmax())
    return PatternMatches(count, 8 * byte + int(np.unpackbits(bits[byte : byte + 1], bitorder="little").argmax()), bits)


def compare(got: Bytes, dtype: DType, want: Bytes, absolute: float, relative: float) -> Comparison:
    """Compare, and stop at the first block with a wrong element."""
    values = want.view(wanted_dtype(dtype, got.nbytes, want.nbytes))
    if dtype == float32 and got.nbytes >= LARGE_BYTES and (absolute > 0 or relative > 0):
        worst = _largest_error(got.view(np.float32), want.view(np.float64), absolute, relative)
        if worst <= 1.0:
            return Comparison(worst)  # Otherwise the loop below finds the wrong element.
    largest = 0.0
    for start, block in _blocks(got):
        first = start // dtype.bytes
        wanted = values[first : first + len(block) // dtype.bytes]
        found = block if dtype.is_bool else block.view(dtype.numpy)
        errors = _errors(found, wanted, absolute, relative, dtype)
        worst = float(errors.max())
        if not worst <= 1.0:
            at = int((errors > 1.0).argmax())
            return Comparison(worst, first + at, found[at], wanted[at])
        largest = max(largest, worst)
    return Comparison(largest)


def _largest_error(got: NDArray[np.float32], want: NDArray[np.float64], absolute: float, relative: float) -> float:
    """Return the largest error of all elements, and NaN where any is NaN."""
    size = BLOCK_BYTES // got.itemsize
    whole = len(got) // LANES * LANES

    def of_block(start: int, block: Bytes) -> float:
        first = start // got.itemsize
        last = min(first + size, whole)
        return largest_error(got[first:last], want[first:last], absolute, relative) if last > first else 0.0

    rest = _errors(got[whole:], want[whole:], absolute, relative, float32)
    return float(np.max([*_map_blocks(got.view(np.uint8), of_block), *rest]))


def _errors(
    got: NDArray[np.generic], want: NDArray[np.generic], absolute: float, relative: float, dtype: DType
) -> NDArray[np.float64]:
    """Return the error of each element, which is never NaN."""
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
    """Return the dtype in which the wanted elements are stored. Raises InvalidParameter where the sizes do not fit."""
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
    """View ``memory`` as unsigned integers of the size of ``pattern``, without a copy."""
    return memory.view(f"u{len(pattern)}")


def _value(pattern: bytes) -> np.unsignedinteger:
    value: np.unsignedinteger = np.frombuffer(pattern, f"u{len(pattern)}")[0]
    return value


def _blocks(memory: Bytes) -> Iterator[tuple[int, Bytes]]:
    """Yield (first byte, bytes) of each block; a block has whole elements of any type."""
    for start in range(0, memory.nbytes, BLOCK_BYTES):
        yield start, memory[start : start + BLOCK_BYTES]


def _map_blocks(memory: Bytes, work: Callable[[int, Bytes], R]) -> Sequence[R]:
    """Call ``work`` with the first byte of each block and the block, and return the results in order."""
    blocks = list(_blocks(memory))
    if memory.nbytes < LARGE_BYTES:
        return [work(*block) for block in blocks]
    each = -(-len(blocks) // _processors())
    chunks = [blocks[n : n + each] for n in range(0, len(blocks), each)]
    return [found for results in _threads().map(lambda chunk: [work(*b) for b in chunk], chunks) for found in results]


@cache
def _memory_compare() -> Callable[[int, int, int], int]:
    """Return the C library's memcmp. Other threads of Python run while it works."""
    compare = CDLL(None).memcmp
    compare.argtypes, compare.restype = (c_void_p, c_void_p, c_size_t), c_int
    return cast(Callable[[int, int, int], int], compare)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_processors(), thread_name_prefix="checks")


@cache
def _processors() -> int:
    return len(os.sched_getaffinity(0))
