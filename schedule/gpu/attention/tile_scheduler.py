"""The order of the tiles of queries, and the blocks of keys that the queries of a tile see.

Tiles of ``group_heads`` heads are worked on together, and among them those of the last queries first: under a causal
mask these have the most keys to go through, so that the short ones fill up the end. Blocks of keys are gone through
from the last to the first:

    block        partly visible    wholly visible    partly visible
    step         0 ... upper_end   ... lower_end     ... steps         (steps count from the last block down)
    mask         yes               no                yes
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....ir.expr import Compare, CompareOp, Expr, Select, index, maximum, minimum
from ....ir.rewrite import substitute
from ...problems.attention import Attention, KeyBound
from .sizes import AttentionSizes


@dataclass(frozen=True, slots=True)
class KeyBlocks:
    """The steps that a tile makes over blocks of keys, ``steps`` in all: that of number ``i`` takes the block ``last -
    i``. No mask hides anything in the steps from ``upper_end`` (at least 1) to before ``lower_end``."""

    last: Expr
    steps: Expr
    upper_end: Expr
    lower_end: Expr


@dataclass(frozen=True, slots=True)
class AttentionTileScheduler:
    """The tiles of one problem and setting."""

    p: Attention
    s: AttentionSizes[int]

    def tile(self, iteration: Expr, cta: Expr) -> Expr:
        """The number of the tile that a CTA works on. Every other iteration goes through the CTAs in reverse, so that
        none of them always gets a longer tile than the next."""
        ctas = self.s.ctas
        if self.s.tile_iterations == 1 or not self.p.bounds:
            return iteration * ctas + cta
        forth = Compare(CompareOp.EQ, iteration % 2, index(0))
        return iteration * ctas + Select(forth, cta, index(ctas - 1) - cta)

    def origin(self, tile: Expr) -> dict[str, Expr]:
        """Where the tile with a number begins: axis of the queries or of the batch -> index."""
        s, heads = self.s, self.s.group_heads
        q_tile = index(s.q_tiles - 1) - tile % (s.q_tiles * heads) // heads
        head = tile // (s.q_tiles * heads) * heads + tile % heads
        at: dict[str, Expr] = {}
        for axis in reversed(self.p.batch):
            at[axis.name], head = head % axis.extent, head // axis.extent
        return {**at, "m": q_tile * s.tile_q}

    def key_blocks(self, at: Mapping[str, Expr]) -> KeyBlocks:
        """The blocks of keys that the tile at ``at`` goes through."""
        s, kv = self.s, self.s.tile_kv
        upper, lower = ([b for b in self.p.bounds if b.upper is side] for side in (True, False))
        last = maximum(self._seen(upper, at, largest=True), index(0)) // kv if upper else index(s.kv_blocks - 1)
        first = minimum(self._seen(lower, at, largest=False) // kv, last) if lower else index(0)
        steps = last - first + 1
        upper_end: Expr = index(1)
        lower_end = steps
        if upper:
            whole = (maximum(self._seen(upper, at, largest=False), index(-1)) + 1) // kv  # blocks seen by all queries
            upper_end = _between(last - whole + 1, index(1), steps)
        if lower:
            hidden = (self._seen(lower, at, largest=True) + (kv - 1)) // kv
            lower_end = _between(last - hidden + 1, upper_end, steps)
        return KeyBlocks(last, steps, upper_end, lower_end)

    def share(self, blocks: KeyBlocks, rank: Expr) -> KeyBlocks:
        """What the CTA with a rank takes of ``blocks``, where ``split_kv`` CTAs share them as evenly as they can."""
        s = self.s
        first = rank * s.kv_blocks // s.split_kv
        steps = (rank + 1) * s.kv_blocks // s.split_kv - first
        upper_end = _between(blocks.upper_end - first, index(1), steps)
        return KeyBlocks(blocks.last - first, steps, upper_end, steps)

    def _seen(self, bounds: Sequence[KeyBound], at: Mapping[str, Expr], *, largest: bool) -> Expr:
        """The last key that ``bounds`` let some (or all) queries of a tile see; for lower ones, the first."""
        upper = bounds[0].upper
        seen: Expr = index(self.p.n.extent - 1 if upper else 0)
        for bound in bounds:
            limit = self._extreme(bound, at, largest=largest)
            seen = minimum(seen, limit) if upper else maximum(seen, limit)
        return seen

    def _extreme(self, bound: KeyBound, at: Mapping[str, Expr], *, largest: bool) -> Expr:
        """The largest or least limit of the queries of a tile."""
        ends_last = (bound.limit.coefficient("m") >= 0) == largest
        m = minimum(at["m"] + (self.s.tile_q - 1), index(self.p.m.extent - 1)) if ends_last else at["m"]
        return substitute(bound.limit.to_expr(), {**at, "m": m})


def _between(value: Expr, low: Expr, high: Expr) -> Expr:
    return maximum(minimum(value, high), low)
