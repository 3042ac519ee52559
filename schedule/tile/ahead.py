"""What the first blocks of a launch read, asked for ahead of the wait for earlier launches.

They are there while the last blocks of the launch before still run, and memory has little to do by then. They ask for
the data that they will need at once (``ir.gpu.Prefetch``): it comes into the cache in front of memory, and is loaded
from there as soon as the wait is over.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ...ir.buffer import Buffer
from ...ir.build import Writer
from ...ir.expr import Expr, Load, index, logical_and
from ...ir.gpu import Prefetch
from ...ir.rewrite import substitute
from ...ir.stmt import LoopKind
from .digits import digits
from .product import Product
from .registers import flat_offset

WAVES = 1
"""Blocks that one block asks for: itself, and those that will take its place."""
_UNIT_BYTES = 16
_LEAST_SHARE_BYTES = 512


@dataclass(frozen=True, slots=True)
class Ahead:
    """Asks, first of all in a launch. ``thread``: which of how many of its block this one is. ``block``: which of how
    many. ``first``: how many blocks there is room for at once: the first, which ask; none do where it is 0."""

    w: Writer
    thread: tuple[Expr, int]
    block: tuple[Expr, int]
    first: int

    def runs(
        self, name: str, source: Buffer, count: int, elements: int, place: Callable[[Expr, Expr], tuple[Expr, ...]]
    ) -> None:
        """``count`` runs of ``elements`` of ``source`` for each block: run ``i`` of block ``b`` begins at
        ``place(b, i)``. Nothing where runs are no whole numbers of 16 bytes. ``name``: of a loop variable."""
        blocks = self.block[1]
        first = min(self.first, blocks)
        if first:
            self._ask(name, source, count, elements, place, first, min(WAVES, -(-blocks // first)))

    def share(self, name: str, source: Buffer) -> None:
        """A block's share of what the blocks go through about in the order of its elements."""
        share = _whole_units(source.elements // self.block[1])
        self.runs(name, source, 1, share, lambda block, _: digits(block * share, source.shape))

    def all(self, name: str, source: Buffer) -> None:
        """The whole of what every block reads: a share of it, of some size, from each of the first blocks."""
        sharers = min(self.first, self.block[1], max(1, source.bytes // _LEAST_SHARE_BYTES))
        if sharers:
            share = _whole_units(source.elements // sharers)
            self._ask(name, source, 1, share, lambda block, _: digits(block * share, source.shape), sharers, 1)

    def _ask(
        self,
        name: str,
        source: Buffer,
        count: int,
        elements: int,
        place: Callable[[Expr, Expr], tuple[Expr, ...]],
        first: int,
        waves: int,
    ) -> None:
        if not elements or elements * source.dtype.bytes % _UNIT_BYTES:
            return
        (thread, threads), (block, blocks), w = self.thread, self.block, self.w
        with w.loop(name, -(-waves * count // threads), LoopKind.UNROLLED) as turn:
            number = turn * threads + thread
            at = block + number // count * first if waves > 1 else block
            tests = [number < waves * count] if waves * count % threads else []
            tests += [block < first] if first < blocks else []
            tests += [at < blocks] if waves * first > blocks else []
            with w.when(logical_and(*tests) if tests else None):
                w.emit(Prefetch(source, place(at, number % count if count > 1 else index(0)), elements))


def ask_for_operands(ask: Ahead, p: Product, rows: int, k: Expr, reach: int) -> None:
    """Weights that lie along ``k``: of the ``rows`` of each block along ``n``, a run of ``reach`` from ``k`` on, all of
    which must be there; and the tokens."""
    load = p.weights.load
    if load is None or p.weights.k != 1 or p.n.extent % rows or not _is_aligned(load, p.weights.row):
        return

    def place(block: Expr, row: Expr) -> tuple[Expr, ...]:
        return tuple(substitute(i, {"n": block * rows + row, "k": k}) for i in load.indices)

    ask.runs("asked", load.buffer, rows, reach, place)
    if p.tokens.load is not None:
        ask.all("asked", p.tokens.load.buffer)


def _whole_units(elements: int) -> int:
    """At most so many elements, a whole number of units whatever their type."""
    return elements // _UNIT_BYTES * _UNIT_BYTES


def _is_aligned(load: Load, row: int) -> bool:
    """Whether rows, ``row`` elements apart, begin at whole units."""
    start, unit = flat_offset(load), max(1, _UNIT_BYTES // load.buffer.dtype.bytes)
    return row % unit == 0 and start is not None and start.constant % unit == 0
