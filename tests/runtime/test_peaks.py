"""The kernels that measure peaks execute the operations that are counted."""

import numpy as np
import pytest

from tilewright.codegen.llvm.architectures import target_named
from tilewright.codegen.llvm.backend import LlvmBackend
from tilewright.ir.cpu import DOT_ATOMS
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.peaks import TILE_SIDE, read_kernel, tile_kernel


@pytest.mark.parametrize(("atom", "instruction"), [("bf16", "tdpbf16ps"), ("s8s8", "tdpbssd")])
def test_tiles_stay_in_registers(atom: str, instruction: str) -> None:
    target, backend = target_named("x86-64+avx512f+amx-tile+amx-bf16+amx-int8"), LlvmBackend()
    text = backend.assembly(backend.emit(tile_kernel(DOT_ATOMS[atom], 2), target), target)
    words = text.split()
    assert words.count(instruction) == TILE_SIDE**2
    assert words.count("tileloadd") == 2 * TILE_SIDE


def test_every_round_reads_every_element_again() -> None:
    device, backend = CpuDevice(), LlvmBackend()
    kernel = read_kernel(8, nbytes=4 * 4096, block=2048, rounds=3)
    loaded = device.load(backend.compile(backend.emit(kernel, device.target), device.target))
    given, sums = device.hold(np.arange(4096, dtype=np.float32)), device.allocate(8)
    loaded.launch((given, sums))
    halves = np.arange(4096, dtype=np.float64).reshape(2, -1).sum(axis=1)
    np.testing.assert_allclose(sums.read().view(np.float32), 3 * halves, rtol=1e-5)
