"""Describes the settings of column-wise reductions: sums, means and positions over leading axes, with what is fused to
them.

The threads of a CTA walk along the reduced axes with a vector of columns each. The rows may be split among several
CTAs, whose partial results become one in a cluster or in a second launch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...problems.columnwise import ColumnwiseProblem, columnwise_problem
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch
from ..peaks import gpu_peaks
from ..plan import GpuPlan
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..reduction_prior import CLUSTERED_SHARE, LARGEST_CLUSTER
from .kernel import columnwise_kernel
from .prior import columnwise_seconds, partial_bytes
from .sizes import (
    BLOCKED,
    CLUSTER,
    SECOND_LAUNCH,
    STRIPED,
    VECTOR_BYTES,
    VECTORS,
    ColumnwiseSizes,
    aligned_vector,
    columns_of_cta,
    columnwise_sizes,
    row_period,
)

FEWEST_CTAS = 64
"""Fewer CTAs leave most of the device idle."""
SMALL_ELEMENTS = 1 << 22
"""Fewer elements than this need no splits."""
VECTORS_IN_FLIGHT = 2048
"""How many vectors a multiprocessor must have in flight to keep memory busy: 32 KiB."""
MOST_CTAS_PER_SM = 8
"""With more CTAs for each multiprocessor, more splits only cost."""
MOST_SHARED_BYTES = 48 << 10
"""How much shared memory a CTA is given at most."""
SHORT_RUN_BYTES = 64
"""How many contiguous bytes of a row a CTA reads at least, where a row has so many: memory gives no less."""
NARROW_VECTOR_BYTES = 2
"""Vectors of so many bytes need more rows in flight than others, and more threads for the same contiguous bytes."""
NARROW_THREADS = 8
"""Fewer threads along the columns are for so few columns that only clusters occupy the whole device."""
AGAIN_COLUMNS, AGAIN_BYTES = 32, 64 << 10
"""Elementwise outputs read all rows of the columns of a CTA again. Of so many columns, all rows take so many bytes at
most: a multiprocessor has a cache of 256 KiB for them."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("contiguous_bytes", "B", "how much a CTA reads of each row"),
    Quantity("rows_per_thread", "rows", "how many rows a thread takes"),
    Quantity("partials", "partials", "how many partial results of a column there are, in different CTAs"),
    Quantity("partial_bytes", "B", "how much a second launch and the one before it move for partial results"),
)


