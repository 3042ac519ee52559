"""Legal settings: all of them, or a uniform sample with the size known, against brute force."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np
import pytest

from tilewright.schedule.space import elimination
from tilewright.schedule.space import enumerate as enumeration
from tilewright.schedule.space.columns import Bools, Columns
from tilewright.schedule.space.constraint import Constraint
from tilewright.schedule.space.elimination import Elimination
from tilewright.schedule.space.enumerate import SettingTable, all_settings, legal_settings
from tilewright.schedule.space.knob import Knob

Rules = tuple[Constraint, ...]


def knobs_of(*counts: int) -> tuple[Knob, ...]:
    """Knobs ``a``, ``b`` ... with the values 0, 1 ... each."""
    return tuple(Knob(chr(ord("a") + n), tuple(range(count)), "a test knob") for n, count in enumerate(counts))


def rule(knobs: str, holds: Callable[..., Bools]) -> Constraint:
    """A constraint on the columns of ``knobs``, one letter each."""
    return Constraint(
        f"{' and '.join(knobs)} fit", tuple(knobs), lambda c: np.asarray(holds(*(c.ints(k) for k in knobs)))
    )


def found(knobs: tuple[Knob, ...], rules: Rules, limit: int, seed: int = 1) -> SettingTable:
    return legal_settings(knobs, rules, limit, np.random.default_rng(seed))


def rows(codes: np.ndarray[tuple[int, ...], np.dtype[np.int16]]) -> list[tuple[int, ...]]:
    return [tuple(map(int, row)) for row in codes]


def brute_force(knobs: tuple[Knob, ...], rules: Rules) -> list[tuple[int, ...]]:
    columns = all_settings(knobs)
    kept = np.ones(len(columns), dtype=bool)
    for constraint in rules:
        kept &= constraint.holds(columns)
    return rows(columns.codes[kept])


CASES: dict[str, tuple[tuple[Knob, ...], Rules]] = {
    "no rules": (knobs_of(3, 4, 2), ()),
    "one knob alone": (knobs_of(5, 3), (rule("a", lambda a: a != 2),)),
    "a chain": (
        knobs_of(4, 4, 4, 4, 4),
        tuple(rule(pair, lambda x, y: (x + y) % 3 != 0) for pair in ("ab", "bc", "cd", "de")),
    ),
    "a ring": (
        knobs_of(4, 4, 4, 4, 4),
        tuple(rule(pair, lambda x, y: x != y) for pair in ("ab", "bc", "cd", "de", "ea")),
    ),
    "a star": (knobs_of(5, 3, 3, 3), tuple(rule(f"a{x}", lambda a, x: a >= x) for x in "bcd")),
    "knobs that depend on others": (
        knobs_of(2, 3, 4, 3),
        (
            rule("ab", lambda a, b: (a == 1) | (b == 0)),  # b has no effect without a
            rule("bc", lambda b, c: (b > 0) | (c == 0)),
            rule("abcd", lambda a, b, c, d: a + b + c + d <= 6),
        ),
    ),
    "two parts": (
        knobs_of(4, 4, 4, 4),
        (rule("ab", lambda a, b: a < b), rule("cd", lambda c, d: c * d % 2 == 1)),
    ),
    "everything at once": (knobs_of(3, 4, 5, 4), (rule("abcd", lambda a, b, c, d: (a * b + c * d) % 5 == 2),)),
    "nothing": (knobs_of(3, 3), (rule("a", lambda a: a == 1), rule("ab", lambda a, b: a == b + 5))),
}


@pytest.mark.parametrize("case", CASES)
def test_all_settings_are_found_once_and_in_order(case: str) -> None:
    knobs, rules = CASES[case]
    settings = found(knobs, rules, 10_000)
    wanted = brute_force(knobs, rules)
    assert rows(settings.codes) == wanted
    assert settings.total == settings.low == settings.high == len(wanted)


@pytest.mark.parametrize("case", [c for c in CASES if c != "nothing"])
def test_every_legal_setting_is_drawn_as_often_as_any_other(case: str) -> None:
    knobs, rules = CASES[case]
    wanted = brute_force(knobs, rules)
    tree = Elimination(knobs, rules, {})
    assert tree.total == len(wanted) and not tree.open
    assert chi_square(tree.drawn(200 * len(wanted), np.random.default_rng(3)), wanted) < most_chi_square(len(wanted))


def chi_square(drawn: np.ndarray[tuple[int, ...], np.dtype[np.int16]], wanted: list[tuple[int, ...]]) -> float:
    """Of how often each of the settings ``wanted`` was drawn, if all of them are equally likely."""
    counts = dict.fromkeys(wanted, 0)
    for row in rows(drawn):
        counts[row] += 1  # KeyError: it is not legal
    expected = len(drawn) / len(wanted)
    return sum((n - expected) ** 2 / expected for n in counts.values())


def most_chi_square(outcomes: int) -> float:
    """What one in a million samples exceeds (Wilson and Hilferty's approximation of the quantile)."""
    freedom = max(outcomes - 1, 1)
    return float(freedom * (1 - 2 / (9 * freedom) + 4.75 * np.sqrt(2 / (9 * freedom))) ** 3)


def test_a_sample_with_open_constraints_is_uniform_and_bounds_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small twin of a space whose widest constraint reads too many settings to take part in the counting."""
    knobs = knobs_of(*(4,) * 6)
    rules = (
        rule("abcdef", lambda *all_of_them: sum(all_of_them) <= 8),
        *(rule(pair, lambda x, y: x != y) for pair in ("ab", "cd")),
    )
    wanted = brute_force(knobs, rules)
    monkeypatch.setattr(elimination, "MOST_JOINED", 400)
    assert found(knobs, rules, 10_000).low == found(knobs, rules, 10_000).high == len(wanted)  # all are looked at
    monkeypatch.setattr(enumeration, "MOST_DRAWN", 2000)
    tree = Elimination(knobs, rules, {})
    assert tree.open == rules[:1] and tree.total == 4**2 * 12**2 > len(wanted)
    drawn = tree.drawn(400 * len(wanted), np.random.default_rng(5))
    assert 100 * len(wanted) < len(drawn) < 400 * len(wanted)
    assert chi_square(drawn, wanted) < most_chi_square(len(wanted))
    settings = found(knobs, rules, 400, seed=2)
    assert len(settings.codes) == 400 == len(set(rows(settings.codes))) and set(rows(settings.codes)) <= set(wanted)
    assert settings.low <= len(wanted) <= settings.high < 1.05 * settings.low


@pytest.mark.parametrize("most", [4, 12, 50])
def test_what_does_not_fit_into_a_bucket_is_left_open(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for knobs, rules in CASES.values():
        wanted = brute_force(knobs, rules)
        with monkeypatch.context() as patch:
            patch.setattr(elimination, "MOST_JOINED", most)
            tree = Elimination(knobs, rules, {})
            codes = tree.all()
        assert rows(codes) == wanted and tree.total >= len(wanted)
        assert tree.open or tree.total == len(wanted)


TEN_MILLION = (
    knobs_of(*(8,) * 8),
    (
        *(rule(pair, lambda x, y: x + y < 14) for pair in ("ab", "bc", "cd", "de", "ef", "fg", "gh")),
        rule("aceg", lambda a, c, e, g: (a + c + e + g) % 2 == 0),
    ),
)
"""7,585,995 settings, tied together by constraints that overlap."""
TEN_BILLION = (
    knobs_of(*(8,) * 12),
    (
        *(rule(pair, lambda x, y: x <= y + 5) for pair in ("ab", "bc", "cd", "de", "ef", "fg", "gh", "hi", "ij", "jk")),
        rule("aceg", lambda a, c, e, g: a + c + e + g < 20),
        rule("gikl", lambda w, x, y, z: (w * x + y * z) % 3 != 1),
    ),
)
"""26,681,626,363 settings."""


@pytest.mark.parametrize(("case", "least"), [(TEN_MILLION, 5e6), (TEN_BILLION, 1e10)], ids=["10^7", "10^10"])
def test_large_spaces_are_sampled_uniformly_with_the_size_known(
    case: tuple[tuple[Knob, ...], Rules], least: float
) -> None:
    knobs, rules = case
    settings = found(knobs, rules, 65_536)
    assert settings.total >= least and settings.low == settings.total == settings.high
    assert len(np.unique(settings.codes, axis=0)) == len(settings.codes) == 65_536
    columns = Columns(knobs, settings.codes, {})
    assert all(r.holds(columns).all() for r in rules)
    # the share of settings in which one more rule holds is that in the space
    for extra in (rule("ab", lambda a, b: a < b), rule("gh", lambda g, h: g == h), rule("ag", lambda a, g: a > g)):
        share = Elimination(knobs, (*rules, extra), {}).total / settings.total
        sampled = float(extra.holds(columns).mean())
        assert abs(sampled - share) < 5 * np.sqrt(share * (1 - share) / 65_536)
    again = found(knobs, rules, 65_536)
    other = found(knobs, rules, 65_536, seed=2)
    assert np.array_equal(again.codes, settings.codes) and not np.array_equal(other.codes, settings.codes)


def test_the_size_of_an_immense_space_is_known() -> None:
    letters = "abcdefghijklmnopqrstuvwxy"
    knobs = knobs_of(*(10,) * len(letters))
    rules = tuple(rule(a + b, lambda x, y: x != y) for a, b in pairwise(letters))
    settings = found(knobs, rules, 1000)
    exact = 10 * 9**24
    assert settings.low <= exact <= settings.high and settings.high - settings.low < 1e-8 * exact
    assert len(np.unique(settings.codes, axis=0)) == 1000


def test_a_limit_takes_a_sample_without_repeats_of_a_small_space() -> None:
    knobs, rules = CASES["a ring"]
    wanted = set(brute_force(knobs, rules))
    settings = found(knobs, rules, 50)
    assert len(settings.codes) == 50 == len(set(rows(settings.codes))) and set(rows(settings.codes)) <= wanted
    assert settings.total == len(wanted)


def test_a_knob_of_another_workload_takes_its_default() -> None:
    knobs = knobs_of(4)
    rules = (Constraint("a is less than z", ("a", "z"), lambda c: c.ints("a") < c.ints("z")),)
    settings = legal_settings(knobs, rules, 100, np.random.default_rng(1), {"z": 3})
    assert rows(settings.codes) == [(0,), (1,), (2,)]


def test_a_rule_about_no_knob_decides_for_all() -> None:
    for value, total in ((True, 6), (False, 0)):
        rules = (Constraint("the workload fits", (), partial(lambda value, c: np.full(len(c), value), value)),)
        assert found(knobs_of(2, 3), rules, 100).total == total


def test_grids_are_in_order() -> None:
    assert rows(all_settings(knobs_of(2, 3)).codes) == [(a, b) for a in range(2) for b in range(3)]
    assert len(all_settings(knobs_of(3, 4, 5))) == prod((3, 4, 5))
