"""Writes the cooperative launch of few long rows, all CTAs of which run at once (see ``cooperative``).

    start to load this CTA's part of each of its rows
    reduce the parts, one after the other as they come, and write what was found to the workspace
    meet at the barrier of the grid
    join what all CTAs have found of each row
    compute the outputs of the parts and write them

Two reductions are exchanged at once where the second one of a row follows from those of its parts: a maximum and the
sum of exponentials of what is below it, or a sum and the squares of deviations from the mean. Threads, warps and CTAs
have parts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ....core.dtypes import DType
from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import WARP_LANES, Cast, Expr, Load, Select, Unary, UnaryOp, Var, const, index, maximum, minimum
from ....ir.gpu.async_copy import CopyAsyncWait
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from ....ir.rewrite import loads_of
from ....ir.stmt import HardwareAxis, Kernel
from ....te.functions import equal
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME, kernel_of
from ...problems.rowwise import ReducedTensor, RowwiseProblem
from ...tile.accumulation import Accumulation
from ...tile.names import NameSupply, free_prefix
from ..block_reduce import ThreadGroup, butterfly, combine_in_order, halvings
from .kernel import load_to_both
from .passes import RowPasses
from .sizes import N, RowStorage, RowwiseSizes
from .split import above_infinity
from .vectors import RowIndex, ThreadVectors

MOST_COMMON = 4
"""What so many vectors have in common in two passes stays in registers. Of more, the compiler would keep so much that
it spills, unless a barrier stands between the passes."""


@dataclass(frozen=True, slots=True, eq=False)
class CooperativeSizes(RowwiseSizes[N]):
    """All sizes of one setting (N is int), or of many (N is a column of them). ``cluster_size``: CTAs that share a row.

    ``own_rows``: of how many rows a CTA has a part. ``row_groups``: how many groups of CTAs there are, each with rows
    of its own. ``reloads``: whether a part is read again when it is written, 0 or 1; ``storage`` is where it is until
    it is reduced. ``buffered_vectors``, ``kept_vectors`` and ``register_vectors`` are those of all rows of the CTA: the
    first vectors that are loaded go to shared memory, and the last ones to registers.
    """

    own_rows: N
    row_groups: N
    reloads: N


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Reductions whose states are exchanged at once: one, or a pair (see above). ``counts``: the state has the number
    of elements, too. Each state is a few numbers, of ``dtypes``."""

    problem: RowwiseProblem
    reductions: tuple[ReducedTensor, ...]

    @property
    def counts(self) -> bool:
        return len(self.reductions) == 2 and self.problem.has_moments

    @property
    def dtypes(self) -> tuple[DType, ...]:
        found = [d for r in self.reductions for d in r.accumulation.state_dtypes]
        return (*found, found[-1]) if self.counts else tuple(found)

    @property
    def identity(self) -> tuple[Expr, ...]:
        """The state of no elements."""
        found = [e for r in self.reductions for e in r.accumulation.identity]
        return (*found, const(0, self.dtypes[-1])) if self.counts else tuple(found)

    def of_thread(self, first: Expr, count: Expr) -> Expr:
        """Return what the second reduction of a thread reads as the result of the ``first`` one, which ``count``
        elements have."""
        if self.counts:
            return first * (const(self.problem.column_count, first.dtype) / maximum(count, const(1, first.dtype)))
        return above_infinity(first)

    def join(
        self, w: Writer, name: str, states: Sequence[Sequence[Expr]], distances: Iterable[int], *, whole: bool
    ) -> list[Buffer]:
        """Return registers with the state of all elements that some lanes have, each of them several ``states``. The
        numbers of these lanes differ in the bits ``distances``. ``whole``: they are those of a row."""
        distances = tuple(distances)
        found = [w.allocate(f"{name}_{n}", (), d, MemoryScope.REGISTER) for n, d in enumerate(self.dtypes)]
        if len(self.reductions) == 1:
            self._combine(w, name, found, states, self.reductions[0].accumulation, distances)
            return found
        first, second = (r.accumulation for r in self.reductions)
        self._combine(w, f"{name}_first", found[:1], [s[:1] for s in states], first, distances)
        if self.counts:
            self._combine(w, f"{name}_count", found[2:], [s[2:] for s in states], second, distances)
        joined = [self._joined(state, [Load(v, ()) for v in found], whole=whole) for state in states]
        self._combine(w, f"{name}_second", found[1:2], [(s,) for s in joined], second, distances)
        return found

    @staticmethod
    def _combine(
        w: Writer,
        name: str,
        values: Sequence[Buffer],
        states: Sequence[Sequence[Expr]],
        how: Accumulation,
        distances: Sequence[int],
    ) -> None:
        combine_in_order(w, name, values, states, how.combine)
        butterfly(w, f"{name}_lane", values, how.combine, distances)

    def _joined(self, part: Sequence[Expr], all_parts: Sequence[Expr], *, whole: bool) -> Expr:
        """Return what a part adds to the second reduction of all parts, whose first one is known."""
        if not self.counts:
            top = all_parts[0] if whole else above_infinity(all_parts[0])
            return part[1] * Unary(UnaryOp.EXP, above_infinity(part[0]) - top)
        mean, mean_of_all = (s[0] / maximum(s[2], const(1, s[2].dtype)) for s in (part, all_parts))
        return part[1] + part[2] * (mean - mean_of_all) * (mean - mean_of_all)


