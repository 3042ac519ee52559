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

from ....ir.expr import Compare, CompareOp, Expr, Select, index, maximum, minimum
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

    @property
    def dynamic_clusters_m(self) -> Expr:
        """``clusters_m`` of a call."""
        rows = self.tile_m * self.cluster_m
        return (self.gemm.m_end + (rows - 1)) // rows

    @property
    def dynamic_cluster_tiles(self) -> Expr:
        """``cluster_tiles`` of a call with a dynamic number of rows."""
        return self.dynamic_clusters_m * self.clusters_n

    def exists(self, cluster_tile: Expr) -> Expr:
        """Whether there is a tile of that number."""
        return cluster_tile < (index(self.cluster_tiles) if self.gemm.dynamic is None else self.dynamic_cluster_tiles)

    def read_origin(self, w: FreshNameWriter, cluster_tile: Expr, tile: Expr, readers: Expr) -> Mapping[str, Expr]:
        """``origin``, after whatever the threads that are ``readers`` have to do to know it."""
        return self.origin(cluster_tile, tile)

    def origin(self, cluster_tile: Expr, tile: Expr) -> dict[str, Expr]:
        """Where a tile begins (axis -> index): the one with the number ``tile`` in the cluster that comes as number
        ``cluster_tile``."""
        at = dict[str, Expr]()
        member = cluster_tile // (self.clusters_m * self.clusters_n)
        for axis in reversed(self.gemm.batch):
            at[axis.name], member = member % axis.extent, member // axis.extent
        number = cluster_tile % (self.clusters_m * self.clusters_n) if self.gemm.batch else cluster_tile
        group_m = min(self.group_m, self.clusters_m)
        in_whole_groups = self.clusters_m // group_m * group_m
        m, n = _in_group(number, group_m, self.clusters_n)
        if self.gemm.dynamic is not None and group_m > 1:
            of_group = group_m * self.clusters_n
            first, local = number // of_group * group_m, number % of_group
            together = maximum(minimum(self.dynamic_clusters_m - first, index(group_m)), index(1))
            m, n = first + local % together, local // together
        elif in_whole_groups < self.clusters_m:
            last = index(in_whole_groups * self.clusters_n)
            is_last = Compare(CompareOp.GE, number, last)
            last_m, last_n = _in_group(number - last, self.clusters_m - in_whole_groups, self.clusters_n)
            m, n = Select(is_last, last_m + in_whole_groups, m), Select(is_last, last_n, n)
        tile_m, tile_n = self.in_cluster(tile)
        at["m"] = (m * self.cluster_m + tile_m) * self.tile_m
        at["n"] = (n * self.cluster_n + tile_n) * self.tile_n
        return at

    def in_cluster(self, tile: Expr) -> tuple[Expr, Expr]:
        """(m, n) of a tile in its cluster, by its number there. Those along ``m`` follow one another."""
        if self.cluster_m == 1 or self.cluster_n == 1:
            return (tile if self.cluster_m > 1 else index(0), tile if self.cluster_n > 1 else index(0))
        return tile % self.cluster_m, tile // self.cluster_m


def _in_group(number: Expr, group_m: int, clusters_n: int) -> tuple[Expr, Expr]:
    """(m, n) of a cluster by its number, where groups of ``group_m`` along m follow one another."""
    return (
        number // (group_m * clusters_n) * group_m + number % group_m,
        number % (group_m * clusters_n) // group_m,
    )
