"""How a column-wise kernel that keeps its elements shares them out among threads.

A CTA takes ``columns_per_cta`` neighbouring columns of one matrix, and of its rows one of ``splits`` parts.
Thread (x, y) takes vector x of the columns, and of the rows the y-th one of every ``threads_y``:

    row 0                 | vector of thread (0, 0) | vector of thread (1, 0) | ... threads_x vectors
    row 1                 | vector of thread (0, 1) | vector of thread (1, 1) |
    ...
    row threads_y         | vector of thread (0, 0) | vector of thread (1, 0) |

A *group* is the columns that have one result: a single one, or all ``members`` of the problem. A tile has whole groups.
Shifted vectors are wider than what divides the columns (see ``sizes``): all rows of a thread begin equally far, by the
thread's shift, after a multiple of the vector in memory, and so many columns earlier its vector begins. A tile then has
a vector less of columns than its threads load, and every column is a group.

To reduce a group, threads leave *cells* in shared memory, one for each column, or a single one where all columns of a
vector belong to the same group. Then ``helpers`` lanes of a warp combine the cells of each group.
"""

from dataclasses import dataclass
from math import gcd
from typing import Generic, TypeVar

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ...problems.columnwise import ColumnwiseProblem
from ...space.columns import Columns, Ints
from ..occupancy import PARTS, GpuLimits, limits_of
from ..rowwise.sizes import SPARE_SHARED_BYTES, RowStorage
from .sizes import VECTOR_BYTES, VECTORS

N = TypeVar("N", int, Ints)
"""A number of one setting, or a column of the numbers of many settings."""

SPARE_REGISTERS = 22
"""Roughly how many registers a thread needs for addresses and partial results (from compiled kernels)."""
CONVERTED = 3
"""How many more registers four rows of 16-bit floats take than their elements."""
MOST_ELEMENTS = 256
"""How many elements of an input a thread keeps in registers at most. The passes over them are unrolled."""
STORAGES = (RowStorage.REGISTERS, RowStorage.REGISTERS_AND_SHARED, RowStorage.GLOBAL)
GRID = "grid"
"""Where the partial results of the splits become one, if not in a cluster: at the barrier of a cooperative launch."""
BANKS = 32
"""Banks of shared memory, of 4 bytes each."""


