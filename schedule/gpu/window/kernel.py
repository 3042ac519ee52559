"""The kernel of small windows: a thread takes every pixel that its outputs share once, all of them ahead."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from math import prod

from ....core.dtypes import DType, float32
from ....core.schedule import KnobValue
from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import Binary, BinaryOp, Cast, Expr, Load, Logic, LogicOp, Var, index, logical_and
from ....ir.rewrite import free_variables
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.workload import Axis, Stage
from ...loop_nest.nest import COMBINE, KERNEL_NAME, identity
from ...problems.window import Windows
from ...tile.delinearize import places
from ...tile.register_reads import Held, Names, always_holds, hold, take
from ...tile.stage_body import Read, value_at, with_reads


def window_kernel(windows: Windows, setting: Mapping[str, KnobValue], resident: int) -> Kernel:
    """The kernel in which a thread computes ``vector`` channels of ``rows`` by ``run`` neighbouring outputs, in blocks
    of ``threads`` (the knobs of ``setting``). What lies beyond the last output is neither read nor written.

    ``resident``: how many blocks are meant to run on a multiprocessor at once. (The compiler must know: to save
    registers for more of them it would put loads off until they are needed.)"""
    return _Program(windows, setting).kernel(resident)


_Fixed = Mapping[Read, tuple[Held, tuple[Axis, ...]]]
"""What does not change from output to output, in registers, and the axes of the reduction that it is held for."""

_Readers = Sequence[tuple[int, int]]
"""The rows of outputs of a thread that a row of the input counts for, each with the row of its window."""


class _Program:
    """The kernel of one setting."""

    def __init__(self, plan: Windows, setting: Mapping[str, KnobValue]) -> None:
        self.plan = plan
        self.vector, self.run, self.rows = (int(setting[k]) for k in ("vector", "run", "rows"))
        self.threads = int(setting["threads"])
        buffers = (*plan.workload.inputs, plan.reduction.tensor, *(s.tensor for s in plan.outputs))
        axes = (*plan.axes, *plan.reduction.reduce_axes)
        self.names = Names({b.name for b in buffers} | {a.name for a in axes})
        self.w = Writer()
        self.counted = [Axis(a.name, -(-a.extent // self._share(a))) for a in plan.axes]
        assert plan.reduction.reducer is not None
        self.combine: BinaryOp = COMBINE[plan.reduction.reducer]

    def kernel(self, resident: int) -> Kernel:
        plan, w = self.plan, self.w
        number = prod(a.extent for a in self.counted)
        bounds = [
            (self.names.fresh("block"), -(-number // self.threads), HardwareAxis.GRID_X),
            (self.names.fresh("thread"), self.threads, HardwareAxis.THREAD),
        ]
        with w.launch(KERNEL_NAME, bounds, min_blocks=resident) as (block, thread):
            place = block * self.threads + thread
            at = places(place, self.counted)
            start = {a.name: at[a.name] * self._share(a) if self._share(a) > 1 else at[a.name] for a in plan.axes}
            with w.when(None if number % self.threads == 0 else place < number):
                self._thread({**start, **self._single_points()})
        outputs = tuple(dict.fromkeys(plan.workload.output_buffers))
        return Kernel(KERNEL_NAME, plan.workload.inputs, outputs, (), w.finish())

    @property
    def _wide(self) -> DType:
        """What totals are kept in."""
        dtype = self.plan.reduction.tensor.dtype
        return float32 if dtype.is_float and dtype.bits == 16 else dtype

    def _share(self, axis: Axis) -> int:
        """Places along ``axis`` that one thread computes."""
        plan = self.plan
        if axis == plan.channel:
            return self.vector
        if axis == plan.column.axis:
            return self.run
        return self.rows if plan.row is not None and axis == plan.row.axis else 1

    def _single_points(self) -> dict[str, Expr]:
        """The axes of the reduction that have but one place."""
        return {a.name: index(0) for a in self.plan.reduction.reduce_axes if a.extent == 1}

    def _thread(self, start: Mapping[str, Expr]) -> None:
        """Everything that one thread does. Where only sliding axes are reduced, a row of outputs is written as soon as
        the last row of its window is added up."""
        plan, w = self.plan, self.w
        others = [a for a in plan.others if a.extent > 1]
        readers = {line: found for line in range(self._lines) if (found := self._readers(line))}
        total = self._totals(plan.reduction.name, self.rows)
        if others:
            with self._unrolled("q", self.rows) as every, self._unrolled("p", self.run) as p, self._lanes() as v:
                w.store(total, (every, p, v), identity(self.combine, self._wide))
        with ExitStack() as loops:
            at = {**start, **{a.name: loops.enter_context(self._unrolled(a.name, a.extent)) for a in others}}
            held = self._take(at, readers)
            fixed = self._fixed(at)
            for line, reading in readers.items():
                self._add(at, held, line, reading, fixed, total, begun=bool(others))
                for q, r in reading:
                    if r == self._window_rows - 1 and not others:
                        self._write(start, q, total)
        if others:
            for row in range(self.rows):
                self._write(start, row, total)

    def _totals(self, name: str, rows: int) -> Buffer:
        shape = (rows, self.run, self.vector)
        return self.w.allocate(self.names.fresh(f"{name}_held"), shape, self._wide, MemoryScope.REGISTER)

    def _unrolled(self, name: str, extent: int) -> AbstractContextManager[Var]:
        return self.w.loop(self.names.fresh(f"{name}_u"), extent, LoopKind.UNROLLED)

    def _lanes(self) -> AbstractContextManager[Var]:
        return self.w.loop(self.names.fresh("v"), self.vector, LoopKind.VECTORIZED)

    # --- rows of the input

    @property
    def _lines(self) -> int:
        """Rows of the input that a thread's outputs span."""
        return self.plan.row.positions(self.rows) if self.plan.row is not None else 1

    @property
    def _window_rows(self) -> int:
        return self.plan.row.points if self.plan.row is not None else 1

    def _readers(self, line: int) -> _Readers:
        down = self.plan.row
        if down is None:
            return [(0, 0)]
        pairs = [(q, r) for q in range(self.rows) for r in range(down.points)]
        return [(q, r) for q, r in pairs if down.stride * q + down.dilation * r == line]

    def _take(self, at: Mapping[str, Expr], lines: Mapping[int, _Readers]) -> Mapping[Read, Held]:
        """Rows of the input into registers, [row, position, lane]."""
        plan, w, across = self.plan, self.w, self.plan.column
        positions = across.positions(self.run)
        shape = (self._lines, positions)
        held = {r: hold(w, self.names, r, shape, plan.channel.name, self.vector) for r in plan.moving}
        corner = {a.name: Var(a.name) * self._share(a) for a in plan.axes}
        for line in lines:
            for k in range(positions):
                here = {**at, **self._pixel(at, line, k)}
                anywhere = {**self._single_points(), **corner, **self._pixel(corner, line, k)}
                for read, h in held.items():
                    needed = replace(h, read=self._asked(self._kept_inside(read), anywhere))
                    take(w, self.names, needed, (index(line), index(k)), here, plan.channel.name, self.vector)
        return held

    def _pixel(self, at: Mapping[str, Expr], line: int, k: int) -> dict[str, Expr]:
        """The axes at a point that reads row ``line`` and position ``k``, counted from those of the output ``at``."""
        across, down = self.plan.column, self.plan.row
        below = down.at(at[down.axis.name], index(line)) if down is not None else {}
        return {**below, **across.at(at[across.axis.name], index(k))}

    def _asked(self, read: Read, at: Mapping[str, Expr]) -> Read:
        """``read`` with those of its conditions only that fail for some thread at ``at``."""
        axes = [*self.counted, *self.plan.others]
        terms = [t for t in _conjuncts(read.guard) if not always_holds(value_at(t, at), axes)]
        return Read(read.load, logical_and(*terms) if terms else None, read.otherwise)

    def _kept_inside(self, read: Read) -> Read:
        """``read`` guarded against positions that only outputs beyond the last one read."""
        plan = self.plan
        ragged = [plan.column.axis] if plan.column.axis.extent % self.run else []
        if plan.row is not None and plan.row.axis.extent % self.rows:
            ragged.append(plan.row.axis)
        terms = [] if read.guard is None else [read.guard]
        for at, extent in zip(read.load.indices, read.load.buffer.shape, strict=True):
            if any(a.name in free_variables(at) for a in ragged):
                terms.extend((at >= 0, at < extent))
        return Read(read.load, logical_and(*terms) if terms else None, read.otherwise)

    def _fixed(self, at: Mapping[str, Expr]) -> _Fixed:
        """What does not change from output to output, taken into registers for every point of the window."""
        plan, w = self.plan, self.w
        held: dict[Read, tuple[Held, tuple[Axis, ...]]] = {}
        for read in plan.fixed:
            axes = tuple(a for a in plan.window_of(read) if a not in plan.others)
            h = hold(w, self.names, read, [a.extent for a in axes], plan.channel.name, self.vector)
            held[read] = (h, axes)
            with ExitStack() as loops:
                places = [loops.enter_context(self._unrolled(a.name, a.extent)) for a in axes]
                here = {**at, **{a.name: i for a, i in zip(axes, places, strict=True)}}
                take(w, self.names, h, places, here, plan.channel.name, self.vector)
        return held

    # --- arithmetic

    def _add(
        self,
        at: Mapping[str, Expr],
        held: Mapping[Read, Held],
        line: int,
        readers: _Readers,
        fixed: _Fixed,
        total: Buffer,
        *,
        begun: bool,
    ) -> None:
        """A row of the input into the totals of the rows of outputs that read it: added up by itself first, where it
        counts the same for all of them. ``begun``: something stands in all totals already."""
        if len(readers) == 1 or not self._same_for_all():
            for q, r in readers:
                self._sum(self._point(at, q, r), held, line, fixed, total, q, begun=begun or r > 0)
            return
        partial = self._totals(f"{self.plan.reduction.name}_line", 1)
        self._sum(self._point(at, *readers[0]), held, line, fixed, partial, 0, begun=False)
        for q, r in readers:
            with self._unrolled("p", self.run) as p, self._lanes() as v:
                self._into(total, (index(q), p, v), Load(partial, (index(0), p, v)), begun=begun or r > 0)

    def _point(self, at: Mapping[str, Expr], q: int, r: int) -> Mapping[str, Expr]:
        """Row ``q`` of the outputs and row ``r`` of its window."""
        down = self.plan.row
        if down is None:
            return at
        window: dict[str, Expr] = {} if down.window is None else {down.window.name: index(r)}
        return {**at, down.axis.name: at[down.axis.name] + q, **window}

    def _same_for_all(self) -> bool:
        """Whether what a row of the input adds does not depend on the row of outputs."""
        plan, down = self.plan, self.plan.row
        rest = with_reads(plan.reduction.body, {r: identity(self.combine, r.load.dtype) for r in plan.moving})
        follows = [a.name for a in (down.axis, down.window) if a is not None] if down is not None else []
        return free_variables(rest).isdisjoint(follows)

    def _sum(
        self,
        at: Mapping[str, Expr],
        held: Mapping[Read, Held],
        line: int,
        fixed: _Fixed,
        total: Buffer,
        q: int,
        *,
        begun: bool,
    ) -> None:
        """A row of the input into the totals at row ``q`` of ``total``."""
        across, channel = self.plan.column, self.plan.channel.name
        for s in range(across.points):
            with self._unrolled("p", self.run) as p, self._lanes() as v:
                point = {**at, across.axis.name: at[across.axis.name] + p, channel: at[channel] + v}
                if across.window is not None:
                    point[across.window.name] = index(s)
                position = p * across.stride + s * across.dilation
                values: dict[Read, Expr] = {r: h.value((index(line), position), v) for r, h in held.items()}
                values |= {r: h.value([point[a.name] for a in axes], v) for r, (h, axes) in fixed.items()}
                term = value_at(with_reads(self.plan.reduction.body, values), point)
                wide = term if term.dtype == self._wide else Cast(term, self._wide)
                self._into(total, (index(q), p, v), wide, begun=begun or s > 0)

    def _into(self, total: Buffer, place: tuple[Expr, ...], value: Expr, *, begun: bool) -> None:
        self.w.store(total, place, Binary(self.combine, Load(total, place), value) if begun else value)

    # --- outputs

    def _write(self, start: Mapping[str, Expr], q: int, total: Buffer) -> None:
        """Row ``q`` of the outputs."""
        column, row = self.plan.column.axis, self.plan.row.axis if self.plan.row is not None else None
        with self._unrolled("p", self.run) as p:
            point = {**start, column.name: start[column.name] + p}
            inside = [] if column.extent % self.run == 0 else [point[column.name] < column.extent]
            if row is not None:
                point[row.name] = start[row.name] + q
                inside += [] if row.extent % self.rows == 0 else [point[row.name] < row.extent]
            with self.w.when(logical_and(*inside) if inside else None):
                for stage in self.plan.outputs:
                    self._store(stage, point, total, (index(q), p))

    def _store(self, stage: Stage, point: Mapping[str, Expr], total: Buffer, place: tuple[Expr, ...]) -> None:
        plan = self.plan
        with self._lanes() as v:

            def loaded(load: Load) -> Expr:
                if load.buffer.name != plan.reduction.name:
                    return load
                value = Load(total, (*place, v))
                return value if value.dtype == load.dtype else Cast(value, load.dtype)

            here = {**point, plan.channel.name: point[plan.channel.name] + v}
            indices = tuple(here[a.name] for a in plan.axes)
            self.w.store(stage.tensor, indices, value_at(stage.body, here, loaded))


def _conjuncts(condition: Expr | None) -> list[Expr]:
    match condition:
        case None:
            return []
        case Logic(op=LogicOp.AND, a=a, b=b):
            return [*_conjuncts(a), *_conjuncts(b)]
    return [condition]
