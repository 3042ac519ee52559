"""Where the strips of a thread block lie in images, and which of their rows and pixels exist."""

from collections.abc import Mapping

from ....ir.expr import Expr, index
from ....te.workload import Axis
from ...problems.depthwise import Depthwise
from ...tile.delinearize import axis_indices
from ...tile.names import FreshNameWriter
from .sizes import DepthwiseSizes, strip_count


class Strips:
    """The strips of thread block ``cta``, and its channels from ``first_channel`` on. Blocks that follow one another
    have other channels of the same strips. ``begin`` says which of its strips are meant: those of a step."""

    def __init__(self, problem: Depthwise, sizes: DepthwiseSizes, w: FreshNameWriter, cta: Expr) -> None:
        self.problem, self.s = problem, sizes
        self.height, self.width, self.channel = problem.height, problem.width, problem.window.channel
        self.places = [Axis(w.fresh(n), e) for n, e in (("row_tile", sizes.tiles_h), ("column_tile", sizes.tiles_w))]
        self.axes = [*problem.image_axes, *self.places]
        self.total: int = strip_count(problem, sizes)
        self.columns = min(sizes.tile_w, self.width.axis.extent)
        self.worker, self.first_channel = cta // sizes.tiles_c, cta % sizes.tiles_c * sizes.tile_c
        self.first: Expr = index(0)

    def begin(self, step: Expr) -> Expr:
        """Go to the strips of a step of all rounds. Return the number of the step among those of a strip."""
        s = self.s
        self.first = (self.worker + step // index(s.steps) * s.workers) * s.strips
        return step % index(s.steps)

    def output(self, number: Expr, line: Expr, pixel: Expr, channel: Expr) -> dict[str, Expr]:
        """Return the axes at an output of a strip."""
        found = dict(axis_indices(self.first + number, self.axes))
        row, column = (found.pop(a.name) for a in self.places)
        rows, columns = row * self.s.tile_h + line, column * self.s.tile_w + pixel
        found |= {self.height.axis.name: rows, self.width.axis.name: columns}
        return {**self.problem.window.unit_axes, **found, self.channel.name: self.first_channel + channel}

    def corner(self, number: Expr, line: Expr) -> dict[str, Expr]:
        """Return the axes at a point that reads the first pixel and channel of a row of the input, counted from the
        first one that a strip needs."""
        at = self.output(number, index(0), index(0), index(0))
        row, column = at[self.height.axis.name], at[self.width.axis.name]
        return {**at, **self.height.at(row, line), **self.width.at(column, index(0))}

    def is_needed(self, line: Expr) -> Expr | None:
        """Return the condition on which an output of a strip sees a row of the input; None where that always holds."""
        return line < self.s.needed_rows if self.s.needed_rows % self.s.stage_rows else None

    def complete(self, number: Expr, line: Expr) -> list[Expr]:
        """Return the conditions on which there is a strip, and a row is one of its outputs."""
        s = self.s
        beyond = s.needed_rows % s.stage_rows or s.tile_h % s.block_h
        exists = [] if self.total == s.rounds * s.workers * s.strips else [self.first + number < self.total]
        return [line >= 0, *([line < s.tile_h] if beyond else []), *exists]

    def inside(self, at: Mapping[str, Expr]) -> list[Expr]:
        """Return the conditions on which an output is one of the image."""
        s, ends = self.s, ((self.height.axis, self.s.tile_h), (self.channel, self.s.tile_c))
        found = [at[a.name] < a.extent for a, tile in ends if a.extent % tile]
        width = self.width.axis
        ragged = width.extent % s.block_w or (width.extent > s.tile_w and width.extent % s.tile_w)
        return [*found, *([at[width.name] < width.extent] if ragged else [])]
