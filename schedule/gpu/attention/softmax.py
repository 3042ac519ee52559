"""Scores become weights, with running maxima and sums of rows (online softmax).

    new maximum of a row = the greater of the old one and the scores of this block
    decay                = exp(old maximum - new maximum)
    weight               = exp(score - new maximum)
    sum of the row       = decay * sum + the weights of this block

Exponentials are powers of two: ``exp(scale * x)`` is ``exp2(c * x)`` with c = scale * log2(e), so that a weight takes
one multiply-add and one exp2. A thread holds elements of two rows, in every eighth column two neighbours, as wgmma
leaves them. It adds up its own weights; the four lanes of a row meet for its maximum, and at the end for its sum.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import e, inf, log2

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import (
    BinaryOp,
    Cast,
    Expr,
    Load,
    Ramp,
    Select,
    Unary,
    UnaryOp,
    Var,
    const,
    index,
    logical_and,
    maximum,
    minimum,
)
from ....ir.gpu.wgmma import WGMMA_M
from ....ir.linear_form import LinearForm
from ....ir.rewrite import loads_of, substitute
from ....te.functions import equal
from ...problems.attention import Attention
from ...problems.attention_forms import LOG_SUM
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at
from ..block_reduce import QUAD, QUAD_DISTANCES, butterfly, combine_of
from ..gemm.sizes import WARPGROUP_WARPS
from .operand_tiles import WARP_ROWS, OperandTiles
from .place_forms import COLUMN, HALF, PlaceForms
from .roles import AttentionRoles
from .score_prefetch import ELEMENT, ScorePrefetch


def exponent_unit(p: Attention) -> float:
    """Return what a difference of scores is multiplied with to become an exponent of 2."""
    return p.scale * log2(e)


def log_sum_of(p: Attention, row_max: Expr, total: Expr) -> Expr:
    """Return the logarithm of the sum of the exponentials of a row's scores, where ``total`` is that of its weights."""
    return Unary(UnaryOp.LOG, total) + row_max * p.scale


def row_of(roles: AttentionRoles, half: Expr) -> Expr:
    """Return the row of its tile that a thread has in a half of the 16 rows of its warp."""
    return roles.row_warpgroup * WGMMA_M + roles.warp % WARPGROUP_WARPS * WARP_ROWS + roles.lane // QUAD + half * 8


