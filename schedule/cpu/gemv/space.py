"""Products of very few rows with a matrix that lies along its columns, on a processor: see ``schedule.tile.gemv_rows``.

float32 and float64 sums. A matrix that lies along the sum is left to the generic sketch, which reads it as it lies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from ....core.dtypes import float32, float64
from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm, gemm_of
from ...space.columns import Bools, Columns, Ints
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch, UsualPlan
from ..gemm.space import LEAST_ROWS, LEAST_WORK, reads_nothing_else
from .kernel import RowsSetting, lower_rows_product

ROWS = (1, 2, 4, 8, 16)
VECTORS = (1, 2, 4)
PIECES = tuple(1 << n for n in range(8))
ROW_TASKS = (1, 2, 4, 8, 16, 32)
MOST_TASKS = 4
"""For each thread, where sums of several are added: more would only make more sums."""
CACHE_BYTES = 32 << 10
"""What the sums of a task may take: the first level of cache, less what streams through it."""
LEAST_BUSY_ROWS = 4
"""Rows at a time below which sums come and go too often."""

QUANTITIES = (
    Quantity("tasks", "tasks", "ranges of columns that threads take one after the other"),
    Quantity("idle_share", "fraction", "thread time left idle when the tasks do not divide evenly"),
    Quantity("run_bytes", "B", "of a row of the matrix, read one after the other"),
    Quantity("sum_bytes", "B", "of the sums of a task"),
    Quantity("sum_traffic", "vectors", "of sums read and written for each vector of the matrix"),
    Quantity("body_statements", "statements", "vector statements of the innermost body, written out"),
)


@dataclass(frozen=True)
class _Plan(UsualPlan):
    product: Gemm
    target: Target
    lanes: int

    @property
    def knobs(self) -> tuple[Knob, ...]:
        p = self.product
        rows = [r for r in ROWS if p.k.extent % r == 0 and r * p.m.extent <= max(ROWS)]
        busy = tuple(r for r in rows if r >= LEAST_BUSY_ROWS) or (rows[-1],)
        return (
            Knob("rows", busy, "rows of the matrix that are multiplied together"),
            Knob("vectors", VECTORS, f"vectors of {self.lanes} written out one after the other"),
            Knob("column_tasks", PIECES, "ranges of columns"),
            Knob("row_tasks", tuple(r for r in ROW_TASKS if p.k.extent % (r * busy[-1]) == 0), "parts of the rows"),
        )

    def _columns(self, c: Columns) -> Ints:
        """Columns of a task: whole steps of the innermost loop."""
        step = c.ints("vectors") * self.lanes
        share = -(-self.product.n.extent // c.ints("column_tasks"))
        return np.asarray(-(-share // step) * step)

    def _tasks(self, c: Columns) -> Ints:
        batches = prod(a.extent for a in self.product.batch)
        return np.asarray(-(-self.product.n.extent // self._columns(c)) * batches * c.ints("row_tasks"))

    def usual(self, c: Columns) -> Bools:
        """Enough tasks, each cut said in one way, whose sums stay in the cache."""
        p, wide = self.product, self._columns(c)
        most = -(-p.n.extent // (c.ints("vectors") * self.lanes)) * prod(a.extent for a in p.batch)
        ok: Bools = -(-p.n.extent // wide) == c.ints("column_tasks")
        ok &= wide * p.m.extent * p.accumulator.dtype.bytes <= CACHE_BYTES
        ok &= self._tasks(c) >= np.minimum(self.target.threads, most)
        # parts of the rows come after one another as they lie, whole rows at best; their sums are added at the end
        parts = c.ints("row_tasks")
        ok &= (parts == 1) | (self._tasks(c) <= MOST_TASKS * self.target.threads)
        return ok

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        p, threads = self.product, self.target.threads
        tasks, wide, rows = self._tasks(columns), self._columns(columns), columns.ints("rows")
        found: dict[str, Ints | NDArray[np.float64]] = {
            "tasks": tasks,
            "idle_share": 1 - tasks / (threads * -(-tasks // threads)),
            "run_bytes": wide * p.accumulator.dtype.bytes,
            "sum_bytes": wide * p.m.extent * p.accumulator.dtype.bytes,
            "sum_traffic": 2 * p.m.extent / rows,
            "body_statements": rows * p.m.extent * columns.ints("vectors"),
        }
        return {name: np.asarray(column, dtype=np.float64) for name, column in found.items()}

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        vectors = int(setting["vectors"])
        share = -(-self.product.n.extent // int(setting["column_tasks"]))
        columns = -(-share // (vectors * self.lanes)) * vectors * self.lanes
        chosen = RowsSetting(columns, int(setting["rows"]), vectors, self.lanes, int(setting["row_tasks"]))
        return lower_rows_product(self.product, KERNEL_NAME, chosen)


def _plan(workload: Workload, target: Target) -> _Plan | None:
    p = gemm_of(workload)
    if p is None or p.accumulator.dtype not in (float32, float64) or not reads_nothing_else(p):
        return None
    lanes = max(1, target.vector_bytes // p.accumulator.dtype.bytes)
    large = prod(a.extent for a in (p.m, p.n, p.k, *p.batch)) >= LEAST_WORK and p.n.extent >= 2 * lanes
    along = p.b.load is not None and p.b.row == 1 and p.results[0].step("n") == 1
    return _Plan(p, target, lanes) if large and along and p.m.extent < LEAST_ROWS else None


CPU_GEMV = TileSketch("cpu_gemv", 3, QUANTITIES, _plan, kind="llvm")
