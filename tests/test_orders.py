"""Contestants of a benchmark take turns in fair orders."""

from collections import Counter
from itertools import pairwise

import pytest

from tilewright.benchmarks.orders import balanced_orders


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
def test_each_follows_each_other_equally_often(count: int) -> None:
    names = [str(n) for n in range(count)]
    rounds = list(balanced_orders(names, count * (1 + count % 2)))
    assert all(sorted(order) == names for order in rounds)
    followed = Counter(pair for order in rounds for pair in pairwise(order))
    assert set(followed.values()) <= {1 + count % 2} and len(followed) == count * (count - 1)


def test_there_are_as_many_orders_as_rounds() -> None:
    assert [len(order) for order in balanced_orders("abcd", 11)] == [4] * 11
