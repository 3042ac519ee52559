"""The sensors of an NVIDIA card, through NVML. They are only read; no setting is ever changed."""

import functools
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

_REASONS = {
    0x4: "software_power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
"""These bits say why the clocks are lower than they could be (NVML API, "Clocks Event Reasons")."""


_HARDWARE = ("hardware_slowdown", "hardware_thermal", "power_brake")


READ_AGAIN_SECONDS = 1.0
"""The state of a card is read anew after so long. NVML needs some 25 ms for it on an H200, which is longer than a
candidate is timed for."""
_read_before: dict[str, tuple[float, dict[str, float]]] = {}
"""PCI address -> when the card was read, by the monotonic clock, and what it said."""


def environment(bus_id: str) -> dict[str, float]:
    """Return the state of the card at a PCI address as it was at most a second ago: ``sm_clock_mhz``,
    ``memory_clock_mhz``, ``power_watts``, ``temperature_celsius`` and ``clock_event_bits`` (NVML's mask). For each
    reason in the mask that slows the card down there is ``throttled_REASON`` = 1. What this card does not tell is left
    out; the result is empty without NVML."""
    now = time.monotonic()
    read_at, found = _read_before.get(bus_id, (-READ_AGAIN_SECONDS, {}))
    if now - read_at >= READ_AGAIN_SECONDS:
        found = _read(bus_id)
        _read_before[bus_id] = now, found
    return dict(found)


def _read(bus_id: str) -> dict[str, float]:
    nvml, card = library(), _card(bus_id)
    if nvml is None or card is None:
        return {}
    readings: dict[str, Callable[[], Any]] = {
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_MEM),
        "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(card) / 1e3,
        "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU),
        "clock_event_bits": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(card),
    }
    found: dict[str, float] = {}
    for name, read in readings.items():
        try:
            found[name] = float(read())
        except nvml.NVMLError:  # The card does not have it, or this process may not read it.
            continue
    return {**found, **throttled(int(found.get("clock_event_bits", 0)))}


def throttled(bits: int) -> dict[str, float]:
    """Return ``throttled_REASON`` = 1 for each reason in NVML's mask that slows the card down."""
    return {f"throttled_{name}": 1.0 for bit, name in _REASONS.items() if bits & bit}


def hardware_reasons(bits: int) -> tuple[str, ...]:
    """Return the reasons in NVML's mask that accuse the card, its cooling or its power supply. A power limit or a
    thermal limit that software keeps to is normal under load."""
    return tuple(name for bit, name in _REASONS.items() if bits & bit and name in _HARDWARE)


def card_by_uuid(uuid: str) -> Any:
    """Return NVML's handle of a device or slice; None where there is no such device, or no NVML."""
    nvml = library()
    if nvml is None:
        return None
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        return None


def has_slices(bus_id: str) -> bool:
    """Return whether the card is cut into slices (MIG), each of which the driver shows as a device."""
    nvml, card = library(), _card(bus_id)
    if nvml is None or card is None:
        return False
    try:
        return bool(nvml.nvmlDeviceGetMigMode(card)[0])
    except nvml.NVMLError:  # The card knows no slices.
        return False


@functools.cache
def library() -> Any:
    """Return NVML, initialised; None where it is not installed or there is no driver."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


@functools.cache
def _card(bus_id: str) -> Any:
    """Return NVML's handle of a card; None where it does not know the address."""
    nvml = library()
    if nvml is None:
        return None
    try:
        return nvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())
    except nvml.NVMLError:
        return None
