"""Blocked products whose tiles are made of dot products: of neighbours in every lane, or of whole tiles of 16 rows.

Both take groups of neighbours along ``k``: the left operand has them as it lies, in the copy of the right one they are
made neighbours.
"""

from dataclasses import replace

from ....core.dtypes import uint8
from ....ir.buffer import Buffer, MemoryScope
from ....ir.cpu import DOT_ATOMS, TILE_ROWS, Dot, DotAtom, PrefetchLine, TileLoad, TileMma, TileStore, TileZero
from ....ir.expr import Broadcast, Cast, Compare, CompareOp, Expr, Load, Ramp, const, index, minimum
from ....ir.stmt import Kernel
from ...problems.gemm import Gemm, Operand
from .kernel import UNROLLED, GemmProgram, GemmSetting, TilePlace
from .packing import NEVER, Panel

SHIFT = 128
"""What makes any signed byte an unsigned one."""


def atom_for(p: Gemm) -> DotAtom | None:
    """The atom that multiplies the operands of ``p`` as they lie in memory; None where there is none."""
    left, right = p.a.load, p.b.load
    if left is None or right is None or p.a.k != 1:
        return None
    types = (left.dtype, right.dtype, p.accumulator.dtype)
    return next((a for a in DOT_ATOMS.values() if (a.left, a.right, a.accumulator) == types), None)


def lower_dots(p: Gemm, name: str, setting: GemmSetting, atom: DotAtom) -> Kernel:
    """On vectors. ``depth`` is a multiple of the atom's group; the right operand is copied."""
    return _Dots(p, setting, atom).kernel(name)


def lower_shifted_dots(p: Gemm, name: str, setting: GemmSetting) -> Kernel:
    """Of signed bytes, on vectors, by the instruction for unsigned and signed ones. Both operands are copied."""
    return _ShiftedDots(p, setting).kernel(name)


def lower_tiles(p: Gemm, name: str, setting: GemmSetting, atom: DotAtom) -> Kernel:
    """On tiles. ``rows`` is a multiple of 16, ``lanes`` is 16, ``depth`` a multiple of the atom's; the right operand is
    copied, the left one unless there is a whole number of tiles."""
    return _Tiles(p, setting, atom).kernel(name)


def _as_loaded(p: Gemm) -> Gemm:
    """``p`` with operands as they lie in memory."""
    return replace(p, a=_loaded(p.a), b=_loaded(p.b))


def _loaded(operand: Operand) -> Operand:
    assert operand.load is not None
    return replace(operand, body=operand.load)


class _Dots(GemmProgram):
    def __init__(self, p: Gemm, s: GemmSetting, atom: DotAtom) -> None:
        super().__init__(_as_loaded(p), s, atom.group)
        self.atom = atom

    def multiply(self, sums: Buffer, t: TilePlace, step: Expr) -> None:
        w, s = self.w, self.s
        with w.loop("i", s.rows, UNROLLED) as i, w.loop("v", s.vectors, UNROLLED) as v:
            first = v * s.lanes
            w.emit(Dot(self.atom.name, sums, (i, first), *t.a.group(i, step), *t.b.group(first, step), s.lanes))


