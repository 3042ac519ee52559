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
from .kernel import UNROLLED, BlockedGemmWriter, CpuGemmSetting, RegisterTile
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
    """By dot products on vectors. ``kc`` is a multiple of the atom's group; the right operand is packed."""
    return DotGemmWriter(p, setting, atom).kernel(name)


def lower_signed_dot(p: Gemm, name: str, setting: CpuGemmSetting) -> Kernel:
    """Products of signed bytes on vectors, by the instruction for unsigned and signed ones. Both operands are
    packed."""
    return SignedDotGemmWriter(p, setting).kernel(name)


def lower_dot_pixel_rows(p: Gemm, name: str, setting: CpuGemmSetting, rows: PixelRows) -> Kernel:
    """Convolutions of bytes on vectors. ``rows`` has bytes without a sign."""
    return DotPixelRowsWriter(p, setting, rows).kernel(name)


def lower_amx(p: Gemm, name: str, setting: CpuGemmSetting, atom: DotAtom) -> Kernel:
    """By AMX. ``mr`` is a multiple of 16, ``lanes`` is 16, ``kc`` a multiple of the atom's depth. The right operand is
    packed, the left one unless whole tiles cover it."""
    return AmxGemmWriter(p, setting, atom).kernel(name)


def _as_loaded(p: Gemm) -> Gemm:
    """``p`` with operands as they lie in memory, without casts."""
    return replace(p, a=_loaded(p.a), b=_loaded(p.b))


def _loaded(operand: Operand) -> Operand:
    assert operand.load is not None
    return replace(operand, body=operand.load)


class DotGemmWriter(BlockedGemmWriter):
    """Accumulators are vectors; one instruction adds a dot product of ``atom.group`` neighbours in every lane."""

    def __init__(self, p: Gemm, s: CpuGemmSetting, atom: DotAtom) -> None:
        super().__init__(_as_loaded(p), s, atom.group)
        self.atom = atom

    def rank_update(self, accumulators: Buffer, t: RegisterTile, step: Expr) -> None:
        add_dots(self, self.atom, accumulators, t, step)


class SignedDotGemmWriter(DotGemmWriter):
    """Signed bytes where the instruction wants unsigned ones on the left.

    The left operand is shifted by ``SHIFT`` as it is packed. Each column of the products is then too large by ``SHIFT``
    times the sum of its elements of B, which is computed once for all register tiles of a panel.
    """

    def __init__(self, p: Gemm, s: CpuGemmSetting) -> None:
        super().__init__(p, s, DOT_ATOMS["u8s8"])
        a = self.a.operand
        shifted = Cast(a.body, uint8) + SHIFT
        self.a = replace(self.a, operand=replace(a, body=shifted))
        self.excess: Buffer | None = None

    def begin_panel(self, b: OperandPanel) -> None:
        self.excess = shifted_sums(self, self.atom, b)

    def correct(self, accumulators: Buffer) -> None:
        assert self.excess is not None
        subtract_columns(self, accumulators, self.excess)


class DotPixelRowsWriter(PixelRowsWriter):
    """Convolutions of bytes by dot products of neighbouring channels. Signed pixels are shifted as they are packed."""

    def __init__(self, p: Gemm, s: CpuGemmSetting, rows: PixelRows) -> None:
        self.atom = DOT_ATOMS["u8s8"]
        super().__init__(p, s, rows, self.atom.group)
        self.excess: Buffer | None = None

    def rank_update(self, accumulators: Buffer, t: RegisterTile, step: Expr) -> None:
        add_dots(self, self.atom, accumulators, t, step)

    def begin_panel(self, b: OperandPanel) -> None:
        self.excess = shifted_sums(self, self.atom, b) if self.rows.shift else None

    def correct(self, accumulators: Buffer) -> None:
        if self.excess is not None:
            subtract_columns(self, accumulators, self.excess)


def add_dots(g: BlockedGemmWriter, atom: DotAtom, accumulators: Buffer, t: RegisterTile, step: Expr) -> None:
    """Add the dot products of one group of neighbours along ``k`` to a register tile."""
    w, s = g.w, g.s
    with w.loop("i", s.mr, UNROLLED) as i, w.loop("v", s.vectors, UNROLLED) as v:
        first = v * s.lanes
        w.emit(Dot(atom.name, accumulators, (i, first), *t.a.group(i, step), *t.b.group(first, step), s.lanes))


