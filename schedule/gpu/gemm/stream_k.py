"""Stream-K: CTAs share the k iterations of the last tiles, so that none waits for others at the end (Osama et al.,
"Stream-K", PPoPP 2023). With 7 tiles of 4 k iterations and 4 CTAs:

    tile           0 1 2 3 | 4 4 5 5 6 6
    k iterations   all     | 0-1 of 4, 5, 6, then 2-3 of 4, 5, 6
    CTA            0 1 2 3 | 0 1 2   3 0 1

Each CTA computes as many whole tiles as all have. What is left is split along k into units of equally many iterations,
the last one of a tile maybe of fewer. A CTA stores the partial sums of a unit to a workspace, and a second launch, the
fixup, adds those of each tile up, always in the order of ``k``.

CTAs that are at work together are at the same place of k, but for a few: they read the same lines of A and B, which L2
then serves. If each CTA went on along k where the one before it stops, they would read them at other times, mostly from
memory: an H100 takes 1.5 to 3 times as long so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ....core.dtypes import DType
from ....ir.buffer import Buffer
from ....ir.expr import Expr, Load, index, minimum
from ....ir.stmt import HardwareAxis
from ...problems.gemm import Gemm
from ...tile.contiguous import contiguous_vector
from ...tile.names import FreshNameWriter
from ..split_k import At, SplitKReduction, partial_at, place_in_tile, reduce_partials, vector_width
from .tile_scheduler import TileScheduler

FIXUP_THREADS = 256
"""A CTA of the fixup has so many threads."""


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """What a CTA does of one ``tile``: ``k_iters`` iterations from ``first_k_iter`` on, after ``fills_before`` others.
    ``slot``: where in the workspace its partial sums go."""

    tile: Expr
    first_k_iter: Expr
    k_iters: Expr
    slot: Expr
    fills_before: Expr


@dataclass(frozen=True, slots=True)
class StreamK:
    """``tiles`` tiles of ``k_iters`` iterations each. Each of the ``ctas`` CTAs computes ``whole_tiles`` of them. The
    others are split into units of ``unit_k_iters`` iterations."""

    tiles: int
    k_iters: int
    ctas: int
    whole_tiles: int
    unit_k_iters: int

    @property
    def first_split(self) -> int:
        """The number of the first tile that CTAs share."""
        return self.ctas * self.whole_tiles

    @property
    def split_tiles(self) -> int:
        """How many tiles CTAs share."""
        return max(self.tiles - self.first_split, 0)

    @property
    def units_per_tile(self) -> int:
        """How many units each of them has."""
        return -(-self.k_iters // self.unit_k_iters)

    @property
    def units(self) -> int:
        """How many units there are in all."""
        return self.split_tiles * self.units_per_tile

    @property
    def rounds(self) -> int:
        """How many units a CTA has at most."""
        return -(-self.units // self.ctas)

    def exists(self, cta: Expr, number: Expr) -> Expr | None:
        """Return whether ``cta`` has a unit that is its ``number``-th; None where each CTA has."""
        return self._slot(cta, number) < self.units if self.units % self.ctas else None

    def work_unit(self, cta: Expr, number: Expr) -> WorkUnit:
        """Return the unit of ``cta`` that is its ``number``-th."""
        slot = self._slot(cta, number)
        first = slot // self.split_tiles * self.unit_k_iters
        own: Expr = index(self.unit_k_iters)
        if self.k_iters % self.unit_k_iters:
            own = minimum(own, self.k_iters - first)
        before = number * self.unit_k_iters + self.whole_tiles * self.k_iters
        return WorkUnit(slot % self.split_tiles + self.first_split, first, own, slot, before)

    def _slot(self, cta: Expr, number: Expr) -> Expr:
        return number * self.ctas + cta

    def allocate_partials(self, w: FreshNameWriter, gemm: Gemm, tile_m: int, tile_n: int, dtype: DType) -> Buffer:
        """Return the workspace for partial sums: (slot, ``partial_at`` a row and a column). Those of the first unit of
        each tile come first, then those of the second."""
        return Buffer(w.fresh("partials"), (self.units, *partial_at(gemm, tile_m, tile_n)), dtype)


def write_fixup(w: FreshNameWriter, gemm: Gemm, scheduler: TileScheduler, stream_k: StreamK, partials: Buffer) -> None:
    """The launch that adds up the tiles that CTAs share and stores their outputs."""
    rows, columns = partial_at(gemm, *partials.shape[1:])
    width = vector_width(gemm)
    vectors = rows * columns // width
    ctas_per_tile = -(-vectors // FIXUP_THREADS)
    axes = [
        ("fixup_cta", stream_k.split_tiles * ctas_per_tile, HardwareAxis.GRID_X),
        ("fixup_thread", FIXUP_THREADS, HardwareAxis.THREAD),
    ]
    with w.launch("add_parts", axes) as (cta, thread):
        tile, base = cta // ctas_per_tile, cta % ctas_per_tile * FIXUP_THREADS
        origin = scheduler.origin(tile + stream_k.first_split, index(0))

        def position(vector: Expr) -> tuple[Expr, Expr]:
            return place_in_tile(gemm, base + vector, rows, columns, width)

        def destination(vector: Expr) -> tuple[At, Sequence[Expr]]:
            row, column = position(vector)
            return {**origin, "m": origin["m"] + row, "n": origin["n"] + column}, []

        def loads_if(vector: Expr) -> Sequence[Expr]:
            at, _ = destination(vector)
            conditions = [*gemm.rows_inside(at["m"]), at["n"] < gemm.n.extent]
            return conditions + ([base + vector < vectors] if vectors % FIXUP_THREADS else [])

        def partial(vector: Expr, number: Expr) -> Expr:
            slot = number * stream_k.split_tiles + tile
            return Load(partials, contiguous_vector((slot, *partial_at(gemm, *position(vector))), width))

        most = stream_k.units_per_tile
        reduction = SplitKReduction(
            *(FIXUP_THREADS, width, thread, FIXUP_THREADS, 1, most, partial, loads_if, destination)
        )
        reduce_partials(w, gemm, reduction, partials.dtype)
