"""Writes the mathematical functions of the IR. Each becomes an internal function of the module, once for every vector
width.

LLVM inlines them, so that they cost nothing and the source stays readable.
"""

from collections.abc import Callable

from ...ir.expr import UnaryOp
from .error_function import erf
from .exponential import exp, exp2
from .hyperbolic import tanh
from .logarithm import log
from .powers import power, small_exponent
from .trigonometric import cos, sin
from .values import LlvmValue
from .writer import FunctionWriter

MATH: dict[UnaryOp, Callable[[FunctionWriter, LlvmValue], LlvmValue]] = {
    UnaryOp.EXP: exp,
    UnaryOp.EXP2: exp2,
    UnaryOp.LOG: log,
    UnaryOp.TANH: tanh,
    UnaryOp.ERF: erf,
    UnaryOp.SIN: sin,
    UnaryOp.COS: cos,
}
"""This maps each function to how it is computed, for a scalar or vector of float or double, without fast-math flags."""


def call_math(w: FunctionWriter, op: UnaryOp, x: LlvmValue) -> LlvmValue:
    """Call ``@tw.op.vNfM`` for ``op(x)``; the first call writes that function."""
    return _call(w, op.value, (x,), lambda inner, arguments: MATH[op](inner, arguments[0]))


def call_power(w: FunctionWriter, x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """Write ``x`` to the power ``y``."""
    product = small_exponent(w, x, y)
    if product is not None:
        return product
    return _call(w, "pow", (x, y), lambda inner, arguments: power(inner, *arguments))


def _call(
    w: FunctionWriter,
    name: str,
    arguments: tuple[LlvmValue, ...],
    write: Callable[[FunctionWriter, tuple[LlvmValue, ...]], LlvmValue],
) -> LlvmValue:
    first = arguments[0]
    function = f"tw.{name}.{first.suffix}"
    if not w.module.defines(function):
        w.module.reserve(function)
        inner = FunctionWriter(w.module)
        parameters = tuple(inner.parameter(n, a.element, a.lanes) for n, a in zip("xy", arguments, strict=False))
        inner.line(f"ret {write(inner, parameters).typed}")
        signature = f"internal {first.type} @{function}({', '.join(p.typed for p in parameters)})"
        w.module.define(function, inner.text(f"{signature} alwaysinline {w.module.attributes}"))
    return w.call(function, arguments, first.element, first.lanes, hint=name)
