"""``wgmma`` and TMA on the device: kernels give there what the interpreter gives."""

from collections.abc import Iterator

import numpy as np
import pytest

from tilewright.codegen.lowering import build_kernel
from tilewright.ir.stmt import Kernel
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.tests.ir import hopper_launches
from tilewright.tests.ir.hopper_launches import FAULTS, Build
from tilewright.tests.ir.wgmma_gemm import FORMS, GemmForm, data, wgmma_gemm

pytestmark = pytest.mark.cuda
RUNS = 20
"""How often every kernel runs: what is not ordered may still come out right once."""


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    device = CudaDevice()
    if device.target.arch != "sm_90a":
        pytest.skip("these instructions are Hopper's")
    yield device


def results(device: CudaDevice, kernel: Kernel, inputs: dict[str, np.ndarray]) -> Iterator[np.ndarray]:
    """The one output of each of ``RUNS`` runs, its memory filled with something else before."""
    (output,) = kernel.outputs
    given = [device.hold(np.ascontiguousarray(inputs[b.name])) for b in kernel.inputs]
    memory = device.allocate(output.bytes)
    loaded = device.load(build_kernel(kernel, device.target))
    for _ in range(RUNS):
        device.fill(memory, bytes([0xA5, 0x5A, 0xA5, 0x5A]))
        loaded.launch([*given, memory])
        yield memory.read().view(output.dtype.numpy).reshape(output.shape)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_wgmma_gemm(device: CudaDevice, form: GemmForm) -> None:
    inputs, wanted = data(form)
    for result in results(device, wgmma_gemm(form), inputs):
        np.testing.assert_array_equal(result.astype(np.float32), wanted)


@pytest.mark.parametrize("build", FAULTS, ids=lambda build: build.__name__)
def test_small_kernels(device: CudaDevice, build: Build) -> None:
    kernel = build("")
    inputs = hopper_launches.data_of(kernel)
    for result in results(device, kernel, inputs):
        np.testing.assert_array_equal(result, hopper_launches.expected(build, inputs))
