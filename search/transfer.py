"""What earlier tasks say of a pool's candidates: the same settings on other devices or for other shapes.

Each earlier task is a *source*. Where it measured a candidate its result counts; elsewhere a Gaussian process on its
results fills in, together with trees that know the results of all sources. The prior is one more source beside earlier
tasks. Sources are weighed by how well they order what this task has measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.ensemble import ExtraTreesRegressor

from ..core.schedule import Schedule
from ..core.streams import stream
from ..core.trial import Outcome, Timed
from ..cost_model.dataset import Experience
from .encoding import Encoding
from .gaussian_process import BLAS, Floats, GaussianProcess
from .improvement import compressed
from .pool import CandidatePool

_LEAST = 8
"""Sources with fewer valid results that mean something in the pool say nothing."""
_SOURCES = 8
"""So many sources with the most results are used."""
_LEARN_FROM = 320
"""Results of a source that its Gaussian process sees: half of them the fastest."""
_LENGTHS_FROM = 200
"""So many of them choose its lengths."""
_TREES = 60
_BELIEF, _WORTH = 0.7, 6
"""The rank correlation that a source is expected to have, and how many results this expectation is worth."""
_OWN_MEAN = 0.1
_WIDE = 0.9
"""The quantile of a source that counts as far from its best as the two ends of a knob are from each other."""
_SHARP = 3.0
"""Of the first candidates the fastest of a source count: those that are slower by a tenth by a quarter less."""
_LEAST_AGREEMENT = 0.2
"""Sources that agree less are dropped."""


class Transfer:
    """``sources``: float32[sources, pool], the logarithm of seconds over the source's best, compressed as search
    compresses its own (``improvement.compressed``). The prior, where the pool has one, is the last source."""

    def __init__(self, pool: CandidatePool, history: Sequence[Experience], seed: int) -> None:
        encoding = Encoding.of(pool)
        points = encoding.points(pool)
        largest = sorted(history, key=lambda e: -len(e.results))[:_SOURCES]
        places = _PoolRows(points)
        kept = [s for e in largest if (s := _source(encoding, places, e.results)) is not None]
        self._points = points
        with BLAS.limit(limits=1):
            sources = _filled(points, kept, seed)
        if sources and pool.prior_seconds is not None:
            sources.append(compressed(np.log(pool.prior_seconds)).astype(np.float32))
        self.sources = np.array(sources, np.float32).reshape(-1, len(pool))

    @property
    def columns(self) -> NDArray[np.float32]:
        """float32[pool, sources]: what every source says. All sources together are as wide as one knob."""
        wide = np.maximum(np.quantile(self.sources, _WIDE, axis=1), 1e-6) * np.sqrt(len(self.sources))
        return np.asarray(self.sources.T / wide, np.float32)

    @property
    def features(self) -> NDArray[np.float32]:
        """float32[pool, columns]: the settings, and what every source says."""
        return np.concatenate([self._points, self.columns], axis=1)

    def __len__(self) -> int:
        return len(self.sources)

    def agreement(self, candidates: NDArray[np.int64], z: Floats) -> Floats:
        """Return the rank correlation of each source with this task's ``z``, float64[sources]. It is drawn towards what
        is expected at first."""
        told = len(candidates)
        ranks = rankdata(np.concatenate([self.sources[:, candidates], z[None]]), axis=1)
        ranks -= ranks.mean(axis=1, keepdims=True) if told else 0.0
        length = np.sqrt(np.sum(ranks**2, axis=1))
        found = ranks[:-1] @ ranks[-1] / np.maximum(length[:-1] * length[-1], 1e-30)
        return np.asarray((told * found + _WORTH * _BELIEF) / (told + _WORTH))

    def expected(self, candidates: NDArray[np.int64], z: Floats, agreement: Floats) -> Floats:
        """Return the mean of the sources, weighted by their agreement, float64[pool]. Those that agree little are left
        out. It is scaled to this task's results by least squares."""
        weight = np.where(agreement < _LEAST_AGREEMENT, 0.0, agreement**4)
        mean = weight / max(weight.sum(), 1e-30) @ self.sources
        own = mean[candidates]
        if not len(own):
            return np.asarray(mean)
        spread = own.var() + 1e-9
        slope = (np.mean((own - own.mean()) * (z - z.mean())) * len(own) + 4 * spread) / (spread * (len(own) + 4))
        return np.asarray(np.clip(slope, 0.0, 1.5) * mean)

    def cover(self, count: int) -> list[int]:
        """Up to ``count`` candidates: each adds most to the mean, over the sources, of the greatest speed^3 chosen.

        Its own mean counts a little, which decides once every source has its best.
        """
        speed = np.exp(-_SHARP * self.sources)
        best = np.zeros(len(speed), np.float32)
        chosen: list[int] = []
        while len(chosen) < count and len(speed):
            gain = (np.maximum(speed, best[:, None]) + _OWN_MEAN * speed).mean(axis=0)
            gain[chosen] = -1
            chosen.append(int(gain.argmax()))
            best = np.maximum(best, speed[:, chosen[-1]])
        return list(dict.fromkeys(chosen))


