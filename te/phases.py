"""Sums that read positions as quotients and remainders, such as transposed convolutions, with axes for both:

    total[y] = sum over t of X[(y + 1) // 2 - t] * W[(y + 1) % 2 + 2 * t]

    ->  phased[q, a] = sum over t of X[q - t] * W[a + 2 * t]
        total[y] = phased[(y + 1) // 2, (y + 1) % 2]

Each ``a`` is a *phase*, a convolution with some places of the kernel. Of the first and of the last quotient, ``total``
may lack some phases: ``phased`` may have more elements.

Heads that share keys are such positions, too, which some factors read as a whole:

    S[h, q, k] = sum over d of Q[h, q, d] * K[h // 4, k, d]

    ->  phased[g, r, q, k] = sum over d of Q[4 * g + r, q, d] * K[g, k, d]
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from ..core.dtypes import INDEX
from ..core.errors import InvalidWorkload
from ..ir.buffer import Buffer
from ..ir.expr import Binary, BinaryOp, Const, Expr, Load, Var, index, rebuild
from ..ir.linear_form import linear_form
from ..ir.rewrite import fresh_name, map_loads
from .check import check
from .congruences import with_congruent_terms
from .inline import inline_stages
from .workload import Axis, Stage, Workload


@lru_cache(maxsize=64)  # every sketch of convolutions asks it of a workload
def with_phases(workload: Workload, *, whole: bool = False) -> Workload | None:
    """``workload`` with such axes in its one reduction; None where that has no position to split, and where it is not
    the only one. Stages that do not reduce are inlined. ``whole``: whether the sum may also read such a position as a
    whole, and phases come first; otherwise it must read both parts, and a phase comes behind its quotient."""
    inlined = inline_stages(workload)
    inlined = replace(inlined, stages=tuple(map(with_congruent_terms, inlined.stages)))
    sums = [s for s in inlined.stages if s.reducer is not None]
    splits = _split_axes(sums[0], whole) if len(sums) == 1 and not workload.dynamic else {}
    if not splits:
        return None
    (total,) = sums
    taken = {b.name for b in workload.inputs}
    taken |= {n for s in inlined.stages for n in (s.name, *(a.name for a in (*s.axes, *s.reduce_axes)))}
    axes, first = list[Axis](), list[Axis]()
    for axis in total.axes:
        if (split := splits.get(axis.name)) is None:
            axes.append(axis)
            continue
        phase = Axis(fresh_name(f"{axis.name}_phase", taken), split.divisor)
        splits[axis.name] = replace(split, phase=phase.name)
        taken.add(phase.name)
        axes.append(Axis(axis.name, split.quotients))
        (first if whole else axes).append(phase)
    axes = [*first, *axes]
    tensor = Buffer(fresh_name(f"{total.name}_phased", taken), tuple(a.extent for a in axes), total.tensor.dtype)
    phased = replace(total, tensor=tensor, axes=tuple(axes), body=_on_axes(total.body, splits))

    def moved(load: Load) -> Load:
        if load.buffer.name != total.name:
            return load
        at = {a.name: i for i, a in zip(load.indices, total.axes, strict=True)}
        for name, split in splits.items():
            at[name], at[split.phase] = split.places(at[name])
        return Load(tensor, tuple(at[a.name] for a in axes))

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


def _split_axes(total: Stage, may_be_whole: bool) -> dict[str, _AxisParts]:
    """Return the axes that the sum reads in parts, and how."""
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
        if len(found.get(axis.name, ())) == 1 and (may_be_whole or axis.name in remainders - whole):
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
    if part is not None and part[0] in splits and isinstance(e, Binary):
        name, shift, divisor = part
        further = (shift - splits[name].shift) // divisor
        quotient = Var(name) + further if further else Var(name)
        return Var(splits[name].phase) if e.op is BinaryOp.MOD else quotient
    if isinstance(e, Var) and e.name in splits:
        split = splits[e.name]
        return e * split.divisor + (Var(split.phase) - split.shift)
    return rebuild(e, [_on_axes(child, splits) for child in e.children]) if e.children else e
