"""Describes the space of plain loops on a GPU (sketch ``cuda_loops``): knobs, constraints, the prior, and the lowering
of any workload. The launch with the most work has the knobs, and the others take the default setting."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.build import Writer
from ....ir.expr import WARP_LANES, Load
from ....ir.rewrite import free_variables, loads_of
from ....ir.stmt import Kernel
from ....te.cost import minimum_bytes, stage_flops
from ....te.workload import Stage, Workload
from ...loop_nest.nest import kernel_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, columns_of_setting, row_of_record
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile.load_analysis import flat_offset
from ...tile.ranges import range_of
from ...tile_sketch import Plan, TileSketch
from ..memory_prior import MemoryTraffic, memory_bound_seconds
from ..occupancy import MOST_BLOCKS, limits_of
from ..peaks import GpuPeaks, gpu_peaks
from ..term_cost import reduction_cost
from .launches import LoopLaunch, TileAxes, heaviest, launches_of, tile_axes
from .points import PointSizes, write_points
from .tiles import TileSizes, write_tiles

YES, NO = "yes", "no"
SECTOR_BYTES = 32
"""Bytes that L2 gives out at least."""
TILE_ARITHMETIC = 2.0
"""Tiles take so many times as long as their arithmetic at its peak. The settings that the prior ranks first took an
H200 1.9 to 3.9 times as long as it said without this factor, for two products and two convolutions."""
LOADS_IN_FLIGHT = 4
"""Loads of a plain loop that a thread waits for together, roughly: the compiler unrolls loops as often."""

QUANTITIES = (
    Quantity("blocks", "blocks", "blocks of the launch with the knobs"),
    Quantity("threads", "threads", "threads of a block"),
    Quantity("waves", "waves", "blocks for each multiprocessor"),
    Quantity("items", "outputs", "outputs of one thread, or of the threads that share an output"),
    Quantity("registers_estimate", "registers", "registers of a thread, roughly"),
    Quantity("shared_bytes", "bytes", "shared memory of a block"),
    Quantity("bytes_in_flight", "bytes", "bytes that the threads of a block load before they use the first"),
    Quantity("reuse", "operations/byte", "operations of a block for each byte that it stages"),
)


@dataclass(frozen=True)
class GpuLoopsPlan(Plan):
    """The launches of any workload on a target."""

    workload: Workload
    target: Target

    @cached_property
    def launches(self) -> tuple[LoopLaunch, ...]:
        return launches_of(self.workload)

    @cached_property
    def main(self) -> LoopLaunch:
        """The launch with the knobs."""
        return heaviest(self.launches)

    @cached_property
    def axes(self) -> TileAxes | None:
        """The tiled axes of the launch with the knobs; None where it has no tiles."""
        return tile_axes(self.main.stage)

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        if self.axes is not None:
            return (
                Knob("threads_y", (4, 8, 16, 32), "how many threads a block has along the rows of its tile"),
                Knob("threads_x", (8, 16, 32), "how many threads a block has along the columns of its tile"),
                Knob("items_y", (1, 2, 4, 8), "how many outputs a thread computes along the rows"),
                Knob("items_x", (1, 2, 4, 8), "how many outputs a thread computes along the columns"),
                Knob("block_k", (4, 8, 16, 32), "how many points of the reduction are staged at a time"),
                Knob("staged", (NO, YES), "whether what a block loads goes through shared memory"),
            )
        shares = (1, 32, 256) if self.main.reduction >= 512 else (1, 32) if self.main.reduction >= 32 else (1,)
        return (
            Knob("threads", (64, 128, 256, 512), "how many threads a block has"),
            Knob("items", (1, 2, 4), "how many outputs a thread, or those that share an output, compute in turn"),
            Knob("threads_per_output", shares, "how many threads share an output: one, a warp, or a block"),
            *(
                (
                    Knob(
                        "interleaved", (0, 1), "whether items are computed side by side, in one loop over the reduction"
                    ),
                )
                if self.shares_loads
                else ()
            ),
        )

    @property
    def shares_loads(self) -> bool:
        """Whether outputs that are computed side by side load something once."""
        stage = self.main.stage
        return stage.reducer is not None and range_of(stage) is None and _shared_loads(stage) > 0

    def tile_sizes(self, columns: Columns) -> TileSizes:
        return TileSizes(
            threads_y=columns.ints("threads_y"),
            threads_x=columns.ints("threads_x"),
            items_y=columns.ints("items_y"),
            items_x=columns.ints("items_x"),
            block_k=columns.ints("block_k"),
            staged=columns.flags("staged", YES).astype(np.int64),
        )

    def point_sizes(self, columns: Columns) -> PointSizes:
        return PointSizes(
            threads=columns.ints("threads"),
            items=columns.ints("items"),
            threads_per_output=columns.ints("threads_per_output"),
            interleaved=columns.ints("interleaved") if self.shares_loads else 0,
        )

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return self._point_constraints() if self.axes is None else self._tile_constraints(self.axes)

    def _point_constraints(self) -> tuple[Constraint, ...]:
        names = ("threads", "items", "threads_per_output")
        return (
            Constraint(
                "more than a warp of threads_per_output are all threads of the block, and items is 1, since all "
                "threads of a block must reach its barriers",
                names,
                self._barriers_are_uniform,
            ),
            *(
                (
                    Constraint(
                        "interleaved is 0 with one item",
                        ("items", "interleaved"),
                        lambda columns: (columns.ints("interleaved") == 0) | (columns.ints("items") > 1),
                    ),
                )
                if self.shares_loads
                else ()
            ),
            Constraint(
                "a launch has at most 2^31 - 1 blocks",
                names,
                lambda columns: self.point_sizes(columns).blocks(self.main.points) <= MOST_BLOCKS,
            ),
        )

    def _barriers_are_uniform(self, columns: Columns) -> Bools:
        sizes = self.point_sizes(columns)
        whole_block = (sizes.threads_per_output == sizes.threads) & (sizes.items == 1)
        uniform: Bools = (sizes.threads_per_output <= WARP_LANES) | whole_block
        return uniform

    def _tile_constraints(self, axes: TileAxes) -> tuple[Constraint, ...]:
        limits = limits_of(self.target)
        tile = ("threads_y", "threads_x", "items_y", "items_x")
        return (
            Constraint(
                "block_k is 4 where nothing is staged",
                ("block_k", "staged"),
                lambda columns: columns.flags("staged", YES) | columns.flags("block_k", 4),
            ),
            Constraint(
                "a multiprocessor has registers for threads_y times threads_x threads with items_y times items_x "
                "accumulators each",
                tile,
                self._accumulators_fit,
            ),
            Constraint(
                "a launch has at most 2^31 - 1 blocks",
                tile,
                lambda columns: self.tile_sizes(columns).blocks(self.main, axes) <= MOST_BLOCKS,
            ),
            Constraint(
                "what the block stages for its tile and block_k points fits in its shared memory",
                (*tile, "block_k", "staged"),
                lambda columns: self.tile_sizes(columns).shared_bytes(self.main, axes) <= limits.shared_bytes_per_block,
            ),
        )

    def _accumulators_fit(self, columns: Columns) -> Bools:
        sizes = self.tile_sizes(columns)
        fit: Bools = limits_of(self.target).resident_blocks(sizes.threads, _tile_registers(sizes), 0) >= 1
        return fit

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        if self.axes is None:
            return np.ones(len(columns), dtype=bool)
        sizes = self.tile_sizes(columns)
        promising: Bools = (sizes.threads >= 64) & (sizes.threads <= 512)
        sides = (
            (sizes.tile_y, sizes.items_y, self.axes.y.extent),
            (sizes.tile_x, sizes.items_x, self.axes.x.extent),
        )
        for tile, items, extent in sides:
            promising &= (tile < 2 * extent) | ((items == 1) & (tile <= 32))
        return promising

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        """Return the time of all launches. Those without knobs take the same in every setting."""
        measured, seconds = gpu_peaks(self.target, peaks), np.zeros(len(columns))
        for launch in self.launches:
            seconds = seconds + memory_bound_seconds(measured, self._traffic(launch, columns, measured))
        return seconds

    def _traffic(self, launch: LoopLaunch, columns: Columns, ceilings: GpuPeaks) -> MemoryTraffic:
        axes, is_main = tile_axes(launch.stage), launch is self.main
        if axes is None:
            return self._point_traffic(launch, self.point_sizes(columns) if is_main else _default_sizes(launch))
        return self._tile_traffic(launch, axes, self.tile_sizes(columns) if is_main else TileSizes(), ceilings)

    def _point_traffic(self, launch: LoopLaunch, sizes: PointSizes) -> MemoryTraffic:
        interleaved = np.asarray(sizes.interleaved) == 1
        once = _shared_loads(launch.stage) * (1 - 1 / sizes.items)
        loaded = len(loads_of(launch.stage.body)) - np.where(interleaved, once, 0.0)
        sequential = np.where(interleaved, 1, sizes.items)
        resident = limits_of(self.target).resident_blocks(sizes.threads, _point_registers(sizes), 0)
        return MemoryTraffic(
            blocks=sizes.blocks(launch.points),
            resident=resident,
            rounds=sequential * -(-launch.visited // (sizes.threads_per_output * LOADS_IN_FLIGHT)),
            memory_bytes=minimum_bytes(self.workload),
            l2_bytes=launch.points
            * (launch.stored.tensor.dtype.bytes + launch.visited * _bytes_per_point(launch.stage, sizes)),
            accesses=launch.points * (launch.visited * loaded + 1) / WARP_LANES,
            operations=stage_flops(launch.stage) / launch.reduction * launch.visited,
        )

    def _tile_traffic(self, launch: LoopLaunch, axes: TileAxes, sizes: TileSizes, ceilings: GpuPeaks) -> MemoryTraffic:
        assert launch.stage.reducer is not None
        cost = reduction_cost(launch.stage.reducer, launch.stage.body, launch.stage.tensor.dtype, ceilings)
        blocks, shared = sizes.blocks(launch, axes), sizes.shared_bytes(launch, axes)
        outer = prod(a.extent for a in launch.stage.reduce_axes if a != axes.k)
        steps = -(-axes.k.extent // sizes.block_k) * outer
        points = blocks * sizes.threads * sizes.items * steps * sizes.block_k
        loads = sum(load.dtype.bytes for load in dict.fromkeys(loads_of(launch.stage.body)))
        # A thread reads a column of its items and a row of them for each point of the reduction.
        operand_bytes = points // sizes.items * (sizes.items_y + sizes.items_x) * loads / 2
        staged_bytes = blocks * steps * sizes.loaded_bytes(launch, axes)
        return MemoryTraffic(
            blocks=blocks,
            resident=limits_of(self.target).resident_blocks(sizes.threads, _tile_registers(sizes), shared),
            rounds=np.where(sizes.staged == 1, steps, steps * sizes.block_k // LOADS_IN_FLIGHT),
            memory_bytes=minimum_bytes(self.workload),
            l2_bytes=launch.points * launch.stored.tensor.dtype.bytes + staged_bytes,
            shared_bytes=operand_bytes,
            accesses=points / sizes.items * (sizes.items_y + sizes.items_x) / WARP_LANES,
            operations=TILE_ARITHMETIC * cost.cycles * ceilings.float32_flops_per_cycle * points,
        )

    def derive(self, columns: Columns) -> Derived:
        width = self.main.stage.tensor.dtype.bytes
        if self.axes is None:
            point = self.point_sizes(columns)
            blocks, threads, items = point.blocks(self.main.points), point.threads, point.items
            shared, registers = np.zeros_like(threads), _point_registers(point)
            flight, reuse = threads * items * width, np.ones_like(threads)
        else:
            tile = self.tile_sizes(columns)
            blocks, threads, items = tile.blocks(self.main, self.axes), tile.threads, tile.items
            shared, registers = tile.shared_bytes(self.main, self.axes), _tile_registers(tile)
            flight = np.where(shared > 0, shared, threads * width)
            reuse = tile.tile_y * tile.tile_x * tile.block_k // np.maximum(flight, 1)
        found = {
            "blocks": blocks,
            "threads": threads,
            "waves": blocks / self.target.threads,
            "items": items,
            "registers_estimate": registers,
            "shared_bytes": shared,
            "bytes_in_flight": flight,
            "reuse": reuse,
        }
        return found

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        w = Writer()
        columns = columns_of_setting(self.knobs, setting)
        for number, launch in enumerate(self.launches):
            self._write(w, launch, columns, _free_prefix(self.workload, number))
        stored = [launch.stored.tensor for launch in self.launches]
        workspace = tuple(b for b in stored if b.name not in self.workload.outputs)
        return kernel_of(self.workload, w.finish(), workspace)

    def _write(self, w: Writer, launch: LoopLaunch, columns: Columns, prefix: str) -> None:
        """Write one launch, with the setting in ``columns`` if it is the one with the knobs."""
        is_main = launch is self.main
        if tile_axes(launch.stage) is not None:
            write_tiles(w, launch, row_of_record(self.tile_sizes(columns), 0) if is_main else TileSizes(), prefix)
            return
        sizes = row_of_record(self.point_sizes(columns), 0) if is_main else _default_sizes(launch)
        write_points(w, launch, sizes, prefix)


def _default_sizes(launch: LoopLaunch) -> PointSizes:
    """Return the sizes of a launch without tiles and knobs."""
    return PointSizes(threads_per_output=WARP_LANES if launch.reduction >= 256 else 1)


def _shared_loads(stage: Stage) -> int:
    """Return how many loads of a point are the same for all outputs."""
    axes = {a.name for a in stage.axes}
    return sum(1 for load in loads_of(stage.body) if not any(free_variables(i) & axes for i in load.indices))


def _point_registers(sizes: PointSizes) -> Ints:
    """Registers of a thread, roughly."""
    registers: Ints = 24 + 4 * sizes.items
    return registers


def _tile_registers(sizes: TileSizes) -> Ints:
    """Registers of a thread, roughly: accumulators, and twice a row and a column of operands."""
    registers: Ints = 32 + sizes.items + 2 * (sizes.items_y + sizes.items_x)
    return registers


def _bytes_per_point(stage: Stage, sizes: PointSizes) -> Floats:
    """Return the bytes of L2 that one point of a stage loads, by the strides between neighbouring threads."""
    found: Floats = np.zeros(np.shape(sizes.threads))
    for load in dict.fromkeys(loads_of(stage.body)):
        alone = _sector_share(load, stage.axes[-1].name if stage.axes else "")
        shared = _sector_share(load, stage.reduce_axes[-1].name if stage.reduce_axes else "")
        found = found + np.where(sizes.threads_per_output == 1, alone, shared)
    return found


def _sector_share(load: Load, axis: str) -> float:
    """Bytes of L2 for one element of ``load`` where neighbouring threads are neighbours along ``axis``: all of a sector
    where they are far apart, and little where a warp loads the same element."""
    offset = flat_offset(load)
    if offset is None:
        return SECTOR_BYTES
    stride = abs(offset.coefficient(axis)) * load.dtype.bytes
    return float(min(SECTOR_BYTES, stride)) if stride else SECTOR_BYTES / WARP_LANES


def _free_prefix(workload: Workload, number: int) -> str:
    """Return what the names of launch ``number`` begin with. The name of no tensor and no axis begins with it."""
    taken = {b.name for b in workload.inputs} | {s.name for s in workload.stages}
    taken |= {a.name for s in workload.stages for a in (*s.axes, *s.reduce_axes)}
    stem = "l"
    while any(name.startswith(stem) and name[len(stem) : len(stem) + 1].isdigit() for name in taken):
        stem += "l"
    return f"{stem}{number}_"


CUDA_LOOPS = TileSketch("cuda_loops", 2, QUANTITIES, GpuLoopsPlan, generic=True)
