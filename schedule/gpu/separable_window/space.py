"""Describes the space of kernels of windows of planes: knobs, constraints, derived sizes and the prior (sketch
``cuda_separable_window``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from ....core.dtypes import INDEX
from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES, const
from ....ir.rewrite import free_variables, loads_of, map_loads
from ....ir.stmt import Kernel
from ....te.cost import minimum_bytes
from ...problems.separable_window import SeparableWindow, separable_window_of
from ...problems.window_steps import step_counts
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile.load_analysis import flat_offset
from ...tile_sketch import TileSketch, planned
from ..memory_prior import ACCESS_CYCLES, TILE_SECONDS, MemoryTraffic, memory_bound_seconds
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, WINDOW_QUANTITIES, gpu_columns
from .kernel import (
    BULK_BYTES,
    WORD_BYTES,
    SeparableWindowSizes,
    column_dtype,
    columns_at_once,
    line_dtype,
    loaded_columns,
    separable_window_kernel,
    word_lanes,
)

SPARE_REGISTERS = 24
"""Registers for addresses and constants, roughly (from compiled kernels)."""
TILE_ROWS = (4, 8, 16, 32)
"""Rows of outputs of a tile, about: a plane has the fewest tiles of so many rows, all of equal height."""
MOST_COLUMNS = 128
"""Columns of outputs of a tile, about."""
MOST_SHARED_BYTES = 48 << 10
"""Shared memory of a block, at most."""
ROW_LANES = (32, 16, 8)
"""How many neighbouring lanes store a row: the most of which few are idle."""
IDLE_LANES = 1.25
"""Lanes for each column of a row, at most, where some number of lanes has so few."""
STEP_OPERATIONS = 4
"""A minimum or maximum takes as long as so many additions of a fused multiplication and addition (from the tables of
throughput in the CUDA C++ Programming Guide)."""
BARRIER_WAITS = 1.0
"""Where shared memory has room for n blocks of a multiprocessor, waiting at barriers takes so many n-ths of the time
that the rest takes. Threads without columns count as if there were fewer blocks."""
EXPOSED_ACCESSES = 0.25
"""The share of the time of loads and stores that does not overlap with anything, as each phase waits for those of the
last one (this and the former agree with the order of the settings of a pool of 7 x 7 points that an H200 timed)."""
COPIED = 0.5
"""The share of their cost that loads of columns and waits at barriers have where bulk copies bring tiles. Addresses in
shared memory take fewer instructions, and no thread waits for loads from memory (from 12 settings of the same pool). In
one process with four placements of its buffers the best of them took 33.4 to 33.6 us, and 38.2 without such copies."""
VECTOR_BYTES = (4, 8, 16)
"""Bytes of stores of several outputs."""
MOST_CONFLICTS = 2
"""How many threads of a warp may access one bank of shared memory in promising settings, where results are stored there
as they are in memory."""

QUANTITIES = (*GPU_QUANTITIES, *WINDOW_QUANTITIES)


@dataclass(frozen=True)
class SeparableWindowPlan(GpuPlan):
    """The settings of a reduction over windows of planes on a target."""

    problem: SeparableWindow
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        widths = tuple(n for n in (1, 2, 4, 8, 16) if n <= self.problem.width.axis.extent)
        return (
            Knob(
                "tile_h", self._heights, "how many neighbouring outputs along the height a thread reduces columns for"
            ),
            Knob("tile_w", widths, "how many neighbouring outputs along the width a thread computes"),
            Knob("row_tiles", (1, 2, 4, 8, 16), "how many tiles of rows a block has"),
            Knob("threads", (64, 128, 256, 512), "how many threads a block has"),
            Knob("store_bytes", self._store_bytes, "how many bytes a store has, an aligned one where several elements"),
            *(
                (Knob("bulk_copies", (0, 1), "whether bulk copies bring tiles to shared memory"),)
                if self._stageable
                else ()
            ),
        )

    @property
    def defaults(self) -> Mapping[str, KnobValue]:
        return {"store_bytes": self._store_bytes[0], "bulk_copies": 0}

    @property
    def _stageable(self) -> bool:
        """Whether bulk copies can bring tiles of whole rows to shared memory, and results take their place there."""
        problem, source = self.problem, self.problem.sliding_loads[0].load.buffer
        if len(problem.sliding_loads) > 1 or not self.limits.clusters or len(self._store_bytes) == 1:
            return False
        whole = source.bytes % BULK_BYTES == 0 and source.dtype == line_dtype(problem)
        return whole and self._pitch > 0 and problem.width.axis.extent <= MOST_COLUMNS

    @property
    def _pitch(self) -> int:
        """How many elements rows are apart in the first input that windows move over."""
        offset, window = flat_offset(self.problem.sliding_loads[0].load), self.problem.height.window
        assert offset is not None and window is not None  # see ``separable_window_of``
        return offset.coefficient(window.name) // self.problem.height.dilation

    @property
    def _store_bytes(self) -> tuple[int, ...]:
        """Bytes of a store of one output, and of vectors of them, where they are computed from the reduction alone."""
        outputs, reduction = self.problem.outputs, self.problem.reduction
        each, zero = outputs[0].tensor.dtype.bytes, const(0, reduction.tensor.dtype)
        rest = map_loads(outputs[0].body, lambda load: zero if load.buffer.name == reduction.name else load)
        alone = len(outputs) == 1 and not free_variables(rest) and not loads_of(rest)
        return (each, *(b for b in VECTOR_BYTES if b > each)) if alone else (each,)

    @property
    def _heights(self) -> tuple[int, ...]:
        height, lanes = self.problem.height.axis.extent, word_lanes(self.problem)
        tiles = (-(-height // -(-height // rows)) for rows in TILE_ROWS)
        return tuple(dict.fromkeys(-(-rows // lanes) * lanes for rows in tiles))

    @property
    def _planes(self) -> int:
        return prod(a.extent for a in self.problem.plane_axes)

    @derived_once
    def sizes(self, columns: Columns) -> SeparableWindowSizes:
        problem, lanes = self.problem, word_lanes(self.problem)
        knobs = columns.named("tile_h", "tile_w", "row_tiles", "threads")
        tile_h, tile_w, row_tiles, threads = knobs.values()
        extent = problem.width.axis.extent
        tiles_w = -(-extent // MOST_COLUMNS)
        tile_columns = -(-extent // (tiles_w * tile_w)) * tile_w
        tiles_h = -(-problem.height.axis.extent // tile_h)
        rows, near = problem.height.positions(tile_h), problem.width.positions(tile_w)
        at_once = columns_at_once(problem)
        positions = -(-problem.width.positions(tile_columns) // at_once) * at_once
        margin, loaded = self._loaded(positions) if tiles_w == 1 else (np.zeros_like(positions), positions)
        lines, word_bytes = row_tiles * tile_h // lanes, line_dtype(problem).bytes * lanes
        column_words = -(-column_dtype(problem).bytes * at_once // WORD_BYTES)
        chunk = BULK_BYTES // line_dtype(problem).bytes
        spanned = (rows - 1) * self._pitch + loaded + (chunk - 1)
        staged = np.where(columns.flags("bulk_copies", 1), -(-spanned // chunk) * chunk, 0)
        in_flight = np.where(staged > 0, 0, rows * len(problem.sliding_loads))
        along = -(-word_bytes // WORD_BYTES) * (near + tile_w)
        registers = SPARE_REGISTERS + np.maximum(in_flight + column_words * tile_h, along)
        store_width = columns.ints("store_bytes") // self._store_bytes[0]
        pitch = np.where(store_width > 1, extent, tile_columns | 1)
        results = np.maximum(lines * pitch * word_bytes, row_tiles * staged * line_dtype(problem).bytes)
        shared_bytes = lines * (positions | 1) * word_bytes + results + np.where(staged > 0, INDEX.bytes, 0)
        return SeparableWindowSizes(
            **knobs,
            store_width=store_width,
            tiles_h=tiles_h,
            tiles_w=np.full_like(tile_h, tiles_w),
            tile_columns=tile_columns,
            rows=rows,
            positions=positions,
            margin=margin,
            loaded=loaded,
            lines=lines,
            near=near,
            row_lanes=_row_lanes(tile_columns),
            staged=staged,
            blocks=tiles_w * -(-self._planes * tiles_h // row_tiles),
            shared_bytes=shared_bytes,
            registers=registers,
            resident=self.limits.resident_blocks(threads, registers, shared_bytes),
        )

    def _loaded(self, positions: Ints) -> tuple[Ints, Ints]:
        """Return the first column that is loaded, of so many that whole rows span, and how many are."""
        of = {int(n): loaded_columns(self.problem, int(n)) for n in np.unique(positions)}
        found = [of[int(n)] for n in positions]
        return np.array([r.start for r in found], np.int64), np.array([len(r) for r in found], np.int64)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        source = self.problem.sliding_loads[0].load.buffer
        return (
            Constraint(
                "row_tiles divides the tiles of all planes",
                ("tile_h", "row_tiles"),
                lambda c: (
                    self._planes * -(-self.problem.height.axis.extent // c.ints("tile_h")) % c.ints("row_tiles") == 0
                ),
            ),
            self.rule(
                "where a store has several elements, tiles have whole rows, divide the rows of a plane, and consist of "
                "whole vectors",
                None,
                lambda s: (s.store_width == 1) | self._is_stored_by(s, s.store_width),
            ),
            self.rule(
                "with bulk_copies a store has several elements, and the input has at least those that are copied for a "
                "tile",
                None,
                lambda s: (s.staged == 0) | ((s.store_width > 1) & (s.staged <= source.elements)),
            ),
            *self.launch_rules(MOST_SHARED_BYTES),
        )

    def _is_stored_by(self, sizes: SeparableWindowSizes, width: Ints | int) -> Bools:
        """Return where tiles may be stored by vectors of so many elements."""
        height, extent = self.problem.height.axis.extent, self.problem.width.axis.extent
        found: Bools = (sizes.tiles_w == 1) & (height % sizes.tile_h == 0) & (sizes.tile_h * extent % width == 0)
        return found

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """Blocks have work for all of their threads, unless there are few of them. With bulk copies two warps are
        enough. Stores are as wide as they may be, unless threads would wait for one another at the banks of shared
        memory."""
        sizes = self.sizes(columns)
        columns_of = sizes.row_tiles * sizes.loaded // columns_at_once(self.problem)
        items = np.minimum(columns_of, sizes.lines * sizes.tile_columns // sizes.tile_w)
        busy = ((sizes.threads >= 128) | (sizes.staged > 0)) & (2 * items >= sizes.threads)
        widest = np.ones_like(sizes.threads)
        if gcd(self.problem.width.axis.extent, WARP_LANES) <= MOST_CONFLICTS:
            for width in (b // self._store_bytes[0] for b in self._store_bytes):
                widest = np.where(self._is_stored_by(sizes, width), width, widest)
        found: Bools = (busy | (sizes.blocks <= self.target.threads)) & (sizes.store_width == widest)
        return found

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        """Lanes of a warp that have no column or no outputs wait for those that have. While the threads of a block wait
        for one another, other blocks work."""
        sizes, problem, workload = self.sizes(columns), self.problem, self.problem.workload
        lanes, each, outputs = word_lanes(problem), len(problem.sliding_loads), len(problem.outputs)
        at_once = columns_at_once(problem)
        copied = sizes.staged > 0
        eased = np.where(copied, COPIED, 1)
        rounds = np.where(copied, 1, -(-sizes.row_tiles * sizes.loaded // (at_once * sizes.threads)))
        columns_of = sizes.blocks * at_once * _in_warps(sizes.row_tiles * sizes.loaded // at_once)
        segments = sizes.blocks * _in_warps(sizes.lines * (sizes.tile_columns // sizes.tile_w))
        row_words = sizes.blocks * _in_warps(sizes.lines * -(-sizes.tile_columns // sizes.row_lanes) * sizes.row_lanes)
        elements = sizes.lines * lanes * problem.width.axis.extent
        vectors, width = sizes.blocks * _in_warps(-(-elements // sizes.store_width)), sizes.store_width
        reads = np.where(width > 1, vectors, row_words)
        stores = np.where(width > 1, vectors, row_words * lanes * outputs)
        bank_conflicts = np.where(width > 1, np.gcd(problem.width.axis.extent, WARP_LANES), 1)
        written = columns_of * (sizes.tile_h // lanes) + segments * (sizes.near + bank_conflicts * sizes.tile_w)
        moved = written + np.where(width > 1, vectors * width // lanes, row_words)
        through_shared = np.where(copied, sizes.blocks * sizes.row_tiles * sizes.staged + columns_of * sizes.rows, 0)
        loads = columns_of * each * sizes.rows * eased
        steps = columns_of // at_once * step_counts(problem.height, sizes.tile_h, problem.combine)
        steps = steps + segments * lanes // at_once * step_counts(problem.width, sizes.tile_w, problem.combine)
        traffic = MemoryTraffic(
            blocks=sizes.blocks,
            resident=sizes.resident,
            rounds=rounds,
            memory_bytes=minimum_bytes(workload),
            l2_bytes=sizes.blocks * sizes.row_tiles * sizes.loaded * sizes.rows * self.problem.position_bytes
            + sum(b.bytes for b in workload.output_buffers),
            shared_bytes=(moved * lanes + through_shared) * line_dtype(problem).bytes,
            accesses=(loads + written + reads + stores) / WARP_LANES,
            operations=STEP_OPERATIONS * steps,
        )
        few = np.full_like(sizes.threads, SPARE_REGISTERS)
        busy = np.where(copied, 1, np.minimum(sizes.row_tiles * sizes.loaded / (at_once * sizes.threads), 1))
        overlapping = busy * self.limits.resident_blocks(sizes.threads, few, sizes.shared_bytes)
        found = gpu_peaks(self.target, peaks)
        begins = TILE_SECONDS * sizes.blocks / self.target.threads
        seconds = begins + memory_bound_seconds(found, traffic)
        accesses = ACCESS_CYCLES * traffic.accesses / (found.multiprocessors * found.clock_hz)
        seconds = seconds * (1 + eased * BARRIER_WAITS / np.maximum(overlapping, 1)) + EXPOSED_ACCESSES * accesses
        result: Floats = seconds
        return result

    def derive(self, columns: Columns) -> Derived:
        sizes = self.sizes(columns)
        return {
            **gpu_columns(self.target, sizes, wanted=sizes.rows * self.problem.position_bytes),
            "outputs": sizes.tile_h * sizes.tile_w,
            "loads_per_output": sizes.positions * sizes.rows / (sizes.tile_h * sizes.tile_columns),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return separable_window_kernel(self.problem, self.sizes_of(setting))


def _row_lanes(tile_columns: Ints) -> Ints:
    """Return how many neighbouring lanes store a row of so many columns."""
    lanes = np.full_like(tile_columns, ROW_LANES[-1])
    for most in reversed(ROW_LANES):
        lanes = np.where(-(-tile_columns // most) * most <= IDLE_LANES * tile_columns, most, lanes)
    return lanes


def _in_warps(items: Ints) -> Ints:
    """Return how many lanes the warps have that so many items are shared out to."""
    return -(-items // WARP_LANES) * WARP_LANES


CUDA_SEPARABLE_WINDOW = TileSketch(
    "cuda_separable_window", 1, QUANTITIES, planned(separable_window_of, SeparableWindowPlan)
)
