"""What a block reads first, asked for ahead of the wait for earlier launches.

A launch's first blocks are there while the last ones of the launch before still run, and memory is idle by then. They
ask for the data that they will need at once (``ir.gpu.Prefetch``): it comes into the cache in front of memory, and is
loaded from there as soon as the wait is over.
"""

from collections.abc import Callable

from ...ir.buffer import Buffer
from ...ir.build import Writer
from ...ir.expr import Expr, Load, logical_and
from ...ir.gpu import Prefetch
from ...ir.rewrite import substitute
from ...ir.stmt import LoopKind
from .digits import digits
from .naming import NamingWriter
from .product import Product
from .registers import flat_offset

_UNIT_BYTES = 16
_LEAST_SHARE_BYTES = 512


def ask_ahead(
    w: Writer,
    name: str,
    thread: tuple[Expr, int],
    source: Buffer,
    count: int,
    elements: int,
    place: Callable[[Expr], tuple[Expr, ...]],
    *conditions: Expr,
) -> None:
    """Ask for ``count`` runs of ``elements`` of ``source``, the number ``i`` of which begins at ``place(i)``, where all
    ``conditions`` hold. Must stand first in a launch. Nothing is asked for where runs are no whole numbers of 16 bytes.

    ``name``: of a loop variable. ``thread``: which of how many this one is."""
    if not elements or elements * source.dtype.bytes % _UNIT_BYTES:
        return
    number, threads = thread
    with w.loop(name, -(-count // threads), LoopKind.UNROLLED) as turn:
        run = turn * threads + number
        tests = (run < count, *conditions) if count % threads else conditions
        with w.when(logical_and(*tests) if tests else None):
            w.emit(Prefetch(source, place(run), elements))


def ask_for_share(
    w: Writer, name: str, thread: tuple[Expr, int], source: Buffer, block: tuple[Expr, int], *conditions: Expr
) -> None:
    """Ask for a block's share of ``source``, which blocks go through about in the order of its elements, or all read.
    If it is little, the first blocks alone have shares.

    ``name``, ``thread``: as in ``ask_ahead``. ``block``: which of how many this one is."""
    number, blocks = block
    sharers = max(1, min(blocks, source.bytes // _LEAST_SHARE_BYTES))
    share = source.elements // sharers // _UNIT_BYTES * _UNIT_BYTES
    mine = (number < sharers,) if sharers < blocks else ()

    def place(_: Expr) -> tuple[Expr, ...]:
        return digits(number * share, source.shape)

    ask_ahead(w, name, thread, source, 1, share, place, *mine, *conditions)


def ask_for_operands(
    w: NamingWriter,
    p: Product,
    thread: tuple[Expr, int],
    rows: tuple[Expr, int],
    run: tuple[Expr, int],
    block: tuple[Expr, int],
) -> None:
    """Ask for weights that lie along ``k``, and for a share of the tokens.

    ``rows``: the first ``n``, and how many, of which there may be less. ``run``: the first ``k``, and how many, all of
    which exist. ``thread``: which of how many this one is. ``block``: which one along ``n`` this is, and how many of
    those ask ahead."""
    load, (first, count), (k, elements), (number, blocks) = p.weights.load, rows, run, block
    if load is None or p.weights.k != 1 or not _is_aligned(load, p.weights.row):
        return
    whole = p.n.extent % count == 0
    if not whole and count > thread[1]:
        return

    def place(row: Expr) -> tuple[Expr, ...]:
        return tuple(substitute(i, {"n": first + row, "k": k}) for i in load.indices)

    here = number < blocks
    inside = () if whole else (first + thread[0] < p.n.extent,)
    ask_ahead(w, "asked", thread, load.buffer, count, elements, place, *inside, here)
    if p.tokens.load is not None:
        tokens, grid = p.tokens.load.buffer, -(-p.n.extent // count)
        ask_for_share(w, "asked", thread, tokens, (number, min(grid, blocks)), here)


def _is_aligned(load: Load, row: int) -> bool:
    """Whether rows, ``row`` elements apart, begin at whole units."""
    start, unit = flat_offset(load), max(1, _UNIT_BYTES // load.buffer.dtype.bytes)
    return row % unit == 0 and start is not None and start.constant % unit == 0
