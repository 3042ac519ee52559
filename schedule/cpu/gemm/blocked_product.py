"""A matrix product with the micro-kernel that multiplies it, and how its settings use both operands."""

from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from ....core.target import Target
from ....ir.rewrite import loads_of
from ....te.workload import Axis
from ...problems.gemm import Gemm, Operand
from ...space.columns import Bools, Columns, Floats, Ints
from ..arithmetic import ceil_div
from ..limits import PAGE_BYTES, WAYS
from ..shared_knobs import COLUMNS_INSIDE
from .direct_convolution import FLATTENED, DirectConvolution
from .kernel import batch_of
from .micro_kernel import IN_FLIGHT, MicroKernel
from .packing import NEVER, TASK, WHOLE
from .pixel_rows import PixelRows
from .sizes import CpuGemmSizes

SET_PERIOD_BYTES = 1 << 16
"""Lines so far apart are on the same set of a second-level cache of 512 KiB and 8 ways. Larger ones have more sets."""
CONFLICT_BYTES = 1024
"""Rows at multiples of this many bytes fall on a few sets of it."""

TLB_SETS, TLB_PAGES = 128, 1024
"""Sets of the second-level translation buffer, and half of its pages. An Intel Xeon read 512 rows at pitches of 16 and
32 KiB in twice the time of 128, and 256 rows in 1.1 to 1.2 times."""
FEW_ROWS = 128
"""So many rows are read where they lie in less time than they are packed in, whatever their pages."""


@dataclass(frozen=True, eq=False)
class OperandUse:
    """How each setting uses one operand, whole columns.

    ``in_place``, ``per_task`` and ``whole``: when it is packed (never, by each task, before all tasks). ``reuse``: for
    how many multiply-adds a task uses a packed element. ``passes``: how often register tiles read the operand.
    ``sharing``: tasks that read the same part of it. ``rows``: rows that a register tile reads at once where it lies.
    ``elements``: how many it has when it is packed, those of the batch included. ``copies``: how often each of them is
    among these.
    """

    operand: Operand
    in_place: Bools
    per_task: Bools
    whole: Bools
    reuse: Ints
    passes: Ints
    sharing: Ints
    rows: Ints
    elements: Ints
    copies: Ints


