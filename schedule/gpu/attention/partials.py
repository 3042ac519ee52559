"""CTAs that share the keys of a tile of queries: what each leaves behind, and the launch that combines it.

A CTA stores the sums of its rows as they are, with the maximum and the sum of the weights of each. Then, in the order
of the CTAs,

    maximum = the greatest of their maxima
    factor  = exp(maximum of a CTA - maximum)
    output  = sum of (factor * sums) / sum of (factor * sum of weights)
"""

from collections.abc import Mapping
from math import prod

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import (
    BinaryOp,
    Broadcast,
    Expr,
    Load,
    Ramp,
    Select,
    Unary,
    UnaryOp,
    Var,
    const,
    index,
    maximum,
    minimum,
)
from ....ir.rewrite import substitute
from ....ir.stmt import HardwareAxis
from ....te.functions import equal
from ...problems.attention_forms import LOG_SUM
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at, vector_at
from ..block_reduce import QUAD, QUAD_DISTANCES, butterfly, combine_of
from .softmax import OnlineSoftmax, exponent_unit, log_sum_of, row_of
from .tile_scheduler import AttentionTileScheduler

COMBINE_THREADS, COMBINED_COLUMNS = 128, 4
"""A CTA of the launch that combines has so many threads, each of which computes so many columns of a row."""


