"""Divisions and square roots of float32: what IEEE arithmetic gives but for the last place."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.compile.compiler import compiled
from tilewright.codegen.lowering import build_kernel
from tilewright.core.dtypes import float32
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer
from tilewright.ir.build import Writer
from tilewright.ir.expr import Expr, Load, Unary, UnaryOp
from tilewright.ir.stmt import HardwareAxis, Kernel
from tilewright.runtime.devices import open_device

SM90A = Target("cuda", "sm_90a", (), 132, 16)
Floats = NDArray[np.float32]
NUMBERS = 1 << 22
EDGES = np.array([0, 1, 3, 6, 2.0**-149, 2.0**-126, 2.0**-64, 2.0**64, 2.0**126, 2.0**127, 3.4e38, np.inf, np.nan])


def computed(function: Callable[[Expr, Expr], Expr]) -> Kernel:
    """Return a kernel of ``O[i] = function(A[i], B[i])``."""
    a, b, o = (Buffer(name, (NUMBERS,), float32) for name in "ABO")
    w = Writer()
    with w.launch("computed", [("b", NUMBERS // 256, HardwareAxis.GRID_X), ("t", 256, HardwareAxis.THREAD)]) as (n, t):
        at = (n * 256 + t,)
        w.store(o, at, function(Load(a, at), Load(b, at)))
    return Kernel("computed", (a, b), (o,), (), w.finish())


def root(a: Expr, _: Expr) -> Expr:
    return Unary(UnaryOp.SQRT, a)


@pytest.mark.parametrize(
    ("function", "called"),
    [
        (lambda a, b: a / b, "divide(A["),
        (lambda a, b: a / 6.0, "divide(A["),
        (lambda a, b: a / -0.125, "A["),  # a multiplication
        (root, "root(A["),
    ],
)
def test_there_are_no_branches(function: Callable[[Expr, Expr], Expr], called: str) -> None:
    backend = backend_for(SM90A)
    source = backend.emit(backend.passes(computed(function))[-1][1], SM90A)
    assert f" = {called}" in source.text
    ptx = compiled(source, SM90A).ptx
    assert not any(name in ptx for name in ("bra", "call", "div.rn", "sqrt.rn"))


def _results(function: Callable[[Expr, Expr], Expr], a: Floats, b: Floats) -> Floats:
    device = open_device("cuda")
    binary = build_kernel(computed(function), device.info.target)
    buffers = [device.allocate(p.bytes) for p in binary.parameters]
    for buffer, values in zip(buffers, (a, b), strict=False):
        buffer.write(values.view(np.uint8))
    device.load(binary).launch(buffers)
    return buffers[-1].read().view(np.float32)


def _numbers() -> tuple[Floats, Floats]:
    """Pairs of any two numbers, and all pairs of those at the ends of ranges."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 1 << 32, NUMBERS, np.uint32).view(np.float32) for _ in "ab")
    edges = np.concatenate((EDGES, -EDGES)).astype(np.float32)
    a[: edges.size**2], b[: edges.size**2] = np.repeat(edges, edges.size), np.tile(edges, edges.size)
    return a, b


def _places_apart(got: Floats, want: Floats) -> NDArray[np.int64]:
    """How many numbers apart two results are; 0 for NaN. NaN, infinities and signs must be the same."""
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), ~known)
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(want[known]))
    return np.where(known, np.abs(_positions(got) - _positions(want)), 0)


@pytest.mark.cuda
def test_quotients_are_those_of_ieee_arithmetic_but_for_the_last_place() -> None:
    a, b = _numbers()
    with np.errstate(all="ignore"):
        apart = _places_apart(_results(lambda x, y: x / y, a, b), a / b)
    subnormal = np.abs(a) < 2.0**-126
    assert apart[~subnormal].max() <= 1 and apart[subnormal].max() <= 3


@pytest.mark.cuda
def test_roots_are_those_of_ieee_arithmetic_but_for_the_last_place() -> None:
    a, b = _numbers()
    with np.errstate(all="ignore"):
        assert _places_apart(_results(root, a, b), np.sqrt(a)).max() <= 1


def _positions(values: Floats) -> NDArray[np.int64]:
    """Map floats of one sign to integers such that consecutive floats differ by one."""
    return np.abs(values).view(np.int32).astype(np.int64)
