"""Reductions across threads: lanes exchange values by shuffles, warps and blocks of a cluster through shared memory.

    team = Team(Var("t"), threads=256, blocks=4)
    scratch = team_scratch(w, "max", team, [float32])
    ...                                       # every thread: w.store(top, (), what it found itself)
    team_reduce(w, "max", team, [top], combine_of(BinaryOp.MAX), scratch)
    ...                                       # every thread of the team: Load(top, ()) is the greatest of all

Values are register buffers of no dimensions; several reduced together (a value and where it stands, say) are combined
as one. All orders of combining give every thread of a team the same bits as long as ``combine`` is commutative.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...core.dtypes import DType
from ...ir.buffer import Buffer, MemoryScope
from ...ir.build import Writer
from ...ir.expr import (
    WARP_LANES,
    Binary,
    BinaryOp,
    ClusterLoad,
    Compare,
    CompareOp,
    Expr,
    Load,
    Shuffle,
    ShuffleMode,
    index,
)
from ...ir.gpu.barrier import SyncScope
from ...ir.gpu.cluster import ClusterLoadWait

Combine = Callable[[Sequence[Expr], Sequence[Expr]], Sequence[Expr]]
"""What two partial results make together, value by value. Must be commutative and associative but for rounding."""


def combine_of(op: BinaryOp) -> Combine:
    """Each value combined with its like by ``op``."""
    return lambda a, b: [Binary(op, x, y) for x, y in zip(a, b, strict=True)]


@dataclass(frozen=True, slots=True)
class Team:
    """The threads that reduce together: ``threads`` neighbours in each of the ``blocks`` blocks of a cluster.

    ``thread``: number of the thread in its block, an expression. A block has ``teams`` teams, one after the other.
    ``threads`` is a power of two up to 32 or 32 times a power of two, ``blocks`` a power of two. Teams of less than a
    warp stay within a block, and all lanes of every warp must take part.
    """

    thread: Expr
    threads: int
    teams: int = 1
    blocks: int = 1

    def __post_init__(self) -> None:
        for name, value in (("threads", self.threads), ("blocks", self.blocks)):
            if value < 1 or value & (value - 1):
                raise ValueError(f"{name} of a team are {value}; allowed: powers of two")
        if self.blocks > 1 and self.threads < WARP_LANES:
            raise ValueError(f"a team of {self.threads} threads a block spans {self.blocks} blocks; allowed from 32 on")

    @property
    def warps(self) -> int:
        """Warps of a team in one block; 1 where it is less than one."""
        return max(1, self.threads // WARP_LANES)

    @property
    def entries(self) -> int:
        """Partial results of a team that meet in shared memory; 1: none does."""
        return self.warps * self.blocks

    @property
    def number(self) -> Expr:
        """Which team of its block a thread is in."""
        return self.thread // self.threads if self.teams > 1 else index(0)

    @property
    def place(self) -> Expr:
        """Which thread of its team's part in this block a thread is."""
        return self.thread % self.threads if self.teams > 1 else self.thread

    @property
    def level(self) -> SyncScope:
        """Who must meet so that the whole team has met."""
        if self.blocks > 1:
            return SyncScope.CLUSTER
        return SyncScope.BLOCK if self.threads > WARP_LANES else SyncScope.WARP


def team_scratch(w: Writer, name: str, team: Team, dtypes: Sequence[DType], slots: int = 1) -> tuple[Buffer, ...]:
    """Shared memory for ``team_reduce``, a buffer for each value; none where shuffles are enough.

    Between two reductions in one slot a barrier of the team must stand, apart from the one inside each: use the slots
    in turn. A cluster needs a last cluster barrier before the end, since others read this block's memory."""
    if team.entries == 1:
        return ()
    places = (slots, team.teams * team.warps)
    return tuple(w.allocate(f"{name}_scratch_{n}", places, d, MemoryScope.SHARED) for n, d in enumerate(dtypes))


def scratch_bytes(team_threads: int, teams: int, blocks: int, value_bytes: int, slots: int = 1) -> int:
    """Shared memory that ``team_scratch`` takes for values of together ``value_bytes``."""
    warps = max(1, team_threads // WARP_LANES)
    return slots * teams * warps * value_bytes if warps * blocks > 1 else 0


def team_reduce(
    w: Writer,
    name: str,
    team: Team,
    values: Sequence[Buffer],
    combine: Combine,
    scratch: Sequence[Buffer] = (),
    slot: Expr | None = None,
) -> None:
    """Every thread's ``values`` (register buffers of no dimensions) become those of its whole team.

    ``name`` begins the names of the buffers in between. Must be reached by all threads of the block (and cluster).
    """
    _across_lanes(w, f"{name}_lane", values, combine, min(team.threads, WARP_LANES))
    if team.entries == 1:
        return
    at = index(0) if slot is None else slot
    warp, lane = team.thread // WARP_LANES, team.thread % WARP_LANES
    with w.when(Compare(CompareOp.EQ, lane, index(0))):
        for cell, value in zip(scratch, values, strict=True):
            w.store(cell, (at, warp), Load(value, ()))
    w.barrier(team.level)
    width = min(team.entries, WARP_LANES)
    partials = [w.allocate(f"{name}_partial_{n}", (), v.dtype, MemoryScope.REGISTER) for n, v in enumerate(values)]
    for start in range(0, team.entries, WARP_LANES):
        entry = lane % width + start if start else lane % width
        for cell, partial in zip(scratch, partials if start else values, strict=True):
            w.store(partial, (), _entry(team, cell, at, entry))
            if team.blocks > 1:
                w.emit(ClusterLoadWait(Load(partial, ())))
        if start:
            _combine_into(w, f"{name}_after_{start}", values, partials, combine)
    _across_lanes(w, f"{name}_warp", values, combine, width)


def _entry(team: Team, cell: Buffer, slot: Expr, entry: Expr) -> Expr:
    """A partial result of the team, the warps of its first block first."""
    first = team.number * team.warps
    if team.blocks == 1:
        return Load(cell, (slot, first + entry if team.teams > 1 else entry))
    warp = entry % team.warps if team.warps > 1 else index(0)
    return ClusterLoad(cell, (slot, first + warp if team.teams > 1 else warp), entry // team.warps)


def _across_lanes(w: Writer, name: str, values: Sequence[Buffer], combine: Combine, width: int) -> None:
    """``values`` of groups of ``width`` lanes combined; every lane of a group has the result."""
    if width == 1:
        return
    others = [w.allocate(f"{name}_{n}", (), v.dtype, MemoryScope.REGISTER) for n, v in enumerate(values)]
    distance = width // 2
    while distance:
        for value, other in zip(values, others, strict=True):
            w.store(other, (), Shuffle(ShuffleMode.XOR, Load(value, ()), index(distance)))
        _combine_into(w, f"{name}_by_{distance}", values, others, combine)
        distance //= 2


def _combine_into(w: Writer, name: str, values: Sequence[Buffer], others: Sequence[Buffer], combine: Combine) -> None:
    """``values`` combined with ``others``; several change at once, since each new one may read all old ones."""
    new = combine([Load(v, ()) for v in values], [Load(o, ()) for o in others])
    if len(values) == 1:
        w.store(values[0], (), new[0])
        return
    held = [w.allocate(f"{name}_{n}", (), v.dtype, MemoryScope.REGISTER) for n, v in enumerate(values)]
    for place, result in zip(held, new, strict=True):
        w.store(place, (), result)
    for value, place in zip(values, held, strict=True):
        w.store(value, (), Load(place, ()))
