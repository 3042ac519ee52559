"""The CPU as a device: narrower targets, missing features, alignment, and objects that do not load."""

import gc

import numpy as np
import pytest

from tilewright.codegen.backend import CompiledKernel, Source
from tilewright.codegen.llvm.backend import LlvmBackend
from tilewright.core.errors import CompileError, UnsupportedTarget
from tilewright.core.target import Target
from tilewright.runtime import hardware
from tilewright.runtime.cpu import ALIGNMENT_BYTES, CpuDevice, launched_in_a_row
from tilewright.tests.codegen.kernels import matmul


def build(target: Target) -> CompiledKernel:
    backend = LlvmBackend()
    return backend.compile(backend.emit(matmul(4, 16, 8, 8), target), target)


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 1 << 20])
def test_memory_is_aligned(nbytes: int) -> None:
    assert CpuDevice().allocate(nbytes).address % ALIGNMENT_BYTES == 0


def test_a_narrower_target_is_another_device() -> None:
    host = hardware.host_target()
    narrow = Target(host.kind, host.arch, ("sse2",), 1, 16)
    device = CpuDevice(narrow)
    assert device.info.target == narrow
    assert device.info.key != CpuDevice().info.key
    binary = build(narrow)
    arguments = [device.allocate(p.bytes) for p in binary.parameters]
    for memory in arguments:
        memory.write(np.ones(memory.nbytes // 4, np.float32).view(np.uint8))
    device.load(binary).launch(arguments)
    assert (arguments[2].array.view(np.float32) == 8).all()


def test_a_feature_the_cpu_lacks_is_named() -> None:
    host = hardware.host_target()
    with pytest.raises(UnsupportedTarget, match="this CPU lacks mind-reading"):
        CpuDevice(Target(host.kind, host.arch, (*host.features, "mind-reading")))
    with pytest.raises(UnsupportedTarget, match="does not run here"):
        CpuDevice(Target("cuda", "sm_90a"))


def test_a_missing_symbol_is_a_compile_error() -> None:
    target = hardware.host_target()
    text = 'target triple = "x86_64-unknown-linux-gnu"\ndeclare i32 @no_such_thing()\n'
    text += "define i32 @f(ptr %args) {\n  %r = call i32 @no_such_thing()\n  ret i32 %r\n}\n"
    binary = LlvmBackend().compile(Source("llvm-ir", text, "f", ()), target)
    with pytest.raises(CompileError, match="does not load"):
        CpuDevice().load(binary)


def test_a_kernel_lives_as_long_as_it_is_held() -> None:
    device = CpuDevice()
    for _ in range(5):
        kernel = device.load(build(device.target))
        gc.collect()
        arguments = [device.allocate(p.bytes) for p in kernel.parameters]
        for memory in arguments:
            memory.write(np.ones(memory.nbytes // 4, np.float32).view(np.uint8))
        kernel.launch(arguments)
        assert (arguments[2].array.view(np.float32) == 8).all()


def test_launches_in_a_row_are_one_call_that_holds_its_kernel() -> None:
    device = CpuDevice()
    kernel = device.load(build(device.target))
    left, right, *outputs = (device.allocate(kernel.parameters[n].bytes) for n in (0, 1, 2, 2))
    for memory in (left, right):
        memory.write(np.ones(memory.nbytes // 4, np.float32).view(np.uint8))
    launches = [kernel.bind_at([left.address, right.address, out.address]) for out in outputs]
    run = launched_in_a_row(launches)
    assert run is not None
    del kernel, launches
    gc.collect()
    run(0)
    assert all((out.array.view(np.float32) == 8).all() for out in outputs)
    moved = device.allocate(outputs[0].nbytes)
    outputs[0].write(np.zeros_like(outputs[0].array))
    run.place(0, 2, moved.address)
    run(0)
    assert (moved.array.view(np.float32) == 8).all() and not outputs[0].array.any()


def test_launches_of_others_are_not_joined() -> None:
    assert launched_in_a_row([print, print]) is None


def test_the_host_is_described() -> None:
    target = hardware.host_target()
    assert target.kind == "llvm" and target.threads >= 1
    assert list(target.features) == sorted(target.features)
    assert hardware.vector_bytes(("avx", "avx512f")) == 64
    assert hardware.vector_bytes(("avx",)) == 32
    assert hardware.vector_bytes(()) == 16
    columns = hardware.hardware_columns(target)
    assert columns["threads"] == target.threads
    assert 1 <= columns["cores"] <= target.threads
