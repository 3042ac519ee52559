"""Peaks are measured once an hour for a device and its toolchain, whatever lies in the cache folder."""

import os
from pathlib import Path

import pytest

from tilewright.core.cache_folder import cache_folder
from tilewright.workers.peaks_cache import KEEP_SECONDS, recent_peaks


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


def test_peaks_are_measured_again_after_an_hour_and_for_another_key(folder: Path) -> None:
    meter = Meter()
    first = recent_peaks("a", meter)
    assert first == recent_peaks("a", meter) == {"copy_bytes_per_second": 1.0}
    assert recent_peaks("b", meter) == {"copy_bytes_per_second": 2.0}
    (file,) = folder.glob("a*")
    written = file.stat().st_mtime
    os.utime(file, (written - KEEP_SECONDS,) * 2)
    assert recent_peaks("a", meter) == recent_peaks("a", meter) == {"copy_bytes_per_second": 3.0}
    os.utime(file, (written + 2 * KEEP_SECONDS,) * 2)  # a clock was wrong
    assert recent_peaks("a", meter) == {"copy_bytes_per_second": 4.0}
    assert {path.name for path in folder.iterdir()} == {"a.json", "b.json"}


@pytest.mark.parametrize("junk", ["", "[1]", "{}", '{"copy": "fast"}', '{"copy": null}', "\x00"])
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
