"""Derives the sizes of a blocked matrix product, for one setting and for whole columns of settings alike.

C, m x n, is cut into tasks of mc x nc; k is cut into blocks of kc
a task has mc_tiles register tiles along m and nc_panels panels along n
a register tile is mr x nr, where nr is a number of vectors; the last panel of a task may have last_vectors alone
"""

from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

import numpy as np

from ...problems.gemm import Gemm
from ...space.columns import Bools, Ints
from ..arithmetic import ceil_div

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
    n: Ints,
    k_shared: Ints,
    narrow: Bools,
    m_tiles: Ints,
    a_shared: int = 1,
) -> CpuGemmSizes[Ints]:
    """Return the sizes where C is cut into ``m_blocks`` x ``n_blocks`` tasks. ``element_bytes``: of a packed element.
    ``n``: the columns of C. ``k_shared`` and ``a_shared``: how many steps of ``k`` one packed element of the right
    operand and of the left one serves. ``narrow``: whether a task has any number of vectors along ``n``, so that its
    last panel may be narrower; else it has whole panels. ``m_tiles``: the register tiles that cover the rows."""
    nr = vectors * lanes
    unit = np.where(narrow, lanes, nr)
    nc = ceil_div(ceil_div(n, unit), n_blocks) * unit
    mc_tiles, nc_panels = ceil_div(m_tiles, m_blocks), ceil_div(nc, nr)
    before = (n_blocks - 1) * nc  # columns of all tasks but the last
    last_panels = ceil_div(n - before, nr)
    return CpuGemmSizes(
        mr=mr,
        nr=nr,
        vectors=vectors,
        last_vectors=(nc - (nc_panels - 1) * nr) // lanes,
        n=n,
        nc=nc,
        n_computed=before + np.minimum(last_panels * nr, nc),
        kc=kc,
        k_shared=k_shared,
        m_tiles=m_tiles,
        n_panels=(n_blocks - 1) * nc_panels + last_panels,
        mc_tiles=mc_tiles,
        nc_panels=nc_panels,
        k_blocks=ceil_div(p.k.extent, kc),
        tasks=m_blocks * n_blocks * prod(a.extent for a in p.batch),
        a_block_bytes=mc_tiles * mr * kc * element_bytes // a_shared,
        b_block_bytes=nc * kc * element_bytes // k_shared,
    )
