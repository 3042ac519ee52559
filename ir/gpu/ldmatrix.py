"""Matrices of 8x8 elements between shared memory and the registers of a warp (``ldmatrix``, ``stmatrix``)."""

from dataclasses import dataclass

from ..buffer import Buffer
from ..expr import Expr
from ..stmt import Operation


@dataclass(frozen=True, slots=True)
class LoadMatrix(Operation):
    """One warp loads ``count`` (1, 2 or 4) matrices of 8 rows of 8 16-bit elements from shared memory (``ldmatrix``).

    Lane ``8*i + r`` gives in ``source_indices`` where row ``r`` of matrix ``i`` begins: 8 contiguous elements, aligned
    to 16 bytes. What lanes from ``8*count`` on give does not matter. Lane ``l`` receives of matrix ``i`` the element
    ``(l // 4, 2 * (l % 4))`` and the one after it, as elements ``2*i`` and ``2*i + 1`` from ``target[target_indices]``
    on. With ``transposed`` they are those of the transposed matrices.
    """

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    count: int
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class StoreMatrix(Operation):
    """One warp stores ``count`` matrices of 8 rows of 8 16-bit elements to shared memory (``stmatrix``, sm_90).

    It is the counterpart of LoadMatrix: lanes say in ``target_indices`` where rows begin, and hold the elements from
    ``source[source_indices]`` on, just as there. With ``transposed`` they hold those of the transposed matrices.
    """

    target: Buffer
    target_indices: tuple[Expr, ...]
    source: Buffer
    source_indices: tuple[Expr, ...]
    count: int
    transposed: bool = False
