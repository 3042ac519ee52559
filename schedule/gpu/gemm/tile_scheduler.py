"""The order in which the tiles of a product are worked on.

Clusters of tiles follow one another along ``m``, in groups of ``group_m``, before the next ones along ``n``. So the
tiles that are under way together read few rows of A and few columns of B, which then stay in L2. With ``group_m`` = 2:

         n ->
    m    0 2 4 6
    |    1 3 5 7
    v    8 10 12 14
         9 11 13 15
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ....core.dtypes import INDEX, int32
from ....ir.buffer import MemoryScope
from ....ir.expr import Cast, Expr, Load, Select, index, maximum, minimum
from ...problems.gemm import Gemm
from ...tile.names import FreshNameWriter


@dataclass(frozen=True, slots=True)
class TileScheduler:
    """For each member of the batch the result is covered by ``clusters_m`` by ``clusters_n`` clusters, each of
    ``cluster_m`` by ``cluster_n`` tiles of ``tile_m`` by ``tile_n`` elements."""

    gemm: Gemm
    tile_m: int
    tile_n: int
    group_m: int
    cluster_m: int = 1
    cluster_n: int = 1

    @property
    def clusters_m(self) -> int:
        return -(-self.gemm.m.extent // (self.tile_m * self.cluster_m))

    @property
    def clusters_n(self) -> int:
        return -(-self.gemm.n.extent // (self.tile_n * self.cluster_n))

    @property
    def cluster_tiles(self) -> int:
        """How many clusters cover the results of the whole batch."""
        count = self.clusters_m * self.clusters_n
        for axis in self.gemm.batch:
            count *= axis.extent
        return count

    def exists(self, cluster_tile: Expr) -> Expr:
        """Return whether there is a tile of that number."""
        return cluster_tile < index(self.cluster_tiles)

    def read_origin(self, w: FreshNameWriter, cluster_tile: Expr, tile: Expr, readers: Expr) -> Mapping[str, Expr]:
        """``origin``, after whatever the threads that are ``readers`` have to do to know it."""
        return self.origin(cluster_tile, tile)

    def origin(self, cluster_tile: Expr, tile: Expr) -> dict[str, Expr]:
        """Return where a tile begins (axis -> index): the one with the number ``tile`` in the cluster that comes as
        number ``cluster_tile``."""
        at = dict[str, Expr]()
        member = cluster_tile // (self.clusters_m * self.clusters_n)
        for axis in reversed(self.gemm.batch):
            at[axis.name], member = member % axis.extent, member // axis.extent
        number = cluster_tile % (self.clusters_m * self.clusters_n) if self.gemm.batch else cluster_tile
        group_m = min(self.group_m, self.clusters_m)
        in_whole_groups = self.clusters_m // group_m * group_m
        m, n = _in_group(number, group_m, self.clusters_n)
        if in_whole_groups < self.clusters_m:
            last = index(in_whole_groups * self.clusters_n)
            is_last = number >= last
            last_m, last_n = _in_group(number - last, self.clusters_m - in_whole_groups, self.clusters_n)
            m, n = Select(is_last, last_m + in_whole_groups, m), Select(is_last, last_n, n)
        return {**at, **self._at(m, n, tile)}

    def _at(self, m: Expr, n: Expr, tile: Expr) -> dict[str, Expr]:
        """Return where a tile of the cluster begins that is the one at ``m`` and ``n``, counted in clusters."""
        tile_m, tile_n = self.in_cluster(tile)
        return {"m": (m * self.cluster_m + tile_m) * self.tile_m, "n": (n * self.cluster_n + tile_n) * self.tile_n}

    def in_cluster(self, tile: Expr) -> tuple[Expr, Expr]:
        """(m, n) of a tile in its cluster, by its number there. Those along ``m`` follow one another."""
        if self.cluster_m == 1 or self.cluster_n == 1:
            return (tile if self.cluster_m > 1 else index(0), tile if self.cluster_n > 1 else index(0))
        return tile % self.cluster_m, tile // self.cluster_m


class DynamicTileScheduler(TileScheduler):
    """The tiles of a product with a dynamic number of rows. ``clusters_m`` and ``cluster_tiles`` are those of the most
    rows."""

    __slots__ = ()

    @property
    def dynamic_cluster_tiles(self) -> Expr:
        """``cluster_tiles`` of a call."""
        return self._dynamic_clusters_m * self.clusters_n

    @property
    def _dynamic_clusters_m(self) -> Expr:
        rows = self.tile_m * self.cluster_m
        return (self.gemm.m_end + (rows - 1)) // rows

    def dynamic_clusters(self, most: int, tiles_per_iteration: int) -> Expr:
        """Return how many clusters a call has, where ``most`` run at once. They are as few as need no more iterations.
        All of them then have equally many tiles, and take them from the same columns or rows at a time."""
        tiles, at_once = self.dynamic_cluster_tiles, most * tiles_per_iteration
        together = (tiles + (at_once - 1)) // at_once * tiles_per_iteration
        return minimum((tiles + (together - 1)) // together, index(most))

    def exists(self, cluster_tile: Expr) -> Expr:
        return cluster_tile < self.dynamic_cluster_tiles

    def read_origin(self, w: FreshNameWriter, cluster_tile: Expr, tile: Expr, readers: Expr) -> Mapping[str, Expr]:
        """``origin`` in registers of ``readers``, so that they divide by a run-time number once for each tile."""
        place = w.allocate("place", (2,), int32, MemoryScope.REGISTER)
        with w.when(readers):
            for number, at in enumerate(self._cluster_origin(cluster_tile)):
                w.store(place, (index(number),), Cast(at, int32))
        m, n = (Cast(Load(place, (index(number),)), INDEX) for number in range(2))
        # the bounds let 32 bits hold what is computed from them
        return self._at(bounded(m, self.clusters_m), bounded(n, self.clusters_n), tile)

    def origin(self, cluster_tile: Expr, tile: Expr) -> dict[str, Expr]:
        return self._at(*self._cluster_origin(cluster_tile), tile)

    def _cluster_origin(self, cluster_tile: Expr) -> tuple[Expr, Expr]:
        """(m, n) of a cluster, counted in clusters. The last group along ``m`` has as many as a call leaves for it."""
        group_m = min(self.group_m, self.clusters_m)
        of_group = group_m * self.clusters_n
        first, local = cluster_tile // of_group * group_m, cluster_tile % of_group
        together = maximum(minimum(self._dynamic_clusters_m - first, index(group_m)), index(1))
        return (first + local % together, local // together) if group_m > 1 else (first, local)


def bounded(value: Expr, count: int) -> Expr:
    """Return ``value``, which is one of ``count`` numbers from 0 on, as an expression that shows so."""
    return minimum(maximum(value, index(0)), index(count - 1))


def _in_group(number: Expr, group_m: int, clusters_n: int) -> tuple[Expr, Expr]:
    """(m, n) of a cluster by its number, where groups of ``group_m`` along m follow one another."""
    return (
        number // (group_m * clusters_n) * group_m + number % group_m,
        number % (group_m * clusters_n) // group_m,
    )
