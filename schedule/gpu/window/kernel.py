"""Writes the kernel of small windows: a thread loads each pixel that its outputs share once.

A thread computes ``vector_width`` channels of a tile of ``tile_h`` by ``tile_w`` neighbouring outputs. It goes through
the rows of the input: each pixel is accumulated into every output whose window contains it, and a row of outputs is
stored when the last row of its windows is done::

    x_regs[row, k, :] = X[y0 + row, x0 + k, channels]       # all rows and columns; zeros where the padding is
    w_regs = W[…]                                           # the filter, one vector of channels for each point
    for each input row, for p in unrolled(tile_w), s in unrolled(window):
        acc[q, p, :] += x_regs[row, stride*p + dilation*s, :] * w_regs[r, s, :]
        Y[y0 + q, x0 + p, channels] = epilogue(acc[q, p, :])                     # of rows q that are complete

All pixels are loaded first, or, for large windows, the registers are a circular buffer of ``stages`` rows. The row
that comes ``stages - 1`` rows later is then loaded before a row is accumulated.

Where a row of pixels contributes the same to every row of outputs (pooling), it is reduced by itself first.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import prod

from ....core.dtypes import DType
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Binary, BinaryOp, Expr, Load, Var, index
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.workload import Axis
from ...loop_nest.nest import KERNEL_NAME, identity, kernel_of
from ...problems.window import ReduceWindow
from ...problems.window_steps import steps_along
from ...space.columns import Size
from ...tile.accumulation import register_dtype
from ...tile.delinearize import axis_indices
from ...tile.masked_loads import MaskedLoad
from ...tile.names import FreshNameWriter
from ...tile.register_loads import RegisterLoad, allocate_registers, bounded, load_registers, without_kept_conditions
from ..window_parts import load_fixed, reduce_parts, store_output


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``vector_width``, ``tile_w``, ``tile_h``, ``stages`` and ``threads`` are the knobs. ``all_threads``: threads of the
    launch that compute something. ``blocks``: thread blocks. ``pixels``: pixels of the input that a thread loads for
    each of its channels. ``held``: those that are in its registers at a time. ``registers``: estimated registers of a
    thread. ``shared_bytes``: shared memory of a block, 0. ``resident``: how many blocks a multiprocessor runs at once,
    by that estimate.
    """

    vector_width: Size
    tile_w: Size
    tile_h: Size
    stages: Size
    threads: Size
    all_threads: Size
    blocks: Size
    pixels: Size
    held: Size
    registers: Size
    shared_bytes: Size
    resident: Size


def window_kernel(problem: ReduceWindow, sizes: WindowSizes) -> Kernel:
    """Return the kernel of one setting. Nothing beyond the last output is loaded or stored.

    The launch bounds promise ``sizes.resident`` blocks on a multiprocessor. Without them the compiler would postpone
    loads until they are needed, to save registers for more blocks.
    """
    return _WindowKernelWriter(problem, sizes).kernel()


def accumulates_pairs(problem: ReduceWindow) -> bool:
    """Return whether an instruction accumulates two channels, where a thread has several: large windows of 16-bit
    floats of which the greatest or the least is taken."""
    dtype, exact = problem.reduction.tensor.dtype, problem.combine in (BinaryOp.MIN, BinaryOp.MAX)
    return problem.is_large and exact and dtype.is_float and dtype.bits == 16


