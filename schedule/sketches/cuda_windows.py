"""Small windows over neighbouring pixels for graphics processors: pooling, depthwise convolution; channels innermost.

A thread computes ``vector`` channels of ``rows`` by ``run`` neighbouring outputs. It goes through the rows of the input
that those need, takes each pixel of a row into registers once, and adds it to every output whose window it is in. What
does not change from output to output (weights) is held in registers throughout::

    weights_held = W[…]                                      # whole window, one vector of channels
    for each input row:
        for k in unrolled(columns):  x_held[k, :] = X[row, x0 + k, channels]      # zeros where the padding is
        for p in unrolled(run), s in unrolled(window):
            total[q, p, :] += x_held[stride*p + dilation*s, :] * weights_held[r, s, :]
    Y[y0 + q, x0 + p, channels] = epilogue(total[q, p, :])
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import DType, float32
from ...core.schedule import KnobValue
from ...core.target import Target
from ...ir.buffer import Buffer, Scope
from ...ir.build import Writer
from ...ir.expr import Binary, Cast, Expr, Load, Var, index, logical_and
from ...ir.rewrite import free_variables
from ...ir.stmt import HardwareAxis, Kernel, LoopKind
from ...te.inline import inline_stages
from ...te.workload import Axis, Stage, Workload
from ..gpu import limits_of
from ..nest import COMBINE, KERNEL_NAME, identity
from ..space import Knob, Quantity
from ..tile.digits import places
from ..tile.outputs import outputs_of
from ..tile.pointwise import Read, reads_of, value_at, with_reads
from ..tile.registers import Held, Names, flat_offset, hold, take
from ..tile.slides import Slide, forms_of, slide_of
from .columns import Bools, Columns, Ints
from .tile_sketch import GPU_QUANTITIES, TileSketch, gpu_columns

MAX_WINDOW_POINTS = 64
MAX_VECTOR_BYTES = 8
SPARE_REGISTERS = 15
"""Registers for addresses and constants, roughly (from compiled kernels)."""
MAX_REGISTERS = 200
FEWEST_OUTPUTS, MOST_OUTPUTS = 16, 112
"""Output elements of a thread, where there are enough of them (measured: the best settings have so many)."""
BUSY_THREADS = 512
"""Threads that keep a multiprocessor busy."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("vector_bytes", "B", "widest access of the windowed input"),
    Quantity("outputs", "elements", "outputs that a thread computes for each of its channels"),
    Quantity("loads_per_output", "loads", "input elements loaded for each output element"),
)


