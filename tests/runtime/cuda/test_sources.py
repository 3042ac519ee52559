"""The kernels that come with the runtime compile for every architecture, without spills."""

import pytest

from tilewright.codegen.backend import CompiledKernel, Source
from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.compile.compiler import compile_source
from tilewright.core.dtypes import DTYPES
from tilewright.core.target import Target
from tilewright.runtime.anchor import grid_anchor
from tilewright.runtime.cuda.checks_source import CHECKS
from tilewright.runtime.cuda.peaks_source import PEAKS

HOPPER = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)
UNITS = {**CHECKS, "peaks": PEAKS}


def compiled(text: str, arch: str) -> CompiledKernel:
    return compile_source(Source("cuda-c++", text, "unit", ()), Target("cuda", arch, (), 132, 16))


@pytest.mark.parametrize("unit", ["bytes", "elements1", "elements8", "compare_float16", "compare_int64", "peaks"])
def test_every_unit_compiles_without_a_spill(unit: str) -> None:
    binary = compiled(UNITS[unit], "sm_90a")
    assert binary.resources
    assert all(r.spill_bytes == 0 and r.stack_bytes == 0 for r in binary.resources.values())


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a"])
def test_units_compile_for_other_architectures(arch: str) -> None:
    for unit in ("bytes", "elements2", "compare_bfloat16", "peaks"):
        assert compiled(UNITS[unit], arch).code.startswith(b"\x7fELF")


def test_every_dtype_can_be_compared() -> None:
    assert {name.removeprefix("compare_") for name in CHECKS if name.startswith("compare_")} == set(DTYPES)


def test_the_anchor_compiles() -> None:
    backend = backend_for(HOPPER)
    binary = backend.compile(backend.emit(grid_anchor(), HOPPER), HOPPER)
    (grid,) = binary.launches
    assert (grid.blocks, grid.threads, grid.arguments) == ((256, 1, 1), 256, (0, 1, 2))
