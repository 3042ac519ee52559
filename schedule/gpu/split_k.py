"""The end of a product whose sums are spread over warps of a block and blocks of a cluster.

They are added up, always in the same order, and what is made of them is stored."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import DType
from ...ir.buffer import Buffer, Layout, MemoryScope
from ...ir.build import Writer
from ...ir.expr import Broadcast, ClusterLoad, Compare, CompareOp, Expr, Load, Ramp, Var, index, logical_and
from ...ir.gpu.barrier import SyncScope
from ...ir.gpu.cluster import ClusterLoadWait
from ...ir.stmt import LoopKind
from ..problems.gemm import Gemm
from ..tile.stage_body import vector_at
from .occupancy import Whole

UNROLLED = LoopKind.UNROLLED

AT_ONCE = 4
"""Runs of results that a thread adds up at once."""
PADDING = 4
"""Elements between rows of partial sums: those that a matrix instruction leaves in a warp lie in different banks."""


@dataclass(frozen=True, slots=True)
class Share:
    """A block's share of a product: ``columns`` places of ``n`` from ``block * columns`` on, for all ``m``. It is block
    ``rank`` of ``split`` in its cluster, which all have sums for the same outputs; ``thread`` of ``threads``."""

    product: Gemm
    block: Expr
    columns: int
    rank: Expr
    split: int
    thread: Expr
    threads: int


def partial_sums(w: Writer, p: Gemm, parts: int, columns: int, dtype: DType) -> Buffer:
    """Shared memory for sums: (part, m, n within the block)."""
    pitch = columns + PADDING
    layout = Layout((p.m.extent * pitch, pitch, 1))
    return w.allocate("partials", (parts, p.m.extent, columns), dtype, MemoryScope.SHARED, layout)


def partial_bytes(m: int, parts: Whole, columns: Whole) -> NDArray[np.int64]:
    """What ``partial_sums`` takes in float32."""
    taken: NDArray[np.int64] = 4 * m * np.asarray(parts, np.int64) * (np.asarray(columns, np.int64) + PADDING)
    return taken


def add_up(w: Writer, share: Share, partials: Buffer, parts: int) -> None:
    """Once every thread has written its ``partials``: add the ``parts`` of all blocks of the cluster, store outputs."""
    p, split = share.product, share.split
    w.barrier(SyncScope.CLUSTER if split > 1 else SyncScope.BLOCK)
    width = 4 if p.n.extent % 4 == 0 else 1
    total = w.allocate("total", (width,), partials.dtype, MemoryScope.REGISTER)
    run = (_run(index(0), width),)
    with _items(w, share, width) as (m, column):
        for number in range(split * parts):
            at = (index(number % parts), m, _run(column, width))
            value: Expr = ClusterLoad(partials, at, index(number // parts)) if split > 1 else Load(partials, at)
            w.store(total, run, Load(total, run) + value if number else value)
        if split > 1:
            w.emit(ClusterLoadWait(Load(total, (index(0),))))
        n = share.block * share.columns + column
        with w.when(Compare(CompareOp.LT, n, index(p.n.extent)) if p.n.extent % share.columns else None):
            store_outputs(w, p, {"m": m, "n": n}, total, width)
    if split > 1:
        w.barrier(SyncScope.CLUSTER)


@contextmanager
def _items(w: Writer, share: Share, width: int) -> Iterator[tuple[Expr, Expr]]:
    """Runs of ``width`` neighbours of the block's outputs, a part of them for each block of the cluster, dealt out to
    its threads: their ``m``, and ``n`` within the block."""
    runs = share.columns // width
    items = share.product.m.extent * runs
    own = -(-items // share.split)
    with w.loop("turn", -(-own // share.threads), UNROLLED) as turn:
        place = turn * share.threads + share.thread
        item = share.rank * own + place
        inside = [Compare(CompareOp.LT, place, index(own))] if own % share.threads else []
        inside += [Compare(CompareOp.LT, item, index(items))] if items % share.split else []
        with w.when(logical_and(*inside) if inside else None):
            yield (item // runs if share.product.m.extent > 1 else index(0)), (item % runs) * width


@dataclass(frozen=True, slots=True)
class TileShare:
    """A block's share of one tile of a product, which begins at ``at`` (axis -> place): it is number ``rank`` of
    ``split`` blocks, those from ``first`` on in its cluster, that all have sums of it; ``thread`` of ``threads``."""

    product: Gemm
    at: Mapping[str, Expr]
    rank: Expr
    split: int
    thread: Expr
    threads: int
    first: Expr = index(0)


def add_up_tile(w: Writer, share: TileShare, partials: Buffer) -> None:
    """Once all blocks that share a tile have their sums, (row, column), in shared memory: add them in order and store
    outputs, each block its part of the rows."""
    p, at, split, threads = share.product, share.at, share.split, share.threads
    lines, columns = partials.shape[0] // split, partials.shape[1]
    width = gcd(p.n.extent, columns, 8)
    items = lines * columns // width
    at_once = min(AT_ONCE, -(-items // threads))
    total = w.allocate("total", (at_once, width), partials.dtype, MemoryScope.REGISTER)

    def place(item: Expr) -> tuple[Expr, Expr]:
        return share.rank * lines + item // (columns // width), item % (columns // width) * width

    with w.loop("turn", -(-items // (threads * at_once))) as turn:
        first = turn * (threads * at_once) + share.thread
        exists = items % (threads * at_once) == 0
        for number in range(split):  # all loads of a number before the next: they are far apart
            with w.loop("item", at_once, UNROLLED) as i:
                item = first + i * threads
                line, column = place(item)
                here = (_spread(line, width), _run(column, width))
                sum_at = (_spread(i, width), _run(index(0), width))
                with w.when(None if exists else item < items):
                    value: Expr = Load(partials, here)
                    if split > 1:
                        value = ClusterLoad(partials, here, share.first + number)
                    w.store(total, sum_at, Load(total, sum_at) + value if number else value)
        with w.loop("item", at_once, UNROLLED) as i:
            item = first + i * threads
            line, column = place(item)
            m, n = at["m"] + line, at["n"] + column
            inside = [m < p.m.extent, n < p.n.extent] if exists else [item < items, m < p.m.extent, n < p.n.extent]
            with w.when(logical_and(*inside)):
                store_outputs(w, p, {**at, "m": m, "n": n}, total, width, (i,))


def store_outputs(
    w: Writer,
    p: Gemm,
    at: Mapping[str, Expr],
    total: Buffer,
    width: int,
    outer: tuple[Expr, ...] = (),
    first: Expr | None = None,
) -> None:
    """All outputs at ``width`` neighbours along ``n`` from ``at`` on (axis -> place), given the sums there: those from
    ``first`` on at ``outer`` in ``total``."""
    begin = index(0) if first is None else first
    place = Var("n") - at["n"] + begin if width > 1 else begin

    def load(e: Load) -> Expr:
        return Load(total, (*outer, place)) if e.buffer.name == p.accumulator.name else e

    for result in p.results:
        value = vector_at(result.value, at, "n", width, load)
        indices = [vector_at(i, at, "n", width) for i in result.indices]
        w.store(result.tensor, [i.value if isinstance(i, Broadcast) else i for i in indices], value)


def _spread(value: Expr, width: int) -> Expr:
    return Broadcast(value, width) if width > 1 else value


def _run(start: Expr, width: int) -> Expr:
    return Ramp(start, 1, width) if width > 1 else start
