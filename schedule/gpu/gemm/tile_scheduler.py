"""The order in which tiles of a product are worked on: those that read the same rows are under way together."""

from collections.abc import Iterable
from dataclasses import dataclass

from ....ir.expr import Compare, CompareOp, Expr, Select, index
from ...problems.gemm import Gemm


@dataclass(frozen=True, slots=True)
class TileGrid:
    """The results of ``product``, for each member of the batch ``m`` by ``n`` clusters of ``cluster_m`` by
    ``cluster_n`` tiles of ``tile_m`` by ``tile_n``, in bands of ``band`` clusters along ``m``."""

    product: Gemm
    tile_m: int
    tile_n: int
    band: int
    cluster_m: int = 1
    cluster_n: int = 1

    @property
    def m(self) -> int:
        return -(-self.product.m.extent // (self.tile_m * self.cluster_m))

    @property
    def n(self) -> int:
        return -(-self.product.n.extent // (self.tile_n * self.cluster_n))

    @property
    def tiles(self) -> int:
        count = self.m * self.n
        for axis in self.product.batch:
            count *= axis.extent
        return count

    def place(self, tile: Expr, rank: Expr) -> dict[str, Expr]:
        """Where tile ``rank`` of a cluster begins, those along ``m`` following one another: axis -> place."""
        at = dict[str, Expr]()
        rest = tile // (self.m * self.n)
        for axis in reversed(self.product.batch):
            at[axis.name], rest = rest % axis.extent, rest // axis.extent
        inner = tile % (self.m * self.n) if self.product.batch else tile
        band = min(self.band, self.m)
        whole = self.m // band * band
        m, n = _in_band(inner, band, self.n)
        if whole < self.m:
            last = index(whole * self.n)
            in_last = Compare(CompareOp.GE, inner, last)
            m_last, n_last = _in_band(inner - last, self.m - whole, self.n)
            m, n = Select(in_last, m_last + whole, m), Select(in_last, n_last, n)
        of_m, of_n = self.within(rank)
        at["m"] = (m * self.cluster_m + of_m) * self.tile_m
        at["n"] = (n * self.cluster_n + of_n) * self.tile_n
        return at

    def within(self, rank: Expr) -> tuple[Expr, Expr]:
        """(m, n) of tile ``rank`` of a cluster."""
        if self.cluster_m == 1 or self.cluster_n == 1:
            return (rank if self.cluster_m > 1 else index(0), rank if self.cluster_n > 1 else index(0))
        return rank % self.cluster_m, rank // self.cluster_m


def _in_band(number: Expr, band: int, n: int) -> tuple[Expr, Expr]:
    """(m, n) of a tile by its number, bands of ``band`` along m following one another."""
    return number // (band * n) * band + number % band, number % (band * n) // band


def block_bits(first: Expr, firsts: Iterable[int], others: Iterable[int]) -> Expr:
    """A bit for each block of a cluster that a copy goes to: ``first``, one of ``firsts``, and ``others`` counted from
    it."""
    pattern = sum(1 << n for n in others)
    first_of_all, *rest = firsts
    mask: Expr = index(pattern << first_of_all)
    for n in rest:
        mask = Select(Compare(CompareOp.EQ, first, index(n)), index(pattern << n), mask)
    return mask
