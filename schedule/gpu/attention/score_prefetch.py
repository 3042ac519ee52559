"""Loads what scores read of other tensors, such as a bias, one block of keys ahead.

A thread reads two neighbours at once, where they lie next to each other and a row has no odd pitch. They are under way
while the weights of the block before are computed and multiplied with V. With ``score_tiles``, TMA brings tiles of
16-bit numbers together with the keys of a block, and ldmatrix gives each thread those of its scores.
"""

from collections.abc import Mapping

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, Load, Ramp, Var, index, minimum
from ....ir.gpu.ldmatrix import LoadMatrix
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M
from ....ir.rewrite import map_loads
from ...problems.attention import Attention
from ...tile.names import FreshNameWriter
from ...tile.stage_body import vector_at
from ..gemm.sizes import WARPGROUP_WARPS
from .operand_tiles import OperandTiles
from .place_forms import FirstPlace
from .roles import AttentionRoles
from .score_loads import pairs_of

ELEMENT = Var("element#")
"""Which of a thread's elements of a block a score is. No variable of a kernel has this name."""


class ScorePrefetch:
    """``first``: as in ``PlaceForms``, of the block at a place. ``tiles``: load -> its tiles in shared memory."""

    def __init__(
        self,
        w: FreshNameWriter,
        p: Attention,
        roles: AttentionRoles,
        tile_kv: int,
        first: FirstPlace,
        tiles: Mapping[Load, OperandTiles],
    ) -> None:
        self.w, self.p, self.roles, self.tile_kv, self.first, self.tiles = w, p, roles, tile_kv, first, tiles
        self.registers: dict[Load, Buffer] = {
            load: w.allocate("prefetched", (tile_kv // 2,), load.dtype, MemoryScope.REGISTER) for load in pairs_of(p)
        }

    def taken(self, body: Expr) -> Expr:
        """Return ``body`` with the loads taken from registers, on the axis ``ELEMENT``."""
        return map_loads(body, lambda e: Load(self.registers[e], (ELEMENT,)) if e in self.registers else e)

    def fetch(self, stage: Expr) -> None:
        """Load what a warp needs of the tiles in ``stage``: two neighbouring matrices of 8 keys in each half of its
        rows at once."""
        roles = self.roles
        first_row = roles.row_warpgroup * WGMMA_M + roles.warp % WARPGROUP_WARPS * (WGMMA_M // WARPGROUP_WARPS)
        row = first_row + roles.lane // 8 % 2 * 8 + roles.lane % 8
        for load, tiles in self.tiles.items():
            for key in range(0, self.tile_kv, 16):
                column = index(key % SWIZZLE_128B_ELEMENTS) + roles.lane // 16 * 8
                source = (stage, index(key // SWIZZLE_128B_ELEMENTS), row, column)
                self.w.emit(LoadMatrix(self.registers[load], (index(key // 2),), tiles.buffer, source, 4))

    def load(self, at: Mapping[str, Expr]) -> None:
        """Start to load what the block at ``at`` needs and no tile brings. Places outside of the scores read the last
        row or keys."""
        w = self.w
        for load, register in self.registers.items():
            if load in self.tiles:
                continue
            with (
                w.unrolled("prefetched_pair", self.tile_kv // 8) as pair,
                w.unrolled("prefetched_half", 2) as half,
            ):
                place = self.first(at, half)
                place["m"], place["n"] = minimum(place["m"], self.p.last_m), place["n"] + pair * 8
                if self.p.n.extent % self.tile_kv:
                    place["n"] = minimum(place["n"], index(self.p.n.extent - 2))
                w.store(register, (Ramp(pair * 4 + half * 2, 1, 2),), vector_at(load, place, "n", 2))
