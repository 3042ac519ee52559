"""Numbers carry their unit and a fixed number of digits."""

import re

import pytest
from markupsafe import Markup

from tilewright.api import formatting
from tilewright.core.budget import StopReason


def text(markup: Markup) -> str:
    return re.sub(r"<[^>]*>", "", str(markup))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1.5, "1.500 s"), (0.0123456, "12.35 ms"), (4.2e-5, "42.00 µs"), (9.99e-9, "9.990 ns"), (1e-12, "0.001 ns")],
)
def test_kernel_times(seconds: float, shown: str) -> None:
    assert text(formatting.seconds_figure(seconds)) == shown


def test_a_column_keeps_one_unit() -> None:
    assert text(formatting.seconds_figure(0.0123, like=2e-6)) == "12,300 µs"


@pytest.mark.parametrize(
    ("markup", "shown"),
    [
        (formatting.rate_figure(2 * 1024**3, 0.02, "GFLOP/s"), "107.4 GFLOP/s"),
        (formatting.ratio_figure(3.0, 2.0), "1.50 ×"),
        (formatting.percent_figure(1.0, 3.0), "33.3 %"),
        (formatting.bytes_figure(12 << 20), "12.0 MiB"),
        (formatting.count_figure(1234567), "1,234,567"),
        (formatting.duration_figure(4.25), "4.2 s"),
        (formatting.duration_figure(185.2), "3 min 05 s"),
        (formatting.duration_figure(7800), "2 h 10 min"),
        (formatting.moment("2026-11-21T08:07:14.123456+00:00"), "2026-11-21 08:07:14 UTC"),
    ],
)
def test_other_figures(markup: Markup, shown: str) -> None:
    assert text(markup) == shown


@pytest.mark.parametrize(
    "markup",
    [
        formatting.seconds_figure(None),
        formatting.rate_figure(0, 1.0, "x"),
        formatting.ratio_figure(None, 1.0),
        formatting.moment(None),
    ],
)
def test_what_is_not_known_is_a_dash(markup: Markup) -> None:
    assert text(markup) == "–"


def test_what_comes_from_users_is_escaped() -> None:
    assert "<b>" not in str(formatting.breakable("<b>_=1"))


def test_there_are_words_for_each_reason_why_a_task_ended() -> None:
    assert set(formatting.STOPPED) == set(StopReason)
