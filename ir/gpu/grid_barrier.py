"""The barrier of a whole grid, at which the blocks of a cooperative launch meet (``cooperative_groups`` of CUDA).

A launch that has one of these statements is cooperative: the device runs all of its blocks at once, or refuses it.

    ...                     # each block writes what others need
    GridBarrierArrive()
    ...                     # work that needs nothing of other blocks
    GridBarrierWait()       # all that any block wrote before it arrived is seen from here on
"""

from dataclasses import dataclass

from ..stmt import Launch, Operation, walk_statements


@dataclass(frozen=True, slots=True)
class GridBarrierArrive(Operation):
    """The block arrives at the barrier of the grid, once all of its threads are here. Arrivals and waits alternate."""


@dataclass(frozen=True, slots=True)
class GridBarrierWait(Operation):
    """All threads of the block wait until every block of the grid has arrived as often as this one has."""


def is_cooperative(launch: Launch) -> bool:
    """Return whether all blocks of a launch must run at once, because they wait for each other."""
    return any(isinstance(s, GridBarrierWait) for s in walk_statements(launch.body))
