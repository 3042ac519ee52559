"""Describes the space of kernels of windows that are long along one axis: knobs, constraints, derived sizes and the
prior (sketch ``cuda_long_window``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.channels_last import channels_last_steps
from ....te.cost import minimum_bytes
from ....te.workload import Workload
from ...problems.long_window import LongWindow, long_window_of
from ...problems.plane_window import BLOCK_OUTPUTS, STEP_POSITIONS, STRIPS
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile_sketch import TileSketch, planned
from ..memory_prior import MemoryTraffic, memory_bound_seconds
from ..occupancy import PARTS
from ..peaks import GpuPeaks, gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, WINDOW_QUANTITIES, gpu_columns
from ..term_cost import ISSUED_LANES, reduction_cost
from .kernel import DIRECT_LANES, LOADS, LongWindowSizes, LongWindowWriter, accumulator_dtype, tap_width
from .scanned import ScannedWriter
from .toeplitz import LongToeplitzWriter

SPARE_REGISTERS = 16
"""Registers for addresses and constants, roughly (from compiled kernels)."""
AHEAD = 8
"""Positions that the compiler has a thread read ahead of those that it multiplies, roughly."""
MOST_SHARED_BYTES = 216 << 10
"""Shared memory of a block, at most."""
MOST_PHASES = 64
"""Phases of a dilated window that are in one block, if there are no more of them."""
STAGING_INSTRUCTIONS = 4
"""Instructions that bring a position to shared memory, roughly: vectors take fewer, and rows of odd pitches more."""
SECTOR_BYTES = 32
"""Bytes that L2 hands out at once."""
MATRIX_READS = 6
"""Instructions of a thread for a matrix of taps, and for the positions that it is multiplied with."""
STEPS = 6
"""Steps for an output of a scanned window, roughly."""
EXPOSED_LATENCY = 0.3
"""The share of a warp's instructions in which it waits, which other warps of the same part of a multiprocessor fill."""
MANY_CHANNELS = 32
"""Matrix units multiply so many channels of 16 bits at once, where these are copied to the end first."""
PROMISING = 1.5
"""How many times as slow as the best estimate promising settings are at most."""

_MMA = Knob("mma", (0, 1), "whether mma.sync multiplies, by Toeplitz matrices of the taps")
_SCANNED = Knob("scanned", (0, 1), "whether windows are joined of running reductions of the parts that they have")

QUANTITIES = (*GPU_QUANTITIES, *WINDOW_QUANTITIES)


