"""Writes the launch of a kernel that works on rows: which CTA takes which rows, and where their columns stay.

Without a circular buffer (see ``circular_buffer``) a CTA takes ``rows_per_cta`` rows and is done:

    load the thread's vectors of the row to registers, or to registers and shared memory
    for each reduction: accumulate the vectors, combine what all threads of the row have
    compute the outputs of each vector and write them

Where rows are only reduced, the first CTA has the last rows. These are in L2 if the kernel before has just written
them, and the first rows are there for the next kernel, which computes elements.
"""

from dataclasses import dataclass
from functools import partial

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, Load, Select, index, minimum
from ....ir.gpu.async_copy import CopyAsyncCommit, CopyAsyncWait
from ....ir.stmt import HardwareAxis, Kernel, Stmt, seq
from ....te.functions import negated
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME, kernel_of
from ...problems.rowwise import RowwiseProblem
from ...tile.contiguous import contiguous_vector
from ...tile.delinearize import delinearize
from ..l2_prefetch import L2Prefetch
from .circular_buffer import CircularBuffer
from .passes import RowPasses
from .sizes import RowStorage, RowwiseSizes
from .vectors import RowIndex, RowVector, ThreadVectors

FEW_ROWS = "few_rows"
"""The launch for few rows, of a dynamic number, has this name."""

LaunchSizes = tuple[RowwiseProblem, RowwiseSizes[int]]
"""A problem of the most rows that a launch is for, and its sizes."""


def rowwise_kernel(
    workload: Workload, problem: RowwiseProblem, sizes: RowwiseSizes[int], few: LaunchSizes | None = None
) -> Kernel:
    """Return the kernel of one setting, which must be legal (see ``space``). ``few``: a second launch, which calls take
    that have so few rows, where their number is dynamic."""
    if few is None:
        body = launch_rows(workload, problem, sizes)
    else:
        has_few = problem.row_end <= few[0].row_count
        many = launch_rows(workload, problem, sizes, calls=negated(has_few))
        body = seq(many, launch_rows(workload, *few, FEW_ROWS, has_few))
    return kernel_of(workload, body)


def launch_rows(
    workload: Workload,
    problem: RowwiseProblem,
    sizes: RowwiseSizes[int],
    called: str = KERNEL_NAME,
    calls: Expr | None = None,
) -> Stmt:
    """Return a launch of the function ``called``. ``calls``: which calls take it."""
    prefix = "" if called == KERNEL_NAME else f"{called}_"
    passes = RowPasses(ThreadVectors(workload, problem, sizes, prefix))
    w, name, s = passes.w, passes.name, sizes
    grid, count = s.blocks // s.cluster_size, None
    if problem.dynamic is not None and s.storage == RowStorage.CIRCULAR_BUFFER:
        count = minimum(problem.row_end, index(grid))
    elif problem.dynamic is not None:
        count = (problem.row_end + (s.rows_per_cta - 1)) // s.rows_per_cta
    blocks = count if count is None or calls is None else Select(calls, count, index(0))
    bounds = [(name("block"), grid, HardwareAxis.GRID_X)]
    if s.cluster_size > 1:
        bounds.append((name("rank"), s.cluster_size, HardwareAxis.CLUSTER))
    bounds.append((name("t"), s.threads, HardwareAxis.THREAD))
    # The cache may keep what clusters write: that is 2 % faster on an H200.
    written = [c.tensor for c in problem.elementwise_outputs] if s.cluster_size == 1 else []
    evict_first = [b.name for b in (*passes.read_once, *written)]
    with w.launch(called, bounds, count=blocks, min_blocks=s.min_ctas_per_sm, evict_first=evict_first) as variables:
        prefetch = RowPrefetch(passes, variables[0], grid, count)
        if s.prefetching_ctas:
            prefetch.own_rows()
        if s.storage == RowStorage.CIRCULAR_BUFFER:
            CircularBuffer(passes, variables[0], grid).write_rows()
        else:
            _write_one_group_of_rows(passes, prefetch.group_of(variables[0]), prefetch)
    return w.finish()


