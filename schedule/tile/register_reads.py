"""Reads of a body taken into registers ahead of the arithmetic that needs them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...ir.buffer import Buffer, MemoryScope
from ...ir.build import Writer
from ...ir.expr import Expr, Load, const
from ...ir.linear_form import LinearForm, affine_form
from ...ir.rewrite import free_variables, fresh_name
from ...ir.stmt import LoopKind
from ...te.region import Region, box_bounds
from ...te.workload import Axis
from .stage_body import Read, value_at


class Names:
    """Hands out each name of a kernel once."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def fresh(self, base: str) -> str:
        """``base``, or with a number behind it."""
        name = fresh_name(base, self._taken)
        self._taken.add(name)
        return name


def flat_offset(load: Load) -> LinearForm | None:
    """The element that ``load`` reads, counted from the start of its buffer; None where it is not affine."""
    total = LinearForm({})
    for at, stride in zip(load.indices, load.buffer.strides, strict=True):
        form = affine_form(at)
        if form is None:
            return None
        total = total.plus(form, stride)
    return total


def in_bounds(load: Load, axes: Iterable[Axis]) -> bool:
    """Whether ``load`` stays inside its buffer wherever the axes are, whatever guards it."""
    box = {a.name: (0, a.extent - 1) for a in axes}
    for at, extent in zip(load.indices, load.buffer.shape, strict=True):
        form = affine_form(at)
        if form is None:
            return False
        low, high = box_bounds(form, box)
        if low < 0 or high >= extent:
            return False
    return True


def always_holds(condition: Expr, axes: Iterable[Axis]) -> bool:
    """Whether the box of the axes alone shows that ``condition`` holds everywhere."""
    return Region({a.name: (0, a.extent - 1) for a in axes}).where(condition, False).is_empty


@dataclass(frozen=True, slots=True)
class Held:
    """A read and the register buffer that holds it: the leading dimensions as its owner says, and then, where the read
    follows the lanes (``wide``), one of the lanes."""

    read: Read
    buffer: Buffer
    wide: bool

    def value(self, prefix: Sequence[Expr], lane: Expr) -> Load:
        """What was read, at one place of the leading dimensions."""
        return Load(self.buffer, (*prefix, lane) if self.wide else tuple(prefix))


def hold(w: Writer, names: Names, read: Read, shape: Sequence[int], lane_axis: str, lanes: int) -> Held:
    """Registers for ``read`` at every place of ``shape``, and in every lane if it follows ``lane_axis``."""
    wide = follows(read, lane_axis)
    name = names.fresh(f"{read.load.buffer.name}_held")
    dims = (*shape, lanes) if wide else tuple(shape)
    return Held(read, w.allocate(name, dims, read.load.dtype, MemoryScope.REGISTER), wide)


def follows(read: Read, axis: str) -> bool:
    """Whether what is read may differ along ``axis``."""
    free = free_variables(read.load)
    return axis in free or (read.guard is not None and axis in free_variables(read.guard))


def take(
    w: Writer, names: Names, held: Held, prefix: Sequence[Expr], at: Mapping[str, Expr], lane_axis: str, lanes: int
) -> None:
    """Write what fills ``held`` at the place ``prefix`` with the read at the point ``at``: in one vector from
    ``at[lane_axis]`` on if it is wide. Where its guard does not hold nothing is read."""
    read = held.read
    if not held.wide:
        _fill(w, held, tuple(prefix), at)
        return
    if read.guard is not None and lane_axis not in free_variables(read.guard):
        with w.loop(names.fresh("v"), lanes, LoopKind.VECTORIZED) as v:
            w.store(held.buffer, (*prefix, v), read.otherwise or const(0, read.load.dtype))
        with w.when(value_at(read.guard, at)), w.loop(names.fresh("v"), lanes, LoopKind.VECTORIZED) as v:
            here = {**at, lane_axis: at[lane_axis] + v}
            w.store(held.buffer, (*prefix, v), value_at(read.load, here))
        return
    with w.loop(names.fresh("v"), lanes, LoopKind.VECTORIZED) as v:
        _fill(w, held, (*prefix, v), {**at, lane_axis: at[lane_axis] + v})


def _fill(w: Writer, held: Held, place: tuple[Expr, ...], at: Mapping[str, Expr]) -> None:
    read = held.read
    if read.guard is None:
        w.store(held.buffer, place, value_at(read.load, at))
        return
    w.store(held.buffer, place, read.otherwise or const(0, read.load.dtype))
    with w.when(value_at(read.guard, at)):
        w.store(held.buffer, place, value_at(read.load, at))


def unneeded_guards_dropped(read: Read, axes: Sequence[Axis]) -> Read:
    """``read`` without a guard that only says which of two values is wanted, where it stays in bounds anyway."""
    if read.guard is None or (read.otherwise is None and not in_bounds(read.load, axes)):
        return read
    if read.otherwise is not None and not always_holds(read.guard, axes):
        return read
    return Read(read.load)
