"""How fast large spaces are sampled uniformly: 65,536 settings of spaces of 10^7 and 10^10 combinations of knobs.

In some, most settings are legal, in others 0.2 % are. ``pairs`` have rules over two knobs each, which are counted
exactly, so that every draw is legal. ``all`` have one rule over all knobs: 10^7 settings are looked at one by one, and
of 10^10 what breaks the rule is drawn in vain. Bar: each in under a second.
"""

from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.suite import Options, Result
from tilewright.core.streams import stream
from tilewright.schedule.space.columns import Bools, Columns, Ints
from tilewright.schedule.space.constraint import Constraint
from tilewright.schedule.space.enumerate import SettingTable, legal_settings
from tilewright.schedule.space.knob import Knob

SETTINGS = 65_536
VALUES = 10
ROUNDS = 5
BAR_SECONDS = 1.0


def run(options: Options) -> Result:
    rows = []
    for name, (knobs, rule, together) in SPACES.items():
        if fnmatch(name, options.rows):
            rows.append(_measured(name, *_space(knobs, rule, together), options.seed))
    passed = all(row["settings"] == row["wanted"] for row in rows)
    passed &= all(float(str(row["seconds"])) < BAR_SECONDS for row in rows)
    return Result(tuple(rows), {"rows": len(rows)}, passed, {"bar_seconds": BAR_SECONDS})


def _measured(name: str, knobs: tuple[Knob, ...], rules: Sequence[Constraint], seed: int) -> dict[str, object]:
    seconds, found = [], list[SettingTable]()
    for number in range(ROUNDS):
        start = perf_counter()
        found.append(legal_settings(knobs, rules, SETTINGS, stream(seed, "spaces", number)))
        seconds.append(perf_counter() - start)
    table = found[-1]
    return {
        "row": name,
        "seconds": median(seconds),
        "settings": len(table.codes),
        "wanted": min(SETTINGS, table.high),
        "total": table.total,
        "low": table.low,
        "high": table.high,
        "legal_share": table.total / VALUES ** len(knobs),
    }


def _space(knobs: int, rule: Callable[..., Bools], together: int) -> tuple[tuple[Knob, ...], list[Constraint]]:
    """So many knobs of ``VALUES`` values, and ``rule`` over each pair of neighbours, or over all knobs."""
    names = [f"knob_{n}" for n in range(knobs)]
    read = list(pairwise(names)) if together == 2 else [tuple(names)]
    constraints = [Constraint("the rule holds", scope, partial(_holds, rule, scope)) for scope in read]
    return tuple(Knob(name, tuple(range(VALUES)), "a number") for name in names), constraints


def _holds(rule: Callable[..., Bools], scope: Sequence[str], columns: Columns) -> Bools:
    return rule(*(columns.ints(name) for name in scope))


def _differ(x: Ints, y: Ints) -> Bools:
    differ: Bools = x != y
    return differ


def _both_even_or_odd(x: Ints, y: Ints) -> Bools:
    alike: Bools = (x + y) % 2 == 0
    return alike


def _is_small(*values: Ints) -> Bools:
    small: Bools = np.sum(values, axis=0) <= 2 * len(values)
    return small


def _is_rare(*values: Ints) -> Bools:
    rare: Bools = sum(7**n * value for n, value in enumerate(values)) % 500 == 0
    return rare


SPACES: dict[str, tuple[int, Callable[..., Bools], int]] = {
    "10^7, most legal, pairs": (7, _differ, 2),
    "10^10, most legal, pairs": (10, _differ, 2),
    "10^10, 0.2 % legal, pairs": (10, _both_even_or_odd, 2),
    "10^7, 0.2 % legal, all": (7, _is_rare, 7),
    "10^10, 0.2 % legal, all": (10, _is_small, 10),
}
"""Name -> how many knobs there are, the rule, and how many knobs it reads."""
