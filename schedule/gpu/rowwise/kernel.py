"""The launch of a kernel that works on rows: which CTA takes which rows, and where their columns stay.

Without a circular buffer a CTA takes ``rows_per_cta`` rows and is done:

    load the thread's vectors of the row          (to registers, or to registers and shared memory)
    for each reduction: walk over the vectors, combine what all threads of the row found
    walk over the vectors and write the outputs

With one the CTAs are persistent. A CTA takes every row whose number is its own modulo the number of CTAs (or of
clusters), and each thread has a circular buffer of its own vectors in shared memory:

    start copies until the buffer is full
    for each row of the CTA:
        wait until all vectors of the row are there
        the passes over the row; after the last use of a vector, start the copy of the next one into its place
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Compare, CompareOp, Expr, Load, Ramp, Select, index, logical_and, minimum
from ....ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.barrier import SyncScope
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.rowwise import RowwiseProblem
from ...tile.contiguous import contiguous_vector
from ...tile.delinearize import delinearize
from ..l2_prefetch import L2Prefetch
from .passes import RowPasses
from .sizes import RowStorage, RowwiseSizes
from .vectors import RowIndex, RowVector, ThreadVectors


def rowwise_kernel(workload: Workload, problem: RowwiseProblem, sizes: RowwiseSizes[int]) -> Kernel:
    """The kernel of one setting, which must be legal (see ``space``)."""
    passes = RowPasses(ThreadVectors(workload, problem, sizes))
    w, name, s = passes.w, passes.name, sizes
    grid = s.ctas // s.cluster_size
    bounds = [(name("block"), grid, HardwareAxis.GRID_X)]
    if s.cluster_size > 1:
        bounds.append((name("rank"), s.cluster_size, HardwareAxis.CLUSTER))
    bounds.append((name("t"), s.threads, HardwareAxis.THREAD))
    # The cache may keep what clusters write: that is 2 % faster on an H200.
    written = [c.tensor for c in problem.elementwise_outputs] if s.cluster_size == 1 else []
    evict_first = [b.name for b in (*problem.row_inputs, *written)]
    with w.launch(KERNEL_NAME, bounds, min_blocks=s.min_ctas_per_sm, evict_first=evict_first) as variables:
        prefetch = RowPrefetch(passes, variables[0], grid)
        if s.prefetching_ctas:
            prefetch.own_rows()
        if s.storage == RowStorage.CIRCULAR_BUFFER:
            _CircularBuffer(passes, variables[0], grid).write()
        else:
            _write_one_group_of_rows(passes, variables[0], prefetch)
    return Kernel(KERNEL_NAME, workload.inputs, workload.output_buffers, (), w.finish())


@dataclass(frozen=True, slots=True)
class RowPrefetch:
    """Prefetches of rows to L2. ``block`` is the CTA's number, one of ``blocks``."""

    passes: RowPasses
    block: Expr
    blocks: int

    @property
    def _prefetch(self) -> L2Prefetch:
        s, thread = self.passes.sizes, self.passes.vectors.thread
        return L2Prefetch(self.passes.w, (thread, s.threads), (self.block, self.blocks), s.prefetching_ctas)

    def own_rows(self) -> None:
        """Prefetch the rows of this CTA, and a share of the broadcast operands."""
        p, s, name = self.passes.problem, self.passes.sizes, self.passes.name
        for n, tensor in enumerate(p.row_inputs):
            self._prefetch.own(name(f"asked{n}"), tensor, s.rows_per_cta, self._elements, self._first_element)
        for n, buffer in enumerate(dict.fromkeys(load.buffer for load in p.broadcast_loads)):
            self._prefetch.all(name(f"beside_asked{n}"), buffer)

    def later_rows(self) -> None:
        """Prefetch the rows of the CTA that comes ``prefetch_distance`` CTAs later."""
        s, name = self.passes.sizes, self.passes.name
        for n, tensor in enumerate(self.passes.problem.row_inputs):
            self._prefetch.following(
                name(f"following{n}"),
                tensor,
                s.rows_per_cta,
                self._elements,
                self._first_element,
                s.prefetch_distance,
            )

    @property
    def _elements(self) -> int:
        """How many contiguous elements of a row are prefetched."""
        return self.passes.sizes.vectors * self.passes.sizes.vector

    def _first_element(self, block: Expr, group: Expr) -> tuple[Expr, ...]:
        row, vectors = RowIndex(block * self.passes.sizes.rows_per_cta + group), self.passes.vectors
        return (*vectors.row_indices(row), *delinearize(vectors.first_column(row), self.passes.problem.columns))


