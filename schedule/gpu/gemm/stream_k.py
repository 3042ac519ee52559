"""Stream-K: every CTA takes the same number of k iterations, one after the other through all tiles, so that none waits
for others at the end (Osama et al., "Stream-K", PPoPP 2023). With 3 tiles of 4 k iterations and 2 CTAs:

    k iterations   0 1 2 3 | 4 5 6 7 | 8 9 10 11
    CTA            0 0 0 0 | 0 0 1 1 | 1 1 1  1

A CTA stores the tiles that it has all iterations of. Of other tiles it stores partial sums to a workspace, and a second
launch, the fixup, adds those up, always in the order of ``k``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ....core.dtypes import DType
from ....ir.buffer import Buffer
from ....ir.expr import Expr, Load, Select, index, maximum, minimum
from ....ir.stmt import HardwareAxis
from ...problems.gemm import Gemm
from ...tile.contiguous import contiguous_vector
from ...tile.names import FreshNameWriter
from ..split_k import At, SplitKReduction, place_in_tile, reduce_partials, vector_width
from .tile_scheduler import TileScheduler

FIXUP_THREADS = 256
"""A CTA of the fixup has so many threads."""


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """What a CTA does of one ``tile``: ``k_iters`` iterations (none where that is not positive) from ``first_k_iter``
    on. ``fills_before``: how many iterations it has made for other tiles."""

    tile: Expr
    first_k_iter: Expr
    k_iters: Expr
    fills_before: Expr

    def slot(self, cta: Expr) -> Expr:
        """Return where in the workspace its partial sums go. A CTA has two slots: one for the tile that another CTA
        began, one for the tile that it begins and does not end."""
        return cta * 2 + Select(self.first_k_iter > 0, index(0), index(1))


@dataclass(frozen=True, slots=True)
class StreamK:
    """``tiles`` tiles of ``k_iters`` iterations each, of which every CTA takes ``unit_k_iters``."""

    tiles: int
    k_iters: int
    unit_k_iters: int

    @property
    def all_k_iters(self) -> int:
        return self.tiles * self.k_iters

    @property
    def ctas(self) -> int:
        return -(-self.all_k_iters // self.unit_k_iters)

    @property
    def most_ctas_per_tile(self) -> int:
        """CTAs that work on a tile at most; two at least."""
        return max((self.k_iters + self.unit_k_iters - 2) // self.unit_k_iters, 1) + 1

    def work_unit(self, cta: Expr, number: Expr) -> WorkUnit:
        """Return what ``cta`` does of the tile that is its ``number``-th."""
        begin = cta * self.unit_k_iters
        own: Expr = index(self.unit_k_iters)
        if self.all_k_iters % self.unit_k_iters:
            own = minimum(own, self.all_k_iters - begin)
        skipped, past = begin % self.k_iters, number * self.k_iters
        first = maximum(skipped - past, index(0))
        last = minimum(skipped + own - past, index(self.k_iters))
        return WorkUnit(begin // self.k_iters + number, first, last - first, maximum(past - skipped, index(0)))

    def allocate_partials(self, w: FreshNameWriter, tile_m: int, tile_n: int, dtype: DType) -> Buffer:
        """Return the workspace for partial sums: (slot, row, column), with the slots of ``WorkUnit.slot``."""
        return Buffer(w.fresh("partials"), (2 * self.ctas, tile_m, tile_n), dtype)


def write_fixup(w: FreshNameWriter, gemm: Gemm, scheduler: TileScheduler, stream_k: StreamK, partials: Buffer) -> None:
    """The launch that adds up the tiles of several CTAs and stores their outputs."""
    _, rows, columns = partials.shape
    width = vector_width(gemm)
    vectors = rows * columns // width
    ctas_per_tile = -(-vectors // FIXUP_THREADS)
    axes = [
        ("fixup_cta", stream_k.tiles * ctas_per_tile, HardwareAxis.GRID_X),
        ("fixup_thread", FIXUP_THREADS, HardwareAxis.THREAD),
    ]
    with w.launch("add_parts", axes) as (cta, thread):
        tile, base = cta // ctas_per_tile, cta % ctas_per_tile * FIXUP_THREADS
        first = tile * stream_k.k_iters // stream_k.unit_k_iters
        others = (tile * stream_k.k_iters + (stream_k.k_iters - 1)) // stream_k.unit_k_iters - first
        origin = scheduler.origin(tile, index(0))

        def position(vector: Expr) -> tuple[Expr, Expr]:
            return place_in_tile(gemm, base + vector, rows, columns, width)

        def destination(vector: Expr) -> tuple[At, Sequence[Expr]]:
            row, column = position(vector)
            return {**origin, "m": origin["m"] + row, "n": origin["n"] + column}, []

        def loads_if(vector: Expr) -> Sequence[Expr]:
            at, _ = destination(vector)
            conditions = [others > 0, *gemm.rows_inside(at["m"]), at["n"] < gemm.n.extent]
            return conditions + ([base + vector < vectors] if vectors % FIXUP_THREADS else [])

        def partial(vector: Expr, number: Expr) -> Expr:
            """The first one is of the CTA that begins the tile as its last one, the others of those that go on."""
            slot = first * 2 + 1 if number == index(0) else (first + number) * 2
            return Load(partials, contiguous_vector((slot, *position(vector)), width))

        most = stream_k.most_ctas_per_tile
        reduction = SplitKReduction(
            *(FIXUP_THREADS, width, thread, FIXUP_THREADS, 1, most, partial, loads_if, destination),
            exists=lambda number: number <= others,
        )
        reduce_partials(w, gemm, reduction, partials.dtype)
