"""Warpgroups that take turns, so that one keeps the tensor cores busy while another computes (named barriers, sm_90).

Turns order nothing but time: what one warpgroup wrote is not known to another one by them.
"""

from dataclasses import dataclass

from ..stmt import Operation

MAX_ORDERED_WARPGROUPS = 4
"""How many warpgroups may take turns."""


@dataclass(frozen=True, slots=True)
class OrderedSequenceStart(Operation):
    """The first ``warpgroups`` of a block (2 to 4) begin to take turns. Each of them does so once, ahead of its first
    OrderedSequenceWait."""

    warpgroups: int


@dataclass(frozen=True, slots=True)
class OrderedSequenceWait(Operation):
    """This warpgroup waits for its turn. They come in the order of the numbers of the warpgroups, over and over, so all
    of them must have equally many."""

    warpgroups: int


@dataclass(frozen=True, slots=True)
class OrderedSequenceArrive(Operation):
    """This warpgroup ends its turn."""

    warpgroups: int
