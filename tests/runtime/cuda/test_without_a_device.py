"""What a machine without an NVIDIA device, driver or library is told, and what needs none of them."""

import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.core.errors import CompileError, DeviceFault, Fault, UnsupportedTarget
from tilewright.runtime.cuda import driver, nvml
from tilewright.runtime.cuda.device import arch_of
from tilewright.runtime.cuda.kernel import CudaKernel
from tilewright.runtime.devices import DEVICES, device_infos, host_target, open_device

_HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cuda", "pynvml", "torch", "cupy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""


def run_hidden(code: str) -> str:
    """Return the last line that ``code`` prints in a process where no CUDA library can be imported."""
    done = subprocess.run([sys.executable, "-c", _HIDE + code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def without_a_device() -> bool:
    return DEVICES["cuda"].count() == 0


def test_without_the_libraries_everything_imports_and_says_what_is_missing() -> None:
    said = run_hidden(
        "from tilewright.runtime.devices import open_device, device_infos\n"
        "from tilewright.runtime import module, anchor\n"
        "assert all(i.target.kind != 'cuda' for i in device_infos())\n"
        "try: open_device('cuda')\n"
        "except Exception as e: print(type(e).__name__, e)\n"
    )
    assert said.startswith("UnsupportedTarget a cuda device needs cuda-bindings")
    assert said.endswith("pip install 'tilewright[cuda]'")


def test_importing_loads_no_cuda_library() -> None:
    code = (
        "import sys, tilewright.runtime.devices, tilewright.runtime.module\n"
        "print(any(name.split('.')[0] in ('cuda', 'pynvml', 'torch') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.skipif(not without_a_device(), reason="there is an NVIDIA device")
def test_without_a_driver_there_is_no_device_and_asking_says_why() -> None:
    assert all(info.target.kind == "llvm" for info in device_infos())
    for ask in (open_device, host_target):
        with pytest.raises(UnsupportedTarget, match=r"no NVIDIA (driver is installed|device can be used)") as caught:
            ask("cuda")
        assert caught.value.field == "target"
    assert nvml.environment("0000:00:00.0") == {}


def test_a_driver_that_is_too_old_is_named() -> None:
    driver.check_version(13_000)
    with pytest.raises(UnsupportedTarget, match=r"too old: it runs CUDA 12\.8, needed: 13\.0"):
        driver.check_version(12_080)


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 0), "sm_80"), ((8, 6), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a")],
)
def test_what_is_compiled_for_a_capability(capability: tuple[int, int], arch: str) -> None:
    assert arch_of(capability) == arch


@pytest.mark.parametrize("capability", [(7, 5), (10, 3), (12, 0)])
def test_capabilities_that_nothing_is_compiled_for(capability: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedTarget, match=r"capability \d+\.\d; code is made for sm_80, sm_89, sm_90a, sm_100a"):
        arch_of(capability)


@pytest.mark.parametrize(
    ("code", "fault", "lost"),
    [
        (1, Fault.REFUSED, False),  # invalid value: too many threads, too much shared memory
        (701, Fault.REFUSED, False),  # out of resources for the launch
        (912, Fault.REFUSED, False),  # a cluster that does not fit
        (700, Fault.ILLEGAL_ACCESS, True),
        (716, Fault.ILLEGAL_ACCESS, True),  # misaligned
        (702, Fault.TIMEOUT, True),
        (719, Fault.BROKEN_OFF, True),
        (715, Fault.BROKEN_OFF, True),  # illegal instruction
        (999, Fault.BROKEN_OFF, True),
    ],
)
def test_statuses_become_faults(code: int, fault: Fault, lost: bool) -> None:
    error = driver.typed_error(code, "said")
    assert isinstance(error, DeviceFault)
    assert (error.fault, error.lost) == (fault, lost)
    assert error.message.endswith("said")


@pytest.mark.parametrize(
    ("code", "kind"), [(2, MemoryError), (209, CompileError), (500, CompileError), (46, UnsupportedTarget)]
)
def test_statuses_become_other_errors(code: int, kind: type[Exception]) -> None:
    assert isinstance(driver.typed_error(code, "said"), kind)


def test_reasons_of_lower_clocks_have_names() -> None:
    assert nvml.throttled(0x1) == {}  # Idling is no throttling.
    assert nvml.throttled(0x4 | 0x40) == {"throttled_software_power_cap": 1.0, "throttled_hardware_thermal": 1.0}


def test_there_is_one_file_that_speaks_to_the_driver() -> None:
    folder = Path(driver.__file__).parent
    speaking = {f.name for f in folder.glob("*.py") if "cuda.bindings" in f.read_text()}
    assert speaking == {"driver.py"}


def test_sensors_are_read_once_a_second_however_often_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def read_card(bus_id: str) -> dict[str, float]:
        read.append(bus_id)
        return {"power_watts": float(len(read))}

    monkeypatch.setattr(nvml, "_read", read_card)
    monkeypatch.setattr(nvml, "_read_before", {})
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    assert [nvml.environment("a")["power_watts"], nvml.environment("a")["power_watts"]] == [1.0, 1.0]
    assert nvml.environment("b") == {"power_watts": 2.0}
    clock[0] = nvml.READ_AGAIN_SECONDS
    assert nvml.environment("a") == {"power_watts": 3.0} and read == ["a", "b", "a"]


@pytest.mark.parametrize(("launches", "captured"), [(6, [6]), (2048, [2048]), (5000, [2048, 904])])
def test_only_graphs_that_are_replayed_are_captured(
    monkeypatch: pytest.MonkeyPatch, launches: int, captured: list[int]
) -> None:
    kernel: Any = object.__new__(CudaKernel)
    asked: list[int] = []
    monkeypatch.setattr(CudaKernel, "_addresses", lambda self, arguments: tuple(arguments))
    monkeypatch.setattr(CudaKernel, "_graph", lambda self, sets, count: asked.append(count))
    kernel._stream = SimpleNamespace(context=nullcontext())
    kernel._timer = SimpleNamespace(seconds=lambda enqueue: 1.0)
    assert kernel.time([(1,), (2,)], launches) == 1.0
    assert asked == captured
