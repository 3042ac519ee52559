"""Describes the space of kernels of small windows: knobs, constraints, derived sizes and the prior (sketch
``cuda_window``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.cost import flops, minimum_bytes
from ...problems.window import ReduceWindow, reduce_window_of
from ...problems.window_steps import step_counts
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile.load_analysis import flat_offset
from ...tile_sketch import TileSketch, planned
from ..memory_prior import ACCESS_CYCLES, MemoryTraffic, memory_bound_seconds
from ..occupancy import MOST_BLOCKS
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, WINDOW_QUANTITIES, gpu_columns
from ..reduction_prior import LINE_BYTES
from .kernel import WindowSizes, accumulates_pairs, window_kernel

MAX_VECTOR_BYTES = 16
"""Bytes of the widest access of the hardware."""
PROMISING_VECTOR_BYTES = (4, 8)
"""Wider vectors leave fewer threads with more registers each, and are slower (measured)."""
SPARE_REGISTERS = 15
"""Registers for addresses and constants, roughly (from compiled kernels)."""
PROMISING_REGISTERS = 200
"""Registers of a thread in promising settings, at most: with more, too few threads hide the latency of loads."""
FEWEST_OUTPUTS, MOST_OUTPUTS = 16, 112
"""Output elements of a thread, where there are enough of them (measured: the best settings have so many)."""
WASTE = 1.25
"""For how many more outputs along an axis promising threads have room at most than there are."""
STAGES = (2, 3)
"""Rows of the input in registers at a time, where windows are large."""
PIXEL_INSTRUCTIONS = 3
"""Instructions of a thread for a pixel of one of its channels, roughly."""
BUSY_THREADS = 512
"""Threads that keep a multiprocessor busy."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("vector_bytes", "B", "bytes of the widest access of the windowed input"),
    *WINDOW_QUANTITIES,
)


