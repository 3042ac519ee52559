"""Hands weights from the warpgroup that computes them to those that multiply them with further columns of V.

    first warpgroup                                 others
    scores, weights of a block
    wait until the last weights have been used
    store weights and decay, arrive at full         wait until they are there, load the decay
    sums = decay * sums + weights V (registers)     sums = decay * sums + weights V (shared memory)
                                                    arrive at empty

After the last block the reciprocals of the sums of weights go the same way in place of the decay.
"""

from collections.abc import Sequence

from ....core.dtypes import float32
from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import Expr, Load, index
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.fence import AsyncProxyFence
from ....ir.gpu.mbarrier import MbarrierArrive, MbarrierInit, MbarrierWait
from ....ir.gpu.wgmma import SWIZZLE_128B, SWIZZLE_128B_ELEMENTS, WGMMA_M
from ....te.functions import equal
from ...problems.attention import Attention
from ...tile.names import FreshNameWriter
from ..block_reduce import QUAD
from ..gemm.mainloop import StageBarriers
from ..gemm.sizes import WARPGROUP_WARPS
from .operand_tiles import column_atoms, store_fragments
from .roles import AttentionRoles
from .softmax import row_of


class WeightExchange:
    """``weights`` is (part of a weight, 64 keys, query, key); ``factors`` is what each query's sums are scaled by. A
    ``fill`` is the number of a hand-over among all that a CTA makes."""

    def __init__(self, w: FreshNameWriter, p: Attention, roles: AttentionRoles, tile_kv: int, followers: int) -> None:
        self.w, self.roles, self.tile_kv, self.followers = w, roles, tile_kv, followers
        side, atoms = SWIZZLE_128B_ELEMENTS, column_atoms(tile_kv)
        layout = Layout((atoms * WGMMA_M * side, WGMMA_M * side, side, 1), SWIZZLE_128B)
        shape = (p.weight_parts, atoms, WGMMA_M, side)
        self.weights = w.allocate("given_weights", shape, p.q.buffer.dtype, MemoryScope.SHARED, layout)
        self.factors = w.allocate("given_factors", (WGMMA_M,), float32, MemoryScope.SHARED)
        self.barriers = StageBarriers(w, 1)

    def initialise_barriers(self) -> None:
        """One thread does so, ahead of a barrier of the block."""
        self.w.emit(MbarrierInit(self.barriers.full, index(0), WARPGROUP_WARPS))
        self.w.emit(MbarrierInit(self.barriers.empty, index(0), self.followers * WARPGROUP_WARPS))

    def give(self, factors: Buffer, weights: Sequence[Buffer], fill: Expr) -> None:
        """Hand over the ``weights`` that a thread holds, if any, and the ``factors`` of its two rows."""
        w, roles = self.w, self.roles
        w.emit(MbarrierWait(self.barriers.empty, index(0), 1 - fill % 2))
        for part, registers in enumerate(weights):
            store_fragments(w, roles, registers, self.tile_kv, self.weights, (index(part), index(0)), index(0))
        with w.when(equal(roles.lane % QUAD, 0)), w.unrolled("given_half", 2) as half:
            w.store(self.factors, (row_of(roles, half),), Load(factors, (half,)))
        if weights:
            w.emit(AsyncProxyFence())
        self._arrive(self.barriers.full)

    def take(self, factors: Buffer, fill: Expr) -> None:
        """Wait for what is handed over, and load the factors of a thread's two rows."""
        w = self.w
        w.emit(MbarrierWait(self.barriers.full, index(0), fill % 2))
        with w.unrolled("taken_half", 2) as half:
            w.store(factors, (half,), Load(self.factors, (row_of(self.roles, half),)))

    def release(self) -> None:
        """Let the next weights take the place of those that a warp has multiplied."""
        self._arrive(self.barriers.empty)

    def _arrive(self, barriers: Buffer) -> None:
        self.w.barrier(SyncScope.WARP)
        with self.w.when(self.roles.first_lane):
            self.w.emit(MbarrierArrive(barriers, index(0)))
