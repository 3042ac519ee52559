"""Prefetches into L2 of what blocks will read.

The first blocks of a launch are resident while the last ones of the launch before still run, and memory has little to
do by then. They prefetch the data that they will need at once (``ir.gpu.bulk_copy.Prefetch``) ahead of the wait for
earlier launches: it comes into L2, and is loaded from there as soon as the wait is over. Later on, blocks may prefetch
the data of those that will take their places.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ...ir.buffer import Buffer
from ...ir.build import Writer
from ...ir.expr import Expr, Load, index, minimum
from ...ir.gpu.bulk_copy import Prefetch
from ...ir.rewrite import substitute
from ..problems.gemm import Gemm
from ..tile.delinearize import delinearize
from ..tile.load_analysis import flat_offset

_UNIT_BYTES = 16
"""A prefetch takes whole units of so many bytes."""
_LEAST_SLICE_BYTES = 512
"""The fewest bytes that a block prefetches of what all blocks read."""
_MOST_BYTES = (1 << 20) - _UNIT_BYTES
"""The most bytes that one prefetch takes (ptxas refuses more). Longer ones are left out."""

FirstElement = Callable[[Expr, Expr], tuple[Expr, ...]]
"""Where the ``i``-th contiguous row of elements of block ``b`` begins, given ``b`` and ``i``."""


@dataclass(frozen=True, slots=True)
class L2Prefetch:
    """Writes the prefetches of one launch.

    ``thread``: the number of this thread in its block, and how many there are. ``block``: the number of this block, and
    how many there are. ``first``: how many blocks are resident first. These prefetch their own data; none do where it
    is 0. ``unaligned``: whether rows are prefetched too that are not whole numbers of 16 bytes. ``count``: how many
    blocks a call has, where its grid is dynamic.
    """

    w: Writer
    thread: tuple[Expr, int]
    block: tuple[Expr, int]
    first: int
    unaligned: bool = False
    count: Expr | None = None

    def own(self, name: str, source: Buffer, rows: int, elements: int, first_element: FirstElement) -> None:
        """Prefetch a block's own ``rows`` contiguous rows of ``elements`` each, first of all in a launch. ``name`` is
        that of a loop variable."""
        if self.first:
            block, blocks = self.block
            condition = block < self.first if self.first < blocks else None
            self._prefetch(name, source, rows, elements, first_element, block, condition)

    def following(
        self, name: str, source: Buffer, rows: int, elements: int, first_element: FirstElement, distance: int
    ) -> None:
        """As ``own``, for the block that comes ``distance`` blocks later, if there is one, once the own data is
        loaded."""
        block, blocks = self.block
        if 0 < distance < blocks:
            later = block + distance
            self._prefetch(
                name,
                source,
                rows,
                elements,
                first_element,
                later,
                later < (blocks if self.count is None else self.count),
            )

    def all(self, name: str, source: Buffer) -> None:
        """Prefetch the whole of what every block reads: each of the first blocks takes a slice of it."""
        block, blocks = self.block
        slices = min(self.first, blocks, max(1, source.bytes // _LEAST_SLICE_BYTES))
        if not slices:
            return
        elements = source.elements // slices // _UNIT_BYTES * _UNIT_BYTES
        if self.unaligned:
            elements = -(-source.elements // slices)
        overlap = elements * slices > source.elements

        def first_element(number: Expr, _: Expr) -> tuple[Expr, ...]:
            first = minimum(number * elements, index(source.elements - elements)) if overlap else number * elements
            return delinearize(first, source.shape)

        condition = block < slices if slices < blocks else None
        self._prefetch(name, source, 1, elements, first_element, block, condition)

    def _prefetch(
        self,
        name: str,
        source: Buffer,
        rows: int,
        elements: int,
        first_element: FirstElement,
        block: Expr,
        condition: Expr | None,
    ) -> None:
        size = elements * source.dtype.bytes
        if not elements or size > _MOST_BYTES or (size % _UNIT_BYTES and not self.unaligned):
            return
        (thread, threads), w = self.thread, self.w
        with w.unrolled(name, -(-rows // threads)) as number:
            row = number * threads + thread
            conditions = [row < rows] if rows % threads else []
            conditions += [condition] if condition is not None else []
            with w.when(*conditions):
                w.emit(Prefetch(source, first_element(block, row if rows > 1 else index(0)), elements))


def prefetch_operands(prefetch: L2Prefetch, p: Gemm, rows: int, k: Expr, elements: int) -> None:
    """Prefetch the operands of a product whose B lies along ``k``: of each of a block's ``rows`` rows of B, the
    ``elements`` from ``k`` on, all of which must exist; and all of A."""
    load = p.b.load
    if load is None or p.b.k != 1 or p.n.extent % rows or not _is_aligned(load, p.b.row):
        return

    def first_element(block: Expr, row: Expr) -> tuple[Expr, ...]:
        return tuple(substitute(i, {"n": block * rows + row, "k": k}) for i in load.indices)

    prefetch.own("prefetched", load.buffer, rows, elements, first_element)
    if p.a.load is not None:
        prefetch.all("prefetched", p.a.load.buffer)


def prefetch_unaligned_operands(prefetch: L2Prefetch, p: Gemm, warps: int, rows: int, elements: int) -> None:
    """As ``prefetch_operands``, from the first ``k`` on, for rows that begin anywhere. Each of ``warps`` warps of a
    block has ``rows`` of them: one prefetch takes all of these where they lie one behind another and ``elements`` is
    the whole row."""
    load = p.b.load
    if load is None or p.b.k != 1 or p.n.extent < rows:
        return
    joined = rows if elements == p.k.extent == p.b.row else 1

    def first_element(block: Expr, number: Expr) -> tuple[Expr, ...]:
        n = minimum(block * (warps * rows) + number * joined, index(p.n.extent - joined))
        return tuple(substitute(i, {"n": n, "k": index(0)}) for i in load.indices)

    prefetch.own("prefetched", load.buffer, warps * rows // joined, joined * elements, first_element)
    if p.a.load is not None:
        prefetch.all("prefetched", p.a.load.buffer)


def _is_aligned(load: Load, pitch: int) -> bool:
    """Return whether rows, ``pitch`` elements apart, begin at whole units."""
    start, unit = flat_offset(load), max(1, _UNIT_BYTES // load.buffer.dtype.bytes)
    return pitch % unit == 0 and start is not None and start.constant % unit == 0
