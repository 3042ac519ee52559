"""Loads what scores read of other tensors, such as a bias, one block of keys ahead.

A thread reads two neighbours at once, where they lie next to each other and a row has no odd pitch. They are under way
while the weights of the block before are computed and multiplied with V.
"""

from collections.abc import Mapping

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, Load, Ramp, Var, index, minimum
from ....ir.rewrite import loads_of, map_loads
from ....ir.stmt import LoopKind
from ...problems.attention import Attention
from ...tile.load_analysis import flat_offset
from ...tile.names import FreshNameWriter
from ...tile.stage_body import vector_at
from .place_forms import FirstPlace

ELEMENT = Var("element#")
"""Which of a thread's elements of a block a score is. No variable of a kernel has this name."""


def pairs_of(p: Attention) -> tuple[Load, ...]:
    """Return the loads of scores and conditions that bring two neighbouring keys at once."""
    if p.dynamic_n is not None or p.n.extent % 2:
        return ()
    bodies = (*(() if p.score is None else (p.score,)), *p.conditions)
    loads = dict.fromkeys(load for body in bodies for load in loads_of(body) if load.buffer in p.inputs)
    return tuple(load for load in loads if _is_pair(load))


def pair_bytes(p: Attention) -> int:
    """Return how many bytes these loads bring for a score."""
    return sum(load.dtype.bytes for load in pairs_of(p))


def _is_pair(load: Load) -> bool:
    """Return whether a key and the next one, of even number, are neighbours that one aligned load brings."""
    offset = flat_offset(load)
    if offset is None or offset.coefficient("n") != 1:
        return False
    return offset.constant % 2 == 0 and all(c % 2 == 0 for name, c in offset.coefficients.items() if name != "n")


class ScorePrefetch:
    """``first``: as in ``PlaceForms``, of the block at a place."""

    def __init__(self, w: FreshNameWriter, p: Attention, tile_kv: int, first: FirstPlace) -> None:
        self.w, self.p, self.tile_kv, self.first = w, p, tile_kv, first
        self.registers: dict[Load, Buffer] = {
            load: w.allocate("prefetched", (tile_kv // 2,), load.dtype, MemoryScope.REGISTER) for load in pairs_of(p)
        }

    def taken(self, body: Expr) -> Expr:
        """Return ``body`` with the loads taken from registers, on the axis ``ELEMENT``."""
        return map_loads(body, lambda e: Load(self.registers[e], (ELEMENT,)) if e in self.registers else e)

    def load(self, at: Mapping[str, Expr]) -> None:
        """Start to load what the block at ``at`` needs. Places outside of the scores read the last row or keys."""
        w = self.w
        for load, register in self.registers.items():
            with (
                w.loop("prefetched_pair", self.tile_kv // 8, LoopKind.UNROLLED) as pair,
                w.loop("prefetched_half", 2, LoopKind.UNROLLED) as half,
            ):
                place = self.first(at, half)
                place["m"], place["n"] = minimum(place["m"], self.p.last_m), place["n"] + pair * 8
                if self.p.n.extent % self.tile_kv:
                    place["n"] = minimum(place["n"], index(self.p.n.extent - 2))
                w.store(register, (Ramp(pair * 4 + half * 2, 1, 2),), vector_at(load, place, "n", 2))
