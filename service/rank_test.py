"""The Mann-Whitney U test: do two sets of samples come from one distribution? It compares ranks, so that outliers and
skewed distributions, which timings have, do not decide (Mann and Whitney 1947)."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    from scipy.stats import mannwhitneyu  # it takes half a second to load

    found = mannwhitneyu(second, first, alternative="two-sided")
    alike = len({*first, *second}) == 1  # SciPy has no answer then
    return RankTest(float(found.statistic), 1.0 if alike else float(found.pvalue), 2 * found.statistic / (n * m) - 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values that stay valid though several comparisons were made (Holm 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    found, greatest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        greatest = max(greatest, min(1.0, (len(p_values) - rank) * p_values[i]))
        found[i] = greatest
    return found
