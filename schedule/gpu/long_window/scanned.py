"""Writes the arithmetic of long windows whose points have no taps, such as the greatest or the mean of many positions.
Positions are divided into parts of ``tile_w``, of which each thread has one. A window is what is behind its first
position in a part, whole parts, and what is ahead of its end in another (van Herk 1992, Gil and Werman 1993)::

    total_tile[part] = reduction of the part                                              # one thread for each part
    acc[p] = reduction of the thread's own part from position p on
    for p in range(tile_w):  acc[p] += total_tile[parts between] + running reduction of the part at its end

So an output takes about five steps, however long its window is, and one more for each part between, shared by all
outputs of the thread.
"""

from collections.abc import Mapping

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Binary, Expr, Load, index
from ....ir.stmt import LoopKind
from ....te.functions import cast
from ...loop_nest.nest import identity
from ...problems.long_window import LongWindow
from ...tile.delinearize import delinearize
from ...tile.stage_body import scalar_at
from .kernel import LongWindowSizes, LongWindowWriter


def whole_parts(problem: LongWindow, tile_w: int) -> tuple[int, int]:
    """Return how many parts lie from that of a window's first point to that of its last one, if the window begins with
    a part, and how many points the latter has ahead of the last one."""
    return divmod(problem.window.extent - 1, tile_w)


class ScannedWriter(LongWindowWriter):
    """Each window is joined of running reductions of the parts that it has. A stage has all points of it."""

    def __init__(self, problem: LongWindow, sizes: LongWindowSizes) -> None:
        super().__init__(problem, sizes)
        self.between, self.ahead = whole_parts(problem, sizes.tile_w)
        self.parts = sizes.own + self.between - 1

    def _allocate_registers(self) -> None:
        w, s = self.w, self.sizes
        self.totals = w.allocate("total_tile", (self.parts * s.lanes,), self.acc.dtype, MemoryScope.SHARED)
        self.running, self.middle, self.behind = (
            w.allocate(name, (extent,), self.acc.dtype, MemoryScope.REGISTER)
            for name, extent in (("running", 1), ("middle", 1), ("behind", s.tile_w))
        )

    def _reduce_stage(self, first_tap: Expr, taps: int) -> None:
        w, s = self.w, self.sizes
        with w.shared_out("part", self.parts * s.lanes, s.threads, self.thread) as number:
            part, phase = delinearize(number, (2, s.lanes)) if s.lanes > 1 else (number, index(0))
            self._start(self.running, 0)
            with w.loop("k", s.tile_w, LoopKind.UNROLLED) as k:
                self._add(self.running, 0, self._position(part * s.tile_w + k, phase))
            w.store(self.totals, (number,), Load(self.running, (index(0),)))
        w.barrier()
        self._reduce_behind()
        self._reduce_between()
        self._reduce_ahead()

    def _reduce_behind(self) -> None:
        """Reduce the thread's own part from each of its positions to the end."""
        s = self.sizes
        for p in reversed(range(s.tile_w)):
            value = self._position(self.own * s.tile_w + p, self.phase)
            rest = Load(self.behind, (index(p + 1),)) if p + 1 < s.tile_w else None
            self.w.store(self.behind, (index(p),), value if rest is None else self._combined(value, rest))

    def _reduce_between(self) -> None:
        """Reduce the whole parts that all windows of the thread have."""
        s = self.sizes
        self._start(self.middle, 0)
        if self.between > 1:
            with self.w.loop("part", self.between - 1) as n:
                self._add(self.middle, 0, Load(self.totals, ((self.own + n + 1) * s.lanes + self.phase,)))

    def _reduce_ahead(self) -> None:
        """Add what is left at the end of each window: the beginning of a part, or a part and the beginning of the next
        one."""
        s = self.sizes
        self._start(self.running, 0)
        for p in range(-self.ahead, s.tile_w):
            place = p + self.ahead
            if place == s.tile_w:
                self._add(self.middle, 0, Load(self.running, (index(0),)))
                self._start(self.running, 0)
            self._add(self.running, 0, self._position((self.own + self.between) * s.tile_w + place, self.phase))
            if p >= 0:
                for value in (self.behind, p), (self.middle, 0), (self.running, 0):
                    self._add(self.acc, p, Load(value[0], (index(value[1]),)))

    def _position(self, number: Expr, phase: Expr) -> Expr:
        """Return what a position contributes to the windows that have it."""
        place = number if self.sizes.lanes == 1 else number * self.sizes.lanes + phase
        values: Mapping[Buffer, Load] = {b: Load(tile, (place,)) for b, tile in self.position_tiles.items()}
        term = scalar_at(self.problem.term_body, self.row, lambda load: values.get(load.buffer, load))
        return cast(term, self.acc.dtype)

    def _combined(self, a: Expr, b: Expr) -> Expr:
        return Binary(self.problem.combine, a, b)

    def _start(self, buffer: Buffer, at: int) -> None:
        self.w.store(buffer, (index(at),), identity(self.problem.combine, buffer.dtype))

    def _add(self, buffer: Buffer, at: int, value: Expr) -> None:
        self.w.store(buffer, (index(at),), self._combined(Load(buffer, (index(at),)), value))
