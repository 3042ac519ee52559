"""Matrix products on vector registers, in blocks that stay in the caches.

    parallel for each task, a block of C:
      for each block of k:
        copy the blocks of A and B, unless they were copied before or never are
        for each panel of B, for each tile of C in it (or the other way round):
          registers = what the blocks of k before have given
          for k: registers[i, :] += A[i, k] * B[k, :]
          C = registers

After K. Goto and R. van de Geijn, "Artifacts of High-Performance Matrix Multiplication", 2008. What follows the sum is
computed as each tile is finished. Sums wait for the next block of ``k`` in an output that can hold them.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Broadcast, Compare, CompareOp, Expr, Load, Ramp, Select, Var, const, index
from ....ir.rewrite import free_variables
from ....ir.stmt import Kernel, LoopKind
from ....te.workload import Axis
from ...problems.gemm import Gemm, Operand, Result
from ...tile.delinearize import digits
from ...tile.naming import NamingWriter
from ...tile.stage_body import vector_at
from .packing import TASK, WHOLE, GemmOperand, Panel, below, lanes_below

UNROLLED = LoopKind.UNROLLED


@dataclass(frozen=True, slots=True)
class GemmSetting:
    """A tile of C in registers has ``rows`` of ``vectors`` of ``lanes``. A task has ``tiles`` of them along ``m`` and
    ``panels`` along ``n``, and goes through ``k`` in blocks of ``depth``. ``pack_a``, ``pack_b``: how long copies of
    the operands live (``gemm_operand``). ``by_rows``: the tiles of a row of C follow one another, so that B stays in
    the cache while A goes by; else those of a panel do. ``streamed``: whether outputs go past the caches."""

    rows: int
    vectors: int
    lanes: int
    tiles: int
    panels: int
    depth: int
    pack_a: str
    pack_b: str
    by_rows: bool = False
    streamed: bool = False

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.vectors * self.lanes


def lower_gemm(p: Gemm, name: str, setting: GemmSetting) -> Kernel:
    """The kernel of one setting. Where an operand is never copied, ``depth`` divides ``k``."""
    return GemmProgram(p, setting).kernel(name)


@dataclass(frozen=True, slots=True)
class TilePlace:
    """A tile: its batch, the block of ``k``, its number along ``m`` and ``n`` within the task, its first row and
    column, and its operands."""

    batch: Mapping[str, Expr]
    block: Expr
    number: tuple[Expr, Expr]
    row: Expr
    column: Expr
    a: Panel
    b: Panel


@dataclass(frozen=True, slots=True)
class Run:
    """Outputs from column ``first`` on: under a ``condition`` (None: always) those of a vector's lanes in ``mask``
    (None: all)."""

    first: Expr
    condition: Expr | None
    mask: Expr | None


class GemmProgram:
    """The loops around the tiles, and tiles of plain multiply-adds; other tiles in ``gemm_dots``. ``group``: elements
    along ``k`` that one instruction takes. ``taken``: names that are, besides those of the product."""

    def __init__(self, p: Gemm, s: GemmSetting, group: int = 1, taken: Iterable[str] = ()) -> None:
        self.p, self.s, self.dtype = p, s, p.accumulator.dtype
        self.w = NamingWriter((*p.names, *taken))
        self.blocks = -(-p.k.extent // s.depth)
        by_rows = p.a.row != 1
        left, right = (batch_of(o, p) for o in (p.a, p.b))
        self.a = GemmOperand(p.a, p.m, p.k, left, s.rows, s.depth, s.lanes, s.pack_a, by_rows, group)
        self.b = GemmOperand(p.b, p.n, p.k, right, s.columns, s.depth, s.lanes, s.pack_b, False, group)
        self.home = next((r for r in p.results if _can_hold(r, self.dtype)), None)
        self.partial: Buffer | None = None
        self.stored = s.lanes  # columns of an output that are stored at once
        self.minimal_passes = p.n.extent % s.columns == 0  # masks beside many sums are for a compiler to place

    def kernel(self, name: str) -> Kernel:
        """The whole kernel."""
        p, s, w, a, b = self.p, self.s, self.w, self.a, self.b
        copies = {o.axis.name: o.copy_whole(w, f"{o.axis.name}_packed") for o in (a, b) if o.mode == WHOLE}
        workspace = tuple(copies.values())
        extents = (*(x.extent for x in p.batch), -(-a.panels // s.tiles), -(-b.panels // s.panels))
        with w.loop("task", prod(extents), LoopKind.PARALLEL) as task:
            *outer, tm, tn = digits(task, extents)
            batch = dict(zip((x.name for x in p.batch), outer, strict=True))
            blocks = ((a, tm * s.tiles, s.tiles), (b, tn * s.panels, s.panels))
            copies |= {o.axis.name: o.allocate(w, f"{o.axis.name}_block", n) for o, _, n in blocks if o.mode == TASK}
            if self.blocks > 1 and self.home is None:
                self.partial = w.allocate(
                    "partial", (s.tiles, s.panels, s.rows, s.columns), self.dtype, MemoryScope.LOCAL
                )
            with w.loop("block", self.blocks) as block:
                for o, first, count in blocks:
                    if o.mode == TASK:
                        o.copy_block(w, copies[o.axis.name], batch, first, count, block * s.depth)
                panels, tiles = self._each("panel", b, tn, s.panels), self._each("tile", a, tm, s.tiles)
                if s.by_rows:
                    with tiles as i, panels as j:
                        right = b.panel(copies.get("n"), batch, tn * s.panels, j, block)
                        self.begin_panel(right)
                        self.tile(self._place(copies.get("m"), batch, block, (i, j), tm, right))
                else:
                    with panels as j:
                        right = b.panel(copies.get("n"), batch, tn * s.panels, j, block)
                        self.begin_panel(right)
                        with tiles as i:
                            self.tile(self._place(copies.get("m"), batch, block, (i, j), tm, right))
        outputs = tuple(r.tensor for r in p.results)
        streamed = frozenset(b.name for b in outputs if s.streamed)
        return Kernel(name, p.inputs, outputs, workspace, w.finish(), streamed, minimal_passes=self.minimal_passes)

    @contextmanager
    def _each(self, name: str, operand: GemmOperand, task: Expr, count: int) -> Iterator[Expr]:
        """A loop over those of the ``count`` panels of ``task`` that are there."""
        with self.w.loop(name, count) as number, self.w.when(below(task * count + number, operand.panels, count)):
            yield number

    def _place(
        self, copy: Buffer | None, batch: Mapping[str, Expr], block: Expr, at: tuple[Expr, Expr], tm: Expr, right: Panel
    ) -> TilePlace:
        left = self.a.panel(copy, batch, tm * self.s.tiles, at[0], block)
        return TilePlace(batch, block, at, left.number * self.s.rows, right.number * self.s.columns, left, right)

    def begin_panel(self, right: Panel) -> None:
        """What the tiles of a panel need in a block of ``k``: here nothing."""

    # --- a tile

    def tile(self, t: TilePlace) -> None:
        """What one block of ``k`` adds to a tile, and its outputs after the last."""
        w, s = self.w, self.s
        sums = w.allocate("sums", (s.rows, s.columns), self.dtype, MemoryScope.REGISTER)
        with w.loop("i", s.rows, UNROLLED) as i, w.loop("v", s.vectors, UNROLLED) as v:
            w.store(sums, (i, self.run(v)), Broadcast(const(0, self.dtype), s.lanes))
        last = self.blocks - 1
        with w.when(None if last == 0 else Compare(CompareOp.NE, t.block, index(0))):
            if last:
                self._exchange(sums, t, back=True)
        self.multiply_all(sums, t)
        self.correct(sums)
        if self.home is not None and len(self.p.results) == 1 and _is_sum(self.home, self.p):
            self._exchange(sums, t, back=False)
            return
        if last:
            with w.when(Compare(CompareOp.NE, t.block, index(last))):
                self._exchange(sums, t, back=False)
        with w.when(Compare(CompareOp.EQ, t.block, index(last)) if last else None):
            whole = w.allocate("whole_sums", (s.rows, s.columns), self.dtype, MemoryScope.LOCAL)
            with w.loop("i", s.rows, UNROLLED) as i, w.loop("v", s.vectors, UNROLLED) as v:
                w.store(whole, (i, self.run(v)), Load(sums, (i, self.run(v))))
            self.finish(whole, (), t)

    def correct(self, sums: Buffer) -> None:
        """What the products of a block need afterwards: here nothing."""

    def multiply_all(self, sums: Buffer, t: TilePlace) -> None:
        """Add the products of a block of ``k`` to the sums of a tile."""
        with self.w.loop("step", self.s.depth // self.a.group) as step:
            self.multiply(sums, t, step)

    def multiply(self, sums: Buffer, t: TilePlace, step: Expr) -> None:
        """Add the products of one step to the sums of a tile."""
        w, s = self.w, self.s
        row = w.allocate("b_row", (s.columns,), self.dtype, MemoryScope.REGISTER)
        with w.loop("v", s.vectors, UNROLLED) as v:
            w.store(row, (self.run(v),), t.b.vector(v * s.lanes, step))
        with w.loop("i", s.rows, UNROLLED) as i, w.loop("v", s.vectors, UNROLLED) as v:
            product = Broadcast(t.a.element(i, step), s.lanes) * Load(row, (self.run(v),))
            w.store(sums, (i, self.run(v)), Load(sums, (i, self.run(v))) + product)

    def run(self, vector: Expr) -> Expr:
        """The columns of a vector of a tile."""
        return Ramp(vector * self.s.lanes, 1, self.s.lanes)

    def _exchange(self, sums: Buffer, t: TilePlace, *, back: bool) -> None:
        """The sums of a tile to where they wait for the next block of ``k``, or ``back``."""
        w, s = self.w, self.s
        with (
            w.loop("i", s.rows, UNROLLED) as i,
            w.when(None if self.home is None else below(t.row + i, self.p.m.extent, s.rows)),
            w.loop("v", s.vectors, UNROLLED) as v,
        ):
            held: tuple[Expr, ...] = (i, self.run(v))
            if self.home is not None:
                place = self._at(self.home, t, i, t.column + v * s.lanes)
                buffer, mask = self.home.tensor, self._mask(t, v)
            else:
                assert self.partial is not None
                buffer, place, mask = self.partial, (*t.number, *held), None
            if back:
                w.store(sums, held, Load(buffer, place, mask))
            else:
                w.store(buffer, place, Load(sums, held), mask)

    def finish(self, whole: Buffer, prefix: tuple[Expr, ...], t: TilePlace) -> None:
        """The outputs, from the whole sums of a tile at ``prefix`` of a buffer."""
        w, s, p = self.w, self.s, self.p
        with (
            w.loop("row", s.rows) as i,
            w.when(below(t.row + i, p.m.extent, s.rows)),
            w.loop("v", s.columns // self.stored, UNROLLED) as v,
        ):
            for run in self.runs(t, v):
                here = {**t.batch, "m": t.row + i, "n": run.first}
                total = Load(whole, (*prefix, i, Var("n") - run.first + v * self.stored))

                def read(load: Load, total: Load = total) -> Load:
                    return total if load.buffer.name == p.accumulator.name else load

                with w.when(run.condition):
                    for result in p.results:
                        value = vector_at(result.value, here, "n", self.stored, read)
                        if run.mask is not None:
                            value = Select(run.mask, value, Broadcast(const(0, value.dtype), self.stored))
                        w.store(result.tensor, self._at(result, t, i, run.first), value, run.mask)

    def runs(self, t: TilePlace, vector: Expr) -> tuple[Run, ...]:
        """Where the outputs of a vector of a tile are: together they are all that it has."""
        return (Run(t.column + vector * self.stored, None, self._mask(t, vector)),)

    def _at(self, result: Result, t: TilePlace, i: Expr, first: Expr) -> tuple[Expr, ...]:
        """Where the elements of a row of a tile from column ``first`` on are in an output."""
        here = {**t.batch, "m": t.row + i, "n": first}
        return tuple(vector_at(at, here, "n", self.stored) for at in result.indices)

    def _mask(self, t: TilePlace, vector: Expr) -> Expr | None:
        """Which columns of a vector of a tile are there; None where all always are."""
        s, extent = self.s, self.p.n.extent
        return None if extent % s.columns == 0 else lanes_below(t.column + vector * self.stored, extent, self.stored)


def batch_of(operand: Operand, p: Gemm) -> tuple[Axis, ...]:
    """The axes of the batch that an operand knows of."""
    free = free_variables(operand.body)
    return tuple(a for a in p.batch if a.name in free)


def _is_sum(result: Result, p: Gemm) -> bool:
    """Whether an output is the sum itself."""
    return isinstance(result.value, Load) and result.value.buffer.name == p.accumulator.name


def _can_hold(result: Result, dtype: object) -> bool:
    """Whether an output has room for sums, in vectors along ``n``."""
    return result.tensor.dtype == dtype and result.step("n") == 1
