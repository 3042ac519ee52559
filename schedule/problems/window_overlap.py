"""Reductions over windows, and how windows move over an input: which of its positions neighbouring outputs share."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import INDEX, DType, float32
from ...ir.expr import Binary, BinaryOp, Cast, Compare, Expr, Load, index, walk
from ...ir.gpu.mma import WARP_MMA_ATOMS, MmaAtom
from ...ir.linear_form import LinearForm, affine_form
from ...ir.rewrite import free_variables
from ...te.functions import cast
from ...te.workload import Axis, Stage, Workload
from ..loop_nest.nest import COMBINE, identity
from ..tile.load_analysis import flat_offset
from ..tile.masked_loads import MaskedLoad, masked_loads_of, replace_masked_loads
from ..tile.stage_body import scalar_at

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
    def names(self) -> frozenset[str]:
        """The names of both axes."""
        return frozenset(a.name for a in (self.axis, self.window) if a is not None)

    @property
    def window_points(self) -> int:
        """How many points a window has along this axis."""
        return self.window.extent if self.window is not None else 1

    def positions(self, outputs: _Count) -> _Count:
        """Return how many positions of the input the windows of ``outputs`` neighbouring outputs span."""
        return (outputs - 1) * self.stride + (self.window_points - 1) * self.dilation + 1

    def at(self, first_output: Expr, position: Expr) -> dict[str, Expr]:
        """Return axis name -> index, for a point that reads ``position``, counted from the first position that the
        output ``first_output`` reads."""
        if self.window is None:
            return {self.axis.name: first_output + position}
        if self.stride == 1:
            return {self.axis.name: first_output + position, self.window.name: index(0)}
        return {self.axis.name: first_output, self.window.name: position}

    def consumers(self, outputs: int) -> dict[int, list[tuple[int, int]]]:
        """Return position -> those of ``outputs`` neighbouring outputs whose windows have it, each with the point of
        its window, in the order of the positions."""
        found: dict[int, list[tuple[int, int]]] = {}
        for output, point in product(range(outputs), range(self.window_points)):
            found.setdefault(output * self.stride + point * self.dilation, []).append((output, point))
        return dict(sorted(found.items()))

    def is_contiguous(self, load: Load) -> bool:
        """Return whether ``load`` reads neighbouring positions from neighbouring places in memory."""
        offset = flat_offset(load)
        if offset is None or offset.coefficient(self.axis.name) != self.stride:
            return False
        return self.window is None or offset.coefficient(self.window.name) == self.dilation


SINGLE = WindowAxis(Axis("single#", 1))
"""What stands for a height or a depth that outputs do not have. No axis of a workload has its name."""


@dataclass(frozen=True)
class WindowReduction:
    """A reduction over windows (XLA calls it a reduce-window) and what is computed from it.

    ``reduction`` is the stage that reduces each window. ``outputs`` are the stored stages, on the axes of the
    reduction. Their bodies load the reduction at their own point, and inputs. ``sliding_loads`` are the loads of the
    reduction that neighbouring outputs may share. ``width`` says how windows move along an axis of the outputs.
    """

    workload: Workload
    reduction: Stage
    outputs: tuple[Stage, ...]
    sliding_loads: tuple[MaskedLoad, ...]
    width: WindowAxis

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the outputs."""
        return self.reduction.axes

    @property
    def combine(self) -> BinaryOp:
        """How two points of a window are combined."""
        assert self.reduction.reducer is not None
        return COMBINE[self.reduction.reducer]

    @property
    def names(self) -> frozenset[str]:
        """The names of all tensors and axes."""
        tensors = (*self.workload.inputs, self.reduction.tensor, *(s.tensor for s in self.outputs))
        axes = (*self.reduction.axes, *self.reduction.reduce_axes)
        return frozenset(b.name for b in tensors) | {a.name for a in axes}

    @property
    def unit_axes(self) -> dict[str, Expr]:
        """The axes of the reduction of extent 1, and that of ``SINGLE``, at their only index."""
        return {a.name: index(0) for a in (SINGLE.axis, *self.reduction.reduce_axes) if a.extent == 1}

    @property
    def position_bytes(self) -> int:
        """Bytes of one position, of all inputs that windows move over together."""
        return sum(m.load.dtype.bytes for m in self.sliding_loads)

    def is_alike(self, *along: WindowAxis) -> bool:
        """Return whether what a position contributes does not depend on where the windows that have it stand."""
        neutral = {m: identity(self.combine, m.load.dtype) for m in self.sliding_loads}
        free = free_variables(replace_masked_loads(self.reduction.body, neutral))
        return all(free.isdisjoint(axis.names) for axis in along)

    def term(self, values: Mapping[MaskedLoad, Expr], at: Mapping[str, Expr], dtype: DType) -> Expr:
        """Return what is reduced at a point, as ``dtype``, from the ``values`` of loads."""
        return cast(scalar_at(replace_masked_loads(self.reduction.body, values), at), dtype)

    def output(self, stage: Stage, at: Mapping[str, Expr], reduced: Expr | Mapping[str, Expr]) -> Expr:
        """Return the value of an output at a point whose window gives ``reduced``: of several reductions, by name."""
        known = reduced if isinstance(reduced, Mapping) else {self.reduction.name: reduced}

        def value(load: Load) -> Expr:
            return cast(known[load.buffer.name], load.dtype) if load.buffer.name in known else load

        return scalar_at(stage.body, at, value)