class OnlineSoftmax:
    """The state of the rows of a thread: ``row_max`` by half of the 16 rows of its warp, ``row_sum`` by half and by
    column of a pair, ``decay`` by half."""

    def __init__(
        self,
        w: FreshNameWriter,
        p: Attention,
        roles: AttentionRoles,
        tile_q: int,
        tile_kv: int,
        score_tiles: Mapping[Load, OperandTiles],
    ) -> None:
        self.w, self.p, self.roles, self.tile_q, self.tile_kv = w, p, roles, tile_q, tile_kv
        self.row_max = w.allocate("row_max", (2,), float32, MemoryScope.REGISTER)
        self.row_sum = w.allocate("row_sum", (2, 2), float32, MemoryScope.REGISTER)
        self.decay = w.allocate("decay", (2,), float32, MemoryScope.REGISTER)
        self.prefetched = ScorePrefetch(w, p, roles, tile_kv, self._first_place, score_tiles)
        self.unit = exponent_unit(p)
        self.may_hide_rows = bool(p.bounds or p.conditions or p.score is not None or p.sink is not None)

    @property
    def masks_the_last_block(self) -> bool:
        """Whether something may be hidden in the last block of keys."""
        return bool(self.p.bounds or self.p.conditions) or self._cuts_the_last_block

    @property
    def _cuts_the_last_block(self) -> bool:
        """Whether the last block of keys may have places behind the last key."""
        return self.p.dynamic_n is not None or self.p.n.extent % self.tile_kv != 0

    @property
    def own_sum(self) -> Expr:
        """The sum of all weights that a thread has found so far."""
        parts = [Load(self.row_sum, (index(half), index(column))) for half in range(2) for column in range(2)]
        return parts[0] + parts[1] + (parts[2] + parts[3])

    def start(self, at: Mapping[str, Expr], rank: Expr) -> None:
        """Begin new rows, whose first block is at ``at``. Of the CTAs that share the keys, the one of ``rank`` 0 has
        the sink: its weight is 1 as long as it is the greatest score."""
        w = self.w
        self.prefetched.load(at)
        with w.unrolled("start_half", 2) as half:
            w.store(self.row_max, (half,), const(-inf, float32))
            with w.unrolled("start_column", 2) as column:
                w.store(self.row_sum, (half, column), const(0.0, float32))
            if self.p.sink is not None:
                sink = self._at(self.p.sink, self._first_place(at, half), const(0.0, float32))
                with w.when(equal(rank, 0)):
                    w.store(self.row_max, (half,), sink / self.p.scale)
                    with w.when(equal(self.roles.lane % QUAD, 0)):
                        w.store(self.row_sum, (half, index(0)), const(1.0, float32))

    def weigh(self, scores: Buffer, at: Mapping[str, Expr], *, masked: bool) -> None:
        """``scores`` of the block at ``at`` become weights. ``masked``: whether the mask may hide some of them."""
        w = self.w
        self._prepare(scores, at, masked=masked)
        with w.when(at["n"] > 0):
            self.prefetched.load({**at, "n": at["n"] - self.tile_kv})
        self._find_maxima(scores)
        with w.scope():
            shift = w.allocate("shift", (2,), float32, MemoryScope.REGISTER)
            with w.unrolled("shift_half", 2) as half:
                w.store(shift, (half,), self._shift(Load(self.row_max, (half,))))
                old = Load(self.decay, (half,)) * self.unit - Load(shift, (half,))
                w.store(self.decay, (half,), Unary(UnaryOp.EXP2, old))
                with w.unrolled("decayed_column", 2) as column:
                    decayed = Load(self.row_sum, (half, column)) * Load(self.decay, (half,))
                    w.store(self.row_sum, (half, column), decayed)
            with self._elements("weighed") as (element, half, column, _):
                power = Load(scores, (element,)) * self.unit - Load(shift, (half,))
                w.store(scores, (element,), Unary(UnaryOp.EXP2, power))
                total = Load(self.row_sum, (half, column)) + Load(scores, (element,))
                w.store(self.row_sum, (half, column), total)

    def rescale(self, sums: Buffer) -> None:
        """Scale the sums of all rows by their decay."""
        w = self.w
        with (
            w.unrolled("rescaled", sums.shape[-1] // 4) as pair,
            w.unrolled("rescaled_half", 2) as half,
            w.unrolled("rescaled_column", 2) as column,
        ):
            place = (pair * 4 + half * 2 + column,)
            w.store(sums, place, Load(sums, place) * Load(self.decay, (half,)))

    def round(self, weights: Buffer, operands: Sequence[Buffer]) -> None:
        """The first of ``operands`` becomes the weights, rounded to 16 bits, each further one what is left of them. The
        order is the same: see WarpgroupMma."""
        with self.w.unrolled("rounded", self.tile_kv // 4) as pair:
            place = (Ramp(pair * 2, 1, 2),)
            for n, operand in enumerate(operands):
                self.w.store(operand, place, Cast(Load(weights, place), operand.dtype))
                if n + 1 < len(operands):
                    self.w.store(weights, place, Load(weights, place) - Cast(Load(operand, place), float32))

    def invert(self, at: Mapping[str, Expr]) -> None:
        """``decay`` becomes what divides the sums of a row by that of its weights, whose logarithms are stored where
        they are an output of the tile at ``at``."""
        w, total = self.w, self.decay
        with w.unrolled("total_half", 2) as half:
            both = [Load(self.row_sum, (half, index(column))) for column in range(2)]
            w.store(total, (half,), both[0] + both[1])
            butterfly(w, "of_quad", [total], combine_of(BinaryOp.ADD), QUAD_DISTANCES, (half,))
            self._store_log_sum(at, half, Load(total, (half,)))
            w.store(total, (half,), 1.0 / Load(total, (half,)))

    def _store_log_sum(self, at: Mapping[str, Expr], half: Expr, total: Expr) -> None:
        """The first lane of a row stores the logarithm of the sum of its weights, where that is an output."""
        w, p = self.w, self.p
        if p.log_sum is None:
            return
        here = {**at, "m": at["m"] + row_of(self.roles, half)}
        found = log_sum_of(p, Load(self.row_max, (half,)), total)
        with w.when(here["m"] < p.m_end, equal(self.roles.lane % QUAD, 0)):
            value = scalar_at(p.log_sum.value, here, lambda load: found if load.buffer == LOG_SUM else load)
            w.store(p.log_sum.tensor, tuple(substitute(i, here) for i in p.log_sum.indices), value)

    def _prepare(self, scores: Buffer, at: Mapping[str, Expr], *, masked: bool) -> None:
        """Apply the function of the product that a score is, and the mask."""
        w, p = self.w, self.p
        visible = self._visible() if masked else []
        if p.score is None and not visible:
            return
        with w.scope():
            forms = PlaceForms(w, p, (self.tile_q, self.tile_kv), self._first_place, at)
            score = None if p.score is None else forms.taken(self.prefetched.taken(p.score))
            conditions = [forms.taken(condition) for condition in visible]
            with self._elements("prepared") as (element, half, column, pair):
                place = self._first_place(at, half)
                behind = pair * 8 + column
                here = {**place, "n": place["n"] + behind, HALF.name: half, COLUMN.name: behind}
                here[ELEMENT.name] = element
                value: Expr = Load(scores, (element,))
                if score is not None:
                    value = self._at(score, here, value)
                if conditions:
                    seen = logical_and(*(self._at(condition, here, value) for condition in conditions))
                    value = Select(seen, value, const(-inf, float32))
                w.store(scores, (element,), value)

    def _first_place(self, at: Mapping[str, Expr], half: Expr) -> dict[str, Expr]:
        """Return the place of the thread's first score in a half of its rows, in the block at ``at``."""
        first_column = self.roles.lane % QUAD * 2
        return {**at, "m": at["m"] + row_of(self.roles, half), "n": at["n"] + first_column}

    def _visible(self) -> list[Expr]:
        """Return the conditions that must hold for a query to see a key."""
        conditions = [b.condition for b in self.p.bounds] + [self.prefetched.taken(c) for c in self.p.conditions]
        if self._cuts_the_last_block and not any(b.upper and all(map(self._ends, b.limits)) for b in self.p.bounds):
            conditions.append(Var("n") < self.p.n_end)
        return conditions

    def _ends(self, limit: LinearForm) -> bool:
        """Return whether a limit lets no query see what is behind the last key."""
        beyond = self.p.beyond_last_key(limit)
        return limit.coefficient("m") >= 0 and beyond is not None and beyond <= 0

    def _at(self, body: Expr, at: Mapping[str, Expr], product: Expr) -> Expr:
        """``body`` of one element. Where it reads other tensors, places outside of the scores read their last row or
        column."""
        if any(load.buffer in self.p.inputs for load in loads_of(body)):
            at = {name: self._inside(name, i) for name, i in at.items()}
        return scalar_at(body, at, lambda load: product if load.buffer == self.p.product else load)

    def _inside(self, name: str, place: Expr) -> Expr:
        last = {"m": self.p.last_m, "n": self.p.last_n}.get(name)
        return place if last is None else minimum(place, last)

    def _find_maxima(self, scores: Buffer) -> None:
        """``decay`` becomes the old maxima, ``row_max`` the new ones."""
        w = self.w
        with w.scope():
            peak = w.allocate("peak", (2, 2), float32, MemoryScope.REGISTER)
            with w.unrolled("peak_half", 2) as half, w.unrolled("peak_column", 2) as column:
                w.store(peak, (half, column), Load(self.row_max, (half,)))
            with self._elements("compared") as (element, row_half, of_pair, _):
                w.store(peak, (row_half, of_pair), maximum(Load(peak, (row_half, of_pair)), Load(scores, (element,))))
            with w.unrolled("max_half", 2) as half:
                w.store(self.decay, (half,), Load(self.row_max, (half,)))
                w.store(self.row_max, (half,), maximum(*(Load(peak, (half, index(column))) for column in range(2))))
                butterfly(w, "peak_of_quad", [self.row_max], combine_of(BinaryOp.MAX), QUAD_DISTANCES, (half,))

    def _shift(self, row_max: Expr) -> Expr:
        """Return what is subtracted from the exponents of a row: nothing, as long as all of its scores are minus
        infinity."""
        shift = row_max * self.unit
        if not self.may_hide_rows:
            return shift
        hidden = equal(row_max, const(-inf, float32))
        return Select(hidden, const(0.0, float32), shift)

    @contextmanager
    def _elements(self, name: str) -> Iterator[tuple[Expr, Expr, Expr, Expr]]:
        """All scores of a thread: (element, half, column of a pair, pair)."""
        w = self.w
        with (
            w.unrolled(name, self.tile_kv // 8) as pair,
            w.unrolled(f"{name}_half", 2) as half,
            w.unrolled(f"{name}_column", 2) as column,
        ):
            yield pair * 4 + half * 2 + column, half, column, pair
