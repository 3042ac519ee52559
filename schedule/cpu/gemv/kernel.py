"""Products of very few rows with a matrix that lies along its columns, on a processor.

The matrix B is read once, row by row as it lies, and the accumulators of a task wait in the first-level cache:

    parallel for each task, a range of columns and a part of the k axis (split_k):
      accumulators = 0
      for each k_unroll rows of B:
        for each vector of the columns:  accumulators += the rows, each times its element of A
      outputs = accumulators, or
      partial_sums[part] = accumulators
    for each vector of the columns:  outputs = sum over all parts of partial_sums
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Broadcast, Expr, Load, Ramp, Select, Var, const, index
from ....ir.stmt import Kernel, LoopKind
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm
from ...space.columns import Ints
from ...tile.delinearize import delinearize
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at, vector_at
from ..gemm.packing import lanes_below

N = TypeVar("N", int, Ints)


@dataclass(frozen=True, eq=False)
class CpuGemvSizes(Generic[N]):
    """The sizes of one setting (ints) or of many (columns).

    ``n_ranges`` ranges of ``nc`` columns cover those of B, and each is ``split_k`` tasks along ``k``. A task multiplies
    ``k_unroll`` rows of B at a time, by an unrolled body of ``vectors`` vectors of ``lanes``, which divide ``nc``;
    ``split_k`` times ``k_unroll`` divides ``k``. ``tasks`` counts those of all products of a batch.
    """

    nc: N
    n_ranges: N
    k_unroll: N
    vectors: N
    split_k: N
    tasks: N
    lanes: int


LEAST_PARALLEL_ELEMENTS = 1 << 16
"""Partial sums from which on several threads add them up."""


def lower_gemv(p: Gemm, s: CpuGemvSizes[int]) -> Kernel:
    """Return the kernel of one setting."""
    return CpuGemvWriter(p, s).kernel()


class CpuGemvWriter:
    """Writes the loops of one setting."""

    def __init__(self, p: Gemm, s: CpuGemvSizes[int]) -> None:
        self.p, self.s, self.w = p, s, FreshNameWriter(p.names)
        self.extents = (*(a.extent for a in p.batch), s.n_ranges)

    def kernel(self) -> Kernel:
        """Return the whole kernel."""
        p, s, w = self.p, self.s, self.w
        shape = (s.split_k, prod(self.extents), p.m.extent, s.nc)
        partial_sums = Buffer(w.fresh("partial_sums"), shape, p.accumulator.dtype) if s.split_k > 1 else None
        with w.loop("task", s.tasks, LoopKind.PARALLEL) as task:
            block, part = (task // s.split_k, task % s.split_k) if partial_sums is not None else (task, index(0))
            at = self._at(block)
            accumulators = w.allocate("accumulators", (p.m.extent, s.nc), p.accumulator.dtype, MemoryScope.LOCAL)
            self._multiply(accumulators, at, part)
            with w.loop("row", p.m.extent) as m, w.loop("vector", s.nc // s.lanes) as vector:
                columns = self._vector(vector)
                if partial_sums is None:
                    self._store(at, m, vector, Load(accumulators, (m, Var("n") - at["n"])))
                else:
                    w.store(partial_sums, (part, block, m, columns), Load(accumulators, (m, columns)))
        if partial_sums is not None:
            self._reduce(partial_sums)
        workspace = () if partial_sums is None else (partial_sums,)
        return Kernel(KERNEL_NAME, p.inputs, tuple(r.tensor for r in p.results), workspace, w.finish())

    def _at(self, block: Expr) -> dict[str, Expr]:
        """Axis -> the index at which the columns of a block begin."""
        *outer, columns = delinearize(block, self.extents)
        at: dict[str, Expr] = dict(zip((a.name for a in self.p.batch), outer, strict=True))
        return {**at, "n": columns * self.s.nc}

    def _vector(self, vector: Expr) -> Ramp:
        """Return the columns of a vector of a task."""
        return Ramp(vector * self.s.lanes, 1, self.s.lanes)

    def _multiply(self, accumulators: Buffer, at: Mapping[str, Expr], part: Expr) -> None:
        """Add the products of one part of the rows of B."""
        p, s, w = self.p, self.s, self.w
        steps, lane = p.k.extent // (s.k_unroll * s.split_k), Ramp(index(0), 1, s.lanes)
        with w.loop("row", p.m.extent) as m, w.loop("vector", s.nc // s.lanes) as vector:
            w.store(accumulators, (m, self._vector(vector)), Broadcast(const(0, accumulators.dtype), s.lanes))
        with w.loop("step", steps) as step:
            first = (part * steps + step) * s.k_unroll
            a = w.allocate("a_elements", (p.m.extent, s.k_unroll, s.lanes), accumulators.dtype, MemoryScope.REGISTER)
            with w.unrolled("row", p.m.extent) as m, w.unrolled("k", s.k_unroll) as k:
                element = scalar_at(p.a.body, {**at, "m": m, "k": first + k})
                w.store(a, (m, k, lane), Broadcast(element, s.lanes))
            with (
                w.loop("vectors", s.nc // (s.lanes * s.vectors)) as vectors,
                w.unrolled("v", s.vectors) as v,
                w.unrolled("row", p.m.extent) as m,
            ):
                number = vectors * s.vectors + v
                value: Expr = Load(accumulators, (m, self._vector(number)))
                for n in range(s.k_unroll):
                    row = _masked_row(p, s, {**at, "k": first + n, "n": at["n"] + number * s.lanes})
                    value = value + Load(a, (m, index(n), lane)) * row
                w.store(accumulators, (m, self._vector(number)), value)

    def _store(self, at: Mapping[str, Expr], m: Expr, vector: Expr, total: Load) -> None:
        """The outputs of a vector of columns, given the sum of one column, on ``n``."""
        p, s = self.p, self.s
        here = {**at, "m": m, "n": at["n"] + vector * s.lanes}
        mask = None if p.n.extent % s.nc == 0 else lanes_below(here["n"], p.n.extent, s.lanes)
        for result in p.results:
            value = vector_at(
                result.value, here, "n", s.lanes, lambda load: total if load.buffer.name == p.accumulator.name else load
            )
            if mask is not None:
                value = Select(mask, value, Broadcast(const(0, value.dtype), s.lanes))
            indices = tuple(vector_at(i, here, "n", s.lanes) for i in result.indices)
            self.w.store(result.tensor, indices, value, mask)

    def _reduce(self, partial_sums: Buffer) -> None:
        """Outputs from the sums of all parts, added in their order."""
        s, w, (split_k, blocks, rows, columns) = self.s, self.w, partial_sums.shape
        kind = LoopKind.PARALLEL if partial_sums.elements >= LEAST_PARALLEL_ELEMENTS else LoopKind.SERIAL
        with w.loop("block", blocks, kind) as block:
            at = self._at(block)
            with w.loop("row", rows) as m, w.loop("vector", columns // s.lanes) as vector:
                total = w.allocate("total", (s.lanes,), partial_sums.dtype, MemoryScope.REGISTER)
                value: Expr = Load(partial_sums, (index(0), block, m, self._vector(vector)))
                for part in range(1, split_k):
                    value = value + Load(partial_sums, (index(part), block, m, self._vector(vector)))
                w.store(total, (Ramp(index(0), 1, s.lanes),), value)
                self._store(at, m, vector, Load(total, (Var("n") - at["n"] - vector * s.lanes,)))


def _masked_row(p: Gemm, s: CpuGemvSizes[int], here: Mapping[str, Expr]) -> Expr:
    """Return a vector of a row of B; zeros beyond its end."""
    value = vector_at(p.b.body, here, "n", s.lanes)
    if p.n.extent % s.nc == 0:
        return value
    mask = lanes_below(here["n"], p.n.extent, s.lanes)
    return Select(mask, value, Broadcast(const(0, value.dtype), s.lanes))
