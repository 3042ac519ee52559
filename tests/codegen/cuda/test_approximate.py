"""Fast approximations are used only where the final rounding hides their errors. Every 16-bit input is checked against
float64."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.codegen.backends import backend_for
from tilewright.core.dtypes import DType, bfloat16, float16, float32
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer
from tilewright.ir.build import Writer
from tilewright.ir.expr import Binary, BinaryOp, Cast, Expr, Load, Unary, UnaryOp, const
from tilewright.ir.stmt import HardwareAxis, Kernel
from tilewright.runtime.devices import open_device

Exact = Callable[[NDArray[np.float64]], NDArray[np.float64]]
SM90A = Target("cuda", "sm_90a", (), 132, 16)


def _sigmoid(x: Expr) -> Expr:
    return Binary(BinaryOp.DIV, const(1.0, float32), Unary(UnaryOp.EXP, -x) + 1.0)


FUNCTIONS: dict[str, tuple[Callable[[Expr], Expr], Exact]] = {
    "exp": (lambda x: Unary(UnaryOp.EXP, x), np.exp),
    "exp2": (lambda x: Unary(UnaryOp.EXP2, x), np.exp2),
    "tanh": (lambda x: Unary(UnaryOp.TANH, x), np.tanh),
    "sqrt": (lambda x: Unary(UnaryOp.SQRT, Unary(UnaryOp.ABS, x)), lambda x: np.sqrt(np.abs(x))),
    "sigmoid": (_sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "third": (lambda x: Binary(BinaryOp.DIV, x, const(3.0, float32)), lambda x: x / 3),
    "ratio": (lambda x: Binary(BinaryOp.DIV, x, Unary(UnaryOp.ABS, x) + 1.0), lambda x: x / (np.abs(x) + 1)),
    "inverse": (lambda x: Binary(BinaryOp.DIV, const(1.0, float32), x), lambda x: 1 / x),
}


def mapped(function: Callable[[Expr], Expr], source: DType, target: DType) -> Kernel:
    """Return a kernel of ``O[i] = function(A[i])`` on all 65,536 values of 16 bits."""
    a, o = Buffer("A", (1 << 16,), source), Buffer("O", (1 << 16,), target)
    w = Writer()
    with w.launch("mapped", [("b", 256, HardwareAxis.GRID_X), ("t", 256, HardwareAxis.THREAD)]) as (b, t):
        w.store(o, (b * 256 + t,), Cast(function(Cast(Load(a, (b * 256 + t,)), float32)), target))
    return Kernel("mapped", (a,), (o,), (), w.finish())


@pytest.mark.parametrize("target", [float16, bfloat16, float32])
def test_fast_math_is_used_for_16_bit_results_alone(target: DType) -> None:
    backend = backend_for(SM90A)
    text = backend.emit(backend.passes(mapped(FUNCTIONS["sigmoid"][0], float16, target))[-1][1], SM90A).text
    assert ("fast_exp" in text) == ("fast_reciprocal" in text) == (target != float32)
    assert ("expf(" in text.replace("fast_", "")) == (target == float32)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [float16, bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_16_bit_value_is_off_by_more_than_one_place(name: str, dtype: DType) -> None:
    function, exact = FUNCTIONS[name]
    kernel = mapped(function, dtype, dtype)
    device = open_device("cuda")
    target = device.info.target
    backend = backend_for(target)
    binary = backend.compile(backend.emit(backend.passes(kernel)[-1][1], target), target)
    source, result = (device.allocate(p.bytes) for p in binary.parameters)
    bits = np.arange(1 << 16, dtype=np.uint16)
    source.write(bits.view(np.uint8))
    device.load(binary).launch([source, result])
    given = bits.view(dtype.numpy).astype(np.float64)
    with np.errstate(all="ignore"):
        want = exact(given).astype(dtype.numpy)
    got = result.read().view(dtype.numpy)
    # subnormal values, and the reciprocals of what they come from, may be flushed to zero
    tiny = 2.0**-14 if dtype == float16 else 2.0**-126
    off = np.abs(_ordered(got) - _ordered(want)) > 1
    off &= ~(np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))
    off &= (np.abs(want.astype(np.float64)) >= tiny) & ((given == 0) | (np.abs(given) >= tiny))
    assert not off.any(), [(given[i], got[i], want[i]) for i in np.flatnonzero(off)[:5]]


def _ordered(values: NDArray[np.generic]) -> NDArray[np.int64]:
    """Map 16-bit floats to integers such that consecutive floats differ by one."""
    bits = values.view(np.uint16).astype(np.int64)
    return np.where(bits >> 15, 0x8000 - bits, bits)
