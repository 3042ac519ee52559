"""Further units for a task that may have several at once: leased while nobody else waits for them, and given back.

every LOOK_SECONDS, between trials    a unit is not fit any more    it is given back
                                      another task waits            one further unit is given back
                                      nobody waits                  one more free unit of the class is leased
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from ..core.errors import StoreError, TilewrightError
from ..core.fleet import Lease, LeaseLost, TaskClaim, Unit, UnitState
from ..db.rows import UnitRow
from ..workers.joint_executor import JointExecutor, UnitExecutor
from ..workers.lease_guard import LeaseGuard
from ..workers.losses import DriverLost, MachineLost, NodeLost
from .lease_keeper import LeaseKeeper

if TYPE_CHECKING:  # it loads SQLAlchemy, which the task worker of an embedded database does without
    from ..db.fleet_store import FleetStore

LOOK_SECONDS = 0.5
log = structlog.get_logger()

OpenUnit = Callable[[TaskClaim, Unit, int], UnitExecutor]
"""Opens the executor of a unit for a claim, under the lease with this fence."""


@dataclass(frozen=True, slots=True)
class _Further:
    unit: Unit
    lease: Lease
    claim: TaskClaim


class FurtherUnits:
    """For one task worker, whose own unit is ``unit``. ``reaches`` says whether an executor of this name reaches
    another unit from here. All methods are for the worker's thread."""

    def __init__(
        self,
        fleet: "FleetStore",
        keeper: LeaseKeeper,
        unit: Unit,
        *,
        targets: tuple[str, ...],
        executors: tuple[str, ...],
        seconds: float,
        open_unit: OpenUnit,
        reaches: Callable[[str, Unit], bool],
    ) -> None:
        """``targets`` and ``executors`` are those of the worker, ``seconds`` is how long leases last."""
        self._fleet = fleet
        self._keeper = keeper
        self._unit = unit
        self._targets, self._executors = targets, executors
        self._seconds = seconds
        self._open_unit = open_unit
        self._reaches = reaches
        self._held: dict[str, _Further] = {}
        self._hosts = {unit.uuid: unit.host}
        self._unfit: set[str] = set()
        self._looked = 0.0

    def begin(self) -> None:
        """Another task begins."""
        self._unfit.clear()

    def host_of(self, uuid: str) -> str:
        """Return the host of the worker's unit, or of a further one that it had."""
        return self._hosts[uuid]

    def adjust(self, claim: TaskClaim, executor: JointExecutor) -> None:
        """Take a further unit for ``executor``, or give one back, where it is time to. Raises LeaseLost where that of
        the task is lost."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        with suppress(StoreError):
            rows = self._fleet.units()
            fit = {row.unit.uuid for row in rows if self._is_fit(row)}
            for uuid in executor.units[1:]:
                if uuid not in fit:
                    executor.dismiss(uuid)
            further = executor.units[1:]
            if len(further) < len(self._held):
                return  # one is leaving
            if self._fleet.is_wanted(self._targets, self._executors):
                if further:
                    executor.dismiss(further[-1])
            elif 1 + len(further) < claim.units:
                self._take_one([row.unit for row in rows if self._may_join(row, claim)], claim, executor)

    def _take_one(self, free: Sequence[Unit], claim: TaskClaim, executor: JointExecutor) -> None:
        for unit in free:
            asked = time.monotonic()
            lease = self._fleet.join_unit(
                claim.lease, unit.uuid, targets=self._targets, executors=self._executors, seconds=self._seconds
            )
            if lease is not None:
                further = self._held[unit.uuid] = _Further(unit, lease, claim)
                self._hosts[unit.uuid] = unit.host
                log.info("further unit", unit=unit.uuid, units=1 + len(self._held))
                guard = self._keeper.join(lease, asked)
                executor.add(unit.uuid, partial(self._opened, further, guard), partial(self._gone, further))
                return

    def _opened(self, further: _Further, guard: LeaseGuard) -> UnitExecutor:
        """Open the executor of a unit, in the thread that will drive it."""
        found = self._open_unit(further.claim, further.unit, further.lease.fence)
        found.allowed = lambda: min(self._keeper.guard(), guard())
        return found

    def _is_fit(self, row: UnitRow) -> bool:
        """Return whether a unit is one of ours that we may keep."""
        held = self._held.get(row.unit.uuid)
        ours = held is not None and (row.owner, row.fence) == (held.lease.owner, held.lease.fence)
        return ours and row.state is UnitState.READY

    def _may_join(self, row: UnitRow, claim: TaskClaim) -> bool:
        unit = row.unit
        is_other = unit.uuid != self._unit.uuid and unit.uuid not in self._held and unit.uuid not in self._unfit
        is_free = row.state is UnitState.READY and row.owner is None
        is_alike = unit.device.key == self._unit.device.key
        return is_other and is_free and is_alike and self._reaches(claim.executor, unit)

    def _gone(self, further: _Further, error: TilewrightError | None) -> None:
        """A unit has left the executor: give it back. One that was lost is not taken again for this task."""
        uuid = further.unit.uuid
        del self._held[uuid]
        self._keeper.leave(further.lease)
        if error is not None:
            log.warning("further unit lost", unit=uuid, error=error.message)
            self._unfit.add(uuid)
        with suppress(StoreError, LeaseLost):  # its lease runs out then
            self._fleet.leave_unit(further.claim.lease, further.lease)
            if isinstance(error, MachineLost) and not isinstance(error, NodeLost | DriverLost):
                self._fleet.set_unit_state(uuid, UnitState.SUSPECT, error.end.value, before=UnitState.READY)