@dataclass(frozen=True, slots=True, eq=False)
class PersistentSizes(Generic[N]):
    """The sizes of one setting (N is int), or of many (N is a column of them).

    ``vector``: columns of one memory access.
    ``shifted``: 1 where vectors are wider than what divides the columns, else 0.
    ``threads_x``: threads of a CTA next to each other along the columns.
    ``threads_y``: threads of a CTA that share a column.
    ``threads``: threads of a CTA, of which those beyond ``threads_x`` times ``threads_y`` have no elements.
    ``splits``: CTAs that share the rows of a tile.
    ``in_grid``: 1 where they meet at the barrier of the grid, 0 where they are a cluster.
    ``rows_per_cta``: rows of a CTA, at most.
    ``storage``: where rows stay between the passes, a ``RowStorage``.
    ``kept_rows``: rows of a thread that stay in its registers.
    ``buffered_rows``: rows of a thread that stay in shared memory.
    ``unroll``: how many of the other rows, or of those in shared memory, a thread has in registers at a time. Rows that
    stay in neither are read again by every pass.
    ``cells``: cells that a thread leaves in shared memory for each reduction.
    ``pitch``: cells from one y to the next.
    ``groups``: groups of a tile.
    ``group_cells``: cells of a group next to each other.
    ``helpers``: lanes that combine the cells of a group.
    ``registers``: registers of a thread, estimated.
    ``shared_bytes``: shared memory of a CTA.
    ``blocks``: CTAs of the launch.
    ``resident``: how many CTAs a multiprocessor runs at once.
    ``min_ctas_per_sm``: CTAs for which a multiprocessor must have room, which limits their registers.
    """

    vector: N
    shifted: N
    threads_x: N
    threads_y: N
    threads: N
    splits: N
    in_grid: N
    rows_per_cta: N
    storage: N
    kept_rows: N
    buffered_rows: N
    unroll: N
    cells: N
    pitch: N
    groups: N
    group_cells: N
    helpers: N
    registers: N
    shared_bytes: N
    blocks: N
    resident: N
    min_ctas_per_sm: N

    @property
    def columns_per_cta(self) -> N:
        """Columns of a CTA."""
        return (self.threads_x - self.shifted) * self.vector

    @property
    def rows_per_thread(self) -> N:
        """Rows of a thread, at most."""
        return -(-self.rows_per_cta // self.threads_y)

    @property
    def again_rows(self) -> N:
        """Rows of a thread that every pass reads again, at most."""
        return self.rows_per_thread - self.kept_rows - self.buffered_rows

    @property
    def cluster_size(self) -> N:
        """CTAs of a cluster."""
        return self.splits - (self.splits - 1) * self.in_grid


def vector_widths(problem: ColumnwiseProblem) -> tuple[int, ...]:
    """Return how many columns a memory access may have, up to 16 bytes: first those that divide the columns of a row,
    the most first, and then shifted ones of 8 and 16 bytes, where the tensors end with a whole one."""
    dtypes = [b.dtype for b in problem.inputs] + [c.tensor.dtype for c in problem.elementwise_outputs]
    widest = max(d.bytes for d in dtypes)
    count, every = problem.column_count, problem.outer_count * problem.reduced_count * problem.column_count
    fits = [v for v in reversed(VECTORS) if v * widest <= VECTOR_BYTES or v == 1]
    shifted = [v for v in fits if count % v and every % v == 0 and 2 * v * widest >= VECTOR_BYTES and v < count]
    return (*(v for v in fits if count % v == 0), *(shifted if problem.member_count == 1 else ()))


def vectors_of_groups(problem: ColumnwiseProblem, vector: int) -> int:
    """Return the least number of vectors that are whole groups."""
    return problem.member_count // gcd(problem.member_count, vector)


def persistent_sizes(problem: ColumnwiseProblem, target: Target, c: Columns) -> PersistentSizes[Ints]:
    """Return the sizes of many settings."""
    limits, members = limits_of(target), problem.member_count
    vector, threads_x, threads = c.ints("vector_width"), c.ints("threads_x"), c.ints("threads")
    splits = c.ints("splits")
    rows_per_cta = -(-problem.reduced_count // splits)
    threads_y = np.clip(threads // threads_x, 1, rows_per_cta)
    rows, unroll = -(-rows_per_cta // threads_y), c.ints("unroll")
    storage = np.sum([storage * c.flags("row_storage", storage.text) for storage in STORAGES], axis=0)
    joins = (members > 1) & (members % vector == 0)
    cells = np.where(joins, 1, vector)
    shifted = (problem.column_count % vector > 0).astype(np.int64)
    groups = np.maximum((threads_x - shifted) * vector // members, 1)
    group_cells = np.where(joins, members // vector, members)
    helpers = _power_of_two(np.minimum(np.minimum(threads // groups, threads_y * group_cells), WARP_LANES))
    width = (threads_x + shifted) * cells
    apart = np.maximum(BANKS // helpers, cells)
    pitch = width + np.where(group_cells == 1, (apart - width) % BANKS, 0)
    totals = len(problem.reductions) * (1 + (splits > 1)) * groups
    reduction_bytes = _state_bytes(problem) * (threads_y * pitch + totals)
    row_bytes = threads_x * threads_y * vector * problem.read_bytes
    room = limits.shared_bytes_for(c.ints("ctas_per_sm")) - reduction_bytes - SPARE_SHARED_BYTES
    shared = storage == RowStorage.REGISTERS_AND_SHARED
    buffered = np.where(shared, np.clip(room // row_bytes, 0, rows), 0)
    most = np.minimum(_most_kept(problem, limits, c), rows - buffered)
    kept = np.select([storage == RowStorage.GLOBAL, shared], [0 * rows, most], rows)
    registers = _registers(problem, vector, kept + np.where(storage == RowStorage.REGISTERS, 0, unroll))
    shared_bytes = reduction_bytes + buffered * row_bytes
    columns = np.maximum((threads_x - shifted) * vector, 1)
    ctas = problem.outer_count * -(-problem.column_count // columns) * splits
    resident = limits.resident_blocks(threads, registers, shared_bytes)
    in_grid = c.flags("combine", GRID)  # all CTAs must run at once then
    wanted = np.where(shared & ~in_grid, c.ints("ctas_per_sm"), resident)
    return PersistentSizes(
        vector=vector,
        shifted=shifted,
        threads_x=threads_x,
        threads_y=threads_y,
        threads=threads,
        splits=splits,
        in_grid=in_grid.astype(np.int64),
        rows_per_cta=rows_per_cta,
        storage=storage,
        kept_rows=kept,
        buffered_rows=buffered,
        unroll=unroll,
        cells=cells,
        pitch=pitch,
        groups=groups,
        group_cells=group_cells,
        helpers=helpers,
        registers=registers,
        shared_bytes=shared_bytes,
        blocks=ctas,
        resident=resident,
        min_ctas_per_sm=np.minimum(wanted, -(-ctas // target.threads)),
    )


def _most_kept(problem: ColumnwiseProblem, limits: GpuLimits, c: Columns) -> Ints:
    """Return how many rows a thread can keep in registers where ``ctas_per_sm`` CTAs run at once."""
    vector, warps = c.ints("vector_width"), c.ints("threads") // WARP_LANES
    of_part = limits.registers_per_multiprocessor // (PARTS * WARP_LANES)
    there = of_part // -(-c.ints("ctas_per_sm") * warps // PARTS) // 8 * 8
    free = np.minimum(there, limits.registers_per_thread) - _registers(problem, vector, 0 * vector)
    words = sum(-(-b.dtype.bytes * vector // 4) for b in problem.inputs)
    rows = 4 * np.maximum(free, 0) // (4 * words + (CONVERTED if _has_16_bits(problem) else 0))
    kept: Ints = np.clip(rows - c.ints("unroll"), 0, MOST_ELEMENTS // vector)
    return kept


def _registers(problem: ColumnwiseProblem, vector: Ints, rows: Ints) -> Ints:
    """Registers of a thread: its elements of ``rows`` rows, for each of its columns a result, an accumulator and an
    element, and what is loaded of columns. 16-bit floats take more, since some of them are in float32 at a time."""
    words = sum(-(-b.dtype.bytes * vector // 4) for b in problem.inputs)
    of_columns = sum((-(-load.dtype.bytes * vector // 4) for load in problem.column_loads), start=0 * vector)
    needed: Ints = SPARE_REGISTERS + rows * words + 3 * vector * (_state_bytes(problem) // 4) + of_columns
    return needed + 2 * vector + CONVERTED * rows // 4 if _has_16_bits(problem) else needed


def _has_16_bits(problem: ColumnwiseProblem) -> bool:
    return any(b.dtype.bits == 16 for b in problem.inputs)


def _state_bytes(problem: ColumnwiseProblem) -> int:
    """Bytes of the state of a reduction, at most."""
    return max(max(r.accumulation.accumulator_dtype.bytes for r in problem.reductions), 4)


def _power_of_two(value: Ints) -> Ints:
    """Return the greatest powers of two that are no greater than ``value``, whose numbers are positive."""
    found: Ints = 2 ** np.floor(np.log2(np.maximum(value, 1))).astype(np.int64)
    return found
