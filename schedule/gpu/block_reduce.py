"""Writes reductions across threads: lanes exchange values by shuffles, warps and the blocks of a cluster by shared
memory.

    butterfly            lanes of a warp combine their values; all of them have the result
    combine_in_order     a thread combines partial results, wherever it reads them from, in a fixed order
    ThreadGroup          threads of a block or a cluster that reduce one value each by ``group_reduce``
    FragmentRowReducer   rows whose values lie in fragments of mma.sync, in all warps of a block or a cluster

    group = ThreadGroup(Var("t"), threads=256, blocks=4)
    scratch = group_scratch(w, "max", group, [float32])
    ...                                       # every thread: w.store(top, (), what it found itself)
    group_reduce(w, "max", group, [top], combine_of(BinaryOp.MAX), scratch)
    ...                                       # every thread of the group: Load(top, ()) is the greatest of all

Values are register buffers. Several that are reduced together (a value and its position, say) are combined as one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

from ...core.dtypes import DType, float32
from ...ir.buffer import Buffer, MemoryScope
from ...ir.build import Writer
from ...ir.expr import (
    WARP_LANES,
    Binary,
    BinaryOp,
    Broadcast,
    ClusterLoad,
    Expr,
    Load,
    Ramp,
    Shuffle,
    ShuffleMode,
    index,
    logical_and,
)
from ...ir.gpu.barrier import SyncScope
from ...ir.gpu.cluster import ClusterLoadWait
from ...te.functions import equal

Combine = Callable[[Sequence[Expr], Sequence[Expr]], Sequence[Expr]]
"""What two partial results make together, value by value. It must be commutative, and associative but for rounding.
Then every thread of a butterfly has the same bits."""
Indices = tuple[Expr, ...]


def combine_of(op: BinaryOp) -> Combine:
    """Return each value combined with its counterpart by ``op``."""
    return lambda a, b: [Binary(op, x, y) for x, y in zip(a, b, strict=True)]


# --- lanes, and partial results in order


def butterfly(
    w: Writer, name: str, values: Sequence[Buffer], combine: Combine, distances: Iterable[int], at: Indices = ()
) -> None:
    """``values[at]`` of lanes combined whose numbers differ in the bits ``distances``, powers of two below 32. Every
    lane has the result. ``name`` begins the names of the registers in between."""
    distances = tuple(distances)
    if not distances:
        return
    others = [w.allocate(f"{name}_{n}", (), v.dtype, MemoryScope.REGISTER) for n, v in enumerate(values)]
    for distance in distances:
        for value, other in zip(values, others, strict=True):
            w.store(other, (), Shuffle(ShuffleMode.XOR, Load(value, at), index(distance)))
        _combine_into(w, f"{name}_by_{distance}", values, at, [Load(o, ()) for o in others], combine)


def combine_in_order(
    w: Writer, name: str, values: Sequence[Buffer], terms: Iterable[Sequence[Expr]], combine: Combine, at: Indices = ()
) -> None:
    """``values[at]`` becomes the first of ``terms`` combined with the second, the third and so on."""
    for number, term in enumerate(terms):
        if number == 0:
            for value, first in zip(values, term, strict=True):
                w.store(value, at, first)
        else:
            _combine_into(w, f"{name}_{number}", values, at, term, combine)


def _combine_into(
    w: Writer, name: str, values: Sequence[Buffer], at: Indices, others: Sequence[Expr], combine: Combine
) -> None:
    """``values[at]`` combined with ``others``. Several change at once, since each new one may read all old ones."""
    new = combine([Load(v, at) for v in values], others)
    if len(values) == 1:
        w.store(values[0], at, new[0])
        return
    held = [w.allocate(f"{name}_{n}", (), v.dtype, MemoryScope.REGISTER) for n, v in enumerate(values)]
    for register, result in zip(held, new, strict=True):
        w.store(register, (), result)
    for value, register in zip(values, held, strict=True):
        w.store(value, at, Load(register, ()))


def halvings(width: int) -> tuple[int, ...]:
    """Return the distances of a butterfly over ``width`` neighbouring lanes, the largest first."""
    return tuple(1 << bit for bit in reversed(range(width.bit_length() - 1)))


# --- groups of threads with one value each


@dataclass(frozen=True, slots=True)
class ThreadGroup:
    """Threads that reduce together: ``threads`` neighbours in each of the ``blocks`` blocks of a cluster.

    ``thread`` is the number of the thread in its block, an expression. A block has ``groups`` groups, one after the
    other. ``threads`` is a power of two up to 32 or 32 times a power of two, ``blocks`` a power of two. Groups of less
    than a warp stay within a block, and all lanes of every warp must take part.
    """

    thread: Expr
    threads: int
    groups: int = 1
    blocks: int = 1

    def __post_init__(self) -> None:
        for name, value in (("threads", self.threads), ("blocks", self.blocks)):
            if value < 1 or value & (value - 1):
                raise ValueError(f"{name} of a group are {value}; allowed: powers of two")
        if self.blocks > 1 and self.threads < WARP_LANES:
            raise ValueError(
                f"a group of {self.threads} threads a block spans {self.blocks} blocks; allowed from 32 on"
            )

    @property
    def warps(self) -> int:
        """Warps of a group in one block; 1 where it is less than one."""
        return max(1, self.threads // WARP_LANES)

    @property
    def partials(self) -> int:
        """How many partial results of a group are exchanged by shared memory; 1 where none is."""
        return self.warps * self.blocks

    @property
    def group_rank(self) -> Expr:
        """Which group of its block a thread is in."""
        return self.thread // self.threads if self.groups > 1 else index(0)

    @property
    def thread_rank(self) -> Expr:
        """Which thread of its group in this block a thread is."""
        return self.thread % self.threads if self.groups > 1 else self.thread

    @property
    def level(self) -> SyncScope:
        """The barrier at which the whole group synchronises."""
        if self.blocks > 1:
            return SyncScope.CLUSTER
        return SyncScope.BLOCK if self.threads > WARP_LANES else SyncScope.WARP


def group_scratch(
    w: Writer, name: str, group: ThreadGroup, dtypes: Sequence[DType], slots: int = 1
) -> tuple[Buffer, ...]:
    """Shared memory for ``group_reduce``, a buffer for each value; none where shuffles are enough.

    Between two reductions in one slot a barrier of the group must stand, besides the one inside each: alternate
    between the slots. A cluster needs a last cluster barrier before the end, since others read this block's memory.
    """
    if group.partials == 1:
        return ()
    shape = (slots, group.groups * group.warps)
    return tuple(w.allocate(f"{name}_scratch_{n}", shape, d, MemoryScope.SHARED) for n, d in enumerate(dtypes))


def group_reduce(
    w: Writer,
    name: str,
    group: ThreadGroup,
    values: Sequence[Buffer],
    combine: Combine,
    scratch: Sequence[Buffer] = (),
    slot: Expr | None = None,
) -> None:
    """Every thread's ``values`` (register buffers of no dimensions) become those of its whole group.

        butterfly over the lanes of each warp
        one lane of each warp stores the partial result in shared memory; barrier of the group
        every warp loads the partial results of the group, one a lane; butterfly over them

    ``name`` begins the names of the buffers in between. All threads of the block (and cluster) must get here.
    """
    butterfly(w, f"{name}_lane", values, combine, halvings(min(group.threads, WARP_LANES)))
    if group.partials == 1:
        return
    at = index(0) if slot is None else slot
    warp, lane = group.thread // WARP_LANES, group.thread % WARP_LANES
    with w.when(equal(lane, 0)):
        for cell, value in zip(scratch, values, strict=True):
            w.store(cell, (at, warp), Load(value, ()))
    w.barrier(group.level)
    width = min(group.partials, WARP_LANES)
    partials = [w.allocate(f"{name}_partial_{n}", (), v.dtype, MemoryScope.REGISTER) for n, v in enumerate(values)]
    for start in range(0, group.partials, WARP_LANES):
        number = lane % width + start if start else lane % width
        for cell, partial in zip(scratch, partials if start else values, strict=True):
            w.store(partial, (), _partial(group, cell, at, number))
            if group.blocks > 1:
                w.emit(ClusterLoadWait(Load(partial, ())))
        if start:
            _combine_into(w, f"{name}_after_{start}", values, (), [Load(p, ()) for p in partials], combine)
    butterfly(w, f"{name}_warp", values, combine, halvings(width))


def _partial(group: ThreadGroup, cell: Buffer, slot: Expr, number: Expr) -> Expr:
    """Return a partial result of the group, the warps of its first block first."""
    first = group.group_rank * group.warps
    if group.blocks == 1:
        return Load(cell, (slot, first + number if group.groups > 1 else number))
    warp = number % group.warps if group.warps > 1 else index(0)
    return ClusterLoad(cell, (slot, first + warp if group.groups > 1 else warp), number // group.warps)


# --- rows in fragments of matrix instructions

QUAD = 4
"""How many lanes hold the accumulators of one row of a fragment, two neighbours each."""
QUAD_DISTANCES = (1, 2)
"""The distances of a butterfly over these lanes."""
FRAGMENT_ROWS = 16
"""How many rows a fragment of m16n8 has. A lane holds accumulators of two of them, whose numbers differ by 8."""


class FragmentRowReducer:
    """Reduces values of rows, ``atoms_m`` times 16, of which each of ``warps`` warps in each of ``cluster`` blocks has
    partial results. All of them must get to every reduction.

        butterfly over the four lanes of a row
        one of them stores the partial result in shared memory; barrier of the block
        every lane adds up the partial results of all warps in order
        the first warp stores that of its block; barrier of the cluster; every lane adds up those of all blocks in order
    """

    def __init__(self, w: Writer, atoms_m: int, warps: int, cluster: int, warp: Expr, lane: Expr) -> None:
        self.w, self.atoms_m, self.warps, self.cluster, self.warp, self.lane = w, atoms_m, warps, cluster, warp, lane
        self.reductions = 0
        # two slots of each: the barriers of a reduction stand between two uses of one slot
        if warps > 1:
            self.of_warps = w.allocate("of_warps", (2, atoms_m * FRAGMENT_ROWS, warps), float32, MemoryScope.SHARED)
        if cluster > 1:
            self.of_blocks = w.allocate("of_blocks", (2, atoms_m * FRAGMENT_ROWS), float32, MemoryScope.SHARED)

    @contextmanager
    def rows(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        """The rows of a lane: (atom, half of the atom, row of the block)."""
        with (
            self.w.unrolled("row_atom", self.atoms_m) as i,
            self.w.unrolled("row_half", 2) as half,
        ):
            yield i, half, i * FRAGMENT_ROWS + half * 8 + self.lane // QUAD

    def reduce(self, op: BinaryOp, value: Buffer) -> None:
        """``value``, for each (atom, half), becomes that of the whole row, the same in every lane that has it."""
        combine = combine_of(op)
        with self.rows() as (i, half, _):
            butterfly(self.w, "of_lane", [value], combine, (1, 2), (i, half))
        slot = index(self.reductions % 2)
        self.reductions += 1
        if self.warps > 1:
            self._over_warps(combine, value, slot)
        if self.cluster > 1:
            self._over_blocks(combine, value, slot)

    def _over_warps(self, combine: Combine, value: Buffer, slot: Expr) -> None:
        w, partials, warps = self.w, self.of_warps, self.warps
        with w.when(equal(self.lane % QUAD, 0)), self.rows() as (i, half, row):
            w.store(partials, (slot, row, self.warp), Load(value, (i, half)))
        w.barrier()
        with self.rows() as (i, half, row):
            held = w.allocate("of_all_warps", (warps,), float32, MemoryScope.REGISTER)
            width = min(warps, 4)
            for first in range(0, warps, width):
                vector = Ramp(index(first), 1, width)
                w.store(held, (vector,), Load(partials, (Broadcast(slot, width), Broadcast(row, width), vector)))
            terms = ([Load(held, (index(warp),))] for warp in range(warps))
            combine_in_order(w, "warp", [value], terms, combine, (i, half))

    def _over_blocks(self, combine: Combine, value: Buffer, slot: Expr) -> None:
        w, partials = self.w, self.of_blocks
        one = logical_and(equal(self.lane % QUAD, 0), equal(self.warp, 0))
        with w.when(one), self.rows() as (i, half, row):
            w.store(partials, (slot, row), Load(value, (i, half)))
        w.barrier(SyncScope.CLUSTER)
        with self.rows() as (i, half, row):
            terms: list[Sequence[Expr]] = [
                [ClusterLoad(partials, (slot, row), index(block))] for block in range(self.cluster)
            ]
            (total,) = reduce(combine, terms)
            w.store(value, (i, half), total)
            w.emit(ClusterLoadWait(Load(value, (i, half))))
