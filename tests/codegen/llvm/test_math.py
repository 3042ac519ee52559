"""Our mathematical functions are compared with extended precision, over dense grids and every special argument."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.codegen.llvm.backend import LlvmBackend
from tilewright.core.dtypes import dtype_of_numpy
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Binary, BinaryOp, Expr, Load, Ramp, Unary, UnaryOp, Var
from tilewright.ir.stmt import For, Kernel, LoopKind, Store
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.devices import host_target

Array = NDArray[Any]
LANES = {"float32": 16, "float64": 8}
ODD = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, 2.0, 0.625, -0.625, 0.92, 4.0, 6.0, 1e4, -1e4]
ODD += [1e-45, -1e-45, 1e-38, 5e-324, -5e-324, 1e-310, 88.7, 89.0, -87.4, -103.9, -104.0, 709.7, 709.79, -745.1]
ODD += [-745.2, -708.5, 3.4e38, -3.4e38, 1.7e308, -1.7e308]


@cache
def device(wide: bool) -> CpuDevice:
    """Open the whole CPU, or the CPU without AVX-512: the two scale by powers of two in different ways."""
    host = host_target()
    if wide:
        return CpuDevice(host)
    features = tuple(f for f in host.features if not f.startswith("avx512"))
    return CpuDevice(Target(host.kind, host.arch, features, 1, 32))


def computed(op: UnaryOp | BinaryOp, arguments: list[Array], lanes: int, wide: bool = True) -> Array:
    """Apply ``op`` by a compiled kernel."""
    first = arguments[0]
    padding = -len(first) % lanes
    padded = [np.concatenate([a, np.ones(padding, a.dtype)]) for a in arguments]
    dtype, size = dtype_of_numpy(first.dtype), len(padded[0])
    inputs = tuple(Buffer(f"X{n}", (size,), dtype) for n in range(len(arguments)))
    result = Buffer("Y", (size,), dtype)
    at: Expr = Ramp(Var("i") * lanes, 1, lanes) if lanes > 1 else Var("i")
    loads = [Load(x, (at,)) for x in inputs]
    value = Binary(op, *loads) if isinstance(op, BinaryOp) else Unary(op, loads[0])
    body = For("i", size // lanes, LoopKind.SERIAL, Store(result, (at,), value))
    backend, on = LlvmBackend(), device(wide)
    binary = backend.compile(backend.emit(Kernel("math", inputs, (result,), (), body), on.target), on.target)
    memories = [on.allocate(p.bytes) for p in binary.parameters]
    for memory, data in zip(memories, padded, strict=False):
        memory.write(data.view(np.uint8))
    on.load(binary).launch(memories)
    return memories[-1].read().view(first.dtype)[: len(first)]


def worst_ulp(got: Array, want: Array) -> float:
    """Return the largest distance, in units of the last place of ``want`` after rounding. Infinities and NaN must
    match exactly, but a value within rounding of the overflow border may go either way."""
    dtype = got.dtype
    with np.errstate(all="ignore"):
        rounded = want.astype(dtype)
        edge = np.abs(want) >= np.longdouble(np.finfo(dtype).max)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded)) | (edge & (np.abs(got) >= np.finfo(dtype).max))
        step = np.spacing(np.abs(rounded)).astype(np.longdouble)
        distance = np.abs(got.astype(np.longdouble) - want) / step
    distance = np.where(same, np.minimum(np.nan_to_num(distance, nan=0.0, posinf=0.0), 1.0), distance)
    return float(np.max(np.nan_to_num(distance, nan=math.inf)))


def grid(dtype: type[np.floating[Any]], *spans: tuple[float, float]) -> Array:
    lines = [np.linspace(low, high, 60_000) for low, high in spans]
    with np.errstate(over="ignore"):
        return np.concatenate([*lines, np.array(ODD)]).astype(dtype)


def _erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x.astype(np.float64)], dtype=np.longdouble)


REFERENCE: dict[UnaryOp, Any] = {
    UnaryOp.EXP: np.exp,
    UnaryOp.EXP2: np.exp2,
    UnaryOp.LOG: np.log,
    UnaryOp.TANH: np.tanh,
    UnaryOp.ERF: _erf,
    UnaryOp.SIN: np.sin,
    UnaryOp.COS: np.cos,
    UnaryOp.RSQRT: lambda x: 1 / np.sqrt(x),
}
SPANS: dict[UnaryOp, tuple[tuple[float, float], ...]] = {
    UnaryOp.EXP: ((-110, 92), (-1, 1), (-750, 712)),
    UnaryOp.EXP2: ((-155, 130), (-1, 1), (-1080, 1026)),
    UnaryOp.LOG: ((1e-3, 10), (0.5, 2), (1e-40, 1e-36), (1, 1e30)),
    UnaryOp.TANH: ((-12, 12), (-0.7, 0.7), (-25, 25), (-1e-3, 1e-3)),
    UnaryOp.ERF: ((-4.5, 4.5), (-1.1, 1.1), (-1e-3, 1e-3), (-7, 7)),
    UnaryOp.SIN: ((-10, 10), (-1e5, 1e5), (1e9, 1e12)),
    UnaryOp.COS: ((-10, 10), (-1e5, 1e5), (1e9, 1e12)),
    UnaryOp.RSQRT: ((1e-3, 10), (1e-30, 1e-20)),
}
BOUND_ULP = {
    UnaryOp.EXP: 1.1,
    UnaryOp.EXP2: 1.1,
    UnaryOp.LOG: 1.1,
    UnaryOp.TANH: 1.5,
    UnaryOp.ERF: 2.5,
    UnaryOp.SIN: 2.0,
    UnaryOp.COS: 2.0,
    UnaryOp.RSQRT: 1.6,
}


@pytest.mark.parametrize("wide", [True, False], ids=["wide", "narrow"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", REFERENCE)
def test_functions_are_accurate(op: UnaryOp, dtype: type[np.floating[Any]], wide: bool) -> None:
    x = grid(dtype, *SPANS[op])
    got = computed(op, [x], LANES[np.dtype(dtype).name], wide)
    with np.errstate(all="ignore"):
        want = REFERENCE[op](x.astype(np.longdouble))
    assert worst_ulp(got, want) <= BOUND_ULP[op]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", REFERENCE)
def test_every_width_computes_the_same(op: UnaryOp, dtype: type[np.floating[Any]]) -> None:
    x = grid(dtype, (-20, 20))[::50]
    one = computed(op, [x], 1)
    for lanes in (4, 24):
        np.testing.assert_array_equal(computed(op, [x], lanes), one)


@pytest.mark.parametrize("wide", [True, False], ids=["wide", "narrow"])
@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_halves_are_rounded_to_even(dtype: type[np.floating[Any]], lanes: int, wide: bool) -> None:
    x = np.array([*np.arange(-600, 600) / 4, 2.0**23 - 0.5, 2.0**23 + 1, 1e30, -0.2, math.inf, math.nan]).astype(dtype)
    got = computed(UnaryOp.RINT, [x], lanes, wide)
    np.testing.assert_array_equal(got, np.rint(x))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(np.rint(x)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_power_is_accurate(dtype: type[np.floating[Any]]) -> None:
    generator = stream(1, "power")
    steps = 20_000
    reach = 300 if dtype is np.float64 else 40
    odd = np.array([0.0, -0.0, 1, -1, 2, -2, 0.5, 3, -3, math.inf, -math.inf, math.nan, 1e300, 5e-324, 7, -7])
    pairs = np.meshgrid(odd, odd)
    parts = [
        (np.exp(generator.uniform(-5, 5, steps)), generator.uniform(-10, 10, steps)),
        (np.exp(generator.uniform(-reach, reach, steps)), generator.uniform(-2, 2, steps)),
        (1 + generator.uniform(-1e-3, 1e-3, steps), generator.uniform(-1e5, 1e5, steps)),
        (pairs[0].ravel(), pairs[1].ravel()),
    ]
    with np.errstate(over="ignore"):
        x = np.concatenate([p[0] for p in parts]).astype(dtype)
        y = np.concatenate([p[1] for p in parts]).astype(dtype)
    got = computed(BinaryOp.POW, [x, y], LANES[np.dtype(dtype).name])
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    assert worst_ulp(got, want) <= 1.5
