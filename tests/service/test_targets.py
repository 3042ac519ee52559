"""How targets are named, and what a name that means nothing here is told."""

from typing import Any

import pytest

from tilewright.core.errors import InvalidParameter, UnsupportedTarget
from tilewright.core.target import DeviceInfo, Target
from tilewright.runtime.devices import host_target, open_device
from tilewright.service.settings import Settings
from tilewright.service.submit import checked
from tilewright.service.targets import TARGETS, DeviceSelector, compiled_for, default_cache, measured_on, parse_device
from tilewright.service.views import JobSpec, TaskSpec
from tilewright.te.operators import OPERATORS

TASK = TaskSpec(OPERATORS["matmul"].workload({"m": 8, "n": 8, "k": 8}))


def test_kinds_and_ordinals_are_read() -> None:
    assert parse_device("llvm") == DeviceSelector("llvm", 0) and parse_device("cuda:1") == DeviceSelector("cuda", 1)
    for bad in ("", "cpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cuda:\u0661", "cuda:1000000"):
        with pytest.raises(UnsupportedTarget, match="allowed: " + ", ".join(TARGETS)) as refused:
            parse_device(bad)
        assert refused.value.field == "target"


H200 = DeviceInfo("NVIDIA H200", Target("cuda", "sm_90a", threads=132))


def checked_spec(*, one_host: bool = True, **options: Any) -> JobSpec:
    return checked(JobSpec((TASK,), **options), lambda: [H200], Settings(), one_host=one_host)


def test_the_profile_of_a_job_is_what_is_usual_on_its_device() -> None:
    assert checked_spec().cache == "warm" == default_cache("llvm")
    for target in ("cuda", "cuda:sm_90a", H200.key, "cuda:99"):  # perhaps another process has as many
        assert checked_spec(target=target).cache == "cold"
    assert checked_spec(target="cuda", cache="warm").cache == "warm"


def test_numbers_of_devices_and_unknown_classes_are_refused_on_a_fleet() -> None:
    for target, allowed in (("cuda:1", "numbers the devices of one machine"), ("cuda:sm_70", "cannot be timed here")):
        with pytest.raises(UnsupportedTarget, match=allowed) as refused:
            checked_spec(target=target, one_host=False)
        assert refused.value.field == "target"


@pytest.mark.parametrize("option", [{"priority": 101}, {"tenant": "a b"}, {"deadline_seconds": 0.0}])
def test_what_a_job_asks_of_the_scheduler_is_checked(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match="allowed") as refused:
        checked_spec(**option)
    assert refused.value.field == next(iter(option))


def test_this_machines_processor_is_there() -> None:
    on = measured_on(DeviceSelector("llvm"))
    assert on.device.target == host_target("llvm") and str(on.profile) == "warm-v1"
    assert compiled_for("llvm", ()) == on
    with pytest.raises(UnsupportedTarget, match="llvm:7 is none of them"):
        measured_on(DeviceSelector("llvm", 7))


def test_code_for_an_architecture_needs_no_device_of_it() -> None:
    on = compiled_for("cuda:sm_80", ())
    assert (on.device.target.arch, str(on.profile)) == ("sm_80", "cold-v2")
    assert "nvrtc" in on.toolchain.components
    known = DeviceInfo("an A100", Target("cuda", "sm_80", (), 108), {"l2_bytes": 4e7})
    assert compiled_for("cuda:sm_80", [known]).device in (known, on.device)
    with pytest.raises(UnsupportedTarget, match="sm_12345"):
        compiled_for("cuda:sm_12345", ())


def test_code_for_another_processor_needs_none_of_it() -> None:
    assert compiled_for("llvm:x86-64", ()).device.target == host_target("llvm")
    on = compiled_for("llvm:aarch64+sve", ())
    assert (on.device.target.arch, on.device.target.features, on.device.target.vector_bytes) == (
        "aarch64",
        ("sve",),
        32,
    )
    assert on.toolchain != compiled_for("llvm:aarch64", ()).toolchain and str(on.profile) == "warm-v1"
    with pytest.raises(UnsupportedTarget, match="no architecture 'z80' here; known: x86-64, aarch64, riscv64"):
        compiled_for("llvm:z80", ())
    with pytest.raises(UnsupportedTarget, match=r"llvm:riscv64 has no extension 'sve' here; known: .*zvl256b"):
        compiled_for("llvm:riscv64+v+sve", ())
    for elsewhere in ("llvm:aarch64", "llvm:riscv64+v"):  # nothing of it runs here
        with pytest.raises(UnsupportedTarget, match="cannot be timed here"):
            parse_device(elsewhere)
        with pytest.raises(UnsupportedTarget, match="does not run here"):
            open_device("llvm", target=compiled_for(elsewhere, ()).device.target)