class _ShiftedDots(_Dots):
    """Signed bytes where the instruction wants unsigned ones on the left: they are shifted by ``SHIFT``. By how much
    that makes each column too large is found out once for all tiles of a panel."""

    def __init__(self, p: Gemm, s: GemmSetting) -> None:
        super().__init__(p, s, DOT_ATOMS["u8s8"])
        left = self.a.operand
        shifted = Cast(left.body, uint8) + SHIFT
        self.a = replace(self.a, operand=replace(left, body=shifted))
        self.excess: Buffer | None = None

    def begin_panel(self, right: Panel) -> None:
        w, s, group, zero = self.w, self.s, self.atom.group, index(0)
        shift = w.allocate("shift", (group,), uint8, MemoryScope.LOCAL)
        w.store(shift, (Ramp(zero, 1, group),), Broadcast(const(SHIFT, uint8), group))
        self.excess = w.allocate("excess", (s.columns,), self.dtype, MemoryScope.LOCAL)
        with w.loop("v", s.vectors, UNROLLED) as v:
            w.store(self.excess, (self.run(v),), Broadcast(const(0, self.dtype), s.lanes))
        with w.loop("step", s.depth // group) as step, w.loop("v", s.vectors, UNROLLED) as v:
            first = v * s.lanes
            place = right.group(first, step)
            w.emit(Dot(self.atom.name, self.excess, (first,), shift, (zero,), *place, s.lanes))

    def correct(self, sums: Buffer) -> None:
        w, s, excess = self.w, self.s, self.excess
        assert excess is not None
        with w.loop("i", s.rows, UNROLLED) as i, w.loop("v", s.vectors, UNROLLED) as v:
            w.store(sums, (i, self.run(v)), Load(sums, (i, self.run(v))) - Load(excess, (self.run(v),)))


class _Tiles(GemmProgram):
    def __init__(self, p: Gemm, s: GemmSetting, atom: DotAtom) -> None:
        super().__init__(_as_loaded(p), s, atom.group)
        self.atom = atom
        self.home = None  # tiles are stored whole, and an output may end within one
        self.tile_rows = s.rows // TILE_ROWS
        pairs = s.vectors % 2 == 0 and all(r.tensor.dtype.bytes <= 2 for r in p.results)
        self.stored = 2 * s.lanes if pairs else s.lanes  # whole lines, of outputs that are narrow

    def tile(self, t: TilePlace) -> None:
        w, s, last = self.w, self.s, self.blocks - 1
        shape = (self.tile_rows, s.vectors, TILE_ROWS, s.lanes)
        sums = w.allocate("sums", shape, self.dtype, MemoryScope.REGISTER)
        with w.loop("r", self.tile_rows, UNROLLED) as r, w.loop("c", s.vectors, UNROLLED) as c:
            w.emit(TileZero(sums, (r, c)))
        place: tuple[Expr, ...] = ()
        if self.partial is not None:
            waiting, place = self.partial, t.number
            with w.when(Compare(CompareOp.NE, t.block, index(0))):
                self._exchange_tiles(sums, waiting, place, back=True)
        else:
            waiting = w.allocate("whole_sums", (s.rows, s.columns), self.dtype, MemoryScope.LOCAL)
        with w.loop("step", s.depth // self.atom.depth) as step:
            self._ask_ahead(t, step)
            self._multiply_tiles(sums, t, step)
        self._exchange_tiles(sums, waiting, place, back=False)
        with w.when(Compare(CompareOp.EQ, t.block, index(last)) if last else None):
            self.finish(waiting, place, t)

    def _ask_ahead(self, t: TilePlace, step: Expr) -> None:
        """Where tiles of a row of C follow one another, and rows of A are read in place: asks for the lines of the next
        row, some in each step of each tile of this one. (Kernels in C took 0.9 of the time with it.)"""
        w, s = self.w, self.s
        if not s.by_rows or s.pack_a != NEVER or s.panels == 1 or s.tiles == 1:
            return
        following = replace(t.a, number=minimum(t.a.number + 1, index(self.a.panels - 1)))
        share = -(-s.rows // s.panels)
        with w.loop("ahead", share, UNROLLED) as line:
            row = t.number[1] * share + line
            with w.when(row < s.rows if share * s.panels > s.rows else None):
                groups = self.atom.depth // self.atom.group
                w.emit(PrefetchLine(*following.group(row, step * groups)))

    def _multiply_tiles(self, sums: Buffer, t: TilePlace, step: Expr) -> None:
        w, s, atom = self.w, self.s, self.atom
        left = w.allocate("left", (self.tile_rows, TILE_ROWS, atom.depth), atom.left, MemoryScope.REGISTER)
        right = w.allocate("right", (s.vectors, TILE_ROWS, s.lanes * atom.group), atom.right, MemoryScope.REGISTER)
        groups = atom.depth // atom.group
        with w.loop("r", self.tile_rows, UNROLLED) as r:
            w.emit(TileLoad(left, (r,), *t.a.group(r * TILE_ROWS, step * groups)))
        with w.loop("c", s.vectors, UNROLLED) as c:
            w.emit(TileLoad(right, (c,), *t.b.group(c * s.lanes, step * groups)))
            with w.loop("r", self.tile_rows, UNROLLED) as r:
                w.emit(TileMma(atom.name, sums, (r, c), left, (r,), right, (c,)))

    def _exchange_tiles(self, sums: Buffer, memory: Buffer, prefix: tuple[Expr, ...], *, back: bool) -> None:
        """All sums of a tile to memory, or ``back``."""
        w = self.w
        with w.loop("r", self.tile_rows, UNROLLED) as r, w.loop("c", self.s.vectors, UNROLLED) as c:
            place = (*prefix, r * TILE_ROWS, c * self.s.lanes)
            if back:
                w.emit(TileLoad(sums, (r, c), memory, place))
            else:
                w.emit(TileStore(memory, place, sums, (r, c)))
