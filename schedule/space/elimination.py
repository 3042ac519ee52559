"""Counts legal settings by eliminating knobs one after the other (bucket elimination, Dechter 1999).

    until no knob is left:
        choose the knob whose constraints reach the fewest settings of knobs
        bucket  = the settings of all knobs that these constraints reach, those that keep them
        summary = the bucket without the knobs that nothing else reads; each row with the number of its completions
        the summary takes the place of the constraints
    total = the product of the sums of what reads no other knob

Back through the buckets, a setting of the knobs so far is completed by the rows of the next bucket that fit it: by all
of them, or by one that is drawn with a probability proportional to its completions. So every legal setting is drawn
with the same probability, and no draw is in vain.

A constraint that reads so many knobs that its bucket would be too large is *open*: it is not counted. It is checked as
soon as all of its knobs are set, so that settings that break it are completed no further.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...core.schedule import KnobValue
from .columns import Bools, Columns, Floats, Ints
from .constraint import Constraint
from .knob import Knob

MOST_JOINED = 2_000_000
"""Rows that a bucket may have."""
CHUNK = 1 << 16
"""Rows whose constraints are worked out at a time, so that their columns stay in the cache."""
_MOST_KEY = 1 << 62
_MOST_SETTINGS_PER_ROW = 16

Codes = NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class _Rule:
    """A constraint that reads the knobs at ``scope``."""

    constraint: Constraint
    scope: frozenset[int]


@dataclass(frozen=True, eq=False)
class _Factor:
    """Settings of the knobs at ``positions``. ``codes``: int16[rows, all knobs], 0 for the other knobs. ``weights``:
    float64[rows], how many completions each of them has by knobs that were eliminated before."""

    positions: frozenset[int]
    codes: Codes
    weights: Floats


class _TooLarge(Exception):
    """A bucket would have more than ``MOST_JOINED`` rows. ``reach``: its knobs."""

    def __init__(self, reach: frozenset[int]) -> None:
        self.reach = reach


@dataclass(frozen=True, eq=False)
class _Bucket:
    """How settings of the knobs at ``kept`` are completed by knobs that one step has eliminated.

    ``own``: the eliminated knobs. ``settings``: int16[groups, all knobs], the settings of the kept knobs, in order.
    ``completions``: int16[rows, all knobs], those of the eliminated knobs, group after group. ``starts``:
    int64[groups + 1], where groups begin. ``cumulative``: float64[rows], the group's number plus the share of its
    weight up to and with each row; None where all rows of a group have the same weight.
    """

    kept: tuple[int, ...]
    own: tuple[int, ...]
    settings: Codes
    completions: Codes
    starts: Ints
    cumulative: Floats | None

    def completed(self, codes: Codes, sizes: Sequence[int]) -> Codes:
        """Return all completions of all ``codes``."""
        if not self.kept:
            return (codes[:, None] + self.completions).reshape(-1, codes.shape[1])
        group = self._groups(codes, sizes)
        row, times = _ranges(self.starts[group], self.starts[group + 1])
        return codes[np.repeat(np.arange(len(codes)), times)] + self.completions[row]

    def draw(self, codes: Codes, sizes: Sequence[int], draws: np.random.Generator) -> None:
        """Give each of ``codes`` one completion."""
        group = self._groups(codes, sizes) if self.kept else 0
        first, last, place = self.starts[group], self.starts[group + 1], draws.random(len(codes))
        if self.cumulative is None:
            row = first + (place * (last - first)).astype(np.int64)
        else:
            row = np.searchsorted(self.cumulative, group + place, side="right")
        row = np.clip(row, first, last - 1)
        for position in self.own:
            codes[:, position] = self.completions[row, position]

    def _groups(self, codes: Codes, sizes: Sequence[int]) -> Ints:
        known, wanted = _keys(self.kept, sizes, self.settings, codes)
        return np.searchsorted(known, wanted)


class Elimination:
    """The legal settings of some knobs, counted. ``total``: how many settings keep all constraints but those of
    ``open``. It is exact up to 2^53; beyond, it is right to 12 digits. ``all`` and ``drawn`` keep the open ones too."""

    def __init__(
        self, knobs: tuple[Knob, ...], constraints: Iterable[Constraint], defaults: Mapping[str, KnobValue]
    ) -> None:
        self._knobs, self._defaults = knobs, defaults
        self._sizes = [len(k.values) for k in knobs]
        position = {knob.name: i for i, knob in enumerate(knobs)}
        rules = [_Rule(c, frozenset(position[name] for name in c.knobs if name in position)) for c in constraints]
        always = [r.constraint for r in rules if not r.scope]
        possible = bool(self.keeps(np.zeros((1, len(knobs)), dtype=np.int16), always).all())
        rules, unused = [r for r in rules if r.scope], list[_Rule]()
        while True:
            self._buckets = list[_Bucket]()
            try:
                counts = self._eliminate(rules)
                break
            except _TooLarge as found:
                reach = found.reach
                largest = max(rules, key=lambda r: (bool(r.scope & reach), prod(self._sizes[p] for p in r.scope)))
                rules.remove(largest)
                unused.append(largest)
        self.open = tuple(r.constraint for r in unused)
        self.total = prod(int(c) for c in counts) if possible else 0
        self._steps = list(_steps(reversed(self._buckets), unused))

    @property
    def rows(self) -> int:
        """Return how many rows its buckets have, which is what it takes in memory."""
        return sum(len(bucket.completions) for bucket in self._buckets)

    def all(self) -> Codes:
        """Return the legal settings in the order of the knobs' values, int16[n, knobs]. The last knob changes
        fastest."""
        codes = np.zeros((min(self.total, 1), len(self._knobs)), dtype=np.int16)
        for bucket, checks in self._steps:
            parts = [codes[start : start + CHUNK] for start in range(0, max(len(codes), 1), CHUNK)]
            completed = (bucket.completed(part, self._sizes) for part in parts)
            codes = np.concatenate([part[self.keeps(part, checks)] for part in completed])
        (keys,) = _keys(range(len(self._knobs)), self._sizes, codes)
        return codes[np.argsort(keys, kind="stable")]

    def drawn(self, count: int, draws: np.random.Generator) -> Codes:
        """Return the legal ones of ``count`` settings, int16[n, knobs], which are drawn uniformly and may repeat. All
        are legal where no constraint is open. ``total`` must not be 0."""
        return np.concatenate(
            [self._drawn(min(CHUNK, count - start), draws) for start in range(0, max(count, 1), CHUNK)]
        )

    def _drawn(self, count: int, draws: np.random.Generator) -> Codes:
        codes = np.zeros((len(self._knobs), count), dtype=np.int16).T  # the codes of a knob are neighbours in memory
        for bucket, checks in self._steps:
            bucket.draw(codes, self._sizes, draws)
            if checks:
                codes = codes.T[:, self.keeps(codes, checks)].T
        return codes

    def distinct(self, codes: Codes) -> Codes:
        """Return the rows of ``codes`` without repeats, each where it stood first."""
        (keys,) = _keys(range(len(self._knobs)), self._sizes, codes)
        return codes[np.sort(np.unique(keys, return_index=True)[1])]

    def keeps(self, codes: Codes, constraints: Sequence[Constraint]) -> Bools:
        """Return which rows keep all ``constraints``, bool[n]. Each of these sees only the rows that kept those before
        it."""
        kept = np.ones(len(codes), dtype=bool)
        for start in range(0, len(codes), CHUNK):
            part = kept[start : start + CHUNK]
            columns = Columns(self._knobs, codes[start : start + CHUNK], self._defaults)
            for constraint in constraints:
                holds = constraint.holds(columns)
                part[part] = holds
                columns = columns if holds.all() else columns.kept(holds)
        return kept

    # --- the buckets

    def _eliminate(self, rules: Sequence[_Rule]) -> list[float]:
        """Make all buckets; how many settings there are of each set of knobs that no constraint connects to others."""
        left, summaries, counts = set(range(len(self._knobs))), list[_Factor](), list[float]()
        while left:
            reaches = {p: _reach(p, rules, summaries) for p in sorted(left)}
            reach = min(reaches.values(), key=lambda r: prod(self._sizes[p] for p in r))
            inside = [r for r in rules if r.scope <= reach]
            absorbed = [s for s in summaries if s.positions <= reach]
            table = self._table(reach, inside, absorbed)
            rules = [r for r in rules if not r.scope <= reach]
            summaries = [s for s in summaries if not s.positions <= reach]
            read = frozenset[int]().union(*(r.scope for r in rules), *(s.positions for s in summaries))
            kept = tuple(sorted(reach & read))
            summary = self._summarise(table, kept)
            left -= reach - set(kept)
            if kept:
                summaries.append(summary)
            else:
                counts.append(float(summary.weights.sum()))
        return counts

    def _table(self, reach: frozenset[int], rules: Sequence[_Rule], summaries: Sequence[_Factor]) -> _Factor:
        """Return the settings of the knobs at ``reach`` that keep ``rules`` and are in ``summaries``, by joining what
        the rules read: the smallest join first. Raises _TooLarge."""
        covered = frozenset[int]().union(*(s.positions for s in summaries))
        tables, waiting = [*summaries, *(self._single(p) for p in sorted(reach - covered))], list(rules)
        while waiting:
            sizes = [prod(len(t.codes) for t in tables if t.positions & r.scope) for r in waiting]
            rule = waiting.pop(int(np.argmin(sizes)))
            read = [t for t in tables if t.positions & rule.scope]
            joined = reduce(lambda a, b: self._join(a, b, reach), read)
            rows = self._keeps_rule(joined.codes, rule)
            tables = [t for t in tables if not t.positions & rule.scope]
            tables.append(_Factor(joined.positions, joined.codes[rows], joined.weights[rows]))
        return reduce(lambda a, b: self._join(a, b, reach), tables)

    def _keeps_rule(self, codes: Codes, rule: _Rule) -> Bools:
        """bool[n]: which rows keep ``rule``. Settings of the knobs that it reads are looked at once each, where there
        are not many more of them than rows."""
        settings = prod(self._sizes[p] for p in rule.scope)
        if settings > _MOST_SETTINGS_PER_ROW * len(codes):
            return self.keeps(codes, [rule.constraint])
        (keys,) = _keys(sorted(rule.scope), self._sizes, codes)
        row = np.full(settings, -1, dtype=np.int64)
        row[keys] = np.arange(len(codes))
        present = np.flatnonzero(row >= 0)
        kept = np.zeros(settings, dtype=bool)
        kept[present] = self.keeps(codes[row[present]], [rule.constraint])
        return kept[keys]

    def _single(self, position: int) -> _Factor:
        """Return all values of one knob."""
        codes = np.zeros((self._sizes[position], len(self._knobs)), dtype=np.int16)
        codes[:, position] = np.arange(self._sizes[position])
        return _Factor(frozenset({position}), codes, np.ones(len(codes)))

    def _join(self, a: _Factor, b: _Factor, reach: frozenset[int]) -> _Factor:
        """Return the pairs of a row of ``a`` and one of ``b`` that agree on the knobs of both."""
        shared = tuple(sorted(a.positions & b.positions))
        of_a, of_b = _keys(shared, self._sizes, a.codes, b.codes)
        order = np.argsort(of_b, kind="stable")
        first = np.searchsorted(of_b[order], of_a, side="left")
        last = np.searchsorted(of_b[order], of_a, side="right")
        if int((last - first).sum()) > MOST_JOINED:
            raise _TooLarge(reach)
        row, times = _ranges(first, last)
        left, right = np.repeat(np.arange(len(a.codes)), times), order[row]
        own = b.codes.copy()
        own[:, shared] = 0
        return _Factor(a.positions | b.positions, a.codes[left] + own[right], a.weights[left] * b.weights[right])

    def _summarise(self, table: _Factor, kept: tuple[int, ...]) -> _Factor:
        """``table`` on the knobs at ``kept`` alone. The other knobs become a bucket."""
        (keys,) = _keys(kept, self._sizes, table.codes)
        order = np.argsort(keys, kind="stable")
        _, first, group = np.unique(keys[order], return_index=True, return_inverse=True)
        codes, weights = table.codes[order], table.weights[order]
        totals = np.bincount(group, weights, len(first)).astype(np.float64)
        settings = np.zeros((len(first), codes.shape[1]), dtype=np.int16)
        settings[:, kept] = codes[first][:, kept]
        codes[:, kept] = 0
        starts = np.append(first, len(codes))
        own = tuple(sorted(table.positions - set(kept)))
        self._buckets.append(_Bucket(kept, own, settings, codes, starts, _cumulative(weights, group, first, totals)))
        return _Factor(frozenset(kept), settings, totals)


def _cumulative(weights: Floats, group: Ints, first: Ints, totals: Floats) -> Floats | None:
    """See ``_Bucket.cumulative``. ``group``: int64[rows]; ``first``, ``totals``: first row and weight of each group."""
    if (weights == weights[first][group]).all():
        return None
    running = np.cumsum(weights / totals[group])
    before = np.concatenate([[0.0], running])[first]
    found: Floats | None = group + np.minimum(running - before[group], 1.0)
    return found


def _steps(buckets: Iterable[_Bucket], rules: Sequence[_Rule]) -> Iterator[tuple[_Bucket, tuple[Constraint, ...]]]:
    """Yield each bucket with those of ``rules`` whose last knob it sets."""
    known, waiting = frozenset[int](), list(rules)
    for bucket in buckets:
        known |= set(bucket.own)
        yield bucket, tuple(r.constraint for r in waiting if r.scope <= known)
        waiting = [r for r in waiting if not r.scope <= known]


def _reach(position: int, rules: Sequence[_Rule], summaries: Sequence[_Factor]) -> frozenset[int]:
    """Return the knobs that stand with the one at ``position`` in a rule or a summary, and itself."""
    scopes = [*(r.scope for r in rules), *(s.positions for s in summaries)]
    return frozenset({position}).union(*(scope for scope in scopes if position in scope))


def _keys(positions: Iterable[int], sizes: Sequence[int], *tables: Codes) -> list[Ints]:
    """Return a number for each row of all ``tables``, equal and in order as the codes at ``positions`` are."""
    codes = np.concatenate(tables)
    keys, values = np.zeros(len(codes), dtype=np.int64), 1
    for position in positions:
        if values > _MOST_KEY // sizes[position]:
            found, keys = np.unique(keys, return_inverse=True)
            values = len(found)
        keys = keys * sizes[position] + codes[:, position]
        values *= sizes[position]
    return np.split(keys, np.cumsum([len(t) for t in tables])[:-1])


def _ranges(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Return the numbers from each ``first`` up to its ``last``, range after range, and how many each range has."""
    times = last - first
    ends = np.cumsum(times)
    return np.arange(int(times.sum())) - np.repeat(ends - times - first, times), times
