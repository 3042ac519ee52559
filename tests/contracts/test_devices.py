"""What every device must do: memory with views, launches that check what they are given, times, peaks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from uuid import UUID

import numpy as np
import pytest

from tilewright.codegen.backend import CompiledKernel
from tilewright.codegen.backends import backend_for
from tilewright.core.errors import CompileError, InvalidParameter, UnsupportedTarget
from tilewright.core.target import Target
from tilewright.runtime.anchor import load_anchor
from tilewright.runtime.device import Device, Memory
from tilewright.runtime.devices import DEVICES, device_infos, device_uuid, host_target, open_device
from tilewright.tests.codegen.kernels import matmul
from tilewright.tests.device_fixtures import PRESENT, matmul_on_a_grid, opened

PEAKS = {
    "peak_float32_flops_per_second",
    "peak_float64_flops_per_second",
    "copy_bytes_per_second",
    "read_bytes_per_second",
    "launch_seconds",
}


@pytest.fixture(params=PRESENT, scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with opened(request.param) as device:
        yield device


def matmul_binary(device: Device) -> CompiledKernel:
    target = device.info.target
    backend = backend_for(target)
    kernel = matmul_on_a_grid(4, 16, 8) if target.kind == "cuda" else matmul(4, 16, 8, 16)
    return backend.compile(backend.emit(kernel, target), target)


def memories(device: Device, binary: CompiledKernel) -> list[Memory]:
    made = [device.allocate(p.bytes) for p in binary.parameters]
    for memory in made:
        memory.write(np.ones(memory.nbytes // 4, np.float32).view(np.uint8))
    return made


def test_memory_keeps_what_is_written(device: Device) -> None:
    memory = device.allocate(1000)
    data = np.arange(1000, dtype=np.int64).astype(np.uint8)
    memory.write(data)
    np.testing.assert_array_equal(memory.read(), data)
    assert memory.nbytes == 1000


def test_a_view_is_the_same_memory(device: Device) -> None:
    memory = device.allocate(256)
    memory.write(np.zeros(256, np.uint8))
    view = memory.view(3, 5)
    view.write(np.full(5, 9, np.uint8))
    assert memory.read().tolist() == [0] * 3 + [9] * 5 + [0] * 248
    assert view.view(1, 2).read().tolist() == [9, 9]


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 4), (0, 17), (16, 1), (4, -1)])
def test_a_view_stays_inside(device: Device, offset: int, nbytes: int) -> None:
    with pytest.raises(InvalidParameter, match="of a span of 16"):
        device.allocate(16).view(offset, nbytes)


def test_a_write_must_fit(device: Device) -> None:
    with pytest.raises(InvalidParameter, match="3 bytes written to a span of 4"):
        device.allocate(4).write(np.zeros(3, np.uint8))


def test_empty_and_negative_sizes(device: Device) -> None:
    assert device.allocate(0).read().size == 0
    with pytest.raises(InvalidParameter, match="-1 bytes"):
        device.allocate(-1)


def test_a_read_is_a_copy(device: Device) -> None:
    memory = device.allocate(4)
    memory.write(np.zeros(4, np.uint8))
    memory.read()[:] = 1
    assert memory.read().tolist() == [0, 0, 0, 0]


def test_a_launch_computes(device: Device) -> None:
    binary = matmul_binary(device)
    arguments = memories(device, binary)
    device.load(binary).launch(arguments)
    assert (arguments[2].read().view(np.float32) == 8).all()


def test_a_launch_checks_its_arguments(device: Device) -> None:
    binary = matmul_binary(device)
    kernel, arguments = device.load(binary), memories(device, binary)
    with pytest.raises(InvalidParameter, match="2 arguments for 3 parameters: A, B, C"):
        kernel.launch(arguments[:2])
    with pytest.raises(InvalidParameter, match=r"B: 4 bytes given, 512 needed \(float32\[8, 16\]\)"):
        kernel.launch([arguments[0], device.allocate(4), arguments[2]])
    crooked = device.allocate(513).view(1, 512)
    with pytest.raises(InvalidParameter, match=r"B: address is no multiple of .* bytes"):
        kernel.launch([arguments[0], crooked, arguments[2]])


def test_times_are_of_as_many_launches_as_asked_for(device: Device) -> None:
    """Launches rotate through the argument sets: with two sets both outputs are written."""
    binary = matmul_binary(device)
    kernel = device.load(binary)
    sets: Sequence[Sequence[Memory]] = [memories(device, binary), memories(device, binary)]
    assert kernel.time(sets, 2) > 0
    assert all((s[2].read().view(np.float32) == 8).all() for s in sets)
    with pytest.raises(InvalidParameter, match="0 launches"):
        kernel.time(sets, 0)
    with pytest.raises(InvalidParameter, match="over 0 argument sets"):
        kernel.time([], 1)


def test_what_is_no_code_of_this_device_is_refused(device: Device) -> None:
    binary = matmul_binary(device)
    with pytest.raises(CompileError):
        device.load(CompiledKernel(binary.format, b"nonsense", binary.entry, binary.parameters, binary.toolchain))
    with pytest.raises(CompileError):
        device.load(CompiledKernel("clay tablet", binary.code, binary.entry, binary.parameters, binary.toolchain))
    others = tuple(replace(grid, function="another") for grid in binary.launches)
    with pytest.raises(CompileError):
        device.load(replace(binary, entry="another", launches=others))


def test_the_info_identifies_the_device(device: Device) -> None:
    info = device.info
    assert info.name
    assert info.key == open_device(info.target.kind).info.key
    assert {"cores", "threads", "vector_bytes"} <= set(info.hardware)
    assert all(value > 0 for value in info.hardware.values())
    assert info.target == host_target(info.target.kind)
    assert info == DEVICES[info.target.kind].info(0)
    assert info.key in {i.key for i in device_infos()}


def test_peaks_are_measured(device: Device) -> None:
    peaks = device.measure_peaks()
    assert PEAKS | ({"l2_read_bytes_per_second"} if device.info.target.kind == "llvm" else set()) <= set(peaks)
    assert all(value > 0 for value in peaks.values())
    assert peaks["peak_float32_flops_per_second"] > peaks["peak_float64_flops_per_second"] / 2


def test_the_anchor_takes_time(device: Device) -> None:
    assert 0 < load_anchor(device).seconds(samples=3) < 1


def test_a_device_has_a_uuid_that_stays_and_is_its_own(device: Device) -> None:
    kind = device.info.target.kind
    found = [device_uuid(kind, n) for n in range(DEVICES[kind].count())]
    assert found == [device_uuid(kind, n) for n in range(len(found))] and len(set(found)) == len(found)
    for uuid in found:
        prefix, _, rest = uuid.partition("-")
        assert prefix in ("CPU", "GPU", "MIG") and str(UUID(rest)) == rest
    assert device.lock_name in ("", found[0])


def test_an_ordinal_without_a_device_is_refused(device: Device) -> None:
    kind = device.info.target.kind
    for ordinal in (-1, DEVICES[kind].count()):
        for ask in (
            lambda n: open_device(kind, ordinal=n),
            lambda n: host_target(kind, n),
            lambda n: device_uuid(kind, n),
        ):
            with pytest.raises(UnsupportedTarget, match=rf"{kind} device {ordinal}; allowed: 0"):
                ask(ordinal)


def test_a_device_runs_no_other_kinds_code(device: Device) -> None:
    with pytest.raises(UnsupportedTarget, match="does not run here"):
        open_device(device.info.target.kind, Target("clay", "tablet"))


def test_an_unknown_kind_is_named() -> None:
    for ask in (open_device, host_target):
        with pytest.raises(UnsupportedTarget, match=r"no device of kind 'abacus'; known: .*llvm"):
            ask("abacus")
