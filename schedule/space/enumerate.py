"""All legal settings of some knobs, or a uniform sample of them where they are too many to enumerate.

Settings are counted by eliminating knobs (see ``elimination``), then enumerated or drawn. A constraint that reads so
many knobs that it cannot take part is *open*. Where those that keep the others are few enough, all of them are looked
at. Otherwise they are drawn, and those that break an open constraint are rejected: that leaves a uniform sample of the
legal ones and an estimate of how many there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, prod, sqrt

import numpy as np

from ...core.schedule import KnobValue
from .columns import Columns
from .constraint import Constraint
from .elimination import CHUNK, MOST_JOINED, Codes, Elimination
from .knob import Knob

MOST_DRAWN = 1 << 25
"""Rows looked at or drawn at most for one sample, rejected ones included: at 0.2 % legal ones they yield 65,536."""
_MOST_AT_ONCE = 1 << 22
_EXACT = 1 << 53
"""The number up to which float64 holds every whole number."""


@dataclass(frozen=True, eq=False)
class SettingTable:
    """``codes``: int16[n, knobs], unique rows. ``total``: how many legal settings there are. It is exact where
    ``low == high``; otherwise it is an estimate, and [``low``, ``high``] is its 95 % confidence interval."""

    codes: Codes
    total: int
    low: int
    high: int


def legal_settings(
    knobs: tuple[Knob, ...],
    constraints: Sequence[Constraint],
    limit: int,
    draws: np.random.Generator,
    defaults: Mapping[str, KnobValue] | None = None,
) -> SettingTable:
    """At most ``limit`` legal settings: all of them where they are no more, else a uniform sample without repeats.

    There are no rows where no setting is legal, and where ``MOST_DRAWN`` draws find none.
    """
    return settings_of(Elimination(knobs, constraints, defaults or {}), limit, draws)


def settings_of(found: Elimination, limit: int, draws: np.random.Generator) -> SettingTable:
    """Return ``legal_settings`` of knobs whose legal settings have been counted."""
    if found.total > max(limit, MOST_DRAWN if found.open else MOST_JOINED):
        return _sampled(found, limit, draws)
    codes = found.all()
    total = len(codes)
    if total > limit:
        codes = codes[np.sort(draws.permutation(total)[:limit])]
    return SettingTable(codes, total, total, total)


def all_settings(knobs: tuple[Knob, ...]) -> Columns:
    """Return every combination of the knobs' values, legal or not."""
    return Columns(knobs, grid_codes(knobs), {})


def has_legal_setting(
    knobs: tuple[Knob, ...], constraints: Sequence[Constraint], defaults: Mapping[str, KnobValue] | None = None
) -> bool:
    """Return whether some combination of the values of a few knobs keeps all constraints. ``defaults``: the values of
    knobs that the workload lacks."""
    settings = Columns(knobs, grid_codes(knobs), defaults or {})
    return bool(np.logical_and.reduce([c.holds(settings) for c in constraints]).any())


def grid_codes(knobs: Sequence[Knob]) -> Codes:
    """Return every combination of the knobs' values, legal or not, int16[n, knobs]. The last knob changes fastest."""
    shape = [len(k.values) for k in knobs]
    return np.stack(np.unravel_index(np.arange(prod(shape)), shape), axis=1).astype(np.int16)


def _sampled(found: Elimination, limit: int, draws: np.random.Generator) -> SettingTable:
    """Settings drawn uniformly, without repeats and without those that break an open constraint."""
    codes = found.drawn(0, draws)
    drawn = kept = 0
    while len(codes) < limit and drawn < MOST_DRAWN:
        accepted = max(kept, 1) / max(drawn, 1)
        count = int(np.clip(1.1 * (limit - len(codes)) / accepted, CHUNK, _MOST_AT_ONCE))
        more = found.drawn(count, draws)
        drawn, kept = drawn + count, kept + len(more)
        codes = found.distinct(np.concatenate([codes, more]))
    codes = codes[:limit]
    if found.open:
        share, margin = _wilson(kept, drawn)
        total, low, high = (found.total * n for n in (kept / drawn, share - margin, share + margin))
    else:
        rounding = 0 if found.total <= _EXACT else 1e-9 * found.total
        total, low, high = found.total, found.total - rounding, found.total + rounding
    return SettingTable(codes, *(max(n, len(codes)) for n in (round(total), floor(low), ceil(high))))


def _wilson(kept: int, drawn: int) -> tuple[float, float]:
    """Centre and half width of the 95 % interval of a share (Wilson, "Probable inference", 1927)."""
    z2, share = 1.96**2, kept / drawn
    centre = (share + z2 / (2 * drawn)) / (1 + z2 / drawn)
    return centre, sqrt(z2 * (share * (1 - share) / drawn + z2 / (4 * drawn**2))) / (1 + z2 / drawn)
