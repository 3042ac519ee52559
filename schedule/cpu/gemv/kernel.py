"""Products of very few rows with a matrix that lies along its columns, on a processor: the matrix is read once, row by
row as it lies, and what has been summed up so far waits in the first level of cache.

    parallel for each task, a range of columns, or a part of the rows:
      sums = 0
      for each few rows of the matrix:
        for each vector of the columns:  sums += the rows, each times its element of the left operand
      outputs = sums, or
      parts[task] = sums
    for each vector of the columns:  outputs = all parts
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Broadcast, Expr, Load, Ramp, Select, Var, const, index
from ....ir.stmt import Kernel, LoopKind
from ...problems.gemm import Gemm
from ...tile.delinearize import digits
from ...tile.naming import NamingWriter
from ...tile.stage_body import value_at, vector_at
from ..gemm.packing import lanes_below

UNROLLED = LoopKind.UNROLLED


@dataclass(frozen=True, slots=True)
class RowsSetting:
    """``columns`` of a task; ``rows`` of the matrix at a time; ``vectors`` of ``lanes``, which divide the columns,
    written out one after the other; ``parts`` of the rows, each a task. ``parts`` times ``rows`` divides ``k``."""

    columns: int
    rows: int
    vectors: int
    lanes: int
    parts: int = 1


LONG_PLACES = 1 << 16
"""Sums, those of all parts counted, from which on several threads add them up."""


def lower_rows_product(p: Gemm, name: str, s: RowsSetting) -> Kernel:
    """The kernel of one setting."""
    return _Program(p, name, s).kernel()


class _Program:
    def __init__(self, p: Gemm, name: str, s: RowsSetting) -> None:
        self.p, self.name, self.s, self.w = p, name, s, NamingWriter(p.names)
        self.extents = (*(a.extent for a in p.batch), -(-p.n.extent // s.columns))

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        shape = (s.parts, prod(self.extents), p.m.extent, s.columns)
        parts = Buffer(w.fresh("parts"), shape, p.accumulator.dtype) if s.parts > 1 else None
        with w.loop("task", s.parts * prod(self.extents), LoopKind.PARALLEL) as task:
            block, part = (task // s.parts, task % s.parts) if parts is not None else (task, index(0))
            at = self._at(block)
            sums = w.allocate("sums", (p.m.extent, s.columns), p.accumulator.dtype, MemoryScope.LOCAL)
            self._add_rows(sums, at, part)
            with w.loop("row", p.m.extent) as m, w.loop("vector", s.columns // s.lanes) as vector:
                if parts is None:
                    self._store(at, m, vector, Load(sums, (m, Var("n") - at["n"])))
                else:
                    w.store(parts, (part, block, m, self._run(vector)), Load(sums, (m, self._run(vector))))
        if parts is not None:
            self._join(parts)
        workspace = () if parts is None else (parts,)
        return Kernel(self.name, p.inputs, tuple(r.tensor for r in p.results), workspace, w.finish())

    def _at(self, block: Expr) -> dict[str, Expr]:
        """Where the columns of a block begin: axis -> place."""
        *outer, columns = digits(block, self.extents)
        at: dict[str, Expr] = dict(zip((a.name for a in self.p.batch), outer, strict=True))
        return {**at, "n": columns * self.s.columns}

    def _run(self, vector: Expr) -> Ramp:
        return Ramp(vector * self.s.lanes, 1, self.s.lanes)

    def _add_rows(self, sums: Buffer, at: Mapping[str, Expr], part: Expr) -> None:
        p, s, w = self.p, self.s, self.w
        steps, lane = p.k.extent // (s.rows * s.parts), Ramp(index(0), 1, s.lanes)
        with w.loop("row", p.m.extent) as m, w.loop("vector", s.columns // s.lanes) as vector:
            w.store(sums, (m, self._run(vector)), Broadcast(const(0, sums.dtype), s.lanes))
        with w.loop("step", steps) as step:
            first = (part * steps + step) * s.rows
            factors = w.allocate("factors", (p.m.extent, s.rows, s.lanes), sums.dtype, MemoryScope.REGISTER)
            with w.loop("row", p.m.extent, UNROLLED) as m, w.loop("k", s.rows, UNROLLED) as k:
                factor = value_at(p.a.body, {**at, "m": m, "k": first + k})
                w.store(factors, (m, k, lane), Broadcast(factor, s.lanes))
            with (
                w.loop("vectors", s.columns // (s.lanes * s.vectors)) as vectors,
                w.loop("v", s.vectors, UNROLLED) as v,
                w.loop("row", p.m.extent, UNROLLED) as m,
            ):
                place = vectors * s.vectors + v
                value: Expr = Load(sums, (m, self._run(place)))
                for n in range(s.rows):
                    row = _masked(p, s, {**at, "k": first + n, "n": at["n"] + place * s.lanes})
                    value = value + Load(factors, (m, index(n), lane)) * row
                w.store(sums, (m, self._run(place)), value)

    def _store(self, at: Mapping[str, Expr], m: Expr, vector: Expr, total: Load) -> None:
        """The outputs of a vector of columns, given the sum of one, on ``n``."""
        p, s = self.p, self.s
        here = {**at, "m": m, "n": at["n"] + vector * s.lanes}
        mask = None if p.n.extent % s.columns == 0 else lanes_below(here["n"], p.n.extent, s.lanes)
        for result in p.results:
            value = vector_at(
                result.value, here, "n", s.lanes, lambda load: total if load.buffer.name == p.accumulator.name else load
            )
            if mask is not None:
                value = Select(mask, value, Broadcast(const(0, value.dtype), s.lanes))
            indices = tuple(vector_at(i, here, "n", s.lanes) for i in result.indices)
            self.w.store(result.tensor, indices, value, mask)

    def _join(self, parts: Buffer) -> None:
        """Outputs from the sums of all parts, added in their order."""
        s, w, (count, blocks, rows, columns) = self.s, self.w, parts.shape
        kind = LoopKind.PARALLEL if parts.elements >= LONG_PLACES else LoopKind.SERIAL
        with w.loop("block", blocks, kind) as block:
            at = self._at(block)
            with w.loop("row", rows) as m, w.loop("vector", columns // s.lanes) as vector:
                total = w.allocate("total", (s.lanes,), parts.dtype, MemoryScope.REGISTER)
                value: Expr = Load(parts, (index(0), block, m, self._run(vector)))
                for part in range(1, count):
                    value = value + Load(parts, (index(part), block, m, self._run(vector)))
                w.store(total, (Ramp(index(0), 1, s.lanes),), value)
                self._store(at, m, vector, Load(total, (Var("n") - at["n"] - vector * s.lanes,)))


def _masked(p: Gemm, s: RowsSetting, here: Mapping[str, Expr]) -> Expr:
    """A vector of a row of the matrix; zeros beyond its end."""
    value = vector_at(p.b.body, here, "n", s.lanes)
    if p.n.extent % s.columns == 0:
        return value
    mask = lanes_below(here["n"], p.n.extent, s.lanes)
    return Select(mask, value, Broadcast(const(0, value.dtype), s.lanes))