@dataclass(frozen=True)
class BlockedProduct:
    """``constants``: inputs that stay the same from call to call. An operand made of them alone is always packed whole:
    that is done before the first call, and costs none of them anything. ``pixels``: the rows as pixels of images with
    channels last, where they are some. ``direct``: the columns as pixels that a window moves over, where they are."""

    gemm: Gemm
    target: Target
    micro_kernel: MicroKernel
    constants: frozenset[str] = frozenset()
    pixels: PixelRows | None = None
    direct: DirectConvolution | None = None

    @property
    def batches(self) -> int:
        """Products of the batch."""
        return prod(a.extent for a in self.gemm.batch)

    def m_tiles(self, mr: Ints) -> Ints:
        """Return how many register tiles cover the rows. One has pixels of one row of an image alone."""
        if self.pixels is None:
            return ceil_div(self.gemm.m.extent, mr)
        return self.pixels.positions[1] * ceil_div(self.pixels.positions[2], mr)

    @property
    def _a_shared(self) -> int:
        """How many steps of ``k`` one packed element of the left operand serves."""
        return 1 if self.pixels is None else self.pixels.shared

    def flattened(self, c: Columns) -> Bools:
        """Return whether rows of pixels are packed without padding, bool[n]."""
        return np.zeros(len(c), dtype=bool) if self.direct is None else c.flags("image_rows", FLATTENED)

    def padded(self, c: Columns) -> Bools:
        """Return whether rows of pixels are packed with padding, whose columns are computed, too: bool[n]."""
        return np.zeros(len(c), dtype=bool) if self.direct is None else ~self.flattened(c)

    def n(self, c: Columns) -> Ints:
        """Return the columns, with those of the padding, int64[n]."""
        outputs = self.gemm.n.extent
        return np.where(self.padded(c), outputs if self.direct is None else self.direct.padded_columns, outputs)

    def _k_shared(self, c: Columns) -> Ints:
        if self.direct is None:
            return np.ones(len(c), dtype=np.int64)
        return np.where(self.padded(c), self.direct.positions, self.direct.positions_across)

    def slowdown(self, s: CpuGemmSizes[Ints]) -> Floats:
        """Return how much longer the panels of a task take than their multiply-adds at the peak rate, float64[n]."""
        kernel, narrow = self.micro_kernel, s.last_vectors < s.vectors
        whole, last = kernel.slowdown(s.mr, s.vectors), kernel.slowdown(s.mr, s.last_vectors, IN_FLIGHT)
        return whole + np.where(narrow, s.last_vectors * kernel.lanes / s.nc * (last - whole), 0)

    def sizes(self, c: Columns) -> CpuGemmSizes[Ints]:
        """Return the sizes that settings imply. A task has any number of vectors along ``n``, so that its last panel
        may be narrower; of matrix tiles it has whole panels."""
        kernel, mr, vectors, kc = self.micro_kernel, c.ints("mr"), c.ints("nr_vectors"), c.ints("kc")
        m_blocks, n_blocks = c.ints("m_blocks"), c.ints("n_blocks")
        n, m_tiles, k_shared = self.n(c), self.m_tiles(mr), self._k_shared(c)
        nr = vectors * kernel.lanes
        unit = nr if kernel.register_rows > 1 else kernel.lanes
        nc = ceil_div(ceil_div(n, unit), n_blocks) * unit
        mc_tiles, nc_panels = ceil_div(m_tiles, m_blocks), ceil_div(nc, nr)
        before = (n_blocks - 1) * nc  # columns of all tasks but the last
        last_panels = ceil_div(n - before, nr)
        return CpuGemmSizes(
            mr=mr,
            nr=nr,
            vectors=vectors,
            last_vectors=(nc - (nc_panels - 1) * nr) // kernel.lanes,
            n=n,
            nc=nc,
            n_computed=before + np.minimum(last_panels * nr, nc),
            kc=kc,
            k_shared=k_shared,
            m_tiles=m_tiles,
            n_panels=(n_blocks - 1) * nc_panels + last_panels,
            mc_tiles=mc_tiles,
            nc_panels=nc_panels,
            k_blocks=ceil_div(self.gemm.k.extent, kc),
            tasks=m_blocks * n_blocks * self.batches,
            a_block_bytes=mc_tiles * mr * kc * kernel.packed_bytes // self._a_shared,
            b_block_bytes=np.where(self.flattened(c), nc, nc_panels * nr) * kc * kernel.packed_bytes // k_shared,
        )

    def uses(self, c: Columns, s: CpuGemmSizes[Ints]) -> tuple[OperandUse, OperandUse]:
        """Return how settings use the left operand and the right one."""
        p = self.gemm
        return (
            OperandUse(
                operand=p.a,
                in_place=c.flags("pack_a", NEVER),
                per_task=c.flags("pack_a", TASK),
                whole=c.flags("pack_a", WHOLE),
                reuse=s.nc * self._a_shared,
                passes=s.n_panels,
                sharing=c.ints("n_blocks") * self._sharing_batches(p.a),
                rows=s.mr,
                elements=np.asarray(self._elements(p.a, p.m) // self._a_shared),
                copies=np.ones(len(c), dtype=np.int64),
            ),
            OperandUse(
                operand=p.b,
                in_place=c.flags("pack_b", NEVER),
                per_task=c.flags("pack_b", TASK),
                whole=c.flags("pack_b", WHOLE),
                reuse=s.mc_tiles * s.mr * s.k_shared,
                passes=s.m_tiles,
                sharing=c.ints("m_blocks") * self._sharing_batches(p.b),
                rows=s.kc,
                elements=s.n * self._elements(p.b) // s.k_shared,
                copies=np.where(self.flattened(c), 1 if self.direct is None else self.direct.positions_along, 1),
            ),
        )

    def _sharing_batches(self, operand: Operand) -> int:
        """Return how many products of the batch read the same operand."""
        return self.batches // prod(a.extent for a in batch_of(operand, self.gemm))

    def columns_inside(self, c: Columns) -> Bools:
        """Return whether the register tiles of one row of C follow one another, bool[n]."""
        return c.flags("order", COLUMNS_INSIDE) if self.micro_kernel.memory_knobs else np.zeros(len(c), dtype=bool)

    def can_be_whole(self, operand: Operand) -> bool:
        """Return whether an operand can be packed before the tasks begin."""
        return self.micro_kernel.a_whole if operand is self.gemm.a else self.micro_kernel.b_whole

    def is_constant(self, operand: Operand) -> bool:
        """Return whether an operand is packed once, for all calls."""
        read = {load.buffer.name for load in loads_of(operand.body)}
        return bool(read) and read <= self.constants and self.can_be_whole(operand)

    def is_scattered(self, use: OperandUse) -> Bools:
        """Return whether rows that register tiles read where they lie fall on the same few sets of a cache, more than
        these hold, bool[n].

        A matrix tile takes whole lines and needs none of them again soon, so that only pages matter to it.
        """
        step = max(use.operand.row, use.operand.k)
        if use.operand is self.gemm.a and self.pixels is not None:
            step = self.pixels.strides[2] * self.pixels.channels
        pitch = step * self.micro_kernel.packed_bytes
        if pitch % (PAGE_BYTES if self.micro_kernel.register_rows > 1 else CONFLICT_BYTES):
            return np.zeros(len(use.rows), dtype=bool)
        return use.in_place & (use.rows * gcd(pitch, PAGE_BYTES) > WAYS * PAGE_BYTES)

    def misses_pages(self, use: OperandUse) -> Bools:
        """Return whether rows that register tiles read where they lie are on more pages than a processor remembers,
        bool[n]. Pages at a pitch of a power of two fall on a few sets of its translation buffer."""
        pitch = gcd(max(use.operand.row, use.operand.k) * self.micro_kernel.packed_bytes, TLB_SETS * PAGE_BYTES)
        return use.in_place & (use.rows > FEW_ROWS) & (use.rows * max(pitch // PAGE_BYTES, 1) >= TLB_PAGES)

    def conflict_factor(self, use: OperandUse, length: Ints) -> Ints:
        """Return how many times its bytes an operand takes of the second-level cache, int64[n]: more than once where
        rows are read where they lie, ``length`` elements of each at a time, and a pitch of a power of two puts them on
        few sets."""
        if self.pixels is not None or self.direct is not None:
            return np.ones_like(length)
        pitch = gcd(max(use.operand.row, use.operand.k) * self.micro_kernel.packed_bytes, SET_PERIOD_BYTES)
        return np.where(use.in_place, np.maximum(pitch // (length * self.micro_kernel.packed_bytes), 1), 1)

    def _elements(self, operand: Operand, *own: Axis) -> int:
        return prod(a.extent for a in (*own, self.gemm.k, *batch_of(operand, self.gemm)))
