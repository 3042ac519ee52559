"""Describes the space of kernels of gradients of depthwise convolutions towards filters: knobs, constraints, derived
sizes and the prior (sketch ``cuda_depthwise_wgrad``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.cost import minimum_bytes
from ...problems.depthwise_gradient import DepthwiseGradient, depthwise_gradient_of
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
from .tiles import VECTOR_BYTES, DepthwiseGradientSizes, aligned_row, held_rows

SPARE_REGISTERS = 24
"""Registers for addresses and constants, roughly (from compiled kernels)."""
MOST_SHARED_BYTES = 64 << 10
"""Shared memory of a block, at most."""
MOST_PRODUCTS = 4096
"""Products of a tile, at most: they are all written out."""
WIDEST_VECTOR_BYTES = 8
"""Bytes of the vectors of channels, at most."""
ROUND_INSTRUCTIONS, END_INSTRUCTIONS = 60, 6
"""Instructions of a thread for where its tiles lie, and for each accumulator at the end, roughly."""
LAST_SECONDS = 1e-6
"""What the second launch takes besides the partial sums."""
INSTRUCTION_OPERATIONS = 2
"""An instruction takes as long as a fused multiplication and addition, which is so many operations."""
NEAR = 1.25
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
        width, height = self.problem.width.axis.extent, self.problem.height.axis.extent
        last = self.problem.channels_last
        return (
            Knob("vector_width", self._vector_widths(), "how many neighbouring channels a thread has"),
            Knob("tile_w", _tiles(width, (1, 2, 4, 7, 8, 14, 16, 32)), "how many columns of pixels a tile has"),
            Knob("tile_h", _tiles(height, (1, 2, 4, 7, 8, 14, 16, 28, 32, 56)), "how many rows of pixels a tile has"),
            Knob("threads_x", (4, 8, 16, 32) if last else (1,), "how many threads have channels side by side"),
            Knob("threads", (128, 256), "how many threads a block has"),
            Knob("ctas_per_sm", (1, 2, 3, 4, 5, 6, 8), "how many blocks a multiprocessor runs at once"),
            Knob("rounds", (1, 2, 3, 4, 6, 8, 12, 16, 32, 64), "how many tiles a thread has, one after the other"),
        )

    def _vector_widths(self) -> tuple[int, ...]:
        if not self.problem.channels_last:
            return (1,)
        size, channels = self.problem.pixels.load.dtype.bytes, self.problem.lanes.extent
        return tuple(v for v in (1, 2, 4) if channels % v == 0 and (v == 1 or v * size <= WIDEST_VECTOR_BYTES))

    @derived_once
    def sizes(self, columns: Columns) -> DepthwiseGradientSizes:
        problem = self.problem
        knobs = columns.named("vector_width", "tile_w", "tile_h", "threads_x", "threads", "ctas_per_sm", "rounds")
        vector, tile_w, tile_h, threads_x, threads, ctas_per_sm, rounds = knobs.values()
        lead, near = np.zeros_like(tile_w), np.asarray(problem.width.positions(tile_w), np.int64)
        if not problem.channels_last:
            rows = {int(n): aligned_row(problem, int(n)) for n in np.unique(tile_w)}
            lead, near = (np.array([rows[int(n)][i] for n in tile_w], np.int64) for i in range(2))
        held = {int(n): held_rows(problem, int(n)) for n in np.unique(tile_h)}
        images = prod(a.extent for a in problem.image_axes)
        tiles = images * -(-problem.height.axis.extent // tile_h) * -(-problem.width.axis.extent // tile_w)
        channel_blocks = -(-(problem.channels // vector) // threads_x)
        splits = -(-tiles // (rounds * (threads // threads_x)))
        shared_bytes = 4 * (threads // WARP_LANES) * problem.taps * vector * threads_x
        given = self.limits.registers_per_multiprocessor // (threads * ctas_per_sm) // 8 * 8
        registers = np.minimum(given, self.limits.registers_per_thread)
        return DepthwiseGradientSizes(
            **knobs,
            lead=lead,
            near=near,
            lines=np.asarray(problem.height.positions(tile_h), np.int64),
            held=np.array([held[int(n)] for n in tile_h], np.int64),
            tiles=tiles,
            channel_blocks=channel_blocks,
            splits=splits,
            blocks=channel_blocks * splits,
            shared_bytes=shared_bytes,
            registers=registers,
            resident=self.limits.resident_blocks(threads, registers, shared_bytes),
        )

    def _needed_registers(self, s: DepthwiseGradientSizes) -> Ints:
        """Estimate the registers that a thread needs at least: accumulators, a row of the image as it is loaded, and
        the rows of the gradient that it meets."""
        of_image, of_gradient = (self._words(m.load.dtype.bytes, s) for m in self.problem.loads)
        rows = np.minimum(self.problem.height.window_points, s.tile_h)
        held = np.ceil(s.near * of_image + rows * s.tile_w * of_gradient).astype(np.int64)
        found: Ints = SPARE_REGISTERS + self.problem.taps * s.vector_width + held
        return found

    def _words(self, size: int, s: DepthwiseGradientSizes) -> Floats:
        """Return the registers of a pixel as it is loaded, for all channels of a thread."""
        found: Floats = -(-s.vector_width * size // 4) if self.problem.channels_last else np.asarray(size / 4)
        return found

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return (
            self.rule(
                f"a tile has at most {MOST_PRODUCTS} products",
                ("tile_w", "tile_h", "vector_width"),
                lambda s: s.tile_w * s.tile_h * s.vector_width * self.problem.taps <= MOST_PRODUCTS,
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
                lambda s: (s.rounds - 1) * (s.threads // s.threads_x) < s.tiles,
            ),
            self.rule(
                "the registers that ctas_per_sm leaves to a thread hold its accumulators and the rows at hand",
                ("vector_width", "tile_w", "tile_h", "threads", "ctas_per_sm"),
                lambda s: self._needed_registers(s) <= s.registers,
            ),
            self.rule(
                "a multiprocessor has room for ctas_per_sm blocks",
                ("vector_width", "threads_x", "threads", "ctas_per_sm"),
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
        free hold what is loaded ahead, so that a thread waits as often as they are filled. Columns that tiles share are
        in the cache of a multiprocessor."""
        s, problem = self.sizes(columns), self.problem
        found, each = gpu_peaks(self.target, peaks), s.tiles * (problem.channels // s.vector_width)
        (pixel, gradient), pixels = (m.load.dtype.bytes for m in problem.loads), s.tile_h * s.tile_w
        run = s.vector_width * s.threads_x * min(pixel, gradient)
        wasted = bytes_for_run(run) / run if problem.channels_last else 1.0
        loaded = s.vector_width * (s.lines * s.tile_w * problem.width.stride * pixel + pixels * gradient)
        partial_bytes = np.where(s.splits > 1, 4 * s.splits * problem.taps * problem.channels, 0)
        ahead = np.maximum(s.registers - self._needed_registers(s), 0) + s.near * self._words(pixel, s)
        of_tile = s.lines * s.near * self._words(pixel, s) + pixels * self._words(gradient, s)
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
        of_row = np.minimum(-(-columns // s.tile_w), WARP_LANES)
        run = size * np.minimum(of_row * s.tile_w, columns)  # it begins anywhere in a line
        return np.asarray(WARP_LANES / of_row * np.minimum(1.0 + run / LINE_BYTES, of_row), np.float64)

    def _accesses(self, s: DepthwiseGradientSizes) -> Floats:
        """Return how many loads a thread has for a tile."""
        together: tuple[Ints | int, Ints | int] = (1, 1)
        if not self.problem.channels_last:
            pixel, gradient = (VECTOR_BYTES // m.load.dtype.bytes for m in self.problem.loads)
            together = np.gcd(s.near, pixel), np.gcd(s.tile_w, gradient)
        found: Floats = s.lines * s.near / together[0] + s.tile_h * s.tile_w / together[1]
        return found

    def _instructions(self, s: DepthwiseGradientSizes) -> Floats:
        """Return how many instructions a thread has for a tile: it converts narrow floats once."""
        problem, pixels = self.problem, s.tile_w * s.tile_h
        narrow = [m.load.dtype.bytes < 4 for m in problem.loads]
        converted = narrow[0] * s.lines * problem.width.positions(s.tile_w) + narrow[1] * pixels
        ends = (ROUND_INSTRUCTIONS + END_INSTRUCTIONS * problem.taps * s.vector_width) / s.rounds
        found: Floats = s.vector_width * (problem.taps * pixels + converted) + self._accesses(s) + ends
        return found

    def derive(self, columns: Columns) -> Derived:
        s, size = self.sizes(columns), self.problem.pixels.load.dtype.bytes
        return {
            **gpu_columns(self.target, s, wanted=s.near * s.vector_width * size),
            "partials": s.splits,
            "loads_per_pixel": 1 + s.lines * s.near / (s.tile_h * s.tile_w),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return depthwise_gradient_kernel(self.problem, self.sizes_of(setting))


def _tiles(extent: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return those sizes of tiles that an extent has room for."""
    return tuple(n for n in sizes if n <= extent) or (1,)


CUDA_DEPTHWISE_WGRAD = TileSketch(
    "cuda_depthwise_wgrad", 1, QUANTITIES, planned(depthwise_gradient_of, DepthwiseGradientPlan)
)