@dataclass(frozen=True)
class _SourceTask:
    """What a source measured: ``points`` float32[n, width] with ``z`` float64[n], and float32[pool] of the same, NaN
    where it measured nothing."""

    points: NDArray[np.float32]
    z: Floats
    measured: NDArray[np.float32]


def _source(encoding: Encoding, places: "_PoolRows", results: Sequence[tuple[Schedule, Outcome]]) -> _SourceTask | None:
    rows, known = encoding.rows([schedule for schedule, _ in results])
    rows = rows[known]
    seconds = np.array([o.seconds if isinstance(o, Timed) else np.nan for _, o in results])[known]
    if np.count_nonzero(~np.isnan(seconds)) < _LEAST:
        return None
    z = compressed(np.log(np.where(np.isnan(seconds), np.nanmax(seconds), seconds)))
    measured = np.full(len(places), np.nan, np.float32)
    found = places.of(rows)
    measured[found[found >= 0]] = z[found >= 0]
    return _SourceTask(rows, z, measured)


class _PoolRows:
    """Where in the pool a point is."""

    def __init__(self, points: NDArray[np.float32]) -> None:
        self._points = points
        keys = _keys(points)
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def __len__(self) -> int:
        return len(self._points)

    def of(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the candidates with these points, int64[n]; -1 where there is none."""
        at = np.minimum(np.searchsorted(self._keys, _keys(rows)), len(self._keys) - 1)
        found = self._order[at]
        return np.where((self._points[found] == rows).all(axis=1), found, -1)


def _keys(points: NDArray[np.float32]) -> NDArray[np.uint64]:
    """uint64[n], a hash of each point."""
    keys = np.zeros(len(points), np.uint64)
    for column in points.T:
        keys = (keys ^ column.view(np.uint32)) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys


def _filled(points: NDArray[np.float32], sources: Sequence[_SourceTask], seed: int) -> list[NDArray[np.float32]]:
    """float32[pool] for each source: what it measured, and elsewhere the mean of what a Gaussian process says that
    knows its results alone, and of what trees say that know all sources'."""
    if not any(np.isnan(s.measured).any() for s in sources):
        return [s.measured for s in sources]
    few = [_few(s, seed) for s in sources]
    scales = [(s.z[rows].mean(), max(s.z[rows].std(), 1e-3)) for s, rows in zip(sources, few, strict=True)]
    values = [(s.z[rows] - m) / d for s, rows, (m, d) in zip(sources, few, scales, strict=True)]
    known = [s.points[rows] for s, rows in zip(sources, few, strict=True)]
    which = np.eye(len(sources), dtype=np.float32)

    def marked(rows: NDArray[np.float32], number: int) -> NDArray[np.float32]:
        return np.concatenate([rows, np.tile(which[number], (len(rows), 1))], axis=1)

    trees = ExtraTreesRegressor(_TREES, min_samples_leaf=2, random_state=seed % (1 << 31))
    trees.fit(np.concatenate([marked(p, n) for n, p in enumerate(known)]), np.concatenate(values))
    found = []
    for number, source in enumerate(sources):
        smooth = _smooth(points, known[number], values[number], seed)
        both = (smooth + trees.predict(marked(points, number))) / 2
        middle, spread = scales[number]
        found.append(np.where(np.isnan(source.measured), both * spread + middle, source.measured))
    return found


def _few(source: _SourceTask, seed: int) -> NDArray[np.int64]:
    """Return the rows that are learned from: the fastest, and a random part of the others."""
    order = np.argsort(source.z, kind="stable")
    rest = stream(seed, "transfer").permutation(order[_LEARN_FROM // 2 :])
    return np.concatenate([order[: _LEARN_FROM // 2], rest[: _LEARN_FROM // 2]])


def _smooth(points: NDArray[np.float32], known: NDArray[np.float32], values: Floats, seed: int) -> NDArray[np.float32]:
    """float32[pool]: what a Gaussian process expects after the ``values`` of the points ``known``."""
    process = GaussianProcess(known)
    few = stream(seed, "lengths").permutation(len(known))[:_LENGTHS_FROM]
    process.learn(few, values[few], np.arange(len(known)))
    return process.mean_at(points, values)
