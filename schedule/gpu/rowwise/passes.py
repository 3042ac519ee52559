"""The passes over a row: who holds which columns, reductions, and what is written from them.

Where the columns of a thread are (registers, shared memory, memory) is the program's business (``row_program``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ....core.dtypes import DType, float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Expr,
    Load,
    Logic,
    LogicOp,
    Select,
    Unary,
    Var,
    const,
    index,
    logical_and,
    minimum,
    rebuild,
    walk,
)
from ....ir.gpu.barrier import SyncScope
from ....ir.linear_form import affine_form
from ....ir.rewrite import map_expr, substitute
from ....ir.stmt import LoopKind
from ....te.workload import Workload
from ...problems.rowwise import Reduced, RowForm, column_axis, row_axis
from ...tile.accumulation import Accumulation
from ...tile.contiguous import run_of
from ...tile.delinearize import digits
from ...tile.names import stem
from ...tile.stage_body import value_at
from ..block_reduce import Team, team_reduce, team_scratch
from .setting import MEMORY, QUEUE, SPLIT, RowSetting, RowShape


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the grid as a thread sees it: its number (``at``, inside the tensors), and whether it is to be
    written (None: certainly)."""

    at: Expr
    real: Expr | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """``vector`` columns from ``column`` on, the thread's ``slot``-th."""

    slot: Expr
    column: Expr


@dataclass(frozen=True, slots=True)
class _Lanes:
    """A vector in registers: the last dimension of ``buffer`` at ``at``."""

    buffer: Buffer
    at: tuple[Expr, ...]


