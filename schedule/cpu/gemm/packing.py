"""One operand of a blocked matrix product: how it is packed into panels that the micro-kernel reads in order.

A panel is what a register tile needs: ``size`` indices of the operand's own axis (``m`` or ``n``), all steps of a block
of ``k``. Packed, its elements lie in one of three ways:

    k_innermost     panel[own][k]                one row for each index of the own axis, read one by one
    otherwise       panel[k][own]                one row for each step of k, read in vectors
    k_group > 1     panel[k / g][own][k % g]     g steps of k are neighbours, as dot products want them

Beyond the end of ``k`` a panel holds zeros. Beyond the end of the own axis its elements are never used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ....ir.buffer import Buffer, MemoryScope
from ....ir.cpu import Transpose
from ....ir.expr import Broadcast, Compare, CompareOp, Expr, Load, Ramp, Select, conjunction, const, index, minimum
from ....ir.rewrite import substitute
from ....ir.stmt import LoopKind
from ....te.workload import Axis
from ...problems.gemm import Operand
from ...tile.delinearize import delinearize
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at, vector_at

FEW_STEPS = 32

NEVER = "never"
"""The operand is read where it lies."""
TASK = "task"
"""Each task packs what it needs of a block of ``k``, into memory of its thread."""
WHOLE = "whole"
"""The whole operand is packed before the tasks begin, by all threads together."""


@dataclass(frozen=True, slots=True)
class BlockedOperand:
    """``operand`` along its own axis, in panels of ``size``. A block has ``kc`` steps of ``k``, which are used
    ``k_group`` by ``k_group``. ``packing``: ``NEVER``, ``TASK`` or ``WHOLE``. ``lanes``: groups in a vector.
    ``k_innermost``: how packed elements lie. ``overlaps``: whether the last panel begins earlier, so that it ends with
    the own axis and has some indices of the panel before. ``task``: how many panels and how many indices a task has,
    where its last panel is narrower than the others: it has the first of what the next task begins with, too.
    ``inside``: whether no panel that is read reaches beyond the end of the own axis."""

    operand: Operand
    axis: Axis
    k: Axis
    batch: tuple[Axis, ...]
    size: int
    kc: int
    lanes: int
    packing: str
    k_innermost: bool
    k_group: int = 1
    overlaps: bool = False
    task: tuple[int, int] | None = None
    inside: bool = False

    @property
    def panels(self) -> int:
        """Panels that cover the own axis."""
        panels, indices = self.task or (1, self.size)
        before = (self.axis.extent - 1) // indices  # tasks but the last
        return before * panels + -(-(self.axis.extent - before * indices) // self.size)

    def begin(self, number: Expr) -> Expr:
        """Return the first index of a panel."""
        if self.task is None:
            return number * self.size
        panels, indices = self.task
        return number // panels * indices + number % panels * self.size

    @property
    def reaches_beyond(self) -> bool:
        """Whether panels may reach beyond the end of the own axis."""
        return not self.inside and (self.task is not None or self.axis.extent % self.size > 0)

    @property
    def steps(self) -> int:
        """Steps of ``k`` in whole blocks."""
        return -(-self.k.extent // self.kc) * self.kc

    def pack_whole(self, w: FreshNameWriter, name: str) -> Buffer:
        """Return the buffer of all packed panels; writes the loop that fills it."""
        batch = tuple(a.extent for a in self.batch)
        buffer = Buffer(w.fresh(name), (*batch, self.panels, *self.panel_shape(self.steps)), self.operand.body.dtype)
        extents = (*batch, self.panels if self.reads_along_k else self.steps // self.steps_at_a_time)
        with w.loop("packed", prod(extents), LoopKind.PARALLEL) as item:
            *outer, chunk = delinearize(item, extents)
            at = dict(zip((a.name for a in self.batch), outer, strict=True))
            if self.reads_along_k:
                OperandPanel(self, at, chunk, index(0), buffer, (*outer, chunk), index(0)).pack(w, self.steps)
            else:
                k0 = chunk * self.steps_at_a_time
                with w.loop("packed_panel", self.panels) as j:
                    panel = OperandPanel(self, at, j, k0, buffer, (*outer, j), k0 // self.k_group)
                    panel.pack(w, self.steps_at_a_time)
        return buffer

    def allocate_block(self, w: FreshNameWriter, name: str, panels: int) -> Buffer:
        """Allocate memory for one packed block of ``panels``."""
        return w.allocate(name, (panels, *self.panel_shape(self.kc)), self.operand.body.dtype, MemoryScope.LOCAL)

    def pack_block(
        self, w: FreshNameWriter, buffer: Buffer, at: Mapping[str, Expr], first: Expr, panels: int, k0: Expr
    ) -> None:
        """Pack the panels from number ``first`` on, from step ``k0`` on."""
        steps = self.kc if self.reads_along_k else self.steps_at_a_time
        with w.loop("steps", self.kc // steps) as chunk, w.loop("packed_panel", panels) as j:
            with w.when(below(first + j, self.panels, panels)):
                begin = chunk * steps
                OperandPanel(self, at, first + j, k0 + begin, buffer, (j,), begin // self.k_group).pack(w, steps)

    @property
    def steps_at_a_time(self) -> int:
        """How many steps of ``k`` of one panel are packed before the next panel. Rows of the original are so read as
        they lie, few at a time, which the hardware prefetcher follows."""
        groups = self.kc // self.k_group
        most = max(1, FEW_STEPS // self.k_group)
        return self.k_group * max(n for n in range(1, most + 1) if groups % n == 0)

    @property
    def reads_along_k(self) -> bool:
        """Whether packing reads the original along ``k``."""
        return self.k_innermost or self.transposed

    @property
    def transposed(self) -> bool:
        """Whether packing transposes the original."""
        return not self.k_innermost and self.operand.k == 1 and self.operand.row != 1

    def panel(
        self, buffer: Buffer | None, at: Mapping[str, Expr], first: Expr, j: Expr, k_block: Expr
    ) -> "OperandPanel":
        """Return the panel ``j`` behind number ``first``, in a block of ``k``, in ``buffer`` if it was packed."""
        batch = tuple(at[a.name] for a in self.batch)
        prefix = (*batch, first + j) if self.packing == WHOLE else (j,)
        group = k_block * (self.kc // self.k_group) if self.packing == WHOLE else index(0)
        return OperandPanel(self, at, first + j, k_block * self.kc, buffer, prefix, group)

    def panel_shape(self, steps: int) -> tuple[int, int]:
        """Return the shape of a packed panel. Rows along ``k`` are padded by a vector, so that those of one panel do
        not fall on the same few sets of a cache."""
        vector = self.lanes * self.k_group
        if self.k_innermost:
            return (self.size, _whole_vectors(steps, vector) + vector)
        steps = _whole_vectors(steps, vector) if self.transposed else steps
        return (steps // self.k_group, _whole_vectors(self.size, self.lanes) * self.k_group)


@dataclass(frozen=True, slots=True)
class OperandPanel:
    """One panel, the one of ``number`` at indices ``at`` of the batch: the original from step ``k0`` on, and its packed
    elements at ``prefix`` of ``buffer`` from ``first_group`` on. ``buffer`` is None where the operand is not packed."""

    of: BlockedOperand
    at: Mapping[str, Expr]
    number: Expr
    k0: Expr
    buffer: Buffer | None
    prefix: tuple[Expr, ...]
    first_group: Expr

    @property
    def first(self) -> Expr:
        """The first index of the panel along its own axis."""
        first = self.of.begin(self.number)
        return minimum(first, index(self.of.axis.extent - self.of.size)) if self.of.overlaps else first

    # --- reading

    def element(self, own: Expr, k: Expr) -> Expr:
        """Return one element, by its indices within the panel and the block of ``k``."""
        if self.buffer is None:
            return scalar_at(self.of.operand.body, self._point(self._clamped(own), self.k0 + k))
        return Load(*self.group(own, k))

    def group(self, own: Expr, step: Expr) -> tuple[Buffer, tuple[Expr, ...]]:
        """Return the buffer and the indices where group ``step`` of the block begins."""
        if self.buffer is None:
            here = self._point(self._clamped(own), self.k0 + step * self.of.k_group)
            load = substitute(self.of.operand.body, here)
            assert isinstance(load, Load)
            return load.buffer, load.indices
        row = self.first_group + step
        indices = (own, row * self.of.k_group) if self.of.k_innermost else (row, own * self.of.k_group)
        return self.buffer, (*self.prefix, *indices)

    def vector(self, own: Expr, k: Expr) -> Expr:
        """Return ``lanes`` neighbours along the own axis."""
        if self.buffer is None:
            return self._along_own(own, self.k0 + k)
        return Load(self.buffer, (*self.prefix, self.first_group + k, Ramp(own, 1, self.of.lanes)))

    # --- packing

    def pack(self, w: FreshNameWriter, steps: int) -> None:
        """Pack ``steps`` steps of ``k``."""
        if self.of.k_innermost:
            self._pack_along_k(w, steps)
        elif self.of.transposed:
            self._pack_transposed(w, steps)
        else:
            self._pack_along_own(w, steps)

    def _pack_along_k(self, w: FreshNameWriter, steps: int) -> None:
        vector = self.of.lanes * self.of.k_group
        with w.loop("row", self.of.size) as i, w.loop("vector", -(-steps // vector)) as v:
            self._put(w, (i, Ramp(v * vector, 1, vector)), self._along_k(i, v * vector))

    def _pack_along_own(self, w: FreshNameWriter, steps: int) -> None:
        lanes, group = self.of.lanes, self.of.k_group
        vectors = -(-self.of.size // lanes)
        if group == 1:
            with w.loop("step", steps) as k, w.unrolled("vector", vectors) as v:
                row = self.first_group + k
                self._put(w, (row, Ramp(v * lanes, 1, lanes)), self._along_own(v * lanes, self.k0 + k))
            return
        with w.loop("step", steps // group) as step, w.unrolled("vector", vectors) as v:
            rows = w.allocate("rows", (group, lanes), self.of.operand.body.dtype, MemoryScope.LOCAL)
            with w.unrolled("row", group) as i:
                value = self._along_own(v * lanes, self.k0 + step * group + i)
                w.store(rows, (i, Ramp(index(0), 1, lanes)), value)
            self._transpose(w, (self.first_group + step, v * (lanes * group)), group, rows, group, 1)

    def _pack_transposed(self, w: FreshNameWriter, steps: int) -> None:
        """Square blocks are read along ``k`` and written across it."""
        lanes, group = self.of.lanes, self.of.k_group
        vector = lanes * group
        with w.loop("vector", -(-steps // vector)) as v, w.loop("rows", -(-self.of.size // lanes)) as rows:
            square = w.allocate("square", (lanes, vector), self.of.operand.body.dtype, MemoryScope.LOCAL)
            with w.unrolled("row", lanes) as i:
                w.store(square, (i, Ramp(index(0), 1, vector)), self._along_k(rows * lanes + i, v * vector))
            pitch = self.of.panel_shape(self.of.kc)[1]
            self._transpose(w, (v * lanes, rows * vector), pitch, square, lanes, group)

    def _put(self, w: FreshNameWriter, indices: tuple[Expr, Expr], value: Expr) -> None:
        assert self.buffer is not None
        w.store(self.buffer, (*self.prefix, *indices), value)

    def _transpose(
        self, w: FreshNameWriter, indices: tuple[Expr, Expr], pitch: int, source: Buffer, rows: int, unit: int
    ) -> None:
        """``rows`` rows of ``source``, of ``lanes`` units each, become columns of the packed panel."""
        assert self.buffer is not None
        target, zeros = (*self.prefix, *indices), (index(0), index(0))
        row = source.shape[-1]
        w.emit(Transpose(self.buffer, target, pitch, source, zeros, row, rows, self.of.lanes, unit))

    def _along_k(self, own: Expr, k: Expr) -> Expr:
        """Return a vector of the original along ``k``; zeros beyond its end."""
        here = self._point(self._clamped(own), self.k0 + k)
        vector, extent = self.of.lanes * self.of.k_group, self.of.k.extent
        beyond = self.of.steps > extent or extent % vector or self.of.kc % vector
        mask = lanes_below(self.k0 + k, extent, vector) if beyond else None
        return _masked(mask, vector_at(self.of.operand.body, here, "k", vector))

    def _along_own(self, own: Expr, k: Expr) -> Expr:
        """Return a vector of the original along the own axis; zeros beyond its end and that of ``k``."""
        lanes, extent = self.of.lanes, self.of.axis.extent
        first = self.of.begin(self.number) + own
        terms = []
        if self.of.reaches_beyond or self.of.size % lanes:
            terms.append(lanes_below(first, extent, lanes))
        if self.of.steps > self.of.k.extent:
            terms.append(Broadcast(Compare(CompareOp.LT, k, index(self.of.k.extent)), lanes))
        here = {**self.at, self.of.axis.name: first, "k": k}
        value = vector_at(self.of.operand.body, here, self.of.axis.name, lanes)
        return _masked(conjunction(*terms), value)

    def _point(self, own: Expr, k: Expr) -> dict[str, Expr]:
        return {**self.at, self.of.axis.name: own, "k": k}

    def _clamped(self, own: Expr) -> Expr:
        """Return an index within the panel as one of the original: the last one instead of those beyond it."""
        original, extent = self.first + own, self.of.axis.extent
        return minimum(original, index(extent - 1)) if self.of.reaches_beyond and not self.of.overlaps else original


def below(index_: Expr, extent: int, step: int = 1) -> Expr | None:
    """Return whether an index is below ``extent``; None where it always is, because ``step`` divides that.

    The condition is written so that loops stay whole: the code of a register tile is large, and a second copy of it for
    the edge gains nothing.
    """
    return Compare(CompareOp.NE, minimum(index_, index(extent)), index(extent)) if extent % step else None


def lanes_below(first: Expr, extent: int, lanes: int) -> Expr:
    """Return which of the ``lanes`` indices from ``first`` on are below ``extent``."""
    return Compare(CompareOp.LT, Ramp(first, 1, lanes), Broadcast(index(extent), lanes))


def _masked(mask: Expr | None, value: Expr) -> Expr:
    """Return ``value`` in the lanes of ``mask``, and zero elsewhere."""
    if isinstance(value, Load) and value.mask is None:
        return Load(value.buffer, value.indices, mask)
    return value if mask is None else Select(mask, value, Broadcast(const(0, value.dtype), value.lanes))


def _whole_vectors(count: int, lanes: int) -> int:
    return -(-count // lanes) * lanes
