"""Derives the sizes of a blocked matrix product, for one setting and for whole columns of settings alike.

C, m x n, is cut into tasks of mc x nc; k is cut into blocks of kc
a task has mc_tiles register tiles along m and nc_panels panels along n
a register tile is mr x nr, where nr is a number of vectors
"""

from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

from ...problems.gemm import Gemm
from ...space.columns import Ints
from ..arithmetic import ceil_div

N = TypeVar("N", int, Ints)


@dataclass(frozen=True, eq=False)
class CpuGemmSizes(Generic[N]):
    """``mr`` rows and ``nr`` columns of a register tile, which are ``vectors`` vectors. ``m_tiles`` and ``n_panels``
    cover C; ``mc_tiles`` and ``nc_panels`` are those of a task. ``kc`` steps of ``k`` make a block, and ``k_blocks``
    blocks cover it. ``tasks`` counts those of all products of a batch. ``a_block_bytes`` and ``b_block_bytes`` are what
    a task reads of an operand in one block of ``k``."""

    mr: N
    nr: N
    vectors: N
    kc: N
    m_tiles: N
    n_panels: N
    mc_tiles: N
    nc_panels: N
    k_blocks: N
    tasks: N
    a_block_bytes: N
    b_block_bytes: N


def gemm_sizes(
    p: Gemm,
    lanes: int,
    *,
    mr: Ints,
    vectors: Ints,
    m_blocks: Ints,
    n_blocks: Ints,
    kc: Ints,
    element_bytes: int,
    k_shared: int,
    m_tiles: Ints,
    a_shared: int = 1,
) -> CpuGemmSizes[Ints]:
    """Return the sizes where C is cut into ``m_blocks`` x ``n_blocks`` tasks. ``element_bytes``: of a packed element.
    ``k_shared`` and ``a_shared``: how many steps of ``k`` one packed element of the right operand and of the left one
    serves. ``m_tiles``: the register tiles that cover the rows."""
    nr = vectors * lanes
    n_panels = ceil_div(p.n.extent, nr)
    mc_tiles, nc_panels = ceil_div(m_tiles, m_blocks), ceil_div(n_panels, n_blocks)
    return CpuGemmSizes(
        mr=mr,
        nr=nr,
        vectors=vectors,
        kc=kc,
        m_tiles=m_tiles,
        n_panels=n_panels,
        mc_tiles=mc_tiles,
        nc_panels=nc_panels,
        k_blocks=ceil_div(p.k.extent, kc),
        tasks=m_blocks * n_blocks * prod(a.extent for a in p.batch),
        a_block_bytes=mc_tiles * mr * kc * element_bytes // a_shared,
        b_block_bytes=nc_panels * nr * kc * element_bytes // k_shared,
    )
