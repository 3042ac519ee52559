"""Loads of a body into registers, ahead of the arithmetic that needs them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir.buffer import Buffer, MemoryScope
from ...ir.build import Writer
from ...ir.expr import Expr, Load, conjunction, const
from ...ir.rewrite import free_variables
from ...te.functions import negated
from ...te.workload import Axis
from .load_analysis import always_holds, in_bounds
from .masked_loads import MaskedLoad, conjuncts
from .names import FreshNameWriter
from .pieces import are_together, lanes_of_piece
from .stage_body import scalar_at


@dataclass(frozen=True, slots=True)
class RegisterLoad:
    """A masked load and the register buffer that receives what it loads.

    The writer of the kernel chooses the leading dimensions of ``buffer``. ``vector``: whether the load differs from
    lane to lane; if so, the last dimension of ``buffer`` has one element for each lane.
    """

    masked: MaskedLoad
    buffer: Buffer
    vector: bool

    def value(self, prefix: Sequence[Expr], lane: Expr) -> Load:
        """Return the loaded value of one lane, at the indices ``prefix`` of the leading dimensions."""
        return Load(self.buffer, (*prefix, lane) if self.vector else tuple(prefix))


def allocate_registers(
    w: FreshNameWriter, masked: MaskedLoad, shape: Sequence[int], lane_axis: str, lanes: int
) -> RegisterLoad:
    """Registers for ``masked`` at every index of ``shape``, and for every lane where it depends on ``lane_axis``."""
    vector = depends_on(masked, lane_axis)
    name = f"{masked.load.buffer.name}_regs"
    dims = (*shape, lanes) if vector else tuple(shape)
    return RegisterLoad(masked, w.allocate(name, dims, masked.load.dtype, MemoryScope.REGISTER), vector)


def depends_on(masked: MaskedLoad, axis: str) -> bool:
    """Return whether the loaded value may differ along ``axis``."""
    return axis in masked.variables


def load_registers(
    w: FreshNameWriter,
    registers: RegisterLoad,
    prefix: Sequence[Expr],
    at: Mapping[str, Expr],
    lane_axis: str,
    lanes: int,
) -> None:
    """Write the statements that load ``registers`` at the indices ``prefix`` from the point ``at`` of the axes.

    A load that differs from lane to lane is one vector, whose first lane is at ``at[lane_axis]``, a multiple of
    ``lanes``. Neighbours that are aligned, and all of which the mask has or has not, are loaded together. Nothing is
    read where the mask is false, unless another element stands for it.
    """
    masked = registers.masked
    if isinstance(masked.other, Load) and masked.mask is not None:
        _load_bordered(w, registers, masked.other, masked.mask, prefix, at, lane_axis, lanes)
        return
    if not registers.vector:
        _load_scalar(w, registers, tuple(prefix), at)
        return
    if masked.mask is not None and lane_axis not in free_variables(masked.mask):
        with w.vectorized("v", lanes) as v:
            w.store(registers.buffer, (*prefix, v), masked.other or const(0, masked.load.dtype))
        with w.when(scalar_at(masked.mask, at)), w.vectorized("v", lanes) as v:
            here = {**at, lane_axis: at[lane_axis] + v}
            w.store(registers.buffer, (*prefix, v), scalar_at(masked.load, here))
        return
    together = lanes_of_piece(masked, lane_axis, lanes)
    if together > 1 and not are_together(masked, lane_axis, lanes, aligned=False):
        if masked.mask is not None:
            with w.vectorized("v", lanes) as v:
                w.store(registers.buffer, (*prefix, v), masked.other or const(0, masked.load.dtype))
        with w.unrolled("piece", lanes // together) as piece:
            first = {**at, lane_axis: at[lane_axis] + piece * together}
            with (
                w.when(None if masked.mask is None else scalar_at(masked.mask, first)),
                w.vectorized("v", together) as v,
            ):
                here = {**at, lane_axis: first[lane_axis] + v}
                w.store(registers.buffer, (*prefix, piece * together + v), scalar_at(masked.load, here))
        return
    with w.vectorized("v", lanes) as v:
        _load_scalar(w, registers, (*prefix, v), {**at, lane_axis: at[lane_axis] + v})


def _load_bordered(
    w: FreshNameWriter,
    registers: RegisterLoad,
    other: Load,
    mask: Expr,
    prefix: Sequence[Expr],
    at: Mapping[str, Expr],
    lane_axis: str,
    lanes: int,
) -> None:
    """Load what ``other`` reads, which is right everywhere: by vectors of neighbours that the mask has."""
    moved = replace(registers, masked=MaskedLoad(other))
    together = lanes_of_piece(registers.masked, lane_axis, lanes) if registers.vector else 1
    if together == 1 or lane_axis not in free_variables(mask):
        load_registers(w, moved, prefix, at, lane_axis, lanes)
        return
    with w.unrolled("piece", lanes // together) as piece:
        first = {**at, lane_axis: at[lane_axis] + piece * together}
        inside = scalar_at(mask, first)
        for condition, load in ((inside, registers.masked.load), (negated(inside), other)):
            with w.when(condition), w.vectorized("v", together) as v:
                here = {**at, lane_axis: first[lane_axis] + v}
                w.store(registers.buffer, (*prefix, piece * together + v), scalar_at(load, here))


def _load_scalar(w: Writer, registers: RegisterLoad, indices: tuple[Expr, ...], at: Mapping[str, Expr]) -> None:
    masked = registers.masked
    if masked.mask is None:
        w.store(registers.buffer, indices, scalar_at(masked.load, at))
        return
    w.store(registers.buffer, indices, masked.other or const(0, masked.load.dtype))
    with w.when(scalar_at(masked.mask, at)):
        w.store(registers.buffer, indices, scalar_at(masked.load, at))


def bounded(masked: MaskedLoad, axes: Collection[str]) -> MaskedLoad:
    """``masked`` with a mask also for indices beyond the tensor, of those that depend on ``axes``."""
    terms = conjuncts(masked.mask)
    for i, extent in zip(masked.load.indices, masked.load.buffer.shape, strict=True):
        if not free_variables(i).isdisjoint(axes):
            terms.extend((i >= 0, i < extent))
    return replace(masked, mask=conjunction(*terms))


def without_kept_conditions(masked: MaskedLoad, at: Mapping[str, Expr], axes: Sequence[Axis]) -> MaskedLoad:
    """``masked`` without those conditions that hold at all points ``at``, which depend on ``axes``."""
    terms = [t for t in conjuncts(masked.mask) if not always_holds(scalar_at(t, at), axes)]
    return replace(masked, mask=conjunction(*terms))


def without_unneeded_mask(masked: MaskedLoad, axes: Sequence[Axis]) -> MaskedLoad:
    """``masked`` without its mask where the load stays in bounds without it and the mask is not needed to choose
    between two values."""
    if masked.mask is None or (masked.other is None and not in_bounds(masked.load, axes)):
        return masked
    if masked.other is not None and not always_holds(masked.mask, axes):
        return masked
    return MaskedLoad(masked.load)
