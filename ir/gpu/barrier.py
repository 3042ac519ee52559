"""Barriers, and the groups of threads that synchronise at them."""

from dataclasses import dataclass
from enum import StrEnum

from ..stmt import Operation

WARPGROUP_THREADS = 128
"""How many threads a warpgroup has: 4 warps, of which the first has a number that 4 divides."""


class SyncScope(StrEnum):
    """The threads that synchronise at a barrier, or that must reach an operation together."""

    WARP = "warp"
    WARPGROUP = "warpgroup"
    BLOCK = "block"
    CLUSTER = "cluster"
    GRID = "grid"


@dataclass(frozen=True, slots=True)
class Barrier(Operation):
    """All threads of the group wait for each other. What each wrote before is seen by all of them afterwards. That of a
    grid has two statements of its own (``grid_barrier``)."""

    scope: SyncScope = SyncScope.BLOCK
