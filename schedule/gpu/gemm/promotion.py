"""Accumulators of matrix units are promoted: added, block after block of k, to accumulators in float32.

    for each block of k:
      begin block_sums = the products of the block, by wgmma
      at every fourth block: multiply the scales that have been loaded with each other, and begin to load the next
      take the products of scales of this block
      wait for the products of the block
      accumulators += block_sums * products of scales

Where a block is a single k iteration, this is done for one atom of 64 rows after the other, with the block sums of one.

On Hopper the accumulators of 8-bit floats keep about 14 bits, and all are truncated with every instruction. While one
warpgroup adds, another one multiplies. Scales are those of 128 places of k in a row of A and in 128 columns of B; where
there are none, block sums are added as they are.

Four lanes of a warp have the same rows. Each of them loads the scales of another block, and the lanes take products of
scales from each other. A load of a warp so brings neighbours along k, a quarter of the loads does, and each has four
blocks of time. Nothing that waits for memory is ahead of a wgmma.

Loads and shuffles take no time that shows: 4096^3 takes an H200 108 us, also with products of scales that lie in shared
memory and with scales that never change. With one scale for each operand it takes 98 us: block sums are then added by
instructions of two operands, not three. Tiles of 256x128 and 128x192 were slower with warpgroups that take turns to
multiply, with shuffles between the wgmma of two atoms (by 4 to 22 %), and with a load for each block and no shuffles
where scales are neighbours along m (by 18 to 37 %).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from math import gcd
from operator import add

import numpy as np

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import Broadcast, Expr, Load, Ramp, Shuffle, ShuffleMode, const, index, minimum
from ....ir.gpu.wgmma import WGMMA_M
from ....ir.rewrite import substitute
from ...problems.gemm import SCALED_K, Gemm
from .mainloop import WarpRoles
from .sizes import WARPGROUP_WARPS, GemmSizes

WARP_ROWS = WGMMA_M // WARPGROUP_WARPS

SHARERS = 4
"""So many lanes have the same rows of an accumulator. Each of them loads the scales of another block."""


@dataclass(frozen=True, slots=True)
class PromotionScales:
    """The registers of a thread for scales of its rows (two for each wgmma atom), and of groups of columns.

    ``of_rows``, ``of_columns``: the scales that have been loaded, of the block of this lane. ``products``: (row, group
    of columns), what is multiplied with each other of them. ``taken``: the products of the block at hand, from the lane
    that has them.
    """

    of_rows: Buffer
    of_columns: Buffer
    products: Buffer
    taken: Buffer


class Promotion:
    """Writes how the accumulators of a block of k are added to sums in float32, with the scales of the block."""

    def __init__(self, w: Writer, gemm: Gemm, sizes: GemmSizes[int], roles: WarpRoles) -> None:
        self.w, self.gemm, self.s, self.roles = w, gemm, sizes, roles
        self.scale_columns = gcd(sizes.tile_n, SCALED_K)
        """So many neighbouring columns have the same scale, wherever a tile begins."""

    def clear(self, accumulators: Buffer) -> None:
        """Set all accumulators to zero."""
        w, s = self.w, self.s
        with w.unrolled("cleared_atom", s.atoms_m) as atom, w.unrolled("cleared", s.mma_n // 2) as n:
            w.store(accumulators, (atom, n), const(0.0, float32))

    def allocate_scales(self) -> PromotionScales | None:
        """Registers for scales; None where there are none."""
        if self.gemm.scales is None:
            return None
        rows, groups = 2 * self.s.atoms_m, self.s.tile_n // self.scale_columns

        def registers(name: str, *shape: int) -> Buffer:
            return self.w.allocate(name, shape, float32, MemoryScope.REGISTER)

        return PromotionScales(
            registers("row_scales", rows),
            registers("column_scales", groups),
            registers("scale_products", rows, groups),
            registers("scales", rows, groups),
        )

    def load_scales(self, scales: PromotionScales, at: Mapping[str, Expr]) -> None:
        """Begin to load the scales of the block at ``at`` (axis -> index; ``m``: where the warpgroup's rows begin).
        Each of the ``SHARERS`` lanes that have the same rows has a block of its own."""
        w, gemm, s = self.w, self.gemm, self.s
        assert gemm.scales is not None
        a, b = gemm.scales
        k = minimum(at["k"], index(gemm.k.extent - 1))
        first = at["m"] + self.roles.warp % WARPGROUP_WARPS * WARP_ROWS + self.roles.lane // SHARERS
        with w.unrolled("scaled_atom", s.atoms_m) as atom, w.unrolled("scaled_half", 2) as half:
            m = minimum(first + atom * WGMMA_M + half * 8, gemm.m_end - 1)
            w.store(scales.of_rows, (atom * 2 + half,), Load(a.buffer, _indices(a, {**at, "m": m, "k": k})))
        with w.unrolled("scaled_group", scales.of_columns.elements) as group:
            n = minimum(at["n"] + group * self.scale_columns, index(gemm.n.extent - 1))
            w.store(scales.of_columns, (group,), Load(b.buffer, _indices(b, {**at, "n": n, "k": k})))

    def multiply_scales(self, scales: PromotionScales) -> None:
        """Multiply the scales that have been loaded with each other, of the block of each lane."""
        with self._each_product(scales) as (row, group):
            product = Load(scales.of_rows, (row,)) * Load(scales.of_columns, (group,))
            self.w.store(scales.products, (row, group), product)

    def take_scales(self, scales: PromotionScales, sharer: Expr) -> Expr:
        """Take the products of one of the ``SHARERS`` lanes. Return what is known once all of them are there."""
        with self._each_product(scales) as (row, group):
            product = Load(scales.products, (row, group))
            self.w.store(scales.taken, (row, group), Shuffle(ShuffleMode.INDEX, product, sharer, SHARERS))
        taken = (Load(scales.taken, tuple(map(index, at))) for at in np.ndindex(scales.taken.shape))
        return reduce(add, taken)

    @contextmanager
    def _each_product(self, scales: PromotionScales) -> Iterator[tuple[Expr, Expr]]:
        rows, groups = scales.products.shape
        with self.w.unrolled("scaled_row", rows) as row, self.w.unrolled("scaled_group", groups) as group:
            yield row, group

    def add(self, accumulators: Buffer, block_sums: Buffer, scales: PromotionScales | None, atoms: range) -> None:
        """Add the sums of a block, which have been awaited, for some of the warpgroup's atoms of 64 rows."""
        w, s = self.w, self.s
        with (
            w.unrolled("added_atom", len(atoms)) as number,
            w.unrolled("added_pair", s.mma_n // 8) as pair,
            w.unrolled("added_half", 2) as half,
        ):
            atom, columns = number + atoms.start, Ramp(pair * 4 + half * 2, 1, 2)
            at = (Broadcast(atom, 2), columns)
            value: Expr = Load(block_sums, (Broadcast(number, 2), columns))
            if scales is not None:
                scale = Load(scales.taken, (atom * 2 + half, pair * 8 // self.scale_columns))
                value = value * Broadcast(scale, 2)
            w.store(accumulators, at, Load(accumulators, at) + value)


def _indices(scale: Load, at: Mapping[str, Expr]) -> tuple[Expr, ...]:
    return tuple(substitute(i, at) for i in scale.indices)