class AttentionPartials:
    """``sums`` is (CTA, axes of the batch, query, column), ``row_max`` and ``row_sum`` the same without columns."""

    def __init__(self, w: FreshNameWriter, scheduler: AttentionTileScheduler) -> None:
        self.w, self.p, self.s, self.scheduler = w, scheduler.p, scheduler.s, scheduler
        p, s = self.p, self.s
        rows = (s.split_kv, *(a.extent for a in p.batch), p.m.extent)
        self.sums = Buffer(w.fresh("partial_sums"), (*rows, p.d.extent), float32)
        self.row_max = Buffer(w.fresh("partial_max"), rows, float32)
        self.row_sum = Buffer(w.fresh("partial_row_sum"), rows, float32)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The workspace."""
        return self.sums, self.row_max, self.row_sum

    def store(self, sums: Buffer, softmax: OnlineSoftmax, at: Mapping[str, Expr], rank: Expr) -> None:
        """Store what a thread holds of the rows of the tile at ``at``, as the CTA with a rank."""
        w, p, lane = self.w, self.p, softmax.roles.lane
        columns = p.d.extent // self.s.column_warpgroups
        with w.when(softmax.roles.weighs):
            self.store_rows(softmax, at, rank)
        with w.unrolled("stored_half", 2) as half:
            m = at["m"] + row_of(softmax.roles, half)
            row = (rank, *(at[a.name] for a in p.batch), m)
            with w.when(m < p.m_end), w.unrolled("partial_pair", columns // 8) as pair:
                first = softmax.roles.column_warpgroup * columns + pair * 8 + lane % QUAD * 2
                held = Load(sums, (Ramp(pair * 4 + half * 2, 1, 2),))
                w.store(self.sums, (*(Broadcast(i, 2) for i in row), Ramp(first, 1, 2)), held)

    def store_rows(self, softmax: OnlineSoftmax, at: Mapping[str, Expr], rank: Expr) -> None:
        """Store the maxima and the sums of the weights of the rows of a thread."""
        w, p, lane = self.w, self.p, softmax.roles.lane
        with w.unrolled("partial_half", 2) as half:
            total = w.allocate("total", (1,), float32, MemoryScope.REGISTER)
            both = [Load(softmax.row_sum, (half, index(column))) for column in range(2)]
            w.store(total, (index(0),), both[0] + both[1])
            butterfly(w, "partial_quad", [total], combine_of(BinaryOp.ADD), QUAD_DISTANCES, (index(0),))
            m = at["m"] + row_of(softmax.roles, half)
            row = (rank, *(at[a.name] for a in p.batch), m)
            with w.when(m < p.m_end, equal(lane % QUAD, 0)):
                w.store(self.row_max, row, Load(softmax.row_max, (half,)))
                w.store(self.row_sum, row, Load(total, (index(0),)))

    def write_combine(self) -> None:
        """The launch that combines."""
        w, p = self.w, self.p
        vectors = p.d.extent // COMBINED_COLUMNS
        work = prod(self.row_max.shape[1:]) * vectors
        axes = [
            ("combine_cta", -(-work // COMBINE_THREADS), HardwareAxis.GRID_X),
            ("combine_thread", COMBINE_THREADS, HardwareAxis.THREAD),
        ]
        end: Expr = index(work)
        count = None
        if p.dynamic_m is not None:
            end = p.dynamic_m * (p.heads * vectors)
            count = (end + (COMBINE_THREADS - 1)) // COMBINE_THREADS
        with w.launch("combine", axes, count=count) as (cta, thread):
            number = cta * COMBINE_THREADS + thread
            spare = work % COMBINE_THREADS or count is not None
            with w.when(number < end if spare else None):
                self._combine(number // vectors, number % vectors * COMBINED_COLUMNS)

    def _combine(self, row: Expr, d: Expr) -> None:
        """Combine some columns of a row, given by its number among those of all heads."""
        w, p, splits = self.w, self.p, self.s.split_kv
        at: dict[str, Expr] = {"m": row % p.m_end, "d": d}
        member = row // p.m_end
        for axis in reversed(p.batch):
            at[axis.name], member = member % axis.extent, member // axis.extent
        place = (*(at[a.name] for a in p.batch), at["m"])
        tops = w.allocate("tops", (splits,), float32, MemoryScope.REGISTER)
        top, whole = (w.allocate(n, (1,), float32, MemoryScope.REGISTER) for n in ("top", "whole"))
        combined = w.allocate("combined", (COMBINED_COLUMNS,), float32, MemoryScope.REGISTER)
        zero, all_columns = index(0), Ramp(index(0), 1, COMBINED_COLUMNS)
        with w.unrolled("loaded", splits) as split:
            w.store(tops, (split,), Load(self.row_max, (self._present(split), *place)))
        w.store(top, (zero,), Load(tops, (zero,)))
        if splits > 1:
            with w.unrolled("compared_split", splits - 1) as split:
                w.store(top, (zero,), maximum(Load(top, (zero,)), Load(tops, (split + 1,))))
        w.store(whole, (zero,), const(0.0, float32))
        w.store(combined, (all_columns,), Broadcast(const(0.0, float32), COMBINED_COLUMNS))
        with w.unrolled("added_split", splits) as split:
            factor = w.allocate("factor", (1,), float32, MemoryScope.REGISTER)
            share = self._factor(Load(tops, (split,)), Load(top, (zero,)))
            if p.is_dynamic:
                share = Select(split < self.scheduler.sharers, share, const(0.0, float32))
            w.store(factor, (zero,), share)
            scaled = Load(factor, (zero,)) * Load(self.row_sum, (self._present(split), *place))
            w.store(whole, (zero,), Load(whole, (zero,)) + scaled)
            indices = (self._present(split), *place, Ramp(d, 1, COMBINED_COLUMNS))
            load = Load(self.sums, tuple(i if isinstance(i, Ramp) else Broadcast(i, COMBINED_COLUMNS) for i in indices))
            wide = Broadcast(Load(factor, (zero,)), COMBINED_COLUMNS)
            w.store(combined, (all_columns,), Load(combined, (all_columns,)) + wide * load)

        def held(load: Load) -> Expr:
            if load.buffer != p.normalised:
                return load
            return Load(combined, (Var("d") - d,)) / Load(whole, (zero,))

        value = vector_at(p.result.value, at, "d", COMBINED_COLUMNS, held)
        target = [vector_at(i, at, "d", COMBINED_COLUMNS) for i in p.result.indices]
        w.store(p.result.tensor, target, value)
        if p.log_sum is not None:
            found = log_sum_of(p, Load(top, (zero,)), Load(whole, (zero,)))
            log = scalar_at(p.log_sum.value, at, lambda load: found if load.buffer == LOG_SUM else load)
            with w.when(equal(d, 0)):
                w.store(p.log_sum.tensor, tuple(substitute(i, at) for i in p.log_sum.indices), log)

    def _present(self, rank: Expr) -> Expr:
        """Return the CTA that is read as the one with a rank: the last one in place of those that a call lacks, so that
        all loads are under way together. They count nothing."""
        return minimum(rank, self.scheduler.sharers - 1) if self.p.is_dynamic else rank

    def _factor(self, own: Expr, top: Expr) -> Expr:
        """Return what the sums of a CTA are scaled by. A CTA all of whose scores are minus infinity counts nothing."""
        factor = Unary(UnaryOp.EXP2, (own - top) * exponent_unit(self.p))
        hidden = equal(own, const(float("-inf"), float32))
        return Select(hidden, const(0.0, float32), factor)
