"""A clock of one process that can be set wrong, by libfaketime. The monotonic clock stays right, as on a machine whose
time is set."""

from collections.abc import Mapping
from pathlib import Path

import pytest

LIBRARIES = "lib/*/faketime/libfaketimeMT.so.1"
SLEEP = """import select
import time

time.sleep = lambda seconds: select.select([], [], [], seconds) and None
"""
"""libfaketime 0.9.10 breaks clock_nanosleep with an absolute time, which Python's own ``sleep`` uses."""


class WrongClock:
    """``environment`` is for processes that shall have this clock. Skips the test where there is no libfaketime."""

    def __init__(self, folder: Path) -> None:
        found = sorted(Path("/usr").glob(LIBRARIES))
        if not found:
            pytest.skip("libfaketime is not installed")
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(SLEEP)
        self._file = folder / "clock"
        self.set(0)
        self.path = str(folder)
        """Belongs at the front of ``PYTHONPATH``."""
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(found[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, seconds: int) -> None:
        """Let the clock be so many seconds ahead, or behind where that is negative."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}s")
        new.rename(self._file)
