"""Steps of tiles dealt out evenly to blocks: each takes the same number of steps, one after the other through all
tiles, so that none waits for others at the end (Osama et al., "Stream-K", PPoPP 2023). What several blocks have summed
up of one tile, a second launch adds, always in the order of ``k``."""

from dataclasses import dataclass

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Broadcast, Expr, Load, Select, const, index, logical_and, maximum, minimum
from ....ir.stmt import HardwareAxis, LoopKind
from ...problems.gemm import Gemm
from ...tile.contiguous import contiguous_vector
from ...tile.names import FreshNameWriter
from ..split_k import store_outputs
from .tile_scheduler import TileGrid

UNROLLED = LoopKind.UNROLLED
THREADS = 256
"""Of a block that adds up."""


@dataclass(frozen=True, slots=True)
class EvenShares:
    """``steps`` of each of ``tiles``, ``share`` of them for each block."""

    tiles: int
    steps: int
    share: int

    @property
    def all(self) -> int:
        return self.tiles * self.steps

    @property
    def blocks(self) -> int:
        return -(-self.all // self.share)

    @property
    def laps(self) -> int:
        """Tiles that a block works on at most."""
        return (self.share + self.steps - 2) // self.steps + 1

    @property
    def sharers(self) -> int:
        """Blocks that work on a tile at most, two at least."""
        return max((self.steps + self.share - 2) // self.share, 1) + 1

    def part(self, block: Expr, lap: Expr) -> "Part":
        """What ``block`` does of the tile that is its number ``lap``."""
        begin = block * self.share
        own: Expr = index(self.share)
        if self.all % self.share:
            own = minimum(own, self.all - begin)
        skipped, past = begin % self.steps, lap * self.steps
        first = maximum(skipped - past, index(0))
        last = minimum(skipped + own - past, index(self.steps))
        return Part(begin // self.steps + lap, first, last - first, maximum(past - skipped, index(0)))

    def partials(self, w: FreshNameWriter, tile_m: int, tile_n: int) -> Buffer:
        """Workspace for sums of parts of tiles: (which, row, column), two for each block (``slot``)."""
        return Buffer(w.fresh("parts"), (2 * self.blocks, tile_m, tile_n), float32)


@dataclass(frozen=True, slots=True)
class Part:
    """``steps`` steps (none where that is not positive) of ``tile`` from ``first`` on, after ``before`` others of the
    same block."""

    tile: Expr
    first: Expr
    steps: Expr
    before: Expr

    def slot(self, block: Expr) -> Expr:
        """Where its sums go: a tile's first steps and others of one block are apart."""
        return block * 2 + Select(self.first > 0, index(0), index(1))


def add_parts(w: FreshNameWriter, p: Gemm, grid: TileGrid, shares: EvenShares, partials: Buffer) -> None:
    """A launch that adds up the tiles of several blocks and stores what is made of them."""
    _, rows, columns = partials.shape
    width = 4 if p.n.extent % 4 == 0 else 1
    items = rows * columns // width
    pieces = -(-items // THREADS)
    bounds = [
        ("parts_block", shares.tiles * pieces, HardwareAxis.GRID_X),
        ("parts_thread", THREADS, HardwareAxis.THREAD),
    ]
    with w.launch("add_parts", bounds) as (block, thread):
        tile, item = block // pieces, block % pieces * THREADS + thread
        first = tile * shares.steps // shares.share
        others = (tile * shares.steps + (shares.steps - 1)) // shares.share - first
        line, column = item // (columns // width), item % (columns // width) * width
        at = grid.place(tile, index(0))
        at = {**at, "m": at["m"] + line, "n": at["n"] + column}
        inside = [others > 0, at["m"] < p.m.extent, at["n"] < p.n.extent]
        inside += [item < items] if items % THREADS else []
        total = w.allocate("total", (width,), float32, MemoryScope.REGISTER)
        read = w.allocate("read", (shares.sharers - 1, width), float32, MemoryScope.REGISTER)
        run, zero = contiguous_vector((index(0),), width), const(0.0, float32)
        with w.when(logical_and(*inside)):
            w.store(total, run, Load(partials, contiguous_vector((first * 2 + 1, line, column), width)))
            # all are asked for before the first is there
            with w.loop("sharer", shares.sharers - 1, UNROLLED) as number:
                place = contiguous_vector((number, index(0)), width)
                w.store(read, place, Broadcast(zero, width) if width > 1 else zero)
                with w.when(number < others):
                    w.store(
                        read, place, Load(partials, contiguous_vector(((first + 1 + number) * 2, line, column), width))
                    )
            with w.loop("sharer", shares.sharers - 1, UNROLLED) as number:
                w.store(total, run, Load(total, run) + Load(read, contiguous_vector((number, index(0)), width)))
            store_outputs(w, p, at, total, width)
