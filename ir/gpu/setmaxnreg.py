"""Registers that warpgroups release and take (``setmaxnreg``, sm_90a), for warp specialisation."""

from dataclasses import dataclass

from ..stmt import Operation


@dataclass(frozen=True, slots=True)
class SetMaxRegisters(Operation):
    """Each thread of a warpgroup has ``count`` registers from now on (24 to 240, a multiple of 8).

    ``increase`` says whether that is more or less than before. An increase waits until so many registers are free.
    """

    count: int
    increase: bool
