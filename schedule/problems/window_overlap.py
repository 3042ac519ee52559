"""How windows move over an input: which of its positions neighbouring outputs share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import INDEX
from ...ir.expr import Binary, Compare, Expr, Load, index, walk
from ...ir.linear_form import LinearForm, affine_form
from ...te.workload import Axis
from ..tile.stage_body import Read

_Whole = TypeVar("_Whole", int, NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class Slide:
    """An axis of the outputs along which windows overlap: output ``p`` at point ``s`` of the window needs position
    ``stride*p + dilation*s`` of the input, in steps of it (``window`` is None where no axis of the reduction belongs to
    it). One of stride and dilation is 1."""

    axis: Axis
    window: Axis | None = None
    stride: int = 1
    dilation: int = 1

    @property
    def points(self) -> int:
        return self.window.extent if self.window is not None else 1

    def positions(self, run: _Whole) -> _Whole:
        """How many positions ``run`` neighbouring outputs span."""
        return (run - 1) * self.stride + (self.points - 1) * self.dilation + 1

    def at(self, start: Expr, position: Expr) -> dict[str, Expr]:
        """The axes at a point that reads ``position``, counted from the first one of output ``start``."""
        if self.window is None:
            return {self.axis.name: start + position}
        if self.stride == 1:
            return {self.axis.name: start + position, self.window.name: index(0)}
        return {self.axis.name: start, self.window.name: position}


def forms_of(reads: Iterable[Read]) -> list[LinearForm] | None:
    """All that the indices and guards of ``reads`` address and compare by; None where something is not affine."""
    found: list[LinearForm] = []
    for read in reads:
        forms = _forms_of(read)
        if forms is None:
            return None
        found.extend(forms)
    return found


def _forms_of(read: Read) -> list[LinearForm] | None:
    found = [affine_form(i) for i in read.load.indices]
    for e in walk(read.guard) if read.guard is not None else ():
        if isinstance(e, Compare):
            a, b = affine_form(e.a), affine_form(e.b)
            found.append(None if a is None or b is None else a - b)
        elif isinstance(e, (Load, Binary)) and e.dtype != INDEX:
            return None
    return None if None in found else [f for f in found if f is not None]


def slide_of(axis: Axis, reductions: Sequence[Axis], forms: Sequence[LinearForm]) -> Slide | None:
    """How windows move along ``axis``; None where the forms do not depend on it and one axis of the reduction by their
    positions alone."""
    partners = {a.name: a for f in forms if f.coefficient(axis.name) for a in reductions if f.coefficient(a.name)}
    if not partners:
        return Slide(axis)
    if len(partners) > 1:
        return None
    window = next(iter(partners.values()))
    pairs = {(f.coefficient(axis.name), f.coefficient(window.name)) for f in forms} - {(0, 0)}
    ratios = {(a // gcd(a, b), b // gcd(a, b)) if a > 0 else (-a // gcd(a, b), -b // gcd(a, b)) for a, b in pairs}
    if len(ratios) != 1:
        return None
    stride, dilation = next(iter(ratios))
    return Slide(axis, window, stride, dilation) if min(stride, dilation) == 1 else None
