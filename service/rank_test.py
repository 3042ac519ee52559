"""The Mann-Whitney U test: do two sets of samples come from one distribution? It compares ranks, so that outliers and
skewed distributions, which timings have, do not decide (Mann and Whitney 1947)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, erfc, sqrt

MOST_EXACT = 400
"""Up to this product of the two numbers of samples the p value is exact, where no two samples are equal."""
NAME = "Mann-Whitney U test, two-sided"


@dataclass(frozen=True, slots=True)
class RankTest:
    """``u`` counts the pairs in which the sample of the second set is the greater; a tie counts half. ``p_value`` is
    two-sided. ``effect`` is the rank-biserial correlation, from -1 (every sample of the second set is less) to 1 (every
    one is greater)."""

    u: float
    p_value: float
    effect: float


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> RankTest | None:
    """Compare two sets of samples; None where one is empty."""
    n, m = len(first), len(second)
    if not n or not m:
        return None
    u = sum((b > a) + 0.5 * (b == a) for a in first for b in second)
    ties = [count for count in Counter([*first, *second]).values() if count > 1]
    p_value = _exact(int(u), n, m) if not ties and n * m <= MOST_EXACT else _normal(u, n, m, ties)
    return RankTest(u, p_value, 2 * u / (n * m) - 1)


def _exact(u: int, n: int, m: int) -> float:
    """Return how probable so extreme a ``u`` is where all orders of the samples are equally probable.

    ways[j][s]: in how many ways j samples of the second set have s smaller ones of the first in front of them. The
    count runs over the first set: the next of its samples stands in front of as many of the second as are left.
    """
    ways = [[0] * (n * m + 1) for _ in range(m + 1)]
    ways[0][0] = 1
    for before in range(n + 1):  # samples of the second set that stand behind ``before`` of the first
        for j in range(1, m + 1):
            for total in range(before, n * m + 1):
                ways[j][total] += ways[j - 1][total - before]
    tail = sum(ways[m][: min(u, n * m - u) + 1])
    return min(1.0, 2 * tail / comb(n + m, m))


def _normal(u: float, n: int, m: int, ties: Sequence[int]) -> float:
    """Return the p value by the normal approximation, corrected for continuity and for ties."""
    total = n + m
    variance = n * m / 12 * (total + 1 - sum(t**3 - t for t in ties) / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    z = max(0.0, abs(u - n * m / 2) - 0.5) / sqrt(variance)
    return erfc(z / sqrt(2))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values that stay valid though several comparisons were made (Holm 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    found, greatest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        greatest = max(greatest, min(1.0, (len(p_values) - rank) * p_values[i]))
        found[i] = greatest
    return found
