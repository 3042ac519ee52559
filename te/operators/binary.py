"""A function of two tensors, element by element, with NumPy's broadcasting."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import DTYPES
from ...core.errors import InvalidParameter
from ...ir.expr import Expr
from ..build import Tensor, cast, compute, maximum, minimum, placeholder, workload
from ..workload import Workload
from .maps import ACTIVATIONS, MAPS
from .operator import Operator, accumulator
from .parameter import NUMBERS, Choice, Integer, ListOf, Parameter, Values, dtype_parameter


@dataclass(frozen=True, slots=True)
class _BinaryFunction:
    """``expr`` and ``numpy`` are the same function. ``floats``: only for floats."""

    expr: Callable[[Expr, Expr], Expr]
    numpy: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
    floats: bool = False


_FUNCTIONS: dict[str, _BinaryFunction] = {
    "add": _BinaryFunction(lambda a, b: a + b, np.add),
    "sub": _BinaryFunction(lambda a, b: a - b, np.subtract),
    "mul": _BinaryFunction(lambda a, b: a * b, np.multiply),
    "div": _BinaryFunction(lambda a, b: a / b, np.divide, floats=True),
    "max": _BinaryFunction(maximum, np.maximum),
    "min": _BinaryFunction(minimum, np.minimum),
}


def _shape(v: Values) -> tuple[int, ...]:
    """Return the shape of Y. Raises InvalidParameter where A and B do not go together."""
    a, b = v.integers("shape"), v.integers("other")
    try:
        return np.broadcast_shapes(a, b)
    except ValueError as error:
        raise InvalidParameter(
            f"other is {list(b)}; allowed beside shape {list(a)}: extents that, counted from the last, are equal or 1",
            field="other",
        ) from error


def _check(v: Values) -> None:
    """Raises InvalidParameter for a function of floats on integers."""
    function, activation = v.text("function"), v.text("activation")
    if DTYPES[v.text("dtype")].is_float:
        return
    if _FUNCTIONS[function].floats:
        allowed = ", ".join(n for n, f in _FUNCTIONS.items() if not f.floats)
        raise InvalidParameter(
            f"function is {function}, which does not take {v.text('dtype')}; allowed: {allowed}", field="function"
        )
    if activation != "none" and MAPS[activation].floats:
        allowed = ", ".join(a for a in ACTIVATIONS if a == "none" or not MAPS[a].floats)
        raise InvalidParameter(
            f"activation is {activation}, which does not take {v.text('dtype')}; allowed: {allowed}", field="activation"
        )


def _build(v: Values) -> Workload:
    _check(v)
    shape, dtype, activation = _shape(v), DTYPES[v.text("dtype")], v.text("activation")
    wide = accumulator(dtype) if dtype.is_float else dtype
    a, b = placeholder(v.integers("shape"), dtype, "A"), placeholder(v.integers("other"), dtype, "B")

    def value(*at: Expr) -> Expr:
        return _FUNCTIONS[v.text("function")].expr(cast(_element(a, at), wide), cast(_element(b, at), wide))

    combined = value
    if activation != "none" and MAPS[activation].uses > 1:
        stored = compute(shape, value, "combined")  # used several times: worth a tensor

        def combined(*at: Expr) -> Expr:
            return stored[at]

    def body(*at: Expr) -> Expr:
        e = combined(*at)
        return cast(e if activation == "none" else MAPS[activation].expr(e), dtype)

    return workload(compute(shape, body, "Y"), inputs=[a, b])


def _element(x: Tensor, at: Sequence[Expr]) -> Expr:
    own = at[len(at) - x.rank :]
    return x[tuple(0 if extent == 1 else i for i, extent in zip(own, x.shape, strict=True))]


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    dtype, activation = DTYPES[v.text("dtype")], v.text("activation")
    wide = accumulator(dtype) if dtype.is_float else dtype
    a, b = (inputs[name].astype(wide.numpy, copy=False) for name in ("A", "B"))
    y = _FUNCTIONS[v.text("function")].numpy(a, b)
    if activation != "none":
        y = MAPS[activation].numpy(y)
    return (np.asarray(y).astype(dtype.numpy, copy=False),)


BINARY = Operator(
    name="binary",
    summary="Y = activation(function(A, B)), element by element; dimensions of extent 1, and leading ones that are "
    "missing, are repeated as NumPy does; integers wrap in their own dtype",
    parameters=(
        Parameter("shape", "extents of A", ListOf(Integer())),
        Parameter("other", "extents of B", ListOf(Integer())),
        Parameter("function", "what is done with two elements", Choice(tuple(_FUNCTIONS)), "add"),
        dtype_parameter(*NUMBERS),
        Parameter("activation", "what is applied last", Choice(ACTIVATIONS), "none"),
    ),
    examples=(
        {"shape": [5, 37], "other": [5, 37]},
        {"shape": [3, 1, 7], "other": [2, 7], "function": "mul", "activation": "relu"},
        {"shape": [1], "other": [17], "function": "sub"},
        {"shape": [13, 5], "other": [13, 1], "function": "max"},
        {"shape": [11], "other": [3, 11], "function": "min"},
        {"shape": [7, 19], "other": [19], "function": "div", "activation": "silu", "dtype": "float32"},
        {"shape": [61], "other": [1], "function": "div", "dtype": "float16"},
    ),
    build=_build,
    baseline=_numpy,
)
