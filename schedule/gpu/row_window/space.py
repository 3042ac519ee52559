"""Describes the space of kernels of windows that move along rows: knobs, constraints, derived sizes and the prior
(sketch ``cuda_row_window``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.cost import flops, minimum_bytes
from ...problems.row_window import RowWindow, row_window_of
from ...problems.window_steps import step_counts
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile_sketch import TileSketch, planned
from ..memory_prior import TILE_SECONDS, MemoryTraffic, memory_bound_seconds
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, WINDOW_QUANTITIES, gpu_columns
from .kernel import RowWindowSizes, accumulator_dtype, row_window_kernel

SPARE_REGISTERS = 16
"""Registers for addresses and constants, roughly (from compiled kernels)."""
MOST_NEAR = 96
"""Positions that a thread has in registers, at most."""
MOST_SHARED_BYTES = 48 << 10
"""Shared memory of a block, at most."""
WASTE = 1.5
"""For how many more outputs of a row promising settings have room at most than the thriftiest of them."""

STEP_OPERATIONS = 2
"""An addition takes as long as a fused multiplication and addition, which is so many operations."""

QUANTITIES = (*GPU_QUANTITIES, *WINDOW_QUANTITIES)


@dataclass(frozen=True)
class RowWindowPlan(GpuPlan):
    """The settings of a reduction over windows along rows on a target."""

    problem: RowWindow
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob(
                "tile_w",
                (1, 3, 5, 7, 9, 11, 13, 15, 19, 23, 27),
                "how many neighbouring outputs along the width a thread computes",
            ),
            Knob("threads_per_row", (32, 64, 128, 256, 512), "how many threads of a block share a row"),
            Knob("rows_per_cta", (1, 2, 4, 8, 16), "how many rows a block has"),
        )

    @property
    def _rows(self) -> int:
        return prod(a.extent for a in self.problem.row_axes)

    @derived_once
    def sizes(self, columns: Columns) -> RowWindowSizes:
        problem, accumulator = self.problem, accumulator_dtype(self.problem)
        knobs = columns.named(*(k.name for k in self.knobs))
        tile_w, threads_per_row, rows = knobs.values()
        tile_columns = tile_w * threads_per_row
        positions, near = (problem.width.positions(n) for n in (tile_columns, tile_w))
        loads, tiles = -(-positions // threads_per_row), -(-problem.columns // tile_columns)
        shared_bytes = rows * (positions * self.problem.position_bytes + tile_columns * accumulator.bytes)
        words = len(problem.sliding_loads) * np.maximum(near, loads) + tile_w * -(-accumulator.bytes // 4)
        registers = SPARE_REGISTERS + words
        return RowWindowSizes(
            **knobs,
            tiles=tiles,
            positions=positions,
            loads=loads,
            near=near,
            blocks=tiles * -(-self._rows // rows),
            shared_bytes=shared_bytes,
            registers=registers,
            resident=self.limits.resident_blocks(threads_per_row * rows, registers, shared_bytes),
        )

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return (
            Constraint(
                "rows_per_cta divides the rows of the outputs",
                ("rows_per_cta",),
                lambda c: self._rows % c.ints("rows_per_cta") == 0,
            ),
            Constraint(
                f"the outputs of a thread read at most {MOST_NEAR} positions",
                ("tile_w",),
                lambda c: self.problem.width.positions(c.ints("tile_w")) <= MOST_NEAR,
            ),
            *self.launch_rules(MOST_SHARED_BYTES),
        )

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        sizes = self.sizes(columns)
        threads, room = sizes.threads, sizes.tiles * sizes.threads_per_row * sizes.tile_w
        usual = (threads <= 512) & ((threads >= 128) | (sizes.blocks <= self.target.threads))
        found: Bools = usual & (room <= WASTE * np.min(room, where=usual, initial=np.iinfo(np.int64).max))
        return found

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        """Windows are reduced for all outputs that threads have room for. Lanes that read from one bank of shared
        memory do so one after the other."""
        sizes, problem, workload = self.sizes(columns), self.problem, self.problem.workload
        threads = sizes.blocks * sizes.threads
        each, outputs = len(problem.sliding_loads), len(problem.outputs)
        bank_conflicts = np.gcd(sizes.tile_w * problem.width.stride, WARP_LANES)
        inputs = (sizes.loads + bank_conflicts * sizes.near) * self.problem.position_bytes
        results = 2 * sizes.tile_w * accumulator_dtype(problem).bytes
        if problem.is_alike(problem.width):
            operations = STEP_OPERATIONS * threads * step_counts(problem.width, sizes.tile_w, problem.combine)
        else:
            operations = flops(workload) * threads * sizes.tile_w / (self._rows * problem.columns)
        traffic = MemoryTraffic(
            blocks=sizes.blocks,
            resident=sizes.resident,
            memory_bytes=minimum_bytes(workload),
            l2_bytes=sizes.blocks * sizes.rows_per_cta * sizes.positions * self.problem.position_bytes
            + sum(b.bytes for b in workload.output_buffers),
            shared_bytes=threads * (inputs + results),
            accesses=threads / WARP_LANES * (each * (2 * sizes.loads + sizes.near) + (2 + outputs) * sizes.tile_w),
            operations=operations,
        )
        begins = TILE_SECONDS * sizes.blocks / self.target.threads
        found: Floats = begins + memory_bound_seconds(gpu_peaks(self.target, peaks), traffic)
        return found

    def derive(self, columns: Columns) -> Derived:
        sizes = self.sizes(columns)
        return {
            **gpu_columns(self.target, sizes, wanted=sizes.loads * self.problem.position_bytes),
            "outputs": np.asarray(sizes.tile_w, np.float64),
            "loads_per_output": sizes.positions / (sizes.threads_per_row * sizes.tile_w),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return row_window_kernel(self.problem, self.sizes_of(setting))


CUDA_ROW_WINDOW = TileSketch("cuda_row_window", 1, QUANTITIES, planned(row_window_of, RowWindowPlan))