def exchanged(problem: RowwiseProblem) -> tuple[Exchanged, ...] | None:
    """Return the reductions of ``problem`` as they are exchanged; None where one waits for the result of another."""
    plain = all(r.tensor.dtype == r.accumulation.accumulator_dtype for r in problem.reductions)
    if plain and (problem.has_moments or problem.has_exponentials):
        return (Exchanged(problem, problem.reductions),)
    names = {r.tensor.name for r in problem.reductions}
    if any(load.buffer.name in names for r in problem.reductions for load in loads_of(r.body)):
        return None
    return tuple(Exchanged(problem, (r,)) for r in problem.reductions)


def cooperative_kernel(workload: Workload, problem: RowwiseProblem, sizes: CooperativeSizes[int]) -> Kernel:
    """Return the kernel of one setting, which must be legal (see ``cooperative``)."""
    w, s = Writer(), sizes
    tensors = (*workload.inputs, *(stage.tensor for stage in workload.stages))
    supply = NameSupply(b.name for b in tensors)
    groups = exchanged(problem)
    assert groups is not None
    shape = (problem.row_count, s.cluster_size)
    partials = [[Buffer(supply.fresh("partial"), shape, d) for d in group.dtypes] for group in groups]
    rows = [
        _OwnRow(_OwnVectors(workload, problem, _of_row(s, n), f"row{n}_", w), n, groups, partials)
        for n in range(s.own_rows)
    ]
    names = [free_prefix(name, rows[0].vectors.tensors) for name in _AXES]
    bounds = list(zip(names, (s.cluster_size, s.row_groups, s.threads), _AXES.values(), strict=True))
    once = () if s.reloads else rows[0].read_once
    evict_first = [b.name for b in (*once, *(c.tensor for c in problem.elementwise_outputs))]
    with w.launch(KERNEL_NAME, bounds, min_blocks=s.min_ctas_per_sm, evict_first=evict_first):
        _write_rows(w, rows)
    workspace = tuple(b for of_group in partials for b in of_group)
    return kernel_of(workload, w.finish(), workspace)


def _of_row(s: CooperativeSizes[int], number: int) -> CooperativeSizes[int]:
    """Return the sizes of row ``number`` of the CTA, by what has room for it."""
    every = s.vectors_per_thread
    shared = min(max(s.buffered_vectors - number * every, 0), every)
    storage = RowStorage.REGISTERS_AND_SHARED if shared else RowStorage.REGISTERS
    kept = every - shared
    in_registers = min(kept + 1, every)
    return replace(s, storage=storage, buffered_vectors=shared, kept_vectors=kept, register_vectors=in_registers)


def _write_rows(w: Writer, rows: Sequence["_OwnRow"]) -> None:
    """All rows of the CTA."""
    ahead = 1 if rows[0].reloads else len(rows)
    scratch = rows[0].allocate_exchange()
    # Barriers stand between the loads, so that rows come one after the other. Without them the compiler would move
    # loads to registers behind a reduction, and those of edge columns behind all others.
    for row in rows[:ahead]:
        row.load_edge()
    if rows[0].own.sizes.edge_columns:
        w.barrier()
    for row in rows[:ahead]:
        row.load()
        w.barrier()
    for row in rows:
        for following in rows[row.number + ahead : row.number + ahead + 1]:
            following.load_edge()
            following.load()
            w.barrier()
        row.reduce(scratch, sum(r.in_shared for r in rows[row.number + 1 :]))
    rows[0].exchange(scratch)
    w.emit(GridBarrierArrive())
    w.emit(GridBarrierWait())
    for row in rows:
        row.join()
    for row in rows:
        row.write()


