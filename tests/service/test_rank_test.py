"""The Mann-Whitney U test on samples whose answer is known, and Holm's correction against a hand-made case."""

import pytest

from tilewright.service.rank_test import holm, mann_whitney

LOW, HIGH = [1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]


def test_the_sign_of_the_effect_says_which_is_greater() -> None:
    slower, faster = mann_whitney(LOW, HIGH), mann_whitney(HIGH, LOW)
    assert slower is not None and faster is not None
    assert (slower.u, slower.effect, faster.u, faster.effect) == (25.0, 1.0, 0.0, -1.0)
    assert slower.p_value == faster.p_value == pytest.approx(2 / 252)  # 252 orders of ten samples, two so extreme


def test_samples_that_are_equal_show_no_difference() -> None:
    assert mann_whitney([], [1.0]) is None and mann_whitney([1.0], []) is None
    equal = mann_whitney([3.0, 3.0, 3.0], [3.0, 3.0])
    assert equal is not None and (equal.u, equal.p_value, equal.effect) == (3.0, 1.0, 0.0)
    same = mann_whitney(LOW, LOW)
    assert same is not None and same.p_value == 1.0 and same.effect == 0.0


def test_many_samples_with_ties_are_told_apart() -> None:
    first, second = [1.0, 2.0] * 20, [2.0, 3.0] * 20
    found = mann_whitney(first, second)
    assert found is not None and found.u == 40 * 40 - 0.5 * 20 * 20 and found.p_value < 1e-6


def test_holm_keeps_the_order_and_never_falls() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
