"""What every device does with memory by itself: fill, copy, search, compare, exactly as NumPy would."""

from collections.abc import Iterator

import ml_dtypes  # noqa: F401  (teaches NumPy bfloat16)
import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.core.dtypes import DTYPES, DType, boolean, float16, float32, int32, int64
from tilewright.core.errors import InvalidParameter
from tilewright.runtime.device import Device, Memory
from tilewright.tests.device_fixtures import PRESENT, opened

SIZES = [0, 8, 48, 4096, 100_008, 1_500_000]
"""Bytes: none, less than a word of a mask, several blocks and no multiple of any."""
PATTERNS = [b"\x5a", b"\x34\x12", b"\x01\x02\x03\x04", bytes(range(8))]
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)


@pytest.fixture(params=PRESENT, scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with opened(request.param) as device:
        yield device


def held(device: Device, array: NDArray[np.generic]) -> Memory:
    memory = device.allocate(array.nbytes)
    memory.write(array.reshape(-1).view(np.uint8))
    return memory


def noise(nbytes: int) -> NDArray[np.uint8]:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)


@pytest.mark.parametrize("pattern", PATTERNS, ids=len)
@pytest.mark.parametrize("nbytes", SIZES)
def test_a_pattern_is_repeated_and_its_changes_found(device: Device, nbytes: int, pattern: bytes) -> None:
    whole = device.allocate(nbytes + 16)
    before = noise(nbytes + 16)
    whole.write(before)
    memory = whole.view(8, nbytes)
    device.fill(memory, pattern)
    assert memory.read().tobytes() == pattern * (nbytes // len(pattern))
    after = whole.read()
    assert after[:8].tolist() == before[:8].tolist() and after[-8:].tolist() == before[-8:].tolist()
    assert device.changed(memory, pattern) is None
    for first, last in ((0, nbytes - 1), (nbytes // 2, nbytes // 2), (nbytes // 3, nbytes - 3)):
        if 0 <= first <= last < nbytes:
            device.fill(memory, pattern)
            for at in {first, last}:
                memory.view(at, 1).write(np.array([pattern[at % len(pattern)] ^ 0x10], np.uint8))
            assert device.changed(memory, pattern) == (first, last)


def test_a_pattern_must_fit(device: Device) -> None:
    memory = device.allocate(12)
    with pytest.raises(InvalidParameter, match="a pattern of 8 bytes over 12"):
        device.fill(memory, bytes(8))
    with pytest.raises(InvalidParameter, match="a pattern of 3 bytes over 12"):
        device.changed(memory, bytes(3))
    with pytest.raises(InvalidParameter, match="a pattern of 0 bytes over 12"):
        device.matching(memory, b"")


@pytest.mark.parametrize("nbytes", SIZES)
def test_copies_are_equal_until_a_byte_differs(device: Device, nbytes: int) -> None:
    data = noise(nbytes)
    source = device.hold(data)
    into = device.allocate(nbytes)
    device.copy(into, source)
    np.testing.assert_array_equal(into.read(), data)
    assert not device.differs(into, source)
    for at in {0, nbytes // 2, nbytes - 1} if nbytes else ():
        device.copy(into, source)
        into.view(at, 1).write(data[at : at + 1] ^ np.uint8(1))
        assert device.differs(into, source)
    with pytest.raises(InvalidParameter, match=r"allowed: the same size|written to a span"):
        device.differs(into, device.allocate(nbytes + 1))
    with pytest.raises(InvalidParameter):
        device.copy(into, device.allocate(nbytes + 1))


def test_a_sweep_changes_nothing(device: Device) -> None:
    data = noise(1_500_000)
    memory = held(device, data)
    device.sweep(memory)
    np.testing.assert_array_equal(memory.read(), data)


@pytest.mark.parametrize("pattern", PATTERNS, ids=len)
@pytest.mark.parametrize("nbytes", SIZES)
def test_elements_that_hold_a_pattern_are_found(device: Device, nbytes: int, pattern: bytes) -> None:
    size = len(pattern)
    rng = np.random.default_rng(nbytes + size)
    places = [rng.random(nbytes // size) < share for share in (0.0, 0.001, 0.5)]
    among = None
    for wanted in places[::-1]:
        elements = noise(nbytes).reshape(-1, size)
        elements[(elements == np.frombuffer(pattern, np.uint8)).all(axis=1), 0] ^= 1
        elements[wanted] = np.frombuffer(pattern, np.uint8)
        found = device.matching(held(device, elements), pattern)
        expected = np.flatnonzero(wanted)
        assert found.count == len(expected)
        assert found.first == (int(expected[0]) if len(expected) else None)
        if found.count:
            bits = np.unpackbits(found.bits, bitorder="little")
            assert np.flatnonzero(bits).tolist() == expected.tolist()
        if among is not None:
            both = device.matching(held(device, elements), pattern, among[0])
            assert both.count == int((wanted & among[1]).sum())
        among = (found, wanted)


def errors_of(
    got: NDArray[np.generic], want: NDArray[np.generic], absolute: float, relative: float, dtype: DType
) -> list[float]:
    """Element by element, in Python."""
    errors = []
    for g, w in zip(got.tolist(), want.tolist(), strict=True):
        if dtype.is_integer and g == w:
            errors.append(0.0)
            continue
        x, y = float(g), float(w)
        tolerance = absolute + relative * abs(y)
        if (x == y and not dtype.is_integer) or (x != x and y != y):
            errors.append(0.0)
        elif tolerance == 0 or abs(x) == np.inf or abs(y) == np.inf or x != x or y != y:
            errors.append(np.inf)
        else:
            errors.append(abs(x - y) / tolerance)
    return errors


@each_dtype
@pytest.mark.parametrize("tolerance", [(0.0, 0.0), (1e-3, 1e-3), (0.0, 0.5), (2.0, 0.0)], ids=str)
def test_errors_are_those_of_the_definition(device: Device, dtype: DType, tolerance: tuple[float, float]) -> None:
    rng = np.random.default_rng(3)
    count = 777
    if dtype.is_float:
        with np.errstate(over="ignore"):
            want = rng.normal(size=count) * 10.0 ** rng.integers(-8, 4, count)
            got = (want * (1 + rng.normal(size=count) * 1e-4)).astype(dtype.numpy)
            special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e-30])
            want[:49] = np.repeat(special, 7)
            got[:49] = np.tile(special, 7).astype(dtype.numpy)
    else:
        low, high = dtype.integer_range if dtype.is_integer else (0, 1)
        want = rng.integers(low, high, count, endpoint=True, dtype=np.int64 if low else np.uint64).astype(dtype.numpy)
        got = want.copy()
        got[5], want[5] = high, high - 1
        if dtype.is_bool:
            got.view(np.uint8)[7] = 2
    flat = got.view(np.uint8) if dtype.is_bool else got
    errors = errors_of(flat, want, *tolerance, dtype)
    for first in range(60):  # each of the special places becomes the first wrong one in its turn
        found = device.compare(held(device, got[first:]), dtype, device.hold(want[first:].copy()), *tolerance)
        wrong = [n for n, e in enumerate(errors[first:]) if e > 1]
        if not wrong:
            assert found.wrong is None and found.got is None
            assert found.largest == pytest.approx(max(errors[first:]), rel=1e-12)
            break
        assert found.wrong == wrong[0]
        at = first + wrong[0]
        assert found.largest >= errors[at]
        assert found.got is not None and found.want is not None
        assert (found.got.tobytes(), found.want.tobytes()) == (flat[at].tobytes(), want[at].tobytes())


def test_large_neighbours_of_int64_are_told_apart(device: Device) -> None:
    want = np.full(5000, 2**60, np.int64)
    got = want.copy()
    got[4321] += 1
    assert device.compare(held(device, got), int64, device.hold(want), 0.0, 0.0).wrong == 4321
    assert device.compare(held(device, want), int64, device.hold(want), 0.0, 0.0).largest == 0.0


@pytest.mark.parametrize("at", [0, 1, 262_143, 262_144, 999_999])
def test_the_first_wrong_element_is_named(device: Device, at: int) -> None:
    want = np.linspace(-1, 1, 1_000_000)
    got = want.astype(np.float32)
    right = device.compare(held(device, got), float32, device.hold(want), 1e-6, 1e-6)
    assert right.wrong is None and 0 < right.largest <= 1
    got[at] += 1
    got[999_999] += 1
    found = device.compare(held(device, got), float32, device.hold(want), 1e-6, 1e-6)
    assert found.wrong == at and found.got == got[at] and found.want == want[at] and found.largest > 1e5


def test_what_is_compared_must_have_as_many_elements(device: Device) -> None:
    for dtype, nbytes, wanted in ((float16, 6, 16), (int32, 8, 16), (boolean, 3, 24), (float32, 6, 8)):
        with pytest.raises(InvalidParameter, match="as many elements"):
            device.compare(device.allocate(nbytes), dtype, device.allocate(wanted), 0.0, 0.0)


def test_the_environment_is_numbers(device: Device) -> None:
    assert all(isinstance(value, float) for value in device.environment().values())
