"""How a column-wise reduction is shared out among threads, and what a CTA takes of a multiprocessor.

The elements are seen as ``outer_count`` matrices, whose rows are the reduced axes. A CTA takes ``columns_per_cta``
columns of one matrix and one of ``splits`` parts of its rows. Thread (x, y) takes vector x of the columns, and of the
rows the y-th one of every ``threads_y``. It has ``unroll`` of its rows in flight:

    row 0                 | vector of thread (0, 0) | vector of thread (1, 0) | ... threads_x vectors
    row 1                 | vector of thread (0, 1) | vector of thread (1, 1) |
    ...
    row threads_y         | vector of thread (0, 0) | vector of thread (1, 0) |
    row threads_y + 1     | vector of thread (0, 1) | vector of thread (1, 1) |

Shifted vectors are wider than what divides the columns. They begin at multiples of their width in memory, so that a row
begins up to ``vector - 1`` elements, its shift, after the begin of its first vector. Rows that are ``row_period`` apart
have the same shift. ``threads_y`` is a multiple of that, so that all rows of a thread have the same shift, and its
vectors the same columns. A CTA has a vector less of whole columns than its threads load.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ...problems.columnwise import ColumnwiseProblem
from ...space.columns import Columns, Ints
from ..occupancy import limits_of

N = TypeVar("N", int, Ints)
"""A number of one setting, or a column of the numbers of many settings."""

VECTORS = (1, 2, 4, 8, 16)
"""How many columns a memory access may have, which has up to ``VECTOR_BYTES``."""
VECTOR_BYTES = 16
SPARE_REGISTERS = 20
"""Roughly how many registers a thread needs for addresses (from compiled kernels)."""
BLOCKED, STRIPED = "blocked", "striped"
"""How rows are dealt to the splits, in CUB's words. Blocked: a split has rows next to each other. Striped: the splits
take ``threads_y`` rows each, one split after another, and then the first one takes the next."""
SECOND_LAUNCH, CLUSTER = "second_launch", "cluster"
"""Where the partial results of the splits become one."""
MANY_SPLITS = 64
"""Beyond so many splits a second launch has 32 threads for each column instead of 8."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnwiseSizes(Generic[N]):
    """The sizes of one setting (N is int), or of many (N is a column of them).

    ``vector``: columns of one memory access.
    ``shifted``: 1 where vectors begin at multiples of their width in memory, 0 where they do so in the row.
    ``columns_per_cta``: columns of a CTA.
    ``threads_x``: threads of a CTA next to each other along the columns.
    ``threads_y``: threads of a CTA that share a column.
    ``unroll``: rows that a thread has in flight.
    ``splits``: parts of the rows, each for another CTA.
    ``striped``: 1 where rows are dealt ``STRIPED``, 0 where they are ``BLOCKED``.
    ``in_cluster``: 1 where the splits of a column are a cluster, 0 where a second launch combines their results.
    ``second_threads_y``: threads that share a column in the second launch.
    ``registers``: registers of a thread, estimated.
    ``shared_bytes``: shared memory of a CTA.
    ``blocks``: CTAs of the first launch.
    ``min_ctas_per_sm``: CTAs for which a multiprocessor must have room; 0: any number. Without it the compiler saves
    registers for as many CTAs as it likes, and loads fewer rows at once.
    ``prefetching_ctas``: how many CTAs, the first ones, prefetch their rows to L2 before they wait for the launches
    before; 0: none.
    """

    vector: N
    shifted: N
    columns_per_cta: N
    threads_x: N
    threads_y: N
    unroll: N
    splits: N
    striped: N
    in_cluster: N
    second_threads_y: N
    registers: N
    shared_bytes: N
    blocks: N
    min_ctas_per_sm: N
    prefetching_ctas: N

    @property
    def threads(self) -> N:
        """Threads of a CTA."""
        return self.threads_x * self.threads_y

    @property
    def rows_per_step(self) -> N:
        """Rows that the threads of a CTA take before they come to the next ones of the same split."""
        return self.threads_y * self.unroll


def aligned_vector(problem: ColumnwiseProblem) -> int:
    """Return the widest vector of up to 16 bytes that divides the columns."""
    dtypes = [b.dtype for b in problem.inputs] + [load.dtype for load in problem.column_loads]
    dtypes += [c.tensor.dtype for c in problem.elementwise_outputs]
    widest = max(d.bytes for d in dtypes)
    return max(v for v in VECTORS if problem.columns[-1] % v == 0 and (v * widest <= VECTOR_BYTES or v == 1))


def row_period(problem: ColumnwiseProblem, vector: Ints) -> Ints:
    """Return how many rows apart rows begin equally far from a multiple of ``vector`` elements in memory, int64[n]."""
    period: Ints = vector // np.gcd(vector, problem.column_count)
    return period


def columns_of_cta(problem: ColumnwiseProblem, vector: Ints, threads_x: Ints) -> Ints:
    """Return how many columns a CTA has, int64[n]. With shifted vectors tiles share the columns evenly."""
    most = (threads_x - 1) * vector
    tiles = -(-problem.column_count // np.maximum(most, 1))
    even = -(-problem.column_count // (np.maximum(tiles, 1) * vector)) * vector
    columns: Ints = np.where(vector > aligned_vector(problem), even, threads_x * vector)
    return columns


def columnwise_sizes(problem: ColumnwiseProblem, target: Target, c: Columns) -> ColumnwiseSizes[Ints]:
    """Return the sizes of many settings."""
    limits, splits, vector = limits_of(target), c.ints("splits"), c.ints("vector_width")
    threads_x, threads_y, unroll = c.ints("threads_x"), c.ints("threads_y"), c.ints("unroll")
    threads = threads_x * threads_y
    words = sum(-(-b.dtype.bytes * vector // 4) for b in problem.inputs)
    registers = SPARE_REGISTERS + unroll * words + vector * (-(-problem.state_bytes // 4))
    if problem.later_outputs:  # the results of the columns, and elements of the outputs
        registers = registers + 2 * vector
    elif problem.mapped_outputs:
        registers = registers + vector
    shifted = vector > aligned_vector(problem)
    cells = np.where(shifted, threads_y * (threads_x + 1), threads // np.maximum(WARP_LANES // threads_x, 1))
    shared_bytes = cells * vector * problem.state_bytes
    columns = columns_of_cta(problem, vector, threads_x)
    ctas = problem.outer_count * -(-problem.column_count // columns) * splits
    resident = limits.resident_blocks(threads, registers, shared_bytes)
    return ColumnwiseSizes(
        vector=vector,
        shifted=shifted.astype(np.int64),
        columns_per_cta=columns,
        threads_x=threads_x,
        threads_y=threads_y,
        unroll=unroll,
        splits=splits,
        striped=c.flags("arrangement", STRIPED).astype(np.int64),
        in_cluster=c.flags("combine", CLUSTER).astype(np.int64),
        second_threads_y=np.where(splits <= MANY_SPLITS, 8, 32),
        registers=registers,
        shared_bytes=shared_bytes,
        blocks=ctas,
        min_ctas_per_sm=np.minimum(resident, -(-ctas // target.threads)),
        prefetching_ctas=limits.overlapping_ctas(resident, target.threads),
    )
