"""Finds the tiles of a grouped product: a first launch lists them, and persistent CTAs walk the list.

How many rows a group has is run-time data, and with it how many tiles there are. The list has an entry for each tile
along m: its group, its first row, and where the group ends. Each thread of the launch finds one entry: it goes through
all ends. A tile has rows of one group. Those of the next group, which TMA loads with the last rows of a group, are not
stored. Rows behind all ends are in no tile; further CTAs of the first launch store what comes of sums that are 0.

The clusters of all groups are scheduled as if they were those of one product of so many rows: ``group_m`` of them along
m, perhaps of several groups, before the next ones along n. So each matrix is read by tiles that are under way together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd

from ....core.dtypes import INDEX, int32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Broadcast, Cast, Expr, Load, Select, const, index, logical_and, maximum, minimum
from ....ir.stmt import HardwareAxis
from ....te.contraction import GROUP
from ....te.functions import equal
from ...problems.gemm import Gemm
from ...tile.names import FreshNameWriter
from ...tile.stage_body import vector_at
from .tile_scheduler import TileScheduler

ROW_END = "row end"
"""The key of where the rows of a tile's group end, beside its origin (axis -> index)."""
THREADS = 128
"""Threads of a CTA that lists tiles."""
FILLING_CTAS = 264
"""So many CTAs store the results of rows behind all ends."""
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
        """Return whether there is a tile of that number."""
        return cluster_tile < self._listed * self.clusters_n

    @property
    def _listed(self) -> Expr:
        """How many entries there are. Its bounds let 32 bits hold what is computed from it."""
        return minimum(maximum(_loaded(self.count, 0), index(0)), index(self.clusters_m))

    def read_origin(self, w: FreshNameWriter, cluster_tile: Expr, tile: Expr, readers: Expr) -> Mapping[str, Expr]:
        """As ``origin``, with the group of its rows and where that ends, in registers of ``readers``."""
        of_group = self.group_m * self.clusters_n
        first = cluster_tile // of_group * self.group_m
        together = minimum(maximum(self._listed - first, index(1)), index(min(self.group_m, self.clusters_m)))
        number, (tile_m, tile_n) = cluster_tile % of_group, self.in_cluster(tile)
        entry, n = first + number % together, number // together
        group, row, end = (_loaded(self.entries, entry, part) for part in range(_ENTRY))
        origin = (group, row + tile_m * self.tile_m, n * self.cluster_n + tile_n, end)
        place = w.allocate("place", (len(origin),), int32, MemoryScope.REGISTER)
        with w.when(readers):
            for part, value in enumerate(origin):
                w.store(place, (index(part),), Cast(value, int32))
        at = {name: _loaded(place, part) for part, name in enumerate((GROUP, "m", "n", ROW_END))}
        return {**at, "n": at["n"] * self.tile_n}

    def write_list(self, w: FreshNameWriter) -> None:
        """The launch that lists the tiles, and stores the results of rows behind all ends."""
        groups, rows, tile = self.gemm.groups, self.gemm.m.extent, self.tile_m * self.cluster_m
        assert groups is not None
        listing = -(-self.clusters_m // THREADS)
        axes = [
            ("list_cta", listing + min(rows, FILLING_CTAS), HardwareAxis.GRID_X),
            ("list_thread", THREADS, HardwareAxis.THREAD),
        ]
        with w.launch("list_tiles", axes) as (cta, thread):
            number = cta * THREADS + thread
            begin, before, own = (_register(w, name) for name in ("begin", "before", "own"))
            found = w.allocate("found", (_ENTRY,), int32, MemoryScope.REGISTER)
            for part in range(_ENTRY):
                w.store(found, (index(part),), _int32(0))
            with w.loop("group", groups.count) as group:
                # arithmetic of 32 bits: each thread goes through all groups
                inside = minimum(maximum(Cast(Load(groups.ends, (group,)), INDEX), index(0)), index(rows))
                end = maximum(Cast(inside, int32), begin.value)
                tiles = (end - begin.value + _int32(tile - 1)) // _int32(tile)
                own.set(Cast(number, int32) - before.value)
                is_own = logical_and(own.value >= _int32(0), own.value < tiles)
                for part, value in enumerate((Cast(group, int32), begin.value + own.value * _int32(tile), end)):
                    w.store(found, (index(part),), Select(is_own, value, Load(found, (index(part),))))
                before.set(before.value + tiles)
                begin.set(end)
            with w.when(number < minimum(Cast(before.value, INDEX), index(self.clusters_m))):
                for part in range(_ENTRY):
                    w.store(self.entries, (number, index(part)), Load(found, (index(part),)))
            with w.when(equal(number, 0)):
                w.store(self.count, (index(0),), before.value)
            with w.when(cta >= index(listing), begin.value < _int32(rows)):
                self._fill(w, cta - listing, thread, Cast(begin.value, INDEX))

    def _fill(self, w: FreshNameWriter, cta: Expr, thread: Expr, first: Expr) -> None:
        """Store the results of rows from ``first`` on, whose sums are 0. Each CTA takes whole rows."""
        gemm = self.gemm
        m, n = gemm.m.extent, gemm.n.extent
        width = gcd(n, 16 // max(r.tensor.dtype.bytes for r in gemm.results))
        vectors, ctas = n // width, min(m, FILLING_CTAS)

        def replaced(load: Load) -> Expr:
            return const(0.0, load.dtype) if load.buffer.name in gemm.accumulators else load

        with w.loop("filled_row", -(-m // ctas)) as number:
            row = maximum(first, index(0)) + number * ctas + cta
            with w.when(row < m), w.loop("filled_vector", -(-vectors // THREADS)) as vector:
                at = {"m": row, "n": (vector * THREADS + thread) * width}
                with w.when(at["n"] < n):
                    for result in gemm.results:
                        indices = [vector_at(i, at, "n", width) for i in result.indices]
                        plain = [i.value if isinstance(i, Broadcast) else i for i in indices]
                        w.store(result.tensor, plain, vector_at(result.value, at, "n", width, replaced))


@dataclass(frozen=True, slots=True)
class _Register:
    """An integer variable of each thread."""

    w: FreshNameWriter
    buffer: Buffer

    @property
    def value(self) -> Expr:
        return Load(self.buffer, (index(0),))

    def set(self, value: Expr) -> None:
        self.w.store(self.buffer, (index(0),), value)


def _register(w: FreshNameWriter, name: str) -> _Register:
    """Return a variable that is 0 at first."""
    register = _Register(w, w.allocate(name, (1,), int32, MemoryScope.REGISTER))
    register.set(_int32(0))
    return register


def _int32(value: int) -> Expr:
    return const(value, int32)


def grouped_tile_scheduler(w: FreshNameWriter, gemm: Gemm, *sizes: int) -> GroupedTileScheduler:
    """Return the scheduler of ``gemm`` with ``sizes`` (those of ``TileScheduler``), and its list as workspace."""
    count = Buffer(w.fresh("tile_count"), (1,), int32)
    unlisted = GroupedTileScheduler(gemm, *sizes, entries=count, count=count)
    entries = Buffer(w.fresh("tile_list"), (unlisted.clusters_m, _ENTRY), int32)
    return GroupedTileScheduler(gemm, *sizes, entries=entries, count=count)


def _loaded(buffer: Buffer, *at: Expr | int) -> Expr:
    """Return an element of integers, as an index."""
    return Cast(Load(buffer, tuple(i if isinstance(i, Expr) else index(i) for i in at)), INDEX)
