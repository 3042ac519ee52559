"""The kernels that measure peaks execute the operations that are counted."""

import pytest

from tilewright.codegen.llvm.architectures import target_named
from tilewright.codegen.llvm.backend import LlvmBackend
from tilewright.ir.cpu import DOT_ATOMS
from tilewright.runtime.peaks import TILE_SIDE, tile_kernel


@pytest.mark.parametrize(("atom", "instruction"), [("bf16", "tdpbf16ps"), ("s8s8", "tdpbssd")])
def test_tiles_stay_in_registers(atom: str, instruction: str) -> None:
    target, backend = target_named("x86-64+avx512f+amx-tile+amx-bf16+amx-int8"), LlvmBackend()
    text = backend.assembly(backend.emit(tile_kernel(DOT_ATOMS[atom], 2), target), target)
    words = text.split()
    assert words.count(instruction) == TILE_SIDE**2
    assert words.count("tileloadd") == 2 * TILE_SIDE
