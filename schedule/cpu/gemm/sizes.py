"""The sizes of a blocked matrix product, of one setting and of whole columns of settings alike.

C, m x n, is cut into tasks of mc x nc; k is cut into blocks of kc
a task has mc_tiles register tiles along m and nc_panels panels along n
a register tile is mr x nr, where nr is a number of vectors; the last panel of a task may have last_vectors alone
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from ...space.columns import Ints

N = TypeVar("N", int, Ints)


@dataclass(frozen=True, eq=False)
class CpuGemmSizes(Generic[N]):
    """``mr`` rows and ``nr`` columns of a register tile, which are ``vectors`` vectors. ``n``: the columns of C.
    ``m_tiles`` and ``n_panels`` cover C, and together they compute ``n_computed`` columns. ``mc_tiles``, ``nc_panels``
    and ``nc`` columns are those of a task, whose last panel has ``last_vectors``. ``kc`` steps of ``k`` make a block,
    and ``k_blocks`` blocks cover it. ``k_shared``: steps of ``k`` that one packed element of the right operand serves.
    ``tasks`` counts those of all products of a batch. ``a_block_bytes`` and ``b_block_bytes`` are what a task reads of
    an operand in one block of ``k``."""

    mr: N
    nr: N
    vectors: N
    last_vectors: N
    n: N
    nc: N
    n_computed: N
    kc: N
    k_shared: N
    m_tiles: N
    n_panels: N
    mc_tiles: N
    nc_panels: N
    k_blocks: N
    tasks: N
    a_block_bytes: N
    b_block_bytes: N
