"""Stores what accumulators hold: each consumer warpgroup puts its rows, as they are in the end, in the place of its
queries, by stmatrix, and one thread stores them by TMA. Outputs that TMA cannot store so, such as float32, are stored
from registers."""

from collections.abc import Mapping

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, Load, Ramp, Var, index, logical_and, minimum
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.fence import AsyncProxyFence
from ....ir.gpu.mbarrier import MbarrierArrive
from ....ir.gpu.tma import TmaStore, TmaStoreCommit, TmaStoreWait
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M
from ....ir.rewrite import loads_of, substitute
from ....te.functions import equal
from ...problems.attention import Attention
from ...tile.names import FreshNameWriter
from ...tile.stage_body import LoadReplacement, vector_at
from ..block_reduce import QUAD
from ..gemm.sizes import WARPGROUP_WARPS
from .operand_tiles import can_load, store_fragments
from .roles import AttentionRoles
from .softmax import row_of


class AttentionEpilogue:
    """``staged`` is the tile of queries: (stage, 64 columns, row, column)."""

    def __init__(
        self, w: FreshNameWriter, p: Attention, roles: AttentionRoles, staged: Buffer, q_empty: Buffer
    ) -> None:
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
        w, p, columns = self.w, self.p, sums.shape[0] * 2
        first_column = self.roles.column_warpgroup * columns
        if not can_store(p):
            self._store_from_registers(sums, at, iteration, first_column)
            return
        first_row, stage = self.roles.row_warpgroup * WGMMA_M, iteration % self.stages
        first_atom = first_column // SWIZZLE_128B_ELEMENTS
        with w.scope():
            output = w.allocate("output", sums.shape, p.result.tensor.dtype, MemoryScope.REGISTER)
            with w.unrolled("output_pair", columns // 8) as pair, w.unrolled("output_half", 2) as half:
                m, first = at["m"] + row_of(self.roles, half), pair * 4 + half * 2
                if any(load.buffer != p.normalised for load in loads_of(p.result.value)):
                    m = minimum(m, p.last_m)
                here = {**at, "m": m, "d": first_column + pair * 8 + self.roles.lane % QUAD * 2}
                held = self._held(sums, here["d"], first)
                w.store(output, (Ramp(first, 1, 2),), vector_at(p.result.value, here, "d", 2, held))
            w.barrier(SyncScope.WARPGROUP)  # all of its wgmma have read the queries
            store_fragments(w, self.roles, output, columns, self.staged, (stage, first_atom), first_row)
        w.emit(AsyncProxyFence())
        w.barrier(SyncScope.WARPGROUP)
        with w.when(self.elected):
            for atom, column in enumerate(range(0, columns, SWIZZLE_128B_ELEMENTS)):
                corner = {**at, "m": at["m"] + first_row, "d": first_column + column}
                box = tuple(
                    WGMMA_M if i == Var("m") else SWIZZLE_128B_ELEMENTS if i == Var("d") else 1
                    for i in p.result.indices
                )
                to = tuple(substitute(i, corner) for i in p.result.indices)
                source = (stage, first_atom + atom, first_row, index(0))
                w.emit(TmaStore(p.result.tensor, to, self.staged, source, box))
            w.emit(TmaStoreCommit())
            if self.stages == 1:
                w.emit(TmaStoreWait(0))
                w.emit(MbarrierArrive(self.q_empty, stage))

    def _store_from_registers(self, sums: Buffer, at: Mapping[str, Expr], iteration: Expr, first_column: Expr) -> None:
        w, p = self.w, self.p
        with w.unrolled("stored_half", 2) as half:
            m = at["m"] + row_of(self.roles, half)
            with w.when(m < p.m_end), w.unrolled("stored", sums.shape[0] // 4) as pair:
                here = {**at, "m": m, "d": first_column + pair * 8 + self.roles.lane % QUAD * 2}
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


def can_store(p: Attention) -> bool:
    """Return whether TMA can store the output."""
    output = Load(p.result.tensor, p.result.indices)
    return p.result.tensor.dtype == p.q.buffer.dtype and can_load(output, "m", "d")
