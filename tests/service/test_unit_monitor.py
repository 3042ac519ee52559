"""What recorded readings and anchors of GPUs make of their units."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.core.fleet import Unit, UnitState
from tilewright.db.rows import UnitRow
from tilewright.db.store import RecordStore
from tilewright.runtime.cuda.health import HealthReadings
from tilewright.service import unit_monitor
from tilewright.service.settings import Settings
from tilewright.service.unit_monitor import UnitMonitor
from tilewright.tests.db.fleets import GPU, migrated
from tilewright.workers.probe import ProbeReport

WAIT_SECONDS = 120.0
UNITS = tuple(Unit(f"GPU-{number}", GPU, "h1", "local", number) for number in range(3))


class Recording:
    """See ``HealthSource``. Readings are those of ``readings`` now; a unit's probes are told in turn, the last for
    ever."""

    def __init__(self, probes: Sequence[tuple[float, float]] = ((1.0, 2.0),)) -> None:
        self.readings = {unit.uuid: HealthReadings() for unit in UNITS}
        self.probes = {unit.uuid: [(1.0, 2.0)] for unit in UNITS}
        self.probes["GPU-0"] = list(probes)
        self.looks = 0
        self.errors = 0
        """So many probes find that a unit does not open."""

    def look(self) -> Sequence[ProbeReport]:
        self.looks += 1
        return [ProbeReport(unit, self.readings[unit.uuid]) for unit in UNITS]

    def probe(self, unit: Unit) -> ProbeReport:
        if self.errors:
            self.errors -= 1
            return ProbeReport(unit, self.readings[unit.uuid], error="it died")
        told = self.probes[unit.uuid]
        anchor, power = told.pop(0) if len(told) > 1 else told[0]
        return ProbeReport(unit, replace(self.readings[unit.uuid], xids=()), anchor, power)  # it listens to none

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_monitor, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(unit_monitor, "ANCHOR_SECONDS", 0.0)
    monkeypatch.setattr(unit_monitor, "PROBE_SECONDS", 0.0)


@contextmanager
def watched(folder: Path, source: Recording, *, made: bool = False) -> Iterator[RecordStore]:
    url = f"sqlite:///{folder}/db.sqlite3"
    with RecordStore(url) if made else migrated(url) as store:
        monitor = UnitMonitor(Settings(database_url=url), store, source)
        try:
            yield store
        finally:
            monitor.close()


def awaited(store: RecordStore, uuid: str, holds: Callable[[UnitRow], bool]) -> UnitRow:
    end = time.monotonic() + WAIT_SECONDS
    while True:
        for row in store.fleet.units():
            if row.unit.uuid == uuid and holds(row):
                return row
        assert time.monotonic() < end, store.fleet.units()
        time.sleep(0.01)


@pytest.mark.usefixtures("quick")
def test_what_the_driver_says_takes_a_unit_out(tmp_path: Path) -> None:
    source = Recording()
    with watched(tmp_path, source) as store:
        awaited(store, "GPU-2", lambda row: row.state is UnitState.READY)
        source.readings["GPU-0"] = HealthReadings(xids=(31, 79))
        source.readings["GPU-1"] = HealthReadings(uncorrected_errors=3)
        source.readings["GPU-2"] = HealthReadings(remap_pending=True)
        quarantined = awaited(store, "GPU-0", lambda row: row.state is UnitState.QUARANTINED)
        assert quarantined.reason == "fault: Xid 79"
        assert "3 uncorrected" in str(awaited(store, "GPU-1", lambda row: row.state is UnitState.QUARANTINED).reason)
        assert "remapped" in str(awaited(store, "GPU-2", lambda row: row.state is UnitState.DRAINING).reason)
        store.fleet.set_unit_state("GPU-0", UnitState.READY, "the cable was changed")
        looks = source.looks
        awaited(store, "GPU-0", lambda row: source.looks > looks + 2)
        assert awaited(store, "GPU-0", lambda row: True).state is UnitState.READY  # those Xids were judged before
        source.readings["GPU-0"] = HealthReadings(xids=(31, 79, 48))
        again = awaited(store, "GPU-0", lambda row: row.state is UnitState.QUARANTINED)
        assert again.reason == "fault: Xid 48"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("slow", [(1.2, 2.0), (1.0, 2.4)])
def test_an_anchor_that_drifts_quarantines_a_unit_until_probes_are_good_again(
    tmp_path: Path, slow: tuple[float, float]
) -> None:
    """Either anchor may show it: the one in the cache, or the one at the power limit."""
    source = Recording([(1.0, 2.0)] * 6 + [slow] * unit_monitor.BAD_PROBES + [(1.0, 2.0)])
    seen: list[UnitState] = []
    with watched(tmp_path, source) as store:
        drifted = awaited(store, "GPU-0", lambda row: row.state is UnitState.QUARANTINED)
        assert drifted.reason is not None and drifted.reason.startswith("slow: its anchor takes 20.0% longer than")
        assert (drifted.health["anchor_seconds"], drifted.health["power_anchor_seconds"]) == slow
        released = awaited(store, "GPU-0", lambda row: row.state is UnitState.READY)
        assert released.reason is None and not source.probes["GPU-0"][1:]
        seen += [awaited(store, unit.uuid, lambda row: True).state for unit in UNITS]
    assert seen == [UnitState.READY] * 3


@pytest.mark.usefixtures("quick")
def test_an_anchor_that_is_slow_for_a_moment_takes_no_unit_out(tmp_path: Path) -> None:
    source = Recording(
        [(1.0, 2.0)] * 6 + [(1.2, 2.0)] * (unit_monitor.BAD_PROBES - 1) + [(1.0, 2.0)] * 4 + [(0.9, 2.0)]
    )
    states = set[UnitState]()

    def told(row: UnitRow) -> bool:
        states.add(row.state)
        return row.anchor_seconds == 0.9

    with watched(tmp_path, source) as store:
        awaited(store, "GPU-0", told)
    assert states == {UnitState.READY}


@pytest.mark.parametrize(("errors", "state"), [(0, UnitState.READY), (2, UnitState.READY), (3, UnitState.QUARANTINED)])
def test_a_suspect_unit_is_probed_at_once(tmp_path: Path, errors: int, state: UnitState) -> None:
    """One probe that fails says little: somebody may have killed it."""
    source = Recording()
    with migrated(f"sqlite:///{tmp_path}/db.sqlite3") as store:
        store.fleet.register_units(UNITS, seen_seconds=600.0)
        store.fleet.set_unit_state("GPU-1", UnitState.SUSPECT, "actor_lost")
    source.errors = errors
    with watched(tmp_path, source, made=True) as store:
        row = awaited(store, "GPU-1", lambda row: row.state is not UnitState.SUSPECT)
        assert row.state is state and row.probed_at is not None


def test_readings_are_kept_with_the_unit() -> None:
    report = ProbeReport(UNITS[0], replace(HealthReadings(), used_bytes=5), 1.5)
    figures = unit_monitor.readings_of(report)
    assert figures["used_bytes"] == 5.0 and figures["anchor_seconds"] == 1.5 and "power_anchor_seconds" not in figures
