"""Operators on the bits of integers, and powers of integers."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch_backend.models import check_model  # noqa: E402


def test_bits_shifted_by_any_count() -> None:
    """A shift by fewer than 0 bits, or by all bits or more, shifts them all out."""

    def f(x: Any, count: Any) -> Any:
        return x << count, x >> count, x.int() << count.int(), x.int() >> count.int(), (x & 255) ^ (x | count)

    status = check_model(f, torch.randint(-(2**62), 2**62, (3, 70)), torch.arange(-3, 67).expand(3, 70))
    assert status.state == "ready" and not status.foreign


def test_integers_to_the_power_of_integers() -> None:
    """Bytes wrap around: 127 times 127 is 1. A negative power is 0, but for 1 and -1."""

    def f(x: Any, y: Any) -> Any:
        return x**y, x.int() ** (y % 20).int(), x.to(torch.int8) ** y.to(torch.int8), 3 ** y.clamp(0, 39)

    x = torch.tensor([0, 1, -1, 2, -2, 3, 7, 127, -128])[:, None].expand(9, 70)
    y = torch.arange(-3, 67).expand(9, 70)
    status = check_model(f, x.where((y < 64) | (x.abs() < 2), 1), y)
    assert status.state == "ready" and not status.foreign
