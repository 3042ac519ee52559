"""Writes the kernel of windows that are long along one axis. A block has ``outputs`` neighbouring outputs of a row, in
several phases. It goes through the taps, some of which are in shared memory at a time with all positions they meet::

    for each stage of block_k taps:
        position_tile[j, phase] = X[row, first + j, phase] for j in range(outputs + block_k - 1);  tap_tile[k] = H[k]
        barrier
        for each k_unroll taps, for k in unrolled(k_unroll):
            near[(k + tile_w - 1) % k_unroll] = position_tile[own*tile_w + k + tile_w - 1, phase]
            for p in unrolled(tile_w):  acc[p] += near[(k + p) % k_unroll] * tap_tile[k]
        barrier
    Y[row, first + own*tile_w + p, phase] = epilogue(acc[p])

A thread reads each position of its own from shared memory once, into registers that rotate, and for each tap another
one. It is multiplied for ``tile_w`` outputs. Phases are the columns of a tensor whose windows move along another axis,
or what a dilated window leaves out. Groups of threads may share the taps of a stage, and add up their sums at the end.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from math import gcd, prod
from typing import TypeVar

from ....core.dtypes import DType
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Binary, Expr, Load, Var, conjunction, index, minimum
from ....ir.stmt import Kernel
from ....te.functions import cast
from ....te.workload import Axis
from ...loop_nest.nest import KERNEL_NAME, identity, kernel_of
from ...problems.long_window import LongWindow
from ...space.columns import Size
from ...tile.accumulation import register_dtype
from ...tile.delinearize import axis_indices, delinearize
from ...tile.masked_loads import MaskedLoad, conjuncts
from ...tile.names import FreshNameWriter
from ...tile.pieces import lanes_of_piece
from ...tile.register_loads import RegisterLoad, allocate_registers, bounded, load_registers, without_kept_conditions
from ...tile.stage_body import scalar_at
from ..launch_axes import warp_axes
from ..window_parts import store_output

REGISTER = MemoryScope.REGISTER
Number = TypeVar("Number", int, Expr)

VECTOR_BYTES = 16
"""Bytes of taps that are read from shared memory at once."""
LOADS, LOADED_VECTORS = 8, 4
"""Positions that a thread loads before it stores the first one to shared memory, or vectors of them."""
TAP_UNIT = 16
"""Taps of a stage are a multiple of it, so that the first position of the next one is as well aligned."""
DIRECT_LANES = 16
"""From so many phases on, outputs are stored from registers: neighbouring lanes have neighbouring ones."""


@dataclass(frozen=True, slots=True)
class LongWindowSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``tile_w``, ``lanes``, ``threads``, ``block_k``, ``k_unroll``, ``warps_k``, ``scanned`` and ``mma`` are knobs.
    ``own``: how many threads of a group have outputs of one phase. ``stage``: taps of a stage, but for the last one;
    ``stages`` of them are full. ``rest``: taps of the last stage, 0 where it is full. ``tiles``: the parts of a row.
    ``lane_tiles``: the parts of its phases. ``loads``: positions that a thread loads for a stage. ``blocks``: thread
    blocks. ``staged``: whether outputs go through shared memory. ``shared_bytes``: shared memory of a block.
    ``registers``: estimated registers of a thread. ``resident``: how many blocks a multiprocessor runs at once, by
    that estimate.
    """

    tile_w: Size
    lanes: Size
    threads: Size
    block_k: Size
    k_unroll: Size
    warps_k: Size
    scanned: Size
    mma: Size
    own: Size
    stage: Size
    stages: Size
    rest: Size
    tiles: Size
    lane_tiles: Size
    loads: Size
    blocks: Size
    staged: Size
    shared_bytes: Size
    registers: Size
    resident: Size

    @property
    def outputs(self) -> Size:
        """Outputs of a phase that a block computes."""
        return self.own * self.tile_w


def accumulator_dtype(problem: LongWindow) -> DType:
    """Return the dtype in which windows are reduced."""
    return register_dtype(problem.reduction.tensor.dtype)


