"""The Mann-Whitney U test against SciPy's, and Holm's correction against a hand-made case."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from tilewright.service.rank_test import MOST_EXACT, holm, mann_whitney

numbers = st.lists(st.integers(0, 30).map(float), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(numbers, numbers)
def test_it_agrees_with_scipy(first: list[float], second: list[float]) -> None:
    found = mann_whitney(first, second)
    assert found is not None
    tied = len({*first, *second}) < len(first) + len(second)
    exact = not tied and len(first) * len(second) <= MOST_EXACT
    wanted = mannwhitneyu(second, first, alternative="two-sided", method="exact" if exact else "asymptotic")
    assert found.u == wanted.statistic
    if len({*first, *second}) > 1:  # SciPy has no answer where all are equal
        assert found.p_value == pytest.approx(wanted.pvalue, abs=1e-9)


def test_the_sign_of_the_effect_says_which_is_greater() -> None:
    slower = mann_whitney([1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0])
    assert slower is not None and slower.effect == 1.0 and slower.p_value == pytest.approx(2 / 252)
    assert mann_whitney([], [1.0]) is None


def test_holm_keeps_the_order_and_never_falls() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
