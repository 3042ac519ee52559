"""Writes the kernel of a pointwise problem whose threads have a tile of outputs each. A thread loads all that its tile
reads, each chunk of neighbours once, and computes the outputs from registers:

    for group, for chunk of it:  regs[chunk, :] = X[base + chunk :]
    for u in unroll:             Y[tile, u, :] = f(regs …)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, Load, const, index
from ....ir.stmt import HardwareAxis, Kernel
from ....te.workload import Axis, Stage
from ...loop_nest.nest import KERNEL_NAME, kernel_of
from ...problems.pointwise import Pointwise
from ...space.columns import Size
from ...tile.delinearize import axis_indices
from ...tile.masked_loads import MaskedLoad, replace_masked_loads
from ...tile.names import FreshNameWriter
from ...tile.register_loads import RegisterLoad, allocate_registers, load_registers
from ...tile.stage_body import scalar_at
from .loads import Places, ThreadTile, TileLoads


@dataclass(frozen=True, slots=True)
class ThreadTileSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``tiles``: tiles of outputs, one for each thread. ``blocks``: thread blocks. ``registers``: estimated registers of a
    thread. ``shared_bytes``: shared memory of a block, 0. ``resident``: how many blocks a multiprocessor runs at once,
    by that estimate. ``loaded_bytes``: bytes that a thread loads. ``cycles``: those in which a multiprocessor does the
    loads and stores of a warp. ``instructions``: what a thread does besides.
    """

    tiles: Size
    threads: Size
    blocks: Size
    registers: Size
    shared_bytes: Size
    resident: Size
    loaded_bytes: Size
    cycles: Size
    instructions: Size


def tiled_axes(problem: Pointwise, tile: ThreadTile) -> tuple[Axis, ...]:
    """Return the axes that count the tiles of a problem."""
    sizes = {problem.lane_axis.name: tile.width, tile.axis: tile.unroll}
    return tuple(Axis(a.name, a.extent // sizes.get(a.name, 1)) for a in problem.axes)


def thread_tile_kernel(problem: Pointwise, tile: ThreadTile, loads: TileLoads, tiles: int, threads: int) -> Kernel:
    """Return the kernel of one setting: ``tiles`` tiles, one for each thread of blocks of ``threads``."""
    buffers = (*problem.workload.inputs, *(s.tensor for s in problem.stages))
    w = FreshNameWriter({b.name for b in buffers} | {a.name for a in problem.axes})
    bounds = [("block", -(-tiles // threads), HardwareAxis.GRID_X), ("thread", threads, HardwareAxis.THREAD)]
    with w.launch(KERNEL_NAME, bounds) as (block, thread):
        number = block * threads + thread
        with w.when(number < tiles if tiles % threads else None):
            _ThreadTileWriter(problem, tile, loads, w, axis_indices(number, tiled_axes(problem, tile))).write()
    return kernel_of(problem.workload, w.finish())


class _ThreadTileWriter:
    """Writes what a thread does for its tile. ``at``: axis -> which of the tiles along it is the thread's."""

    def __init__(
        self, problem: Pointwise, tile: ThreadTile, loads: TileLoads, w: FreshNameWriter, at: Mapping[str, Expr]
    ) -> None:
        self.problem, self.tile, self.loads, self.w, self.at = problem, tile, loads, w, at

    def write(self) -> None:
        w, lane = self.w, self.problem.lane_axis.name
        groups: list[Buffer | None] = []
        for g in self.loads.groups:
            regs = None
            if g.chunks:
                regs = w.allocate(f"{g.buffer.name}_regs", (g.elements,), g.buffer.dtype, MemoryScope.REGISTER)
                flat, base = replace(g.buffer, shape=(g.buffer.elements,)), scalar_at(g.base.to_expr(), self.at)
                for n, offset in enumerate(g.chunks):
                    with w.vectorized("v", g.lanes) as v:
                        w.store(regs, (v + n * g.lanes,), Load(flat, (base + offset + v,)))
            groups.append(regs)
        others = {
            masked: allocate_registers(w, masked, (self.tile.unroll,), lane, self.tile.width)
            for masked in self.loads.others
        }
        for registers in others.values():
            for step in range(self.tile.unroll):
                load_registers(w, registers, (index(step),), self._point(step, index(0)), lane, self.tile.width)
        for stage in self.problem.stages:
            for step in range(self.tile.unroll):
                self._compute(stage, step, groups, others)

    def _point(self, step: int, lane: Expr) -> dict[str, Expr]:
        """Return the point of an element of the tile."""
        name, tile = self.problem.lane_axis.name, self.tile
        at = {**self.at, name: self.at[name] * tile.width + lane} if name in self.at else dict(self.at)
        return {**at, tile.axis: self.at[tile.axis] * tile.unroll + step} if tile.axis else at

    def _compute(
        self,
        stage: Stage,
        step: int,
        groups: list[Buffer | None],
        others: Mapping[MaskedLoad, RegisterLoad],
    ) -> None:
        w, width = self.w, self.tile.width
        period = self._period(step)
        result = stage.tensor if period == 1 else None
        if result is None:
            result = w.allocate(f"{stage.tensor.name}_regs", (width,), stage.tensor.dtype, MemoryScope.REGISTER)
        for phase in range(period):
            with w.vectorized("v", width // period) as v:
                lane = v * period + phase
                values: dict[MaskedLoad, Expr] = {}
                for given, masked in self.problem.loads.items():
                    if masked in others:
                        values[given] = others[masked].value((index(step),), lane)
                        continue
                    numbers, places = (of[step, phase::period] for of in self.loads.places[masked])
                    regs = groups[numbers[0]] if numbers[0] >= 0 else None
                    if regs is None:
                        values[given] = masked.other or const(0, masked.load.dtype)
                    else:
                        stride = int(places[1] - places[0]) if len(places) > 1 else 0
                        values[given] = Load(regs, (v * stride + int(places[0]),))
                value = scalar_at(replace_masked_loads(stage.body, values), self._point(step, lane))
                if period == 1:
                    w.store(_flat(stage.tensor), (self._output(step, lane),), value)
                else:
                    w.store(result, (lane,), value)
        if period > 1:
            with w.vectorized("v", width) as v:
                w.store(_flat(stage.tensor), (self._output(step, v),), Load(result, (v,)))

    def _output(self, step: int, lane: Expr) -> Expr:
        """Return the offset of an output in its tensor."""
        at = self._point(step, lane)
        total: Expr = index(0)
        for axis in self.problem.axes:
            total = total * axis.extent + at[axis.name]
        return total

    def _period(self, step: int) -> int:
        """Return the least number of neighbours such that elements so far apart have evenly spaced places."""
        return next(
            period
            for period in range(1, self.tile.width + 1)
            if self.tile.width % period == 0
            and all(
                _is_even(numbers[step, phase::period], places[step, phase::period])
                for numbers, places in self.loads.places.values()
                for phase in range(period)
            )
        )


def _is_even(numbers: Places, places: Places) -> bool:
    """Return whether elements are in one group, in evenly spaced places."""
    if numbers[0] < 0:
        return bool((numbers < 0).all())
    return bool((numbers == numbers[0]).all() and len(set(np.diff(places).tolist())) <= 1)


def _flat(buffer: Buffer) -> Buffer:
    return replace(buffer, shape=(buffer.elements,))
