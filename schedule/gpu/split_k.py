"""The reduction of split-K and stream-K: partial sums of several warps or CTAs are added up, always in the same order.

Partial sums lie in shared memory, that of this CTA and of others of its cluster, or in a workspace. A thread takes
vectors of neighbours along ``n``, some of them at once:

    for each of the vectors:   load all of its partial sums
    wait for those that come from other CTAs
    for each of the vectors:   add them up in order, and store the outputs that follow from the sum
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TypeVar

import numpy as np

from ...core.dtypes import DType
from ...ir.buffer import Buffer, Layout, MemoryScope
from ...ir.build import Writer
from ...ir.expr import Broadcast, ClusterLoad, Expr, Load, Var, conjunction, const, index
from ...ir.gpu.barrier import SyncScope
from ...ir.gpu.cluster import ClusterLoadWait
from ..problems.gemm import Gemm
from ..space.columns import Ints
from ..tile.accumulation import Accumulation
from ..tile.contiguous import contiguous_vector
from ..tile.stage_body import vector_at
from .occupancy import Whole

PADDING = 4
"""Elements between rows of partial sums: those that a matrix instruction leaves in a warp lie in different banks."""

VECTORS_AT_ONCE = 4
"""A thread adds up so many vectors at once where all partial sums are those of its CTA."""
LOADS_AT_ONCE = 16
"""A thread loads so many partial sums from the CTAs of a cluster before it adds up the first of them."""

Place = TypeVar("Place", int, Expr, Ints)

At = Mapping[str, Expr]
"""Where something begins in the result: axis -> index."""


@dataclass(frozen=True, slots=True)
class SplitKReduction:
    """What the threads of one CTA add up: ``vectors`` vectors of ``width`` neighbours along ``n``.

    ``thread``: which of the ``threads`` threads this one is. ``at_once``: how many vectors it takes at once.
    ``partial``: the load of a partial sum, by the numbers of the vector and of one of its ``partials`` partial sums.
    ``loads_if``: on which conditions a vector is loaded, by its number.
    ``destination``: where the sum of a vector belongs, by its number, and on which further conditions it is stored.
    ``exists``: whether a partial sum exists, by its number; None: all do. The first one must.
    ``in_cluster``: whether some are loaded from other CTAs of the cluster.
    """

    vectors: int
    width: int
    thread: Expr
    threads: int
    at_once: int
    partials: int
    partial: Callable[[Expr, Expr], Expr]
    loads_if: Callable[[Expr], Sequence[Expr]]
    destination: Callable[[Expr], tuple[At, Sequence[Expr]]]
    exists: Callable[[Expr], Expr] | None = None
    in_cluster: bool = False


def reduce_partials(w: Writer, gemm: Gemm, r: SplitKReduction, dtype: DType) -> None:
    """Add up all vectors and store the outputs."""
    if r.at_once == 1:
        _reduce_one_at_a_time(w, gemm, r, dtype)
        return
    at_once = min(r.at_once, -(-r.vectors // r.threads))
    held = w.allocate("partial", (at_once, r.partials, r.width), dtype, MemoryScope.REGISTER)
    total = w.allocate("total", (r.width,), dtype, MemoryScope.REGISTER) if r.partials > 1 else None
    with w.loop("round", -(-r.vectors // (r.threads * at_once))) as number:
        with w.unrolled("vector", at_once) as i:
            vector = (number * at_once + i) * r.threads + r.thread
            if r.in_cluster:
                for n in range(r.partials):
                    w.store(held, _held(r, i, index(n)), _spread(const(0, dtype), r.width))
            with w.when(_all(r.loads_if(vector))):
                _load(w, r, held, i, vector)
        if r.in_cluster:
            loads = [Load(held, (index(i), index(n), index(0))) for i in range(at_once) for n in range(r.partials)]
            w.emit(ClusterLoadWait(reduce(add, loads)))
        with w.unrolled("vector", at_once) as i:
            at, conditions = r.destination((number * at_once + i) * r.threads + r.thread)
            with w.when(_all(conditions)):
                if total is not None:
                    _combine(w, gemm, r, total, lambda n: Load(held, _held(r, i, n)))
                    store_outputs(w, gemm, at, total, r.width)
                else:
                    store_outputs(w, gemm, at, held, r.width, (i, index(0)))


def _reduce_one_at_a_time(w: Writer, gemm: Gemm, r: SplitKReduction, dtype: DType) -> None:
    """As ``reduce_partials``, for one vector of a thread at a time. Partial sums that may not exist are all loaded
    before the first addition. For others the compiler does so itself; it does not move loads out of conditions."""
    held = None
    if r.exists is not None:
        held = w.allocate("partial", (1, r.partials, r.width), dtype, MemoryScope.REGISTER)
    total = w.allocate("total", (r.width,), dtype, MemoryScope.REGISTER)
    with w.unrolled("round", -(-r.vectors // r.threads)) as number:
        vector = number * r.threads + r.thread
        with w.when(_all(r.loads_if(vector))):
            if held is not None:
                _load(w, r, held, index(0), vector)
                _combine(w, gemm, r, total, lambda n: Load(held, _held(r, index(0), n)))
            else:
                _combine(w, gemm, r, total, lambda n: r.partial(vector, n))
            if r.in_cluster:
                w.emit(ClusterLoadWait(Load(total, (index(0),))))
            at, conditions = r.destination(vector)
            with w.when(_all(conditions)):
                store_outputs(w, gemm, at, total, r.width)


def _load(w: Writer, r: SplitKReduction, held: Buffer, i: Expr, vector: Expr) -> None:
    """Load all partial sums of a vector, zeros for those that do not exist."""
    for n in _partials(w, r):
        exists = None if r.exists is None or n == index(0) else r.exists(n)
        if exists is not None:
            w.store(held, _held(r, i, n), _spread(const(0, held.dtype), r.width))
        with w.when(exists):
            w.store(held, _held(r, i, n), r.partial(vector, n))


def _combine(w: Writer, gemm: Gemm, r: SplitKReduction, total: Buffer, partial: Callable[[Expr], Expr]) -> None:
    """Combine all partial results of a vector, each given by its number: add them up, unless the reducer of ``gemm`` is
    another one."""
    combine = Accumulation(gemm.reducer, total.dtype, total.dtype).combine
    at = contiguous_vector((index(0),), r.width)
    for n in _partials(w, r):
        value = partial(n)
        w.store(total, at, value if n == index(0) else combine([Load(total, at)], [value])[0])


def _partials(w: Writer, r: SplitKReduction) -> Iterator[Expr]:
    """Yield the numbers of all partial sums of a vector, in order. Those that may not exist are counted by a loop,
    since they may be many; others are written out."""
    yield index(0)
    if r.exists is None:
        yield from (index(n) for n in range(1, r.partials))
        return
    with w.unrolled("partial", r.partials - 1) as n:
        yield n + 1


def _held(r: SplitKReduction, i: Expr, partial: Expr) -> tuple[Expr, ...]:
    """Return where in registers a partial sum is, of the ``i``-th vector at once."""
    return contiguous_vector((i, partial, index(0)), r.width)


def _all(conditions: Sequence[Expr]) -> Expr | None:
    return conjunction(*conditions)


@dataclass(frozen=True, slots=True)
class TileSlice:
    """A CTA's part of the rows of one tile, which begins at ``at``. It is number ``rank`` of the ``split_k`` CTAs that
    share the tile, those from number ``first`` on in its cluster. ``thread``: which of the ``threads`` threads of the
    CTA this one is."""

    gemm: Gemm
    at: At
    rank: Expr
    split_k: int
    thread: Expr
    threads: int
    first: Expr = index(0)


def reduce_tile(w: Writer, t: TileSlice, partials: Buffer, width: int) -> None:
    """Once all CTAs that share a tile have their partial sums of it in shared memory (``partial_at``): add them up and
    store the outputs, ``width`` at a time. A CTA begins with its own partial sums and goes on with those of the CTAs
    after it, and around, so that not all of them read from one at a time."""
    gemm = t.gemm
    rows, columns = partial_at(gemm, *partials.shape)
    rows //= t.split_k
    vectors = rows * columns // width
    at_once = VECTORS_AT_ONCE if t.split_k == 1 else max(1, LOADS_AT_ONCE // t.split_k)
    exact = t.split_k == 1 and vectors % (t.threads * min(at_once, -(-vectors // t.threads))) == 0

    def position(vector: Expr) -> tuple[Expr, Expr]:
        row, column = place_in_tile(gemm, vector, rows, columns, width)
        return t.rank * rows + row, column

    def destination(vector: Expr) -> tuple[At, Sequence[Expr]]:
        row, column = position(vector)
        at = {**t.at, "m": t.at["m"] + row, "n": t.at["n"] + column}
        inside = [*gemm.rows_inside(at["m"]), at["n"] < gemm.n.extent]
        return at, inside if exact else [vector < vectors, *inside]

    def loads_if(vector: Expr) -> Sequence[Expr]:
        """Loads from other CTAs are not made in vain."""
        if t.split_k > 1:
            return destination(vector)[1]
        return [] if exact else [vector < vectors]

    def partial(vector: Expr, number: Expr) -> Expr:
        here = contiguous_vector(partial_at(gemm, *position(vector)), width)
        if number == index(0):
            return Load(partials, here)
        return ClusterLoad(partials, here, t.first + (t.rank + number) % t.split_k)

    reduction = SplitKReduction(
        *(vectors, width, t.thread, t.threads, at_once, t.split_k, partial, loads_if, destination),
        in_cluster=t.split_k > 1,
    )
    reduce_partials(w, gemm, reduction, partials.dtype)


def vector_width(gemm: Gemm) -> int:
    """Return how many neighbours along ``n`` are added up at once."""
    return 4 if gemm.n.extent % 4 == 0 and not gemm.along_m else 1


def partial_at(gemm: Gemm, row: Place, column: Place) -> tuple[Place, Place]:
    """Return where the partial sum of a row and a column of a tile is: (row, column), or (column, row) where rows are
    neighbours in the results, so that neighbouring lanes add up neighbours. The same turns it back."""
    return (column, row) if gemm.along_m else (row, column)


def place_in_tile(gemm: Gemm, vector: Expr, rows: int, columns: int, width: int) -> tuple[Expr, Expr]:
    """(row, column) of a vector by its number: neighbours are neighbours in the results."""
    if gemm.along_m:
        return vector % rows, vector // rows * width
    return vector // (columns // width), vector % (columns // width) * width


@dataclass(frozen=True, slots=True)
class ColumnSlice:
    """The outputs that a cluster computes of a product with few rows: ``columns`` places of ``n`` from ``block *
    columns`` on, for all ``m``. This CTA is number ``rank`` of the ``split_k`` in its cluster, which all have partial
    sums of these outputs. ``thread``: which of the ``threads`` threads of the CTA this one is."""

    gemm: Gemm
    block: Expr
    columns: int
    rank: Expr
    split_k: int
    thread: Expr
    threads: int


def allocate_partials(w: Writer, gemm: Gemm, warps_k: int, columns: int, dtype: DType) -> Buffer:
    """Shared memory for the partial sums of the warps of a CTA that share ``k``: (warp, m, n within the block)."""
    pitch = columns + PADDING
    layout = Layout((gemm.m.extent * pitch, pitch, 1))
    return w.allocate("partials", (warps_k, gemm.m.extent, columns), dtype, MemoryScope.SHARED, layout)


def partial_bytes(m: int, warps_k: Whole, columns: Whole) -> Ints:
    """Return what ``allocate_partials`` takes in float32."""
    return 4 * m * np.asarray(warps_k, np.int64) * (np.asarray(columns, np.int64) + PADDING)


def reduce_columns(w: Writer, s: ColumnSlice, partials: Buffer) -> None:
    """Once every thread has written its ``partials`` (see ``allocate_partials``): add up those of all warps and CTAs
    that share ``k``, and store the outputs, each CTA a part of them."""
    gemm, warps_k = s.gemm, partials.shape[0]
    w.barrier(SyncScope.CLUSTER if s.split_k > 1 else SyncScope.BLOCK)
    width = 4 if gemm.n.extent % 4 == 0 else 1
    vectors_m = s.columns // width
    vectors = gemm.m.extent * vectors_m
    own = -(-vectors // s.split_k)

    def position(vector: Expr) -> tuple[Expr, Expr]:
        number = s.rank * own + vector
        return (number // vectors_m if gemm.m.extent > 1 else index(0)), number % vectors_m * width

    def loads_if(vector: Expr) -> Sequence[Expr]:
        conditions = [vector < own] if own % s.threads else []
        return conditions + ([s.rank * own + vector < vectors] if vectors % s.split_k else [])

    def destination(vector: Expr) -> tuple[At, Sequence[Expr]]:
        m, column = position(vector)
        n = s.block * s.columns + column
        return {"m": m, "n": n}, [n < gemm.n.extent] if gemm.n.extent % s.columns else []

    def partial(vector: Expr, number: Expr) -> Expr:
        m, column = position(vector)
        here = contiguous_vector((number % warps_k, m, column), width)
        return ClusterLoad(partials, here, number // warps_k) if in_cluster else Load(partials, here)

    in_cluster, count = s.split_k > 1, s.split_k * warps_k
    reduction = SplitKReduction(
        *(own, width, s.thread, s.threads, 1, count, partial, loads_if, destination), in_cluster=in_cluster
    )
    reduce_partials(w, gemm, reduction, partials.dtype)
    if in_cluster:
        w.barrier(SyncScope.CLUSTER)


def store_outputs(
    w: Writer,
    gemm: Gemm,
    at: At,
    accumulators: Buffer,
    width: int,
    outer: tuple[Expr, ...] = (),
    first: Expr | None = None,
) -> None:
    """Store all outputs at ``width`` neighbours along ``n`` from ``at`` on, all of which exist or none. Their
    accumulators are those from ``first`` on, at the indices ``outer``, in ``accumulators``."""
    begin = index(0) if first is None else first
    column = Var("n") - at["n"] + begin if width > 1 else begin

    def replaced(load: Load) -> Expr:
        return Load(accumulators, (*outer, column)) if load.buffer.name == gemm.accumulator.name else load

    for result in gemm.results:
        value = vector_at(result.value, at, "n", width, replaced)
        indices = [vector_at(i, at, "n", width) for i in result.indices]
        with w.when(_all([vector_at(i, at, "n", 1) for i in result.inside])):
            w.store(result.tensor, [i.value if isinstance(i, Broadcast) else i for i in indices], value)


def _spread(value: Expr, width: int) -> Expr:
    return Broadcast(value, width) if width > 1 else value
