"""The mathematical functions of the IR: name -> how it is written for a scalar or vector of any number of lanes."""

from collections.abc import Callable

from ...core.errors import CompileError
from ...ir.expr import UnaryOp
from .values import Value
from .writer import FunctionWriter

MathFunction = Callable[[FunctionWriter, Value], Value]

MATH: dict[UnaryOp, MathFunction] = {}


def power(w: FunctionWriter, a: Value, b: Value) -> Value:
    raise CompileError("power is not defined")
