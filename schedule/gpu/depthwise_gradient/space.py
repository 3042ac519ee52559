"""Describes the space of kernels of gradients of depthwise convolutions towards filters: knobs, constraints, derived
sizes and the prior (sketch ``cuda_depthwise_wgrad``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.cost import minimum_bytes
from ...problems.depthwise_gradient import MMA_ROWS, DepthwiseGradient, depthwise_gradient_of
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch, planned
from ..memory_prior import ACCESS_CYCLES, MemoryTraffic, memory_bound_seconds
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..reduction_prior import LINE_BYTES, bytes_for_run
from .kernel import depthwise_gradient_kernel
from .mma_tiles import COLUMN_LANES, products_bytes
from .tiles import VECTOR_BYTES, DepthwiseGradientSizes, aligned_row, held_rows

SPARE_REGISTERS = 24
"""Registers for addresses and constants, roughly (from compiled kernels)."""
MOST_SHARED_BYTES = 64 << 10
"""Shared memory of a block, at most."""
MOST_PRODUCTS = 4096
"""Products of a tile, at most: they are all written out."""
TILE_HEIGHTS, MMA_COLUMNS = (1, 2, 4, 7, 8, 14, 16, 24, 28, 32, 56), (4, 8)
"""Rows of a tile, and columns of a thread where matrix instructions multiply."""
_MMA = Knob("mma", (0, 1), "whether mma.sync multiplies rows of the image and of the gradient")
WIDEST_VECTOR_BYTES = 8
"""Bytes of the vectors of channels, at most."""
ROUND_INSTRUCTIONS, END_INSTRUCTIONS = 60, 6
"""Instructions of a thread for where its tiles lie, and for each accumulator at the end, roughly."""
MMA_INSTRUCTIONS = 10
"""A matrix instruction takes a part of a multiprocessor as long as so many others, with those that form its operand."""
LAST_SECONDS = 1e-6
"""What the second launch takes besides the partial sums."""
INSTRUCTION_OPERATIONS = 2
"""An instruction takes as long as a fused multiplication and addition, which is so many operations."""
NEAR = 1.1
"""How much slower than the best one a promising setting may be by the prior."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("partials", "partials", "how many partial sums of a tap there are, in different blocks"),
    Quantity("loads_per_pixel", "loads", "elements loaded for each pixel of the gradient"),
)


