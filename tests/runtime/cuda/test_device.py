"""What CUDA devices do beyond the contract: big transfers, clusters, shared memory, CUDA graphs, sensors and faults."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tilewright.core.dtypes import float16
from tilewright.core.errors import CompileError, DeviceFault, Fault, InvalidParameter
from tilewright.core.target import Target
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.runtime.cuda.kernel import MOST_CAPTURED
from tilewright.runtime.devices import DEVICES
from tilewright.tests.runtime.cuda.kernels import COUNT, binary, target

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    yield CudaDevice()


def result(device: CudaDevice, function: str, blocks: int = 1, threads: int = COUNT, **grid: int) -> list[float]:
    """Return Y after one launch on X = 0, 1, 2, …"""
    x = device.hold(np.arange(COUNT, dtype=np.float32))
    y = device.allocate(4 * COUNT)
    device.fill(y, bytes(4))
    device.load(binary(function, device.target, blocks, threads, **grid)).launch([x, y])
    values: list[float] = y.read().view(np.float32).tolist()
    return values


@pytest.mark.parametrize("nbytes", [(8 << 20) - 1, 8 << 20, (8 << 20) + 1, 50_000_003])
def test_big_transfers_arrive_whole(device: CudaDevice, nbytes: int) -> None:
    data = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
    memory = device.allocate(nbytes + 3).view(3, nbytes)
    memory.write(data)
    assert np.array_equal(memory.read(), data)


def test_memory_that_is_not_there_is_an_error_that_leaves_the_device_well(device: CudaDevice) -> None:
    with pytest.raises(MemoryError, match=r"\d+ bytes asked of cuda device 0, \d+ of \d+ are free"):
        device.allocate(1 << 50)
    assert result(device, "add_one")[:3] == [1.0, 2.0, 3.0]


def test_memory_is_given_back(device: CudaDevice) -> None:
    eighth = int(device.info.hardware["memory_bytes"]) // 8
    for _ in range(20):
        device.allocate(eighth)


@pytest.mark.parametrize("cluster", [2, 8, 16])
def test_clusters_are_launched(device: CudaDevice, cluster: int) -> None:
    if device.info.hardware["cluster_blocks"] < cluster:
        pytest.skip("this device has no clusters")
    assert result(device, "cluster_size", 16, 64, cluster=cluster) == [float(cluster)] * COUNT


def test_large_dynamic_shared_memory_is_asked_for(device: CudaDevice) -> None:
    most = int(device.info.hardware["shared_bytes_per_block"])
    for shared in (4096, 49_152, 100_000, most):
        assert result(device, "through_shared", shared_bytes=shared)[:2] == [COUNT - 1.0, COUNT - 2.0]
    with pytest.raises(CompileError, match=f"cannot have {most + 16} bytes of dynamic shared memory"):
        result(device, "through_shared", shared_bytes=most + 16)


def test_a_launch_that_cannot_be_is_refused_and_nothing_is_lost(device: CudaDevice) -> None:
    with pytest.raises(DeviceFault, match="launch of add_one") as caught:
        result(device, "add_one", threads=2048)
    assert (caught.value.fault, caught.value.lost) == (Fault.REFUSED, False)
    assert result(device, "add_one")[:3] == [1.0, 2.0, 3.0]


def test_code_for_another_architecture_does_not_load(device: CudaDevice) -> None:
    other = "sm_80" if device.target.arch != "sm_80" else "sm_90a"
    with pytest.raises(CompileError, match="does not load on this device"):
        device.load(binary("add_one", Target("cuda", other, (), 1, 16)))


@pytest.mark.parametrize("launches", [1, 5, MOST_CAPTURED - 1, MOST_CAPTURED, 2 * MOST_CAPTURED + 7])
def test_exactly_as_many_launches_are_timed_over_rotating_arguments(device: CudaDevice, launches: int) -> None:
    """Each launch adds X[0] = 1 to one of three Ys, which take turns."""
    kernel = device.load(binary("add_first", device.target))
    x = device.hold(np.ones(COUNT, np.float32))
    outputs = [device.hold(np.zeros(COUNT, np.float32)) for _ in range(3)]
    for round_number in (1, 2):
        assert kernel.time([[x, y] for y in outputs], launches) > 0
        counts = [float(y.read().view(np.float32)[0]) for y in outputs]
        assert sum(counts) == round_number * launches
        assert counts == [float(round_number * len(range(n, launches, 3))) for n in range(3)]


def test_times_grow_with_the_work(device: CudaDevice) -> None:
    kernel = device.load(binary("add_first", device.target))
    arguments = [device.hold(np.ones(COUNT, np.float32)) for _ in range(2)]
    few, many = (min(kernel.time([arguments], n) for _ in range(5)) for n in (100, 1000))
    assert 5 < many / few < 20


def test_the_sensors_are_read_quickly(device: CudaDevice) -> None:
    device.environment()
    began = time.perf_counter()
    found = device.environment()
    assert time.perf_counter() - began < 0.05
    assert {"sm_clock_mhz", "memory_clock_mhz", "power_watts", "temperature_celsius"} <= found.keys()
    assert 100 < found["sm_clock_mhz"] < 5000 and 5 < found["power_watts"] < 2000


def test_peaks_are_plausible(device: CudaDevice) -> None:
    peaks = device.measure_peaks()
    assert peaks["write_bytes_per_second"] > 0
    assert 0.5 < peaks["read_bytes_per_second"] / peaks["copy_bytes_per_second"] < 2
    assert 1.5 < peaks["peak_float16_flops_per_second"] / peaks["peak_float32_flops_per_second"] < 8
    for name in ("float16", "bfloat16"):
        assert peaks[f"peak_tensor_{name}_flops_per_second"] > 2 * peaks["peak_float32_flops_per_second"]
    assert 1e-7 < peaks["launch_seconds"] < 1e-4


def test_a_comparison_of_many_elements_is_quick(device: CudaDevice) -> None:
    want = np.random.default_rng(0).random(1 << 24)
    got = device.hold(want.astype(np.float16))
    wanted = device.hold(want)
    for absolute, wrong in ((1e-3, False), (0.0, True)):
        found = device.compare(got, float16, wanted, absolute, 0.0)
        assert (found.wrong is not None) is wrong


_FAULTY = """
import sys
from tilewright.core.errors import DeviceFault
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.runtime.devices import DEVICES
from tilewright.tests.runtime.cuda.kernels import COUNT, binary
device = CudaDevice()
arguments = [device.allocate(4 * COUNT) for _ in range(2)]
kernel = device.load(binary(sys.argv[1], device.target))
for attempt in (lambda: kernel.launch(arguments), lambda: device.allocate(16), lambda: kernel.time([arguments], 1)):
    try:
        attempt()
        print("nothing")
    except DeviceFault as error:
        print(error.fault, error.lost)
