"""Writes a reduce-scatter over the lanes of a warp: several values summed together, each sum left in one lane.

With every exchange a lane gives away half of the values that it still has. At distance 16 it keeps the first or the
second half, by that bit of its number, and sends the other half to the lane that keeps it. At distance 8 it gives away
half of what is left, and so on until each lane has one value. Plain butterflies sum that value over the distances that
are left. 16 values take 8 + 4 + 2 + 1 + 1 shuffles, where a butterfly for each would take 5 times 16.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.buffer import Buffer
from ...ir.build import Writer
from ...ir.expr import WARP_LANES, Expr, Load, Select, Shuffle, ShuffleMode, conjunction, index
from ...te.functions import equal, not_equal


@dataclass(frozen=True, slots=True)
class ScatteredSum:
    """What every lane has after a reduce-scatter: the sum of value ``number``, in register ``register`` of the values.
    ``owns`` says whether a lane is the one that stores the sum, since several may have it; None where every lane is.
    """

    register: int
    number: Expr
    owns: Expr | None


def warp_reduce_scatter(w: Writer, values: Buffer, lane: Expr, stride: int = 1) -> Sequence[ScatteredSum]:
    """Sum all ``values``, a register buffer of one dimension, over the lanes whose numbers differ by multiples of
    ``stride``, a power of two below 32. The order of the additions is always the same.

    As many values as there are such lanes are exchanged together. A lane is left with one sum of each group of them.
    """
    (count,), lanes = values.shape, WARP_LANES // stride
    return tuple(
        _reduce_group(w, values, first, min(lanes, count - first), lane, stride) for first in range(0, count, lanes)
    )


def _reduce_group(w: Writer, values: Buffer, first: int, count: int, lane: Expr, stride: int) -> ScatteredSum:
    width = 1 << (count - 1).bit_length()
    distance, held = WARP_LANES // 2, width
    while distance >= stride:
        last, held = min(held, count), max(held // 2, 1)
        upper = not_equal(lane // distance % 2, 0)
        for slot in range(min(held, last)):
            kept: Expr = Load(values, (index(first + slot),))
            given = kept
            if slot + held < last:  # else there is no other value: both lanes keep this one, and the first one owns it
                other = Load(values, (index(first + slot + held),))
                kept, given = Select(upper, other, kept), Select(upper, kept, other)
            w.store(values, (index(first + slot),), kept + Shuffle(ShuffleMode.XOR, given, index(distance)))
        distance //= 2
    copies = WARP_LANES // stride // width
    rank = lane // stride if stride > 1 else lane
    number = rank // copies if copies > 1 else rank
    tests = [equal(rank % copies, 0)] if copies > 1 else []
    tests += [number < count] if count < width else []
    return ScatteredSum(first, number + first if first else number, conjunction(*tests))