_AXES = {"rank": HardwareAxis.GRID_X, "group": HardwareAxis.GRID_Y, "t": HardwareAxis.THREAD}
"""Which CTA of a row it is, which group of CTAs, and which thread of the CTA."""


class _OwnVectors(ThreadVectors):
    """What a thread has of one of its CTA's rows, all of which have the axes of the launch in common."""

    sizes: CooperativeSizes[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        rank, group, thread = (free_prefix(name, self.tensors) for name in _AXES)
        self.cta_rank, self.row_group, self.thread = Var(rank), Var(group), Var(thread)
        self.group = self._thread_group()

    def _thread_group(self) -> ThreadGroup:
        return ThreadGroup(self.thread, self.sizes.threads_per_row)

    def row(self, number: Expr, most: int) -> RowIndex:
        """Return row ``number`` of the CTA, which is below ``most``."""
        groups, rows = self.sizes.row_groups, self.problem.row_count
        flat = self.row_group + number * groups
        return RowIndex(minimum(flat, index(rows - 1)), flat < rows) if most * groups > rows else RowIndex(flat)


class _OwnRow(RowPasses):
    """One of the rows that a CTA has a part of: row ``number`` of those. ``groups``: the reductions as they are
    exchanged; ``partials``: for each of them, where the CTAs of a row write what they found."""

    def __init__(
        self,
        vectors: _OwnVectors,
        number: int,
        groups: Sequence[Exchanged],
        partials: Sequence[Sequence[Buffer]],
    ) -> None:
        super().__init__(vectors)
        self.own, self.number, self.groups, self.partials = vectors, number, groups, partials
        # The compiler would begin with all vectors at once, as far as there are registers, and more.
        vectors.release = lambda slot: vectors.w.barrier(SyncScope.WARP)
        self.reloads = vectors.sizes.reloads
        self.in_shared = vectors.sizes.storage == RowStorage.REGISTERS_AND_SHARED
        self.row = vectors.row(index(number), number + 1)

    def load_edge(self) -> None:
        """Start to load the edge column of the row, for which and for all else there are registers now."""
        self.vectors.allocate_registers()
        self.vectors.load_edge(self.row, self.vectors.edge_registers)

    def load(self) -> None:
        """Start to load the part of the row."""
        if self.in_shared:
            load_to_both(self.vectors, self.row)
        else:
            with self.vectors.each(self.row, "load") as vector:
                self.vectors.load(self.row, vector)

    def allocate_exchange(self) -> list[list[Buffer]]:
        """Shared memory for what the warps of the CTA find of each of its rows."""
        shape = (self.own.sizes.own_rows, self.vectors.group.warps)
        return [
            [self.w.allocate(self.name(f"found{n}_{k}"), shape, d, MemoryScope.SHARED) for k, d in enumerate(g.dtypes)]
            for n, g in enumerate(self.groups)
        ]

    def reduce(self, scratch: Sequence[Sequence[Buffer]], later: int) -> None:
        """Reduce the warp's share of the row into ``scratch``. Copies of so many ``later`` rows may be under way."""
        w, thread = self.w, self.vectors.thread
        if self.in_shared:
            w.emit(CopyAsyncWait(later))
        for number, group in enumerate(self.groups):
            with w.scope():
                own = self._of_thread(number, group)
                found = group.join(w, self.name(f"warp{number}"), [own], halvings(WARP_LANES), whole=False)
                with w.when(equal(thread % WARP_LANES, 0)):
                    for cell, value in zip(scratch[number], found, strict=True):
                        w.store(cell, (index(self.number), thread // WARP_LANES), Load(value, ()))

    def exchange(self, scratch: Sequence[Sequence[Buffer]]) -> None:
        """Write what the CTA found of all its rows to the workspace. Each has a warp, as far as there are as many."""
        w, thread, warps = self.w, self.vectors.thread, self.vectors.group.warps
        rows = self.own.sizes.own_rows
        w.barrier()
        for begin in range(0, rows, warps):
            number = thread // WARP_LANES + begin
            with w.when(thread < WARP_LANES * min(warps, rows - begin)):
                row = self.own.row(number, rows)
                for n, group in enumerate(self.groups):
                    cells = [Load(cell, (number, thread % warps)) for cell in scratch[n]]
                    held = self._held(f"cta{n}_{begin}_own", cells)
                    found = group.join(w, self.name(f"cta{n}_{begin}"), [held], halvings(warps), whole=False)
                    first = equal(thread % WARP_LANES, 0)
                    with w.when(first, row.exists):
                        for partial, value in zip(self.partials[n], found, strict=True):
                            w.store(partial, (row.flat, self.vectors.cta_rank), Load(value, ()))

    def _held(self, name: str, values: Sequence[Expr]) -> list[Expr]:
        """Load ``values`` to registers."""
        held = [
            self.w.allocate(self.name(f"{name}_{n}"), (), v.dtype, MemoryScope.REGISTER) for n, v in enumerate(values)
        ]
        for register, value in zip(held, values, strict=True):
            self.w.store(register, (), value)
        return [Load(register, ()) for register in held]

    def _of_thread(self, number: int, group: Exchanged) -> list[Expr]:
        """Reduce the thread's own elements; return their state."""
        first = group.reductions[0]
        n = self.problem.reductions.index(first)
        state: list[Expr] = [
            Load(v, ()) for v in self._thread_state(n, first.accumulation, self._accumulate(self.row, {n: first})[n])
        ]
        if len(group.reductions) == 2:
            second = group.reductions[1]
            count = self._held(f"count{number}", [self._count(group.dtypes[-1])]) if group.counts else []
            (own,) = self._held(f"own{number}", [group.of_thread(state[0], count[0] if count else state[0])])
            self.results[first.tensor.name] = own
            if self.sizes.vectors_per_thread > MOST_COMMON:
                self.w.barrier(SyncScope.WARP)
            found = self._thread_state(n + 1, second.accumulation, self._accumulate(self.row, {n + 1: second})[n + 1])
            state += [*(Load(v, ()) for v in found), *count]
        return state

    def _count(self, dtype: DType) -> Expr:
        """Return how many elements of the row the thread has."""
        s, v = self.sizes, self.vectors
        of_cta = minimum(index(s.vectors) - v.cta_rank * s.vectors_per_cta, index(s.vectors_per_cta))
        own = maximum(of_cta - v.thread + (s.threads_per_row - 1), index(0)) // s.threads_per_row * s.vector
        if s.edge_columns:
            own = own + Select(v.has_edge(), index(1), index(0))
        return Cast(own, dtype)

    def join(self) -> None:
        """Join what all CTAs of the row have found."""
        w, ctas, thread = self.w, self.sizes.cluster_size, self.vectors.thread
        lanes = min(WARP_LANES, 1 << (ctas - 1).bit_length())
        registers = [
            w.allocate(self.name(f"result{n}"), (), r.tensor.dtype, MemoryScope.REGISTER)
            for n, r in enumerate(self.problem.reductions)
        ]
        for reduction, register in zip(self.problem.reductions, registers, strict=True):
            self.results[reduction.tensor.name] = Load(register, ())
        for number, group in enumerate(self.groups):
            states = []
            with w.scope():
                for begin in range(0, ctas, lanes):
                    rank = thread % lanes + begin
                    place = (self.row.flat, minimum(rank, index(ctas - 1)))
                    there: list[Expr] = [Load(p, place) for p in self.partials[number]]
                    if begin + lanes > ctas:
                        there = [Select(rank < ctas, e, i) for e, i in zip(there, group.identity, strict=True)]
                    states.append(self._held(f"row{number}_of_{begin}", there))
                found = group.join(w, self.name(f"row{number}"), states, halvings(lanes), whole=True)
                values = iter([Load(v, ()) for v in found])
                for reduction in group.reductions:
                    how = reduction.accumulation
                    register = registers[self.problem.reductions.index(reduction)]
                    w.store(register, (), how.result([next(values) for _ in how.state_dtypes]))

    def write(self) -> None:
        """Compute the outputs of the part and write them."""
        with self.w.scope():
            if self.problem.elementwise_outputs:
                self._loaded_again()._write_elementwise(self.row)
            if self.problem.per_row_outputs:
                self._write_per_row(self.row)

    def _loaded_again(self) -> "_OwnRow":
        """Load the part to other registers, where it did not stay."""
        if not self.reloads:
            return self
        vectors = replace(self.own, prefix=f"again{self.number}_", registers={}, edge_registers={})
        again = _OwnRow(vectors, self.number, self.groups, self.partials)
        again.results = self.results
        again.load_edge()
        again.load()
        return again
