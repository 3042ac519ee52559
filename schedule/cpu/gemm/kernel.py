"""Writes blocked matrix products on vector registers.

    parallel for each task, an mc x nc block of C:
      for each block of kc steps of k:
        pack the blocks of A and B, unless they were packed before or never are
        for each panel of nr columns, for each register tile of mr rows in it (or the other way round):
          accumulators = 0
          for k: accumulators[i, :] += A[i, k] * B[k, :]              # the micro-kernel
          C = accumulators + what the blocks of k before have given

After K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008; the names of the sizes are
those of BLIS. The epilogue is computed as each register tile is finished. Between two blocks of ``k`` the sums wait in
an output that can hold them, or else in local memory. Each block is added up for itself, so that few additions follow
each other and errors of rounding stay small. Of B that is packed before the tasks, or that few rows of A read in
place, the register tiles of a panel prefetch the next panel into L2 together: the weights of a model come from memory
in each call, and a core fetches fewer bytes a cycle than a micro-kernel reads in its first pass.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from math import prod
from typing import Self

from ....ir.buffer import Buffer, MemoryScope
from ....ir.cpu import PrefetchLine
from ....ir.expr import Broadcast, Compare, CompareOp, Expr, Load, Ramp, Select, Var, const, index, minimum
from ....ir.rewrite import free_variables
from ....ir.stmt import Kernel, LoopKind
from ....te.workload import Axis
from ...problems.gemm import Gemm, Operand, Result
from ...tile.delinearize import delinearize
from ...tile.names import FreshNameWriter
from ...tile.stage_body import vector_at
from ..limits import LINE_BYTES
from ..shared_knobs import COLUMNS_INSIDE, ROWS_INSIDE
from .packing import NEVER, TASK, WHOLE, BlockedOperand, OperandPanel, below, lanes_below

MOST_PREFETCHING_TILES = 8
"""Register tiles of a panel of B in place, up to which they prefetch the next one. Beside MKL, an Intel Xeon took 0.45
to 0.97 of the time of ten products of 8 to 64 rows for it, 1.04 and 1.09 of that of two whose rows of B lie at pitches
of powers of two, and 0.97 to 1.05 of that of 80 to 128 rows."""


@dataclass(frozen=True, slots=True)
class CpuGemmSetting:
    """A register tile has ``mr`` rows of ``vectors`` vectors of ``lanes``. A task has ``tiles`` of them along ``m`` and
    ``panels`` along ``n``, the last of which has ``last_vectors`` (0: as many as the others), and goes through ``k`` in
    blocks of ``kc``. ``pack_a``, ``pack_b``: when the operands are packed (see ``packing``). ``order``: with
    ``COLUMNS_INSIDE`` the register tiles of a row of C follow one another, so that B stays in the cache while A goes
    by; else those of a panel do. ``non_temporal``: whether outputs are stored past the caches. ``flattened``: whether
    the pixels of a convolution are packed without the padding of their rows (``direct_convolution``)."""

    mr: int
    vectors: int
    lanes: int
    tiles: int
    panels: int
    kc: int
    pack_a: str
    pack_b: str
    order: str = ROWS_INSIDE
    non_temporal: bool = False
    flattened: bool = False
    last_vectors: int = 0

    @property
    def nr(self) -> int:
        """Columns of a register tile."""
        return self.vectors * self.lanes

    @property
    def vectors_of_task(self) -> int:
        """Vectors along ``n`` of a task."""
        return (self.panels - 1) * self.vectors + (self.last_vectors or self.vectors)

    @property
    def nc(self) -> int:
        """Columns of a task."""
        return self.vectors_of_task * self.lanes


def lower_fma(p: Gemm, name: str, setting: CpuGemmSetting) -> Kernel:
    """Return the kernel of one setting, by plain multiply-adds. Where an operand is never packed, ``kc`` divides
    ``k``."""
    return BlockedGemmWriter(p, setting).kernel(name)


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """One register tile of C: its indices in the batch, its block of ``k``, its indices along ``m`` and ``n`` within
    the task, its first row and column in C, and its panels of the operands. ``next_b``: the panel of B after its own,
    which the tiles of a panel prefetch together; None where that does not pay."""

    batch: Mapping[str, Expr]
    k_block: Expr
    indices: tuple[Expr, Expr]
    row: Expr
    column: Expr
    a: OperandPanel
    b: OperandPanel
    next_b: OperandPanel | None = None


@dataclass(frozen=True, slots=True)
class OutputVector:
    """Outputs from column ``first`` on. They are written where ``condition`` holds (None: always), in the lanes of
    ``mask`` (None: all)."""

    first: Expr
    condition: Expr | None
    mask: Expr | None


class BlockedGemmWriter:
    """The loops around the register tiles, with a micro-kernel of plain multiply-adds. Subclasses have others.

    ``k_group``: elements along ``k`` that one instruction takes. ``taken``: names that are taken besides those of the
    product.
    """

    def __init__(self, p: Gemm, s: CpuGemmSetting, k_group: int = 1, taken: Iterable[str] = ()) -> None:
        self.p, self.s, self.dtype = p, s, p.accumulator.dtype
        self.w = FreshNameWriter((*p.names, *taken))
        self.k_blocks = -(-p.k.extent // s.kc)
        k_innermost = p.a.row != 1
        a_batch, b_batch = (batch_of(o, p) for o in (p.a, p.b))
        self.a = BlockedOperand(p.a, p.m, p.k, a_batch, s.mr, s.kc, s.lanes, s.pack_a, k_innermost, k_group)
        task = (s.panels, s.nc) if s.nc < s.panels * s.nr else None
        self.b = BlockedOperand(p.b, p.n, p.k, b_batch, s.nr, s.kc, s.lanes, s.pack_b, False, k_group, task=task)
        self.accumulating_output = next((r for r in p.results if can_accumulate(r, self.dtype)), None)
        waits = self.k_blocks > 1 and self.accumulating_output is not None
        together = (self.a.panels - 1) % s.tiles > 0  # else two tasks would write what panels have in common
        if s.pack_a == NEVER and p.m.extent % s.mr and together and not waits:
            self.a = replace(self.a, overlaps=True)
        self.b_task_panels = s.panels
        self.partial_sums: Buffer | None = None
        self.store_lanes = s.lanes  # columns of an output that are stored at once
        self.masked = False  # whether register tiles have columns beyond those of C (``widths``)
        self.minimal_passes = not any(w.masked for w, _, _ in self.widths())  # all passes of LLVM place masks better

    def kernel(self, name: str) -> Kernel:
        """Return the whole kernel."""
        p, s, w, a, b = self.p, self.s, self.w, self.a, self.b
        packed = {o.axis.name: o.pack_whole(w, f"{o.axis.name}_packed") for o in (a, b) if o.packing == WHOLE}
        workspace = tuple(packed.values())
        extents = (*(x.extent for x in p.batch), -(-a.panels // s.tiles), -(-b.panels // self.b_task_panels))
        with w.loop("task", prod(extents), LoopKind.PARALLEL) as task:
            *outer, m_task, n_task = delinearize(task, extents)
            batch = dict(zip((x.name for x in p.batch), outer, strict=True))
            blocks = ((a, m_task * s.tiles, s.tiles), (b, n_task * self.b_task_panels, self.b_task_panels))
            for operand, _, count in blocks:
                if operand.packing == TASK:
                    axis = operand.axis.name
                    packed[axis] = operand.allocate_block(w, f"{axis}_block", count)
            if self.k_blocks > 1 and self.accumulating_output is None:
                shape = (s.tiles, s.panels, s.mr, s.nr)
                self.partial_sums = w.allocate("partial_sums", shape, self.dtype, MemoryScope.LOCAL)
            with w.loop("k_block", self.k_blocks) as k_block:
                for operand, first, count in blocks:
                    if operand.packing == TASK:
                        operand.pack_block(w, packed[operand.axis.name], batch, first, count, k_block * s.kc)
                self.register_tiles(packed, batch, k_block, (m_task, n_task))
        outputs = tuple(r.tensor for r in p.results)
        non_temporal = frozenset(b.name for b in outputs if s.non_temporal)
        return Kernel(name, p.inputs, outputs, workspace, w.finish(), non_temporal, minimal_passes=self.minimal_passes)

    def register_tiles(
        self, packed: Mapping[str, Buffer], batch: Mapping[str, Expr], k_block: Expr, task: tuple[Expr, Expr]
    ) -> None:
        """Write the register tiles of a task in one block of ``k``, in the order of the setting."""
        s, (m_task, n_task) = self.s, task

        def b_panel(writer: BlockedGemmWriter, j: Expr) -> OperandPanel:
            return writer.b.panel(packed.get("n"), batch, n_task * self.b_task_panels, self.panel_number(j), k_block)

        def register_tile(
            writer: BlockedGemmWriter, i: Expr, j: Expr, b: OperandPanel, next_b: OperandPanel | None = None
        ) -> None:
            a = self.a.panel(packed.get("m"), batch, m_task * s.tiles, i, k_block)
            writer.register_tile(RegisterTile(batch, k_block, (i, j), a.first, b.first, a, b, next_b))

        if s.order == COLUMNS_INSIDE:
            with self.each("tile", self.a, m_task, s.tiles) as i:
                for writer, j in self.each_panel(n_task):
                    b = b_panel(writer, j)
                    writer.begin_panel(b)
                    register_tile(writer, i, j, b)
            return
        for writer, j in self.each_panel(n_task):
            b, next_b = b_panel(writer, j), None
            if self._prefetches and writer.s.vectors == s.vectors:
                following = minimum(b.number + 1, index(self.b.panels - 1))
                next_b = self.b.panel(packed.get("n"), batch, index(0), following, k_block)
            writer.begin_panel(b)
            with self.each("tile", self.a, m_task, s.tiles) as i:
                register_tile(writer, i, j, b, next_b)

    @property
    def _prefetches(self) -> bool:
        """Whether register tiles prefetch the next panel of B: where several share a packed one, and where few read it
        in place."""
        if self.b.packing == NEVER:
            return self.s.tiles <= MOST_PREFETCHING_TILES
        return self.b.packing == WHOLE and self.s.tiles > 1

    def each_panel(self, n_task: Expr) -> Iterator[tuple[Self, Expr]]:
        """Loop over the panels of a task that are there. Yields what writes the register tiles of one, and its index
        within the task."""
        for writer, before, count in self.widths():
            with self.w.loop("panel", count) as n:
                j = before + n if before else n
                number = n_task * self.b_task_panels + self.panel_number(j)
                with self.w.when(below(number, self.b.panels, self.b_task_panels)):
                    yield writer, j

    def widths(self) -> Iterator[tuple[Self, int, int]]:
        """Yield what writes the register tiles of panels of one width, how many panels of a task come before these, and
        how many they are."""
        s, narrow = self.s, int(self.ends_narrow)
        whole = s.panels - narrow
        columns = (self.p.n.extent - 1) % s.nc + 1  # of the last task
        for vectors, before, count in ((s.vectors, 0, whole), (s.last_vectors or s.vectors, whole, narrow)):
            if count:
                writer, rest = copy(self), columns - before * s.nr
                writer.s = replace(s, vectors=vectors)
                nr = writer.s.nr
                writer.masked = 0 < rest < count * nr and rest % nr != 0
                writer.b = replace(self.b, inside=not writer.masked)
                yield writer, before, count

    @property
    def ends_narrow(self) -> bool:
        """Whether the last panel of a task is narrower than the others."""
        return self.s.nc < self.s.panels * self.s.nr

    def panel_number(self, j: Expr) -> Expr:
        """Return by how much the number of a panel in B is larger than that of the first one of its task."""
        return j

    @contextmanager
    def each(self, name: str, operand: BlockedOperand, task: Expr, count: int) -> Iterator[Expr]:
        """Loop over those of the ``count`` panels of ``task`` that are there."""
        with self.w.loop(name, count) as number, self.w.when(below(task * count + number, operand.panels, count)):
            yield number

    def begin_panel(self, b: OperandPanel) -> None:
        """Write what the register tiles of a panel need in a block of ``k``. Here that is nothing."""

    # --- a register tile

    def register_tile(self, t: RegisterTile) -> None:
        """Write what one block of ``k`` adds to a register tile, and its outputs after the last block."""
        w, s = self.w, self.s
        accumulators = self.zero_accumulators()
        last = self.k_blocks - 1
        self.micro_kernel(accumulators, t)
        self.correct(accumulators)
        if last:
            with w.when(Compare(CompareOp.NE, t.k_block, index(0))):
                self.move_accumulators(accumulators, t, add=True)
        output = self.accumulating_output
        if output is not None and len(self.p.results) == 1 and _is_accumulator(output, self.p):
            self.move_accumulators(accumulators, t)
            return
        if last:
            with w.when(Compare(CompareOp.NE, t.k_block, index(last))):
                self.move_accumulators(accumulators, t)
        with w.when(Compare(CompareOp.EQ, t.k_block, index(last)) if last else None):
            whole = w.allocate("total", (s.mr, s.nr), self.dtype, MemoryScope.LOCAL)
            with w.unrolled("i", s.mr) as i, w.unrolled("v", s.vectors) as v:
                w.store(whole, (i, self.vector(v)), Load(accumulators, (i, self.vector(v))))
            self.epilogue(whole, (), t)

    def zero_accumulators(self) -> Buffer:
        """Return the accumulators of a register tile before anything has been added."""
        w, s = self.w, self.s
        accumulators = w.allocate("accumulators", (s.mr, s.nr), self.dtype, MemoryScope.REGISTER)
        with w.unrolled("i", s.mr) as i, w.unrolled("v", s.vectors) as v:
            w.store(accumulators, (i, self.vector(v)), Broadcast(const(0, self.dtype), s.lanes))
        return accumulators

    def correct(self, accumulators: Buffer) -> None:
        """Write what the products of a block need afterwards. Here that is nothing."""

    def micro_kernel(self, accumulators: Buffer, t: RegisterTile) -> None:
        """Add the products of a block of ``k`` to the accumulators of a register tile."""
        with self.w.loop("step", self.s.kc // self.a.k_group) as step:
            self.rank_update(accumulators, t, step)

    def rank_update(self, accumulators: Buffer, t: RegisterTile, step: Expr) -> None:
        """Add the products of one step of ``k`` to the accumulators of a register tile."""
        w, s = self.w, self.s
        row = w.allocate("b_row", (s.nr,), self.dtype, MemoryScope.REGISTER)
        with w.unrolled("v", s.vectors) as v:
            w.store(row, (self.vector(v),), t.b.vector(v * s.lanes, step))
        self.prefetch(t, step)
        with w.unrolled("i", s.mr) as i, w.unrolled("v", s.vectors) as v:
            product = Broadcast(t.a.element(i, step), s.lanes) * Load(row, (self.vector(v),))
            w.store(accumulators, (i, self.vector(v)), Load(accumulators, (i, self.vector(v))) + product)

    def prefetch(self, t: RegisterTile, step: Expr) -> None:
        """Prefetch a part of the next panel of B. The tiles of a panel have even shares of it, and so has each step of
        ``k``. The first panel that is read costs the latency of memory."""
        if t.next_b is None:
            return
        s, line = self.s, LINE_BYTES // self.p.b.body.dtype.bytes
        share, last = -(-s.nr // s.tiles), index(s.kc * s.nr - 1)
        for begin in range(0, share, line):
            ahead = minimum((t.indices[0] * s.kc + step) * share + begin, last)
            self.w.emit(PrefetchLine(*t.next_b.group(ahead % s.nr, ahead // s.nr)))

    def vector(self, v: Expr) -> Expr:
        """Return the columns of vector ``v`` of a register tile."""
        return Ramp(v * self.s.lanes, 1, self.s.lanes)

    def move_accumulators(self, accumulators: Buffer, t: RegisterTile, *, add: bool = False) -> None:
        """Move the accumulators of a register tile to where they wait for the next block of ``k``, or with ``add`` add
        to them what waits there."""
        w, s, output = self.w, self.s, self.accumulating_output
        with (
            w.unrolled("i", s.mr) as i,
            w.when(None if output is None else self.row_condition(t, i)),
            w.unrolled("v", s.vectors) as v,
        ):
            own: tuple[Expr, ...] = (i, self.vector(v))
            if output is not None:
                buffer, indices = (
                    output.tensor,
                    self._output_indices(output, {**t.batch, "m": t.row + i, "n": t.column + v * s.lanes}),
                )
                mask = self.column_mask(t, v)
            else:
                assert self.partial_sums is not None
                buffer, indices, mask = self.partial_sums, (*t.indices, *own), None
            if add:
                w.store(accumulators, own, Load(accumulators, own) + Load(buffer, indices, mask))
            else:
                w.store(buffer, indices, Load(accumulators, own), mask)

    def epilogue(self, total: Buffer, prefix: tuple[Expr, ...], t: RegisterTile) -> None:
        """Write the outputs from the total sums of a register tile at ``prefix`` of a buffer."""
        w, s = self.w, self.s
        with (
            w.loop("row", s.mr) as i,
            w.when(self.row_condition(t, i)),
            w.unrolled("v", s.nr // self.store_lanes) as v,
        ):
            for output in self.output_vectors(t, v):
                here = {**t.batch, "m": t.row + i, "n": output.first}
                summed = Load(total, (*prefix, i, Var("n") - output.first + v * self.store_lanes))
                with w.when(output.condition):
                    self.store_results(here, summed, output.mask)

    def store_results(self, here: Mapping[str, Expr], summed: Load, mask: Expr | None) -> None:
        """Store a vector of each output, from the axes ``here`` on, in the lanes of ``mask``. ``summed`` is the sum on
        the axis ``n``."""

        def read(load: Load) -> Load:
            return summed if load.buffer.name == self.p.accumulator.name else load

        for result in self.p.results:
            value = vector_at(result.value, here, "n", self.store_lanes, read)
            if mask is not None:
                value = Select(mask, value, Broadcast(const(0, value.dtype), self.store_lanes))
            inside = [vector_at(i, here, "n", 1) for i in result.inside]
            with self.w.when(*inside):
                self.w.store(result.tensor, self._output_indices(result, here), value, mask)

    def row_condition(self, t: RegisterTile, i: Expr) -> Expr | None:
        """Return whether C has row ``i`` of a register tile; None where it has all of them always."""
        return None if self.a.overlaps else below(t.row + i, self.p.m.extent, self.s.mr)

    def output_vectors(self, t: RegisterTile, vector: Expr) -> tuple[OutputVector, ...]:
        """Return where the outputs of a vector of a register tile go: together they are all that it has."""
        return (OutputVector(t.column + vector * self.store_lanes, None, self.column_mask(t, vector)),)

    def _output_indices(self, result: Result, here: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """Return the indices in an output of a vector from the axes ``here`` on."""
        return tuple(vector_at(at, here, "n", self.store_lanes) for at in result.indices)

    def column_mask(self, t: RegisterTile, vector: Expr) -> Expr | None:
        """Return which columns of a vector of a register tile C has; None where it has all of them always."""
        lanes, extent = self.store_lanes, self.p.n.extent
        return lanes_below(t.column + vector * lanes, extent, lanes) if self.masked else None


def batch_of(operand: Operand, p: Gemm) -> tuple[Axis, ...]:
    """Return the axes of the batch that an operand follows."""
    free = free_variables(operand.body)
    return tuple(a for a in p.batch if a.name in free)


def can_accumulate(result: Result, dtype: object) -> bool:
    """Return whether accumulators can wait in an output between two blocks of ``k``: in vectors along ``n``, all of
    them."""
    return result.tensor.dtype == dtype and result.step("n") == 1 and not result.inside


def _is_accumulator(result: Result, p: Gemm) -> bool:
    """Return whether an output is the sum itself, without an epilogue."""
    return isinstance(result.value, Load) and result.value.buffer.name == p.accumulator.name
