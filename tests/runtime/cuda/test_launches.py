"""Hand-written kernels give the same on the device as in the interpreter."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.codegen.cuda.launches import LAUNCHES
from tests.ir.im2col_launches import WINDOWS, windowed
from tests.ir.launches import FAULTS, data_of
from tilewright.codegen.lowering import build_kernel
from tilewright.core.dtypes import float32
from tilewright.ir.buffer import Buffer
from tilewright.ir.build import Writer
from tilewright.ir.expr import Load, index
from tilewright.ir.gpu.bulk_copy import Prefetch
from tilewright.ir.interpret import interpret
from tilewright.ir.stmt import HardwareAxis, Kernel
from tilewright.runtime.cuda.device import CudaDevice

pytestmark = pytest.mark.cuda
KERNELS = {
    **LAUNCHES,
    **{build.__name__: build("") for build in FAULTS},
    **{f"window of a {name}": windowed(name) for name in WINDOWS},
}


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    yield CudaDevice()


@pytest.mark.parametrize("name", KERNELS)
def test_the_device_and_the_interpreter_agree(device: CudaDevice, name: str) -> None:
    kernel = KERNELS[name]
    data = data_of(kernel)
    wanted = interpret(kernel, data)
    memories = [device.hold(np.ascontiguousarray(data[b.name])) for b in kernel.inputs]
    for b in kernel.parameters[len(kernel.inputs) :]:
        memories.append(device.allocate(b.bytes))
        device.fill(memories[-1], bytes([0xA5, 0x5A, 0xA5, 0x5A]))
    device.load(build_kernel(kernel, device.target)).launch(memories)
    for b, memory in zip(kernel.outputs, memories[len(kernel.inputs) :], strict=False):
        got = memory.read().view(b.dtype.numpy).reshape(b.shape)
        if b.dtype.is_float:
            got, want = got.astype(np.float64), wanted[b.name].astype(np.float64)
            np.testing.assert_allclose(got, want, rtol=2e-3 if b.dtype.bits == 16 else 1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(got, wanted[b.name])


def mirrored(blocks: int, threads: int, asked: int) -> Kernel:
    """Every block reads what another one wrote one launch before, and has prefetched the middle of it."""
    x, y = (Buffer(name, (blocks, threads), float32) for name in "XY")
    w = Writer()
    with w.launch("mirror", (("b", blocks, HardwareAxis.GRID_X), ("t", threads, HardwareAxis.THREAD))) as (b, t):
        if asked:
            with w.when(t < 1):
                w.emit(Prefetch(x, (index(blocks - 1) - b, index((threads - asked) // 2)), asked))
        w.store(y, (b, t), Load(x, (index(blocks - 1) - b, t)) + 1.0)
    return Kernel("mirrored", (x,), (y,), (), w.finish())


@pytest.mark.parametrize("asked", [0, 256, 253])
@pytest.mark.parametrize("blocks", [7, 132, 5000])
def test_launches_that_overlap_see_what_those_before_them_wrote(device: CudaDevice, blocks: int, asked: int) -> None:
    """That holds also where they prefetched the data into the cache before it was written."""
    given = np.arange(blocks * 256, dtype=np.float32).reshape(blocks, 256)
    binary = build_kernel(mirrored(blocks, 256, asked), device.target)
    assert all(grid.programmatic_dependent_launch for grid in binary.launches)
    kernel = device.load(binary)
    there, back = device.hold(given), device.hold(np.zeros_like(given))
    kernel.time([(there, back), (back, there)], 400)
    np.testing.assert_array_equal(there.read().view(np.float32).reshape(given.shape), given + 400)
