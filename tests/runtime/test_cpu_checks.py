"""Large host memory is compared on all processors, and the result is that of NumPy on small spans."""

import numpy as np
import pytest

from tilewright.core.dtypes import float32, int32
from tilewright.core.streams import stream
from tilewright.runtime import cpu_checks
from tilewright.runtime.device import Comparison

COUNT = cpu_checks.LARGE_BYTES // 2 + 13
ABSOLUTE, RELATIVE = 1e-4, 1e-5


def sample() -> tuple[np.ndarray, np.ndarray]:
    """Return float32 values, and float64 values near them."""
    draw = stream(3, "checks")
    want = draw.standard_normal(COUNT)
    return (want + 1.5e-5 * draw.standard_normal(COUNT)).astype(np.float32), want


def compare(got: np.ndarray, want: np.ndarray) -> Comparison:
    return cpu_checks.compare(got.view(np.uint8), float32, want.view(np.uint8), ABSOLUTE, RELATIVE)


def test_the_largest_error_is_numpys_to_the_last_bit() -> None:
    got, want = sample()
    errors = np.abs(got.astype(np.float64) - want) / (ABSOLUTE + RELATIVE * np.abs(want))
    found = compare(got, want)
    assert found.wrong is None and 0.5 < found.largest == errors.max() < 1.0


@pytest.mark.parametrize("place", [0, COUNT // 2 + 1, COUNT - 14, COUNT - 1])
@pytest.mark.parametrize("value", [1e3, np.nan, np.inf])
def test_one_wrong_element_is_found_wherever_it_is(place: int, value: float) -> None:
    got, want = sample()
    got[place] = value
    assert compare(got, want).wrong == place


def test_infinities_and_nans_that_should_be_there_are_right() -> None:
    got, want = sample()
    got[[5, COUNT - 3]] = want[[5, COUNT - 3]] = [np.inf, np.nan]
    found = compare(got, want)
    assert found.wrong is None and 0.5 < found.largest < 1.0


@pytest.mark.parametrize("place", [0, cpu_checks.BLOCK_BYTES - 1, 4 * COUNT - 1])
def test_one_changed_byte_differs(place: int) -> None:
    memory = np.zeros(4 * COUNT, np.uint8)
    other = memory.copy()
    assert not cpu_checks.differs(memory, other)
    other[place] = 1
    assert cpu_checks.differs(memory, other)


def test_matches_are_counted_over_all_blocks() -> None:
    memory = np.zeros(COUNT, np.int32)
    memory[[7, COUNT // 3, COUNT - 1]] = 0x01010101
    found = cpu_checks.matching(memory.view(np.uint8), b"\1" * int32.bytes, None)
    assert (found.count, found.first) == (3, 7)
