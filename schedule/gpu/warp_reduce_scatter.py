"""Several values summed over the lanes of a warp together: with every exchange a lane gives away half of what it has.

At distance 16 a lane keeps the first or the second half of the values, by that bit of its number, and sends the other
half to the lane that keeps it; at 8 half of those; and so on until each lane has one value, which plain butterflies sum
up over the distances that are left. 16 values take 8 + 4 + 2 + 1 + 1 shuffles, where each alone would take 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.buffer import Buffer
from ...ir.build import Writer
from ...ir.expr import WARP_LANES, Compare, CompareOp, Expr, Load, Select, Shuffle, ShuffleMode, index, logical_and


@dataclass(frozen=True, slots=True)
class LaneSum:
    """What a lane has after an exchange: the sum of value ``number``, in register ``slot`` of the values. ``here``:
    whether this lane is the one that counts, of those that have the value; None where every lane is."""

    slot: int
    number: Expr
    here: Expr | None


def sum_over_lanes(w: Writer, values: Buffer, lane: Expr, apart: int = 1) -> Sequence[LaneSum]:
    """All ``values`` (registers of one dimension) summed over the lanes whose numbers differ by multiples of ``apart``,
    a power of two below 32: each sum is then in one lane of them. Always added up in the same order. Groups of as many
    values as there are such lanes are exchanged together; one sum a lane is left of each group."""
    (count,), lanes = values.shape, WARP_LANES // apart
    return tuple(_group(w, values, first, min(lanes, count - first), lane, apart) for first in range(0, count, lanes))


def _group(w: Writer, values: Buffer, first: int, count: int, lane: Expr, apart: int) -> LaneSum:
    width = 1 << (count - 1).bit_length()
    distance, held = WARP_LANES // 2, width
    while distance >= apart:
        last, held = min(held, count), max(held // 2, 1)
        upper = Compare(CompareOp.NE, lane // distance % 2, index(0))
        for slot in range(min(held, last)):
            kept: Expr = Load(values, (index(first + slot),))
            given = kept
            if slot + held < last:  # else there is no other value: both lanes keep this one, and the first one counts
                other = Load(values, (index(first + slot + held),))
                kept, given = Select(upper, other, kept), Select(upper, kept, other)
            w.store(values, (index(first + slot),), kept + Shuffle(ShuffleMode.XOR, given, index(distance)))
        distance //= 2
    copies = WARP_LANES // apart // width
    place = lane // apart if apart > 1 else lane
    number = place // copies if copies > 1 else place
    tests = [Compare(CompareOp.EQ, place % copies, index(0))] if copies > 1 else []
    tests += [Compare(CompareOp.LT, number, index(count))] if count < width else []
    return LaneSum(first, number + first if first else number, logical_and(*tests) if tests else None)
