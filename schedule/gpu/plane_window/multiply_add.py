"""Writes what a thread of windows of planes computes: a strip of outputs, by multiplications and additions::

w_regs = W[plane, …]                                        # the filter, the same for all outputs of a plane
barrier
for each row of the input that the strip sees:
    x_near[:] = x_tile[y, own_y*stride + row, own_x*stride:…]                    # in aligned vectors
    for each row q of the strip that sees it, for s in unrolled(window), for p in unrolled(tile_w):
        acc[q, p] += x_near[p*stride + s*dilation] * w_regs[r, s]
    Y[plane, y0 + q, x0 + p] = epilogue(acc[q, p])          # of the row q that is complete
"""

from collections.abc import Mapping, Sequence

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Expr, Load, index, minimum
from ...loop_nest.nest import identity
from ...problems.plane_window import PlaneWindow
from ...tile.accumulation import register_dtype
from ...tile.delinearize import delinearize
from ...tile.masked_loads import MaskedLoad
from ..window_parts import accumulate, load_fixed
from .kernel import PlaneWindowWriter, store_width


class MultiplyAddWriter(PlaneWindowWriter):
    """Each thread has a strip."""

    def _place(self, warp: Expr, lane: Expr) -> None:
        problem, s = self.problem, self.sizes
        thread = warp * WARP_LANES + lane
        self.exists = [thread < s.strips] if s.strips < s.threads else []
        strip = minimum(thread, index(s.strips - 1)) if s.strips < s.threads else thread
        self.strip = delinearize(strip, (s.row_tiles, s.tile_d, s.strips_h, s.strips_w))
        y, own_z, own_y, own_x = self.strip
        self.at = self._moved(self._point_of(y), own_z, own_y * s.tile_h, own_x * s.tile_w)
        self.acc: dict[str, Buffer] = {}
        for r in problem.reductions:
            name, dtype = f"{r.name}_acc", register_dtype(r.tensor.dtype)
            self.acc[r.name] = self.w.allocate(name, (s.tile_h, s.tile_w), dtype, MemoryScope.REGISTER)

    def _load_filter(self, row: Expr | None) -> None:
        """Load what is the same for all outputs of a plane, for every point of the window or of a row of it."""
        given = self.problem.row_axes if row is not None else ()
        self.weights = load_fixed(self.w, self.problem, given, self._at_row(self.at, row), "", 1)

    def _clear(self) -> None:
        with self.w.unrolled("q", self.sizes.tile_h) as q, self.w.unrolled("p", self.sizes.tile_w) as p:
            for problem, acc in self._accumulators:
                self.w.store(acc, (q, p), identity(problem.combine, acc.dtype))

    @property
    def _accumulators(self) -> list[tuple[PlaneWindow, Buffer]]:
        return [(problem, self.acc[problem.reduction.name]) for problem in self.problem.single]

    def _multiply_line(
        self, tiles: Mapping[MaskedLoad, Buffer], line: Expr, reading: Sequence[tuple[int, Expr, bool]]
    ) -> None:
        w, s, width = self.w, self.sizes, self.problem.width
        y, own_z, own_y, own_x = self.strip
        line = self._first_line(own_z, own_y) + line
        skipped = s.lead // s.near_width * s.near_width
        column = own_x * (s.tile_w * width.stride) + skipped
        near: dict[MaskedLoad, Buffer] = {}
        for masked, tile in tiles.items():
            name = f"{masked.load.buffer.name}_near"
            near[masked] = w.allocate(name, (s.near,), tile.dtype, MemoryScope.REGISTER)
            for k in range(0, s.near, s.near_width):
                with w.vectorized("v", s.near_width) as v:
                    w.store(near[masked], (k + v,), Load(tile, (y, line, column + k + v)))
        for q, row, begun in reading:
            at, first = self._at_row(self._output_row(q), row), s.lead - skipped
            for problem, acc in self._accumulators:
                accumulate(w, problem, at, near, first, self.weights, acc, (index(q),), begun=begun)

    def _output_row(self, q: int) -> dict[str, Expr]:
        """Return the axes at the first output of row ``q`` of the strip."""
        row = self.problem.height.axis.name
        return {**self.at, row: self.at[row] + q}

    def _finish_row(self, q: int) -> None:
        """Store outputs to memory in vectors, or one by one to shared memory."""
        problem, s, column, at = self.problem, self.sizes, self.problem.width.axis.name, self._output_row(q)
        y, own_z, own_y, own_x = self.strip
        for stage in problem.outputs:
            width = 1 if s.staged else store_width(problem, stage.tensor.dtype, s.tile_w)
            for p in range(0, s.tile_w, width):
                place = (y, own_z * s.tile_rows + own_y * s.tile_h + q, own_x * s.tile_w + p)
                here = {**at, column: at[column] + p}

                def value(name: str, v: Expr, first: int = p) -> Load:
                    return Load(self.acc[name], (index(q), first + v))

                self._store_output(stage, here, place, width, value, self.exists)
