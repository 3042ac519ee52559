"""The verifier's rules for warpgroups that take turns."""

from collections.abc import Callable
from typing import Any

from ..gpu.barrier import WARPGROUP_THREADS
from ..gpu.ordered_sequence import (
    MAX_ORDERED_WARPGROUPS,
    OrderedSequenceArrive,
    OrderedSequenceStart,
    OrderedSequenceWait,
)
from ..stmt import Operation
from .types import BoundNames, RuleBroken


def _turns(stmt: OrderedSequenceStart | OrderedSequenceWait | OrderedSequenceArrive, names: BoundNames) -> None:
    if not 2 <= stmt.warpgroups <= MAX_ORDERED_WARPGROUPS:
        raise RuleBroken(
            "operation", f"{stmt.warpgroups} warpgroups take turns; 2 to {MAX_ORDERED_WARPGROUPS} are allowed"
        )
    if names.launch is not None and names.launch.threads < stmt.warpgroups * WARPGROUP_THREADS:
        raise RuleBroken(
            "warps", f"{stmt.warpgroups} warpgroups take turns in blocks of {names.launch.threads} threads"
        )


ORDERED_SEQUENCE_RULES: dict[type[Operation], Callable[[Any, BoundNames], None]] = {
    OrderedSequenceStart: _turns,
    OrderedSequenceWait: _turns,
    OrderedSequenceArrive: _turns,
}
"""What each operation takes."""