@dataclass(frozen=True)
class LongWindowPlan(GpuPlan):
    """The settings of a reduction over windows that are long along one axis on a target."""

    problem: LongWindow
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        multiplied = self.problem.toeplitz_atom is not None
        phases, columns = self.problem.phases, self.problem.lane_axis is not None
        parts = tuple(n for n in (32, 64, 16, 8) if n < 2 * phases) or (phases,)
        lanes = (phases,) if phases <= MOST_PHASES and not columns else parts
        return (
            Knob(
                "tile_w",
                (15, 3, 5, 7, 9, 11, 13, 17, 19, 23, 27, *((8, 16, 32, 64) if multiplied else ())),
                "how many outputs along the axis of the window a thread computes",
            ),
            Knob("lanes", lanes, "how many phases a block has, or columns of a tensor"),
            Knob("threads", (128, 64, 256, 512), "how many threads a block has"),
            Knob("block_k", (256, 32, 64, 128, 512, 1024), "how many points of windows are in shared memory at once"),
            Knob(
                "k_unroll",
                (16, 32, 64, *((128,) if multiplied else ())),
                "how many points of windows an iteration of the innermost loop takes",
            ),
            Knob("warps_k", (1, 2, 4, 8), "how many groups of threads share the points of windows"),
            *((_MMA,) if multiplied else ()),
            *((_SCANNED,) if self.problem.width.stride == 1 and self.problem.is_alike(self.problem.width) else ()),
        )

    @property
    def defaults(self) -> Mapping[str, KnobValue]:
        return {"scanned": 0, "mma": 0}

    def sizes(self, columns: Columns) -> LongWindowSizes:
        problem, accumulator = self.problem, accumulator_dtype(self.problem)
        knobs = columns.named("tile_w", "lanes", "threads", "block_k", "k_unroll", "warps_k", "scanned", "mma")
        tile_w, lanes, threads, block_k, k_unroll, warps_k, scanned, mma = knobs.values()
        own, points = threads // (warps_k * lanes), problem.window.extent
        own = np.where(mma > 0, threads // (WARP_LANES * lanes) * STRIPS, own)
        unit = k_unroll * warps_k
        in_stages = -(-points // (-(-points // block_k) * unit)) * unit
        stage: Ints = np.where(scanned > 0, points, in_stages)
        stages, rest = points // stage, points % stage
        taps: Ints = np.minimum(stage, points)
        outputs: Ints = np.maximum(own, 1) * tile_w
        positions = ((outputs - 1) * problem.width.stride + taps) * lanes
        tiles, lane_tiles = -(-problem.steps // outputs), -(-problem.phases // lanes)
        positions = positions + mma * STEP_POSITIONS * lanes
        staged = ((lanes < DIRECT_LANES) | (warps_k > 1) | (mma > 0)).astype(np.int64)
        tap_bytes = sum(b.dtype.bytes * (lanes if problem.has_lanes(b) else 1) for b in problem.taps)
        shared_bytes = positions * sum(b.dtype.bytes for b in problem.positions) + taps * tap_bytes
        shared_bytes = shared_bytes + staged * warps_k * outputs * lanes * accumulator.bytes
        parts = scanned * (own + points // tile_w) * lanes
        shared_bytes = shared_bytes + parts * accumulator.bytes
        gapped = 1 + BLOCK_OUTPUTS / tile_w * (tile_w > BLOCK_OUTPUTS)
        with_mma = gapped * (2 * positions + accumulator.bytes * outputs * lanes)
        with_mma = with_mma + (taps + 2 * STEP_POSITIONS) * tap_bytes
        shared_bytes = np.where(mma > 0, with_mma, shared_bytes).astype(np.int64)
        near = np.minimum(k_unroll, (tile_w - 1) * problem.width.stride + 1 + AHEAD)
        words = near * sum(_words(b.dtype.bytes) for b in problem.positions) + tile_w * _words(accumulator.bytes)
        words = words + 2 * tap_width(problem) * sum(_words(b.dtype.bytes) for b in problem.taps)
        words = np.where(scanned > 0, 2 * tile_w * _words(accumulator.bytes), words)
        words = np.where(mma > 0, tile_w // 2 + k_unroll // 4 + tile_w // 4, words)
        registers = SPARE_REGISTERS + np.maximum(words, LOADS * len(problem.loaded) + tile_w)
        return LongWindowSizes(
            **knobs,
            own=own,
            stage=stage,
            stages=stages,
            rest=rest,
            tiles=tiles,
            lane_tiles=lane_tiles,
            loads=-(-positions // threads),
            blocks=prod(a.extent for a in problem.row_axes) * problem.residues * tiles * lane_tiles,
            staged=staged,
            shared_bytes=shared_bytes,
            registers=registers,
            resident=self.limits.resident_blocks(threads, registers, shared_bytes),
        )

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        points = self.problem.window.extent
        return (
            self.rule(
                "each group of threads has a thread for each phase, or with mma equally many warps",
                tuple(k.name for k in self.knobs if k.name in ("threads", "lanes", "warps_k", "mma")),
                lambda s: (s.own >= 1) & ((s.mma == 0) | (s.threads % (WARP_LANES * s.lanes) == 0)),
            ),
            Constraint(
                "the positions between the first and the last output of a thread take no more than k_unroll registers",
                ("tile_w", "k_unroll"),
                lambda c: (c.ints("tile_w") - 1) * self.problem.width.stride < c.ints("k_unroll"),
            ),
            Constraint(
                "tile_w is odd, or with mma one of the even values, and divides k_unroll",
                tuple(k.name for k in self.knobs if k.name in ("tile_w", "k_unroll", "warps_k", "mma")),
                lambda c: np.where(
                    c.ints("mma") > 0,
                    (c.ints("tile_w") % 2 == 0)
                    & (c.ints("k_unroll") % c.ints("tile_w") == 0)
                    & (c.ints("warps_k") == 1),
                    (c.ints("tile_w") % 2 > 0) & (c.ints("k_unroll") <= 64),
                ),
            ),
            Constraint(
                "a smaller block_k holds fewer points, and the smallest one holds a part for each group of threads",
                ("block_k", "k_unroll", "warps_k"),
                lambda c: (
                    (c.ints("block_k") < 2 * max(points, 32))
                    & (c.ints("k_unroll") * c.ints("warps_k") <= c.ints("block_k"))
                ),
            ),
            Constraint(
                "scanned windows are longer than tile_w, and the knobs that make no difference to them have one value",
                tuple(k.name for k in self.knobs if k.name not in ("lanes", "threads")),
                lambda c: (
                    (c.ints("scanned") == 0)
                    | (
                        (c.ints("tile_w") < points)
                        & (c.ints("block_k") == 32)
                        & (c.ints("k_unroll") == 32)
                        & (c.ints("warps_k") == 1)
                    )
                ),
            ),
            *self.launch_rules(MOST_SHARED_BYTES),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        seconds = self.prior_seconds(columns, peaks)
        found: Bools = seconds <= PROMISING * seconds.min(initial=np.inf)
        return found

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        """Parts of a multiprocessor without a warp idle, and a single one waits for what it reads."""
        sizes, problem, found = self.sizes(columns), self.problem, gpu_peaks(self.target, peaks)
        stages, brought = self._stages(sizes), self._brought(sizes)
        reads, cycles = self._adding(sizes, found)
        cycles = np.where(sizes.mma > 0, self._multiplying(sizes, found), cycles)
        cycles = cycles + STAGING_INSTRUCTIONS * brought / ISSUED_LANES
        threads, stored = sizes.blocks * sizes.threads, sizes.blocks * sizes.outputs * sizes.lanes
        each = -(-sizes.blocks // self.target.threads)
        warps = np.minimum(each, sizes.resident) * sizes.threads / (WARP_LANES * PARTS)
        slower = np.maximum(1 / warps, 1.0) + EXPOSED_LATENCY / warps
        uneven = np.where(each > 1, each * self.target.threads / sizes.blocks, 1.0)
        stage_bytes = sizes.loads * sizes.threads * problem.position_bytes
        output_bytes = sum(b.bytes for b in problem.workload.output_buffers)
        apart = problem.lane_axis is not None or problem.phases > MOST_PHASES
        in_sectors = np.maximum(SECTOR_BYTES / (sizes.lanes * problem.position_bytes), 1.0) if apart else 1.0
        traffic = MemoryTraffic(
            blocks=sizes.blocks,
            resident=sizes.resident,
            rounds=stages,
            memory_bytes=minimum_bytes(problem.workload),
            l2_bytes=in_sectors * (sizes.blocks * stages * stage_bytes + output_bytes),
            shared_bytes=4 * threads * (reads + brought),
            accesses=(threads * brought + (1 + sizes.staged) * stored * len(problem.outputs)) / WARP_LANES,
            operations=threads * cycles * found.float32_flops_per_cycle * uneven * slower,
        )
        return memory_bound_seconds(found, traffic)

    @property
    def _outer(self) -> int:
        """How many windows along the axis a window has, such as its rows."""
        return prod(a.extent for a in self.problem.outer_axes)

    def _stages(self, sizes: LongWindowSizes) -> Ints:
        """Return how many stages there are, of all windows."""
        found: Ints = self._outer * -(-self.problem.window.extent // sizes.stage)
        return found

    def _brought(self, sizes: LongWindowSizes) -> Floats:
        """Return how many positions and taps a thread brings to shared memory."""
        alone = sum(map(self.problem.has_lanes, self.problem.taps))
        taps = alone * sizes.lanes + len(self.problem.taps) - alone
        loads = np.minimum(sizes.stage, self.problem.window.extent) * taps * (1 + sizes.mma) / sizes.threads
        found: Floats = self._stages(sizes) * (sizes.loads * len(self.problem.loaded) + loads)
        return found

    def _adding(self, sizes: LongWindowSizes, peaks: GpuPeaks) -> tuple[Floats, Floats]:
        """Return how many words a thread reads from shared memory, and for how many cycles it keeps a multiprocessor
        busy with them and with combining terms."""
        problem, points = self.problem, self.problem.window.extent
        assert problem.reduction.reducer is not None
        term = reduction_cost(problem.reduction.reducer, problem.term_body, problem.reduction.tensor.dtype, peaks)
        between = points // sizes.tile_w
        terms = self._outer * points / sizes.warps_k
        reads = terms + self._stages(sizes) * (sizes.tile_w - 1) * problem.width.stride
        scanned_reads = self._outer * (3 * sizes.tile_w + between * (1 + sizes.tile_w / sizes.own))
        reads = len(problem.positions) * np.where(sizes.scanned > 0, scanned_reads, reads)
        for tap in problem.taps:
            reads = reads + terms / (1 if problem.has_lanes(tap) else tap_width(problem))
        scanned_terms = self._outer * (STEPS * sizes.tile_w + between)
        combined = np.where(sizes.scanned > 0, scanned_terms, terms * sizes.tile_w)
        return reads, combined * term.cycles + reads / ISSUED_LANES

    def _multiplying(self, sizes: LongWindowSizes, peaks: GpuPeaks) -> Floats:
        """Return the cycles of a thread whose warp multiplies matrices, and reads them from shared memory."""
        steps = (self._outer * self.problem.window.extent + self._stages(sizes) * BLOCK_OUTPUTS) / STEP_POSITIONS
        operations = 2 * STRIPS * sizes.tile_w * STEP_POSITIONS / WARP_LANES
        reads = MATRIX_READS + sizes.tile_w / sizes.k_unroll
        found: Floats = steps * (operations / peaks.warp_tensor_flops_per_cycle + reads / ISSUED_LANES)
        return found

    def derive(self, columns: Columns) -> Derived:
        sizes = self.sizes(columns)
        return {
            **gpu_columns(self.target, sizes, wanted=sizes.loads * self.problem.position_bytes),
            "outputs": np.asarray(sizes.tile_w, np.float64),
            "loads_per_output": sizes.loads * sizes.threads / (sizes.outputs * sizes.lanes),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        sizes = self.sizes_of(setting)
        writer = LongToeplitzWriter if sizes.mma else ScannedWriter if sizes.scanned else LongWindowWriter
        return writer(self.problem, sizes).kernel()


def _words(size: int) -> int:
    return -(-size // 4)


def _window_of(workload: Workload) -> LongWindow | None:
    """Return the long windows of a workload but for those of convolutions with ``MANY_CHANNELS``."""
    problem = long_window_of(workload)
    if problem is None or problem.toeplitz_atom is None or prod(a.extent for a in problem.outer_axes) < MANY_CHANNELS:
        return problem
    return None if channels_last_steps(workload) else problem


CUDA_LONG_WINDOW = TileSketch("cuda_long_window", 1, QUANTITIES, planned(_window_of, LongWindowPlan))