@dataclass(frozen=True, slots=True)
class RowPrefetch:
    """Prefetches of rows to L2. ``block`` is the CTA's number, one of ``blocks``; of ``count``, where the grid is
    dynamic."""

    passes: RowPasses
    block: Expr
    blocks: int
    count: Expr | None

    @property
    def _prefetch(self) -> L2Prefetch:
        s, thread = self.passes.sizes, self.passes.vectors.thread
        block = (self.block, self.blocks)
        return L2Prefetch(self.passes.w, (thread, s.threads), block, s.prefetching_ctas, count=self.count)

    def group_of(self, block: Expr) -> Expr:
        """Return the number of the group of rows that a CTA takes."""
        p, storage = self.passes.problem, self.passes.sizes.storage
        forward = p.elementwise_outputs or p.dynamic is not None or storage == RowStorage.CIRCULAR_BUFFER
        return block if forward else index(self.blocks - 1) - block

    def own_rows(self) -> None:
        """Prefetch the rows of this CTA, and a share of the broadcast operands."""
        p, s, name = self.passes.problem, self.passes.sizes, self.passes.name
        for n, tensor in enumerate(p.row_inputs):
            if tensor in dict(p.gathered):  # the launch before may write where its rows are
                continue
            first = partial(self._first_element, tensor)
            self._prefetch.own(name(f"prefetched{n}"), tensor, s.rows_per_cta, self._elements, first)
        for n, buffer in enumerate(dict.fromkeys(load.buffer for load in p.broadcast_loads)):
            self._prefetch.all(name(f"prefetched_broadcast{n}"), buffer)

    def later_rows(self) -> None:
        """Prefetch the rows of the CTA that comes ``prefetch_distance`` CTAs later."""
        s, name = self.passes.sizes, self.passes.name
        for n, tensor in enumerate(self.passes.problem.row_inputs):
            if tensor in dict(self.passes.problem.gathered):
                continue
            self._prefetch.following(
                name(f"prefetched_later{n}"),
                tensor,
                s.rows_per_cta,
                self._elements,
                partial(self._first_element, tensor),
                s.prefetch_distance,
            )

    @property
    def _elements(self) -> int:
        """How many contiguous elements of a row are prefetched."""
        return self.passes.sizes.vectors * self.passes.sizes.vector

    def _first_element(self, tensor: Buffer, block: Expr, group: Expr) -> tuple[Expr, ...]:
        p, s, vectors = self.passes.problem, self.passes.sizes, self.passes.vectors
        flat = self.group_of(block) * s.rows_per_cta + group
        row = RowIndex(flat if p.row_unit % s.rows_per_cta == 0 else minimum(flat, p.row_end - 1))
        return p.indices_of(tensor, vectors.row_indices(row), delinearize(vectors.first_column(row), p.columns))


def _write_one_group_of_rows(passes: RowPasses, number: Expr, prefetch: RowPrefetch) -> None:
    """A CTA takes ``rows_per_cta`` rows, one for each group of threads, and is done."""
    s, p, vectors = passes.sizes, passes.problem, passes.vectors
    flat = number * s.rows_per_cta + vectors.group.group_rank if s.rows_per_cta > 1 else number
    row = RowIndex(flat)
    if p.row_unit % s.rows_per_cta:
        row = RowIndex(minimum(flat, p.row_end - 1), flat < p.row_end)
    scratch = passes.allocate_scratch(1)
    vectors.allocate_registers()
    if s.storage == RowStorage.REGISTERS:
        with vectors.each(row, "load") as vector:
            vectors.load(row, vector)
    elif s.storage == RowStorage.REGISTERS_AND_SHARED:
        load_to_both(vectors, row)
    if s.prefetch_distance:
        prefetch.later_rows()
    vectors.load_edge(row, vectors.edge_registers)
    passes.preload_operands(row)
    if s.storage == RowStorage.REGISTERS_AND_SHARED:
        passes.w.emit(CopyAsyncWait(0))
    passes.write_passes(row, scratch, None)


def load_to_both(vectors: ThreadVectors, row: RowIndex) -> None:
    """Load the first vectors of a thread to registers and copy the others to shared memory, all at once."""
    s, w, tensors = vectors.sizes, vectors.w, vectors.problem.row_inputs
    shared = {
        t.name: w.allocate(
            vectors.name(f"shared_vectors{n}"), (s.buffered_vectors, s.threads, s.vector), t.dtype, MemoryScope.SHARED
        )
        for n, t in enumerate(tensors)
    }

    def read_back(vector: RowVector) -> None:
        for t in tensors:
            there = contiguous_vector((vector.slot - s.kept_vectors, vectors.thread, index(0)), s.vector)
            w.store(vectors.registers[t.name], vectors.register_indices(vector), Load(shared[t.name], there))

    with vectors.each(row, "load") as vector:
        if s.kept_vectors:
            with w.when(vector.slot < s.kept_vectors):
                vectors.load(row, vector)
        with w.when(vector.slot >= s.kept_vectors if s.kept_vectors else None):
            there = (vector.slot - s.kept_vectors, vectors.thread, index(0))
            vectors.start_copies(shared, there, row, vector)
    w.emit(CopyAsyncCommit())
    vectors.read_back = read_back
