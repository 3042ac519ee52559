"""The measured peaks of a device, kept for an hour in the cache folder of this user.

Every executor wants them, and to measure them takes seconds. They are measured again after an hour, because a busy
machine may have hidden them.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..core.cache_folder import cache_folder

KEEP_SECONDS = 3600.0


def recent_peaks(key: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the peaks that were kept under ``key``, a content key of the device and its toolchain. Without such peaks
    of the last hour, measure them and keep them. A folder that cannot be read or written costs no more than that."""
    path = cache_folder("peaks") / f"{key}.json"
    return _read(path) or _kept(path, measure())


def _read(path: Path) -> dict[str, float] | None:
    try:
        if not 0.0 <= time.time() - path.stat().st_mtime < KEEP_SECONDS:
            return None
        return {str(name): float(value) for name, value in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _kept(path: Path, peaks: dict[str, float]) -> dict[str, float]:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        with os.fdopen(handle, "w") as file:
            json.dump(peaks, file)
        os.replace(name, path)
    return peaks
