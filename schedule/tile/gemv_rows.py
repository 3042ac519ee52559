"""Products of very few rows with a matrix that lies along its columns, on a processor: the matrix is read once, row by
row as it lies, and what has been summed up so far waits in the first level of cache.

    parallel for each task, a range of columns:
      sums = 0
      for each few rows of the matrix:
        for each vector of the columns:  sums += the rows, each times its element of the left operand
      outputs = sums
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ...ir.buffer import Scope
from ...ir.expr import Broadcast, Expr, Load, Ramp, Select, Var, const, index
from ...ir.stmt import Kernel, LoopKind
from .digits import digits
from .gemm_operand import lanes_below
from .naming import NamingWriter
from .pointwise import value_at, vector_at
from .product import Product

UNROLLED = LoopKind.UNROLLED


@dataclass(frozen=True, slots=True)
class RowsSetting:
    """``columns`` of a task; ``rows`` of the matrix, which divide ``k``, at a time; ``vectors`` of ``lanes``, which
    divide the columns, written out one after the other."""

    columns: int
    rows: int
    vectors: int
    lanes: int


def lower_rows_product(p: Product, name: str, s: RowsSetting) -> Kernel:
    """The kernel of one setting."""
    w, dtype = NamingWriter(p.names), p.total.dtype
    extents = (*(a.extent for a in p.batch), -(-p.n.extent // s.columns))
    with w.loop("task", prod(extents), LoopKind.PARALLEL) as task:
        *outer, block = digits(task, extents)
        at: dict[str, Expr] = dict(zip((a.name for a in p.batch), outer, strict=True))
        first = block * s.columns
        sums = w.allocate("sums", (p.m.extent, s.columns), dtype, Scope.LOCAL)

        def run(part: Expr) -> Ramp:
            return Ramp(part * s.lanes, 1, s.lanes)

        with w.loop("row", p.m.extent) as m, w.loop("part", s.columns // s.lanes) as part:
            w.store(sums, (m, run(part)), Broadcast(const(0, dtype), s.lanes))
        with w.loop("step", p.k.extent // s.rows) as step:
            factors = w.allocate("factors", (p.m.extent, s.rows, s.lanes), dtype, Scope.REGISTER)
            with w.loop("row", p.m.extent, UNROLLED) as m, w.loop("k", s.rows, UNROLLED) as k:
                factor = value_at(p.tokens.body, {**at, "m": m, "k": step * s.rows + k})
                w.store(factors, (m, k, Ramp(index(0), 1, s.lanes)), Broadcast(factor, s.lanes))
            with (
                w.loop("parts", s.columns // (s.lanes * s.vectors)) as parts,
                w.loop("v", s.vectors, UNROLLED) as v,
                w.loop("row", p.m.extent, UNROLLED) as m,
            ):
                place = parts * s.vectors + v
                value: Expr = Load(sums, (m, run(place)))
                for n in range(s.rows):
                    row = _masked(p, s, {**at, "k": step * s.rows + n, "n": first + place * s.lanes})
                    value = value + Load(factors, (m, index(n), Ramp(index(0), 1, s.lanes))) * row
                w.store(sums, (m, run(place)), value)
        with w.loop("row", p.m.extent) as m, w.loop("part", s.columns // s.lanes) as part:
            here = {**at, "m": m, "n": first + part * s.lanes}
            mask = None if p.n.extent % s.columns == 0 else lanes_below(here["n"], p.n.extent, s.lanes)
            total = Load(sums, (m, Var("n") - first))
            for result in p.results:
                value = vector_at(
                    result.value, here, "n", s.lanes, lambda load: total if load.buffer.name == p.total.name else load
                )
                if mask is not None:
                    value = Select(mask, value, Broadcast(const(0, value.dtype), s.lanes))
                w.store(result.tensor, tuple(vector_at(i, here, "n", s.lanes) for i in result.indices), value, mask)
    return Kernel(name, p.inputs, tuple(r.tensor for r in p.results), (), w.finish())


def _masked(p: Product, s: RowsSetting, here: Mapping[str, Expr]) -> Expr:
    """A vector of a row of the matrix; zeros beyond its end."""
    value = vector_at(p.weights.body, here, "n", s.lanes)
    if p.n.extent % s.columns == 0:
        return value
    mask = lanes_below(here["n"], p.n.extent, s.lanes)
    return Select(mask, value, Broadcast(const(0, value.dtype), s.lanes))
