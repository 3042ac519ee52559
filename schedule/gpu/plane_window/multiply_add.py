"""Writes what a thread of windows of planes computes: a strip of outputs, by multiplications and additions::

w_regs = W[plane, …]                                        # the filter, the same for all outputs of a plane
barrier
for each row of the input that the strip sees:
    x_near[:] = x_tile[y, own_y*stride + row, own_x*stride:…]                    # in aligned vectors
    for each row q of the strip that sees it, for s in unrolled(window), for p in unrolled(tile_w):
        acc[q, p] += x_near[p*stride + s*dilation] * w_regs[r, s]
    Y[plane, y0 + q, x0 + p] = epilogue(acc[q, p])          # of the row q that is complete
"""

from collections.abc import Mapping
from contextlib import ExitStack

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Binary, Cast, Expr, Load, index, minimum
from ....te.workload import Axis
from ...tile.delinearize import delinearize
from ...tile.masked_loads import MaskedLoad, replace_masked_loads
from ...tile.register_loads import RegisterLoad, allocate_registers, load_registers
from ...tile.stage_body import scalar_at
from .kernel import PlaneWindowWriter, accumulator_dtype, store_width


class MultiplyAddWriter(PlaneWindowWriter):
    """Each thread has a strip."""

    def _prepare(self, warp: Expr, lane: Expr) -> None:
        """Load what is the same for all outputs of a plane, for every point of the window. Keep it with the axes of the
        reduction that index it."""
        problem, w, s = self.problem, self.w, self.sizes
        thread = warp * WARP_LANES + lane
        self.exists = [thread < s.strips] if s.strips < s.threads else []
        strip = minimum(thread, index(s.strips - 1)) if s.strips < s.threads else thread
        self.place = delinearize(strip, (s.row_tiles, s.strips_h, s.strips_w))
        self.at = self._point_of(self.place[0])
        self.weights: dict[MaskedLoad, tuple[RegisterLoad, tuple[Axis, ...]]] = {}
        for masked in problem.fixed_loads:
            axes = problem.reduce_axes_of(masked)
            registers = allocate_registers(w, self.names, masked, [a.extent for a in axes], "", 1)
            self.weights[masked] = (registers, axes)
            with ExitStack() as loops:
                indices = [loops.enter_context(self._unrolled(f"{a.name}_u", a.extent)) for a in axes]
                here = {**self.at, **{a.name: i for a, i in zip(axes, indices, strict=True)}}
                load_registers(w, self.names, registers, indices, here, "", 1)

    def _compute(self, tiles: Mapping[MaskedLoad, Buffer]) -> None:
        problem, w, s = self.problem, self.w, self.sizes
        width, height = problem.width, problem.height
        y, own_y, own_x = self.place
        strip = {**self.at, width.axis.name: self.at[width.axis.name] + own_x * s.tile_w}
        if height is not None:
            strip[height.axis.name] = self.at[height.axis.name] + own_y * s.tile_h
        first_line = own_y * (s.tile_h * (height.stride if height is not None else 1))
        skipped = s.lead // s.near_width * s.near_width
        first_column = own_x * (s.tile_w * width.stride) + skipped
        name, dtype = self.names.fresh(f"{problem.reduction.name}_acc"), accumulator_dtype(problem)
        acc = w.allocate(name, (s.tile_h, s.tile_w), dtype, MemoryScope.REGISTER)
        for line, reading in self._lines():
            near: dict[MaskedLoad, Buffer] = {}
            for masked, tile in tiles.items():
                name = self.names.fresh(f"{masked.load.buffer.name}_near")
                near[masked] = w.allocate(name, (s.near,), tile.dtype, MemoryScope.REGISTER)
                for k in range(0, s.near, s.near_width):
                    with self._lanes(s.near_width) as v:
                        value = Load(tile, (y, first_line + line, first_column + k + v))
                        w.store(near[masked], (k + v,), value)
            for q, r in reading:
                row = dict(strip)
                if height is not None and height.window is not None:
                    row |= {height.axis.name: strip[height.axis.name] + q, height.window.name: index(r)}
                self._accumulate(row, near, s.lead - skipped, acc, q, begun=r > 0)
                if r == problem.window_height - 1:
                    self._finish_row(row, q, acc)

    def _accumulate(
        self,
        at: Mapping[str, Expr],
        near: Mapping[MaskedLoad, Buffer],
        first: int,
        acc: Buffer,
        q: int,
        *,
        begun: bool,
    ) -> None:
        """Accumulate a row of the input into row ``q`` of ``acc``. The strip's first output sees ``near`` from
        ``first`` on."""
        problem, width = self.problem, self.problem.width
        for point in range(width.window_points):
            with self._unrolled("p", self.sizes.tile_w) as p:
                here = {**at, width.axis.name: at[width.axis.name] + p}
                if width.window is not None:
                    here[width.window.name] = index(point)
                position = p * width.stride + (first + point * width.dilation)
                values: dict[MaskedLoad, Expr] = {m: Load(buffer, (position,)) for m, buffer in near.items()}
                values |= {m: h.value([here[a.name] for a in axes], index(0)) for m, (h, axes) in self.weights.items()}
                term = scalar_at(replace_masked_loads(problem.reduction.body, values), here)
                wide = term if term.dtype == acc.dtype else Cast(term, acc.dtype)
                to = (index(q), p)
                sum_ = Binary(problem.combine, Load(acc, to), wide) if begun or point else wide
                self.w.store(acc, to, sum_)

    def _finish_row(self, at: Mapping[str, Expr], q: int, acc: Buffer) -> None:
        """Store row ``q`` of the strip: to memory in vectors, or one by one to shared memory."""
        problem, s, column = self.problem, self.sizes, self.problem.width.axis.name
        y, own_y, own_x = self.place
        for stage in problem.outputs:
            width = 1 if s.staged else store_width(problem, stage.tensor.dtype, s.tile_w)
            for p in range(0, s.tile_w, width):
                place = (y, own_y * s.tile_h + q, own_x * s.tile_w + p)
                here = {**at, column: at[column] + p}

                def value(v: Expr, first: int = p) -> Load:
                    return Load(acc, (index(q), first + v))

                self._store_output(stage, here, place, width, value, self.exists)
