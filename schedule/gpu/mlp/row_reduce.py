"""Reductions of rows whose parts lie in fragments of matrix instructions, in all warps of a block or cluster."""

from collections.abc import Iterator
from contextlib import contextmanager

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import (
    Binary,
    BinaryOp,
    Broadcast,
    ClusterLoad,
    Compare,
    CompareOp,
    Expr,
    Load,
    Ramp,
    Shuffle,
    ShuffleMode,
    index,
    logical_and,
)
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.cluster import ClusterLoadWait
from ....ir.stmt import LoopKind

QUAD = 4
"""Lanes that hold neighbouring sums of one row, two each."""
FRAGMENT_ROWS = 16
"""Rows of a fragment, of which a lane has sums of two, 8 apart."""


class RowReducer:
    """Combines values of rows, ``rows`` times 16, that each of ``warps`` warps in each of ``cluster`` blocks has parts
    of. Every reduction must be reached by all of them."""

    def __init__(self, w: Writer, rows: int, warps: int, cluster: int, warp: Expr, lane: Expr) -> None:
        self.w, self.rows, self.warps, self.cluster, self.warp, self.lane = w, rows, warps, cluster, warp, lane
        self.reductions = 0
        # two of each: the barriers of a reduction stand between two uses of one
        if warps > 1:
            self.of_warps = w.allocate("of_warps", (2, rows * FRAGMENT_ROWS, warps), float32, MemoryScope.SHARED)
        if cluster > 1:
            self.of_blocks = w.allocate("of_blocks", (2, rows * FRAGMENT_ROWS), float32, MemoryScope.SHARED)

    @contextmanager
    def lines(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        """The rows of a lane: (sixteen, half, row of the block)."""
        with self.w.loop("line", self.rows, LoopKind.UNROLLED) as i, self.w.loop("half", 2, LoopKind.UNROLLED) as half:
            yield i, half, i * FRAGMENT_ROWS + half * 8 + self.lane // QUAD

    def reduce(self, op: BinaryOp, value: Buffer) -> None:
        """``value``, for each (sixteen, half), becomes that of the whole row, the same in every lane that has it."""
        w = self.w
        with self.lines() as (i, half, _):
            for distance in (1, 2):
                other = Shuffle(ShuffleMode.XOR, Load(value, (i, half)), index(distance))
                w.store(value, (i, half), Binary(op, Load(value, (i, half)), other))
        slot = index(self.reductions % 2)
        self.reductions += 1
        if self.warps > 1:
            self._over_warps(op, value, slot)
        if self.cluster > 1:
            self._over_blocks(op, value, slot)

    def _over_warps(self, op: BinaryOp, value: Buffer, slot: Expr) -> None:
        w, parts, warps = self.w, self.of_warps, self.warps
        with w.when(Compare(CompareOp.EQ, self.lane % QUAD, index(0))), self.lines() as (i, half, row):
            w.store(parts, (slot, row, self.warp), Load(value, (i, half)))
        w.barrier()
        with self.lines() as (i, half, row):
            together = w.allocate("together", (warps,), float32, MemoryScope.REGISTER)
            width = min(warps, 4)
            for first in range(0, warps, width):
                run = Ramp(index(first), 1, width)
                w.store(together, (run,), Load(parts, (Broadcast(slot, width), Broadcast(row, width), run)))
            total: Expr = Load(together, (index(0),))
            for number in range(1, warps):
                total = Binary(op, total, Load(together, (index(number),)))
            w.store(value, (i, half), total)

    def _over_blocks(self, op: BinaryOp, value: Buffer, slot: Expr) -> None:
        w, parts = self.w, self.of_blocks
        one = logical_and(Compare(CompareOp.EQ, self.lane % QUAD, index(0)), Compare(CompareOp.EQ, self.warp, index(0)))
        with w.when(one), self.lines() as (i, half, row):
            w.store(parts, (slot, row), Load(value, (i, half)))
        w.barrier(SyncScope.CLUSTER)
        with self.lines() as (i, half, row):
            total: Expr = ClusterLoad(parts, (slot, row), index(0))
            for number in range(1, self.cluster):
                total = Binary(op, total, ClusterLoad(parts, (slot, row), index(number)))
            w.store(value, (i, half), total)
            w.emit(ClusterLoadWait(Load(value, (i, half))))
