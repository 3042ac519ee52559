"""The units of this host and how they are, as NVML and probes tell: one object for as long as a service lives."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ..core.fleet import Unit
from ..runtime.cuda.health import XidListener
from .probe import ProbeReport, local_units, look_at, probe_unit
from .settings import ExecutorSettings


class HealthSource(Protocol):
    """Tells whether units are healthy."""

    def look(self) -> Sequence[ProbeReport]:
        """Return what is known of each unit without opening it. ``readings.xids`` are all since this object was
        made."""

    def probe(self, unit: Unit) -> ProbeReport:
        """Open a unit, and time its anchors."""

    def close(self) -> None:
        """Look no more."""


class HostHealth:
    """See ``HealthSource``. Xid errors are heard from the first look on: NVML keeps no list of earlier ones."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self._settings = settings
        self._listener: XidListener | None = None

    def look(self) -> Sequence[ProbeReport]:
        units = local_units()
        cards = [unit.uuid for unit in units if unit.device.target.kind == "cuda"]
        if cards and self._listener is None:
            self._listener = XidListener(cards)
        heard = {} if self._listener is None else self._listener.heard()
        return [look_at(unit, heard.get(unit.uuid, ())) for unit in units]

    def probe(self, unit: Unit) -> ProbeReport:
        return probe_unit(unit, self._settings)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()


def without_xids(report: ProbeReport, count: int) -> ProbeReport:
    """Return the report without its first ``count`` Xid errors, which were judged before."""
    return replace(report, readings=replace(report.readings, xids=report.readings.xids[count:]))
