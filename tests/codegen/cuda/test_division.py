"""Divisions of float32: no branch, and what IEEE arithmetic gives but for the last place."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel
from tilewright.core.dtypes import float32
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer
from tilewright.ir.build import Writer
from tilewright.ir.expr import Binary, BinaryOp, Expr, Load, const
from tilewright.ir.stmt import HardwareAxis, Kernel
from tilewright.runtime.devices import open_device

SM90A = Target("cuda", "sm_90a", (), 132, 16)
NUMBERS = 1 << 22
EDGES = np.array([0, 1, 3, 6, 2.0**-149, 2.0**-126, 2.0**-64, 2.0**64, 2.0**126, 2.0**127, 3.4e38, np.inf, np.nan])


def divided(divisor: Expr | None = None) -> Kernel:
    """Return a kernel of ``O[i] = A[i] / B[i]``, or of ``A[i] / divisor``."""
    a, b, o = (Buffer(name, (NUMBERS,), float32) for name in "ABO")
    w = Writer()
    with w.launch("divided", [("b", NUMBERS // 256, HardwareAxis.GRID_X), ("t", 256, HardwareAxis.THREAD)]) as (n, t):
        at = (n * 256 + t,)
        w.store(o, at, Binary(BinaryOp.DIV, Load(a, at), Load(b, at) if divisor is None else divisor))
    return Kernel("divided", (a, b), (o,), (), w.finish())


@pytest.mark.parametrize(
    ("divisor", "divides"), [(None, True), (const(6.0, float32), True), (const(-0.125, float32), False)]
)
def test_a_division_is_a_function_of_the_prelude_but_for_powers_of_two(divisor: Expr | None, divides: bool) -> None:
    backend = backend_for(SM90A)
    text = backend.emit(backend.passes(divided(divisor))[-1][1], SM90A).text
    assert (" = divide(A[" in text) == divides


@pytest.mark.cuda
def test_quotients_are_those_of_ieee_arithmetic_but_for_the_last_place() -> None:
    device = open_device("cuda")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 1 << 32, NUMBERS, np.uint32).view(np.float32) for _ in "ab")
    edges = np.concatenate((EDGES, -EDGES)).astype(np.float32)
    a[: edges.size**2], b[: edges.size**2] = np.repeat(edges, edges.size), np.tile(edges, edges.size)
    binary = build_kernel(divided(), device.info.target)
    buffers = [device.allocate(p.bytes) for p in binary.parameters]
    for buffer, values in zip(buffers, (a, b), strict=False):
        buffer.write(values.view(np.uint8))
    device.load(binary).launch(buffers)
    got = buffers[-1].read().view(np.float32)
    with np.errstate(all="ignore"):
        want = a / b
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), ~known)
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(want[known]))
    apart = np.abs(_positions(got[known]) - _positions(want[known]))
    subnormal = np.abs(a[known]) < 2.0**-126
    assert apart[~subnormal].max() <= 1 and apart[subnormal].max() <= 3


def _positions(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Map floats of one sign to integers such that consecutive floats differ by one."""
    return np.abs(values).view(np.int32).astype(np.int64)