def tap_width(problem: LongWindow) -> int:
    """Return how many taps are read from shared memory at once."""
    return max(1, VECTOR_BYTES // max((tap.dtype.bytes for tap in problem.taps), default=VECTOR_BYTES))


def bank_sides(problem: LongWindow) -> int:
    """Return among how many parts of shared memory the positions of a tile are dealt out."""
    stride = problem.width.stride
    return stride if stride % 2 == 0 else 1


class LongWindowWriter:
    """Writes the launch of one setting."""

    def __init__(self, problem: LongWindow, sizes: LongWindowSizes) -> None:
        self.problem = problem
        self.sizes = sizes
        self.w = FreshNameWriter(problem.names)

    def kernel(self) -> Kernel:
        """Return the kernel."""
        problem, w, s = self.problem, self.w, self.sizes
        with w.launch(KERNEL_NAME, warp_axes(s.blocks, s.threads // WARP_LANES)) as (block, warp, lane):
            self.thread = warp * WARP_LANES + lane
            self._place(block)
            self._allocate_accumulators()
            self._allocate_tiles()
            with ExitStack() as loops:
                for axis in (a for a in problem.outer_axes if a.extent > 1):
                    self.row[axis.name] = loops.enter_context(w.loop(axis.name, axis.extent))
                if s.stages:
                    with w.loop("stage", s.stages) as stage:
                        self._stage(stage * s.stage, s.stage)
                if s.rest:
                    self._stage(index(s.stages * s.stage), s.rest)
            if s.staged:
                self._store_results()
            else:
                self._store_registers()
        return kernel_of(problem.workload, w.finish())

    def _place(self, block: Expr) -> None:
        """Find out which outputs are those of the block and of the thread."""
        problem, s, axis = self.problem, self.sizes, self.problem.width.axis.name
        rows = prod(a.extent for a in problem.row_axes)
        row, residue, tile, lane_tile = delinearize(block, (rows, problem.residues, s.tiles, s.lane_tiles))
        self.row: dict[str, Expr] = {**problem.unit_axes, **axis_indices(row, problem.row_axes)}
        self.tile_indices = (residue, tile, lane_tile)
        self.first_lane = lane_tile * s.lanes
        self.first = tile * (s.outputs * problem.width.dilation) + residue
        if problem.lane_axis is None:
            self.first = self.first + self.first_lane
        group_threads, active = s.threads // s.warps_k, s.own * s.lanes
        self.group, own = delinearize(self.thread, (s.warps_k, group_threads))
        self.is_active = own < active if active < group_threads else None
        own = own if self.is_active is None else minimum(own, index(active - 1))
        side = gcd(s.lanes, WARP_LANES)
        high, self.own, low = delinearize(own, (s.lanes // side, s.own, side))
        self.phase = high * side + low
        self.axis = axis

    def _output(self, number: Expr, phase: Expr) -> tuple[dict[str, Expr], list[Expr]]:
        """Return the axes at an output of the block, and the conditions on which there is one."""
        problem, s, lane_axis = self.problem, self.sizes, self.problem.lane_axis
        extent, dilation = problem.width.axis.extent, problem.width.dilation
        at, exists = dict(self.row), list[Expr]()
        at[self.axis] = self.first + number * dilation
        if lane_axis is not None:
            at[lane_axis.name] = self.first_lane + phase
        elif s.lanes > 1:
            at[self.axis] = at[self.axis] + phase
        if extent % (s.outputs * dilation) or problem.phases % s.lanes:
            exists.append(at[self.axis] < extent)
        if problem.phases % s.lanes:
            exists.append(self.first_lane + phase < problem.phases)
        return at, exists

    # --- stages

    def _allocate_accumulators(self) -> None:
        problem, w, s = self.problem, self.w, self.sizes
        self.acc = w.allocate(f"{problem.reduction.name}_acc", (s.tile_w,), accumulator_dtype(problem), REGISTER)
        with w.unrolled("p", s.tile_w) as p:
            w.store(self.acc, (p,), identity(problem.combine, self.acc.dtype))

    def _allocate_tiles(self) -> None:
        """Allocate shared memory for the positions, [position, phase], and the taps of a stage."""
        problem, w, s = self.problem, self.w, self.sizes
        taps, sides = s.stage if s.stages else s.rest, bank_sides(problem)
        unit = sides * max(VECTOR_BYTES // m.load.dtype.bytes for m in problem.loaded.values())
        elements = -(-self._positions(taps) * s.lanes // unit) * unit
        self.position_values = problem.positions
        self.position_tiles = {
            b: w.allocate("position_tile", (elements,), b.dtype, MemoryScope.SHARED) for b in problem.positions
        }
        self.tap_tiles = {
            b: w.allocate("tap_tile", (taps * (s.lanes if problem.has_lanes(b) else 1),), b.dtype, MemoryScope.SHARED)
            for b in problem.taps
        }
        self._allocate_registers()

    def _allocate_registers(self) -> None:
        """Allocate what else a stage needs."""
        problem, w, s = self.problem, self.w, self.sizes
        self.near = {b: w.allocate("near", (s.k_unroll,), b.dtype, REGISTER) for b in problem.positions}
        width = tap_width(problem)
        self.tap_regs = {b: w.allocate("tap_regs", (width,), b.dtype, REGISTER) for b in problem.taps}

    def _positions(self, taps: int) -> int:
        """Return how many positions of a phase the outputs of a block see by so many taps."""
        return int((self.sizes.outputs - 1) * self.problem.width.stride + taps)

    def _stage(self, first_tap: Expr, taps: int) -> None:
        """Reduce ``taps`` points of windows from ``first_tap`` on."""
        self.w.barrier()
        self._load_positions(first_tap, taps)
        self._load_taps(first_tap, taps)
        self.w.barrier()
        self._reduce_stage(first_tap, taps)

    def _reduce_stage(self, first_tap: Expr, taps: int) -> None:
        """Reduce the points of a stage, a number of them in each group of threads."""
        w, s = self.w, self.sizes
        unit = max(tap_width(self.problem), bank_sides(self.problem))
        share = taps // (s.warps_k * unit) * unit if s.warps_k > 1 else taps
        if share:
            self._reduce(first_tap, self.group * share, share)
        if taps > share * s.warps_k:
            with w.when(self.group < 1 if s.warps_k > 1 else None):
                self._reduce(first_tap, index(share * s.warps_k), taps - share * s.warps_k)

    def _load_positions(self, first_tap: Expr, taps: int) -> None:
        """Load what outputs of the block see by these taps into shared memory, by the widest vectors of neighbours that
        are aligned and all inside or all outside of a tensor."""
        w, s = self.w, self.sizes
        moved, place, at = self._moved_loads(first_tap)
        widths = [lanes_of_piece(m, place, VECTOR_BYTES // m.load.dtype.bytes) for m in moved.values()]
        elements, width = self._positions(taps) * s.lanes, min(widths)
        vectors = -(-elements // width)
        full, most = vectors // s.threads, LOADS if width == 1 else LOADED_VECTORS
        count = min(-(-vectors // s.threads), most)
        registers = {b: allocate_registers(w, m, (count,), place, width) for b, m in moved.items()}

        def pass_on(begin: Expr, count: int, whole: bool) -> None:
            """Load ``count`` vectors of the thread; ``whole``: there are so many for all threads."""
            with w.unrolled("n", count) as n:
                number = (begin + n) * s.threads + self.thread
                with w.when(None if whole else number < vectors):
                    for register in registers.values():
                        load_registers(w, register, (n,), {**at, place: number * width}, place, width)
            with w.unrolled("n", count) as n:
                number = (begin + n) * s.threads + self.thread
                with w.when(None if whole else number < vectors):
                    self._store_positions(registers, first_tap, n, number * width, width)

        if full // most > 1:
            with w.loop("loads", full // most) as group:
                pass_on(group * most, most, True)
        elif full >= most:
            pass_on(index(0), most, True)
        done = full // most * most
        if full > done:
            pass_on(index(done), full - done, True)
        if vectors > full * s.threads:
            pass_on(index(full), 1, False)

    @property
    def _stores_vectors(self) -> bool:
        """Whether neighbours are neighbours in shared memory, too."""
        return bank_sides(self.problem) == 1

    def _store_positions(
        self, registers: Mapping[Buffer, RegisterLoad], first_tap: Expr, n: Expr, number: Expr, width: int
    ) -> None:
        """Store the ``n``-th vector of a thread, from element ``number`` of the tiles on."""
        w, together = self.w, width if self._stores_vectors else 1
        for slot, tile in self.position_tiles.items():
            for first in range(0, width, together):
                with w.vectorized("v", together) as v:
                    at = {**self.row, **self._position_at(self.first, self.first_lane, first_tap, number + first + v)}

                    def loaded(load: Load, element: Expr = v + first) -> Expr:
                        given = registers.get(load.buffer)
                        return load if given is None else given.value((n,), element)

                    value = scalar_at(self.position_values[slot], at, loaded)
                    w.store(tile, (self._place_of(number + first) + v,), value)

    def _position_at(self, first: Expr, first_lane: Expr, first_tap: Expr, number: Expr) -> dict[str, Expr]:
        """Return the axes at element ``number`` of a tile of positions: the axis of the window, and lanes."""
        width, lanes, lane_axis = self.problem.width, self.sizes.lanes, self.problem.lane_axis
        position = first_tap * width.dilation
        if lane_axis is not None:
            own, phase = delinearize(number, (2, lanes)) if lanes > 1 else (number, index(0))
            return {**width.at(first, position + own * width.dilation), lane_axis.name: first_lane + phase}
        if lanes == width.dilation:  # the phases are all next to each other
            return width.at(first, position + number)
        own, phase = delinearize(number, (2, lanes)) if lanes > 1 else (number, index(0))
        return width.at(first, position + own * width.dilation + phase)

    def _moved_loads(self, first_tap: Expr) -> tuple[dict[Buffer, MaskedLoad], str, dict[str, Expr]]:
        """Return the loads of positions on variables of a tile: the place of an element in it, whose name is the second
        result, and others, whose values are the third. Masks have also what only outputs beyond the last ones see, but
        no conditions that always hold."""
        problem, s, width = self.problem, self.sizes, self.problem.width
        lane_axis = problem.lane_axis
        moving = {*width.names, *(() if lane_axis is None else (lane_axis.name,))}
        elements = self._positions(problem.window.extent) * s.lanes + VECTOR_BYTES
        extents = {"residue": problem.residues, "tile": s.tiles, "lane_tile": s.lane_tiles, "place": elements}
        axes = [Axis(self.w.fresh(f"{name}#"), extent) for name, extent in extents.items()]
        residue, tile, lane_tile, place = (Var(a.name) if a.extent > 1 else index(0) for a in axes)
        tap = Var(self.w.fresh("tap#"))
        first = tile * (s.outputs * width.dilation) + residue
        first = first if lane_axis is not None else first + lane_tile * s.lanes
        others = [*problem.row_axes, *problem.outer_axes]
        fixed = {**problem.unit_axes, **{a.name: Var(a.name) for a in others}}
        anywhere, here = (
            {**fixed, **self._position_at(first, lane_tile * s.lanes, t, place)} for t in (index(0), tap * TAP_UNIT)
        )

        def there(load: Load) -> Load:
            return replace(load, indices=tuple(scalar_at(i, here) for i in load.indices))

        moved = dict[Buffer, MaskedLoad]()
        for marker, given in problem.loaded.items():
            masked = without_kept_conditions(bounded(given, moving), anywhere, [*others, *axes])
            other = there(masked.other) if isinstance(masked.other, Load) else masked.other
            terms = dict.fromkeys(scalar_at(t, here) for t in conjuncts(masked.mask))
            moved[marker] = MaskedLoad(there(masked.load), conjunction(*terms), other)
        *tile_axes, place_axis = (a.name for a in axes)
        places = dict(zip(tile_axes, self.tile_indices, strict=True))
        return moved, place_axis, {**self.row, **places, tap.name: first_tap // TAP_UNIT}

    def _load_taps(self, first_tap: Expr, taps: int) -> None:
        problem, w, s = self.problem, self.w, self.sizes
        for slot, tile in self.tap_tiles.items():
            lanes = s.lanes if problem.has_lanes(slot) else 1
            with w.shared_out("k", taps * lanes, s.threads, self.thread) as number:
                own, phase = delinearize(number, (2, lanes)) if lanes > 1 else (number, index(0))
                at = {**self.row, problem.window.name: first_tap + own}
                if problem.lane_axis is not None:
                    at[problem.lane_axis.name] = minimum(self.first_lane + phase, index(problem.phases - 1))
                w.store(tile, (number,), scalar_at(problem.taps[slot], at))

    # --- arithmetic

    def _reduce(self, first_tap: Expr, begin: Expr, taps: int) -> None:
        """Reduce ``taps`` points of the stage, from number ``begin`` on."""
        w, s, stride = self.w, self.sizes, self.problem.width.stride
        for k in range((s.tile_w - 1) * stride):
            self._read_position(begin, k)
        if taps >= s.k_unroll:
            with w.loop("k", taps // s.k_unroll) as step:
                self._multiply(first_tap, begin + step * s.k_unroll, s.k_unroll)
        if taps % s.k_unroll:
            self._multiply(first_tap, begin + taps // s.k_unroll * s.k_unroll, taps % s.k_unroll)

    def _place_of(self, number: Expr) -> Expr:
        """Return where element ``number`` of a tile of positions is. If an even number of them lies between outputs,
        those at odd places follow the others, so that the lanes of a warp read from different banks."""
        sides = bank_sides(self.problem)
        if sides == 1:
            return number
        own, side = delinearize(number, (2, sides))
        return side * (next(iter(self.position_tiles.values())).elements // sides) + own

    def _read_position(self, begin: Expr, k: int) -> None:
        """Read the position of the thread's first output at tap ``k`` behind ``begin``."""
        s = self.sizes
        own = self.own * (s.tile_w * self.problem.width.stride) + begin + k
        place = self._place_of(own) if s.lanes == 1 else own * s.lanes + self.phase
        for slot, tile in self.position_tiles.items():
            self.w.store(self.near[slot], (index(k % s.k_unroll),), Load(tile, (place,)))

    def _multiply(self, first_tap: Expr, begin: Expr, taps: int) -> None:
        """Reduce ``taps`` points, ``k_unroll`` at most, from number ``begin`` of the stage on."""
        problem, w, s, stride = self.problem, self.w, self.sizes, self.problem.width.stride
        at_output, _ = self._output(self.own * s.tile_w, self.phase)
        width = tap_width(problem)
        for k in range(taps):
            if k % width == 0:
                self._read_taps(begin + k, min(width, taps - k))
            self._read_position(begin, k + (s.tile_w - 1) * stride)
            for p in range(s.tile_w):
                values = {b: Load(near, (index((k + p * stride) % s.k_unroll),)) for b, near in self.near.items()}
                values |= {b: Load(regs, (index(k % width),)) for b, regs in self.tap_regs.items()}
                at = {**at_output, problem.window.name: first_tap + begin + k}
                at[self.axis] = at[self.axis] + p * problem.width.dilation

                def known(load: Load, values: Mapping[Buffer, Load] = values) -> Expr:
                    return values.get(load.buffer, load)

                term = cast(scalar_at(problem.term_body, at, known), self.acc.dtype)
                w.store(self.acc, (index(p),), Binary(problem.combine, Load(self.acc, (index(p),)), term))

    def _read_taps(self, begin: Expr, taps: int) -> None:
        w, s = self.w, self.sizes
        for slot, tile in self.tap_tiles.items():
            regs, done = self.tap_regs[slot], 0
            if self.problem.has_lanes(slot):
                for n in range(taps):
                    w.store(regs, (index(n),), Load(tile, ((begin + n) * s.lanes + self.phase,)))
                continue
            while done < taps:
                together = 1 << ((taps - done).bit_length() - 1)
                with w.vectorized("v", together) as v:
                    w.store(regs, (v + done,), Load(tile, (begin + done + v,)))
                done += together

    # --- outputs

    def _store_registers(self) -> None:
        for p in range(self.sizes.tile_w):
            at, exists = self._output(self.own * self.sizes.tile_w + p, self.phase)
            with self.w.when(self.is_active, *exists):
                for stage in self.problem.outputs:
                    store_output(self.w, self.problem, stage, at, Load(self.acc, (index(p),)))

    def _result_place(self, number: Number) -> Number:
        """Return where result ``number`` of a group is in shared memory."""
        return number

    def _write_results(self, results: Buffer) -> None:
        """Write the accumulators to shared memory, [group, output and phase]."""
        w, s = self.w, self.sizes
        with w.when(self.is_active):
            for p in range(s.tile_w):
                place = (self.own * s.tile_w + p) * s.lanes + self.phase
                w.store(results, (self.group, place), Load(self.acc, (index(p),)))

    def _store_results(self) -> None:
        """Store outputs from shared memory, [group, output, phase], where groups of threads add up their sums."""
        problem, w, s = self.problem, self.w, self.sizes
        elements = s.outputs * s.lanes
        shape = (s.warps_k, self._result_place(elements - 1) + 1)
        results = w.allocate(f"{problem.reduction.name}_tile", shape, self.acc.dtype, MemoryScope.SHARED)
        self._write_results(results)
        w.barrier()
        with w.shared_out("n", elements, s.threads, self.thread) as number:
            own, phase = delinearize(number, (2, s.lanes)) if s.lanes > 1 else (number, index(0))
            at, exists = self._output(own, phase)
            if problem.lane_axis is None and s.lanes == problem.width.dilation:
                at[self.axis] = self.first + number
                exists = [at[self.axis] < problem.width.axis.extent] if exists else []
            parts: list[Expr] = [Load(results, (index(g), self._result_place(number))) for g in range(s.warps_k)]
            value = reduce(lambda a, b: Binary(problem.combine, a, b), parts)
            with w.when(*exists):
                for stage in problem.outputs:
                    store_output(w, problem, stage, at, value)
