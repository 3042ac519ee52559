"""Where intermediate values lie: one block of memory, in which values that are not alive at once share space."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A value of ``bytes``, alive from call ``first`` to call ``last``, both included."""

    name: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Arena:
    """The offset of each value in a block of ``bytes``, multiples of 64."""

    offsets: Mapping[str, int]
    bytes: int


def plan_arena(lifetimes: Sequence[Lifetime]) -> Arena:
    """Places for all values. The largest is placed first. Each lies at the lowest offset that is free while it
    lives."""
    placed: list[tuple[Lifetime, int]] = []
    for value in sorted(lifetimes, key=lambda v: (-v.bytes, v.first, v.name)):
        offset = 0
        for other, at in sorted(placed, key=lambda p: p[1]):
            if other.last < value.first or value.last < other.first:
                continue
            if offset + value.bytes <= at:
                break
            offset = max(offset, _aligned(at + other.bytes))
        placed.append((value, offset))
    return Arena({v.name: at for v, at in placed}, max((_aligned(at + v.bytes) for v, at in placed), default=0))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
