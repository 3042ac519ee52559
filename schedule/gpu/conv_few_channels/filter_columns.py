"""Writes what warps of convolutions of few channels compute where neighbours in the results are filters (NHWC): pixels
are the rows of an instruction, and filters its columns.

The columns are filters in such an order that a lane has neighbouring ones, which it stores as vectors. A strip has
neighbouring pixels of a row, or every second one of 32, whose windows begin at places of one parity.
"""

from collections.abc import Sequence
from itertools import product

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, Load, index
from ....ir.gpu.mma import Mma
from ...problems.gemm import Gemm
from ..skinny.mma_tiles import ATOM_M, ATOM_N
from ..split_k import store_outputs
from .kernel import LANE_PIXELS, FewChannelsWriter
from .sizes import FewChannelsSizes
from .tap_words import tap_words


class FilterColumnsWriter(FewChannelsWriter):
    """Each warp has strips of one parity."""

    def __init__(self, gemm: Gemm, sizes: FewChannelsSizes) -> None:
        super().__init__(gemm, sizes, tap_words(gemm).parities)

    def _begin(self) -> None:
        self.parity = self.warp_m % self.taps.parities
        of_lane = lambda atom, _: self._filter(atom, self.pixel)  # noqa: E731
        self.b = self._load_filters(self.parity, "b", self.s.atoms_n, 1, of_lane, self.s.joined)
        self.words = self._find_words(self.parity)

    def _filter(self, atom: Expr, column: Expr) -> Expr:
        """Return the filter that is a column of one of the warp's instructions. The same column of ``joined`` of these
        has neighbours. Lanes have sums of two columns, and so of twice as many neighbours."""
        joined = self.s.joined
        within = column * joined + atom % joined
        found: Expr = self.first_filter + atom // joined * (ATOM_N * joined) + within
        return found

    def _multiply(self, stage: Expr, strips: Sequence[tuple[Expr, Expr]]) -> Buffer:
        w, s, taps = self.w, self.s, self.taps
        sums, apart = self._zeros(s.atoms_m, s.atoms_n), LANE_PIXELS * self.step * taps.step // taps.unit
        a = w.allocate("a", (self.atom.elements("a"),), self.atom.operand, MemoryScope.REGISTER)
        for step, (i, strip) in product(range(self.k_atoms), enumerate(strips)):
            for half, pixels in product(range(2), range(2)):
                begin, further = (half * 2 + pixels) * taps.unit, self._from_first(*strip) + pixels * apart
                self._load_word(a, begin, self.words, step, half, stage, further, self.parity)
            with w.unrolled("atom_n", s.atoms_n) as n:
                d, b = (index(i), n, index(0)), (index(step), n, index(0))
                w.emit(Mma(self.atom.name, sums, d, a, (index(0),), self.b, b))
        return sums

    def _store(self, sums: Buffer, number: int, first: Expr, row: Expr, strip: Expr) -> None:
        w, s, n, joined = self.w, self.s, self.gemm.n.extent, self.s.joined
        width = 2 * joined if n % (2 * joined) == 0 else 1
        total = w.allocate("total", (2 * joined,), float32, MemoryScope.REGISTER)
        for half in range(2):
            within = strip // self.interleaved * ATOM_M + self.pixel + half * LANE_PIXELS
            m = first + (row * s.tile_w + (within * self.interleaved + self.parity))
            with w.when(*self.gemm.rows_inside(m)):
                for group in range(s.atoms_n // joined):
                    for atom, e in product(range(joined), range(2)):
                        own = (index(number), index(group * joined + atom), index(half * 2 + e))
                        w.store(total, (index(e * joined + atom),), Load(sums, own))
                    begin = self._filter(index(group * joined), self.place * 2)
                    for e in range(0, 2 * joined, width):
                        f = begin + e
                        with w.when(f < n if n % s.filters else None):
                            store_outputs(w, self.gemm, {"m": m, "n": f}, total, width, first=index(e))
