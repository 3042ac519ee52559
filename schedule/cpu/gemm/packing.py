"""One operand of a blocked matrix product: how it is copied to where it lies as the innermost loop reads it.

A panel is what a tile of registers needs: ``size`` places along the operand's own axis. In the copy its elements lie
along ``k``, one row for each place (``by_rows``: copied in vectors from an operand that lies along ``k`` itself, and
read one by one), or along the own axis, one row for each step of ``k``, or for each ``group`` of steps, whose elements
are neighbours then. Beyond the end of ``k`` there are zeros, beyond that of the own axis anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ....ir.buffer import Buffer, MemoryScope
from ....ir.cpu import Transpose
from ....ir.expr import Broadcast, Compare, CompareOp, Expr, Load, Ramp, Select, const, index, logical_and, minimum
from ....ir.rewrite import substitute
from ....ir.stmt import LoopKind
from ....te.workload import Axis
from ...problems.gemm import Operand
from ...tile.delinearize import digits
from ...tile.naming import NamingWriter
from ...tile.stage_body import value_at, vector_at

UNROLLED = LoopKind.UNROLLED

FEW_STEPS = 32

NEVER = "never"
"""The operand is read where it is."""
TASK = "task"
"""Each task copies what it needs of a block of ``k``, to memory of its thread."""
WHOLE = "whole"
"""All of it is copied first, by all threads together."""


@dataclass(frozen=True, slots=True)
class GemmOperand:
    """``operand`` on its own axis (``m`` or ``n``), in panels of ``size``, of which ``depth`` steps of ``k`` are used
    at a time, ``group`` by ``group``. ``mode``: ``NEVER``, ``TASK`` or ``WHOLE``. ``lanes``: groups in a vector."""

    operand: Operand
    axis: Axis
    k: Axis
    batch: tuple[Axis, ...]
    size: int
    depth: int
    lanes: int
    mode: str
    by_rows: bool
    group: int = 1

    @property
    def panels(self) -> int:
        return -(-self.axis.extent // self.size)

    @property
    def steps(self) -> int:
        """Steps of ``k`` in whole blocks."""
        return -(-self.k.extent // self.depth) * self.depth

    def copy_whole(self, w: NamingWriter, name: str) -> Buffer:
        """The copy of all panels, and the loop that makes it."""
        batch = tuple(a.extent for a in self.batch)
        buffer = Buffer(w.fresh(name), (*batch, self.panels, *self.shape(self.steps)), self.operand.body.dtype)
        extents = (*batch, self.panels if self.goes_along_k else self.steps // self.few_steps)
        with w.loop("packed", prod(extents), LoopKind.PARALLEL) as item:
            *outer, part = digits(item, extents)
            at = dict(zip((a.name for a in self.batch), outer, strict=True))
            if self.goes_along_k:
                Panel(self, at, part, index(0), buffer, (*outer, part), index(0)).copy(w, self.steps)
            else:
                k0 = part * self.few_steps
                with w.loop("copied", self.panels) as j:
                    Panel(self, at, j, k0, buffer, (*outer, j), k0 // self.group).copy(w, self.few_steps)
        return buffer

    def allocate(self, w: NamingWriter, name: str, panels: int) -> Buffer:
        """Memory for one block of ``panels``."""
        return w.allocate(name, (panels, *self.shape(self.depth)), self.operand.body.dtype, MemoryScope.LOCAL)

    def copy_block(
        self, w: NamingWriter, buffer: Buffer, at: Mapping[str, Expr], first: Expr, panels: int, k0: Expr
    ) -> None:
        """Copy the panels from number ``first`` on, from ``k0`` on."""
        steps = self.depth if self.goes_along_k else self.few_steps
        with w.loop("part", self.depth // steps) as part, w.loop("copied", panels) as j:
            with w.when(below(first + j, self.panels, panels)):
                begin = part * steps
                Panel(self, at, first + j, k0 + begin, buffer, (j,), begin // self.group).copy(w, steps)

    @property
    def few_steps(self) -> int:
        """How many steps of ``k`` of one panel are copied before the next one, so that rows of the original are read
        as they lie, few at a time: the processor sees that coming."""
        groups = self.depth // self.group
        return self.group * max(n for n in range(1, max(1, FEW_STEPS // self.group) + 1) if groups % n == 0)

    @property
    def goes_along_k(self) -> bool:
        """Whether the original is read along ``k``."""
        return self.by_rows or self.turned

    def panel(self, buffer: Buffer | None, at: Mapping[str, Expr], first: Expr, j: Expr, block: Expr) -> "Panel":
        """The panel ``j`` behind number ``first``, in a block of ``k``, in ``buffer`` if that was copied."""
        batch = tuple(at[a.name] for a in self.batch)
        prefix = (*batch, first + j) if self.mode == WHOLE else (j,)
        start = block * (self.depth // self.group) if self.mode == WHOLE else index(0)
        return Panel(self, at, first + j, block * self.depth, buffer, prefix, start)

    def shape(self, steps: int) -> tuple[int, int]:
        """Of a panel. Rows are padded, so that those of one panel do not fall on the same few lines of a cache."""
        vector = self.lanes * self.group
        if self.by_rows:
            return (self.size, _whole_vectors(steps, vector) + vector)
        steps = _whole_vectors(steps, vector) if self.turned else steps
        return (steps // self.group, _whole_vectors(self.size, self.lanes) * self.group)

    @property
    def turned(self) -> bool:
        """Whether the copy lies across the original."""
        return not self.by_rows and self.operand.k == 1 and self.operand.row != 1


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel, number ``number`` of an operand at a place ``at`` of the batch: the original from ``k0`` on, and its
    copy at ``prefix`` of ``buffer`` from the group ``start`` on."""

    of: GemmOperand
    at: Mapping[str, Expr]
    number: Expr
    k0: Expr
    buffer: Buffer | None
    prefix: tuple[Expr, ...]
    start: Expr

    # --- reading

    def element(self, own: Expr, k: Expr) -> Expr:
        """One element, at places within the panel and the block."""
        if self.buffer is None:
            return value_at(self.of.operand.body, self._point(self._clamped(own), self.k0 + k))
        return Load(*self.group(own, k))

    def group(self, own: Expr, step: Expr) -> tuple[Buffer, tuple[Expr, ...]]:
        """Where the group number ``step`` of the block begins."""
        if self.buffer is None:
            here = self._point(self._clamped(own), self.k0 + step * self.of.group)
            load = substitute(self.of.operand.body, here)
            assert isinstance(load, Load)
            return load.buffer, load.indices
        row = self.start + step
        place = (own, row * self.of.group) if self.of.by_rows else (row, own * self.of.group)
        return self.buffer, (*self.prefix, *place)

    def vector(self, own: Expr, k: Expr) -> Expr:
        """``lanes`` neighbours along the own axis."""
        if self.buffer is None:
            return self._along_own(own, self.k0 + k)
        return Load(self.buffer, (*self.prefix, self.start + k, Ramp(own, 1, self.of.lanes)))

    # --- copying

    def copy(self, w: NamingWriter, steps: int) -> None:
        """``steps`` of ``k`` to the copy."""
        if self.of.by_rows:
            self._copy_rows(w, steps)
        elif self.of.turned:
            self._copy_turned(w, steps)
        else:
            self._copy_columns(w, steps)

    def _copy_rows(self, w: NamingWriter, steps: int) -> None:
        vector = self.of.lanes * self.of.group
        with w.loop("row", self.of.size) as i, w.loop("run", -(-steps // vector)) as run:
            self._put(w, (i, Ramp(run * vector, 1, vector)), self._along_k(i, run * vector))

    def _copy_columns(self, w: NamingWriter, steps: int) -> None:
        lanes, group = self.of.lanes, self.of.group
        parts = -(-self.of.size // lanes)
        if group == 1:
            with w.loop("step", steps) as k, w.loop("part", parts, UNROLLED) as part:
                self._put(w, (self.start + k, Ramp(part * lanes, 1, lanes)), self._along_own(part * lanes, self.k0 + k))
            return
        with w.loop("step", steps // group) as step, w.loop("part", parts, UNROLLED) as part:
            rows = w.allocate("rows", (group, lanes), self.of.operand.body.dtype, MemoryScope.LOCAL)
            with w.loop("line", group, UNROLLED) as i:
                value = self._along_own(part * lanes, self.k0 + step * group + i)
                w.store(rows, (i, Ramp(index(0), 1, lanes)), value)
            self._turn(w, (self.start + step, part * (lanes * group)), group, rows, group, 1)

    def _copy_turned(self, w: NamingWriter, steps: int) -> None:
        """Squares are read along ``k`` and written across it."""
        lanes, group = self.of.lanes, self.of.group
        vector = lanes * group
        with w.loop("run", -(-steps // vector)) as run, w.loop("part", -(-self.of.size // lanes)) as part:
            square = w.allocate("square", (lanes, vector), self.of.operand.body.dtype, MemoryScope.LOCAL)
            with w.loop("line", lanes, UNROLLED) as i:
                w.store(square, (i, Ramp(index(0), 1, vector)), self._along_k(part * lanes + i, run * vector))
            pitch = self.of.shape(self.of.depth)[1]
            self._turn(w, (run * lanes, part * vector), pitch, square, lanes, group)

    def _put(self, w: NamingWriter, place: tuple[Expr, Expr], value: Expr) -> None:
        assert self.buffer is not None
        w.store(self.buffer, (*self.prefix, *place), value)

    def _turn(
        self, w: NamingWriter, place: tuple[Expr, Expr], pitch: int, source: Buffer, rows: int, unit: int
    ) -> None:
        """``rows`` of ``lanes`` units each to columns of the copy."""
        assert self.buffer is not None
        target, zeros = (*self.prefix, *place), (index(0), index(0))
        row = source.shape[-1]
        w.emit(Transpose(self.buffer, target, pitch, source, zeros, row, rows, self.of.lanes, unit))

    def _along_k(self, own: Expr, k: Expr) -> Expr:
        """A vector of the original along ``k``; zeros beyond its end."""
        here = self._point(self._clamped(own), self.k0 + k)
        vector, extent = self.of.lanes * self.of.group, self.of.k.extent
        mask = lanes_below(self.k0 + k, extent, vector) if extent % vector or self.of.depth % vector else None
        return _where(mask, vector_at(self.of.operand.body, here, "k", vector))

    def _along_own(self, own: Expr, k: Expr) -> Expr:
        """A vector of the original along the own axis; zeros beyond its end and that of ``k``."""
        lanes, extent, size = self.of.lanes, self.of.axis.extent, self.of.size
        first = self.number * size + own
        terms = []
        if extent % size or size % lanes:
            terms.append(lanes_below(first, extent, lanes))
        if self.of.steps > self.of.k.extent:
            terms.append(Broadcast(Compare(CompareOp.LT, k, index(self.of.k.extent)), lanes))
        here = {**self.at, self.of.axis.name: first, "k": k}
        value = vector_at(self.of.operand.body, here, self.of.axis.name, lanes)
        return _where(logical_and(*terms) if terms else None, value)

    def _point(self, own: Expr, k: Expr) -> dict[str, Expr]:
        return {**self.at, self.of.axis.name: own, "k": k}

    def _clamped(self, own: Expr) -> Expr:
        """A place within the panel as one of the original; the last one instead of those beyond it."""
        place = self.number * self.of.size + own
        return minimum(place, index(self.of.axis.extent - 1)) if self.of.axis.extent % self.of.size else place


def below(place: Expr, extent: int, step: int = 1) -> Expr | None:
    """Whether ``place`` is below ``extent``; None where it always is, because ``step`` divides that.

    Said in a way that leaves loops whole: the code of a tile is large, and a second one for the edge gains nothing.
    """
    return Compare(CompareOp.NE, minimum(place, index(extent)), index(extent)) if extent % step else None


def lanes_below(first: Expr, extent: int, lanes: int) -> Expr:
    """Which of the places from ``first`` on are below ``extent``."""
    return Compare(CompareOp.LT, Ramp(first, 1, lanes), Broadcast(index(extent), lanes))


def _where(mask: Expr | None, value: Expr) -> Expr:
    """``value`` in the lanes of ``mask``, zero elsewhere."""
    if isinstance(value, Load) and value.mask is None:
        return Load(value.buffer, value.indices, mask)
    return value if mask is None else Select(mask, value, Broadcast(const(0, value.dtype), value.lanes))


def _whole_vectors(count: int, lanes: int) -> int:
    return -(-count // lanes) * lanes