@dataclass
class RowThread:
    """What one thread of a launch does with the rows that its team takes. ``fetch`` puts a chunk into registers before
    each use, where it is not there already; ``leave`` is written for each chunk of the last pass."""

    workload: Workload
    form: RowForm
    setting: RowSetting
    w: Writer = field(default_factory=Writer)
    results: dict[str, Expr] = field(default_factory=dict)
    raw: dict[str, Buffer] = field(default_factory=dict)
    edge: dict[str, Buffer] = field(default_factory=dict)
    early: dict[Load, Buffer] = field(default_factory=dict)
    fetch: Callable[[Chunk], None] | None = None
    leave: Callable[[Expr], None] | None = None

    def __post_init__(self) -> None:
        s = self.setting
        self.shape = RowShape(self.form.column_count, s.vector, s.lanes, s.cluster)
        held = {QUEUE: max(0, 2 * self.shape.chunks - s.slots), SPLIT: self.shape.chunks - s.slots}
        self.kept = held.get(s.hold, self.shape.chunks)
        self.tensors = frozenset(b.name for b in (*self.workload.inputs, *self.workload.output_buffers))
        self.thread = Var(self.name("t"))
        self.rank: Expr = Var(self.name("rank")) if s.cluster > 1 else index(0)
        self.team = Team(self.thread, s.lanes, s.teams, s.cluster)

    def name(self, base: str) -> str:
        return stem(base, self.tensors)

    def scratches(self, slots: int) -> list[tuple[Buffer, ...]]:
        """Shared memory for the reductions (see ``team_scratch``)."""
        return [
            team_scratch(self.w, self.name(f"state{n}"), self.team, accumulation(r).dtypes, slots)
            for n, r in enumerate(self.form.reductions)
        ]

    # --- the row in registers

    def declare(self) -> None:
        """Registers for the thread's part of the row, or for what is fetched of it at a time."""
        chunks = self.setting.unroll if self.setting.hold == MEMORY else min(self.kept + 1, self.shape.chunks)
        for n, tensor in enumerate(self.form.held):
            self.raw[tensor.name] = self.w.allocate(
                self.name(f"own{n}"), (chunks, self.setting.vector), tensor.dtype, MemoryScope.REGISTER
            )
            if self.shape.edges:
                self.edge[tensor.name] = self.w.allocate(self.name(f"edge{n}"), (), tensor.dtype, MemoryScope.REGISTER)

    def load_chunk(self, row: Row, chunk: Chunk) -> None:
        for tensor in self.form.held:
            value = Load(tensor, (*self.rows_at(row), *self.run(chunk)))
            self.w.store(self.raw[tensor.name], self.own(chunk), value)

    def load_edges(self, row: Row, edge: Mapping[str, Buffer]) -> None:
        """The thread's single column into ``edge``, where it has one."""
        if self.shape.edges:
            with self.w.when(self.has_edge()):
                for tensor in self.form.held:
                    self.w.store(edge[tensor.name], (), Load(tensor, (*self.rows_at(row), self.edge_column(row))))

    # --- places

    def rows_at(self, row: Row) -> tuple[Expr, ...]:
        return digits(row.at, self.form.rows)

    def run(self, chunk: Chunk) -> tuple[Expr, ...]:
        """The column indices of a whole chunk."""
        return run_of(digits(chunk.column, self.form.columns), self.setting.vector)

    def own(self, chunk: Chunk) -> tuple[Expr, ...]:
        """Where a chunk stands in registers."""
        return run_of((self.held_slot(chunk), index(0)), self.setting.vector)

    def held_slot(self, chunk: Chunk) -> Expr:
        """Which of the registers' chunks it is; those in shared memory have the last in turn."""
        return minimum(chunk.slot, index(self.kept)) if self.setting.hold in (QUEUE, SPLIT) else chunk.slot

    def first_vector(self, row: Row) -> Expr:
        """The column of the row's first vector; a whole number of vectors from the start of the tensor."""
        if not self.shape.edges:
            return index(0)
        v, start = self.setting.vector, row.at * self.shape.columns
        return (start + (v - 1)) // v * v - start

    def has_edge(self) -> Expr:
        mine: Expr = self.team.place < self.shape.edges
        if self.setting.cluster > 1:
            mine = logical_and(mine, Compare(CompareOp.EQ, self.rank, index(0)))
        return mine

    def edge_column(self, row: Row) -> Expr:
        """The single column of the first threads: before the first vector, or after the last."""
        place = self.team.place
        before = place < self.first_vector(row)
        return Select(
            before, place, minimum(place, index(self.shape.edges - 1)) + self.shape.vectors * self.setting.vector
        )

    @contextmanager
    def chunks(
        self, row: Row, name: str, part: Expr | None = None, then: Callable[[Expr], None] | None = None
    ) -> Iterator[Chunk]:
        """A block of statements for each of the thread's chunks, or for those of one ``part`` of them; ``then`` is
        written after it for each, whether the thread has that chunk or not."""
        s, shape = self.setting, self.shape
        count = shape.chunks if part is None else s.unroll
        with self.w.loop(self.name(f"{name}_i"), count, LoopKind.UNROLLED) as i:
            number: Expr = i if part is None else part * s.unroll + i
            padded = shape.chunks if part is None else -(-shape.chunks // s.unroll) * s.unroll
            with self.w.when(self.is_there(number, padded)):
                yield Chunk(i, self.column(row, number))
            if then is not None:
                then(i)

    def within(self, number: Expr) -> Expr:
        """Which of the block's vectors the thread's chunk ``number`` is."""
        return number * self.setting.lanes + self.team.place

    def is_there(self, number: Expr, of: int) -> Expr | None:
        """Whether the thread has its chunk ``number``, one of ``of``; None where all have them all."""
        s, shape = self.setting, self.shape
        conditions: list[Expr] = []
        if of * s.lanes != shape.share:
            # Said of the number first: once loops are unrolled nothing is left to test but for the last one.
            conditions.append(Logic(LogicOp.OR, number < shape.share // s.lanes, self.within(number) < shape.share))
        if shape.share * s.cluster != shape.vectors:
            conditions.append(self.rank * shape.share + self.within(number) < shape.vectors)
        return logical_and(*conditions) if conditions else None

    def column(self, row: Row, number: Expr) -> Expr:
        """The first column of the thread's chunk ``number``."""
        s, within = self.setting, self.within(number)
        vector = self.rank * self.shape.share + within if s.cluster > 1 else within
        return self.first_vector(row) + vector * s.vector

    @contextmanager
    def held_chunks(self, row: Row, name: str, last: bool = False) -> Iterator[Chunk]:
        """``chunks`` whose columns are in registers: fetched for each pass over the row where it stays elsewhere."""
        if self.setting.hold != MEMORY:
            with self.chunks(row, name, then=self.leave if last else None) as chunk:
                if self.fetch is not None:
                    with self.w.when(chunk.slot >= self.kept if self.kept else None):
                        self.fetch(chunk)
                yield chunk
            return
        with self.w.loop(self.name(f"{name}_part"), -(-self.shape.chunks // self.setting.unroll)) as part:
            with self.chunks(row, f"{name}_load", part) as chunk:
                self.load_chunk(row, chunk)
            with self.chunks(row, name, part) as chunk:
                yield chunk

    # --- the passes

    def passes(self, row: Row, scratch: Sequence[Sequence[Buffer]], slot: Expr | None) -> None:
        for n, reduced in enumerate(self.form.reductions):
            self.reduce(row, n, reduced, scratch[n], slot)
        if self.setting.cluster > 1 and self.setting.hold != QUEUE:
            self.w.barrier(SyncScope.CLUSTER)  # before the writes: at the end it would wait for them
        if self.form.wide:
            self.write(row)
        if self.form.narrow:
            self.write_narrow(row)

    def reduce(self, row: Row, n: int, reduced: Reduced, scratch: Sequence[Buffer], slot: Expr | None) -> None:
        how, w, s = accumulation(reduced), self.w, self.setting
        width = min(s.vector, _PARTS) if self.shape.chunks * s.vector > _PARTS else 1
        parts = [
            w.allocate(self.name(f"part{n}_{k}"), (width,), d, MemoryScope.REGISTER) for k, d in enumerate(how.dtypes)
        ]
        with w.loop(self.name(f"start{n}"), width, LoopKind.UNROLLED) as i:
            for part, neutral in zip(parts, how.neutral, strict=True):
                w.store(part, (i,), neutral)

        def take(place: Expr, at: Mapping[str, Expr], value: Expr) -> None:
            new = how.taken([Load(p, (place,)) for p in parts], value, at.get(column_axis(0), index(0)))
            for part, number in reversed(list(zip(parts, new, strict=True))):
                w.store(part, (place,), number)

        body = self.settled(row, f"reduce{n}", reduced.body)
        with self.held_chunks(row, f"reduce{n}") as chunk:
            beside = self.load_beside(row, chunk, f"reduce{n}", [body])
            with self.lanes(f"reduce{n}_v") as v:
                at = self.at(row, chunk, v)
                take(v % width if width > 1 else index(0), at, self.value(body, at, chunk, v, beside))
        if self.shape.edges:
            with w.when(self.has_edge()):
                at = self.at(row, None, index(0))
                take(index(0), at, self.value(body, at, None, index(0), {}))
        self.results[reduced.tensor.name] = self.meet(n, how, parts, scratch, slot)

    def meet(
        self, n: int, how: Accumulation, parts: Sequence[Buffer], scratch: Sequence[Buffer], slot: Expr | None
    ) -> Expr:
        """The result that a team's parts make together."""
        w = self.w
        state = [w.allocate(self.name(f"found{n}_{k}"), (), d, MemoryScope.REGISTER) for k, d in enumerate(how.dtypes)]
        for value, part in zip(state, parts, strict=True):
            w.store(value, (), Load(part, (index(0),)))
        for k in range(1, parts[0].shape[0]):
            new = how.combined([Load(v, ()) for v in state], [Load(p, (index(k),)) for p in parts])
            for value, number in reversed(list(zip(state, new, strict=True))):
                w.store(value, (), number)
        team_reduce(w, self.name(f"team{n}"), self.team, state, how.combined, scratch, slot)
        return how.finished([Load(v, ()) for v in state])

    def write(self, row: Row) -> None:
        w, s = self.w, self.setting
        bodies = [self.settled(row, f"write{n}", c.body) for n, c in enumerate(self.form.wide)]
        with self.held_chunks(row, "write", last=True) as chunk:
            beside = self.load_beside(row, chunk, "write", bodies)
            new = [
                w.allocate(self.name(f"new{n}"), (s.vector,), c.tensor.dtype, MemoryScope.REGISTER)
                for n, c in enumerate(self.form.wide)
            ]
            with self.lanes("write_v") as v:
                at = self.at(row, chunk, v)
                for buffer, body in zip(new, bodies, strict=True):
                    w.store(buffer, (v,), self.value(body, at, chunk, v, beside))
            with w.when(row.real):
                for buffer, c in zip(new, self.form.wide, strict=True):
                    whole = Load(buffer, run_of((index(0),), s.vector))
                    w.store(c.tensor, (*self.rows_at(row), *self.run(chunk)), whole)
        if self.shape.edges:
            real = self.has_edge() if row.real is None else logical_and(self.has_edge(), row.real)
            with w.when(real):
                at = self.at(row, None, index(0))
                for c, body in zip(self.form.wide, bodies, strict=True):
                    value = self.value(body, at, None, index(0), {})
                    w.store(c.tensor, (*self.rows_at(row), self.edge_column(row)), value)

    def write_narrow(self, row: Row) -> None:
        conditions: list[Expr] = [Compare(CompareOp.EQ, self.team.place, index(0))]
        if self.setting.cluster > 1:
            conditions.append(Compare(CompareOp.EQ, self.rank, index(0)))
        if row.real is not None:
            conditions.append(row.real)
        with self.w.when(logical_and(*conditions)):
            at = dict(zip(map(row_axis, range(len(self.form.rows))), self.rows_at(row), strict=True))
            for c in self.form.narrow:
                self.w.store(c.tensor, self.rows_at(row), self.value(c.body, at, None, index(0), {}))

    # --- values

    @contextmanager
    def lanes(self, name: str) -> Iterator[Expr]:
        """A block of statements for each element of a vector."""
        if self.setting.vector == 1:
            yield index(0)
            return
        with self.w.loop(self.name(name), self.setting.vector, LoopKind.UNROLLED) as v:
            yield v

    def at(self, row: Row, chunk: Chunk | None, v: Expr) -> Mapping[str, Expr]:
        """Where the axes stand: at element ``v`` of a chunk, or at the thread's edge column."""
        if chunk is None:
            columns: tuple[Expr, ...] = (self.edge_column(row),)
        else:
            columns = digits(chunk.column, self.form.columns)
            columns = (*columns[:-1], columns[-1] + v)
        places = dict(zip(map(row_axis, range(len(self.form.rows))), self.rows_at(row), strict=True))
        return places | dict(zip(map(column_axis, range(len(columns))), columns, strict=True))

    def load_early(self, row: Row) -> None:
        """What the outputs read beside the row into registers, all at once, for the thread's first vectors."""
        read = self.beside_of([c.body for c in self.form.wide]) if self.setting.early else []
        for n, load in enumerate(read):
            shape = (self.setting.early, self.setting.vector)
            self.early[load] = self.w.allocate(self.name(f"early{n}"), shape, load.dtype, MemoryScope.REGISTER)
        if read:
            with self.chunks(row, "early") as chunk, self.w.when(self.is_early(chunk)):
                for load in read:
                    place = run_of((chunk.slot, index(0)), self.setting.vector)
                    self.w.store(self.early[load], place, self.beside_at(load, row, chunk))

    def is_early(self, chunk: Chunk) -> Expr | None:
        """Whether what stands beside a chunk is read early; None where it is for all."""
        return chunk.slot < self.setting.early if self.setting.early < self.shape.chunks else None

    def beside_of(self, bodies: Sequence[Expr]) -> list[Load]:
        """What ``bodies`` read beside the row."""
        read = {e for body in bodies for e in walk(body) if isinstance(e, Load)}
        return [load for load in self.form.beside if load in read]

    def beside_at(self, load: Load, row: Row, chunk: Chunk) -> Expr:
        """The vector of a tensor beside the row that belongs to a chunk."""
        rows = dict(zip(map(row_axis, range(len(self.form.rows))), self.rows_at(row), strict=True))
        leading = [substitute(i, rows) for i in load.indices[: len(load.indices) - len(self.form.columns)]]
        return Load(load.buffer, (*leading, *self.run(chunk)))

    def load_beside(self, row: Row, chunk: Chunk, name: str, bodies: Sequence[Expr]) -> Mapping[Load, _Lanes]:
        """What ``bodies`` read beside the row, in registers."""
        found: dict[Load, _Lanes] = {}
        for n, load in enumerate(self.beside_of(bodies)):
            early = load in self.early and name == "write"
            if early and self.is_early(chunk) is None:
                found[load] = _Lanes(self.early[load], (chunk.slot,))
                continue
            vector = self.setting.vector
            buffer = self.w.allocate(self.name(f"{name}_beside{n}"), (vector,), load.dtype, MemoryScope.REGISTER)
            whole = run_of((index(0),), vector)
            with self.w.when(chunk.slot >= self.setting.early if early else None):
                self.w.store(buffer, whole, self.beside_at(load, row, chunk))
            if early:
                place = minimum(chunk.slot, index(self.setting.early - 1))
                with self.w.when(self.is_early(chunk)):
                    self.w.store(buffer, whole, Load(self.early[load], run_of((place, index(0)), vector)))
            found[load] = _Lanes(buffer, ())
        return found

    def value(
        self, body: Expr, at: Mapping[str, Expr], chunk: Chunk | None, v: Expr, beside: Mapping[Load, _Lanes]
    ) -> Expr:
        """``body`` with what it loads taken from registers."""

        def loaded(load: Load) -> Expr:
            name = load.buffer.name
            if name in self.results:
                return self.results[name]
            if load in beside:
                return Load(beside[load].buffer, (*beside[load].at, v))
            if name in self.raw and affine_form(load.indices[-1]) == affine_form(
                Var(column_axis(len(self.form.columns) - 1))
            ):
                return Load(self.raw[name], (self.held_slot(chunk), v)) if chunk else Load(self.edge[name], ())
            return load

        return value_at(body, at, loaded)

    def settled(self, row: Row, name: str, body: Expr) -> Expr:
        """``body`` with what is the same for the whole row worked out once, in registers."""
        at = dict(zip(map(row_axis, range(len(self.form.rows))), self.rows_at(row), strict=True))
        held: dict[Expr, Buffer] = {}

        def worked_out(e: Expr) -> Expr:
            if isinstance(e, Binary | Unary) and e.dtype.is_float and not _in_columns(e):
                if e not in held:
                    held[e] = self.w.allocate(
                        self.name(f"{name}_row{len(held)}"), (), _wide(e.dtype), MemoryScope.REGISTER
                    )
                    value = self.value(e, at, None, index(0), {})
                    self.w.store(held[e], (), value if _wide(e.dtype) == e.dtype else Cast(value, _wide(e.dtype)))
                there = Load(held[e], ())
                return there if _wide(e.dtype) == e.dtype else Cast(there, e.dtype)
            if isinstance(e, Select):  # a branch not taken may not be worked out
                return Select(worked_out(e.condition), e.then, e.otherwise)
            return rebuild(e, [worked_out(c) for c in e.children]) if e.children else e

        return worked_out(_with_reciprocals(body))


_PARTS = 4
"""Accumulators of a thread: so many additions are under way at once."""


def accumulation(reduced: Reduced) -> Accumulation:
    return Accumulation(reduced.reducer, reduced.body.dtype, reduced.tensor.dtype)


def _with_reciprocals(body: Expr) -> Expr:
    """``body`` with every division by what belongs to the row as a product with its reciprocal, which is the same for
    all columns. (At most 1.5 units in the last place instead of 0.5; doubles stay as they are.)"""

    def rewritten(e: Expr) -> Expr:
        match e:
            case Binary(op=BinaryOp.DIV, a=a, b=b) if e.dtype.bits <= 32 and _in_columns(a) and not _in_columns(b):
                return a * Binary(BinaryOp.DIV, const(1, e.dtype), b)
        return e

    return map_expr(body, rewritten)


def _wide(dtype: DType) -> DType:
    """What a value is kept in between: 16-bit floats as they are computed with."""
    return float32 if dtype.is_float and dtype.bits == 16 else dtype


def _in_columns(e: Expr) -> bool:
    return any(isinstance(v, Var) and v.name.startswith(column_axis(0)[:-1]) for v in walk(e))
