"""How an NVIDIA device is, as NVML tells. Everything is only read: no clock, mode or counter is ever changed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import nvml

_RECOVERY_ACTIONS = (
    *("none", "reset", "reboot", "drain_p2p", "drain_and_reset"),
    *("recover_imex_domain", "bus_reset", "system_reboot"),
)
"""NVML's recovery actions by number (NVML API, "nvmlDeviceGpuRecoveryAction_t"). Later numbers are unknown here."""


@dataclass(frozen=True, slots=True)
class HealthReadings:
    """What NVML says of a device. What it does not say has the value of a healthy, idle one.

    ``reachable``: NVML knows the device. ``xids``: errors that an ``XidListener`` has heard. ``recovery_action``: what
    the driver wants done, such as ``none``, ``reset``, ``reboot`` or ``drain_p2p``. ``uncorrected_errors``: ECC errors
    since the last reset. ``remap_pending``, ``remap_failed``: of rows of memory. ``throttled``: why the
    hardware slows it down. ``used_bytes``, ``utilisation`` (0 to 1): by all programs. ``prohibited``: its compute
    mode lets no program on it. ``slices``: it is cut into slices (MIG). ``shared``: programs share it through MPS.
    """

    reachable: bool = True
    xids: tuple[int, ...] = ()
    recovery_action: str = "none"
    uncorrected_errors: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    throttled: tuple[str, ...] = ()
    sm_clock_mhz: float = 0.0
    power_watts: float = 0.0
    temperature_celsius: float = 0.0
    used_bytes: int = 0
    utilisation: float = 0.0
    prohibited: bool = False
    slices: bool = False
    shared: bool = False


def read(uuid: str, xids: Sequence[int] = ()) -> HealthReadings:
    """Read the device now, without a context on it. It takes some milliseconds."""
    library, card = nvml.library(), nvml.card_by_uuid(uuid)
    if library is None or card is None:
        return HealthReadings(reachable=False, xids=tuple(xids))

    def told(ask: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return ask()
        except library.NVMLError:  # The card does not have it, or this process may not read it.
            return otherwise

    uncorrected = (library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC)
    remapped = told(lambda: library.nvmlDeviceGetRemappedRows(card), (0, 0, False, False))
    bits = told(lambda: int(library.nvmlDeviceGetCurrentClocksEventReasons(card)), 0)
    mode = told(lambda: library.nvmlDeviceGetComputeMode(card), library.NVML_COMPUTEMODE_DEFAULT)
    return HealthReadings(
        xids=tuple(xids),
        recovery_action=told(lambda: _recovery_action(library, card), "none"),
        uncorrected_errors=told(lambda: int(library.nvmlDeviceGetTotalEccErrors(card, *uncorrected)), 0),
        remap_pending=bool(remapped[2]),
        remap_failed=bool(remapped[3]),
        throttled=nvml.hardware_reasons(bits),
        sm_clock_mhz=told(lambda: float(library.nvmlDeviceGetClockInfo(card, library.NVML_CLOCK_SM)), 0.0),
        power_watts=told(lambda: library.nvmlDeviceGetPowerUsage(card) / 1e3, 0.0),
        temperature_celsius=told(
            lambda: float(library.nvmlDeviceGetTemperature(card, library.NVML_TEMPERATURE_GPU)), 0.0
        ),
        used_bytes=told(lambda: int(library.nvmlDeviceGetMemoryInfo(card, version=library.nvmlMemory_v2).used), 0),
        utilisation=told(lambda: library.nvmlDeviceGetUtilizationRates(card).gpu / 100, 0.0),
        prohibited=mode == library.NVML_COMPUTEMODE_PROHIBITED,
        slices=told(lambda: bool(library.nvmlDeviceGetMigMode(card)[0]), False),
        shared=bool(told(lambda: library.nvmlDeviceGetMPSComputeRunningProcesses(card), [])),
    )


def _recovery_action(library: Any, card: Any) -> str:
    (field,) = library.nvmlDeviceGetFieldValues(card, [library.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if field.nvmlReturn:
        return "none"
    number = int(field.value.uiVal)
    return _RECOVERY_ACTIONS[number] if number < len(_RECOVERY_ACTIONS) else f"action {number}"


class XidListener:
    """Hears the Xid errors of devices from when it was made. One that lives as long as a worker misses none; NVML keeps
    no list of earlier ones. It needs no context on a device."""

    def __init__(self, uuids: Sequence[str]) -> None:
        """Devices that do not tell are left out, and nothing is heard without NVML."""
        self._library = nvml.library()
        self._set: Any = None
        self._heard: dict[str, list[int]] = {uuid: [] for uuid in uuids}
        if self._library is not None:
            self._set = self._library.nvmlEventSetCreate()
            for uuid in uuids:
                self._register(uuid)

    def heard(self) -> dict[str, tuple[int, ...]]:
        """Return the Xids of each device so far. It does not wait."""
        while self._set is not None:
            try:
                event = self._library.nvmlEventSetWait_v2(self._set, 0)
                uuid = str(self._library.nvmlDeviceGetUUID(event.device))
            except self._library.NVMLError:  # Nothing more has happened.
                break
            if event.eventType == self._library.nvmlEventTypeXidCriticalError:
                self._heard.setdefault(uuid, []).append(int(event.eventData))
        return {uuid: tuple(xids) for uuid, xids in self._heard.items()}

    def close(self) -> None:
        """Stop listening. A second call does nothing."""
        if self._set is not None:
            self._library.nvmlEventSetFree(self._set)
            self._set = None

    def _register(self, uuid: str) -> None:
        card = nvml.card_by_uuid(uuid)
        if card is None:
            return
        try:
            self._library.nvmlDeviceRegisterEvents(card, self._library.nvmlEventTypeXidCriticalError, self._set)
        except self._library.NVMLError:  # A slice, or a card without events.
            return