class _WindowKernelWriter:
    def __init__(self, problem: ReduceWindow, sizes: WindowSizes) -> None:
        self.problem = problem
        self.sizes = sizes
        self.width, self.tile_w, self.tile_h = (int(n) for n in (sizes.vector_width, sizes.tile_w, sizes.tile_h))
        self.w = FreshNameWriter(problem.names)
        self.thread_grid = [Axis(a.name, -(-a.extent // self._tile_extent(a))) for a in problem.axes]
        moving = [(problem.width.axis, self.tile_w), (problem.height.axis, self.tile_h)]
        self.ragged = [axis.name for axis, tile in moving if axis.extent % tile]
        self.combine = problem.combine
        dtype = problem.reduction.tensor.dtype
        in_pairs = self.width > 1 and accumulates_pairs(problem)
        self.accumulator_dtype: DType = dtype if in_pairs else register_dtype(dtype)

    def kernel(self) -> Kernel:
        problem, w, threads = self.problem, self.w, self.sizes.threads
        number = prod(a.extent for a in self.thread_grid)
        bounds = [("block", -(-number // threads), HardwareAxis.GRID_X), ("thread", threads, HardwareAxis.THREAD)]
        with w.launch(KERNEL_NAME, bounds, min_blocks=self.sizes.resident) as (block, thread):
            flat = block * threads + thread
            at = axis_indices(flat, self.thread_grid)
            extents = {a.name: self._tile_extent(a) for a in problem.axes}
            start = {name: at[name] * extent if extent > 1 else at[name] for name, extent in extents.items()}
            with w.when(None if number % threads == 0 else flat < number):
                self._thread({**start, **problem.unit_axes})
        return kernel_of(problem.workload, w.finish())

    def _tile_extent(self, axis: Axis) -> int:
        """Return how many points along ``axis`` one thread computes."""
        problem = self.problem
        if axis == problem.channel:
            return self.width
        if axis == problem.width.axis:
            return self.tile_w
        return self.tile_h if axis == problem.height.axis else 1

    def _thread(self, start: Mapping[str, Expr]) -> None:
        """Write all that one thread does, whose first output is at ``start``. Where windows move along all axes of the
        reduction, a row of outputs is stored as soon as the last row of its windows is accumulated."""
        problem, w = self.problem, self.w
        unwindowed = [a for a in problem.unwindowed_axes if a.extent > 1]
        consumers = problem.height.consumers(self.tile_h)
        self.begun = bool(unwindowed)
        self.acc = self._accumulators(problem.reduction.name, self.tile_h)
        if unwindowed:
            with w.unrolled("q_u", self.tile_h) as every, self._points() as (p, v):
                w.store(self.acc, (every, p, v), identity(self.combine, self.accumulator_dtype))
        with ExitStack() as loops:
            kind = LoopKind.SERIAL if problem.is_looped else LoopKind.UNROLLED
            at = {**start, **{a.name: loops.enter_context(w.loop(f"{a.name}_u", a.extent, kind)) for a in unwindowed}}
            self.pixels = self._pixel_registers()
            ahead = int(self.sizes.stages) - 1 if self.sizes.stages else len(consumers)
            lines = list(consumers)
            for line in lines[:ahead]:
                self._load_line(at, line)
            self.fixed = load_fixed(w, problem, problem.unwindowed_axes, at, problem.channel.name, self.width)
            for number, (line, reading) in enumerate(consumers.items()):
                for later in lines[number + ahead : number + ahead + 1]:
                    self._load_line(at, later)
                self._accumulate_line(at, line, reading)
                for q, r in reading:
                    if r == problem.height.window_points - 1 and not unwindowed:
                        self._store_row(start, q)
        if unwindowed:
            for row in range(self.tile_h):
                self._store_row(start, row)

    def _accumulators(self, name: str, rows: int) -> Buffer:
        """Allocate registers of [rows, tile_w, vector_width] accumulators."""
        shape = (rows, self.tile_w, self.width)
        return self.w.allocate(f"{name}_acc", shape, self.accumulator_dtype, MemoryScope.REGISTER)

    @contextmanager
    def _points(self) -> Iterator[tuple[Expr, Expr]]:
        """Loop over the outputs of a row of a thread, and over their channels."""
        with self.w.unrolled("p_u", self.tile_w) as p, self.w.vectorized("v", self.width) as v:
            yield p, v

    # --- loads

    def _pixel_registers(self) -> Mapping[MaskedLoad, RegisterLoad]:
        """Allocate registers of [row, position, lane] for rows of the input."""
        problem, lane = self.problem, self.problem.channel.name
        rows = int(self.sizes.stages) or problem.height.positions(self.tile_h)
        shape = (rows, problem.width.positions(self.tile_w))
        return {r: allocate_registers(self.w, r, shape, lane, self.width) for r in problem.sliding_loads}

    def _slot(self, line: int) -> int:
        """Return where row ``line`` of the input is in the registers."""
        return line % int(self.sizes.stages) if self.sizes.stages else line

    def _load_line(self, at: Mapping[str, Expr], line: int) -> None:
        """Load row ``line`` of the input into its registers."""
        problem = self.problem
        corner = {**problem.unit_axes, **{a.name: Var(a.name) * self._tile_extent(a) for a in problem.axes}}
        axes = [*self.thread_grid, *problem.unwindowed_axes]
        for k in range(problem.width.positions(self.tile_w)):
            here, anywhere = ({**point, **self._pixel(point, line, k)} for point in (at, corner))
            for masked, registers in self.pixels.items():
                needed = without_kept_conditions(bounded(masked, self.ragged), anywhere, axes)
                to = (index(self._slot(line)), index(k))
                load_registers(self.w, replace(registers, masked=needed), to, here, problem.channel.name, self.width)

    def _pixel(self, at: Mapping[str, Expr], line: int, k: int) -> dict[str, Expr]:
        """Return the axes at a point that loads row ``line`` and position ``k`` of the input, counted from those of the
        output at ``at``."""
        width, height = self.problem.width, self.problem.height
        return {**height.at(at[height.axis.name], index(line)), **width.at(at[width.axis.name], index(k))}

    # --- arithmetic

    def _accumulate_line(self, at: Mapping[str, Expr], line: int, consumers: Sequence[tuple[int, int]]) -> None:
        """Accumulate a row of the input into the rows of outputs that read it: (row of the outputs, row of its window).
        It is reduced by itself first where it contributes the same to all of them."""
        problem = self.problem
        if len(consumers) == 1 or not problem.is_alike(problem.height):
            for q, r in consumers:
                self._accumulate(self._row_point(at, q, r), line, self.acc, q, begun=self.begun or r > 0)
            return
        partial = self._accumulators(f"{problem.reduction.name}_line", 1)
        if not problem.is_large or not problem.is_alike(problem.width):
            self._accumulate(self._row_point(at, *consumers[0]), line, partial, 0, begun=False)
        else:
            self._reduce_line(self._row_point(at, *consumers[0]), line, partial)
        for q, r in consumers:
            with self._points() as (p, v):
                self._combine(self.acc, (index(q), p, v), Load(partial, (index(0), p, v)), begun=self.begun or r > 0)

    def _row_point(self, at: Mapping[str, Expr], q: int, r: int) -> Mapping[str, Expr]:
        """Return ``at`` moved to row ``q`` of the outputs and row ``r`` of its window."""
        height = self.problem.height
        window: dict[str, Expr] = {} if height.window is None else {height.window.name: index(r)}
        return {**at, height.axis.name: at[height.axis.name] + q, **window}

    def _reduce_line(self, at: Mapping[str, Expr], line: int, partial: Buffer) -> None:
        """Reduce row ``line`` of the input in the fewest steps."""
        problem, w, channel = self.problem, self.w, self.problem.channel.name
        steps, dtype = steps_along(problem.width, self.tile_w, self.combine), self.accumulator_dtype

        def pixel(place: int, v: Expr) -> Expr:
            return problem.term(self._pixels(line, index(place), v), {**at, channel: at[channel] + v}, dtype)

        name = f"{problem.reduction.name}_parts"
        reduced = reduce_parts(w, steps, self.combine, pixel, name=name, dtype=dtype, lanes=self.width)
        for p in range(len(steps.windows)):
            with w.vectorized("v", self.width) as v:
                w.store(partial, (index(0), index(p), v), reduced(p, v))

    def _pixels(self, line: int, position: Expr, lane: Expr) -> dict[MaskedLoad, Expr]:
        """Return what is loaded at a position of a row of the input."""
        slot = index(self._slot(line))
        return {masked: registers.value((slot, position), lane) for masked, registers in self.pixels.items()}

    def _accumulate(self, at: Mapping[str, Expr], line: int, acc: Buffer, q: int, *, begun: bool) -> None:
        """Accumulate row ``line`` of the input into row ``q`` of ``acc``. ``begun``: that has a value already."""
        width, channel = self.problem.width, self.problem.channel.name
        for s in range(width.window_points):
            with self._points() as (p, v):
                point = {**at, width.axis.name: at[width.axis.name] + p, channel: at[channel] + v}
                if width.window is not None:
                    point[width.window.name] = index(s)
                values = self._pixels(line, p * width.stride + s * width.dilation, v)
                values |= {r: h.value([point[a.name] for a in axes], v) for r, (h, axes) in self.fixed.items()}
                term = self.problem.term(values, point, self.accumulator_dtype)
                self._combine(acc, (index(q), p, v), term, begun=begun or s > 0)

    def _combine(self, acc: Buffer, indices: tuple[Expr, ...], value: Expr, *, begun: bool) -> None:
        self.w.store(acc, indices, Binary(self.combine, Load(acc, indices), value) if begun else value)

    # --- outputs

    def _store_row(self, start: Mapping[str, Expr], q: int) -> None:
        """Store row ``q`` of the outputs."""
        problem, w, channel = self.problem, self.w, self.problem.channel.name
        row, column = problem.height.axis, problem.width.axis
        with w.unrolled("p_u", self.tile_w) as p:
            point = {**start, row.name: start[row.name] + q, column.name: start[column.name] + p}
            with w.when(*(point[a.name] < a.extent for a in (column, row) if a.name in self.ragged)):
                for stage in problem.outputs:
                    with w.vectorized("v", self.width) as v:
                        here = {**point, channel: point[channel] + v}
                        store_output(w, problem, stage, here, Load(self.acc, (index(q), p, v)))
