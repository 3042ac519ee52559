"""Rows in shared memory that TMA brings and takes away. One thread starts the copies."""

from ....core.dtypes import int64
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Compare, CompareOp, Expr, index
from ....ir.gpu.fence import AsyncProxyFence
from ....ir.gpu.mbarrier import MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ....ir.gpu.tma import TmaLoad, TmaStore, TmaStoreCommit, TmaStoreWait
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at
from .strips import Strips


class TmaRows:
    """``stages`` holds rows: [stage, strip, row, pixel, channel]. What lies outside of the images arrives as zeros, and
    is not stored."""

    def __init__(self, w: FreshNameWriter, strips: Strips, stages: Buffer, thread: Expr) -> None:
        self.w, self.strips, self.stages, self.s, self.image = w, strips, stages, strips.s, strips.problem.pixels
        self.elected = Compare(CompareOp.EQ, thread, index(0))
        self.full = w.allocate("full", (strips.s.stages,), int64, MemoryScope.SHARED)

    def begin(self) -> None:
        """Begin to fill all stages."""
        w, s = self.w, self.s
        with w.when(self.elected), w.unrolled("initialised", s.stages) as stage:
            w.emit(MbarrierInit(self.full, stage, 1))
        w.barrier()
        with w.when(self.elected):
            for ahead in range(min(s.stages, s.rounds * s.steps)):
                self._load(index(ahead), index(ahead))

    def wait(self, step: Expr) -> None:
        """Wait for the rows of a step."""
        self.w.emit(MbarrierWait(self.full, step % self.s.stages, step // self.s.stages % 2))

    def leave(self, step: Expr, output: Buffer | None) -> None:
        """Store the rows of an output that lie in the stage of a step, if there is one, and begin to fill the stage of
        the step before, which has been stored meanwhile."""
        w, s = self.w, self.s
        if output is not None:
            w.emit(AsyncProxyFence())
        w.barrier()
        following = step + (s.stages - 1)
        with w.when(self.elected):
            if output is not None:
                self._store(step, output)
                w.emit(TmaStoreCommit())
            if s.rounds * s.steps > s.stages:
                with w.when(step > 0, following < s.rounds * s.steps):
                    if output is not None:
                        w.emit(TmaStoreWait(1))
                    self._load(following, following % s.stages)

    def end(self) -> None:
        """Wait until TMA has read the last rows."""
        with self.w.when(self.elected):
            self.w.emit(TmaStoreWait(0))

    def _load(self, step: Expr, stage: Expr) -> None:
        w, s, strips = self.w, self.s, self.strips
        size = s.strips * s.stage_rows * s.row_room * s.tile_c * self.stages.dtype.bytes
        w.emit(MbarrierArriveExpectTx(self.full, stage, size))
        own = strips.begin(step)
        with w.unrolled("loaded_strip", s.strips) as strip:
            at = strips.corner(strip, own * s.stage_rows)
            corner = tuple(scalar_at(i, at) for i in self.image.indices)
            box = (*(1 for _ in corner[:-3]), s.stage_rows, s.row_room, s.tile_c)
            to = (stage, strip, index(0), index(0), index(0))
            w.emit(TmaLoad(self.stages, to, self.image.buffer, corner, box, self.full, stage, tx_expected=True))

    def _store(self, step: Expr, output: Buffer) -> None:
        """Start to store the rows of outputs that are complete."""
        w, s, strips = self.w, self.s, self.strips
        own = strips.begin(step)
        axes = [a for a in strips.problem.window.axes if a.extent > 1]
        tensor = Buffer(output.name, tuple(a.extent for a in axes), output.dtype)
        box = (*(1 for _ in axes[:-2]), strips.columns, s.tile_c)
        with w.unrolled("stored_strip", s.strips) as strip, w.unrolled("row", s.stage_rows) as row:
            line = own * s.stage_rows + row - s.block_h * (s.slots - 1)
            at = strips.output(strip, line, index(0), index(0))
            with w.when(*strips.complete(strip, line)):
                corner = tuple(at[a.name] for a in axes)
                source = (step % s.stages, strip, row, index(0), index(0))
                w.emit(TmaStore(tensor, corner, self.stages, source, box))