@dataclass(frozen=True)
class DepthwiseGradientPlan(GpuPlan):
    """The settings of a gradient towards filters on a target."""

    problem: DepthwiseGradient
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        problem, height = self.problem, self.problem.height.axis.extent
        heights = [n for n in TILE_HEIGHTS if n <= height or (problem.atom is not None and n < height + MMA_ROWS)]
        widths = tuple(n for n in (1, 2, 4, 7, 8, 14, 16, 32) if n <= problem.width.axis.extent)
        side = (4, 8, 16, 32) if problem.channels_last else (1,)
        return (
            Knob("vector_width", self._vector_widths(), "how many neighbouring channels a thread has"),
            Knob("tile_w", widths, "how many columns of pixels a thread has"),
            Knob("tile_h", tuple(heights), "how many rows of pixels a tile has"),
            Knob("threads_x", side, "how many threads have channels side by side"),
            Knob("threads", (128, 256), "how many threads a block has"),
            Knob("ctas_per_sm", (1, 2, 3, 4, 5, 6, 8), "how many blocks a multiprocessor runs at once"),
            Knob("rounds", (1, 2, 3, 4, 6, 8, 12, 16, 32, 64), "how many tiles a thread has, one after the other"),
            *((_MMA,) if problem.atom is not None else ()),
        )

    @property
    def defaults(self) -> Mapping[str, KnobValue]:
        return {"mma": 0}

    def _vector_widths(self) -> tuple[int, ...]:
        if not self.problem.channels_last:
            return (1,)
        size, channels = self.problem.pixels.load.dtype.bytes, self.problem.lanes.extent
        return tuple(v for v in (1, 2, 4) if channels % v == 0 and (v == 1 or v * size <= WIDEST_VECTOR_BYTES))

    @cached_property
    def _aligned_rows(self) -> dict[int, tuple[int, int, int]]:
        """``aligned_row`` of each width of a tile."""
        return {n: aligned_row(self.problem, n) for n in self._values("tile_w")}

    @cached_property
    def _held_rows(self) -> dict[int, int]:
        """``held_rows`` of each height of a tile."""
        return {n: held_rows(self.problem, n) for n in self._values("tile_h")}

    def _values(self, name: str) -> list[int]:
        return [int(value) for knob in self.knobs if knob.name == name for value in knob.values]

    @derived_once
    def sizes(self, columns: Columns) -> DepthwiseGradientSizes:
        problem = self.problem
        names = ("vector_width", "tile_w", "tile_h", "threads_x", "threads", "ctas_per_sm", "rounds", "mma")
        knobs = columns.named(*names)
        vector, tile_w, tile_h, threads_x, threads, ctas_per_sm, rounds, mma = knobs.values()
        lead, near, load_width = np.zeros_like(tile_w), problem.width.positions(tile_w), np.ones_like(tile_w)
        if not problem.channels_last:
            rows = np.array([self._aligned_rows[n] for n in tile_w.tolist()], np.int64).reshape(-1, 3)
            lead, near, load_width = rows.T
        images = prod(a.extent for a in problem.image_axes)
        tile_columns = tile_w * np.where(mma > 0, COLUMN_LANES, 1)
        tiles = images * -(-problem.height.axis.extent // tile_h) * -(-problem.width.axis.extent // tile_columns)
        channel_blocks = -(-(problem.channels // vector) // threads_x)
        warps = threads // WARP_LANES
        block_tiles = np.where(mma > 0, warps, threads // threads_x)
        splits = -(-tiles // (rounds * block_tiles))
        shared_bytes = 4 * warps * problem.taps * vector * threads_x
        shared_bytes = shared_bytes + np.where(mma > 0, products_bytes(problem, warps), 0)
        given = self.limits.registers_per_multiprocessor // (threads * ctas_per_sm) // 8 * 8
        registers = np.minimum(given, self.limits.registers_per_thread)
        return DepthwiseGradientSizes(
            **knobs,
            lead=lead,
            near=near,
            load_width=load_width,
            rows=np.where(mma > 0, tile_h // MMA_ROWS, tile_h),
            lines=np.where(mma > 0, tile_h // MMA_ROWS + 1, problem.height.positions(tile_h)),
            held=np.array([self._held_rows[n] for n in tile_h.tolist()], np.int64),
            tiles=tiles,
            block_tiles=block_tiles,
            channel_blocks=channel_blocks,
            splits=splits,
            blocks=channel_blocks * splits,
            shared_bytes=shared_bytes,
            registers=registers,
            resident=self.limits.resident_blocks(threads, registers, shared_bytes),
        )

    def _needed_registers(self, s: DepthwiseGradientSizes) -> Ints:
        """Estimate the registers that a thread needs at least: accumulators, a row of the image as it is loaded, and
        the rows of the gradient that it meets. With matrix instructions these are three rows of the image, pairs of its
        odd columns, and two rows of the gradient."""
        of_image, of_gradient = (self._words(m.load.dtype.bytes, s) for m in self.problem.loads)
        problem, with_mma = self.problem, s.mma > 0
        rows = np.where(with_mma, 2, np.minimum(problem.height.window_points, s.tile_h))
        of_rows = s.near * of_image * np.where(with_mma, 4, 1) + rows * s.tile_w * of_gradient
        accumulators = np.where(with_mma, 4 * problem.width.window_points, problem.taps * s.vector_width)
        found: Ints = SPARE_REGISTERS + accumulators + np.ceil(of_rows).astype(np.int64)
        return found

    def _words(self, size: int, s: DepthwiseGradientSizes) -> Floats:
        """Return the registers of a pixel as it is loaded, for all channels of a thread."""
        found: Floats = -(-s.vector_width * size // 4) if self.problem.channels_last else np.asarray(size / 4)
        return found

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        with_mma = ("mma",) if self.problem.atom is not None else ()
        return (
            self.rule(
                f"a tile has at most {MOST_PRODUCTS} products, and no more rows than the gradient",
                ("tile_w", "tile_h", "vector_width", *with_mma),
                lambda s: (
                    (s.mma > 0)
                    | (s.tile_w * s.tile_h * s.vector_width * self.problem.taps <= MOST_PRODUCTS)
                    & (s.tile_h <= self.problem.height.axis.extent)
                ),
            ),
            self.rule(
                f"matrix instructions have {MMA_ROWS} rows and {COLUMN_LANES} columns of a lane",
                ("tile_w", "tile_h", *with_mma),
                lambda s: (s.mma == 0) | ((s.tile_h % MMA_ROWS == 0) & np.isin(s.tile_w, MMA_COLUMNS)),
            ),
            self.rule(
                "a block has no more threads side by side than there are vectors of channels, but for those of the "
                "least threads_x",
                ("vector_width", "threads_x"),
                lambda s: (s.threads_x <= 4) | (s.threads_x // 2 < self.problem.channels // s.vector_width),
            ),
            self.rule(
                "there are tiles for all rounds of a block",
                None,
                lambda s: (s.rounds - 1) * s.block_tiles < s.tiles,
            ),
            self.rule(
                "the registers that ctas_per_sm leaves to a thread hold its accumulators and the rows at hand",
                ("vector_width", "tile_w", "tile_h", "threads", "ctas_per_sm", *with_mma),
                lambda s: self._needed_registers(s) <= s.registers,
            ),
            self.rule(
                "a multiprocessor has room for ctas_per_sm blocks",
                ("vector_width", "threads_x", "threads", "ctas_per_sm", *with_mma),
                lambda s: s.resident >= s.ctas_per_sm,
            ),
            *self.launch_rules(MOST_SHARED_BYTES),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        seconds = self.prior_seconds(columns, peaks)
        found: Bools = seconds <= NEAR * seconds.min()
        return found

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        """All instructions of a thread count as arithmetic, since they are issued one by one. The registers that are
        free hold what is loaded ahead, so that a thread waits as often as they are filled. Columns that tiles of other
        warps share with its own are half in the cache of a multiprocessor."""
        s, problem = self.sizes(columns), self.problem
        found, each = gpu_peaks(self.target, peaks), s.tiles * (problem.channels // s.vector_width)
        each = each * np.where(s.mma > 0, WARP_LANES, 1)
        (pixel, gradient), pixels = (m.load.dtype.bytes for m in problem.loads), s.rows * s.tile_w
        run = s.vector_width * s.threads_x * min(pixel, gradient)
        wasted = bytes_for_run(run) / run if problem.channels_last else 1.0
        own = s.tile_w * problem.width.stride
        seen = np.where(problem.channels_last, (own + np.maximum(s.near, own)) / 2, own)
        loaded = s.vector_width * (s.lines * seen * pixel + pixels * gradient)
        partial_bytes = np.where(s.splits > 1, 4 * s.splits * problem.taps * problem.channels, 0)
        row = s.near * self._words(pixel, s)
        ahead = np.where(s.mma > 0, 0, np.maximum(s.registers - self._needed_registers(s), 0)) + row
        of_tile = s.lines * row + np.where(s.mma > 0, 0, pixels * self._words(gradient, s))
        traffic = MemoryTraffic(
            blocks=s.blocks,
            resident=s.ctas_per_sm,
            memory_bytes=minimum_bytes(problem.workload),
            l2_bytes=each * loaded * wasted + 2 * partial_bytes,
            accesses=each * self._accesses(s) / WARP_LANES * np.maximum(self._lines(s) / ACCESS_CYCLES, 1.0),
            rounds=s.rounds * np.ceil(of_tile / ahead),
            operations=INSTRUCTION_OPERATIONS * each * self._instructions(s),
        )
        # The second launch begins while the first one ends.
        last = np.where(s.splits > 1, LAST_SECONDS + partial_bytes / found.memory_bytes_per_second, 0.0)
        seconds: Floats = memory_bound_seconds(found, traffic) + last
        return seconds

    def _lines(self, s: DepthwiseGradientSizes) -> Floats:
        """Return how many cache lines a load of a warp touches. A multiprocessor looks them up one by one."""
        size, problem = self.problem.pixels.load.dtype.bytes, self.problem
        if problem.channels_last:
            run = size * s.vector_width * s.threads_x
            return np.asarray(WARP_LANES / s.threads_x * np.maximum(run / LINE_BYTES, 1.0), np.float64)
        columns = problem.width.axis.extent
        of_row = np.minimum(-(-columns // s.tile_w), np.where(s.mma > 0, COLUMN_LANES, WARP_LANES))
        run = size * np.minimum(of_row * s.tile_w, columns)  # it begins anywhere in a line
        return np.asarray(WARP_LANES / of_row * np.minimum(1.0 + run / LINE_BYTES, of_row), np.float64)

    def _accesses(self, s: DepthwiseGradientSizes) -> Floats:
        """Return how many loads a thread has for a tile."""
        together: Ints | int = 1
        if not self.problem.channels_last:
            widest = VECTOR_BYTES // self.problem.gradients.load.dtype.bytes
            together = np.gcd(s.tile_w, gcd(widest, self.problem.width.axis.extent))
        found: Floats = s.lines * s.near / s.load_width + s.rows * s.tile_w / together
        return found

    def _instructions(self, s: DepthwiseGradientSizes) -> Floats:
        """Return how many instructions a thread has for a tile: it converts narrow floats once, or forms fragments of
        odd columns."""
        problem, pixels = self.problem, s.rows * s.tile_w
        narrow = [m.load.dtype.bytes < 4 for m in problem.loads]
        converted = narrow[0] * s.lines * problem.width.positions(s.tile_w) + narrow[1] * pixels
        adding = s.vector_width * (problem.taps * pixels + converted)
        multiplying = pixels / COLUMN_LANES * MMA_INSTRUCTIONS * problem.width.window_points
        ends = (ROUND_INSTRUCTIONS + END_INSTRUCTIONS * problem.taps * s.vector_width) / s.rounds
        found: Floats = np.where(s.mma > 0, multiplying, adding) + self._accesses(s) + ends
        return found

    def derive(self, columns: Columns) -> Derived:
        s, size = self.sizes(columns), self.problem.pixels.load.dtype.bytes
        return {
            **gpu_columns(self.target, s, wanted=s.near * s.vector_width * size),
            "partials": s.splits,
            "loads_per_pixel": 1 + s.lines * s.near / (s.rows * s.tile_w),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return depthwise_gradient_kernel(self.problem, self.sizes_of(setting))


CUDA_DEPTHWISE_WGRAD = TileSketch(
    "cuda_depthwise_wgrad", 1, QUANTITIES, planned(depthwise_gradient_of, DepthwiseGradientPlan)
)
