"""Says which units there are, and watches how they are.

every LOOK_SECONDS     register the units that are there; what NVML accuses is quarantined (in a cluster:
                       every CLUSTER_LOOK_SECONDS): Xid errors, uncorrected memory errors, rows not remapped
an idle ready GPU      has its anchors timed every ANCHOR_SECONDS; one that drifted, as BAD_PROBES say, is quarantined
a suspect unit         is probed at once, and is ready again or quarantined
a quarantined unit     is probed every PROBE_SECONDS where a probe may lift the reason; GOOD_PROBES release it
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import inf

import structlog

from ..core.errors import StoreError, WorkerLost
from ..core.fleet import Unit, UnitState
from ..db.rows import UnitRow
from ..db.store import RecordStore
from ..workers.health import RELEASED_BY_PROBES, AnchorHistory, verdict
from ..workers.host_health import HealthSource, HostHealth, without_xids
from ..workers.probe import ProbeReport, cluster_units
from ..workers.settings import HOST_KINDS, ExecutorSettings
from . import wiring
from .settings import Settings

LOOK_SECONDS = 10.0
CLUSTER_LOOK_SECONDS = 20.0
"""A look at a cluster starts a process here and one on each node, which costs each seconds of a processor."""
SEEN_LOOKS = 3
"""A unit counts as seen for the time of so many looks: the pauses, and what the looks themselves take."""
SUSPECT_SECONDS = 2.0
"""While a unit is suspect, or none was found yet, units are looked at so often."""
PROBE_SECONDS = 300.0
GOOD_PROBES = 3
BAD_PROBES = 3
"""A unit is judged by the last of so many bad probes, made at once: somebody may have killed the child of one, and an
anchor of 9 us took over 5 % longer in one of twelve probes of well H200s that had just worked."""
ANCHOR_SECONDS = 1800.0
"""The anchors of a ready unit are timed so often, as far as nobody has the unit."""
EARLIER_ANCHORS = 20
"""So many earlier figures of an anchor are what a unit is compared with."""
ANCHORS = ("anchor_seconds", "power_anchor_seconds")
"""The figures of a probe: of an anchor that fits the cache, and of one that reaches the power limit."""

log = structlog.get_logger()


class UnitMonitor:
    """Watches units by a thread for this host, and by one for a cluster. ``source`` says how units are; by default it
    is this host."""

    def __init__(self, settings: Settings, store: RecordStore, source: HealthSource | None = None) -> None:
        self._settings = settings
        self._store = store
        self._closing = threading.Event()
        self._source = source or HostHealth(
            ExecutorSettings(lock_folder=settings.lock_folder, ray_address=settings.ray_address)
        )
        self._good: dict[str, int] = {}
        self._probed: dict[str, float] = {}
        self._judged_xids: dict[str, int] = {}
        self._anchors: defaultdict[tuple[str, str], deque[float]] = defaultdict(lambda: deque(maxlen=EARLIER_ANCHORS))
        self.found = threading.Event()
        """Set once the units of this host were looked for."""
        self.problem = ""
        """Why the units of the cluster are not known; empty where they are."""
        places: dict[str, Callable[[], Sequence[ProbeReport]]] = {"local": self._source.look}
        if settings.ray_address:  # on a thread of its own: a cluster that is away answers late
            places["ray"] = partial(cluster_units, settings.ray_address)
        self._found: dict[str, tuple[Unit, ...]] = {place: () for place in places}  # a place is named as its executor
        self._threads = [
            threading.Thread(target=self._run, args=place, name=f"units-{place[0]}", daemon=True)
            for place in places.items()
        ]
        for thread in self._threads:
            thread.start()

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units that were found last, for which this process may start workers. One of this host that is in the
        cluster as well is there once, as a local one."""
        found = {unit.uuid: unit for units in reversed(self._found.values()) for unit in units}
        return tuple(found.values())

    def executors(self, unit: Unit) -> tuple[str, ...]:
        """Return the names of the executors that reach a unit. Without a cluster, Ray runs on this host alone."""
        if not self._settings.ray_address:
            return wiring.EXECUTOR_NAMES
        return tuple(place for place, units in self._found.items() if any(u.uuid == unit.uuid for u in units))

    def close(self) -> None:
        """Stop, after a probe that is under way."""
        self._closing.set()
        for thread in self._threads:
            thread.join()
        self._source.close()

    def _run(self, place: str, reports: Callable[[], Sequence[ProbeReport]]) -> None:
        while not self._closing.is_set():
            pause = SUSPECT_SECONDS
            try:
                began = time.monotonic()
                found = reports()
                pause = self._look(place, found, time.monotonic() - began)
            except WorkerLost as lost:
                log.warning("the units of a cluster are not known", error=lost.message)
                self.problem, self._found[place] = lost.message, ()
                pause = LOOK_SECONDS
            except StoreError as error:
                log.error("units wait", error=error.message)
            except Exception:
                log.exception("a fault of the program while units are looked at")
            self._closing.wait(pause)

    def _look(self, place: str, reports: Sequence[ProbeReport], seconds: float) -> float:
        """Register the units of a place, which took so many ``seconds`` to find, and judge them; return after how many
        seconds to look again."""
        self._found[place] = tuple(r.unit for r in reports)
        if place != "local":
            self.problem = ""
            # a unit of this host that is in the cluster as well is looked at here
            here = {unit.uuid for unit in self._found["local"]}
            reports = [report for report in reports if report.unit.uuid not in here]
        pause = LOOK_SECONDS if place == "local" else CLUSTER_LOOK_SECONDS
        self._store.fleet.register_units([r.unit for r in reports], seen_seconds=SEEN_LOOKS * (pause + seconds))
        if place == "local":
            self.found.set()
        rows = {row.unit.uuid: row for row in self._store.fleet.units()}
        for report in reports:
            self._judge(without_xids(report, self._judged_xids.get(report.unit.uuid, 0)), rows)
        suspect = any(rows[report.unit.uuid].state is UnitState.SUSPECT for report in reports)
        return SUSPECT_SECONDS if suspect else pause

    def _judge(self, report: ProbeReport, rows: Mapping[str, UnitRow]) -> None:
        row = rows[report.unit.uuid]
        state, reason = verdict(report.readings, idle=False)
        if state is not UnitState.READY and row.state in (UnitState.READY, UnitState.SUSPECT):
            self._change(report.unit, row.state, state, reason, report)
            # whoever releases the unit has seen them
            judged = self._judged_xids.get(report.unit.uuid, 0) + len(report.readings.xids)
            self._judged_xids[report.unit.uuid] = judged
        elif row.owner is None and time.monotonic() >= self._next_probe(row):
            self._probe(row, rows)

    def _next_probe(self, row: UnitRow) -> float:
        """When a unit is to be probed, by the monotonic clock: a suspect one at once, one that may be released and a
        ready GPU from time to time, any other never."""
        if row.state is UnitState.SUSPECT:
            return -inf
        if row.state is UnitState.QUARANTINED and _may_be_released(row):
            return self._probed.get(row.unit.uuid, -PROBE_SECONDS) + PROBE_SECONDS
        if row.state is UnitState.READY and row.unit.device.target.kind not in HOST_KINDS:
            return self._probed.setdefault(row.unit.uuid, time.monotonic()) + ANCHOR_SECONDS
        return inf

    def _probe(self, row: UnitRow, rows: Mapping[str, UnitRow]) -> None:
        """Open the unit and time its anchors, again where it does not open or is slow. A suspect unit is ready after
        one good probe, a quarantined one after several in a row."""
        unit = row.unit
        self._probed[unit.uuid] = time.monotonic()
        for _ in range(BAD_PROBES):
            report = self._source.probe(unit)
            state, reason = verdict(report.readings, self._histories(report, rows.values()), idle=False)
            if report.error:
                state, reason = UnitState.QUARANTINED, f"fault: {report.error}"
            if not report.error and not reason.startswith("slow"):
                break
        if state is UnitState.READY:
            for name, seconds in _anchors_of(report).items():
                self._anchors[unit.uuid, name].append(seconds)
        self._good[unit.uuid] = self._good.get(unit.uuid, 0) + 1 if state is UnitState.READY else 0
        wanted = GOOD_PROBES if row.state is UnitState.QUARANTINED else 1
        if state is not UnitState.READY or self._good[unit.uuid] >= wanted:
            self._good.pop(unit.uuid)
            self._change(unit, row.state, state, reason, report)

    def _histories(self, report: ProbeReport, rows: Iterable[UnitRow]) -> list[AnchorHistory]:
        """Compare the anchors of a probe with earlier good ones of the unit, and with the last ones of the other units
        of its class."""
        unit = report.unit
        alike = [row for row in rows if row.unit.device.key == unit.device.key and row.unit.uuid != unit.uuid]
        found = []
        for name, seconds in _anchors_of(report).items():
            others = [row.health[name] for row in alike if name in row.health]
            found.append(AnchorHistory(seconds, tuple(self._anchors[unit.uuid, name]), others))
        return found

    def _change(self, unit: Unit, before: UnitState, state: UnitState, reason: str, report: ProbeReport) -> None:
        if state is not before:
            log.warning("unit judged", unit=unit.uuid, state=state.value, reason=reason)
        health = readings_of(report)
        self._store.fleet.set_unit_state(
            unit.uuid, state, reason or None, health=health, anchor_seconds=report.anchor_seconds, before=before
        )


def readings_of(report: ProbeReport) -> Mapping[str, float]:
    """Return what was read of a unit and measured on it, as figures."""
    read = {name: float(value) for name, value in asdict(report.readings).items() if isinstance(value, int | float)}
    return {**read, **_anchors_of(report)}


def _anchors_of(report: ProbeReport) -> dict[str, float]:
    """Return the anchors that a probe timed, by name."""
    found = {name: getattr(report, name) for name in ANCHORS}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def _may_be_released(row: UnitRow) -> bool:
    return row.reason is not None and row.reason.partition(":")[0] in RELEASED_BY_PROBES
