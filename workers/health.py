"""Whether a unit may be used: a verdict on what NVML and the anchors say of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ..core.fleet import UnitState
from ..runtime.cuda.health import HealthReadings

ACCUSING_XIDS = (48, 64, 74, 79, 92, 94, 95, 119, 120)
"""Xid errors that accuse the device, its memory, its link or its firmware (NVIDIA, "GPU Xid Errors"). Others, such as
13, 31, 43 and 45, come from the program that runs: a candidate makes them."""
OWN_DRIFT = 0.05
"""An anchor may take so much longer than the median of the unit's own earlier ones."""
CLASS_DRIFT = 0.10
"""It may take so much longer than the median of the other units of its class."""
LEAST_OWN, LEAST_OTHERS = 5, 2
"""Fewer figures than these make no median to go by."""
THROTTLED_SHARE = 0.2
"""In so many of a unit's last trials the hardware may have slowed it down."""
FOREIGN_BYTES = 1 << 30
FOREIGN_UTILISATION = 0.05
"""Beyond these, a unit that should be idle is used by somebody else. NVML's process numbers are the host's, which a
container cannot read, so that memory and utilisation have to do."""

RELEASED_BY_PROBES = ("slow", "busy")
"""Reasons that good probes lift. Any other needs a person."""


@dataclass(frozen=True, slots=True)
class AnchorHistory:
    """Seconds of one anchor on a unit: ``now``, ``own`` earlier ones of the unit, and ``others``, the medians of the
    other units of its class."""

    now: float
    own: Sequence[float] = ()
    others: Sequence[float] = ()


def verdict(
    readings: HealthReadings,
    anchors: Sequence[AnchorHistory] = (),
    *,
    throttled_share: float = 0.0,
    idle: bool = True,
) -> tuple[UnitState, str]:
    """Return the state that a unit should have, and the reason for people; it is empty where all is well.

    The reason begins with one word: ``fault``, ``reset`` (the driver wants the device reset), ``reboot`` (the host,
    with all its units), ``drain``, ``slow`` or ``busy``. ``throttled_share``: of the unit's trials of the last minute,
    the share in which the hardware slowed it down. ``idle``: nothing of ours runs on the unit now.
    """
    return _fault(readings) or _slow(anchors, throttled_share) or _busy(readings, idle) or (UnitState.READY, "")


def _fault(readings: HealthReadings) -> tuple[UnitState, str] | None:
    accusing = sorted(set(readings.xids) & set(ACCUSING_XIDS))
    if not readings.reachable:
        return UnitState.QUARANTINED, "fault: the driver does not reach the device"
    if accusing:
        return UnitState.QUARANTINED, f"fault: Xid {', '.join(map(str, accusing))}"
    if readings.remap_failed:
        return UnitState.QUARANTINED, "fault: a row of memory could not be remapped"
    if readings.recovery_action.endswith("reboot"):
        return UnitState.QUARANTINED, "reboot: the driver wants the host rebooted"
    if readings.recovery_action == "drain_p2p":
        return UnitState.DRAINING, "drain: the driver wants peer traffic drained"
    if readings.recovery_action != "none":
        return UnitState.QUARANTINED, f"reset: the driver wants the device recovered ({readings.recovery_action})"
    if readings.uncorrected_errors:
        return UnitState.QUARANTINED, f"fault: {readings.uncorrected_errors} uncorrected memory errors since its reset"
    if readings.remap_pending:
        return UnitState.DRAINING, "drain: a row of memory waits to be remapped at the next reset"
    return None


def _slow(anchors: Sequence[AnchorHistory], throttled_share: float) -> tuple[UnitState, str] | None:
    if throttled_share > THROTTLED_SHARE:
        return UnitState.QUARANTINED, f"slow: the hardware slowed it down in {throttled_share:.0%} of its trials"
    for anchor in anchors:
        for figures, least, most, whose in (
            (anchor.own, LEAST_OWN, OWN_DRIFT, "its own median"),
            (anchor.others, LEAST_OTHERS, CLASS_DRIFT, "the median of its class"),
        ):
            if len(figures) >= least and anchor.now > (1 + most) * median(figures):
                off = anchor.now / median(figures) - 1
                return UnitState.QUARANTINED, f"slow: its anchor takes {off:.1%} longer than {whose}"
    return None


def _busy(readings: HealthReadings, idle: bool) -> tuple[UnitState, str] | None:
    if readings.prohibited:
        return UnitState.SUSPECT, "busy: its compute mode lets no program on it"
    if readings.shared:
        return UnitState.SUSPECT, "busy: programs share it through MPS"
    if idle and readings.used_bytes > FOREIGN_BYTES:
        return UnitState.SUSPECT, f"busy: another program has {readings.used_bytes / (1 << 30):.1f} GiB of its memory"
    if idle and readings.utilisation > FOREIGN_UTILISATION:
        return UnitState.SUSPECT, f"busy: another program uses {readings.utilisation:.0%} of its time"
    return None
