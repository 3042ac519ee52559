"""The measured peaks of a device, kept in the cache folder of this user.

Every executor wants them, and to measure them takes seconds. They are kept for an hour, but only for a minute where
other programs ran meanwhile, which may have hidden them. What was measured before stays where it is better.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ..core.cache_folder import cache_folder, write_atomically
from .environment import disturbance

QUIET_SECONDS, DISTURBED_SECONDS = 3600.0, 60.0
"""For so long peaks are kept."""
WAITING_SHARE = 0.02
"""A measurement is disturbed when its threads waited for a processor for more than this share of its time."""


def recent_peaks(key: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the peaks that are kept under ``key``, a content key of the device and its toolchain. Where there are
    none, or old ones, measure them and keep them. A folder that cannot be read or written costs no more than that."""
    path = cache_folder("peaks") / f"{key}.json"
    known, age, quiet = _read(path)
    if known and 0.0 <= age < (QUIET_SECONDS if quiet else DISTURBED_SECONDS):
        return known
    before, started = disturbance(), time.perf_counter()
    peaks = best_peaks(known, measure())
    seconds = time.perf_counter() - started
    _write(path, peaks, quiet=disturbance().since(before).waiting_seconds < WAITING_SHARE * seconds)
    return peaks


def best_peaks(known: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Merge two measurements of one device: keep the higher rate and the shorter time of each figure."""
    better = {name: min if name.endswith("_seconds") else max for name in known}
    return {
        **known,
        **{name: better[name](known[name], value) if name in known else value for name, value in now.items()},
    }


def _read(path: Path) -> tuple[dict[str, float], float, bool]:
    """Return the peaks in a file, their age in seconds, and whether the machine was quiet."""
    try:
        data = json.loads(path.read_text())
        peaks = {str(name): float(value) for name, value in data["peaks"].items()}
        return peaks, time.time() - path.stat().st_mtime, bool(data["quiet"])
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return {}, 0.0, False


def _write(path: Path, peaks: dict[str, float], *, quiet: bool) -> None:
    with suppress(OSError):
        write_atomically(path, json.dumps({"peaks": peaks, "quiet": quiet}).encode())
