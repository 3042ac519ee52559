"""Functions of one number, by name: steps of an elementwise chain, and activations."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.expr import Expr
from .. import build as te
from ..erf import erf

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Map:
    """``expr`` and ``numpy`` are the same function; ``numpy`` may overwrite its argument. ``uses``: how often
    ``expr`` uses its operand (more than once: the operand is worth a tensor). ``floats``: only for floats."""

    expr: Callable[[Expr], Expr]
    numpy: Callable[[Array], Array]
    uses: int = 1
    floats: bool = True


def _gelu_tanh(x: Expr) -> Expr:
    # (1 + tanh(u)) / 2 is sigmoid(2 u): that does not cancel where tanh comes near -1, and costs less
    return x * te.sigmoid((x + x * x * x * 0.044715) * math.sqrt(8.0 / math.pi))


def _gelu_tanh_numpy(x: Array) -> Array:
    y = x * x
    y *= x
    y *= 0.044715
    y += x
    y *= math.sqrt(8.0 / math.pi)
    y = _sigmoid_numpy(y)
    y *= x
    return y


def _gelu_erf(x: Expr) -> Expr:
    return x * 0.5 * (te.erf(x * math.sqrt(0.5)) + 1.0)


def _gelu_erf_numpy(x: Array) -> Array:
    y = erf(x.astype(np.float64) * math.sqrt(0.5)).astype(x.dtype)
    y += 1.0
    y *= x
    y *= 0.5
    return y


def _sigmoid_numpy(x: Array) -> Array:
    np.negative(x, out=x)
    np.exp(x, out=x)
    x += 1.0
    return np.divide(1.0, x, out=x)


def _silu_numpy(x: Array) -> Array:
    return x * _sigmoid_numpy(x.copy())


def _in_place(function: Callable[..., Any], *operands: float) -> Callable[[Array], Array]:
    def apply(x: Array) -> Array:
        result: Array = function(x, *operands, out=x)
        return result

    return apply


def _rsqrt_numpy(x: Array) -> Array:
    np.sqrt(x, out=x)
    return np.divide(1.0, x, out=x)


MAPS: dict[str, Map] = {
    "relu": Map(lambda x: te.maximum(x, 0), _in_place(np.maximum, 0), floats=False),
    "add1": Map(lambda x: x + 1, _in_place(np.add, 1), floats=False),
    "sub1": Map(lambda x: x - 1, _in_place(np.subtract, 1), floats=False),
    "mul2": Map(lambda x: x * 2, _in_place(np.multiply, 2), floats=False),
    "negative": Map(lambda x: -x, _in_place(np.negative), floats=False),
    "absolute": Map(te.absolute, _in_place(np.absolute), floats=False),
    "square": Map(lambda x: x * x, lambda x: np.multiply(x, x, out=x), uses=2, floats=False),
    "half": Map(lambda x: x * 0.5, _in_place(np.multiply, 0.5)),
    "exp": Map(te.exp, _in_place(np.exp)),
    "log": Map(te.log, _in_place(np.log)),
    "sqrt": Map(te.sqrt, _in_place(np.sqrt)),
    "rsqrt": Map(te.rsqrt, _rsqrt_numpy),
    "sin": Map(te.sin, _in_place(np.sin)),
    "cos": Map(te.cos, _in_place(np.cos)),
    "tanh": Map(te.tanh, _in_place(np.tanh)),
    "erf": Map(te.erf, lambda x: erf(x.astype(np.float64)).astype(x.dtype)),
    "floor": Map(te.floor, _in_place(np.floor)),
    "ceil": Map(te.ceil, _in_place(np.ceil)),
    "sigmoid": Map(te.sigmoid, _sigmoid_numpy),
    "silu": Map(lambda x: x * te.sigmoid(x), _silu_numpy, uses=2),
    "gelu_tanh": Map(_gelu_tanh, _gelu_tanh_numpy, uses=5),
    "gelu_erf": Map(_gelu_erf, _gelu_erf_numpy, uses=2),
}

ACTIVATIONS = ("none", "relu", "tanh", "sigmoid", "silu", "gelu_tanh", "gelu_erf")
