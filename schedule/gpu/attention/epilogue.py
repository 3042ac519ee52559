"""Stores what accumulators hold: each consumer warpgroup puts its rows, as they are in the end, in the place of its
queries, by stmatrix, and one thread stores them by TMA. Outputs that TMA cannot store so, such as float32, are stored
from registers."""

from collections.abc import Mapping

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, Load, Ramp, Var, index, logical_and, minimum
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.fence import AsyncProxyFence
from ....ir.gpu.ldmatrix import StoreMatrix
from ....ir.gpu.mbarrier import MbarrierArrive
from ....ir.gpu.tma import TmaStore, TmaStoreCommit, TmaStoreWait
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M
from ....ir.rewrite import loads_of, substitute
from ....te.functions import equal
from ...problems.attention import Attention
from ...tile.names import FreshNameWriter
from ...tile.stage_body import LoadReplacement, vector_at
from ..block_reduce import QUAD
from ..gemm.mainloop import WarpRoles
from ..gemm.sizes import WARPGROUP_WARPS
from .operand_tiles import can_load
from .softmax import WARP_ROWS, row_of


class AttentionEpilogue:
    """``staged`` is the tile of queries: (stage, 64 columns, row, column)."""

    def __init__(self, w: FreshNameWriter, p: Attention, roles: WarpRoles, staged: Buffer, q_empty: Buffer) -> None:
        self.w, self.p, self.roles, self.staged, self.q_empty = w, p, roles, staged, q_empty
        self.stages = staged.shape[0]
        self.warp_in_group = roles.warp % WARPGROUP_WARPS
        self.elected = logical_and(equal(self.warp_in_group, 0), roles.first_lane)

    def release(self, iteration: Expr) -> None:
        """Release the tile of queries of the iteration before, once it has been stored from there."""
        w = self.w
        with w.when(self.elected), w.when(iteration > 0):
            w.emit(TmaStoreWait(0))
            w.emit(MbarrierArrive(self.q_empty, (iteration - 1) % self.stages))

    def end(self) -> None:
        """Wait until TMA has read the last tile."""
        with self.w.when(self.elected):
            self.w.emit(TmaStoreWait(0))

    def store(self, sums: Buffer, at: Mapping[str, Expr], iteration: Expr) -> None:
        """Store what follows from the normalised ``sums`` of the tile at ``at``."""
        w, p = self.w, self.p
        if not can_store(p):
            self._store_from_registers(sums, at, iteration)
            return
        first_row, stage = self.roles.warpgroup * WGMMA_M, iteration % self.stages
        with w.scope():
            output = w.allocate("output", sums.shape, p.result.tensor.dtype, MemoryScope.REGISTER)
            with w.unrolled("output_pair", p.d.extent // 8) as pair, w.unrolled("output_half", 2) as half:
                m, first = at["m"] + row_of(self.roles, half), pair * 4 + half * 2
                if any(load.buffer != p.normalised for load in loads_of(p.result.value)):
                    m = minimum(m, p.last_m)
                here = {**at, "m": m, "d": pair * 8 + self.roles.lane % QUAD * 2}
                held = self._held(sums, here["d"], first)
                w.store(output, (Ramp(first, 1, 2),), vector_at(p.result.value, here, "d", 2, held))
            w.barrier(SyncScope.WARPGROUP)  # all of its wgmma have read the queries
            self._stage(output, stage, first_row)
        w.emit(AsyncProxyFence())
        w.barrier(SyncScope.WARPGROUP)
        with w.when(self.elected):
            for atom, column in enumerate(range(0, p.d.extent, SWIZZLE_128B_ELEMENTS)):
                corner = {**at, "m": at["m"] + first_row, "d": index(column)}
                box = tuple(
                    WGMMA_M if i == Var("m") else SWIZZLE_128B_ELEMENTS if i == Var("d") else 1
                    for i in p.result.indices
                )
                to = tuple(substitute(i, corner) for i in p.result.indices)
                w.emit(TmaStore(p.result.tensor, to, self.staged, (stage, index(atom), first_row, index(0)), box))
            w.emit(TmaStoreCommit())
            if self.stages == 1:
                w.emit(TmaStoreWait(0))
                w.emit(MbarrierArrive(self.q_empty, stage))

    def _store_from_registers(self, sums: Buffer, at: Mapping[str, Expr], iteration: Expr) -> None:
        w, p = self.w, self.p
        with w.unrolled("stored_half", 2) as half:
            m = at["m"] + row_of(self.roles, half)
            with w.when(m < p.m_end), w.unrolled("stored", p.d.extent // 8) as pair:
                here = {**at, "m": m, "d": pair * 8 + self.roles.lane % QUAD * 2}
                held = self._held(sums, here["d"], pair * 4 + half * 2)
                to = [vector_at(i, here, "d", 2) for i in p.result.indices]
                w.store(p.result.tensor, to, vector_at(p.result.value, here, "d", 2, held))
        w.barrier(SyncScope.WARPGROUP)  # all of its wgmma have read the queries
        if self.stages == 1:
            with w.when(self.elected):
                w.emit(MbarrierArrive(self.q_empty, iteration % self.stages))

    def _held(self, sums: Buffer, d: Expr, first: Expr) -> LoadReplacement:
        """Return what replaces loads of an output from column ``d`` on, whose ``sums`` begin at ``first``."""
        return lambda load: Load(sums, (Var("d") - d + first,)) if load.buffer == self.p.normalised else load

    def _stage(self, output: Buffer, stage: Expr, first_row: Expr) -> None:
        """Matrices of 8 by 8, two below one another, two such pairs at once where there are so many columns left."""
        w, lane, d = self.w, self.roles.lane, self.p.d.extent
        row = first_row + self.warp_in_group * WARP_ROWS + lane // 8 % 2 * 8 + lane % 8
        for first in range(0, d, 16):
            atom, column = first // SWIZZLE_128B_ELEMENTS, first % SWIZZLE_128B_ELEMENTS
            if first + 16 <= d:
                to = (stage, index(atom), row, index(column) + lane // 16 * 8)
                w.emit(StoreMatrix(self.staged, to, output, (index(first // 2),), 4))
            else:
                to = (stage, index(atom), row, index(column))
                w.emit(StoreMatrix(self.staged, to, output, (index(first // 2),), 2))


def can_store(p: Attention) -> bool:
    """Return whether TMA can store the output."""
    output = Load(p.result.tensor, p.result.indices)
    return p.result.tensor.dtype == p.q.buffer.dtype and can_load(output, "m", "d")
