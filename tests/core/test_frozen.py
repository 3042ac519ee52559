"""Constructors of frozen dataclasses that are built by the million."""

import pickle
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from tilewright.core.frozen import quickly_built


@quickly_built
@dataclass(frozen=True, slots=True)
class Span:
    low: int
    high: int = 7

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("empty")


def test_values_are_built_like_those_of_any_dataclass() -> None:
    assert Span(1) == Span(high=7, low=1) == replace(Span(0), low=1) == pickle.loads(pickle.dumps(Span(1)))
    assert (Span(2, 3).low, Span(2, 3).high) == (2, 3)
    with pytest.raises(ValueError, match="empty"):
        Span(8)
    with pytest.raises(FrozenInstanceError):
        Span(1).low = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"Span.__init__\(\) missing 1 required positional argument: 'low'"):
        Span()  # type: ignore[call-arg]
