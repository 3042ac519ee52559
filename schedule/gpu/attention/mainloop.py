"""Writes the loop over blocks of keys: TMA fills stages with K and V, wgmma multiplies what is there.

Without overlap, a step computes the scores of its block, then the weights, then adds their product with V to the sums.
With overlap, the tensor cores work while weights are computed:

    step 0      scores of block 0; weights of block 0
    step i      start the scores of block i, and the product of the weights of block i - 1 with V
                wait for the scores; weights of block i; wait for the product; rescale the sums
    at the end  the product of the last weights with V

K and V have pipelines of their own. The producer loads them in the order in which they are used. Where V is a part of
K (``shared_kv``), a block is both, and free once its product with the weights is there.

Where V has more columns than a warpgroup has registers for, two share them. One of them computes the weights, and hands
them to the other one (``weight_exchange``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, const, index
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.mbarrier import MbarrierArrive, MbarrierInit, MbarrierWait
from ....ir.gpu.ordered_sequence import OrderedSequenceArrive, OrderedSequenceWait
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M, WarpgroupMma, WarpgroupMmaWait
from ...problems.attention import Attention
from ...tile.names import FreshNameWriter
from ..gemm.mainloop import StageBarriers
from ..gemm.sizes import WARPGROUP_WARPS
from ..tma_view import ending_at
from .operand_tiles import OperandTiles, allocate_tiles, copy_tiles
from .roles import AttentionRoles
from .score_loads import tile_loads
from .sizes import AttentionSizes
from .softmax import OnlineSoftmax
from .tile_scheduler import AttentionTileScheduler, KeyBlocks
from .weight_exchange import WeightExchange

ATOM_K = 16
"""How many places of k one wgmma takes."""


class AttentionMainloop:
    """``sums`` are the accumulators of the product with V. A ``fill`` is the number of a block of K or V among all that
    a CTA loads."""

    def __init__(self, w: FreshNameWriter, p: Attention, s: AttentionSizes[int], roles: AttentionRoles) -> None:
        self.w, self.p, self.s, self.roles = w, p, s, roles
        self.most_steps = AttentionTileScheduler(p, s).most_steps
        k, d, widest = p.k.extent, p.d.extent, max(p.k.extent, p.d.extent)
        ends = {axis.name: axis.extent for axis in (p.m, p.n, p.k, p.d)}
        q, key, v = (ending_at(load, ends) for load in (p.q, p.key, p.v))
        self.q = allocate_tiles(w, "q", q, ("m", "k"), s.tile_q, k, s.q_stages, widest, p.last_m)
        self.k = allocate_tiles(w, "k", key, ("n", "k"), s.tile_kv, k, s.stages, k, p.last_n)
        self.v = self.k
        if not s.shared_kv:
            self.v = allocate_tiles(w, "v", v, ("n", "d"), s.tile_kv, d, s.stages, d, p.last_n)
        self.q_barriers, self.k_barriers = StageBarriers(w, s.q_stages), StageBarriers(w, s.stages)
        self.v_barriers = self.k_barriers if s.shared_kv else StageBarriers(w, s.stages)
        self.columns = d // s.column_warpgroups
        self.sums = w.allocate("sums", (self.columns // 2,), float32, MemoryScope.REGISTER)
        self.scores = w.allocate("scores", (s.tile_kv // 2,), float32, MemoryScope.REGISTER)
        self.weights = [
            w.allocate("weights", (s.tile_kv // 2,), p.q.buffer.dtype, MemoryScope.REGISTER)
            for _ in range(p.weight_parts)
        ]
        self.score_tiles = {
            load: allocate_tiles(w, "score_tile", load, ("m", "n"), s.tile_q, s.tile_kv, s.stages, s.tile_kv, p.last_m)
            for load in (tile_loads(p) if s.score_tiles else ())
        }
        self.keys = [self.k, *self.score_tiles.values()]
        self.softmax = OnlineSoftmax(w, p, roles, s.tile_q, s.tile_kv, self.score_tiles)
        self.exchange: WeightExchange | None = None
        if s.column_warpgroups > 1:
            self.exchange = WeightExchange(w, p, roles, s.tile_kv, s.column_warpgroups - 1)

    def initialise_barriers(self) -> None:
        """One thread does so, ahead of a barrier of the block."""
        w, s = self.w, self.s
        for stage in range(s.q_stages):
            w.emit(MbarrierInit(self.q_barriers.full, index(stage), 1))
            w.emit(MbarrierInit(self.q_barriers.empty, index(stage), s.consumer_warpgroups))
        readers = [(self.v_barriers, s.consumer_warpgroups)]
        if not s.shared_kv:
            readers.insert(0, (self.k_barriers, s.consumer_warpgroups // s.column_warpgroups))
        with w.loop("stage", s.stages) as kv_stage:
            for barriers, warpgroups in readers:
                w.emit(MbarrierInit(barriers.full, kv_stage, 1))
                w.emit(MbarrierInit(barriers.empty, kv_stage, warpgroups * WARPGROUP_WARPS))
        if self.exchange is not None:
            self.exchange.initialise_barriers()

    def run(
        self,
        at: Mapping[str, Expr],
        blocks: KeyBlocks,
        iteration: Expr,
        fills: Expr,
        release_queries: Callable[[Expr], None],
        rank: Expr,
    ) -> None:
        """All steps of the tile of queries at ``at``, the ``iteration``-th of this CTA; it made ``fills`` fills
        before. ``release_queries`` releases the tile of the iteration before, where it still holds its stage.
        ``rank``: the number of the CTA among those that share the keys."""
        w, s, softmax = self.w, self.s, self.softmax
        self.at, self.blocks, self.fills, self.iteration = at, blocks, fills, iteration
        self.q_stage, q_parity = iteration % s.q_stages, iteration // s.q_stages % 2
        with w.when(self.roles.produces), w.when(self.roles.elected):
            self._await_empty(self.q_barriers, self.q_stage, q_parity)
            copy_tiles(w, [self.q], self.q_stage, at, self.q_barriers.full)
            self._load(self.keys, self.k_barriers, index(0))
            if not s.overlap:
                self._load_v(index(0))
        with w.when(self.roles.weighs):
            softmax.start(self._place(index(0)), rank)
        with w.when(self.roles.consumes), w.unrolled("zeroed", self.sums.shape[0]) as element:
            w.store(self.sums, (element,), const(0.0, float32))
        with w.when(self.roles.weighs):
            w.emit(MbarrierWait(self.q_barriers.full, self.q_stage, q_parity))
        first = softmax.masks_the_last_block
        self._first_step(masked=first) if s.overlap else self._whole_step(index(0), masked=first, loads=False)
        if s.q_stages > 1:
            with w.when(self.roles.consumes):
                release_queries(iteration)
        masked = bool(self.p.bounds or self.p.conditions)
        self._steps(index(1), blocks.upper_end, masked=masked)
        self._steps(blocks.upper_end, blocks.lower_end, masked=bool(self.p.conditions))
        self._steps(blocks.lower_end, blocks.steps, masked=masked)
        if s.overlap:
            self._last_product(blocks.steps - 1)

    def normalise(self, steps: Expr) -> None:
        """Divide the sums of the tile, which took so many steps, by those of the weights."""
        w = self.w
        with w.when(self.roles.weighs):
            self.softmax.invert(self.at)
            if self.exchange is not None:
                self.exchange.give(self.softmax.decay, (), self._hand_over(steps))
        if self.exchange is not None:
            with w.when(self.roles.follows):
                self.exchange.take(self.softmax.decay, self._hand_over(steps))
                self.exchange.release()
        with w.when(self.roles.consumes):
            self.softmax.rescale(self.sums)

    def _steps(self, first: Expr, end: Expr, *, masked: bool) -> None:
        """The steps from ``first`` to before ``end``."""
        w, s = self.w, self.s
        if self.most_steps == 1 or first == end:
            return
        with w.loop("block", self.most_steps) as number, w.when(number + first < end):
            step = number + first
            self._overlapped_step(step, masked=masked) if s.overlap else self._whole_step(step, masked=masked)

    # --- the steps

    def _whole_step(self, step: Expr, *, masked: bool, loads: bool = True) -> None:
        w = self.w
        if loads:
            with w.when(self.roles.produces), w.when(self.roles.elected):
                self._load(self.keys, self.k_barriers, step)
                self._load_v(step)
        with w.when(self.roles.weighs):
            self._await_turn()
            self._start_scores(step)
            self._end_turn()
            w.emit(WarpgroupMmaWait(0))
            self._weigh(step, masked=masked)
            self._round(step, rescales=True)
            self._start_product(step)
            w.emit(WarpgroupMmaWait(0))
            self._release(self.v_barriers, step)
        self._follow(step)

    def _first_step(self, *, masked: bool) -> None:
        w, step = self.w, index(0)
        with w.when(self.roles.weighs):
            self._await_turn()
            self._start_scores(step)
            self._end_turn()
            w.emit(WarpgroupMmaWait(0))
            self._weigh(step, masked=masked)
            self._round(step, rescales=False)

    def _overlapped_step(self, step: Expr, *, masked: bool) -> None:
        w, softmax = self.w, self.softmax
        with w.when(self.roles.produces), w.when(self.roles.elected):
            self._load(self.keys, self.k_barriers, step)
            self._load_v(step - 1)
        with w.when(self.roles.weighs):
            self._await_turn()
            self._start_scores(step)
            products = self._start_product(step - 1)
            self._end_turn()
            w.emit(WarpgroupMmaWait(products))
            self._weigh(step, masked=masked)
            w.emit(WarpgroupMmaWait(0, after=softmax.own_sum))
            self._release(self.v_barriers, step - 1)
            self._round(step, rescales=True)

    def _last_product(self, step: Expr) -> None:
        with self.w.when(self.roles.produces), self.w.when(self.roles.elected):
            self._load_v(step)
        with self.w.when(self.roles.weighs):
            self._start_product(step)
            self.w.emit(WarpgroupMmaWait(0))
            self._release(self.v_barriers, step)

    def _follow(self, step: Expr) -> None:
        """A step of the warpgroups that take weights from another one."""
        w = self.w
        if self.exchange is None:
            return
        with w.when(self.roles.follows):
            self.exchange.take(self.softmax.decay, self._hand_over(step))
            self.softmax.rescale(self.sums)
            self._start_product(step, given=self.exchange.weights)
            w.emit(WarpgroupMmaWait(0))
            self._release(self.v_barriers, step)
            self.exchange.release()

    # --- their parts

    def _place(self, step: Expr) -> dict[str, Expr]:
        """Return where the block of a step begins."""
        return {**self.at, "n": (self.blocks.last - step) * self.s.tile_kv}

    def _load(self, tiles: Sequence[OperandTiles], barriers: StageBarriers, step: Expr) -> None:
        fill = self.fills + step
        stage = fill % self.s.stages
        self._await_empty(barriers, stage, fill // self.s.stages % 2)
        copy_tiles(self.w, tiles, stage, self._place(step), barriers.full)

    def _load_v(self, step: Expr) -> None:
        if not self.s.shared_kv:
            self._load([self.v], self.v_barriers, step)

    def _hand_over(self, step: Expr) -> Expr:
        """Return the number of a step among all hand-overs of weights: each tile has one more than steps."""
        return self.fills + self.iteration + step

    def _round(self, step: Expr, *, rescales: bool) -> None:
        """The weights of a step become operands, also of other warpgroups; the sums are scaled by their decay."""
        softmax = self.softmax
        if self.exchange is not None:  # the others wait
            softmax.round(self.scores, self.weights)
            self.exchange.give(softmax.decay, self.weights, self._hand_over(step))
        if rescales:
            softmax.rescale(self.sums)
        if self.exchange is None:
            softmax.round(self.scores, self.weights)

    def _weigh(self, step: Expr, *, masked: bool) -> None:
        """The scores of a step become weights. Its keys are released, and with them the tiles that scores read."""
        w, softmax, place = self.w, self.softmax, self._place(step)
        if self.score_tiles:
            softmax.prefetched.fetch((self.fills + step) % self.s.stages)
            w.barrier(SyncScope.WARP)
        if not self.s.shared_kv:
            self._release(self.k_barriers, step)
        softmax.weigh(self.scores, place, masked=masked)

    def _await_empty(self, barriers: StageBarriers, stage: Expr, parity: Expr) -> None:
        self.w.emit(MbarrierWait(barriers.empty, stage, index(1) - parity))

    def _await_full(self, barriers: StageBarriers, step: Expr) -> Expr:
        """Wait until the stage of a step has arrived; which one it is."""
        fill = self.fills + step
        self.w.emit(MbarrierWait(barriers.full, fill % self.s.stages, fill // self.s.stages % 2))
        return fill % self.s.stages

    def _release(self, barriers: StageBarriers, step: Expr) -> None:
        with self.w.when(self.roles.first_lane):
            self.w.emit(MbarrierArrive(barriers.empty, (self.fills + step) % self.s.stages))

    def _start_scores(self, step: Expr) -> None:
        """Start Q times the K of a step."""
        zero, row = index(0), self.roles.row_warpgroup * WGMMA_M
        stage = self._await_full(self.k_barriers, step)
        depth = -(-self.p.k.extent // ATOM_K) * ATOM_K
        for atom, first in enumerate(range(0, depth, SWIZZLE_128B_ELEMENTS)):
            a, b = (self.q_stage, index(atom), row, zero), (stage, index(atom), zero, zero)
            k = min(SWIZZLE_128B_ELEMENTS, depth - first)
            mma = WarpgroupMma(self.scores, (zero,), self.q.buffer, a, self.k.buffer, b, self.s.tile_kv, k, atom > 0)
            self.w.emit(replace(mma, recomputes_addresses=self.exchange is not None))

    def _start_product(self, step: Expr, given: Buffer | None = None) -> int:
        """Start the weights times the V of a step; how many statements that takes. ``given``: weights in shared memory
        in place of those in registers."""
        zero, kv = index(0), self.s.tile_kv
        stage = self._await_full(self.v_barriers, step)
        firsts = range(0, kv, SWIZZLE_128B_ELEMENTS)
        atom = self.roles.column_warpgroup * self.columns // SWIZZLE_128B_ELEMENTS
        for first, (part, weights) in product(firsts, enumerate(self.weights)):
            b = (stage, atom, index(first), zero)
            k = min(SWIZZLE_128B_ELEMENTS, kv - first)
            a: tuple[Expr, ...] = (index(first // 2),)
            if given is not None:
                weights, a = given, (index(part), index(first // SWIZZLE_128B_ELEMENTS), zero, zero)
            mma = WarpgroupMma(self.sums, (zero,), weights, a, self.v.buffer, b, self.columns, k, True, False, True)
            self.w.emit(replace(mma, recomputes_addresses=self.exchange is not None))
        return len(firsts) * len(self.weights)

    def _await_turn(self) -> None:
        if self.s.ping_pong:
            self.w.emit(OrderedSequenceWait(self.s.consumer_warpgroups))

    def _end_turn(self) -> None:
        if self.s.ping_pong:
            self.w.emit(OrderedSequenceArrive(self.s.consumer_warpgroups))
