"""Peaks are kept for a device and its toolchain while they can be believed, whatever lies in the cache folder."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.core.cache_folder import cache_folder
from tilewright.workers.peaks_cache import DISTURBED_SECONDS, QUIET_SECONDS, best_peaks, recent_peaks


class Meter:
    """It gives 1.0 at the first measurement, 2.0 at the second."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> dict[str, float]:
        self.runs += 1
        return {"copy_bytes_per_second": float(self.runs)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_folder("peaks")


def kept(folder: Path, seconds: float, *, quiet: bool) -> None:
    """Keep peaks of 5 as if they had been measured so many seconds ago."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "a.json"
    file.write_text(f'{{"peaks": {{"copy_bytes_per_second": 5}}, "quiet": {str(quiet).lower()}}}')
    os.utime(file, (time.time() - seconds,) * 2)


def test_peaks_are_measured_once_for_each_key(folder: Path) -> None:
    meter = Meter()
    assert recent_peaks("a", meter) == recent_peaks("a", meter) == {"copy_bytes_per_second": 1.0}
    assert recent_peaks("b", meter) == {"copy_bytes_per_second": 2.0}
    assert {path.name for path in folder.iterdir()} == {"a.json", "b.json"}


@pytest.mark.parametrize(
    ("seconds", "quiet", "measured"),
    [
        (QUIET_SECONDS / 2, True, False),
        (QUIET_SECONDS + 1, True, True),
        (DISTURBED_SECONDS / 2, False, False),
        (DISTURBED_SECONDS + 1, False, True),
        (-QUIET_SECONDS, True, True),  # a clock was wrong
    ],
)
def test_old_peaks_are_measured_again_and_the_better_ones_stay(
    folder: Path, seconds: float, quiet: bool, measured: bool
) -> None:
    kept(folder, seconds, quiet=quiet)
    meter = Meter()
    assert recent_peaks("a", meter) == {"copy_bytes_per_second": 5.0}
    assert meter.runs == measured


def test_peaks_of_a_machine_that_was_busy_are_not_kept_for_an_hour(folder: Path) -> None:
    """Another program spins on the same processor, so that one of the two always waits for it."""

    def busy() -> dict[str, float]:
        allowed = os.sched_getaffinity(0)
        with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as other:
            try:
                for process in (0, other.pid):
                    os.sched_setaffinity(process, {min(allowed)})
                end = time.process_time() + 0.3
                while time.process_time() < end:
                    pass
            finally:
                other.kill()
                os.sched_setaffinity(0, allowed)
        return {"copy_bytes_per_second": 1.0}

    recent_peaks("a", busy)
    assert '"quiet": false' in (folder / "a.json").read_text()


@pytest.mark.parametrize("junk", ["", "[1]", "{}", '{"peaks": {"copy": "fast"}}', '{"peaks": null}', "\x00"])
def test_junk_is_measured_again(folder: Path, junk: str) -> None:
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(junk)
    assert recent_peaks("a", Meter()) == {"copy_bytes_per_second": 1.0}
    assert recent_peaks("a", Meter()) == {"copy_bytes_per_second": 1.0}


def test_a_folder_that_cannot_be_used_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    meter = Meter()
    assert [recent_peaks("a", meter), recent_peaks("a", meter)] == [{"copy_bytes_per_second": n} for n in (1.0, 2.0)]


def test_of_two_measurements_the_better_one_counts() -> None:
    known = {"peak_float32_flops_per_second": 2.0, "launch_seconds": 3.0, "gone": 1.0}
    now = {"peak_float32_flops_per_second": 1.0, "launch_seconds": 2.0, "new": 4.0}
    assert best_peaks(known, now) == {
        "peak_float32_flops_per_second": 2.0,
        "launch_seconds": 2.0,
        "gone": 1.0,
        "new": 4.0,
    }
