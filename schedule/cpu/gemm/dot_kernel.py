"""Writes micro-kernels of dot products: of neighbours in every lane of a vector, or of whole matrix tiles of 16 rows
(AMX).

Both take groups of neighbours along ``k``. The left operand has them as it lies; packing makes them neighbours in the
right one.
"""

from dataclasses import replace

from ....core.dtypes import uint8
from ....ir.buffer import Buffer, MemoryScope
from ....ir.cpu import DOT_ATOMS, TILE_ROWS, Dot, DotAtom, PrefetchLine, TileLoad, TileMma, TileStore, TileZero
from ....ir.expr import Broadcast, Cast, Compare, CompareOp, Expr, Load, Ramp, const, index, minimum
from ....ir.stmt import Kernel
from ...problems.gemm import Gemm, Operand
from ..shared_knobs import COLUMNS_INSIDE
from .kernel import BlockedGemmWriter, CpuGemmSetting, RegisterTile
from .packing import NEVER, OperandPanel
from .pixel_rows import PixelRows, PixelRowsWriter

SHIFT = 128
"""Added to any signed byte, it gives an unsigned one."""


def atom_for(p: Gemm) -> DotAtom | None:
    """Return the atom that multiplies the operands of ``p`` as they lie in memory; None where there is none."""
    a, b = p.a.load, p.b.load
    if a is None or b is None or p.a.k != 1:
        return None
    types = (a.dtype, b.dtype, p.accumulator.dtype)
    return next((x for x in DOT_ATOMS.values() if (x.left, x.right, x.accumulator) == types), None)


def lower_dot(p: Gemm, name: str, setting: CpuGemmSetting, atom: DotAtom) -> Kernel:
    """Return the kernel of one setting, by dot products on vectors. ``kc`` is a multiple of the atom's group; the right
    operand is packed."""
    return DotGemmWriter(_as_loaded(p), setting, atom).kernel(name)


def lower_signed_dot(p: Gemm, name: str, setting: CpuGemmSetting) -> Kernel:
    """Return the kernel of one setting for signed bytes on vectors, by the instruction for unsigned and signed ones.
    Both operands are packed."""
    p, atom = _as_loaded(p), DOT_ATOMS["u8s8"]
    shifted = replace(p, a=replace(p.a, body=Cast(p.a.body, uint8) + SHIFT))
    return DotGemmWriter(shifted, setting, atom, is_shifted=True).kernel(name)


def lower_dot_pixel_rows(p: Gemm, name: str, setting: CpuGemmSetting, rows: PixelRows) -> Kernel:
    """Return the kernel of one setting for convolutions of bytes on vectors. ``rows`` has bytes without a sign."""
    return DotPixelRowsWriter(p, setting, rows).kernel(name)


def lower_amx(p: Gemm, name: str, setting: CpuGemmSetting, atom: DotAtom) -> Kernel:
    """Return the kernel of one setting, by AMX. ``mr`` is a multiple of 16, ``lanes`` is 16, ``kc`` a multiple of the
    atom's depth. The right operand is packed, the left one unless whole tiles cover it."""
    return AmxGemmWriter(p, setting, atom).kernel(name)


def _as_loaded(p: Gemm) -> Gemm:
    """Return ``p`` with operands as they lie in memory, without casts."""
    return replace(p, a=_loaded(p.a), b=_loaded(p.b))


def _loaded(operand: Operand) -> Operand:
    assert operand.load is not None
    return replace(operand, body=operand.load)