@dataclass(frozen=True)
class ColumnwisePlan(GpuPlan):
    workload: Workload
    target: Target
    problem: ColumnwiseProblem

    @property
    def knobs(self) -> tuple[Knob, ...]:
        multiprocessors = self.target.threads
        splits = sorted({1, 2, 4, 8, 16, 32, *(max(1, multiprocessors * n // 2) for n in (1, 2, 4))})
        combine = (SECOND_LAUNCH, CLUSTER) if self.limits.clusters else (SECOND_LAUNCH,)
        if self.problem.later_outputs:  # a CTA has what was reduced of its columns
            splits, combine = [1], (SECOND_LAUNCH,)
        return (
            Knob("vector_width", self._vectors(), "how many columns a thread reads at once"),
            Knob(
                "threads_x",
                (2, 4, 8, 16, 32, 64, 128, 256, 512),
                "how many threads of a CTA are next to each other in a row",
            ),
            Knob("threads_y", (1, 2, 4, 8, 16, 32, 64, 128, 256), "how many threads of a CTA share a column"),
            Knob("unroll", (1, 4, 8, 16), "how many rows a thread has in flight"),
            Knob("splits", tuple(splits), "how many CTAs share the rows of a column"),
            Knob(
                "arrangement",
                (BLOCKED, STRIPED),
                "whether a split has rows next to each other, or takes every splits-th row",
            ),
            Knob("combine", combine, "where the partial results of the splits become one"),
        )

    def _vectors(self) -> tuple[int, ...]:
        """Return the widest vector that divides the columns, and then wider ones of 16 and of 8 bytes, which are
        shifted. Elementwise outputs are written by the first one alone."""
        p, aligned = self.problem, aligned_vector(self.problem)
        widest = max(b.dtype.bytes for b in p.inputs)
        wide = [v for v in VECTORS if VECTOR_BYTES // 2 <= v * widest <= VECTOR_BYTES and aligned < v <= p.column_count]
        shifted = [] if p.elementwise_outputs else [v for v in reversed(wide) if p.columns[-1] % v]
        return (aligned, *shifted)

    @derived_once
    def sizes(self, columns: Columns) -> ColumnwiseSizes[Ints]:
        return columnwise_sizes(self.problem, self.target, columns)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return (
            Constraint(
                "threads_x times threads_y is a whole number of warps",
                ("threads_x", "threads_y"),
                lambda c: c.ints("threads_x") * c.ints("threads_y") % WARP_LANES == 0,
            ),
            Constraint(
                f"with vectors wider than what divides the columns, threads_x is at least {NARROW_THREADS}, and "
                "threads_y a multiple of the rows after which the alignment is the same",
                ("vector_width", "threads_x", "threads_y"),
                self._rows_are_alike,
            ),
            Constraint(
                "arrangement is blocked and combine is second_launch where splits is 1",
                ("splits", "arrangement", "combine"),
                lambda c: (
                    (c.ints("splits") > 1) | (c.flags("arrangement", BLOCKED) & c.flags("combine", SECOND_LAUNCH))
                ),
            ),
            Constraint(
                "every split has at least one row where arrangement is blocked",
                ("splits", "arrangement"),
                self._splits_have_rows,
            ),
            Constraint(
                "with combine in a cluster, splits is at most 16 and divides the columns of a CTA",
                ("vector_width", "threads_x", "splits", "combine"),
                self._shares_columns,
            ),
            self.rule(
                "registers and shared memory of a multiprocessor have room for a CTA",
                ("vector_width", "threads_x", "threads_y", "unroll"),
                lambda s: self.limits.resident(s) >= 1,
            ),
        )

    def _splits_have_rows(self, c: Columns) -> Bools:
        count, splits = self.problem.reduced_count, c.ints("splits")
        share = -(-count // splits)
        return c.flags("arrangement", STRIPED) | ((splits - 1) * share < count)

    def _rows_are_alike(self, c: Columns) -> Bools:
        vector = c.ints("vector_width")
        alike = c.ints("threads_y") % row_period(self.problem, vector) == 0
        shifted: Bools = (c.ints("threads_x") >= NARROW_THREADS) & alike
        return shifted | (vector <= aligned_vector(self.problem))

    def _shares_columns(self, c: Columns) -> Bools:
        splits, columns = c.ints("splits"), columns_of_cta(self.problem, c.ints("vector_width"), c.ints("threads_x"))
        shared: Bools = (splits <= LARGEST_CLUSTER) & (columns % splits == 0)
        return shared | c.flags("combine", SECOND_LAUNCH)

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """Small problems have no splits and one row in flight, or what large ones have: enough CTAs, each with enough
        in flight, and no more splits than that takes."""
        s, p, multiprocessors = self.sizes(columns), self.problem, self.target.threads
        narrow, wide = s.threads_x < NARROW_THREADS, s.threads_x * s.vector
        resident = self.limits.resident(s)
        small = s.blocks // s.splits * p.reduced_count * wide < SMALL_ELEMENTS
        plain = (s.splits == 1) & (s.unroll == 1) & (s.threads <= 256)
        busy = (s.splits * s.rows_per_step <= p.reduced_count) & (s.blocks >= FEWEST_CTAS)
        busy &= (s.threads >= 256) & (s.unroll > 1)
        in_flight = np.minimum(resident, -(-s.blocks // multiprocessors)) * s.threads * s.unroll
        busy &= in_flight >= VECTORS_IN_FLIGHT
        few_splits = (s.splits == 1) | (s.blocks <= MOST_CTAS_PER_SM * multiprocessors)
        good: Bools = np.where(small, plain | busy, busy & few_splits)
        good &= (s.threads >= 128) & (s.shared_bytes <= MOST_SHARED_BYTES)
        vector_bytes = s.vector * p.read_bytes
        usual, long_run = (s.unroll <= 8) & (s.threads_x <= 128), (s.unroll >= 8) & (s.splits == 1)
        good &= np.where(vector_bytes <= NARROW_VECTOR_BYTES, usual | long_run, usual)
        good &= wide < 2 * np.maximum(p.column_count, 8 * s.vector)
        element_bytes = p.inputs[0].dtype.bytes
        least = min(SHORT_RUN_BYTES, p.column_count * element_bytes)
        good &= wide * element_bytes >= np.where(narrow, least // 2, least)
        good &= (s.in_cluster == 0) | (s.striped == 0) | narrow
        good &= narrow == (s.threads_y > 64)
        good &= ~narrow | ((s.in_cluster == 1) & (np.abs(s.blocks / multiprocessors - 1.5) < 0.6))
        good &= ~narrow | (s.blocks <= CLUSTERED_SHARE * multiprocessors * resident)
        return good

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return columnwise_seconds(self.problem, self.sizes(columns), self.limits, gpu_peaks(self.target, peaks))

    def derive(self, columns: Columns) -> Derived:
        s, p = self.sizes(columns), self.problem
        return {
            **gpu_columns(self.target, s, wanted=s.unroll * s.vector * p.read_bytes),
            "contiguous_bytes": s.columns_per_cta * p.read_bytes,
            "rows_per_thread": p.reduced_count / (s.splits * s.threads_y),
            "partials": s.splits,
            "partial_bytes": partial_bytes(p, s),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return columnwise_kernel(self.workload, self.problem, self.sizes_of(setting))


def _plan(workload: Workload, target: Target) -> ColumnwisePlan | None:
    problem = columnwise_problem(workload)
    if problem is None or (problem.later_outputs and not _is_read_again_from_caches(problem, target)):
        return None
    return ColumnwisePlan(workload, target, problem)


def _is_read_again_from_caches(problem: ColumnwiseProblem, target: Target) -> bool:
    """Return whether all rows of few columns fit a cache, and there are columns for all multiprocessors."""
    read = problem.reduced_count * problem.read_bytes * AGAIN_COLUMNS
    return read <= AGAIN_BYTES and problem.outer_count * problem.column_count >= AGAIN_COLUMNS * target.threads


CUDA_COLUMNWISE = TileSketch("cuda_columnwise", 4, QUANTITIES, _plan)
