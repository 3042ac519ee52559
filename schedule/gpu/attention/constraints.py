"""Which settings of ``cuda_attention`` are legal: those that can be built, are correct, and repeat no other one."""

from collections.abc import Callable

from ....core.target import Target
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS
from ...problems.attention import Attention
from ...space.columns import Bools, Ints
from ...space.constraint import Constraint
from ..occupancy import limits_of
from .operand_tiles import page_rows, v_is_of_keys
from .score_loads import tile_loads
from .sizes import AttentionSizes, attention_sizes
from .tile_scheduler import shares_any_keys

SPARE_REGISTERS = 32
"""Registers for addresses, constants and the state of rows, roughly (from compiled kernels)."""


_Rule = Callable[[str, str, Callable[[AttentionSizes[Ints]], Bools]], Constraint]
"""Makes a constraint of its meaning, the names of the knobs that it depends on, and which sizes keep it."""


def attention_constraints(p: Attention, target: Target) -> tuple[Constraint, ...]:
    """Return the constraints of ``cuda_attention``."""
    limits = limits_of(target)
    tiles = " score_tiles" if tile_loads(p) else ""
    shared = " shared_kv" if v_is_of_keys(p) else ""

    def rule(meaning: str, knobs: str, holds: Callable[[AttentionSizes[Ints]], Bools]) -> Constraint:
        """Return a constraint on sizes that follow from ``knobs`` (their names) alone."""
        return Constraint(meaning, tuple(knobs.split()), lambda c: holds(attention_sizes(p, target, c)))

    return (
        rule(
            "the registers of a consumer thread hold the sums (d / 2, or half of that where two share the columns), "
            f"scores (tile_kv / 2), weights (tile_kv / 4) and about {SPARE_REGISTERS} more values",
            "consumer_warpgroups tile_kv",
            lambda s: s.held_registers + SPARE_REGISTERS <= s.thread_registers,
        ),
        rule(
            "Q and the stages of K and V fit into shared memory",
            "consumer_warpgroups tile_kv stages q_stages" + tiles + shared,
            lambda s: s.shared_bytes <= limits.shared_bytes_per_block,
        ),
        rule(
            "there are no more stages than blocks of keys that are loaded",
            "consumer_warpgroups tile_kv stages persistent",
            lambda s: (s.stages == 1) | (s.stages <= s.kv_blocks * s.tile_iterations),
        ),
        rule(
            "tile_kv is its least value, or less than all keys and 64 more: further ones would be masked",
            "tile_kv",
            lambda s: (s.tile_kv == 64) | (s.tile_kv < p.n.extent + 64),
        ),
        rule(
            "with a single block of keys nothing overlaps: overlap is 1, unless consumer_warpgroups share columns",
            "tile_kv overlap",
            lambda s: (s.kv_blocks > 1) | (s.overlap == 1) | (s.column_warpgroups > 1),
        ),
        rule(
            "persistent is 0 where all tiles run at once",
            "consumer_warpgroups persistent",
            lambda s: (s.persistent == 0) | (s.tile_iterations > 1),
        ),
        rule(
            "a second tile of queries (q_stages) is loaded ahead by a persistent CTA alone",
            "persistent q_stages",
            lambda s: (s.q_stages == 1) | (s.persistent == 1),
        ),
        rule(
            "tiles of scores (score_tiles) are rows of 64 keys: tile_kv is a multiple of that",
            "tile_kv" + tiles,
            lambda s: (s.score_tiles == 0) | (s.tile_kv % SWIZZLE_128B_ELEMENTS == 0),
        ),
        *_of_pages(p, rule),
        rule(
            "with overlap, a block of keys that is V, too (shared_kv), needs a second stage beside it",
            "tile_kv stages overlap" + shared,
            lambda s: (s.shared_kv == 0) | (s.overlap == 0) | (s.stages > 1) | (s.kv_blocks == 1),
        ),
        *_of_warpgroups(rule),
        *_of_order(p, rule),
    )


def _of_pages(p: Attention, rule: _Rule) -> tuple[Constraint, ...]:
    """Return how blocks of keys and pages fit together."""

    def of(page: int) -> Constraint:
        meaning = f"tile_kv is a whole number of pages of {page} keys, or a page one of tile_kv"
        return rule(meaning, "tile_kv", lambda s: (s.tile_kv % page == 0) | (page % s.tile_kv == 0))

    pages = {page for page in (page_rows(load, "n") for load in (p.key, p.v)) if page is not None}
    return tuple(map(of, sorted(pages)))


def _of_warpgroups(rule: _Rule) -> tuple[Constraint, ...]:
    """Return what consumer warpgroups may share."""
    return (
        rule(
            "consumer_warpgroups is 2 where V has more than 256 columns: they share them",
            "consumer_warpgroups",
            lambda s: (s.column_warpgroups == 1) | (s.consumer_warpgroups == s.column_warpgroups),
        ),
        rule(
            "overlap is 0 where consumer_warpgroups share columns: it takes registers that they need",
            "overlap",
            lambda s: (s.column_warpgroups == 1) | (s.overlap == 0),
        ),
        rule(
            "several consumer_warpgroups are needed to take turns (ping_pong), each with queries of its own",
            "consumer_warpgroups ping_pong",
            lambda s: (s.ping_pong == 0) | (s.consumer_warpgroups > s.column_warpgroups),
        ),
    )


def _of_order(p: Attention, rule: _Rule) -> tuple[Constraint, ...]:
    """Return which CTA has which tiles and which keys, one after the other."""
    alike = all(limit.coefficient("m") == 0 for bound in p.bounds for limit in bound.limits)
    shared_tiles = 0 if not shares_any_keys(p) else p.m.extent if alike else 1
    return (
        rule(
            "CTAs that share the keys of a tile (split_kv) work on no other one, and each of them has a block",
            "tile_kv persistent split_kv",
            lambda s: (s.split_kv == 1) | ((s.persistent == 0) & (s.split_kv <= s.kv_blocks)),
        ),
        rule(
            "split_kv is 1 where masks give tiles different numbers of blocks",
            "consumer_warpgroups split_kv",
            lambda s: (s.split_kv == 1) | (s.q_tiles <= shared_tiles) | (not p.bounds),
        ),
        rule(
            "group_heads divides the number of heads, and is 1 where all tiles take equally long, or a head has one",
            "consumer_warpgroups group_heads",
            lambda s: (s.group_heads == 1) | ((p.heads % s.group_heads == 0) & (s.q_tiles > 1) & bool(p.bounds)),
        ),
    )
