"""Barriers in shared memory that count arrivals and bytes (``mbarrier``, sm_80; with transactions sm_90).

An mbarrier is an element ``barriers[index]`` of a shared buffer of dtype int64. It goes through phases: a phase ends
when its ``count`` arrivals are complete and all bytes that it expects have arrived; then the next one begins.
"""

from dataclasses import dataclass

from ..buffer import Buffer
from ..expr import Expr
from ..stmt import Operation

MAX_TX_BYTES = (1 << 20) - 1
"""How many bytes a phase of an mbarrier can expect at most."""
TX_BYTES = 16
"""What the bytes that a phase expects are a multiple of."""


@dataclass(frozen=True, slots=True)
class MbarrierInit(Operation):
    """Initialises the mbarrier ``barriers[index]`` for ``count`` arrivals a phase. One thread does it; a barrier of the
    block must follow before any thread uses it."""

    barriers: Buffer
    index: Expr
    count: int


@dataclass(frozen=True, slots=True)
class MbarrierArrive(Operation):
    """This thread arrives at ``barriers[index]``. Whoever waits for the phase sees what this thread did before, and may
    overwrite, by copies too, what this thread read.

    ``rank`` names the block of the cluster whose mbarrier it is; None is this block. (TmaLoad says from when on other
    blocks may be reached.) That block then knows what this thread read, but not what it wrote.
    """

    barriers: Buffer
    index: Expr
    rank: Expr | None = None


@dataclass(frozen=True, slots=True)
class MbarrierArriveExpectTx(Operation):
    """This thread arrives at ``barriers[index]``, whose phase then ends no earlier than ``bytes`` more have arrived of
    copies with ``tx_expected``. It orders what this thread did before just as MbarrierArrive does."""

    barriers: Buffer
    index: Expr
    bytes: int | Expr


@dataclass(frozen=True, slots=True)
class MbarrierWait(Operation):
    """Waits until the phase of ``barriers[index]`` with this ``parity`` has ended. The first phase has parity 0, and
    parities alternate."""

    barriers: Buffer
    index: Expr
    parity: Expr
