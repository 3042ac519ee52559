"""Writes the kernel of a pointwise problem whose threads have a tile of outputs each. A thread loads all that its tile
reads, each chunk of neighbours once, and computes the outputs from registers:

    for group, for chunk of it:  regs[chunk, :] = X[base + chunk :]
    for u in unroll:             Y[tile, u, :] = f(regs …)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, Load, const, index, maximum, minimum
from ....ir.stmt import HardwareAxis, Kernel
from ....te.functions import equal
from ....te.workload import Axis
from ...loop_nest.nest import KERNEL_NAME, kernel_of
from ...problems.pointwise import Pointwise
from ...space.columns import Size
from ...tile.delinearize import axis_indices
from ...tile.masked_loads import MaskedLoad, replace_masked_loads
from ...tile.names import FreshNameWriter
from ...tile.register_loads import allocate_registers, load_registers
from ...tile.stage_body import scalar_at
from .loads import Places, ThreadTile, TileLoads
from .pieces import Loaded, Piece, load_order, pieces_of


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
        self.order = load_order(problem, tile, loads)

    def write(self) -> None:
        w, tile = self.w, self.tile
        self.groups = [
            w.allocate(f"{g.buffer.name}_regs", (max(g.elements, 1),), g.buffer.dtype, MemoryScope.REGISTER)
            for g in self.loads.groups
        ]
        lane = self.problem.lane_axis.name
        self.others = {m: allocate_registers(w, m, (tile.unroll,), lane, tile.width) for m in self.loads.others}
        totals = dict[Load, Buffer]()
        for piece, ahead in zip(pieces_of(self.problem), self.order.ahead, strict=True):
            for loaded in ahead:
                self._load(loaded)
            self._patch(ahead)
            if piece.total is not None and piece.total not in totals:
                name, shape = f"{piece.stage.name}_total", (tile.unroll, tile.width)
                totals[piece.total] = w.allocate(name, shape, piece.total.dtype, MemoryScope.REGISTER)
            for step in range(tile.unroll):
                self._compute(piece, step, None if piece.total is None else totals[piece.total])

    def _load(self, loaded: Loaded) -> None:
        w, tile = self.w, self.tile
        if isinstance(loaded, MaskedLoad):
            for step in range(tile.unroll):
                at, lane = self._point(step, index(0)), self.problem.lane_axis.name
                load_registers(w, self.others[loaded], (index(step),), at, lane, tile.width)
            return
        number, chunk = loaded
        group = self.loads.groups[number]
        begin, regs = scalar_at(group.base.to_expr(), self.at) + group.chunks[chunk], self.groups[number]
        if loaded in self.loads.patches:  # a chunk without any element of the row may be beyond the tensor
            begin = minimum(maximum(begin, index(0)), index(group.buffer.elements - group.lanes))
        with w.vectorized("v", group.lanes) as v:
            w.store(regs, (v + chunk * group.lanes,), Load(_flat(group.buffer), (begin + v,)))

    def _patch(self, ahead: Sequence[Loaded]) -> None:
        """Put what is read instead of elements beyond the ends of rows into the registers of chunks."""
        w, tiles = self.w, self.at[self.problem.lane_axis.name]
        patches = [(c[0], p) for c in ahead if not isinstance(c, MaskedLoad) for p in self.loads.patches.get(c, ())]
        for edge in dict.fromkeys(p.edge for _, p in patches):
            with w.when(equal(tiles, edge)):
                for number, p in patches:
                    if p.edge == edge:
                        group = self.loads.groups[number]
                        at = scalar_at(group.base.to_expr(), self.at) + p.offset
                        value = Load(_flat(group.buffer), (at,)) if p.other is None else p.other
                        w.store(self.groups[number], (index(p.place),), value)

    def _point(self, step: int, lane: Expr) -> dict[str, Expr]:
        """Return the point of an element of the tile."""
        name, tile = self.problem.lane_axis.name, self.tile
        at = {**self.at, name: self.at[name] * tile.width + lane} if name in self.at else dict(self.at)
        return {**at, tile.axis: self.at[tile.axis] * tile.unroll + step} if tile.axis else at

    def _compute(self, piece: Piece, step: int, total: Buffer | None) -> None:
        """Compute a piece for all elements along the row."""
        w, width = self.w, self.tile.width
        loads = {given: self.problem.loads[given] for given in piece.loads}
        period = self._period(step, [m for m in loads.values() if m in self.loads.places])
        stored = total if not piece.last else None
        if piece.last and period > 1:
            name = f"{piece.stage.name}_regs"
            stored = w.allocate(name, (width,), piece.stage.tensor.dtype, MemoryScope.REGISTER)
        prefix = (index(step),) if stored is total else ()
        for phase in range(period):
            with w.vectorized("v", width // period) as v:
                lane = v * period + phase
                values = {given: self._value(masked, step, phase, period, v) for given, masked in loads.items()}
                if piece.total is not None and total is not None:
                    values[MaskedLoad(piece.total)] = Load(total, (index(step), lane))
                value = scalar_at(replace_masked_loads(piece.value, values), self._point(step, lane))
                if stored is None:
                    w.store(_flat(piece.stage.tensor), (self._output(step, lane),), value)
                else:
                    w.store(stored, (*prefix, lane), value)
        if piece.last and stored is not None:
            with w.vectorized("v", width) as v:
                w.store(_flat(piece.stage.tensor), (self._output(step, v),), Load(stored, (v,)))

    def _value(self, masked: MaskedLoad, step: int, phase: int, period: int, v: Expr) -> Expr:
        """Return what a load gives to element ``v`` of those that are ``period`` apart, from ``phase`` on."""
        if masked in self.others:
            return self.others[masked].value((index(step),), v * period + phase)
        numbers, places = (of[step, phase::period] for of in self.loads.places[masked])
        if numbers[0] < 0:
            return masked.other or const(0, masked.load.dtype)
        stride = int(places[1] - places[0]) if len(places) > 1 else 0
        return Load(self.groups[numbers[0]], (v * stride + int(places[0]),))

    def _output(self, step: int, lane: Expr) -> Expr:
        """Return the offset of an output in its tensor."""
        at = self._point(step, lane)
        total: Expr = index(0)
        for axis in self.problem.axes:
            total = total * axis.extent + at[axis.name]
        return total

    def _period(self, step: int, loads: Sequence[MaskedLoad]) -> int:
        """Return the least number of neighbours such that elements so far apart have evenly spaced places."""
        return next(
            period
            for period in range(1, self.tile.width + 1)
            if self.tile.width % period == 0
            and all(
                _is_even(*(of[step, phase::period] for of in self.loads.places[masked]))
                for masked in loads
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
