"""Estimates what a relaxed look-up loses, from pairs of records where the true loss is known (``db.transfers``).

Of n losses of pairs that differ in the same parts, in order, the 90 % interval goes from the 5 % to the 95 % quantile
of n + 1: that is where a further loss of the same distribution lies with at least that probability (split conformal
prediction; Lei et al. 2018).
"""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from statistics import median

from ..core.target import DeviceInfo
from ..db.store import RecordStore
from .lookup import Conditions, differing
from .views import ExpectedLoss

FEWEST_PAIRS = 20
"""With fewer the interval would have to end beyond the greatest loss that was seen."""
MOST_PAIRS = 2_000
KEPT_SECONDS = 600.0
"""After so long estimates are made anew."""
_MISS = 0.05


class LossEstimates:
    """Thread-safe. Estimates are made when they are first asked for, by the thread that asks."""

    def __init__(self, store: RecordStore, sketches: Mapping[str, int]) -> None:
        self._store = store
        self._sketches = sketches
        self._lock = threading.Lock()
        self._losses: Mapping[tuple[str, frozenset[str]], Sequence[float]] = {}
        self._until = -math.inf

    def expected_loss(self, kind: str, parts: frozenset[str]) -> ExpectedLoss:
        """Return the loss of look-ups on devices of a kind that differ in these parts."""
        with self._lock:
            if time.monotonic() > self._until:
                self._losses = self._measured()
                self._until = time.monotonic() + KEPT_SECONDS
            losses = self._losses.get((kind, parts), ())
        return estimate(losses, ", ".join(sorted(parts)))

    def _measured(self) -> dict[tuple[str, frozenset[str]], list[float]]:
        targets = {info.key: info for info in self._store.devices()}
        found: dict[tuple[str, frozenset[str]], list[float]] = {}
        for row in self._store.transfers(self._sketches, limit=MOST_PAIRS):
            asked, served = row.asked, row.served
            wanted = Conditions(asked.device_key, asked.toolchain_key, asked.profile)
            if _alike(targets.get(asked.device_key), targets.get(served.device_key)):
                kind = targets[served.device_key].target.kind
                found.setdefault((kind, frozenset(differing(served, wanted))), []).append(row.loss)
        return found


def estimate(losses: Sequence[float], parts: str) -> ExpectedLoss:
    """Return the expected loss where pairs that differ in these parts lost so much."""
    count = len(losses)
    if count < FEWEST_PAIRS:
        ground = f"no ground: {count} pairs of records that differ in {parts} alone, of {FEWEST_PAIRS} at least"
        return ExpectedLoss(None, None, None, count, ground)
    ordered = sorted(losses)
    low, high = math.floor(_MISS * (count + 1)), math.ceil((1 - _MISS) * (count + 1))
    ground = f"{count} pairs of records of one workload that differ in {parts}, where both have timed the schedule"
    return ExpectedLoss(median(ordered), ordered[max(low, 1) - 1], ordered[min(high, count) - 1], count, ground)


def _alike(asked: DeviceInfo | None, served: DeviceInfo | None) -> bool:
    if asked is None or served is None:
        return False
    return (asked.target.kind, asked.target.arch) == (served.target.kind, served.target.arch)