@dataclass(frozen=True)
class WindowPlan(GpuPlan):
    """The settings of a reduction over windows on a target."""

    problem: ReduceWindow
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        width, height = self.problem.width.axis.extent, self.problem.height.axis.extent
        large = self.problem.is_large
        tiles_w, tiles_h = (tuple(n for n in (1, 2, 4, 7, 8) if n <= extent) for extent in (width, height))
        stages = (
            Knob("stages", (0, *STAGES), "how many rows of the input are in registers at a time; 0: all, loaded first"),
        )
        return (
            Knob("vector_width", self._vector_widths(), "how many neighbouring channels a thread computes"),
            Knob("tile_w", tiles_w, "how many neighbouring outputs along the width a thread computes"),
            Knob(
                "tile_h",
                (*tiles_h, 14) if large and height >= 14 else tiles_h,
                "how many neighbouring outputs along the height a thread computes",
            ),
            Knob("threads", (64, 128, 256), "how many threads a block has"),
            *(stages if large else ()),
        )

    @property
    def defaults(self) -> Mapping[str, KnobValue]:
        return {"stages": 0}

    def _vector_widths(self) -> tuple[int, ...]:
        size, channels = self.problem.position_bytes, self.problem.channel.extent
        return tuple(v for v in (1, 2, 4, 8) if channels % v == 0 and (v == 1 or v * size <= MAX_VECTOR_BYTES))

    def _promising_widths(self) -> tuple[int, ...]:
        (least, most), size = PROMISING_VECTOR_BYTES, self.problem.position_bytes
        narrow = [v for v in self._vector_widths() if v == 1 or v * size <= most]
        return tuple(v for v in narrow if v * size >= least or v == narrow[-1])

    @derived_once
    def sizes(self, columns: Columns) -> WindowSizes:
        problem = self.problem
        knobs = columns.named("vector_width", "tile_w", "tile_h", "stages", "threads")
        width, tile_w, tile_h, stages, threads = knobs.values()
        tile = {problem.channel: width, problem.width.axis: tile_w, problem.height.axis: tile_h}
        all_threads = np.ones(len(columns), np.int64)
        for axis in problem.axes:
            all_threads *= -(-axis.extent // tile.get(axis, 1))
        positions, rows = problem.width.positions(tile_w), problem.height.positions(tile_h)
        held = positions * np.where(stages > 0, np.minimum(stages, rows), rows)
        one_by_one = problem.unwindowed_axes if problem.is_looped else ()
        filter_bytes = sum(
            r.load.dtype.bytes * prod(a.extent for a in problem.reduce_axes_of(r) if a not in one_by_one)
            for r in problem.fixed_loads
        )
        # Rows of outputs that are complete are stored at once, so that only those of a window have accumulators, unless
        # windows have several planes, which come one after the other.
        open_rows = tile_h if problem.is_looped else np.minimum(tile_h, problem.height.window_points)
        pairs = (width > 1) & accumulates_pairs(problem)
        accumulator_bytes = np.where(pairs, 2, max(4, problem.reduction.tensor.dtype.bytes)) * tile_w * open_rows
        # Where rows are in a circular buffer, what is loaded takes whole registers, though it is half of one. Single
        # bytes take at least half of one.
        size = problem.position_bytes
        loaded_bytes = size * held * np.where(width * size < 2, 2, 1) + filter_bytes
        halved = (stages > 0) & (width * size < 4)
        loaded_bytes = np.where(halved, 4 // width * loaded_bytes // size, loaded_bytes)
        words = -(-(loaded_bytes + accumulator_bytes) * width // 4)
        converted = np.where((stages > 0) & (size < 4) & ~pairs, positions * width, 0)  # a row of pixels
        addresses = positions + rows if problem.has_border else 0  # each row and column has one of its own
        registers = SPARE_REGISTERS + words + problem.width.window_points * width + converted + addresses
        return WindowSizes(
            **knobs,
            all_threads=all_threads,
            blocks=-(-all_threads // threads),
            pixels=positions * rows,
            held=held,
            registers=registers,
            shared_bytes=np.zeros_like(threads),
            resident=self.limits.resident_blocks(threads, registers, 0),
        )

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        # The estimate is sound: nearly all kernels beyond it spill (compiled for 3x3, 5x5 and 7x7 windows).
        return (
            self.rule(
                "the registers of a multiprocessor hold the pixels, the filter and the accumulators that a block of "
                "threads needs for its tiles of tile_h by tile_w outputs and vector_width channels; a thread with one "
                "output needs each value once, so that it holds few",
                None,
                lambda s: (s.resident >= 1) | ((s.tile_w == 1) & (s.tile_h == 1)),
            ),
            self.rule(
                "a launch has at most 2^31 - 1 blocks, which a larger vector_width, tile_w, tile_h or threads make "
                "fewer",
                None,
                lambda s: s.blocks <= MOST_BLOCKS,
            ),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        by_rules = self._promising_by_rules(columns)
        if by_rules.any():
            return by_rules
        smallest = columns.flags("tile_w", 1) & columns.flags("tile_h", 1) & columns.flags("threads", 64)
        return smallest & columns.flags("vector_width", self._promising_widths()[0])

    def _promising_by_rules(self, columns: Columns) -> Bools:
        sizes, problem = self.sizes(columns), self.problem
        tile_w, tile_h, threads = sizes.tile_w, sizes.tile_h, sizes.threads
        width, height = problem.width.axis.extent, problem.height.axis.extent
        wasteful = (-(-width // tile_w) * tile_w > WASTE * width) | (-(-height // tile_h) * tile_h > WASTE * height)
        # Threads with few outputs load most pixels again; they are worth it where there are few outputs in all.
        outputs = tile_w * tile_h * sizes.vector_width
        few = prod(a.extent for a in problem.axes) < FEWEST_OUTPUTS * BUSY_THREADS * self.target.threads
        single_row = (tile_h == 1) & (height > 1 and not few)
        share = (outputs <= MOST_OUTPUTS) & ((outputs >= FEWEST_OUTPUTS) | few) & ~single_row
        busy = (sizes.all_threads >= threads * self.target.threads) | (outputs <= FEWEST_OUTPUTS)
        full_block = (sizes.all_threads > 64) | (threads == 64)
        few_registers = sizes.registers <= PROMISING_REGISTERS
        widths = np.isin(sizes.vector_width, self._promising_widths())
        found: Bools = few_registers & ~wasteful & share & busy & full_block & widths
        return found

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        sizes, workload = self.sizes(columns), self.problem.workload
        pixels = sizes.pixels * prod(a.extent for a in self.problem.unwindowed_axes)
        loaded_bytes = sizes.all_threads * pixels * sizes.vector_width * self.problem.position_bytes
        stores = len(self.problem.outputs) * sizes.tile_w * sizes.tile_h
        accesses = len(self.problem.sliding_loads) * pixels + stores + self._scattered_accesses(sizes)
        operations = flops(workload) * (self._overhead(sizes) if self.problem.is_large else 1.0)
        traffic = MemoryTraffic(
            blocks=sizes.blocks,
            resident=sizes.resident,
            memory_bytes=minimum_bytes(workload),
            l2_bytes=loaded_bytes + sum(b.bytes for b in workload.output_buffers),
            accesses=sizes.all_threads * accesses / WARP_LANES,
            operations=operations,
        )
        return memory_bound_seconds(gpu_peaks(self.target, peaks), traffic)

    def _scattered_accesses(self, sizes: WindowSizes) -> Floats:
        """Return what loads of filters whose channels are apart count as: a multiprocessor looks up the cache lines of
        one load after the other, and each channel of a thread is a load of its own."""
        problem, found = self.problem, np.zeros(len(sizes.threads))
        for masked in problem.scattered_loads:
            offset = flat_offset(masked.load)
            assert offset is not None  # see ``reduce_window_of``
            apart = abs(offset.coefficient(problem.channel.name)) * masked.load.dtype.bytes * sizes.vector_width
            lines = np.minimum(WARP_LANES, np.maximum(1.0, WARP_LANES * apart / LINE_BYTES))
            each = prod(a.extent for a in problem.reduce_axes_of(masked)) * sizes.vector_width
            found += each * np.maximum(1.0, lines / ACCESS_CYCLES)
        return found

    def _overhead(self, sizes: WindowSizes) -> Floats:
        """Return the instructions for each point of a large window. What is loaded stays in registers as it is stored,
        so that the filter is converted for each row of outputs. A pixel takes an instruction for that, and about two
        for its address and its mask."""
        points = self.problem.points
        filters = points / sizes.tile_w if self.problem.fixed_loads else 0.0
        outputs = sizes.tile_w * sizes.tile_h
        computed = sizes.all_threads * sizes.vector_width * outputs / prod(a.extent for a in self.problem.axes)
        found: Floats = computed * (
            (self._steps(sizes) + filters + PIXEL_INSTRUCTIONS * sizes.pixels / outputs) / points
        )
        return found

    def _steps(self, sizes: WindowSizes) -> Floats:
        """Return in how many steps a thread reduces the window of an output. Rows of pixels that contribute the same to
        all rows of outputs are reduced once."""
        problem, width = self.problem, self.problem.width
        if not problem.is_alike(problem.height):
            return np.full(len(sizes.tile_w), float(problem.points))
        lines = sizes.pixels / width.positions(sizes.tile_w)
        of_line = step_counts(width, sizes.tile_w, problem.combine)
        found: Floats = problem.height.window_points + of_line * (lines / (sizes.tile_w * sizes.tile_h))
        return found

    def derive(self, columns: Columns) -> Derived:
        sizes = self.sizes(columns)
        widest = max(r.load.dtype.bytes for r in self.problem.sliding_loads)
        return {
            **gpu_columns(self.target, sizes, wanted=self.problem.position_bytes * sizes.vector_width * sizes.held),
            "vector_bytes": np.minimum(sizes.vector_width * widest, MAX_VECTOR_BYTES),
            "outputs": sizes.tile_w * sizes.tile_h,
            "loads_per_output": sizes.pixels / (sizes.tile_w * sizes.tile_h),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return window_kernel(self.problem, self.sizes_of(setting))


CUDA_WINDOW = TileSketch("cuda_window", 3, QUANTITIES, planned(reduce_window_of, WindowPlan))