@dataclass(frozen=True)
class WeightedWindow(WindowReduction, ABC):
    """A reduction over windows whose points may have weights. ``fixed_loads`` are the other loads of the reduction,
    such as those of filters. ``height`` says how windows move along the axis before the width, and is ``SINGLE`` where
    there is none."""

    fixed_loads: tuple[MaskedLoad, ...]
    height: WindowAxis

    @property
    @abstractmethod
    def moving(self) -> tuple[WindowAxis, ...]:
        """How windows move along each axis, the outermost one first."""

    @property
    def points(self) -> int:
        """How many points a window has along all axes that it moves along."""
        return prod(w.window_points for w in self.moving)

    @property
    def toeplitz_atom(self) -> MmaAtom | None:
        """The matrix instruction that multiplies rows of the input by Toeplitz matrices of the filter's rows; None
        where there is none. Windows are sums of products of one element of the input and of the filter, of 16-bit
        floats as float32, and move by one position."""
        if self.combine is not BinaryOp.ADD or any(w.stride != 1 for w in self.moving):
            return None
        if len(self.sliding_loads) != 1 or len(self.fixed_loads) != 1 or self.reduction.tensor.dtype != float32:
            return None
        (pixels,), (filters,) = self.sliding_loads, self.fixed_loads
        dtype = pixels.load.dtype
        if _factors_of(self.reduction.body) not in ([pixels, filters], [filters, pixels]) or filters.mask is not None:
            return None
        atoms = (a for a in WARP_MMA_ATOMS.values() if a.operand == dtype == filters.load.dtype and dtype.bits == 16)
        return next(atoms, None)

    def reduce_axes_of(self, masked: MaskedLoad) -> tuple[Axis, ...]:
        """Return the axes of the reduction, longer than 1, that a load depends on."""
        return tuple(a for a in self.reduction.reduce_axes if a.name in masked.variables and a.extent > 1)


def _factors_of(body: Expr) -> list[MaskedLoad]:
    """Return the loads of what ``body`` multiplies as float32; none where it is anything else."""
    match body:
        case Binary(op=BinaryOp.MUL, a=Cast(value=a, type=left), b=Cast(value=b, type=right)) if (
            left == right == float32
        ):
            return [*masked_loads_of(a, bordered=True), *masked_loads_of(b, bordered=True)]
    return []


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
