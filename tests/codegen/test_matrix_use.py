"""Matrix instructions of kernels are counted, and where they are missed a warning gives the reason."""

import re

import pytest

from tilewright.codegen.cuda.inspect import disassemble
from tilewright.codegen.lowering import lowering_stages
from tilewright.codegen.matrix_use import MatrixUse, matrix_stages, matrix_use
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)
B200 = Target("cuda", "sm_100a", (), threads=148, vector_bytes=16)
MI300 = Target("amdgpu", "gfx942", (), threads=304, vector_bytes=16)
A100 = Target("cuda", "sm_80", (), threads=108, vector_bytes=16)
needs_disassembler = pytest.mark.skipif(disassemble.disassembler() is None, reason="no nvdisasm here")


def product(m: int, n: int, k: int, dtype: str = "float16") -> Workload:
    return OPERATORS["matmul"].workload({"m": m, "n": n, "k": k, "dtype": dtype})


def used(workload: Workload, sketch: str, target: Target = H200) -> MatrixUse | None:
    space = SKETCHES[sketch].space(workload, target, limit=50)
    schedule: Schedule = space.schedule(0)
    stages = lowering_stages(workload, target, schedule)
    return matrix_use(workload, target, schedule, stages)


@needs_disassembler
def test_wgmma_is_counted_and_nothing_is_missed() -> None:
    use = used(product(512, 512, 512), "cuda_gemm")
    assert use is not None and use.warnings == ()
    assert 0 < use.counts["HGMMA"] < use.counts["all"] and use.counts["HMMA"] == 0
    first, second, third = use.summary.splitlines()
    assert first.startswith("HGMMA") and " of " in first and "%" in first
    assert re.search(rf": {use.counts['HGMMA']} HGMMA\.64x\d+x16\.F32$", first)
    assert second.endswith("none") and "times the operations of the expression" in third


@needs_disassembler
def test_products_in_tensor_memory_are_counted() -> None:
    use = used(product(512, 512, 512), "cuda_gemm_tcgen05", B200)
    assert use is not None and use.warnings == ()
    first, second, third = use.summary.splitlines()
    assert re.search(rf"^UTCMMA.*: {use.counts['UTCMMA']} of .*: {use.counts['UTCMMA']} UTCHMMA$", first)
    assert use.counts["UTCMMA"] > 0 and second.endswith("none") and "1.00 times the operations" in third


@needs_disassembler
def test_the_rule_that_rules_out_wgmma_is_named() -> None:
    use = used(product(72, 136, 77), "cuda_gemm_mma")
    assert use is not None
    (warning,) = use.warnings
    assert warning.startswith("NO HGMMA") and "cuda_gemm_mma" in warning
    assert "rows of A begin every 154 bytes; TMA needs multiples of 16" in warning


def test_no_wgmma_is_missed_before_hopper() -> None:
    use = used(product(72, 136, 80), "cuda_gemm_mma", A100)
    assert use is not None and use.warnings == ()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_mfma_of_the_assembly_is_counted(dtype: str) -> None:
    workload = product(256, 192, 128, dtype)
    schedule = SKETCHES["amdgpu_gemm"].space(workload, MI300, limit=16).schedule(0)
    stages = lowering_stages(workload, MI300, schedule)
    found = re.findall(r"^\s+(v_mfma_\w+)", stages.artifacts.layers[-1].text, re.MULTILINE)
    use = matrix_use(workload, MI300, schedule, stages)
    assert use is not None and use.warnings == () and len(set(found)) == 1
    assert use.counts["MFMA"] == len(found) > 0 and use.counts["all"] > len(found)
    line, operations = use.summary.splitlines()
    assert line.startswith("MFMA, products of wavefronts:") and line.endswith(f": {len(found)} {found[0]}")
    assert operations.endswith("times the operations of the expression")


def test_rows_on_amdgpu_have_no_report() -> None:
    softmax = OPERATORS["softmax"].workload({"rows": 64, "columns": 1024, "dtype": "float16"})
    assert used(softmax, "amdgpu_rowwise", MI300) is None


def test_plain_arithmetic_in_place_of_matrix_instructions_is_a_warning() -> None:
    use = used(product(72, 136, 80), "cuda_loops")
    assert use is not None
    (warning,) = use.warnings
    assert warning.startswith("NO MATRIX INSTRUCTIONS: total,") and "cuda_gemm" in warning and "cuda_loops" in warning


def test_what_needs_no_matrix_instructions_has_no_report() -> None:
    assert used(product(72, 136, 80, "float32"), "cuda_loops") is None
    assert not matrix_stages(product(4, 4096, 4096)) and not matrix_stages(product(64, 64, 8))
    assert len(matrix_stages(product(64, 64, 64, "bfloat16"))) == 1