def _write_one_group_of_rows(passes: RowPasses, block: Expr, prefetch: RowPrefetch) -> None:
    """A CTA takes ``rows_per_cta`` rows, one for each group of threads, and is done."""
    s, rows, vectors = passes.sizes, passes.problem.row_count, passes.vectors
    flat = block * s.rows_per_cta + vectors.team.group_rank if s.rows_per_cta > 1 else block
    row = RowIndex(flat)
    if rows % s.rows_per_cta:
        row = RowIndex(minimum(flat, index(rows - 1)), flat < rows)
    scratch = passes.allocate_scratch(1)
    vectors.allocate_registers()
    if s.storage == RowStorage.REGISTERS:
        with vectors.each(row, "load") as vector:
            vectors.load(row, vector)
    elif s.storage == RowStorage.REGISTERS_AND_SHARED:
        _load_to_both(vectors, row)
    if s.prefetch_distance:
        prefetch.later_rows()
    vectors.load_edge(row, vectors.edge_registers)
    passes.preload_broadcasts(row)
    if s.storage == RowStorage.REGISTERS_AND_SHARED:
        passes.w.emit(CopyAsyncWait(0))
    passes.write_passes(row, scratch, None)


def _load_to_both(vectors: ThreadVectors, row: RowIndex) -> None:
    """Load the first vectors of a thread to registers and copy the others to shared memory, all at once."""
    s, w, tensors = vectors.sizes, vectors.w, vectors.problem.row_inputs
    shared = {
        t.name: w.allocate(
            vectors.name(f"rest{n}"), (s.buffered_vectors, s.threads, s.vector), t.dtype, MemoryScope.SHARED
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
            _start_copies(vectors, shared, there, row, vector)
    w.emit(CopyAsyncCommit())
    vectors.read_back = read_back


def _start_copies(
    vectors: ThreadVectors, to: Mapping[str, Buffer], indices: tuple[Expr, ...], row: RowIndex, vector: RowVector
) -> None:
    """Start the copies of a vector of every row input to ``indices`` of its buffer in shared memory."""
    columns = tuple(c.base if isinstance(c, Ramp) else c for c in vectors.column_indices(vector))
    for t in vectors.problem.row_inputs:
        source = (*vectors.row_indices(row), *columns)
        vectors.w.emit(CopyAsync(to[t.name], indices, t, source, vectors.sizes.vector))


@dataclass
class _CircularBuffer:
    """The rows of a persistent CTA, whose number is ``block`` of ``blocks`` CTAs (or clusters).

    Each thread has a buffer of its own vectors. While a row is worked on, vectors of the next rows are on their way,
    and each vector that is done makes room for one more. Where the buffer does not hold two rows, the first vectors of
    a row move to registers at once and make room for the rest of the next row.
    """

    passes: RowPasses
    block: Expr
    blocks: int

    def __post_init__(self) -> None:
        self.vectors, s = self.passes.vectors, self.passes.sizes
        self.stages = {
            t.name: self.passes.w.allocate(
                self.passes.name(f"queue{n}"),
                (s.buffered_vectors, s.threads_per_row, s.vector),
                t.dtype,
                MemoryScope.SHARED,
            )
            for n, t in enumerate(self.passes.problem.row_inputs)
        }

    def write(self) -> None:
        s, w, vectors = self.passes.sizes, self.passes.w, self.vectors
        rows, every = self.passes.problem.row_count, s.vectors_per_thread
        scratch = self.passes.allocate_scratch(2)
        with w.loop(self.passes.name("fill"), s.buffered_vectors, LoopKind.UNROLLED) as n:
            self._copy_ahead(self.block, 0, n, n)
        vectors.allocate_registers()
        vectors.load_edge(RowIndex(self.block), vectors.edge_registers)
        self.passes.preload_broadcasts(RowIndex(self.block))
        with w.loop(self.passes.name("turn"), -(-rows // self.blocks)) as iteration:
            flat = self.block + iteration * self.blocks
            with w.when(flat < rows if rows % self.blocks else None):
                row = RowIndex(flat)
                w.emit(CopyAsyncWait(s.buffered_vectors // every - 1))
                self._move_first_vectors(row, iteration)
                next_edges = self._load_next_edges(RowIndex(flat + self.blocks))
                self.passes.write_passes(row, scratch, iteration % 2)
                self._move_edges(next_edges, vectors.edge_registers)
        if s.cluster_size > 1:
            w.barrier(SyncScope.CLUSTER)

    def _move_first_vectors(self, row: RowIndex, iteration: Expr) -> None:
        """Move the vectors that stay in registers there, and say how the passes get and leave the other ones."""
        s, w, vectors = self.passes.sizes, self.passes.w, self.vectors
        every = s.vectors_per_thread
        begin = iteration * every % s.buffered_vectors

        def stage_of(slot: Expr) -> Expr:
            """Where the thread's vector ``slot`` of the row is in the buffer."""
            return Select(begin + slot < s.buffered_vectors, begin + slot, begin + slot - s.buffered_vectors)

        def read_back(vector: RowVector) -> None:
            for t in self.passes.problem.row_inputs:
                there = contiguous_vector((stage_of(vector.slot), vectors.team.thread_rank, index(0)), s.vector)
                loaded = Load(self.stages[t.name], there)
                w.store(vectors.registers[t.name], vectors.register_indices(vector), loaded)

        def release(slot: Expr) -> None:
            with w.when(slot >= s.kept_vectors if s.kept_vectors else None):
                self._copy_ahead(row.flat, s.buffered_vectors, slot, stage_of(slot))

        if s.kept_vectors:
            with w.loop(self.passes.name("keep"), s.kept_vectors, LoopKind.UNROLLED) as slot:
                with w.when(vectors.exists(slot, every)):
                    read_back(RowVector(slot, vectors.column(row, slot)))
                self._copy_ahead(row.flat, s.buffered_vectors, slot, stage_of(slot))
        vectors.read_back, vectors.release = read_back, release

    def _copy_ahead(self, first_row: Expr, ahead: int, slot: Expr, stage: Expr) -> None:
        """Start the copy of the vector that comes ``ahead + slot`` vectors after the first one of row ``first_row``, in
        the order in which the thread takes them. ``stage``: where it goes in the buffer. The copies of one row are one
        group, which the wait counts."""
        every, w, vectors = self.passes.sizes.vectors_per_thread, self.passes.w, self.vectors
        row = RowIndex(first_row + (slot + ahead) // every * self.blocks)
        number = (slot + ahead) % every
        has_row, exists = row.flat < self.passes.problem.row_count, vectors.exists(number, every)
        with w.when(has_row if exists is None else logical_and(has_row, exists)):
            vector = RowVector(slot, vectors.column(row, number))
            _start_copies(vectors, self.stages, (stage, vectors.team.thread_rank, index(0)), row, vector)
        with w.when(Compare(CompareOp.EQ, number, index(every - 1))):
            w.emit(CopyAsyncCommit())

    def _load_next_edges(self, row: RowIndex) -> dict[str, Buffer]:
        """Start to load the edge columns of the next row while this one is worked on."""
        w, vectors = self.passes.w, self.vectors
        if not self.passes.sizes.edge_columns:
            return {}
        following = {
            t.name: w.allocate(self.passes.name(f"next{n}"), (), t.dtype, MemoryScope.REGISTER)
            for n, t in enumerate(self.passes.problem.row_inputs)
        }
        self._move_edges(vectors.edge_registers, following)
        with w.when(row.flat < self.passes.problem.row_count):
            vectors.load_edge(row, following)
        return following

    def _move_edges(self, source: Mapping[str, Buffer], target: Mapping[str, Buffer]) -> None:
        """Move edge columns from one set of registers to another."""
        if source:
            with self.passes.w.when(self.vectors.has_edge()):
                for name, edge in source.items():
                    self.passes.w.store(target[name], (), Load(edge, ()))
