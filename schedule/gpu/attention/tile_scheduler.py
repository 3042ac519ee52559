"""The order of the tiles of queries, and the blocks of keys that the queries of a tile see.

Tiles of ``group_heads`` heads are worked on together, those of the last queries first. Under a causal mask these have
the most keys to go through, so that the short ones fill up the end. Blocks of keys are gone through
from the last to the first:

    block        partly visible    wholly visible    partly visible
    step         0 ... upper_end   ... lower_end     ... steps         (steps count from the last block down)
    mask         yes               no                yes

Where the number of queries or of keys is dynamic, so are the tiles and the blocks of a call, and how many CTAs share
the keys of a tile:

    sharers = min(split_kv / tiles of a head, blocks of keys), at least 1
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from ....ir.expr import Expr, Select, index, maximum, minimum
from ....ir.rewrite import substitute
from ....te.functions import equal
from ...problems.attention import Attention
from ...problems.key_bounds import KeyBound
from .sizes import AttentionSizes


def sees_all_keys(p: Attention) -> bool:
    """Return whether the last query sees the last key, and no lower bound hides the first ones."""
    beyond = [[p.beyond_last_key(limit) for limit in b.limits] for b in p.bounds if b.upper]
    return len(beyond) == len(p.bounds) and all(any(n is not None and n >= 0 for n in of_bound) for of_bound in beyond)


def shares_any_keys(p: Attention) -> bool:
    """Return whether CTAs can share the keys that a tile sees, however many these are."""
    return sees_all_keys(p) or (not p.is_dynamic and all(bound.upper for bound in p.bounds))


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

    @property
    def q_tiles(self) -> Expr:
        """How many tiles the queries of a head have in a call."""
        if self.p.dynamic_m is None:
            return index(self.s.q_tiles)
        return (self.p.dynamic_m + (self.s.tile_q - 1)) // self.s.tile_q

    @property
    def tiles(self) -> Expr:
        """How many tiles a call has."""
        return index(self.s.tiles) if self.p.dynamic_m is None else self.q_tiles * self.p.heads

    @property
    def kv_blocks(self) -> Expr:
        """How many blocks of keys a call has."""
        if self.p.dynamic_n is None:
            return index(self.s.kv_blocks)
        return (self.p.dynamic_n + (self.s.tile_kv - 1)) // self.s.tile_kv

    @property
    def sharers(self) -> Expr:
        """How many CTAs share the keys of a tile in a call, of a split_kv above 1."""
        most: Expr = index(self.s.split_kv)
        if self.p.dynamic_m is not None and self.s.q_tiles > 1:
            most = most // self.q_tiles
        if self.p.dynamic_n is not None:
            most = minimum(most, self.kv_blocks)
        return maximum(most, index(1)) if self.p.is_dynamic else most

    @property
    def most_steps(self) -> int:
        """How many blocks of keys a CTA goes through for a tile, at most."""
        fewer = self.p.dynamic_m is not None and self.s.q_tiles > 1
        return self.s.kv_blocks if fewer else self.s.split_blocks

    def tile(self, iteration: Expr, cta: Expr) -> Expr:
        """Return the number of the tile that a CTA works on. Every other iteration goes through the CTAs in reverse, so
        that none of them always gets a longer tile than the next."""
        ctas = self.s.blocks
        if self.s.tile_iterations == 1 or not self.p.bounds:
            return iteration * ctas + cta
        forth = equal(iteration % 2, 0)
        return iteration * ctas + Select(forth, cta, index(ctas - 1) - cta)

    def origin(self, tile: Expr) -> dict[str, Expr]:
        """Return where the tile with a number begins: axis of the queries or of the batch -> index."""
        s, heads = self.s, self.s.group_heads
        last = index(s.q_tiles - 1) if self.p.dynamic_m is None else self.q_tiles - 1
        of_group = index(s.q_tiles * heads) if self.p.dynamic_m is None else self.q_tiles * heads
        q_tile = last - tile % of_group // heads
        head = tile // of_group * heads + tile % heads
        at: dict[str, Expr] = {}
        for axis in reversed(self.p.batch):
            at[axis.name], head = head % axis.extent, head // axis.extent
        return {**at, "m": q_tile * s.tile_q}

    def key_blocks(self, at: Mapping[str, Expr]) -> KeyBlocks:
        """Return the blocks of keys that the tile at ``at`` goes through."""
        s, kv = self.s, self.s.tile_kv
        upper, lower = ([b for b in self.p.bounds if b.upper is side] for side in (True, False))
        last = index(s.kv_blocks - 1) if self.p.dynamic_n is None else self.kv_blocks - 1
        last = maximum(self._seen(upper, at, largest=True), index(0)) // kv if upper else last
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
        """Return what the CTA with a rank takes of ``blocks``, where ``sharers`` CTAs share them as evenly as they
        can."""
        s = self.s
        if self.p.bounds and not sees_all_keys(self.p):
            return self._share_of_seen(blocks, rank)
        first, end = (
            (rank + n) * self.kv_blocks // (self.sharers if self.p.is_dynamic else s.split_kv) for n in range(2)
        )
        steps = minimum(end - first, index(self.most_steps)) if self.p.is_dynamic else end - first
        upper_end = _between(blocks.upper_end - first, index(1), steps)
        return KeyBlocks(blocks.last - first, steps, upper_end, steps)

    def _share_of_seen(self, blocks: KeyBlocks, rank: Expr) -> KeyBlocks:
        """Return the share of a CTA of the blocks that are seen. With more CTAs than blocks, those without one take the
        block behind the last one, of which nothing is seen."""
        first, end = ((rank + n) * blocks.steps // self.s.split_kv for n in range(2))
        steps = maximum(end - first, index(1))
        last = Select(first < end, blocks.last - first, blocks.last + 1)
        return KeyBlocks(last, steps, _between(blocks.upper_end - first, index(1), steps), steps)

    def _seen(self, bounds: Sequence[KeyBound], at: Mapping[str, Expr], *, largest: bool) -> Expr:
        """Return the last key that ``bounds`` let some (or all) queries of a tile see; for lower ones, the first."""
        upper = bounds[0].upper
        seen = self.p.last_n if upper else index(0)
        for bound in bounds:
            limit = self._extreme(bound, at, largest=largest)
            seen = minimum(seen, limit) if upper else maximum(seen, limit)
        return seen

    def _extreme(self, bound: KeyBound, at: Mapping[str, Expr], *, largest: bool) -> Expr:
        """Return what the largest or least limit of the queries of a tile is. Where a bound has several limits, the
        least one of an upper bound may be more, and the largest one of a lower bound less."""
        found: list[Expr] = []
        for limit in bound.limits:
            ends_last = (limit.coefficient("m") >= 0) == largest
            m = minimum(at["m"] + (self.s.tile_q - 1), self.p.last_m) if ends_last else at["m"]
            found.append(substitute(limit.to_expr(), {**at, "m": m}))
        return reduce(maximum if bound.upper else minimum, found)


def _between(value: Expr, low: Expr, high: Expr) -> Expr:
    return maximum(minimum(value, high), low)
