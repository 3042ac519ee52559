"""Asynchronous copies that each thread starts for itself (``cp.async``, sm_80)."""

from dataclasses import dataclass

from ..buffer import Buffer
from ..expr import Expr
from ..stmt import Operation


@dataclass(frozen=True, slots=True)
class CopyAsync(Operation):
    """Starts a copy of ``elements`` contiguous elements from global ``source[source_indices]`` to shared
    ``target[target_indices]``.

    The copy has 4, 8 or 16 bytes, and both ends are aligned to its size. Where ``mask`` is false, zeros arrive and
    nothing is read. ``present`` stands in its place where a part may be read: the first so many elements, from 0 to all
    (``src-size`` of PTX, which counts bytes); zeros arrive for the others. The data is there for this thread once it
    has waited (CopyAsyncWait), and for others after a barrier that follows.
    """

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    elements: int
    mask: Expr | None = None
    present: Expr | None = None


@dataclass(frozen=True, slots=True)
class CopyAsyncCommit(Operation):
    """Closes the group of the asynchronous copies that this thread started since its last commit."""


@dataclass(frozen=True, slots=True)
class CopyAsyncWait(Operation):
    """Waits until at most ``pending`` of this thread's committed groups are in flight: the youngest ones."""

    pending: int