def shifted_sums(g: BlockedGemmWriter, atom: DotAtom, b: OperandPanel) -> Buffer:
    """Return ``SHIFT`` times the sum of each column of a panel, over a block of ``k``."""
    w, s, group, zero = g.w, g.s, atom.group, index(0)
    shift = w.allocate("shift", (group,), uint8, MemoryScope.LOCAL)
    w.store(shift, (Ramp(zero, 1, group),), Broadcast(const(SHIFT, uint8), group))
    sums = w.allocate("excess", (s.nr,), g.dtype, MemoryScope.LOCAL)
    with w.loop("v", s.vectors, UNROLLED) as v:
        w.store(sums, (g.vector(v),), Broadcast(const(0, g.dtype), s.lanes))
    with w.loop("step", s.kc // group) as step, w.loop("v", s.vectors, UNROLLED) as v:
        first = v * s.lanes
        w.emit(Dot(atom.name, sums, (first,), shift, (zero,), *b.group(first, step), s.lanes))
    return sums


def subtract_columns(g: BlockedGemmWriter, accumulators: Buffer, columns: Buffer) -> None:
    """Subtract a number of each column from a register tile."""
    w, s = g.w, g.s
    with w.loop("i", s.mr, UNROLLED) as i, w.loop("v", s.vectors, UNROLLED) as v:
        here = (i, g.vector(v))
        w.store(accumulators, here, Load(accumulators, here) - Load(columns, (g.vector(v),)))


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
        with w.loop("r", self.tile_rows, UNROLLED) as r, w.loop("c", s.vectors, UNROLLED) as c:
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
        """Prefetches rows of A, where register tiles of a row of C follow one another and A is read in place.

        While one row of register tiles is multiplied, the lines of A for the next row are brought to the second-level
        cache, some in each step of each register tile. (Kernels in C took 0.9 of the time with it.)
        """
        w, s = self.w, self.s
        if s.order != COLUMNS_INSIDE or s.pack_a != NEVER or s.panels == 1 or s.tiles == 1:
            return
        following = replace(t.a, number=minimum(t.a.number + 1, index(self.a.panels - 1)))
        rows = -(-s.mr // s.panels)
        with w.loop("prefetch", rows, UNROLLED) as n:
            row = t.indices[1] * rows + n
            with w.when(row < s.mr if rows * s.panels > s.mr else None):
                groups = self.atom.depth // self.atom.group
                w.emit(PrefetchLine(*following.group(row, step * groups)))

    def _multiply_tiles(self, accumulators: Buffer, t: RegisterTile, step: Expr) -> None:
        w, s, atom = self.w, self.s, self.atom
        a = w.allocate("a_tiles", (self.tile_rows, TILE_ROWS, atom.depth), atom.left, MemoryScope.REGISTER)
        b = w.allocate("b_tiles", (s.vectors, TILE_ROWS, s.lanes * atom.group), atom.right, MemoryScope.REGISTER)
        groups = atom.depth // atom.group
        with w.loop("r", self.tile_rows, UNROLLED) as r:
            w.emit(TileLoad(a, (r,), *t.a.group(r * TILE_ROWS, step * groups)))
        with w.loop("c", s.vectors, UNROLLED) as c:
            w.emit(TileLoad(b, (c,), *t.b.group(c * s.lanes, step * groups)))
            with w.loop("r", self.tile_rows, UNROLLED) as r:
                w.emit(TileMma(atom.name, accumulators, (r, c), a, (r,), b, (c,)))

    def _move_tiles(self, accumulators: Buffer, memory: Buffer, prefix: tuple[Expr, ...], *, load: bool) -> None:
        """All accumulators of a register tile to memory, or back (``load``)."""
        w = self.w
        with w.loop("r", self.tile_rows, UNROLLED) as r, w.loop("c", self.s.vectors, UNROLLED) as c:
            indices = (*prefix, r * TILE_ROWS, c * self.s.lanes)
            if load:
                w.emit(TileLoad(accumulators, (r, c), memory, indices))
            else:
                w.emit(TileStore(memory, indices, accumulators, (r, c)))
