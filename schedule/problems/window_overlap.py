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
from ..tile.masked_loads import MaskedLoad

_Count = TypeVar("_Count", int, NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """An axis of the outputs along which a window moves, and the axis of the reduction that runs over the window.

    Output ``p`` at point ``s`` of its window reads position ``stride*p + dilation*s`` of the input, in units of the
    common divisor of both. One of ``stride`` and ``dilation`` is 1. ``window`` is None where no axis of the reduction
    moves along ``axis``: then an output reads one position.
    """

    axis: Axis
    window: Axis | None = None
    stride: int = 1
    dilation: int = 1

    @property
    def window_points(self) -> int:
        """How many points a window has along this axis."""
        return self.window.extent if self.window is not None else 1

    def positions(self, outputs: _Count) -> _Count:
        """Return how many positions of the input the windows of ``outputs`` neighbouring outputs span."""
        return (outputs - 1) * self.stride + (self.window_points - 1) * self.dilation + 1

    def at(self, first_output: Expr, position: Expr) -> dict[str, Expr]:
        """Axis name -> index, for a point that reads ``position``, counted from the first position that the output
        ``first_output`` reads."""
        if self.window is None:
            return {self.axis.name: first_output + position}
        if self.stride == 1:
            return {self.axis.name: first_output + position, self.window.name: index(0)}
        return {self.axis.name: first_output, self.window.name: position}


def address_forms(loads: Iterable[MaskedLoad]) -> list[LinearForm] | None:
    """Return every affine form that the indices and masks of ``loads`` address or compare by; None where one is not
    affine."""
    found: list[LinearForm] = []
    for masked in loads:
        forms = _forms_of(masked)
        if forms is None:
            return None
        found.extend(forms)
    return found


def _forms_of(masked: MaskedLoad) -> list[LinearForm] | None:
    found = [affine_form(i) for i in masked.load.indices]
    for e in walk(masked.mask) if masked.mask is not None else ():
        if isinstance(e, Compare):
            a, b = affine_form(e.a), affine_form(e.b)
            found.append(None if a is None or b is None else a - b)
        elif isinstance(e, (Load, Binary)) and e.dtype != INDEX:
            return None
    return None if None in found else [f for f in found if f is not None]


def window_axis(axis: Axis, reduce_axes: Sequence[Axis], forms: Sequence[LinearForm]) -> WindowAxis | None:
    """Return how windows move along ``axis``. None where the address ``forms`` depend on it together with several axes
    of the reduction, or with one of them by more than one ratio of stride to dilation."""
    partners = {a.name: a for f in forms if f.coefficient(axis.name) for a in reduce_axes if f.coefficient(a.name)}
    if not partners:
        return WindowAxis(axis)
    if len(partners) > 1:
        return None
    window = next(iter(partners.values()))
    pairs = {(f.coefficient(axis.name), f.coefficient(window.name)) for f in forms} - {(0, 0)}
    ratios = {(a // gcd(a, b), b // gcd(a, b)) if a > 0 else (-a // gcd(a, b), -b // gcd(a, b)) for a, b in pairs}
    if len(ratios) != 1:
        return None
    stride, dilation = next(iter(ratios))
    return WindowAxis(axis, window, stride, dilation) if min(stride, dilation) == 1 else None
