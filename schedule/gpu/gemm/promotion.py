"""Accumulators of matrix units are promoted: added, block after block of k, to accumulators in float32.

    for each block of k:
      begin block_sums = the products of the block, by wgmma
      begin to load the scales of the next block
      wait for the products
      accumulators += block_sums * (scale of A * scale of B)

Where a block is a single k iteration, this is done for one atom of 64 rows after the other, with the block sums of one.

On Hopper the accumulators of 8-bit floats keep about 14 bits, and all are truncated with every instruction. While one
warpgroup adds, another one multiplies. Scales are those of 128 places of k in a row of A and in 128 columns of B; where
there are none, block sums are added as they are. Those of the next block are loaded while one is multiplied: the
compiler multiplies scales ahead of the wgmma, which would otherwise wait for memory.
"""

from collections.abc import Mapping
from math import gcd

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import Broadcast, Expr, Load, Ramp, const, index, minimum
from ....ir.gpu.wgmma import WGMMA_M
from ....ir.rewrite import substitute
from ....ir.stmt import LoopKind
from ...problems.gemm import SCALED_K, Gemm
from .mainloop import WarpRoles
from .sizes import WARPGROUP_WARPS, GemmSizes

UNROLLED = LoopKind.UNROLLED
WARP_ROWS = WGMMA_M // WARPGROUP_WARPS

Scales = tuple[Buffer, Buffer]
"""The scales of a block that a thread needs: of its rows of A (two for each wgmma atom), and of the columns of B."""


class Promotion:
    """Writes how the accumulators of a block of k are added to sums in float32, with the scales of the block."""

    def __init__(self, w: Writer, gemm: Gemm, sizes: GemmSizes[int], roles: WarpRoles) -> None:
        self.w, self.gemm, self.s, self.roles = w, gemm, sizes, roles
        self.scale_columns = gcd(sizes.tile_n, SCALED_K)
        """So many neighbouring columns have the same scale, wherever a tile begins."""

    def clear(self, accumulators: Buffer) -> None:
        """Set all accumulators to zero."""
        w, s = self.w, self.s
        with w.loop("cleared_atom", s.atoms_m, UNROLLED) as atom, w.loop("cleared", s.mma_n // 2, UNROLLED) as n:
            w.store(accumulators, (atom, n), const(0.0, float32))

    def allocate_scales(self, name: str) -> Scales | None:
        """Registers for the scales of a block; None where there are no scales."""
        if self.gemm.scales is None:
            return None
        of_rows = self.w.allocate(f"row_{name}", (2 * self.s.atoms_m,), float32, MemoryScope.REGISTER)
        groups = self.s.tile_n // self.scale_columns
        return of_rows, self.w.allocate(f"column_{name}", (groups,), float32, MemoryScope.REGISTER)

    def load_scales(self, scales: Scales, at: Mapping[str, Expr]) -> None:
        """Begin to load the scales of the block at ``at`` (axis -> index; ``m``: where the warpgroup's rows begin)."""
        w, gemm, s = self.w, self.gemm, self.s
        assert gemm.scales is not None
        (a, b), (of_rows, of_columns) = gemm.scales, scales
        k = minimum(at["k"], index(gemm.k.extent - 1))
        first = at["m"] + self.roles.warp % WARPGROUP_WARPS * WARP_ROWS + self.roles.lane // 4
        with w.loop("scaled_atom", s.atoms_m, UNROLLED) as atom, w.loop("scaled_half", 2, UNROLLED) as half:
            m = minimum(first + atom * WGMMA_M + half * 8, gemm.m_end - 1)
            w.store(of_rows, (atom * 2 + half,), Load(a.buffer, _indices(a, {**at, "m": m, "k": k})))
        with w.loop("scaled_group", of_columns.elements, UNROLLED) as group:
            n = minimum(at["n"] + group * self.scale_columns, index(gemm.n.extent - 1))
            w.store(of_columns, (group,), Load(b.buffer, _indices(b, {**at, "n": n, "k": k})))

    def copy_scales(self, to: Scales, source: Scales) -> None:
        """Take the scales that have been loaded ahead."""
        for target, loaded in zip(to, source, strict=True):
            with self.w.loop("copied_scale", target.elements, UNROLLED) as number:
                self.w.store(target, (number,), Load(loaded, (number,)))

    def add(self, accumulators: Buffer, block_sums: Buffer, scales: Scales | None, atoms: range) -> None:
        """Add the sums of a block, which have been awaited, for some of the warpgroup's atoms of 64 rows."""
        w, s = self.w, self.s
        with (
            w.loop("added_atom", len(atoms), UNROLLED) as number,
            w.loop("added_pair", s.mma_n // 8, UNROLLED) as pair,
            w.loop("added_half", 2, UNROLLED) as half,
        ):
            atom, columns = number + atoms.start, Ramp(pair * 4 + half * 2, 1, 2)
            at = (Broadcast(atom, 2), columns)
            value: Expr = Load(block_sums, (Broadcast(number, 2), columns))
            if scales is not None:
                of_rows, of_columns = scales
                scale = Load(of_rows, (atom * 2 + half,)) * Load(of_columns, (pair * 8 // self.scale_columns,))
                value = value * Broadcast(scale, 2)
            w.store(accumulators, at, Load(accumulators, at) + value)


def _indices(scale: Load, at: Mapping[str, Expr]) -> tuple[Expr, ...]:
    return tuple(substitute(i, at) for i in scale.indices)