@dataclass(frozen=True)
class WindowsPlan:
    """``reduction``: the stage that sums or compares. ``outputs``: what is stored, on the same axes; bodies read the
    reduction at their own point, and inputs. ``moving``: reads that change from output to output of a thread;
    ``fixed``: the others. ``column``, ``row``: the slides along the axis next to the channels, and the one next to
    that."""

    workload: Workload
    target: Target
    reduction: Stage
    outputs: tuple[Stage, ...]
    moving: tuple[Read, ...]
    fixed: tuple[Read, ...]
    channel: Axis
    column: Slide
    row: Slide | None

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.reduction.axes

    @property
    def rows(self) -> int:
        """Outputs along the axis of rows."""
        return self.row.axis.extent if self.row is not None else 1

    @property
    def others(self) -> tuple[Axis, ...]:
        """Axes of the reduction that no slide has."""
        sliding = [s.window for s in (self.column, self.row) if s is not None]
        return tuple(a for a in self.reduction.reduce_axes if a not in sliding)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        width = self.column.axis.extent
        return (
            Knob("vector", self._vectors(), "neighbouring channels that a thread computes"),
            Knob("run", tuple(r for r in (1, 2, 4, 7, 8) if r <= width), "neighbouring outputs of a thread in a row"),
            Knob("rows", tuple(q for q in (1, 2, 4, 7, 8, 14) if q <= self.rows), "rows of outputs of a thread"),
            Knob("threads", (64, 128, 256), "threads of a block"),
        )

    def _vectors(self) -> tuple[int, ...]:
        """Vectors of 4 and 8 bytes of the input, where they fit. (Measured: wider ones leave fewer threads with more
        registers each, and are slower.)"""
        size = max(r.load.dtype.bytes for r in self.moving)
        fitting = [v for v in (1, 2, 4, 8) if self.channel.extent % v == 0 and v * size <= MAX_VECTOR_BYTES]
        return tuple(v for v in fitting if v * size >= 4 or v == fitting[-1]) or (1,)

    def _sizes(self, columns: Columns) -> tuple[Ints, Ints, Ints]:
        """Threads in all, positions of a row that a thread holds, and registers of a thread."""
        vector, run, rows = columns.ints("vector"), columns.ints("run"), columns.ints("rows")
        left = prod(a.extent for a in self.axes) // self.channel.extent // self.column.axis.extent // self.rows
        number = left * -(-self.rows // rows) * -(-self.column.axis.extent // run) * (self.channel.extent // vector)
        positions = self.column.positions(run)
        held = sum(r.load.dtype.bytes for r in self.moving) * positions * vector
        window = sum(r.load.dtype.bytes * _fixed_points(r, self.reduction) for r in self.fixed) * vector
        total = max(4, self.reduction.tensor.dtype.bytes) * run * rows * vector
        return number, positions, SPARE_REGISTERS + -(-(held + window + total) // 4) + self.column.points * vector

    def legal(self, columns: Columns) -> Bools:
        run, rows, threads = columns.ints("run"), columns.ints("rows"), columns.ints("threads")
        number, _, registers = self._sizes(columns)
        width = self.column.axis.extent
        wasteful = (-(-width // run) * run > 1.25 * width) | (-(-self.rows // rows) * rows > 1.25 * self.rows)
        vector = columns.ints("vector")
        # Threads with few outputs load most pixels again; they are worth it where there are few outputs in all.
        outputs = run * rows * vector
        few = prod(a.extent for a in self.axes) < FEWEST_OUTPUTS * BUSY_THREADS * self.target.threads
        share = (outputs <= MOST_OUTPUTS) & ((outputs >= FEWEST_OUTPUTS) | few)
        smallest = (run == 1) & (rows == 1) & (vector == self._vectors()[0])
        busy = (number >= threads * self.target.threads) | (outputs <= FEWEST_OUTPUTS)
        fits = (registers <= MAX_REGISTERS) & ~wasteful & share & busy
        legal: Bools = (fits | smallest) & ((number > 64) | (threads == 64))
        return legal

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        vector, run, rows = columns.ints("vector"), columns.ints("run"), columns.ints("rows")
        number, positions, registers = self._sizes(columns)
        blocks = -(-number // columns.ints("threads"))
        lines = self.row.positions(rows) if self.row is not None else rows
        widest = max(r.load.dtype.bytes for r in self.moving)
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=blocks,
            threads=columns.ints("threads"),
            registers=registers,
            shared=np.zeros_like(blocks),
            wanted=sum(r.load.dtype.bytes for r in self.moving) * vector * positions,
        )
        return {
            **common,
            "vector_bytes": np.minimum(vector * widest, MAX_VECTOR_BYTES).astype(np.float64),
            "outputs": (run * rows).astype(np.float64),
            "loads_per_output": positions * lines / (run * rows),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return _Program(self, setting).kernel()


def _fixed_points(read: Read, reduction: Stage) -> int:
    return prod(a.extent for a in _reduce_axes_of(read, reduction))


def _reduce_axes_of(read: Read, reduction: Stage) -> tuple[Axis, ...]:
    """The axes of the reduction, longer than 1, that a read depends on."""
    free = free_variables(read.load) | (free_variables(read.guard) if read.guard is not None else frozenset())
    return tuple(a for a in reduction.reduce_axes if a.name in free and a.extent > 1)


class _Program:
    """The kernel of one setting."""

    def __init__(self, plan: WindowsPlan, setting: Mapping[str, KnobValue]) -> None:
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
            axes = _reduce_axes_of(read, plan.reduction)
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


def _plan(workload: Workload, target: Target) -> WindowsPlan | None:
    inlined = inline_stages(workload)
    reductions = [s for s in inlined.stages if s.reducer is not None]
    if len(reductions) != 1:
        return None
    reduction = reductions[0]
    if reduction.reducer not in COMBINE or prod(a.extent for a in reduction.reduce_axes) > MAX_WINDOW_POINTS:
        return None
    long = [a for a in reduction.axes if a.extent > 1]
    if len(long) < 2:
        return None
    channel, column = long[-1], long[-2]
    reads = reads_of(reduction.body)
    offsets = [flat_offset(r.load) for r in reads]
    if any(o is None or o.coefficient(channel.name) not in (0, 1) for o in offsets):
        return None
    outputs = outputs_of(inlined, reduction)
    spatial = {a.name for a in long[-3:-1]}
    moving = tuple(r for r in reads if _free(r) & spatial)
    if outputs is None or not any(channel.name in _free(r) for r in moving):
        return None
    forms = forms_of(moving)
    if forms is None:
        return None
    across = slide_of(column, reduction.reduce_axes, forms)
    along = slide_of(channel, reduction.reduce_axes, forms)
    if across is None or along is None or along.window is not None:  # windows over neighbouring lanes share no vectors
        return None
    row = slide_of(long[-3], reduction.reduce_axes, forms) if len(long) > 2 else None
    if len(long) > 2 and (row is None or (row.window is not None and row.window == across.window)):
        return None
    windows = [s.window for s in (across, row) if s is not None and s.window is not None and s.window.extent > 1]
    if not windows:
        return None
    fixed = tuple(r for r in reads if r not in moving)
    return WindowsPlan(workload, target, reduction, outputs, moving, fixed, channel, across, row)


def _free(read: Read) -> frozenset[str]:
    guard = free_variables(read.guard) if read.guard is not None else frozenset()
    return free_variables(read.load) | guard


CUDA_WINDOWS = TileSketch("cuda_windows", 1, QUANTITIES, _plan)
