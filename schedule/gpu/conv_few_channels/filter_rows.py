"""Writes what warps of convolutions of few channels compute where neighbours in the results are pixels (NCHW): filters
are the rows of an instruction, and pixels its columns.

A strip is two instructions along the pixels, one of which has the even pixels and the other one the odd ones, so that a
lane has four neighbours, which it stores as a vector. Where windows begin at places of both parities, each instruction
has filters in an order of its own.
"""

from collections.abc import Sequence
from itertools import product

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, Load, index
from ....ir.gpu.mma import Mma
from ....ir.rewrite import map_loads, substitute
from ...problems.gemm import Gemm
from ..skinny.mma_tiles import ATOM_M
from .kernel import LANE_PIXELS, FewChannelsWriter
from .sizes import LANE_NEIGHBOURS, FewChannelsSizes


class FilterRowsWriter(FewChannelsWriter):
    """Each warp has strips of both parities."""

    def __init__(self, gemm: Gemm, sizes: FewChannelsSizes) -> None:
        super().__init__(gemm, sizes, 2)
        self.atoms = sizes.atoms_n // 2

    def _begin(self) -> None:
        parities = [index(parity) for parity in range(self.taps.parities)]
        self.a = [self._load_filters(parity, "a", self.atoms, 2, self._filter) for parity in parities]
        self.words = [self._find_words(parity) for parity in parities]

    def _filter(self, atom: Expr, half: int) -> Expr:
        """Return the filter that this lane has of each half of the rows of an instruction."""
        found: Expr = self.first_filter + atom * ATOM_M + self.pixel + half * LANE_PIXELS
        return found

    def _multiply(self, stage: Expr, strips: Sequence[tuple[Expr, Expr]]) -> Buffer:
        w, taps, operand = self.w, self.taps, self.atom.operand
        sums = self._zeros(self.s.atoms_m, self.atoms, 2)
        b = w.allocate("b", (self.atom.elements("b"),), operand, MemoryScope.REGISTER)
        for step, (i, strip), odd in product(range(self.k_atoms), enumerate(strips), range(2)):
            parity, further = odd % taps.parities, self._from_first(*strip)
            if taps.parities == 1:
                further = further + odd * taps.step // taps.unit
            for half in range(2):
                self._load_word(b, half * taps.unit, self.words[parity], step, half, stage, further, index(parity))
            with w.unrolled("atom_n", self.atoms) as n:
                d, a = (index(i), n, index(odd), index(0)), (index(step), n, index(0))
                w.emit(Mma(self.atom.name, sums, d, self.a[parity], a, b, (index(0),)))
        return sums

    def _store(self, sums: Buffer, number: int, first: Expr, row: Expr, strip: Expr) -> None:
        w, s, gemm = self.w, self.s, self.gemm
        m = first + (row * s.tile_w + (strip * ATOM_M + self.place * LANE_NEIGHBOURS))
        total = w.allocate("total", (LANE_NEIGHBOURS,), float32, MemoryScope.REGISTER)
        width = next(n for n in (4, 2, 1) if self.window.positions[-1] % n == 0)
        for n, half in product(range(self.atoms), range(2)):
            for odd, e in product(range(2), range(2)):
                own = (index(number), index(n), index(odd), index(half * 2 + e))
                w.store(total, (index(e * 2 + odd),), Load(sums, own))
            f = self._filter(index(n), half)
            for begin in range(0, LANE_NEIGHBOURS, width):
                inside = gemm.rows_inside(m + begin)
                with w.when(*inside, f < gemm.n.extent if gemm.n.extent % s.filters else None):
                    self._store_vector(total, begin, width, m + begin, f)

    def _store_vector(self, total: Buffer, begin: int, width: int, m: Expr, f: Expr) -> None:
        """Store ``width`` neighbouring pixels of a filter, from ``m`` on, whose sums are those from ``begin`` on."""
        w, accumulator = self.w, self.gemm.accumulator.name
        for result in self.gemm.results:
            with w.vectorized("pixel", width) as v:

                def own(load: Load, v: Expr = v) -> Load:
                    return Load(total, (begin + v,)) if load.buffer.name == accumulator else load

                at = {"m": m + v, "n": f}
                value = substitute(map_loads(result.value, own), at)
                w.store(result.tensor, tuple(substitute(i, at) for i in result.indices), value)
