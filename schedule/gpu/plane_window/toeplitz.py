"""Writes what warps of windows of planes compute where matrix units multiply: products with the Toeplitz matrices of
the filter's rows.

Eight neighbouring outputs of a row see a few more positions of a row of the input. A matrix instruction multiplies such
rows of sixteen strips by the row of the filter that connects them with rows of outputs::

    D[strip, x] += sum over k of A[strip, k] * T[k, x]            A[strip, k] = x_tile[y, own_y + row, own_x + k]
                                                                  T[k, x] = W[plane, r, (k - lead - x)/dilation]

The fragments of T stay in registers. Each row of the input is loaded once (``ldmatrix``, whose lanes say where each
strip has its row), and multiplied for all rows of the strip that see it, and for all blocks of eight outputs. What an
instruction sees and no window does is multiplied by 0.
"""

from collections.abc import Mapping, Sequence
from itertools import product

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Compare, CompareOp, Expr, Load, const, index, minimum
from ....ir.gpu.ldmatrix import LoadMatrix
from ....ir.gpu.mma import Mma
from ...problems.plane_window import BLOCK_OUTPUTS, STRIPS
from ...tile.delinearize import delinearize
from ...tile.masked_loads import MaskedLoad
from ...tile.stage_body import scalar_at
from .kernel import PlaneWindowWriter


class ToeplitzWriter(PlaneWindowWriter):
    """Each warp has sixteen strips of a tile, or of all tiles of a block, which have one filter then."""

    def _place(self, warp: Expr, lane: Expr) -> None:
        s = self.sizes
        groups = -(-s.tile_strips // STRIPS)
        self.lane = lane
        self.tile: Expr = index(0) if s.shared_filter else warp // groups
        self.first_strip = (warp if s.shared_filter else warp % groups) * STRIPS
        shape = (s.tile_h, s.tile_w // BLOCK_OUTPUTS, 4)
        self.acc = self.w.allocate("acc", shape, float32, MemoryScope.REGISTER)
        self._clear()

    def _clear(self) -> None:
        for at in product(*(range(n) for n in self.acc.shape)):
            self.w.store(self.acc, tuple(map(index, at)), const(0.0, float32))

    def _load_filter(self, row: Expr | None) -> None:
        """Load the fragments of the Toeplitz matrices, [row of the filter, step of k, element]."""
        problem, w, s, (masked,) = self.problem, self.w, self.sizes, self.problem.fixed_loads
        width, lane = problem.width, self.lane
        rows = [index(r) for r in range(problem.window_rows)] if row is None else [row]
        first, dtype = self._point_of(self.tile), masked.load.dtype
        self.filters = w.allocate("filters", (len(rows), s.k_steps, 4), dtype, MemoryScope.REGISTER)
        for (n, r), step, half, pair in product(enumerate(rows), range(s.k_steps), range(2), range(2)):
            to = (index(n), index(step), index(2 * half + pair))
            w.store(self.filters, to, const(0.0, dtype))
            distance = lane % 4 * 2 - lane // 4 + (16 * step + 8 * half + pair - s.lead)
            inside = [distance >= 0, distance <= (width.window_points - 1) * width.dilation]
            if width.dilation > 1:
                inside.append(Compare(CompareOp.EQ, distance % width.dilation, index(0)))
            here = self._at_row(first, r)
            if width.window is not None:
                here[width.window.name] = distance // width.dilation
            with w.when(*inside):
                w.store(self.filters, to, scalar_at(masked.load, here))

    def _strip(self, row: Expr) -> tuple[tuple[Expr, Expr, Expr, Expr], list[Expr]]:
        """Return where the warp's strip ``row`` is, as (tile, plane, row, column) among those of the block, and the
        conditions on which there is one. Without one it is the last strip."""
        s, shared = self.sizes, bool(self.sizes.shared_filter)
        strips = s.strips if shared else s.tile_strips
        number = self.first_strip + row
        exists = [number < strips] if strips % STRIPS else []
        number = minimum(number, index(strips - 1)) if exists else number
        extents = (s.row_tiles if shared else 1, s.tile_d, s.strips_h, s.strips_w)
        tile, own_z, own_y, own_x = delinearize(number, extents)
        return (tile if shared else self.tile, own_z, own_y, own_x), exists

    def _multiply_line(
        self, tiles: Mapping[MaskedLoad, Buffer], line: Expr, reading: Sequence[tuple[int, Expr, bool]]
    ) -> None:
        w, s, (buffer,), atom = self.w, self.sizes, tiles.values(), self.problem.toeplitz_atom
        assert atom is not None
        (tile, own_z, own_y, own_x), _ = self._strip(self.lane % STRIPS)
        first = own_x * s.tile_w + self.lane // STRIPS * BLOCK_OUTPUTS
        parts = s.near // BLOCK_OUTPUTS
        fragments = w.allocate("fragments", (4 * parts,), buffer.dtype, MemoryScope.REGISTER)
        for part in range(0, parts, 2):
            source = (tile, self._first_line(own_z, own_y) + line, first + part * BLOCK_OUTPUTS)
            w.emit(LoadMatrix(fragments, (index(4 * part),), buffer, source, 2 * min(2, parts - part)))
        for (q, row, _), block, step in product(reading, range(s.tile_w // BLOCK_OUTPUTS), range(s.k_steps)):
            d, a = (index(q), index(block), index(0)), (index(4 * (block + 2 * step)),)
            b = (index(0) if s.looped else row, index(step), index(0))
            w.emit(Mma(atom.name, self.acc, d, fragments, a, self.filters, b))

    def _finish_row(self, q: int) -> None:
        for block in range(self.sizes.tile_w // BLOCK_OUTPUTS):
            self._finish_block(q, block)

    def _finish_block(self, q: int, block: int) -> None:
        """Store a block of row ``q`` of the strips: of each half of them, two neighbouring outputs."""
        problem, s, column = self.problem, self.sizes, self.problem.width.axis
        width = 1 if column.extent % 2 else 2
        for half, pair in product(range(2), range(0, 2, width)):
            (tile, own_z, own_y, own_x), exists = self._strip(self.lane // 4 + half * 8)
            first = own_x * s.tile_w + (block * BLOCK_OUTPUTS + pair) + self.lane % 4 * 2
            row = own_y * s.tile_h + q
            place = (tile, own_z * s.tile_rows + row, first)
            here = self._moved(self._point_of(tile), own_z, row, first)
            for stage in problem.outputs:

                def value(_: str, v: Expr, element: int = 2 * half + pair) -> Load:
                    return Load(self.acc, (index(q), index(block), element + v))

                self._store_output(stage, here, place, width, value, exists)
