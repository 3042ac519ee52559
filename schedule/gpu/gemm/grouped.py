"""The tiles of a grouped product: a first launch lists them, and persistent CTAs walk the list.

How many rows a group has is run-time data, and with it how many tiles there are. The list has an entry for each tile
along m: its group, its first row, and where the group ends. Each thread of the launch finds one entry: it goes through
all ends. A tile has rows of one group. Those of the next group, which TMA loads with the last rows of a group, are not
stored.

The clusters of all groups are scheduled as if they were those of one product of so many rows: ``group_m`` of them along
m, perhaps of several groups, before the next ones along n. So each matrix is read by tiles that are under way together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....core.dtypes import INDEX, int32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import (
    Cast,
    Compare,
    CompareOp,
    Expr,
    Load,
    Select,
    index,
    logical_and,
    maximum,
    minimum,
)
from ....ir.stmt import HardwareAxis
from ....te.contraction import GROUP
from ...problems.gemm import Gemm
from ...tile.names import FreshNameWriter
from .tile_scheduler import TileScheduler

ROW_END = "row end"
"""The key of where the rows of a tile's group end, beside its origin (axis -> index)."""
THREADS = 128
"""Threads of a CTA that lists tiles."""
_ENTRY = 3


@dataclass(frozen=True, slots=True)
class GroupedTileScheduler(TileScheduler):
    """``entries`` is int32[tiles of clusters along m, 3]: group, first row, end of the group. ``count`` is how many
    there are, int32[1]. What lies beyond is never read."""

    entries: Buffer = field(kw_only=True)
    count: Buffer = field(kw_only=True)

    @property
    def clusters_m(self) -> int:
        """How many there are at most."""
        assert self.gemm.groups is not None
        return int(self.gemm.groups.most_tiles(self.gemm.m.extent, self.tile_m * self.cluster_m))

    def exists(self, cluster_tile: Expr) -> Expr:
        """Whether there is a tile of that number."""
        return cluster_tile < self._listed * self.clusters_n

    @property
    def _listed(self) -> Expr:
        """How many entries there are. Its bounds let 32 bits hold what is computed from it."""
        return minimum(maximum(_loaded(self.count, 0), index(1)), index(self.clusters_m))

    def read_origin(self, w: FreshNameWriter, cluster_tile: Expr, tile: Expr) -> Mapping[str, Expr]:
        """As ``origin``, with the group of its rows and where that ends, in registers."""
        of_group = self.group_m * self.clusters_n
        first = cluster_tile // of_group * self.group_m
        together = minimum(maximum(self._listed - first, index(1)), index(min(self.group_m, self.clusters_m)))
        number, (tile_m, tile_n) = cluster_tile % of_group, self.in_cluster(tile)
        entry, n = first + number % together, number // together
        group, row, end = (_loaded(self.entries, entry, part) for part in range(_ENTRY))
        origin = (group, row + tile_m * self.tile_m, n * self.cluster_n + tile_n, end)
        place = w.allocate("place", (len(origin),), int32, MemoryScope.REGISTER)
        for part, value in enumerate(origin):
            w.store(place, (index(part),), Cast(value, int32))
        at = {name: _loaded(place, part) for part, name in enumerate((GROUP, "m", "n", ROW_END))}
        return {**at, "n": at["n"] * self.tile_n}

    def write_list(self, w: FreshNameWriter) -> None:
        """The launch that lists the tiles."""
        groups, rows, tile = self.gemm.groups, self.gemm.m.extent, self.tile_m * self.cluster_m
        assert groups is not None
        axes = [
            ("list_cta", -(-self.clusters_m // THREADS), HardwareAxis.GRID_X),
            ("list_thread", THREADS, HardwareAxis.THREAD),
        ]
        with w.launch("list_tiles", axes) as (cta, thread):
            number = cta * THREADS + thread
            begin, before = (w.allocate(name, (1,), int32, MemoryScope.REGISTER) for name in ("begin", "before"))
            found = w.allocate("found", (_ENTRY,), int32, MemoryScope.REGISTER)
            for buffer in (begin, before):
                w.store(buffer, (index(0),), Cast(index(0), int32))
            for part in range(_ENTRY):
                w.store(found, (index(part),), Cast(index(0), int32))
            with w.loop("group", groups.count) as group:
                is_last = Compare(CompareOp.EQ, group, index(groups.count - 1))
                given = minimum(Cast(Load(groups.ends, (group,)), INDEX), index(rows))
                end = Select(is_last, index(rows), maximum(given, _loaded(begin, 0)))
                tiles = (end - _loaded(begin, 0) + (tile - 1)) // tile
                own = number - _loaded(before, 0)
                is_own = logical_and(own >= index(0), own < tiles)
                for part, value in enumerate((group, _loaded(begin, 0) + own * tile, end)):
                    kept = Select(is_own, Cast(value, int32), Load(found, (index(part),)))
                    w.store(found, (index(part),), kept)
                w.store(before, (index(0),), Cast(_loaded(before, 0) + tiles, int32))
                w.store(begin, (index(0),), Cast(end, int32))
            with w.when(number < _loaded(before, 0)):
                for part in range(_ENTRY):
                    w.store(self.entries, (number, index(part)), Load(found, (index(part),)))
            with w.when(Compare(CompareOp.EQ, number, index(0))):
                w.store(self.count, (index(0),), Load(before, (index(0),)))


def grouped_tile_scheduler(w: FreshNameWriter, gemm: Gemm, *sizes: int) -> GroupedTileScheduler:
    """The scheduler of ``gemm`` with ``sizes`` (those of ``TileScheduler``), and its list as workspace."""
    count = Buffer(w.fresh("tile_count"), (1,), int32)
    unlisted = GroupedTileScheduler(gemm, *sizes, entries=count, count=count)
    entries = Buffer(w.fresh("tile_list"), (unlisted.clusters_m, _ENTRY), int32)
    return GroupedTileScheduler(gemm, *sizes, entries=entries, count=count)


def _loaded(buffer: Buffer, *at: Expr | int) -> Expr:
    """An element of integers, as an index."""
    return Cast(Load(buffer, tuple(i if isinstance(i, Expr) else index(i) for i in at)), INDEX)
