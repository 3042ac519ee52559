"""A chain of functions applied to every element."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ...core.dtypes import DTYPES
from ...core.errors import InvalidParameter
from ...ir.expr import Expr, Load
from ..build import Tensor, cast, compute, placeholder, workload
from ..workload import Workload
from .maps import MAPS
from .operator import Operator, accumulator
from .parameter import NUMBERS, Choice, Integer, ListOf, Parameter, Values, dtype_parameter


def _build(v: Values) -> Workload:
    shape, dtype, names = v.integers("shape"), v.text("dtype"), v.texts("functions")
    for name in names:
        if MAPS[name].floats and not DTYPES[dtype].is_float:
            raise InvalidParameter(
                f"functions has {name}, which does not take {dtype}; allowed for {dtype}: "
                + ", ".join(n for n, m in MAPS.items() if not m.floats),
                field="functions",
            )
    wide = accumulator(dtype) if DTYPES[dtype].is_float else DTYPES[dtype]
    x = placeholder(shape, dtype, "X")
    todo = list(names)
    current: Tensor = x
    step = 0
    while todo:  # one stage takes as many steps as it can before one that uses its operand more than once
        taken = [todo.pop(0)]
        while todo and MAPS[todo[0]].uses == 1:
            taken.append(todo.pop(0))
        last = not todo
        current = _stage(current, taken, dtype if last else wide.name, "Y" if last else f"step{step}")
        step += 1
    return workload(current)


def _stage(source: Tensor, names: list[str], dtype: str, name: str) -> Tensor:
    wide = accumulator(source.dtype) if source.dtype.is_float else source.dtype

    def body(*at: Expr) -> Expr:
        loaded: Load = source[at]
        e: Expr = cast(loaded, wide)
        for step in names:
            e = MAPS[step].expr(e)
        return cast(e, dtype)

    return compute(source.shape, body, name)


def _numpy(v: Values, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    dtype = DTYPES[v.text("dtype")]
    wide = accumulator(dtype) if dtype.is_float else dtype
    y = inputs["X"].astype(wide.numpy)
    for name in v.texts("functions"):
        y = MAPS[name].numpy(y)
    return (y.astype(dtype.numpy, copy=False),)


ELEMENTWISE = Operator(
    name="elementwise",
    summary="Y = the functions applied to every element of X, one after the other",
    parameters=(
        Parameter("shape", "extents of X", ListOf(Integer())),
        Parameter("functions", "what is applied, in order", ListOf(Choice(tuple(MAPS)), 1, 16)),
        dtype_parameter(*NUMBERS),
    ),
    examples=(
        {"shape": [5, 37], "functions": ["relu", "mul2", "add1", "negative"]},
        {"shape": [1], "functions": ["square", "absolute", "square"]},
        {"shape": [3, 1, 7, 2], "functions": ["sub1"]},
        {"shape": [7, 19], "functions": ["relu", "mul2", "add1", "sigmoid"], "dtype": "float32"},
        {"shape": [61], "functions": ["gelu_tanh", "half", "gelu_erf", "silu"], "dtype": "float32"},
        {"shape": [61], "functions": ["absolute", "add1", "log", "exp", "sqrt", "rsqrt"], "dtype": "float32"},
        {"shape": [61], "functions": ["sin", "cos", "tanh", "erf"], "dtype": "float64"},
        {"shape": [67], "functions": ["floor", "half", "ceil"], "dtype": "float16"},
    ),
    build=_build,
    baseline=_numpy,
)
