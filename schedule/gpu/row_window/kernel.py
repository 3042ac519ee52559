"""Writes the kernel of windows that move along rows. A block loads each position of its part of a row once, and both
inputs and results go through shared memory, so that neighbouring threads access neighbouring elements::

    for n in unrolled(…):            x_regs[n] = X[row, first + n*threads_per_row + x]     # zeros where the padding is
    for n in unrolled(…):            x_tile[y, n*threads_per_row + x] = x_regs[n]
    barrier
    for k in unrolled(positions):    x_near[k] = x_tile[y, x*tile_w*stride + k]
    for p in unrolled(tile_w):       result_tile[y, x*tile_w + p] = sum(x_near[p*stride + s*dilation] for s in window)
    barrier
    for p in unrolled(tile_w):       Y[row, p*threads_per_row + x] = epilogue(result_tile[y, p*threads_per_row + x])

Thread (x, y) has ``tile_w`` neighbouring outputs of row y. Where that is odd, lanes find them in different banks. Their
windows share the sums of what they have in common, unless points have weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....core.dtypes import DType
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Compare, CompareOp, Expr, Load, Var, conjunction, index
from ....ir.stmt import HardwareAxis, Kernel
from ....te.functions import negated
from ....te.workload import Axis
from ...loop_nest.nest import KERNEL_NAME, kernel_of
from ...problems.row_window import RowWindow
from ...problems.window_steps import steps_along
from ...space.columns import Size
from ...tile.accumulation import register_dtype
from ...tile.delinearize import axis_indices
from ...tile.masked_loads import MaskedLoad, conjuncts
from ...tile.names import FreshNameWriter
from ...tile.register_loads import RegisterLoad, allocate_registers, bounded, load_registers, without_kept_conditions
from ...tile.stage_body import scalar_at
from ..window_parts import Values, accumulate, reduce_parts, store_output


@dataclass(frozen=True, slots=True)
class RowWindowSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``tile_w``, ``threads_per_row`` and ``rows_per_cta`` are the knobs. ``tiles``: the parts of a row. ``positions``:
    positions of the input that a part needs. ``loads``: how many of them a thread loads. ``near``: positions that the
    outputs of one thread read. ``blocks``: thread blocks. ``shared_bytes``: shared memory of a block. ``registers``:
    estimated registers of a thread. ``resident``: how many blocks a multiprocessor runs at once, by that estimate.
    """

    tile_w: Size
    threads_per_row: Size
    rows_per_cta: Size
    tiles: Size
    positions: Size
    loads: Size
    near: Size
    blocks: Size
    shared_bytes: Size
    registers: Size
    resident: Size

    @property
    def threads(self) -> Size:
        """Threads of a block."""
        return self.threads_per_row * self.rows_per_cta


def accumulator_dtype(problem: RowWindow) -> DType:
    """Return the dtype in which windows are reduced."""
    return register_dtype(problem.reduction.tensor.dtype)


def row_window_kernel(problem: RowWindow, sizes: RowWindowSizes) -> Kernel:
    """Return the kernel of one setting."""
    return _RowWindowKernelWriter(problem, sizes).kernel()


