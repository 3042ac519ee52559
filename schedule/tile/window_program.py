"""The kernel of small windows: a thread takes every pixel that its outputs share once, row by row."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from math import prod

from ...core.dtypes import DType, float32
from ...core.schedule import KnobValue
from ...ir.buffer import Buffer, Scope
from ...ir.build import Writer
from ...ir.expr import Binary, Cast, Expr, Load, Var, index, logical_and
from ...ir.rewrite import free_variables
from ...ir.stmt import HardwareAxis, Kernel, LoopKind
from ...te.workload import Axis, Stage
from ..nest import COMBINE, KERNEL_NAME, identity
from .digits import places
from .pointwise import Read, value_at, with_reads
from .registers import Held, Names, hold, take
from .windows import Windows


def window_kernel(windows: Windows, setting: Mapping[str, KnobValue]) -> Kernel:
    """The kernel in which a thread computes ``vector`` channels of ``rows`` by ``run`` neighbouring outputs, in blocks
    of ``threads`` (the knobs of ``setting``). What lies beyond the last output is neither read nor written."""
    return _Program(windows, setting).kernel()


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

    def kernel(self) -> Kernel:
        plan, w = self.plan, self.w
        counted = [Axis(a.name, -(-a.extent // self._share(a))) for a in plan.axes]
        number = prod(a.extent for a in counted)
        blocks = -(-number // self.threads)
        bounds = [
            (self.names.fresh("block"), blocks, HardwareAxis.GRID_X),
            (self.names.fresh("thread"), self.threads, HardwareAxis.THREAD),
        ]
        with w.launch(KERNEL_NAME, bounds) as (block, thread):
            place = block * self.threads + thread
            at = places(place, counted)
            start = {a.name: at[a.name] * self._share(a) if self._share(a) > 1 else at[a.name] for a in plan.axes}
            with w.when(None if number % self.threads == 0 else place < number):
                self._thread(start)
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

    def _thread(self, start: Mapping[str, Expr]) -> None:
        plan, w = self.plan, self.w
        reduction = plan.reduction
        assert reduction.reducer is not None
        start = {**start, **{a.name: index(0) for a in reduction.reduce_axes if a.extent == 1}}
        fixed = self._fixed(start)
        name = self.names.fresh(f"{reduction.name}_held")
        total = w.allocate(name, (self.rows, self.run, self.vector), self._wide, Scope.REGISTER)
        with self._outputs() as (q, p, v):
            w.store(total, (q, p, v), identity(COMBINE[reduction.reducer], self._wide))
        self._over(plan.others, start, fixed, total)
        self._finish(start, total)

    def _fixed(self, start: Mapping[str, Expr]) -> dict[Read, tuple[Held, tuple[Axis, ...]]]:
        """What does not change from output to output, taken into registers for every point of the window."""
        plan, w = self.plan, self.w
        held: dict[Read, tuple[Held, tuple[Axis, ...]]] = {}
        for read in plan.fixed:
            axes = plan.window_of(read)
            h = hold(w, self.names, read, [a.extent for a in axes], plan.channel.name, self.vector)
            held[read] = (h, axes)
            with ExitStack() as loops:
                at = [loops.enter_context(self._unrolled(a.name, a.extent)) for a in axes]
                here = {**start, **{a.name: i for a, i in zip(axes, at, strict=True)}}
                take(w, self.names, h, at, here, plan.channel.name, self.vector)
        return held

    def _unrolled(self, name: str, extent: int) -> AbstractContextManager[Var]:
        return self.w.loop(self.names.fresh(f"{name}_u"), extent, LoopKind.UNROLLED)

    @contextmanager
    def _outputs(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        """All outputs of a thread: row, place in the row, lane."""
        with (
            self._unrolled("q", self.rows) as q,
            self._unrolled("p", self.run) as p,
            self.w.loop(self.names.fresh("v"), self.vector, LoopKind.VECTORIZED) as v,
        ):
            yield q, p, v

    def _over(
        self,
        others: Sequence[Axis],
        at: Mapping[str, Expr],
        fixed: Mapping[Read, tuple[Held, tuple[Axis, ...]]],
        total: Buffer,
    ) -> None:
        """Loops over the axes of the reduction that do not slide, the rows of the input inside."""
        if others:
            if others[0].extent == 1:
                self._over(others[1:], at, fixed, total)
                return
            with self._unrolled(others[0].name, others[0].extent) as o:
                self._over(others[1:], {**at, others[0].name: o}, fixed, total)
            return
        slide = self.plan.row
        if slide is None:
            self._line(at, at, [(0, {})], fixed, total)
            return
        base = at[slide.axis.name]
        for line in range(slide.positions(self.rows)):
            readers = [
                (q, {slide.axis.name: base + q, **({slide.window.name: index(r)} if slide.window is not None else {})})
                for q in range(self.rows)
                for r in range(slide.points)
                if slide.stride * q + slide.dilation * r == line
            ]
            if readers:
                self._line({**at, **slide.at(base, index(line))}, at, readers, fixed, total)

    def _line(
        self,
        read_at: Mapping[str, Expr],
        at: Mapping[str, Expr],
        readers: Sequence[tuple[int, Mapping[str, Expr]]],
        fixed: Mapping[Read, tuple[Held, tuple[Axis, ...]]],
        total: Buffer,
    ) -> None:
        """One row of the input, taken at ``read_at``, added to the rows of outputs that read it."""
        plan, w, slide = self.plan, self.w, self.plan.column
        positions = slide.positions(self.run)
        base = at[slide.axis.name]
        held = {r: hold(w, self.names, r, (positions,), plan.channel.name, self.vector) for r in plan.moving}
        with self._unrolled("k", positions) as k:
            here = {**read_at, **slide.at(base, k)}
            for read, h in held.items():
                guarded = replace(h, read=self._kept_inside(read))
                take(w, self.names, guarded, (k,), here, plan.channel.name, self.vector)
        reducer = plan.reduction.reducer
        assert reducer is not None
        for q, reader in readers:
            with (
                self._unrolled("p", self.run) as p,
                self._unrolled("s", slide.points) as s,
                w.loop(self.names.fresh("v"), self.vector, LoopKind.VECTORIZED) as v,
            ):
                point = {**at, **reader, slide.axis.name: base + p}
                if slide.window is not None:
                    point[slide.window.name] = s
                place = p * slide.stride + s * slide.dilation
                values: dict[Read, Expr] = {r: h.value((place,), v) for r, h in held.items()}
                for read, (h, axes) in fixed.items():
                    values[read] = h.value([point[a.name] for a in axes], v)
                point[plan.channel.name] = point[plan.channel.name] + v
                term = value_at(with_reads(plan.reduction.body, values), point)
                place_of_total = (index(q), p, v)
                wide = term if term.dtype == self._wide else Cast(term, self._wide)
                w.store(total, place_of_total, Binary(COMBINE[reducer], Load(total, place_of_total), wide))

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

    def _finish(self, start: Mapping[str, Expr], total: Buffer) -> None:
        plan, w = self.plan, self.w
        column, row = plan.column.axis, plan.row.axis if plan.row is not None else None
        with self._unrolled("q", self.rows) as q, self._unrolled("p", self.run) as p:
            point = {**start, column.name: start[column.name] + p}
            inside = [] if column.extent % self.run == 0 else [point[column.name] < column.extent]
            if row is not None:
                point[row.name] = start[row.name] + q
                inside += [] if row.extent % self.rows == 0 else [point[row.name] < row.extent]
            with w.when(logical_and(*inside) if inside else None):
                for stage in plan.outputs:
                    self._store(stage, point, total, q, p)

    def _store(self, stage: Stage, point: Mapping[str, Expr], total: Buffer, q: Expr, p: Expr) -> None:
        plan = self.plan
        with self.w.loop(self.names.fresh("v"), self.vector, LoopKind.VECTORIZED) as v:

            def loaded(load: Load) -> Expr:
                if load.buffer.name != plan.reduction.name:
                    return load
                value = Load(total, (q, p, v))
                return value if value.dtype == load.dtype else Cast(value, load.dtype)

            here = {**point, plan.channel.name: point[plan.channel.name] + v}
            indices = tuple(here[a.name] for a in plan.axes)
            self.w.store(stage.tensor, indices, value_at(stage.body, here, loaded))
