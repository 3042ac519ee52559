"""Writes the main loop of a large product: TMA fills stages of shared memory, wgmma multiplies what is there.

One elected thread of the producer issues the loads of a stage once the consumers have left it, and consumer warpgroups
multiply it once it has arrived. Two mbarriers of each stage say so:

    producer                                  consumer warpgroups
    wait until the stage is empty             wait until the stage is full
    expect the bytes of its loads             issue its wgmma
    issue its loads, which arrive at full     wait for the wgmma of the stage before, and arrive at its empty

So the products of one k iteration are always under way. Fills of stages are counted over all tiles of a CTA, so that
loads run ahead into the next tile while the epilogue stores this one. Where threads copy rows that TMA cannot load
(``shifted_rows``), all those of a producer warpgroup do, and each of its warps arrives at full, too.
``tensor_memory`` has the same loop for tcgen05.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, product
from typing import Generic, TypeVar

from ....core.dtypes import INDEX
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Expr, Load, Select, Var, index, logical_and
from ....ir.gpu.barrier import WARPGROUP_THREADS, SyncScope
from ....ir.gpu.fence import AsyncProxyFence
from ....ir.gpu.mbarrier import MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M, WarpgroupMma, WarpgroupMmaWait
from ....ir.rewrite import free_variables
from ....ir.verifier.wgmma import MAX_PENDING
from ....te.functions import equal, negated
from ...problems.gemm import Gemm
from ...tile.names import FreshNameWriter
from ..tma_view import is_along, operand_view
from .block_scales import allocate_scale_stages
from .k_atoms import can_load_im2col, ends_row, halo_taps, joined_groups, last_multiplied_k, multiplied_k
from .k_iterations import KIterations
from .mma_atom import find_atom, pair_count, promoted_k_atoms, wgmma_atom
from .operand_stages import NO_MULTICAST, Multicast, OperandStages, allocate_stages, multicast_mask
from .shifted_rows import (
    PREFETCHED_FILLS,
    ShiftedStages,
    is_shifted,
    load_part,
    parts_of,
    prefetch_rows,
    registers_of,
    store_part,
)
from .sizes import WARPGROUP_WARPS, GemmSizes
from .tile_scheduler import TileScheduler


class WarpRoles:
    """Which warps of a CTA do what: the first ones are consumer warpgroups, the others the producer."""

    def __init__(self, warp: Expr, lane: Expr, consumer_warpgroups: int) -> None:
        consumers = index(consumer_warpgroups * WARPGROUP_WARPS)
        self.warp, self.lane = warp, lane
        self.thread = warp * WARP_LANES + lane
        self.warpgroup = warp // WARPGROUP_WARPS
        self.first_lane = equal(lane, 0)
        self.consumes = warp < consumers
        self.produces = warp >= consumers
        self.elected = logical_and(equal(warp, consumers), self.first_lane)
        """Whether this is the one thread that issues loads."""
        first_of_warpgroup = equal(warp % WARPGROUP_WARPS, 0)
        self.issues = logical_and(first_of_warpgroup, self.first_lane)
        """Whether this is the first thread of a warpgroup."""


class StageBarriers:
    """The mbarriers of the stages: ``full`` counts bytes that arrive, ``empty`` the consumer warps of all CTAs that
    read a stage."""

    def __init__(self, w: FreshNameWriter, stages: int) -> None:
        self.full = w.allocate("full", (stages,), INDEX, MemoryScope.SHARED)
        self.empty = w.allocate("empty", (stages,), INDEX, MemoryScope.SHARED)


A = TypeVar("A")
"""How the accumulators of a warpgroup are given."""


class GemmMainloop(ABC, Generic[A]):
    """What main loops share, whatever instruction multiplies. ``tile`` and ``k_rank``: the number of this CTA's tile in
    its cluster, and which of the ``split_k`` CTAs that share ``k`` it is. A ``fill`` is the number of a k iteration
    among all that the CTA makes."""

    def __init__(
        self,
        w: FreshNameWriter,
        gemm: Gemm,
        sizes: GemmSizes[int],
        scheduler: TileScheduler,
        roles: WarpRoles,
        barriers: StageBarriers,
        tile: Expr,
        k_rank: Expr,
    ) -> None:
        self.w, self.gemm, self.s, self.scheduler, self.roles = w, gemm, sizes, scheduler, roles
        self.barriers, self.tile, self.k_rank = barriers, tile, k_rank
        s = sizes
        self.atom, self.last = wgmma_atom(gemm), last_multiplied_k(gemm)
        self.a = self._allocate_stages("m", s.tile_m, s.stages, self._m_end)
        self.b = self._allocate_stages("n", s.tile_n, s.b_stages, self._n_end)
        self.groups = joined_groups(gemm)
        self.scales = tuple(allocate_scale_stages(w, gemm, s.stages, s.k_atoms, s.tile_m, s.tile_n))
        self.k_iterations = KIterations(gemm, s, k_rank, (*self.a.loads, *self.b.loads))

    def _allocate_stages(self, axis: str, extent: int, stages: int, end: int | Expr | None) -> OperandStages:
        """Return the stages of the operand along ``axis``: of a kind that threads fill where its rows are uneven and
        were not copied."""
        shifted, k_atoms = is_shifted(self.gemm, axis, self.s.repacked), self.s.k_atoms
        kind = ShiftedStages if shifted else OperandStages
        end = None if shifted else end
        return allocate_stages(self.w, self.gemm, axis, extent, stages, k_atoms, self._multicast(axis), end, kind)

    @property
    def _m_end(self) -> int | Expr | None:
        """How many rows A has, where tiles may go beyond the last one: None where they do not, or hardly ever (tiles of
        groups), or zeros must arrive (for tcgen05)."""
        gemm, rows = self.gemm, self.scheduler.clusters_m * self.s.cluster_m * self.s.tile_m
        if self.s.tensor_columns or gemm.groups is not None:
            return None
        return gemm.dynamic if gemm.dynamic is not None else gemm.m.extent if gemm.m.extent < rows else None

    @property
    def _n_end(self) -> int | None:
        """How many rows B has, likewise. Rows of several B follow one another in a stage."""
        gemm, columns = self.gemm, self.scheduler.clusters_n * self.s.cluster_n * self.s.tile_n
        return gemm.n.extent if gemm.n.extent < columns and not (self.s.tensor_columns or gemm.others) else None

    def _multicast(self, axis: str) -> Multicast:
        """Return the CTAs of the cluster that need the same places of ``axis``."""
        s, (tile_m, tile_n) = self.s, self.scheduler.in_cluster(self.tile)
        if axis == "m":
            ctas, cta, distance, firsts = s.cluster_n, tile_n, s.cluster_m, range(s.cluster_m)
        else:
            ctas, cta, distance, firsts = s.cluster_m, tile_m, 1, range(0, s.tiles_per_cluster, s.cluster_m)
        if ctas == 1:
            return NO_MULTICAST
        first = (self.tile - cta * distance) * s.split_k + self.k_rank
        possible = [tile * s.split_k + k for tile in firsts for k in range(s.split_k)]
        return Multicast(ctas, cta, multicast_mask(first, possible, [n * distance * s.split_k for n in range(ctas)]))

    def initialise_barriers(self) -> None:
        """One thread does so, ahead of a barrier of the cluster."""
        s, w = self.s, self.w
        with w.loop("stage", s.stages) as stage:
            w.emit(MbarrierInit(self.barriers.full, stage, self._fills))
            w.emit(MbarrierInit(self.barriers.empty, stage, self.releases * s.tiles_per_cluster))

    def prefetch(self, cluster: Expr) -> None:
        """Prefetch into L2 what fills the stages first, while the launch before this one still ends.

        Each box is prefetched once, by one of the CTAs that read it: prefetched by all of them it costs as much as
        loading it. On an H200 2048^3 takes 24.0 us so, not 24.4, and 512^3 2.4, not 2.7. CTAs with more than one tile
        gain little, and what has been repacked is in L2 already.
        """
        s, w, scheduler = self.s, self.w, self.scheduler
        if self.gemm.batch or s.split_k > 1 or self.gemm.dynamic is not None:
            return
        at, k_iters = scheduler.origin(cluster, self.tile), min(s.stages, s.k_iters)
        with w.when(self.roles.elected):
            for operand, other, size, readers in (
                (self.a, at["n"], s.tile_n * s.cluster_n, scheduler.clusters_n),
                (self.b, at["m"], s.tile_m * s.cluster_m, scheduler.clusters_m),
            ):
                if readers == 1:
                    continue
                with w.loop("prefetched", -(-k_iters // readers)) as number:
                    k_iter = other // size + number * readers
                    with w.when(k_iter < k_iters):
                        for k_atom in filter(operand.holds, range(s.k_atoms)):
                            for box in operand.prefetch({**at, **self.k_iterations.place(k_iter, k_atom)}):
                                w.emit(box)

    @property
    def _fills(self) -> int:
        """How many arrivals fill a stage: of the thread that issues the loads of TMA, and of each warp that copies."""
        return self._has_boxes + (WARPGROUP_WARPS if self._shifted else 0)

    @property
    def _shifted(self) -> list[ShiftedStages]:
        """The operands that the threads of the producer copy."""
        return [operand for operand in (self.a, self.b) if isinstance(operand, ShiftedStages)]

    @property
    def _has_boxes(self) -> bool:
        """Whether TMA loads anything."""
        return len(self._shifted) < 2 or bool(self.scales)

    def load(self, at: Mapping[str, Expr], k_iter: Expr, fill: Expr) -> None:
        """The producer fills a stage with a k iteration of the tile at ``at``. What lies outside of the tensors becomes
        zeros."""
        w, roles = self.w, self.roles
        empty = MbarrierWait(self.barriers.empty, fill % self.s.stages, index(1) - fill // self.s.stages % 2)
        if not self._shifted:
            with w.when(roles.produces), w.when(roles.elected):
                w.emit(empty)
                self._load_boxes(at, k_iter, fill)
            return
        with w.when(roles.produces):
            self._copy_rows(at, k_iter, fill, empty)

    def _load_boxes(self, at: Mapping[str, Expr], k_iter: Expr, fill: Expr) -> None:
        """Issue the loads of TMA."""
        s, w, barriers = self.s, self.w, self.barriers
        stage = fill % s.stages
        first = self._brings_b(fill)
        ends = [self._ends_row(at, k_iter, n) for n in range(s.k_atoms)]
        of_b = self._arriving_bytes(self.b, at, ends)
        if first is not None:
            of_b = Select(first, index(0) + of_b, index(0))
        size = self._arriving_bytes(self.a, at, ends) + of_b + sum(scales.stage_bytes for scales in self.scales)
        w.emit(MbarrierArriveExpectTx(barriers.full, stage, size))
        block = self.k_iterations.block(at, k_iter)
        for k_atom, end in enumerate(ends):
            here = {**at, **self.k_iterations.place(block, k_atom)}
            for operand, exists in ((self.a, None), (self.b, first)):
                fewer = end if operand.spared_bytes(self.last) else None
                with w.when(exists):
                    self._either(fewer, partial(operand.load, w, fill, k_atom, here, barriers.full))
            for scales in self.scales:
                w.emit(scales.load(stage, k_atom, here, barriers.full))

    def _arriving_bytes(
        self, operand: OperandStages, at: Mapping[str, Expr], ends: Sequence[Expr | None]
    ) -> int | Expr:
        """Return how many bytes of a stage arrive of an operand, if its atoms end rows as ``ends`` says."""
        size, spared = operand.arriving_bytes(at), operand.spared_bytes(self.last)
        for end in ends:
            if end is not None and spared:
                size = index(0) + size - Select(end, index(spared), index(0))
        return size

    def _ends_row(self, at: Mapping[str, Expr], k_iter: Expr, k_atom: int) -> Expr | None:
        """Return whether fewer places are multiplied of a k atom of a k iteration than of others, since ``k`` or the
        channels of a tap end within it; None where that is never so."""
        return None

    def _either(self, ends: Expr | None, write: Callable[[int | None], None]) -> None:
        """Have ``write`` issue what all places of a k atom take (None), or where it ``ends`` a row, fewer."""
        with self.w.when(None if ends is None else negated(ends)):
            write(None)
        if ends is not None:
            with self.w.when(ends):
                write(self.last)

    def _brings_b(self, fill: Expr) -> Expr | None:
        """Return whether a fill brings B; None where each does."""
        return fill < self.s.k_iters if self.s.resident_b else None

    def _copy_rows(self, at: Mapping[str, Expr], k_iter: Expr, fill: Expr, empty: MbarrierWait) -> None:
        """All threads of the producer copy shifted rows to a stage, and one of them issues the loads of TMA. The first
        loads are under way while the stage is not ``empty`` yet."""
        s, w, roles = self.s, self.w, self.roles
        thread, block = roles.thread % WARPGROUP_THREADS, self.k_iterations.block(at, k_iter)
        atoms = [{**at, **self.k_iterations.place(block, n)} for n in range(s.k_atoms)]
        together: list[tuple[list[ShiftedStages], Expr | None]] = [(self._shifted, None)]
        if s.resident_b:  # B is copied for the first tile alone
            together = [([o], self._brings_b(fill) if o is self.b else None) for o in self._shifted]
        waits = True
        for operands, exists in together:
            boxes = [box for o in operands for n, here in enumerate(atoms) for box in o.boxes(fill, n, here)]
            prefetches = exists is None and all(o.along_k for o in operands)
            for part in parts_of(boxes, s.held_vectors):
                if not waits:  # the assembler would load this part, too, before the one before is stored
                    w.barrier(SyncScope.WARP)
                with w.scope():
                    moved = registers_of(w, part)
                    with w.when(exists):
                        load_part(w, part, moved, thread)
                    if prefetches:
                        prefetch_rows(w, part, PREFETCHED_FILLS * s.k_atoms * multiplied_k(self.gemm), thread)
                    if waits:
                        w.emit(empty)
                        if self._has_boxes:
                            with w.when(roles.elected):
                                self._load_boxes(at, k_iter, fill)
                    waits = False
                    with w.when(exists):
                        store_part(w, part, moved, thread)
        w.emit(AsyncProxyFence())
        w.barrier(SyncScope.WARP)
        with w.when(roles.first_lane):
            w.emit(MbarrierArrive(self.barriers.full, fill % s.stages))

    @property
    @abstractmethod
    def releases(self) -> int:
        """How many arrivals of a CTA release a stage."""

    @abstractmethod
    def multiply(
        self,
        accumulators: A,
        at: Mapping[str, Expr],
        k_iter: Expr,
        fill: Expr,
        has_rows: Expr | None = None,
        first: Expr | None = None,
    ) -> None:
        """Issue the products of a k iteration of the tile at ``at``. The first iteration (``k_iter`` is 0) overwrites
        the accumulators. ``has_rows``: whether the tile has anything to multiply. ``first``: which k iteration of the
        tile is the first one, if not that at 0."""

    @abstractmethod
    def finish(self, accumulators: A, number: Expr, last_fill: Expr) -> None:
        """Wait until the accumulators of the CTA's ``number``-th tile are done, and release the stage of its last
        fill."""

    def await_stage(self, fill: Expr) -> None:
        """Wait until the stage of ``fill`` is full."""
        stages = self.s.stages
        self.w.emit(MbarrierWait(self.barriers.full, fill % stages, (fill // stages) % 2))

    def _a_rows(self, atom: Expr, k_atom: int, k: int) -> tuple[Expr, ...]:
        """Return where in a stage of A the 64 rows of an atom begin, from the place ``k`` of a k atom on."""
        window = self.gemm.window
        if window is not None and window.halo is not None:
            return index(0), atom * window.patch_lines + k_atom * window.tap_lines, index(k)
        if self.a.along_k:
            return index(k_atom), atom * WGMMA_M, index(k)
        return index(k_atom), atom, index(0), index(0)


class WgmmaMainloop(GemmMainloop[Buffer]):
    """The loop over k with ``wgmma``, of 64 rows for each atom of a consumer warpgroup."""

    @property
    def releases(self) -> int:
        """The first lane of each warp releases a stage."""
        return WARPGROUP_WARPS if self.s.ping_pong else self.s.consumer_warpgroups * WARPGROUP_WARPS

    def finish(self, accumulators: Buffer, number: Expr, last_fill: Expr) -> None:
        self.w.emit(WarpgroupMmaWait(0))
        self.release(last_fill)

    def multiply(
        self,
        accumulators: Buffer,
        at: Mapping[str, Expr],
        k_iter: Expr,
        fill: Expr,
        has_rows: Expr | None = None,
        first: Expr | None = None,
    ) -> None:
        """Issue the wgmma of a k iteration. Those of the one before are done then, and its stage is released."""
        s, w = self.s, self.w
        self.await_stage(fill)
        follows, place = k_iter > 0, k_iter if first is None else first + k_iter
        count = min(s.k_atoms * s.atoms_m * self.groups, MAX_PENDING)
        mmas = list(self._mmas(accumulators, at, fill, follows, range(s.atoms_m)))

        def issue(some: Sequence[tuple[int, WarpgroupMma]]) -> None:
            for ends, part in groupby(some, lambda mma: self._ends_row(at, place, mma[0])):
                self._emit([mma for _, mma in part], ends)

        with w.when(has_rows):
            issue(mmas[:count])
            w.emit(WarpgroupMmaWait(count))
        with w.when(follows):
            self.release(fill - 1)
        issue(mmas[count:])  # beyond what may be pending: those of joined groups, or of many taps with a halo

    def _ends_row(self, at: Mapping[str, Expr], k_iter: Expr, k_atom: int) -> Expr | None:
        gemm, iterations = self.gemm, self.k_iterations
        if self.last == multiplied_k(gemm):
            return None
        first = k_atom - k_atom % halo_taps(gemm)  # of those that have the same channels
        return ends_row(gemm, iterations.place(iterations.block(at, k_iter), first))

    def _emit(self, mmas: Sequence[WarpgroupMma], ends: Expr | None = None) -> None:
        """Issue some wgmma. ``ends``: whether they are of the last atom of a row, and have fewer places."""

        def write(places: int | None) -> None:
            for mma in mmas:
                self.w.emit(mma if places is None else replace(mma, k=places))

        self._either(ends, write)

    def issue(
        self, accumulators: Buffer, at: Mapping[str, Expr], fill: Expr, accumulates: Expr | bool, atoms: range
    ) -> None:
        """Issue the wgmma of a stage for some of the warpgroup's atoms of 64 rows, the first into the first
        accumulators. ``accumulates``: whether the first one adds to what these hold."""
        self._emit([mma for _, mma in self._mmas(accumulators, at, fill, accumulates, atoms)])

    def _mmas(
        self, accumulators: Buffer, at: Mapping[str, Expr], fill: Expr, accumulates: Expr | bool, atoms: range
    ) -> Iterator[tuple[int, WarpgroupMma]]:
        """Yield the wgmma of a stage, each with the number of its k atom."""
        s, zero = self.s, index(0)
        stage, k, n = fill % s.stages, multiplied_k(self.gemm) // self.groups, s.mma_n // self.groups
        first_atom = index(0) if s.ping_pong else self.roles.warpgroup * s.atoms_m
        for k_atom, (number, atom), group in product(range(s.k_atoms), enumerate(atoms), range(self.groups)):
            column = group * n
            if self.b.along_k:
                line: tuple[Expr, ...] = (index(column), index(group * k))
            else:
                line = (index(column // SWIZZLE_128B_ELEMENTS), zero, index(column % SWIZZLE_128B_ELEMENTS))
            mma = WarpgroupMma(
                accumulators,
                (index(number), index(column // 2)),
                self.a.buffer,
                (stage, *self._a_rows(first_atom + atom, k_atom, group * k)),
                self.b.buffer,
                (fill % s.b_stages, index(k_atom), *line),
                n,
                k,
                True if k_atom else accumulates,
                not self.a.along_k,
                not self.b.along_k,
                self.a.rows_inside(at["m"] + (first_atom + atom) * WGMMA_M, WGMMA_M),
                self.b.rows_inside(at["n"], n),
                self.b.leading_lines,
            )
            yield k_atom, mma

    def release(self, fill: Expr) -> None:
        """Arrive at the empty barrier of the stage of ``fill``, in every CTA of the cluster that loads it."""
        s, w, empty = self.s, self.w, self.barriers.empty
        if s.tiles_per_cluster == 1:
            with w.when(self.roles.first_lane):
                w.emit(MbarrierArrive(empty, fill % s.stages))
        else:
            with w.when(self.roles.lane < s.tiles_per_cluster):
                w.emit(MbarrierArrive(empty, fill % s.stages, self.k_rank + self.roles.lane * s.split_k))


def can_use_wgmma(gemm: Gemm) -> bool:
    """Return whether wgmma takes the operands, and TMA can load them, after a repacking if need be: every index is one
    axis or a member of the batch. The B of several accumulators must all lie the same way, and are 16-bit floats.
    Images seen through a window are not split into planes, and their sums are not promoted."""
    a, all_b, atom = gemm.a.load, [o.load for o in gemm.all_b], find_atom(gemm)
    if a is None or atom is None or (a.dtype.bits != 16 and gemm.others):
        return False
    if gemm.window is not None and (pair_count(gemm) > 1 or promoted_k_atoms(gemm) > 0):
        return False
    if not (_can_load(gemm, a, "m") if gemm.window is None else can_load_im2col(a, gemm.window, atom)):
        return False
    if any(b is None or (gemm.others and b.dtype != a.dtype) or not _can_load(gemm, b, "n") for b in all_b):
        return False
    same_way = len({operand_view(b).indices[-1] == Var("k") for b in all_b if b is not None}) == 1
    accumulators = (gemm.accumulator, *(o.accumulator for o in gemm.others))
    return same_way and all(accumulator.dtype == atom.accumulator for accumulator in accumulators)


def _can_load(gemm: Gemm, load: Load, axis: str) -> bool:
    """Return whether ``k`` and ``axis`` are two indices of the load, one of them the last, as TMA sees it. Rows of a
    batch that overlap are no dimension there. Of images seen through a window by B, return whether im2col loads them
    for a wgmma that takes rows along ``n``."""
    if axis == "n" and gemm.b_window is not None:
        atom = wgmma_atom(gemm)
        return atom.transposes and can_load_im2col(load, gemm.b_window, atom)
    load, axes = operand_view(load), (gemm.m, gemm.n, gemm.k)
    extents: dict[Expr, int] = {Var(a.name): a.extent for a in axes}
    places = zip(load.indices, load.buffer.shape, strict=True)
    if gemm.window is None and any(extents.get(i, 0) > n for i, n in places):
        return False
    joined = joined_groups(gemm) > 1
    plain = [i for i in load.indices if i in (Var("k"), Var(axis)) or (joined and is_along(i, axis))]
    if not 2 <= len(load.buffer.shape) <= 5 or load.indices[-1] not in plain:
        return False
    others = [i for i in load.indices if free_variables(i) & {"k", axis}]
    return len(plain) == len(others) == 2 and len(set(plain)) == 2
