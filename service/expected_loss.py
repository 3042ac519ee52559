"""Estimates what a relaxed look-up loses, from pairs of records where the true loss is known (``db.transfers``).

    held out = the pairs in which what was asked for takes no part
    pairs = those of its operator, or of all operators where it has too few
    interval = from the m to the 1 - m quantile of n + 1 of their losses

With m = 5 % that is where a further loss of the same distribution lies with at least 90 % probability (split conformal
prediction; Lei et al. 2018). But pairs of one asked workload and device are alike, so that n of them say less than n of
different ones. Therefore m is the greatest of ``MISSES`` with which the interval made without an asked workload and
device holds nine in ten of its losses, over all of them. ``python -m benchmarks relaxed-lookups`` scores this.
"""

import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ..core.target import DeviceInfo
from ..db.rows import AnswerRow
from ..db.store import RecordStore
from .lookup import Asked, Conditions, differing
from .views import ExpectedLoss

FEWEST_PAIRS, FEWEST_ASKED = 20, 4
"""With fewer pairs the interval would have to end beyond the greatest loss that was seen; with fewer workloads and
devices that were asked for, nothing is known of how they differ."""
MOST_PAIRS = 5_000
KEPT_SECONDS = 600.0
"""After so long estimates are made anew."""
COVERED = 0.9
MISSES = (0.05, 0.04, 0.03, 0.02, 0.01, 0.0)
PRIORS: Mapping[str, tuple[float, float, float]] = {"shape": (0.0, 0.22, 1.4), "device": (0.0, 0.35, 9.4)}
"""Part -> (low, median, high), of the losses in the recorded tables of ``benchmarks``: one GPU with twelve shapes, and
six GPUs of five architectures with two operators. They stand in where a database has too few pairs."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Says what the fastest schedule of ``served`` loses where ``asked`` was asked for: 0.1 is a tenth. Both are names
    of a workload on a device, and ``operator`` is what they compute; None: it is not known."""

    operator: str | None
    asked: str
    served: str
    loss: float


class LossEstimates:
    """Estimates what relaxed answers lose. It is thread-safe. Estimates are made when they are first asked for, by the
    thread that asks."""

    def __init__(self, store: RecordStore, sketches: Mapping[str, int]) -> None:
        self._store = store
        self._sketches = sketches
        self._lock = threading.Lock()
        self._pairs: Mapping[tuple[str, frozenset[str]], Sequence[Pair]] = {}
        self._names: frozenset[str] = frozenset()
        self._operators: Mapping[str, str] = {}
        self._made: dict[tuple[str, frozenset[str], str | None, str | None], ExpectedLoss] = {}
        self._until = -math.inf

    def expected_loss(self, kind: str, parts: frozenset[str], asked: Asked) -> ExpectedLoss:
        """Return the loss of look-ups on devices of a kind that differ in these parts from what was asked for."""
        with self._lock:
            if time.monotonic() > self._until:
                self._measure()
                self._until = time.monotonic() + KEPT_SECONDS
            name = f"{asked.workload_key} {asked.device_key}"
            operator = asked.operator or self._operators.get(asked.workload_key)
            at = (kind, parts, operator, name if name in self._names else None)
            if at not in self._made:
                pairs = self._pairs.get((kind, parts), ())
                self._made[at] = estimate(pairs, parts, operator=operator, asked=name)
            return self._made[at]

    def _measure(self) -> None:
        targets = {info.key: info for info in self._store.devices()}
        found: dict[tuple[str, frozenset[str]], list[Pair]] = {}
        operators: dict[str, str] = {}
        for row in self._store.transfers(self._sketches, limit=MOST_PAIRS):
            asked, served = row.asked, row.served
            if row.operator is not None:
                operators[asked.workload_key] = row.operator
            if not _alike(targets.get(asked.device_key), targets.get(served.device_key)):
                continue
            wanted = Conditions(asked.device_key, asked.toolchain_key, asked.profile)
            parts = {*differing(served, wanted)}
            if asked.workload_key != served.workload_key:
                parts.add("shape")
            pair = Pair(row.operator, _name(asked), _name(served), row.loss)
            found.setdefault((targets[served.device_key].target.kind, frozenset(parts)), []).append(pair)
        self._pairs, self._operators, self._made = found, operators, {}
        self._names = frozenset(name for pairs in found.values() for p in pairs for name in (p.asked, p.served))


def estimate(
    pairs: Sequence[Pair], parts: frozenset[str], *, operator: str | None = None, asked: str | None = None
) -> ExpectedLoss:
    """Return the expected loss of an answer for ``asked``, a workload of ``operator`` on a device, from pairs that
    differ in these parts."""
    held_out = [pair for pair in pairs if asked not in (pair.asked, pair.served)]
    own = [pair for pair in held_out if operator is not None and pair.operator == operator]
    used, of = (own, f"of {operator}") if _enough(own) else (held_out, "of any operator")
    names = ", ".join(sorted(parts))
    if not _enough(used):
        return _without_pairs(len(used), parts, names)
    ordered = sorted(pair.loss for pair in used)
    low, high = _interval(ordered, _calibrated(used))
    ground = f"{len(used)} pairs of records {of} that differ in {names}, where both have timed the schedule"
    return ExpectedLoss(median(ordered), low, high, len(used), ground)


def _enough(pairs: Sequence[Pair]) -> bool:
    return len(pairs) >= FEWEST_PAIRS and len({pair.asked for pair in pairs}) >= FEWEST_ASKED


def _without_pairs(count: int, parts: frozenset[str], names: str) -> ExpectedLoss:
    needed = (
        f"{count} pairs of records differ in {names} alone, and {FEWEST_PAIRS} are needed, of {FEWEST_ASKED} workloads"
    )
    priors = [PRIORS[part] for part in parts if part in PRIORS]
    if not priors:
        return ExpectedLoss(None, None, None, count, f"no ground: {needed}")
    low, middle, high = (max(values) for values in zip(*priors, strict=True))
    return ExpectedLoss(middle, low, high, count, f"a prior from recorded tables, because only {needed}")


def _calibrated(pairs: Sequence[Pair]) -> float:
    """Return the greatest part to leave out on each side with which the losses of nine in ten pairs lie in the interval
    of those pairs in which their asked workload and device takes no part."""
    by_asked: dict[str, list[float]] = {}
    for pair in pairs:
        by_asked.setdefault(pair.asked, []).append(pair.loss)
    others = {name: sorted(p.loss for p in pairs if name not in (p.asked, p.served)) for name in by_asked}
    for miss in MISSES:
        inside = 0
        for name, losses in by_asked.items():
            if others[name]:
                low, high = _interval(others[name], miss)
                ordered = sorted(losses)
                inside += bisect_right(ordered, high) - bisect_left(ordered, low)
        if inside >= COVERED * len(pairs):
            break
    return miss


def _interval(ordered: Sequence[float], miss: float) -> tuple[float, float]:
    count = len(ordered)
    low, high = math.floor(miss * (count + 1)), math.ceil((1 - miss) * (count + 1))
    return ordered[max(low, 1) - 1], ordered[min(high, count) - 1]


def _name(row: AnswerRow) -> str:
    return f"{row.workload_key} {row.device_key}"


def _alike(asked: DeviceInfo | None, served: DeviceInfo | None) -> bool:
    if asked is None or served is None:
        return False
    return (asked.target.kind, asked.target.arch) == (served.target.kind, served.target.arch)
