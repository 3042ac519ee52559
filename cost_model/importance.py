"""How much each knob decides whether a trial is among the fastest: PED-ANOVA for knobs with few values.

    top = the fastest tenth of the trials, at least MIN_TOP and never more than half
    importance of a knob ~ sum over its values v of  p_all(v) * (p_top(v) / p_all(v) - 1)^2
    p(v) = (how often v occurs + PRIOR / number of values) / (how many trials + PRIOR)

This is the Pearson divergence between the distributions of a knob's values among the fastest and among all trials
(Watanabe, Bansal, Hutter: PED-ANOVA, IJCAI 2023, arXiv:2304.10255). Knobs have few values, so that relative
frequencies take the place of the paper's kernel density estimates. A number with many values would seem important
because each value is rare: such numbers are binned. The divergences are divided by their sum. A knob
that does not matter keeps its distribution among the fastest. Effects of knobs together are not told apart.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

METHOD = "PED-ANOVA"
TOP_SHARE, MIN_TOP = 0.1, 8
MIN_TRIALS = 16
"""With fewer timed trials nothing is said."""
PRIOR = 1.0
BINS = 8
"""Numbers with more values are put into so many bins, each with as many neighbouring values."""


def top_count(trials: int) -> int:
    """Return how many of so many trials count as the fastest."""
    return min(max(math.ceil(TOP_SHARE * trials), MIN_TOP), trials // 2)


def knob_importance(values: Sequence[Sequence[int | str | None]], seconds: Sequence[float]) -> list[float] | None:
    """Return the importance of each knob; they sum to 1. ``values[k][t]`` is knob ``k`` of trial ``t``, which took
    ``seconds[t]``. None for fewer than MIN_TRIALS trials, and where no knob tells the fastest from the others."""
    if len(seconds) < MIN_TRIALS:
        return None
    order = sorted(range(len(seconds)), key=lambda trial: seconds[trial])
    top = order[: top_count(len(order))]
    divergences = [_divergence(column, [column[trial] for trial in top]) for column in values]
    total = sum(divergences)
    return [divergence / total for divergence in divergences] if total > 0 else None


def _bins(values: Sequence[int | str | None]) -> Callable[[int | str | None], object]:
    numbers = sorted({value for value in values if isinstance(value, int)})
    if len(numbers) <= BINS or len(numbers) < len(set(values)):
        return lambda value: value
    bin_of: dict[object, int] = {number: rank * BINS // len(numbers) for rank, number in enumerate(numbers)}
    return bin_of.__getitem__


def _divergence(everywhere: Sequence[int | str | None], among_top: Sequence[int | str | None]) -> float:
    binned = _bins(everywhere)
    counts, chosen = Counter(map(binned, everywhere)), Counter(map(binned, among_top))
    if len(counts) < 2:
        return 0.0
    prior = PRIOR / len(counts)
    total = 0.0
    for value, count in counts.items():
        usual = (count + prior) / (len(everywhere) + PRIOR)
        fast = (chosen[value] + prior) / (len(among_top) + PRIOR)
        total += usual * (fast / usual - 1) ** 2
    return total
