"""Copies of contiguous elements by the copy engine, and prefetches into the L2 cache (``cp.async.bulk``, sm_90)."""

from dataclasses import dataclass

from ..buffer import Buffer
from ..expr import Expr
from ..stmt import Operation


@dataclass(frozen=True, slots=True)
class BulkCopy(Operation):
    """One thread starts a copy of ``elements`` contiguous elements from global ``source[source_indices]`` to unswizzled
    shared ``target[target_indices]``. It arrives at the mbarrier ``barriers[index]`` and expects their bytes there.

    The phase of the mbarrier ends when its arrivals are complete and the bytes are there. The size of the copy and both
    addresses are multiples of 16 bytes.
    """

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    elements: int
    barriers: Buffer
    index: Expr


@dataclass(frozen=True, slots=True)
class Prefetch(Operation):
    """Asks for ``elements`` contiguous elements from global ``source[source_indices]`` on to be brought into the L2
    cache, in whole units of 16 bytes. It is simplest where the elements are such units themselves. Of a single element
    the whole cache line is asked for, as a load of the thread would (``prefetch.global.L2``).

    Nothing is read by it. All writes meet in the L2 cache, so a load finds there later what was written last. A
    prefetch at the start of a launch is therefore issued while earlier launches still run, whatever they write.
    """

    source: Buffer
    source_indices: tuple[Expr, ...]
    elements: int