"""


@pytest.mark.parametrize(
    ("function", "fault"),
    [("illegal", Fault.ILLEGAL_ACCESS), ("misaligned", Fault.ILLEGAL_ACCESS), ("trap", Fault.BROKEN_OFF)],
)
def test_a_fault_loses_the_context_and_says_so_ever_after(function: str, fault: Fault) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FAULTY, function], capture_output=True, text=True, timeout=120, cwd=Path.cwd()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == [f"{fault} True"] * 3


def test_a_fault_of_one_process_leaves_others_well(device: CudaDevice) -> None:
    subprocess.run([sys.executable, "-c", _FAULTY, "illegal"], capture_output=True, timeout=120, check=True)
    assert result(device, "add_one")[:3] == [1.0, 2.0, 3.0]


def test_every_device_of_the_machine_computes_on_its_own_memory(device: CudaDevice) -> None:
    others = [CudaDevice(ordinal=n) for n in range(1, DEVICES["cuda"].count())]
    for other in (device, *others):
        assert result(other, "add_one")[:3] == [1.0, 2.0, 3.0]
    assert len({d.lock_name for d in (device, *others)}) == 1 + len(others)
    for other in others:
        foreign = other.allocate(4 * COUNT)
        with pytest.raises(InvalidParameter, match="X: not memory of this device"):
            device.load(binary("add_one", device.target)).launch([foreign, foreign])
        with pytest.raises(InvalidParameter, match="not memory of this device"):
            device.fill(foreign, b"\0")


def test_the_target_here_is_the_h200s_or_names_its_own(device: CudaDevice) -> None:
    assert device.target.kind == "cuda" and device.target.vector_bytes == 16
    assert device.target.threads == device.info.hardware["multiprocessors"]
    if "H200" in device.info.name:
        assert device.target == target()
