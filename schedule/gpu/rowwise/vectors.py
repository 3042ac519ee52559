"""The vectors of a row that belong to one thread: which columns they are, whether they exist, and their registers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from ....core.dtypes import boolean
from ....ir.buffer import Buffer, MemoryScope
from ....ir.build import Writer
from ....ir.expr import Expr, Load, Select, Var, conjunction, const, index, logical_and, minimum
from ....ir.gpu.async_copy import CopyAsync
from ....te.functions import equal
from ....te.workload import Workload
from ...problems.row_axes import column_axis, row_axis
from ...problems.rowwise import RowwiseProblem
from ...tile.contiguous import contiguous_over, contiguous_vector
from ...tile.delinearize import delinearize
from ...tile.names import free_prefix
from ..block_reduce import ThreadGroup
from .sizes import IN_SHARED_MEMORY, UNROLL, RowStorage, RowwiseSizes


@dataclass(frozen=True, slots=True)
class RowIndex:
    """A row as one thread sees it: ``flat``, its flat index, which is always inside the tensors, and ``exists``,
    whether its outputs are to be written (None: they are)."""

    flat: Expr
    exists: Expr | None = None


@dataclass(frozen=True, slots=True)
class RowVector:
    """One vector of a row, which begins at ``column``. It is the ``slot``-th of its thread, or the ``slot``-th of those
    that the thread loads at a time."""

    slot: Expr
    column: Expr


@dataclass
class ThreadVectors:
    """What one thread has of a row.

    ``registers`` and ``edge_registers`` hold its vectors and its edge column, by the name of the tensor. ``read_back``
    writes statements that put a vector into registers before it is used, where it is not there already. ``release``
    writes what is to be done once the last pass is through with a vector. ``prefix`` is what the names of variables
    begin with, where a kernel has two launches.
    """

    workload: Workload
    problem: RowwiseProblem
    sizes: RowwiseSizes[int]
    prefix: str = ""
    w: Writer = field(default_factory=Writer)
    registers: dict[str, Buffer] = field(default_factory=dict)
    edge_registers: dict[str, Buffer] = field(default_factory=dict)
    read_back: Callable[[RowVector], None] | None = None
    release: Callable[[Expr], None] | None = None

    def __post_init__(self) -> None:
        tensors = (*self.workload.inputs, *(s.tensor for s in self.workload.stages))
        self.tensors = frozenset(b.name for b in tensors)
        self.thread: Expr = Var(self.name("t"))
        self.cta_rank: Expr = Var(self.name("rank")) if self.sizes.cluster_size > 1 else index(0)
        self.group = self._thread_group()

    def _thread_group(self) -> ThreadGroup:
        """Return the threads that work on one row."""
        s = self.sizes
        return ThreadGroup(self.thread, s.threads_per_row, s.rows_per_cta, s.cluster_size)

    def name(self, base: str) -> str:
        """``base``, or a name close to it that no tensor has."""
        return free_prefix(self.prefix + base, self.tensors)

    # --- registers

    def allocate_registers(self) -> None:
        """Registers for the thread's vectors of a row, or for those of them that it has at a time."""
        s = self.sizes
        for n, tensor in enumerate(self.problem.row_inputs):
            self.registers[tensor.name] = self.w.allocate(
                self.name(f"vectors{n}"), (s.register_vectors, s.vector), tensor.dtype, MemoryScope.REGISTER
            )
            if s.edge_columns:
                self.edge_registers[tensor.name] = self.w.allocate(
                    self.name(f"edge{n}"), (), tensor.dtype, MemoryScope.REGISTER
                )

    def load(self, row: RowIndex, vector: RowVector) -> None:
        """Load a vector of every row input from global memory."""
        for tensor in self.problem.row_inputs:
            value = Load(tensor, self.problem.indices_of(tensor, self.row_indices(row), self.column_indices(vector)))
            self.w.store(self.registers[tensor.name], self.register_indices(vector), value)

    def start_copies(
        self, shared: Mapping[str, Buffer], indices: tuple[Expr, ...], row: RowIndex, vector: RowVector
    ) -> None:
        """Start to copy a vector of every row input to ``indices`` of its buffer in shared memory."""
        columns = delinearize(vector.column, self.problem.columns)
        for tensor in self.problem.row_inputs:
            source = self.problem.indices_of(tensor, self.row_indices(row), columns)
            self.w.emit(CopyAsync(shared[tensor.name], indices, tensor, source, self.sizes.vector))

    def load_edge(self, row: RowIndex, registers: Mapping[str, Buffer]) -> None:
        """Load the thread's edge column into ``registers``, where the thread has one."""
        if self.sizes.edge_columns:
            with self.w.when(self.has_edge()):
                for tensor in self.problem.row_inputs:
                    place = self.problem.indices_of(tensor, self.row_indices(row), (self.edge_column(row),))
                    value = Load(tensor, place)
                    self.w.store(registers[tensor.name], (), value)

    # --- indices

    def row_indices(self, row: RowIndex) -> tuple[Expr, ...]:
        return delinearize(row.flat, self.problem.rows)

    def row_axes(self, row: RowIndex) -> dict[str, Expr]:
        """Row axis -> its index."""
        return {row_axis(n): i for n, i in enumerate(self.row_indices(row))}

    def column_indices(self, vector: RowVector) -> tuple[Expr, ...]:
        """Return the column indices of a whole vector."""
        if not self.runs_over:
            return contiguous_vector(delinearize(vector.column, self.problem.columns), self.sizes.vector)
        first = len(self.problem.columns) - self.problem.vector_axes
        outer, inner = self.problem.columns[:first], self.problem.columns[first:]
        within = contiguous_over(vector.column % prod(inner), inner, self.sizes.vector)
        return (*delinearize(vector.column // prod(inner), outer), *within)

    @property
    def runs_over(self) -> bool:
        """Whether vectors run from one index of an outer column axis into the next."""
        return self.problem.vector_axes > 1 and self.problem.columns[-1] % self.sizes.vector > 0

    def element_axes(self, row: RowIndex, vector: RowVector | None, element: Expr) -> dict[str, Expr]:
        """Axis -> its index, at an element of a vector, or (``vector`` None) at the thread's edge column."""
        if vector is None:
            columns: tuple[Expr, ...] = (self.edge_column(row),)
        else:
            begin = vector.column + element if self.runs_over else vector.column
            columns = delinearize(begin, self.problem.columns)
            columns = columns if self.runs_over else (*columns[:-1], columns[-1] + element)
        return self.row_axes(row) | {column_axis(n): i for n, i in enumerate(columns)}

    def register_indices(self, vector: RowVector) -> tuple[Expr, ...]:
        """Return the indices of a whole vector in registers."""
        return contiguous_vector((self.register_slot(vector), index(0)), self.sizes.vector)

    def register_slot(self, vector: RowVector) -> Expr:
        """Return where a vector is in registers. All vectors that are read back from shared memory share the last
        place."""
        in_shared = self.sizes.storage in IN_SHARED_MEMORY
        return minimum(vector.slot, index(self.sizes.kept_vectors)) if in_shared else vector.slot

    def first_column(self, row: RowIndex) -> Expr:
        """Return the column of the row's first vector, which begins a whole number of vectors after the tensor's
        begin."""
        if not self.sizes.edge_columns:
            return index(0)
        v, start = self.sizes.vector, row.flat * self.sizes.columns
        if self.problem.joined_extent or self.problem.order:
            start = self.problem.row_begin(self.row_indices(row))
        return (start + (v - 1)) // v * v - start

    def has_edge(self) -> Expr:
        """Return whether the thread has an edge column: the first threads of the first CTA of a row have one each."""
        has: Expr = self.group.thread_rank < self.sizes.edge_columns
        if self.sizes.cluster_size > 1:
            has = logical_and(has, equal(self.cta_rank, 0))
        return has

    def edge_column(self, row: RowIndex) -> Expr:
        """Return the thread's edge column: in front of the first vector, or behind the last one."""
        s, number = self.sizes, self.group.thread_rank
        in_front = number < self.first_column(row)
        return Select(in_front, number, minimum(number, index(s.edge_columns - 1)) + s.vectors * s.vector)

    def column(self, row: RowIndex, number: Expr) -> Expr:
        """Return the first column of the thread's vector ``number``."""
        s, within = self.sizes, self._within_cta(number)
        flat = self.cta_rank * s.vectors_per_cta + within if s.cluster_size > 1 else within
        return self.first_column(row) + flat * s.vector

    def _within_cta(self, number: Expr) -> Expr:
        """Return which of the CTA's vectors the thread's vector ``number`` is."""
        return number * self.sizes.threads_per_row + self.group.thread_rank

    def exists(self, number: Expr, count: int) -> Expr | None:
        """Return whether the thread's vector ``number``, which is below ``count``, exists; None where all of them
        do."""
        s = self.sizes
        conditions: list[Expr] = []
        if count * s.threads_per_row != s.vectors_per_cta:
            # The number is tested first. Once loops are unrolled, a test is left for the last vector alone.
            whole_rounds = number < s.vectors_per_cta // s.threads_per_row
            within = self._within_cta(number) < s.vectors_per_cta
            # A disjunction would be simplified to its second term, which the first one implies.
            conditions.append(Select(whole_rounds, const(True, boolean), within))
        if s.vectors_per_cta * s.cluster_size != s.vectors:
            conditions.append(self.cta_rank * s.vectors_per_cta + self._within_cta(number) < s.vectors)
        return conjunction(*conditions)

    # --- loops

    @contextmanager
    def each(
        self, row: RowIndex, name: str, batch: Expr | None = None, then: Callable[[Expr], None] | None = None
    ) -> Iterator[RowVector]:
        """A block of statements for each of the thread's vectors, or for each of one ``batch`` of ``UNROLL`` vectors.

        ``then`` writes what follows the block, for vectors that do not exist too.
        """
        every = self.sizes.vectors_per_thread
        with self.w.unrolled(self.name(f"{name}_i"), every if batch is None else UNROLL) as i:
            number: Expr = i if batch is None else batch * UNROLL + i
            padded = every if batch is None else -(-every // UNROLL) * UNROLL
            with self.w.when(self.exists(number, padded)):
                yield RowVector(i, self.column(row, number))
            if then is not None:
                then(i)

    @contextmanager
    def each_in_registers(self, row: RowIndex, name: str, last_pass: bool = False) -> Iterator[RowVector]:
        """``each`` in registers: vectors that do not stay there are loaded or read back first, for every pass."""
        s = self.sizes
        if s.storage != RowStorage.GLOBAL:
            with self.each(row, name, then=self.release if last_pass else None) as vector:
                if self.read_back is not None:
                    with self.w.when(vector.slot >= s.kept_vectors if s.kept_vectors else None):
                        self.read_back(vector)
                yield vector
            return
        with self.w.loop(self.name(f"{name}_batch"), -(-s.vectors_per_thread // UNROLL)) as batch:
            with self.each(row, f"{name}_load", batch) as vector:
                self.load(row, vector)
            with self.each(row, name, batch) as vector:
                yield vector

    @contextmanager
    def elements(self, name: str) -> Iterator[Expr]:
        """A block of statements for each element of a vector."""
        if self.sizes.vector == 1:
            yield index(0)
            return
        with self.w.unrolled(self.name(name), self.sizes.vector) as v:
            yield v
