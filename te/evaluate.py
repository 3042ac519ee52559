"""Scalar expressions over whole boxes of their axes, as NumPy arrays.

Floats are float64 whatever their dtype: only constants and casts round to it, since a kernel may keep the rest wider.
Integers and bools are in their own dtype, so that they wrap as in a kernel.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ..core.dtypes import DType
from ..core.errors import InvalidWorkload
from ..ir.expr import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Logic,
    LogicOp,
    Select,
    Unary,
    UnaryOp,
    Var,
)
from ..ir.fold import BIT_OPERATIONS
from ..ir.linear_form import LinearForm, affine_form
from .erf import erf
from .places import moved_place, place_of
from .region import box_bounds

Array: TypeAlias = NDArray[Any]

BINARY: dict[BinaryOp, Callable[[Array, Array], Array]] = {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.DIV: np.true_divide,
    BinaryOp.FLOORDIV: np.floor_divide,
    BinaryOp.MOD: np.mod,
    BinaryOp.MIN: np.minimum,
    BinaryOp.MAX: np.maximum,
    BinaryOp.POW: np.power,
    **BIT_OPERATIONS,
}

COMPARE: dict[CompareOp, Callable[[Array, Array], Array]] = {
    CompareOp.LT: np.less,
    CompareOp.LE: np.less_equal,
    CompareOp.GT: np.greater,
    CompareOp.GE: np.greater_equal,
    CompareOp.EQ: np.equal,
    CompareOp.NE: np.not_equal,
}

LOGIC: dict[LogicOp, Callable[[Array, Array], Array]] = {LogicOp.AND: np.logical_and, LogicOp.OR: np.logical_or}


def _rsqrt(x: Array) -> Array:
    return np.asarray(1.0 / np.sqrt(x))


UNARY: dict[UnaryOp, Callable[[Array], Array]] = {
    UnaryOp.NEG: np.negative,
    UnaryOp.ABS: np.absolute,
    UnaryOp.NOT: np.logical_not,
    UnaryOp.EXP: np.exp,
    UnaryOp.EXP2: np.exp2,
    UnaryOp.LOG: np.log,
    UnaryOp.TANH: np.tanh,
    UnaryOp.ERF: erf,
    UnaryOp.SQRT: np.sqrt,
    UnaryOp.RSQRT: _rsqrt,
    UnaryOp.SIN: np.sin,
    UnaryOp.COS: np.cos,
    UnaryOp.FLOOR: np.floor,
    UnaryOp.CEIL: np.ceil,
    UnaryOp.RINT: np.rint,
}


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Evaluates expressions where each axis runs over ``ranges[axis] = (start, stop)``.

    ``tensors``: C-contiguous arrays by name (floats of any width). Of one in ``origins`` the array has a part, which
    begins there. A result has one dimension per axis, in the order of ``ranges``, of length 1 where the expression does
    not depend on the axis. Use inside ``np.errstate``.
    """

    tensors: Mapping[str, Array]
    ranges: Mapping[str, tuple[int, int]]
    origins: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __call__(self, e: Expr) -> Array:
        match e:
            case Load():
                return self._load(e)
            case Const():
                return self._const(e)
            case Var(name=name):
                return self._axis(name)
            case Binary(op=op, a=a, b=b):
                return BINARY[op](self(a), self(b))
            case Unary(op=unary, value=value):
                return UNARY[unary](self(value))
            case Compare(op=compare, a=a, b=b):
                return COMPARE[compare](self(a), self(b))
            case Logic(op=logic, a=a, b=b):
                return LOGIC[logic](self(a), self(b))
            case Select(condition=condition, then=then, otherwise=otherwise):
                return np.where(self(condition), self(then), self(otherwise))
            case Cast(value=value, type=dtype):
                return cast_array(self(value), value.dtype, dtype)
        raise InvalidWorkload(f"{type(e).__name__} has no place in a tensor expression")

    def _const(self, e: Const) -> Array:
        value = np.full((1,) * len(self.ranges), e.value, dtype=np.float64 if e.dtype.is_float else e.dtype.numpy)
        return rounded(value, e.dtype) if e.dtype.is_float else value

    def _axis(self, name: str) -> Array:
        shape = [1] * len(self.ranges)
        start, stop = self.ranges[name]
        shape[list(self.ranges).index(name)] = stop - start
        return np.arange(start, stop, dtype=np.int64).reshape(shape)

    def _load(self, e: Load) -> Array:
        array = self.tensors[e.buffer.name]
        origin = self.origins.get(e.buffer.name, (0,) * array.ndim)
        forms = [
            (form, start) for i, start in zip(e.indices, origin, strict=True) if (form := affine_form(i)) is not None
        ]
        indices = [form + (-start) for form, start in forms]
        box = {n: (start, stop - 1) for n, (start, stop) in self.ranges.items()}
        bounds = [box_bounds(i, box) for i in indices]
        inside = len(indices) == len(e.indices) and all(
            0 <= low and high < n for (low, high), n in zip(bounds, array.shape, strict=True)
        )
        if inside:
            result = self._view(array, indices)
        else:
            found = self._read_places(array, e, origin)
            result = self._gathered(array, e, origin) if found is None else self._view(*found)
        return result.astype(np.float64, copy=False) if e.dtype.is_float else result

    def _view(self, array: Array, indices: list[LinearForm]) -> Array:
        """Return an affine read inside the array as a view of it, whatever the coefficients are: no element moves."""
        flat = LinearForm({})
        for i, stride in zip(indices, array.strides, strict=True):
            flat = flat.plus(i, stride // array.itemsize)
        offset = flat.at({n: start for n, (start, _) in self.ranges.items()})
        shape = [stop - start if flat.coefficient(n) else 1 for n, (start, stop) in self.ranges.items()]
        strides = [flat.coefficient(n) * array.itemsize for n in self.ranges]
        if array.itemsize == 1:  # NumPy has no such views of floats of 8 bits
            raw = as_strided(array.reshape(-1)[offset:].view(np.uint8), shape, strides, writeable=False)
            return raw.view(array.dtype)
        return as_strided(array.reshape(-1)[offset:], shape, strides, writeable=False)

    def _read_places(self, array: Array, e: Load, origin: tuple[int, ...]) -> tuple[Array, list[LinearForm]] | None:
        """Return what a load reads along each dimension by itself, and where of that it reads: the border of an image
        is repeated once for all windows. None where an index is no function of one sum of axes, or where sums, each for
        itself or together, have more values than there are points."""
        box = {n: (start, stop - 1) for n, (start, stop) in self.ranges.items()}
        at, read = list[LinearForm](), list[Array]()
        for i, start, extent in zip(e.indices, origin, array.shape, strict=True):
            place = LinearForm({}) if isinstance(i, Const) else place_of(i)
            if place is None:
                return None
            low, high = box_bounds(place, box)
            if high - low >= prod(stop - start for n, (start, stop) in self.ranges.items() if n in place.variables):
                return None
            moved = Evaluator({}, {"place": (low, high + 1)})(moved_place(i, place, LinearForm({Var("place"): 1})))
            at.append(place + -low)
            read.append(np.clip(np.broadcast_to(moved, high - low + 1) - start, 0, extent - 1))
        if prod(map(len, read)) > prod(stop - start for start, stop in self.ranges.values()):
            return None
        array = array[tuple(slice(places.min(), places.max() + 1) for places in read)]
        for d, places in enumerate(read):
            from_first = places - places.min()
            if not np.array_equal(from_first, np.arange(array.shape[d])):
                array = np.take(array, from_first, axis=d)
        return np.ascontiguousarray(array), at

    def _gathered(self, array: Array, e: Load, origin: tuple[int, ...]) -> Array:
        """Return the elements one by one. Indices outside the array are moved inside, since a select drops what is read
        there."""
        flat: Array = np.zeros((1,) * len(self.ranges), dtype=np.int64)
        for i, start, extent, stride in zip(e.indices, origin, array.shape, array.strides, strict=True):
            flat = flat + np.clip(self(i) - start, 0, extent - 1) * (stride // array.itemsize)
        return np.asarray(array.reshape(-1)[flat])


def rounded(value: Array, dtype: DType) -> Array:
    """Return the float64 ``value`` rounded to ``dtype`` (to nearest, ties to even). The result is float64 still."""
    return value if dtype.bits == 64 else value.astype(dtype.numpy).astype(np.float64)


def cast_array(value: Array, given: DType, wanted: DType) -> Array:
    """``value``, which has dtype ``given``, after a cast by the rules of ``ir.expr.Cast``."""
    if wanted.is_bool:
        return np.asarray(value != 0)
    if wanted.is_float:
        exact = wanted.name == "float64" or (wanted.name == "float32" and given.bits < 32)
        wide = value.astype(np.float64, copy=False)
        return wide if exact else rounded(wide, wanted)
    if not given.is_float:
        return value.astype(wanted.numpy)
    low, high = wanted.integer_range
    whole = np.trunc(np.where(np.isnan(value), 0.0, value))
    inside = (whole >= float(low)) & (whole < float(high + 1))
    result = np.where(inside, whole, 0.0).astype(wanted.numpy)
    beyond = np.where(whole > 0, np.array(high, wanted.numpy), np.array(low, wanted.numpy))
    return np.where(inside, result, beyond)
