"""Roundings to and from every dtype are tested on all 65,536 patterns of the 16-bit floats, and at the edges of
saturation."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.codegen.llvm.backend import LlvmBackend
from tilewright.core.dtypes import bfloat16, dtype_of_numpy, float16, float32
from tilewright.core.errors import CompileError
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Cast, Expr, Load, Ramp, Var, index
from tilewright.ir.stmt import For, Kernel, LoopKind, Store
from tilewright.runtime.cpu import CpuDevice

Array = NDArray[Any]
DEVICE = CpuDevice()


def cast(values: Array, target: np.dtype[Any], lanes: int = 16) -> Array:
    """Convert ``values`` by a compiled kernel."""
    size = len(values)
    assert size % lanes == 0
    source, result = Buffer("X", (size,), dtype_of_numpy(values.dtype)), Buffer("Y", (size,), dtype_of_numpy(target))
    at: Expr = Ramp(Var("i") * lanes, 1, lanes) if lanes > 1 else Var("i")
    store = Store(result, (at,), Cast(Load(source, (at,)), result.dtype))
    kernel = Kernel("cast", (source,), (result,), (), For("i", size // lanes, LoopKind.SERIAL, store))
    backend = LlvmBackend()
    binary = backend.compile(backend.emit(kernel, DEVICE.target), DEVICE.target)
    memories = [DEVICE.allocate(p.bytes) for p in binary.parameters]
    memories[0].write(values.view(np.uint8))
    DEVICE.load(binary).launch(memories)
    return memories[1].read().view(target)


HALF = np.dtype(np.float16)
BRAIN: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("narrow", [HALF, BRAIN], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_every_16_bit_float_widens_exactly_and_comes_back(narrow: np.dtype[Any], wide: Any) -> None:
    every = np.arange(65536, dtype=np.uint16).view(narrow)
    widened = cast(every, np.dtype(wide))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(widened, every.astype(wide))
    back = cast(widened, narrow)
    finite = ~np.isnan(widened)
    np.testing.assert_array_equal(back.view(np.uint16)[finite], every.view(np.uint16)[finite])
    assert np.isnan(back.astype(np.float32)[~finite]).all()


@pytest.mark.parametrize("narrow", [HALF, BRAIN], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("lanes", [1, 16])
def test_float64_rounds_once_ties_to_even(narrow: np.dtype[Any], lanes: int) -> None:
    """Test around every border between two neighbours: on it, and off it by less than a float32 can hold."""
    every = np.arange(0, 0x7000, 7, dtype=np.uint16).view(narrow).astype(np.float64)
    after = (np.arange(0, 0x7000, 7, dtype=np.uint16) + 1).view(narrow).astype(np.float64)
    middle = (every + after) / 2
    values = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), -middle])
    values = np.concatenate([values, np.zeros(-len(values) % 16)])
    got = cast(values, narrow, lanes).astype(np.float64)
    even = np.where(np.arange(0, 0x7000, 7) % 2 == 0, every, after)
    n = len(middle)
    np.testing.assert_array_equal(got[:n], even)
    np.testing.assert_array_equal(got[n : 2 * n], every)
    np.testing.assert_array_equal(got[2 * n : 3 * n], after)
    np.testing.assert_array_equal(got[3 * n : 4 * n], -even)


def test_float16_needs_its_extension() -> None:
    source, result = Buffer("X", (4,), float16), Buffer("Y", (4,), float16)
    at = (Var("i"),)
    twice = Load(source, at) + Load(source, at)
    kernel = Kernel("twice", (source,), (result,), (), For("i", 4, LoopKind.SERIAL, Store(result, at, twice)))
    with pytest.raises(CompileError, match="float16 needs the f16c or avx512f extension"):
        LlvmBackend().emit(kernel, Target("llvm", "x86-64", ("sse2",)))


def test_what_is_stored_is_rounded_once() -> None:
    source, result = Buffer("X", (16,), float32), Buffer("Y", (16,), bfloat16)
    lanes = (Ramp(index(0), 1, 16),)
    store = Store(result, lanes, Cast(Load(source, lanes), bfloat16))
    kernel = Kernel("narrow", (source,), (result,), (), store)
    text = LlvmBackend().emit(kernel, Target("llvm", "x86-64", ("avx512f",), vector_bytes=64)).text
    assert text.count("fcmp uno") <= 1 and text.count("lshr") <= 2


@pytest.mark.parametrize("target", [np.int8, np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("lanes", [1, 16])
def test_floats_saturate_to_integers(source: Any, target: Any, lanes: int) -> None:
    edges = [0.0, -0.0, 0.9, -0.9, 127.4, 127.6, 128.0, -128.9, -129.0, 255.5, 256.0, -1.0, 3e9, -3e9, 1e30, -1e30]
    values = np.array([*edges, np.nan, np.inf, -np.inf, 2**31, -(2.0**31), 2**63, -(2.0**63), 1e18] + [7.5] * 8, source)
    bounds = np.iinfo(target)
    low, high = int(bounds.min), int(bounds.max)
    want = [0 if v != v else high if v >= high else low if v <= low else int(v) for v in map(float, values)]
    np.testing.assert_array_equal(cast(values, np.dtype(target), lanes), np.array(want, dtype=target))


@pytest.mark.parametrize("narrow", [HALF, BRAIN], ids=["float16", "bfloat16"])
def test_integers_round_once(narrow: np.dtype[Any]) -> None:
    values = np.array([2**24 + 1, 2049, 2051, 65519, 65520, -65520, 33423361, 33423360] * 2, dtype=np.int32)
    got = cast(values, narrow).astype(np.float64)
    with np.errstate(over="ignore"):
        want = np.array([_nearest(int(v), narrow) for v in values])
    np.testing.assert_array_equal(got, want)


def _nearest(value: int, narrow: np.dtype[Any]) -> float:
    """Return the nearest number of the dtype. Ties go to the even pattern, and beyond the largest number the result
    is infinite."""
    if narrow == HALF:
        return float(np.float16(np.float64(value)))
    patterns = np.arange(0, 0x7F80, dtype=np.uint16)
    numbers = patterns.view(BRAIN).astype(np.float64)
    distance = np.abs(numbers - abs(value))
    best = np.flatnonzero(distance == distance.min())
    chosen = best[0] if len(best) == 1 else best[patterns[best] % 2 == 0][0]
    return float(np.copysign(numbers[chosen], value))
