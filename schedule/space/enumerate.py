"""All legal settings of some knobs, or a uniform sample of them where they are too many to enumerate.

    tables = one table for each knob, a row for each of its values
    for each constraint, those with the smallest join first:
        join the tables that hold its knobs into one, and keep the rows for which the constraint holds
    the legal settings are the cross product of the tables that are left

A join of more than ``MOST_JOINED`` rows is not made. Its constraint is *open* then: rows of the cross product are drawn
uniformly, and those that break an open constraint are rejected, which leaves a uniform sample of the legal settings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from ...core.schedule import KnobValue
from .columns import Columns
from .constraint import Constraint
from .knob import Knob

MOST_JOINED = 2_000_000
"""Rows of a join that is still enumerated."""
CHUNK = 1 << 16
"""Rows whose constraints are worked out at a time, so that their columns stay in the cache."""
MOST_DRAWN = 4_000_000
"""Rows drawn at most for one sample, rejected ones included."""

Codes = NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Settings:
    """``codes``: int16[n, knobs], unique rows. ``total``: how many legal settings there are. It is exact where
    ``low == high``; otherwise it is an estimate, and [``low``, ``high``] is its 95 % confidence interval."""

    codes: Codes
    total: int
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class _Table:
    """Legal combinations of the knobs at ``positions``. ``codes``: int16[rows, all knobs], 0 for the other knobs."""

    positions: frozenset[int]
    codes: Codes


def legal_settings(
    knobs: tuple[Knob, ...],
    constraints: Sequence[Constraint],
    limit: int,
    draws: np.random.Generator,
    defaults: Mapping[str, KnobValue] | None = None,
) -> Settings:
    """At most ``limit`` legal settings: all of them where they are no more, else a uniform sample without repeats.

    There are no rows where no setting is legal, and where ``MOST_DRAWN`` draws find none.
    """
    tables, still_open = _joined(knobs, constraints, defaults or {})
    pairs = prod(len(t.codes) for t in tables)
    if not still_open and pairs <= max(limit, MOST_JOINED):
        codes = _combined(tables, np.arange(pairs, dtype=np.int64), len(knobs))
        if pairs > limit:
            codes = codes[np.sort(draws.permutation(pairs)[:limit])]
        return Settings(codes, pairs, pairs, pairs)
    return _sampled(knobs, tables, still_open, limit, draws, defaults or {})


def all_settings(knobs: tuple[Knob, ...]) -> Columns:
    """Every combination of the knobs' values, legal or not."""
    return Columns(knobs, grid_codes(knobs), {})


def grid_codes(knobs: Sequence[Knob]) -> Codes:
    """int16[n, knobs]: every combination of the knobs' values, legal or not."""
    tables = [_single(i, knob, len(knobs)) for i, knob in enumerate(knobs)]
    return _combined(tables, np.arange(prod(len(k.values) for k in knobs), dtype=np.int64), len(knobs))


def _joined(
    knobs: tuple[Knob, ...], constraints: Sequence[Constraint], defaults: Mapping[str, KnobValue]
) -> tuple[list[_Table], list[Constraint]]:
    """The tables after all joins that are small enough, in the order of the knobs, and the constraints left open."""
    position = {knob.name: i for i, knob in enumerate(knobs)}
    tables = [_single(i, knob, len(knobs)) for i, knob in enumerate(knobs)]
    waiting = list(constraints)
    while waiting:
        scopes = [frozenset(position[name] for name in c.knobs if name in position) for c in waiting]
        sizes = [prod(len(t.codes) for t in tables if t.positions & scope) for scope in scopes]
        chosen = int(np.argmin(sizes))
        if sizes[chosen] > MOST_JOINED:
            break
        rule, scope = waiting.pop(chosen), scopes[chosen]
        parts = [t for t in tables if t.positions & scope]
        rows = _combined(parts, np.arange(sizes[chosen], dtype=np.int64), len(knobs))
        held = frozenset[int]().union(*(t.positions for t in parts))
        table = _Table(held, rows[_holds(knobs, rows, [rule], defaults)])
        tables = sorted(
            [t for t in tables if not t.positions & scope] + [table], key=lambda t: min(t.positions, default=0)
        )
    return tables, waiting


def _sampled(
    knobs: tuple[Knob, ...],
    tables: Sequence[_Table],
    still_open: Sequence[Constraint],
    limit: int,
    draws: np.random.Generator,
    defaults: Mapping[str, KnobValue],
) -> Settings:
    """Rows of the cross product of ``tables``, drawn uniformly, without those that break an open constraint."""
    pairs = prod(len(t.codes) for t in tables)
    found = np.zeros((0, len(knobs)), dtype=np.int16)
    drawn = kept = 0
    while pairs and len(found) < limit and drawn < min(MOST_DRAWN, 64 * pairs):
        codes = np.zeros((CHUNK, len(knobs)), dtype=np.int16)
        for table in tables:
            codes += table.codes[draws.integers(0, len(table.codes), CHUNK)]
        codes = codes[_holds(knobs, codes, still_open, defaults)]
        drawn, kept = drawn + CHUNK, kept + len(codes)
        found = _unique(np.concatenate([found, codes]))
    share, margin = _wilson(kept, drawn)
    low, high = (pairs, pairs) if not still_open else (int((share - margin) * pairs), int((share + margin) * pairs) + 1)
    estimate = pairs if not still_open else round(kept / max(drawn, 1) * pairs)
    if len(found) > limit:
        found = found[np.sort(draws.permutation(len(found))[:limit])]
    return Settings(found, max(estimate, len(found)), max(low, len(found)), max(high, len(found)))


def _wilson(kept: int, drawn: int) -> tuple[float, float]:
    """Centre and half width of the 95 % interval of a share (Wilson, "Probable inference", 1927)."""
    if not drawn:
        return 0.0, 0.0
    z2, share = 1.96**2, kept / drawn
    centre = (share + z2 / (2 * drawn)) / (1 + z2 / drawn)
    return centre, sqrt(z2 * (share * (1 - share) / drawn + z2 / (4 * drawn**2))) / (1 + z2 / drawn)


def _holds(
    knobs: tuple[Knob, ...], codes: Codes, constraints: Sequence[Constraint], defaults: Mapping[str, KnobValue]
) -> NDArray[np.bool_]:
    """bool[n]: which rows keep all constraints. A rule sees only the rows that kept those before it."""
    kept = np.ones(len(codes), dtype=bool)
    for start in range(0, len(codes), CHUNK):
        part = kept[start : start + CHUNK]
        for rule in constraints:
            rows = np.flatnonzero(part)
            part[rows] = rule.holds(Columns(knobs, codes[start : start + CHUNK][rows], defaults))
    return kept


def _single(position: int, knob: Knob, width: int) -> _Table:
    codes = np.zeros((len(knob.values), width), dtype=np.int16)
    codes[:, position] = np.arange(len(knob.values))
    return _Table(frozenset({position}), codes)


def _combined(tables: Sequence[_Table], numbers: NDArray[np.int64], width: int) -> Codes:
    """int16[n, width]: the numbered rows of the cross product of ``tables``, the last table running fastest."""
    codes = np.zeros((len(numbers), width), dtype=np.int16)
    for table in reversed(tables):
        numbers, row = np.divmod(numbers, max(len(table.codes), 1))
        codes += table.codes[row]
    return codes


def _unique(codes: Codes) -> Codes:
    """The rows of ``codes`` without repeats, each where it stood first."""
    packed = np.ascontiguousarray(codes).view(np.dtype((np.void, codes.shape[1] * 2)))
    return codes[np.sort(np.unique(packed.ravel(), return_index=True)[1])]
