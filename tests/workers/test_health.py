"""What is made of the readings of a device."""

from dataclasses import replace

import pytest

from tilewright.core.fleet import UnitState
from tilewright.runtime.cuda import health
from tilewright.runtime.cuda.health import HealthReadings, XidListener
from tilewright.runtime.devices import DEVICES
from tilewright.workers.health import ACCUSING_XIDS, RELEASED_BY_PROBES, AnchorHistory, verdict

WELL = HealthReadings(sm_clock_mhz=1980.0, power_watts=120.0, temperature_celsius=40.0)
READY, SUSPECT, QUARANTINED, DRAINING = (
    UnitState.READY,
    UnitState.SUSPECT,
    UnitState.QUARANTINED,
    UnitState.DRAINING,
)
EARLIER = (1.00, 1.01, 0.99, 1.0, 1.0)


@pytest.mark.parametrize(
    ("readings", "state", "reason"),
    [
        (WELL, READY, ""),
        (replace(WELL, xids=(13, 31, 43, 45, 8, 11)), READY, ""),
        *[(replace(WELL, xids=(31, xid)), QUARANTINED, f"fault: Xid {xid}") for xid in ACCUSING_XIDS],
        (replace(WELL, reachable=False), QUARANTINED, "fault: the driver does not reach"),
        (replace(WELL, remap_failed=True, remap_pending=True), QUARANTINED, "fault: a row of memory"),
        (replace(WELL, remap_pending=True), DRAINING, "drain: a row of memory"),
        (replace(WELL, uncorrected_errors=2), QUARANTINED, "fault: 2 uncorrected memory errors"),
        (replace(WELL, recovery_action="reset"), QUARANTINED, "reset: "),
        (replace(WELL, recovery_action="drain_and_reset"), QUARANTINED, "reset: "),
        (replace(WELL, recovery_action="reboot"), QUARANTINED, "reboot: "),
        (replace(WELL, recovery_action="system_reboot"), QUARANTINED, "reboot: "),
        (replace(WELL, recovery_action="drain_p2p"), DRAINING, "drain: "),
        (replace(WELL, recovery_action="action 9"), QUARANTINED, "reset: the driver wants"),
        (replace(WELL, prohibited=True), SUSPECT, "busy: its compute mode"),
        (replace(WELL, shared=True), SUSPECT, "busy: programs share it"),
        (replace(WELL, used_bytes=3 << 30), SUSPECT, "busy: another program has 3.0 GiB"),
        (replace(WELL, used_bytes=1 << 20), READY, ""),
        (replace(WELL, utilisation=0.5), SUSPECT, "busy: another program uses 50%"),
        (replace(WELL, throttled=("hardware_slowdown",)), READY, ""),
    ],
)
def test_readings_are_judged(readings: HealthReadings, state: UnitState, reason: str) -> None:
    found, why = verdict(readings)
    assert found is state and why.startswith(reason) and bool(why) == (state is not READY)


@pytest.mark.parametrize(
    ("anchor", "slow"),
    [
        (AnchorHistory(1.04, EARLIER), ""),
        (AnchorHistory(1.06, EARLIER), "6.0% longer than its own median"),
        (AnchorHistory(0.80, EARLIER, (1.0, 1.0)), ""),
        (AnchorHistory(1.06, EARLIER[:4]), ""),
        (AnchorHistory(1.09, (), (1.0, 1.0, 1.0)), ""),
        (AnchorHistory(1.12, (), (1.0, 1.0, 1.0)), "12.0% longer than the median of its class"),
        (AnchorHistory(1.50, (), (1.0,)), ""),
        (AnchorHistory(1.04, EARLIER, (0.9, 0.9)), "15.6% longer than the median of its class"),
    ],
)
def test_an_anchor_that_drifted_makes_a_unit_slow(anchor: AnchorHistory, slow: str) -> None:
    steady = AnchorHistory(1.0, EARLIER)
    for anchors in ([anchor], [steady, anchor]):
        state, reason = verdict(WELL, anchors)
        assert state is (QUARANTINED if slow else READY)
        assert reason == (f"slow: its anchor takes {slow}" if slow else "")


def test_a_share_of_throttled_trials_is_tolerated() -> None:
    assert verdict(WELL, throttled_share=0.2) == (READY, "")
    slow = "slow: the hardware slowed it down in 25% of its trials"
    assert verdict(WELL, throttled_share=0.25) == (QUARANTINED, slow)


def test_what_we_run_ourselves_is_not_somebody_else() -> None:
    at_work = replace(WELL, used_bytes=50 << 30, utilisation=1.0)
    assert verdict(at_work, idle=False) == (READY, "") and verdict(at_work)[0] is SUSPECT


def test_the_worst_is_said_first_and_probes_release_what_may_pass() -> None:
    slow = AnchorHistory(2.0, EARLIER)
    worst = replace(WELL, xids=(79,), used_bytes=3 << 30)
    words = [verdict(readings, [slow])[1].split(":")[0] for readings in (worst, replace(worst, xids=()))]
    assert words == ["fault", "slow"]
    assert [word in RELEASED_BY_PROBES for word in ("slow", "busy", "fault", "reset")] == [True, True, False, False]


@pytest.mark.skipif(DEVICES["cuda"].count() > 0, reason="there is an NVIDIA device")
def test_without_nvml_a_device_is_out_of_reach_and_nothing_is_heard() -> None:
    assert health.read("GPU-0", (31,)) == HealthReadings(reachable=False, xids=(31,))
    listener = XidListener(["GPU-0"])
    assert listener.heard() == {"GPU-0": ()}
    listener.close()


@pytest.mark.cuda
def test_a_device_is_read_and_listened_to() -> None:
    uuid = DEVICES["cuda"].uuid(0)
    readings = health.read(uuid)
    assert readings.reachable and readings.power_watts > 0 and readings.sm_clock_mhz > 0
    assert verdict(readings, idle=False) == (READY, "")
    listener = XidListener([uuid])
    assert listener.heard() == {uuid: ()}
    listener.close()
    listener.close()
