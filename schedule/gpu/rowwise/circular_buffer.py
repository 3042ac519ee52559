"""Rows that stay in a circular buffer in shared memory, into which the next rows are copied meanwhile.

The CTAs are persistent: CTA (or cluster) number b of n takes the rows b, b + n, b + 2 * n and so on. Each thread has a
circular buffer of its own vectors:

    start copies until the buffer is full
    for each row of the CTA:
        wait until all vectors of the row are there
        the passes over the row; after the last use of a vector, start the copy of the next one into its stage
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, Load, Select, index
from ....ir.gpu.async_copy import CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.barrier import SyncScope
from ....te.functions import equal
from ...tile.contiguous import contiguous_vector
from .passes import RowPasses
from .vectors import RowIndex, RowVector


@dataclass
class CircularBuffer:
    """The rows of a persistent CTA (or cluster), number ``block`` of ``blocks``.

    ``stages`` has the buffers: a stage holds one vector of each thread. While a row is worked on, vectors of the next
    rows are on their way, and each vector that is done makes room for one more. Where the buffer does not hold two
    rows, the first vectors of a row move to registers at once and make room for the rest of the next row.
    """

    passes: RowPasses
    block: Expr
    blocks: int

    def __post_init__(self) -> None:
        self.vectors, s = self.passes.vectors, self.passes.sizes
        self.stages = {
            t.name: self.passes.w.allocate(
                self.passes.name(f"stages{n}"),
                (s.buffered_vectors, s.threads_per_row, s.vector),
                t.dtype,
                MemoryScope.SHARED,
            )
            for n, t in enumerate(self.passes.problem.row_inputs)
        }

    def write_rows(self) -> None:
        """All rows of the CTA."""
        s, w, vectors = self.passes.sizes, self.passes.w, self.vectors
        p, every = self.passes.problem, s.vectors_per_thread
        scratch = self.passes.allocate_scratch(2)
        with w.unrolled(self.passes.name("fill"), s.buffered_vectors) as n:
            self._start_copy(self.block, 0, n, n)
        vectors.allocate_registers()
        vectors.load_edge(RowIndex(self.block), vectors.edge_registers)
        self.passes.preload_operands(RowIndex(self.block))
        with w.loop(self.passes.name("iteration"), -(-p.row_count // self.blocks)) as iteration:
            flat = self.block + iteration * self.blocks
            exists = flat < p.row_end if p.row_count % self.blocks else None
            if p.dynamic is not None:  # so that the loop ends there
                exists = iteration < (p.row_end - self.block + (self.blocks - 1)) // self.blocks
            with w.when(exists):
                row = RowIndex(flat)
                w.emit(CopyAsyncWait(s.buffered_vectors // every - 1))
                self._move_first_vectors(row, iteration)
                next_edges = self._load_next_edges(RowIndex(flat + self.blocks))
                self.passes.write_passes(row, scratch, iteration % 2)
                self._move_edges(next_edges, vectors.edge_registers)
        if s.cluster_size > 1:
            w.barrier(SyncScope.CLUSTER)

    def _move_first_vectors(self, row: RowIndex, iteration: Expr) -> None:
        """Move the vectors that stay in registers there, and say how passes read back and release the other ones."""
        s, w, vectors = self.passes.sizes, self.passes.w, self.vectors
        every = s.vectors_per_thread
        begin = iteration * every % s.buffered_vectors

        def stage_of(slot: Expr) -> Expr:
            """Return where the thread's vector ``slot`` of the row is in the buffer."""
            return Select(begin + slot < s.buffered_vectors, begin + slot, begin + slot - s.buffered_vectors)

        def read_back(vector: RowVector) -> None:
            for t in self.passes.problem.row_inputs:
                there = contiguous_vector((stage_of(vector.slot), vectors.group.thread_rank, index(0)), s.vector)
                loaded = Load(self.stages[t.name], there)
                w.store(vectors.registers[t.name], vectors.register_indices(vector), loaded)

        def release(slot: Expr) -> None:
            with w.when(slot >= s.kept_vectors if s.kept_vectors else None):
                self._start_copy(row.flat, s.buffered_vectors, slot, stage_of(slot))

        if s.kept_vectors:
            with w.unrolled(self.passes.name("keep"), s.kept_vectors) as slot:
                with w.when(vectors.exists(slot, every)):
                    read_back(RowVector(slot, vectors.column(row, slot)))
                self._start_copy(row.flat, s.buffered_vectors, slot, stage_of(slot))
        vectors.read_back, vectors.release = read_back, release

    def _start_copy(self, first_row: Expr, distance: int, slot: Expr, stage: Expr) -> None:
        """Start the copy of the thread's vector that comes ``distance + slot`` vectors after the first one of row
        ``first_row``, into ``stage`` of the buffer. The copies of one row are one group, for which the wait waits."""
        every, w, vectors = self.passes.sizes.vectors_per_thread, self.passes.w, self.vectors
        row = RowIndex(first_row + (slot + distance) // every * self.blocks)
        number = (slot + distance) % every
        has_row, exists = row.flat < self.passes.problem.row_end, vectors.exists(number, every)
        with w.when(has_row, exists):
            vector = RowVector(slot, vectors.column(row, number))
            vectors.start_copies(self.stages, (stage, vectors.group.thread_rank, index(0)), row, vector)
        with w.when(equal(number, every - 1)):
            w.emit(CopyAsyncCommit())

    def _load_next_edges(self, row: RowIndex) -> dict[str, Buffer]:
        """Start to load the edge columns of the next row while this one is worked on."""
        w, vectors = self.passes.w, self.vectors
        if not self.passes.sizes.edge_columns:
            return {}
        following = {
            t.name: w.allocate(self.passes.name(f"next_edge{n}"), (), t.dtype, MemoryScope.REGISTER)
            for n, t in enumerate(self.passes.problem.row_inputs)
        }
        self._move_edges(vectors.edge_registers, following)
        with w.when(row.flat < self.passes.problem.row_end):
            vectors.load_edge(row, following)
        return following

    def _move_edges(self, source: Mapping[str, Buffer], target: Mapping[str, Buffer]) -> None:
        """Move edge columns from one set of registers to another."""
        if source:
            with self.passes.w.when(self.vectors.has_edge()):
                for name, edge in source.items():
                    self.passes.w.store(target[name], (), Load(edge, ()))
