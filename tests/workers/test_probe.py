"""Units are found, opened and described; what crosses to and from a child comes back as it was."""

from dataclasses import replace

import pytest

from tilewright.core.errors import UnsupportedTarget
from tilewright.core.fleet import AttemptEnd, UnitState
from tilewright.core.target import Profile
from tilewright.runtime.cuda.health import HealthReadings
from tilewright.runtime.devices import DEVICES, device_infos
from tilewright.workers.child_supervisor import WorkerSpec
from tilewright.workers.health import verdict
from tilewright.workers.losses import DeviceLost
from tilewright.workers.probe import (
    ProbeReport,
    local_unit,
    local_units,
    look_at,
    probe_unit,
    report_from_json,
    report_to_json,
)
from tilewright.workers.runner_supervisor import RunnerSupervisor
from tilewright.workers.settings import ExecutorSettings


def test_the_units_of_this_host_are_its_devices() -> None:
    units = local_units()
    assert [unit.device for unit in units] == list(device_infos())
    assert len({unit.uuid for unit in units}) == len(units) and {unit.executor for unit in units} == {"local"}
    assert local_unit() in units and "llvm" in local_unit().classes
    with pytest.raises(UnsupportedTarget):
        local_unit("cuda", 4711)


def test_a_unit_is_opened_in_a_child_and_its_anchor_timed() -> None:
    report = probe_unit(local_unit())
    assert report.anchor_seconds is not None and report.anchor_seconds > 0 and not report.error
    assert report.power_anchor_seconds is None
    assert verdict(report.readings) == (UnitState.READY, "")


def test_a_device_that_does_not_open_is_told_by_the_probe_and_lost_to_a_runner() -> None:
    """Its architecture is another, as if the machine had been replaced."""
    unit = local_unit()
    target = replace(unit.device.target, arch="riscv")
    gone = replace(unit, device=replace(unit.device, target=target))
    assert "does not run here" in probe_unit(gone).error
    runner = RunnerSupervisor(WorkerSpec(target, Profile(), 0, ExecutorSettings(), gone))
    try:
        with pytest.raises(DeviceLost, match="does not run here") as lost:
            runner.describe()
        assert lost.value.end is AttemptEnd.DEVICE_FAULT
    finally:
        runner.close()


def test_a_report_crosses_to_another_process() -> None:
    readings = HealthReadings(xids=(31,), throttled=("power_brake",), used_bytes=1 << 40, utilisation=0.5)
    report = ProbeReport(replace(local_unit(), executor="ray"), readings, 1e-5, None, "said")
    assert report_from_json(report_to_json(report)) == report
    assert report_from_json(report_to_json(look_at(local_unit()))).readings == HealthReadings()


@pytest.mark.cuda
def test_a_gpu_has_both_anchors_and_its_uuid_shows_it_alone() -> None:
    for ordinal in range(DEVICES["cuda"].count()):
        report = probe_unit(local_unit("cuda", ordinal))
        assert report.anchor_seconds is not None and report.power_anchor_seconds is not None, report.error
        assert 1e-6 < report.anchor_seconds < 1e-3 and 3e-4 < report.power_anchor_seconds < 3e-3
