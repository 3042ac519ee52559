"""What blocks will read, asked for before it is their turn to read it.

The first blocks of a launch are there while the last ones of the launch before still run, and memory has little to do
by then. They ask for the data that they will need at once (``ir.gpu.Prefetch``), ahead of the wait for earlier ones:
it comes into the cache in front of memory, and is loaded from there as soon as the wait is over. Later on, blocks may
ask for the data of those that will take their places.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ...ir.buffer import Buffer
from ...ir.build import Writer
from ...ir.expr import Expr, Load, index, logical_and, minimum
from ...ir.gpu.bulk_copy import Prefetch
from ...ir.rewrite import substitute
from ...ir.stmt import LoopKind
from ..problems.gemm import Gemm
from ..tile.delinearize import digits
from ..tile.register_reads import flat_offset

_UNIT_BYTES = 16
_LEAST_SHARE_BYTES = 512

Place = Callable[[Expr, Expr], tuple[Expr, ...]]
"""Where run ``i`` of block ``b`` begins, given ``b`` and ``i``."""


@dataclass(frozen=True, slots=True)
class L2Prefetch:
    """``thread``: which of how many of its block this one is. ``block``: which of how many. ``first``: how many blocks
    there is room for at once: the first, which ask for their own data; none do where it is 0. ``uneven``: whether runs
    that are no whole numbers of 16 bytes are asked for too."""

    w: Writer
    thread: tuple[Expr, int]
    block: tuple[Expr, int]
    first: int
    uneven: bool = False

    def own(self, name: str, source: Buffer, count: int, elements: int, place: Place) -> None:
        """A block's own ``count`` runs of ``elements`` of ``source``; first of all in a launch. ``name``: of a loop
        variable."""
        if self.first:
            block, blocks = self.block
            self._ask(name, source, count, elements, place, block, block < self.first if self.first < blocks else None)

    def following(self, name: str, source: Buffer, count: int, elements: int, place: Place, apart: int) -> None:
        """As ``own``, for the block that comes ``apart`` blocks later, if there is one; once the own data is loaded."""
        block, blocks = self.block
        if 0 < apart < blocks:
            self._ask(name, source, count, elements, place, block + apart, block + apart < blocks)

    def all(self, name: str, source: Buffer) -> None:
        """The whole of what every block reads: a share of it, of some size, from each of the first blocks."""
        block, blocks = self.block
        sharers = min(self.first, blocks, max(1, source.bytes // _LEAST_SHARE_BYTES))
        if sharers:
            share = source.elements // sharers // _UNIT_BYTES * _UNIT_BYTES
            if self.uneven:
                share = -(-source.elements // sharers)
            over = share * sharers > source.elements
            here = block < sharers if sharers < blocks else None

            def place(at: Expr, _: Expr) -> tuple[Expr, ...]:
                first = minimum(at * share, index(source.elements - share)) if over else at * share
                return digits(first, source.shape)

            self._ask(name, source, 1, share, place, block, here)

    def _ask(
        self, name: str, source: Buffer, count: int, elements: int, place: Place, block: Expr, here: Expr | None
    ) -> None:
        if not elements or (elements * source.dtype.bytes % _UNIT_BYTES and not self.uneven):
            return
        (thread, threads), w = self.thread, self.w
        with w.loop(name, -(-count // threads), LoopKind.UNROLLED) as turn:
            number = turn * threads + thread
            tests = [number < count] if count % threads else []
            tests += [here] if here is not None else []
            with w.when(logical_and(*tests) if tests else None):
                w.emit(Prefetch(source, place(block, number if count > 1 else index(0)), elements))


def ask_for_operands(ask: L2Prefetch, p: Gemm, rows: int, k: Expr, reach: int) -> None:
    """Weights that lie along ``k``: of the ``rows`` of each block along ``n``, a run of ``reach`` from ``k`` on, all of
    which must be there; and the tokens."""
    load = p.b.load
    if load is None or p.b.k != 1 or p.n.extent % rows or not _is_aligned(load, p.b.row):
        return

    def place(block: Expr, row: Expr) -> tuple[Expr, ...]:
        return tuple(substitute(i, {"n": block * rows + row, "k": k}) for i in load.indices)

    ask.own("asked", load.buffer, rows, reach, place)
    if p.a.load is not None:
        ask.all("asked", p.a.load.buffer)


def ask_for_uneven_operands(ask: L2Prefetch, p: Gemm, warps: int, rows: int, reach: int) -> None:
    """As ``ask_for_operands``, from the first ``k`` on, for rows that begin anywhere, ``rows`` for each of ``warps``
    warps of a block: in one run for each of these, where ``reach`` is the whole of rows that lie one behind another."""
    load = p.b.load
    if load is None or p.b.k != 1 or p.n.extent < rows:
        return
    joined = rows if reach == p.k.extent == p.b.row else 1

    def place(block: Expr, run: Expr) -> tuple[Expr, ...]:
        n = minimum(block * (warps * rows) + run * joined, index(p.n.extent - joined))
        return tuple(substitute(i, {"n": n, "k": index(0)}) for i in load.indices)

    ask.own("asked", load.buffer, warps * rows // joined, joined * reach, place)
    if p.a.load is not None:
        ask.all("asked", p.a.load.buffer)


def _is_aligned(load: Load, row: int) -> bool:
    """Whether rows, ``row`` elements apart, begin at whole units."""
    start, unit = flat_offset(load), max(1, _UNIT_BYTES // load.buffer.dtype.bytes)
    return row % unit == 0 and start is not None and start.constant % unit == 0
