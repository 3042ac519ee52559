"""What every launch asks of its blocks."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ..space.columns import Bools, Columns, Size
from ..space.constraint import Constraint
from .occupancy import MOST_BLOCKS


class BlockSizes(Protocol):
    """Columns of a space: how many blocks a launch has, how much shared memory each takes, and how many of them a
    multiprocessor runs at once."""

    @property
    def blocks(self) -> Size: ...
    @property
    def shared_bytes(self) -> Size: ...
    @property
    def resident(self) -> Size: ...


def block_constraints(
    knobs: Sequence[str], sizes: Callable[[Columns], BlockSizes], most_shared_bytes: int
) -> tuple[Constraint, Constraint]:
    """Return that a multiprocessor has room for a block, and a launch for all blocks, where ``sizes`` follow from
    ``knobs``."""

    def fits(columns: Columns) -> Bools:
        found = sizes(columns)
        room: Bools = (found.resident >= 1) & (found.shared_bytes <= most_shared_bytes)
        return room

    return (
        Constraint(
            "a multiprocessor has room for the threads, the registers and the shared memory of a block, which is at "
            f"most {most_shared_bytes >> 10} KiB",
            tuple(knobs),
            fits,
        ),
        Constraint("a launch has at most 2^31 - 1 blocks", tuple(knobs), lambda c: sizes(c).blocks <= MOST_BLOCKS),
    )