class DotWriter(BlockedGemmWriter):
    """Accumulators are vectors; one instruction adds a dot product of ``atom.group`` neighbours in every lane.

    Where the instruction wants unsigned bytes on the left and they are signed, they are shifted by ``SHIFT`` as they
    are packed (``is_shifted``). Each column of the products is then too large by ``SHIFT`` times the sum of its
    elements of B, which is computed once for all register tiles of a panel.
    """

    atom: DotAtom
    is_shifted: bool

    def rank_update(self, accumulators: Buffer, t: RegisterTile, step: Expr) -> None:
        w, s = self.w, self.s
        with w.unrolled("i", s.mr) as i, w.unrolled("v", s.vectors) as v:
            operands = (*t.a.group(i, step), *t.b.group(v * s.lanes, step))
            w.emit(Dot(self.atom.name, accumulators, (i, v * s.lanes), *operands, s.lanes))

    def begin_panel(self, b: OperandPanel) -> None:
        """Compute by how much the columns of a panel are too large, over a block of ``k``."""
        if not self.is_shifted:
            return
        w, s, group, zero = self.w, self.s, self.atom.group, index(0)
        shift = w.allocate("shift", (group,), uint8, MemoryScope.LOCAL)
        w.store(shift, (Ramp(zero, 1, group),), Broadcast(const(SHIFT, uint8), group))
        self.excess = w.allocate("excess", (s.nr,), self.dtype, MemoryScope.LOCAL)
        with w.unrolled("v", s.vectors) as v:
            w.store(self.excess, (self.vector(v),), Broadcast(const(0, self.dtype), s.lanes))
        with w.loop("step", s.kc // group) as step, w.unrolled("v", s.vectors) as v:
            first = v * s.lanes
            w.emit(Dot(self.atom.name, self.excess, (first,), shift, (zero,), *b.group(first, step), s.lanes))

    def correct(self, accumulators: Buffer) -> None:
        w, s = self.w, self.s
        if not self.is_shifted:
            return
        with w.unrolled("i", s.mr) as i, w.unrolled("v", s.vectors) as v:
            here = (i, self.vector(v))
            w.store(accumulators, here, Load(accumulators, here) - Load(self.excess, (self.vector(v),)))


class DotGemmWriter(DotWriter):
    """Products of matrices by dot products."""

    def __init__(self, p: Gemm, s: CpuGemmSetting, atom: DotAtom, *, is_shifted: bool = False) -> None:
        super().__init__(p, s, atom.group)
        self.atom, self.is_shifted = atom, is_shifted


class DotPixelRowsWriter(DotWriter, PixelRowsWriter):
    """Convolutions of bytes by dot products of neighbouring channels."""

    def __init__(self, p: Gemm, s: CpuGemmSetting, rows: PixelRows) -> None:
        self.atom, self.is_shifted = DOT_ATOMS["u8s8"], rows.shift != 0
        PixelRowsWriter.__init__(self, p, s, rows, self.atom.group)


class AmxGemmWriter(BlockedGemmWriter):
    """Accumulators are matrix tiles of 16 x 16; one instruction multiplies two tiles."""

    def __init__(self, p: Gemm, s: CpuGemmSetting, atom: DotAtom) -> None:
        super().__init__(_as_loaded(p), s, atom.group)
        self.atom = atom
        self.accumulating_output = None  # tiles are stored whole, and an output may end within one
        self.tile_rows = s.mr // TILE_ROWS
        pairs = s.vectors % 2 == 0 and all(r.tensor.dtype.bytes <= 2 for r in p.results)
        self.store_lanes = 2 * s.lanes if pairs else s.lanes  # whole lines, of outputs that are narrow

    def register_tile(self, t: RegisterTile) -> None:
        w, s, last = self.w, self.s, self.k_blocks - 1
        shape = (self.tile_rows, s.vectors, TILE_ROWS, s.lanes)
        accumulators = w.allocate("accumulators", shape, self.dtype, MemoryScope.REGISTER)
        with w.unrolled("r", self.tile_rows) as r, w.unrolled("c", s.vectors) as c:
            w.emit(TileZero(accumulators, (r, c)))
        prefix: tuple[Expr, ...] = ()
        if self.partial_sums is not None:
            total, prefix = self.partial_sums, t.indices
            with w.when(Compare(CompareOp.NE, t.k_block, index(0))):
                self._move_tiles(accumulators, total, prefix, load=True)
        else:
            total = w.allocate("total", (s.mr, s.nr), self.dtype, MemoryScope.LOCAL)
        with w.loop("step", s.kc // self.atom.depth) as step:
            self._prefetch_next_row(t, step)
            self._multiply_tiles(accumulators, t, step)
        self._move_tiles(accumulators, total, prefix, load=False)
        with w.when(Compare(CompareOp.EQ, t.k_block, index(last)) if last else None):
            self.epilogue(total, prefix, t)

    def _prefetch_next_row(self, t: RegisterTile, step: Expr) -> None:
        """Prefetch rows of A, where register tiles of a row of C follow one another and A is read in place.

        While one row of register tiles is multiplied, the lines of A for the next row are brought to the second-level
        cache, some in each step of each register tile. (Kernels in C took 0.9 of the time with it.)
        """
        w, s = self.w, self.s
        if s.order != COLUMNS_INSIDE or s.pack_a != NEVER or s.panels == 1 or s.tiles == 1:
            return
        following = replace(t.a, number=minimum(t.a.number + 1, index(self.a.panels - 1)))
        rows = -(-s.mr // s.panels)
        with w.unrolled("prefetch", rows) as n:
            row = t.indices[1] * rows + n
            with w.when(row < s.mr if rows * s.panels > s.mr else None):
                groups = self.atom.depth // self.atom.group
                w.emit(PrefetchLine(*following.group(row, step * groups)))

    def _multiply_tiles(self, accumulators: Buffer, t: RegisterTile, step: Expr) -> None:
        w, s, atom = self.w, self.s, self.atom
        a = w.allocate("a_tiles", (self.tile_rows, TILE_ROWS, atom.depth), atom.left, MemoryScope.REGISTER)
        b = w.allocate("b_tiles", (s.vectors, TILE_ROWS, s.lanes * atom.group), atom.right, MemoryScope.REGISTER)
        groups = atom.depth // atom.group
        with w.unrolled("r", self.tile_rows) as r:
            w.emit(TileLoad(a, (r,), *t.a.group(r * TILE_ROWS, step * groups)))
        with w.unrolled("c", s.vectors) as c:
            w.emit(TileLoad(b, (c,), *t.b.group(c * s.lanes, step * groups)))
            with w.unrolled("r", self.tile_rows) as r:
                w.emit(TileMma(atom.name, accumulators, (r, c), a, (r,), b, (c,)))

    def _move_tiles(self, accumulators: Buffer, memory: Buffer, prefix: tuple[Expr, ...], *, load: bool) -> None:
        """Move all accumulators of a register tile to memory, or with ``load`` back."""
        w = self.w
        with w.unrolled("r", self.tile_rows) as r, w.unrolled("c", self.s.vectors) as c:
            indices = (*prefix, r * TILE_ROWS, c * self.s.lanes)
            if load:
                w.emit(TileLoad(accumulators, (r, c), memory, indices))
            else:
                w.emit(TileStore(memory, indices, accumulators, (r, c)))
