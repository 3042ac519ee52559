"""Sums that read positions as quotients and remainders, such as transposed convolutions, with axes for both:

    total[y] = sum over t of X[(y + 1) // 2 - t] * W[(y + 1) % 2 + 2 * t]

    ->  phased[q, a] = sum over t of X[q - t] * W[a + 2 * t]
        total[y] = phased[(y + 1) // 2, (y + 1) % 2]

Each ``a`` is a *phase*, a convolution with some places of the kernel. Of the first and of the last quotient, ``total``
may lack some phases: ``phased`` may have more elements.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from ..core.dtypes import INDEX
from ..core.errors import InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Binary, BinaryOp, Const, Expr, Load, Var, index
from ..ir.linear_form import linear_form
from ..ir.rewrite import fresh_name, map_expr, map_loads
from .check import check
from .inline import inline_stages
from .workload import Axis, Stage, Workload


@lru_cache(maxsize=64)  # every sketch of convolutions asks it of a workload
def with_phases(workload: Workload) -> Workload | None:
    """``workload`` with such axes in its one reduction; None where that has no position to split, and where it is not
    the only one. Stages that do not reduce are inlined."""
    inlined = inline_stages(workload)
    sums = [s for s in inlined.stages if s.reducer is not None]
    splits = _split_axes(sums[0]) if len(sums) == 1 and not workload.dynamic else {}
    if not splits:
        return None
    (total,) = sums
    taken = {b.name for b in workload.inputs}
    taken |= {n for s in inlined.stages for n in (s.name, *(a.name for a in (*s.axes, *s.reduce_axes)))}
    axes = list[Axis]()
    for axis in total.axes:
        axes.append(axis)
        if (split := splits.get(axis.name)) is not None:
            axes[-1] = Axis(axis.name, split.quotients)
            axes.append(Axis(fresh_name(f"{axis.name}_phase", taken), split.divisor))
            splits[axis.name] = replace(split, phase=axes[-1].name)
            taken.add(axes[-1].name)
    tensor = Buffer(fresh_name(f"{total.name}_phased", taken), tuple(a.extent for a in axes), total.tensor.dtype)
    body = map_expr(total.body, lambda e: _on_axes(e, splits))
    phased = replace(total, tensor=tensor, axes=tuple(axes), body=body)

    def moved(load: Load) -> Load:
        if load.buffer.name != total.name:
            return load
        indices = list[Expr]()
        for i, axis in zip(load.indices, total.axes, strict=True):
            split = splits.get(axis.name)
            indices += [i] if split is None else split.places(i)
        return Load(tensor, tuple(indices))

    stages = list[Stage]()
    for stage in inlined.stages:
        stages.append(phased if stage is total else replace(stage, body=map_loads(stage.body, moved)))
        if stage is total and total.name in inlined.outputs:
            own = tuple(replace(a, name=fresh_name(f"{a.name}_out", taken)) for a in total.axes)
            taken |= {a.name for a in own}
            stages.append(Stage(total.tensor, own, moved(Load(total.tensor, tuple(Var(a.name) for a in own)))))
    try:
        return check(replace(inlined, stages=tuple(stages)))
    except InvalidWorkload:  # the sum has too many dimensions
        return None


@dataclass(frozen=True, slots=True)
class _AxisParts:
    """How an axis of ``extent`` is read: by quotients and remainders of it, ``shift`` further, and ``divisor``. The
    axis of the quotient keeps the name of the whole one, and ``phase`` is that of the remainder."""

    extent: int
    shift: int
    divisor: int
    phase: str = ""

    @property
    def quotients(self) -> int:
        return -(-(self.extent + self.shift) // self.divisor)

    def places(self, i: Expr) -> tuple[Expr, Expr]:
        """Return the quotient and the remainder of ``i``."""
        at = i + self.shift if self.shift else i
        return Binary(BinaryOp.FLOORDIV, at, index(self.divisor)), Binary(BinaryOp.MOD, at, index(self.divisor))


def _split_axes(total: Stage) -> dict[str, _AxisParts]:
    """Return the axes that the sum reads in both parts and in no other way."""
    found, whole, remainders = dict[str, set[tuple[int, int]]](), set[str](), set[str]()
    for e in _atoms(total.body):
        if isinstance(e, Var):
            whole.add(e.name)
        elif (part := _part_of(e)) is not None:
            name, shift, divisor = part
            found.setdefault(name, set()).add((shift % divisor, divisor))
            remainders |= {name} if isinstance(e, Binary) and e.op is BinaryOp.MOD else set()
    splits = dict[str, _AxisParts]()
    for axis in total.axes:
        if axis.name in remainders - whole and len(found[axis.name]) == 1:
            ((shift, divisor),) = found[axis.name]
            splits[axis.name] = _AxisParts(axis.extent, shift, divisor)
    return splits


def _atoms(e: Expr) -> Iterator[Expr]:
    """Yield the variables of an expression, and the quotients and remainders of single ones."""
    if isinstance(e, Var) or _part_of(e) is not None:
        yield e
    else:
        for child in e.children:
            yield from _atoms(child)


def _part_of(e: Expr) -> tuple[str, int, int] | None:
    """Return (axis, shift, divisor) of ``(axis + shift) // divisor`` and of the remainder; None of anything else."""
    match e:
        case Binary(op=BinaryOp.FLOORDIV | BinaryOp.MOD, a=a, b=Const(value=divisor)) if e.dtype == INDEX:
            form = linear_form(a)
            names = form.variables
            if len(form.terms) == len(names) == 1 and form.coefficient(names[0]) == 1 and divisor > 1:
                return names[0], form.constant, int(divisor)
    return None


def _on_axes(e: Expr, splits: Mapping[str, _AxisParts]) -> Expr:
    """``e`` on the axes of quotients and remainders."""
    part = _part_of(e)
    split = None if part is None else splits.get(part[0])
    if part is None or split is None:
        return e
    assert isinstance(e, Binary)
    name, shift, divisor = part
    return Var(split.phase) if e.op is BinaryOp.MOD else Var(name) + (shift - split.shift) // divisor