class _RowWindowKernelWriter:
    def __init__(self, problem: RowWindow, sizes: RowWindowSizes) -> None:
        self.problem = problem
        self.sizes = sizes
        self.w = FreshNameWriter(problem.names)
        self.tile_columns: int = sizes.threads_per_row * sizes.tile_w

    def kernel(self) -> Kernel:
        problem, w, s = self.problem, self.w, self.sizes
        bounds = [("block", s.blocks, HardwareAxis.GRID_X), ("thread", s.threads, HardwareAxis.THREAD)]
        with w.launch(KERNEL_NAME, bounds, min_blocks=s.resident) as (block, thread):
            x, y = thread % s.threads_per_row, thread // s.threads_per_row
            row = block // s.tiles * s.rows_per_cta + y
            at = {**problem.unit_axes, **axis_indices(row, problem.row_axes)}
            first = block % s.tiles * self.tile_columns
            tiles = self._load_positions(at, first, x, y)
            w.barrier()
            self._store_outputs(at, first, x, y, self._reduce(at, first, x, y, tiles))
        return kernel_of(problem.workload, w.finish())

    def _load_positions(self, at: Mapping[str, Expr], first: Expr, x: Expr, y: Expr) -> dict[MaskedLoad, Buffer]:
        """Load the positions of all rows of the block into shared memory, [row, position] for each sliding load."""
        problem, w, s = self.problem, self.w, self.sizes
        registers: list[tuple[MaskedLoad, RegisterLoad]] = []
        for masked in problem.sliding_loads:
            needed = self._needed(masked)
            buffer = allocate_registers(w, needed, (s.loads,), "", 1).buffer
            registers.append((masked, RegisterLoad(needed, buffer, vector=False)))
        inside = self._inside(at, first, [r.masked.mask for _, r in registers])
        if inside is not None:
            with w.when(inside):
                free = [RegisterLoad(MaskedLoad(m.load), r.buffer, vector=False) for m, r in registers]
                self._load_registers(at, first, x, free)
        with w.when(None if inside is None else negated(inside)):
            self._load_registers(at, first, x, [register for _, register in registers])
        tiles: dict[MaskedLoad, Buffer] = {}
        for masked, register in registers:
            name, shape = f"{masked.load.buffer.name}_tile", (s.rows_per_cta, s.positions)
            tile = w.allocate(name, shape, masked.load.dtype, MemoryScope.SHARED)
            with w.unrolled("n", s.loads) as n:
                position = n * s.threads_per_row + x
                with w.when(self._has(position)):
                    w.store(tile, (y, position), Load(register.buffer, (n,)))
            tiles[masked] = tile
        return tiles

    def _load_registers(self, at: Mapping[str, Expr], first: Expr, x: Expr, registers: Sequence[RegisterLoad]) -> None:
        w, s = self.w, self.sizes
        with w.unrolled("n", s.loads) as n:
            position = n * s.threads_per_row + x
            here = {**at, **self.problem.width.at(first, position)}
            with w.when(self._has(position)):
                for register in registers:
                    load_registers(w, register, (n,), here, "", 1)

    def _inside(self, at: Mapping[str, Expr], first: Expr, masks: Sequence[Expr | None]) -> Expr | None:
        """Return a condition under which all ``masks`` hold at all positions of the part: they hold at its ends. None
        where there are no masks, and where that would not be enough."""
        terms = [term for mask in masks for term in conjuncts(mask)]
        if not all(isinstance(t, Compare) and t.op not in (CompareOp.EQ, CompareOp.NE) for t in terms):
            return None
        ends = (index(0), index(self.sizes.positions - 1))
        points = [{**at, **self.problem.width.at(first, end)} for end in ends]
        found = dict.fromkeys(scalar_at(t, point) for t in terms for point in points)
        return conjunction(*found)

    def _has(self, position: Expr) -> Expr | None:
        """Return the condition that a thread's ``position`` is one of the part; None where all are."""
        s = self.sizes
        return position < s.positions if s.positions % s.threads_per_row else None

    def _needed(self, masked: MaskedLoad) -> MaskedLoad:
        """Return ``masked`` with a mask also for positions that only outputs beyond the end of the row read, and
        without conditions that always hold."""
        problem, s = self.problem, self.sizes
        moving = {problem.width.axis.name, *(a.name for a in problem.reduction.reduce_axes)}
        tile, position = Axis(self.w.fresh("tile"), s.tiles), Axis(self.w.fresh("position"), s.positions)
        at = {**problem.unit_axes, **{a.name: Var(a.name) for a in problem.row_axes}}
        at |= problem.width.at(Var(tile.name) * self.tile_columns, Var(position.name))
        return without_kept_conditions(bounded(masked, moving), at, [*problem.row_axes, tile, position])

    def _reduce(
        self, at: Mapping[str, Expr], first: Expr, x: Expr, y: Expr, tiles: Mapping[MaskedLoad, Buffer]
    ) -> Buffer:
        """Reduce the windows of the thread's outputs. Return the results of the block in shared memory, [row,
        column]."""
        problem, w, s, width = self.problem, self.w, self.sizes, self.problem.width
        near: dict[MaskedLoad, Buffer] = {}
        for masked, tile in tiles.items():
            name = f"{masked.load.buffer.name}_near"
            near[masked] = w.allocate(name, (s.near,), tile.dtype, MemoryScope.REGISTER)
            with w.unrolled("k", s.near) as k:
                w.store(near[masked], (k,), Load(tile, (y, x * (s.tile_w * width.stride) + k)))
        dtype, name = accumulator_dtype(problem), problem.reduction.name
        reduced = self._reduced(at, near) if problem.is_alike(problem.width) else self._accumulated(at, first, x, near)
        results = w.allocate(f"{name}_tile", (s.rows_per_cta, self.tile_columns), dtype, MemoryScope.SHARED)
        for p in range(s.tile_w):
            with w.vectorized("v", 1) as v:
                w.store(results, (y, x * s.tile_w + p + v), reduced(p, v))
        return results

    def _reduced(self, at: Mapping[str, Expr], near: Mapping[MaskedLoad, Buffer]) -> Values:
        """Reduce the windows of the thread's outputs, which share what their parts have in common. Return a function
        from the number of an output to its value."""
        problem, dtype = self.problem, accumulator_dtype(self.problem)

        def position(place: int, v: Expr) -> Expr:
            values: dict[MaskedLoad, Expr] = {m: Load(buffer, (place + v,)) for m, buffer in near.items()}
            return problem.term(values, at, dtype)

        name, steps = f"{problem.reduction.name}_parts", steps_along(problem.width, self.sizes.tile_w, problem.combine)
        return reduce_parts(self.w, steps, problem.combine, position, name=name, dtype=dtype, lanes=1)

    def _accumulated(self, at: Mapping[str, Expr], first: Expr, x: Expr, near: Mapping[MaskedLoad, Buffer]) -> Values:
        """Reduce the windows of the thread's outputs point by point, as ``_reduced`` does otherwise."""
        problem, s, name = self.problem, self.sizes, f"{self.problem.reduction.name}_acc"
        acc = self.w.allocate(name, (s.tile_w,), accumulator_dtype(problem), MemoryScope.REGISTER)
        here = {**at, problem.width.axis.name: first + x * s.tile_w}
        accumulate(self.w, problem, here, near, 0, {}, acc, (), begun=False)
        return lambda number, v: Load(acc, (number + v,))

    def _store_outputs(self, at: Mapping[str, Expr], first: Expr, x: Expr, y: Expr, results: Buffer) -> None:
        """Store the outputs of the block. Only the last part of a row may be shorter than a block has room for."""
        w, columns = self.w, self.problem.columns
        w.barrier()
        if columns % self.tile_columns == 0:
            self._store_part(at, first, x, y, results, whole=True)
            return
        if columns > self.tile_columns:
            with w.when(first + self.tile_columns <= columns):
                self._store_part(at, first, x, y, results, whole=True)
        with w.when(first + self.tile_columns > columns if columns > self.tile_columns else None):
            self._store_part(at, first, x, y, results, whole=False)

    def _store_part(
        self, at: Mapping[str, Expr], first: Expr, x: Expr, y: Expr, results: Buffer, *, whole: bool
    ) -> None:
        """Store the outputs of a part of a row. ``whole``: it is no shorter than a block has room for."""
        problem, w, s, column = self.problem, self.w, self.sizes, self.problem.width.axis
        with w.unrolled("p", s.tile_w) as p:
            place = p * s.threads_per_row + x
            here = {**at, column.name: first + place}
            with w.when(None if whole else here[column.name] < column.extent):
                for stage in problem.outputs:
                    store_output(w, problem, stage, here, Load(results, (y, place)))
