"""What is said of matrix instructions: how many there are, and loudly where they are missed, and why."""

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
A100 = Target("cuda", "sm_80", (), threads=108, vector_bytes=16)
needs_disassembler = pytest.mark.skipif(disassemble.disassembler() is None, reason="no nvdisasm here")


def product(m: int, n: int, k: int, dtype: str = "float16") -> Workload:
    return OPERATORS["matmul"].workload({"m": m, "n": n, "k": k, "dtype": dtype})


def used(workload: Workload, sketch: str, target: Target = H200) -> MatrixUse | None:
    space = SKETCHES[sketch].space(workload, target, limit=50)
    schedule: Schedule = space.schedule(0)
    stages = lowering_stages(workload, target, schedule)
    return matrix_use(workload, target, schedule, stages.final, stages.artifacts.instructions)


@needs_disassembler
def test_products_of_warpgroups_are_counted_and_nothing_is_missed() -> None:
    use = used(product(512, 512, 512), "cuda_gemm")
    assert use is not None and use.warnings == ()
    assert 0 < use.counts["HGMMA"] < use.counts["all"] and use.counts["HMMA"] == 0
    first, second, third = use.said.splitlines()
    assert first.startswith("HGMMA") and " of " in first and "%" in first
    assert second.endswith("none") and "times the operations of the expression" in third


@needs_disassembler
def test_the_rule_that_leads_to_products_of_warps_is_named() -> None:
    use = used(product(72, 136, 77), "cuda_gemm_mma")
    assert use is not None
    (warning,) = use.warnings
    assert warning.startswith("NO HGMMA") and "cuda_gemm_mma" in warning
    assert "rows of A begin every 154 bytes; copies of boxes need multiples of 16" in warning


def test_there_are_none_of_warpgroups_to_miss_before_hopper() -> None:
    use = used(product(72, 136, 80), "cuda_gemm_mma", A100)
    assert use is not None and use.warnings == ()


def test_plain_arithmetic_where_there_could_be_matrix_instructions_is_said_loudly() -> None:
    use = used(product(72, 136, 80), "cuda_loops")
    assert use is not None
    (warning,) = use.warnings
    assert warning.startswith("NO MATRIX INSTRUCTIONS: total,") and "cuda_gemm" in warning and "cuda_loops" in warning


def test_what_needs_none_is_passed_over() -> None:
    assert used(product(72, 136, 80, "float32"), "cuda_loops") is None
    assert not matrix_stages(product(4, 4096, 4096)) and not matrix_stages(product(64, 64, 8))
    assert len(matrix_stages(product(64, 64, 64, "bfloat16"))) == 1
