"""Row kernels whose rows are those of a table at loaded numbers, such as a norm behind an embedding."""

import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees
from tilewright.codegen.lowering import build
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.rowwise.space import CUDA_ROWWISE as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te.parse import parse_workload

GATHERED = {
    "an RMS norm behind an embedding": "I: int64[70]\nE: float16[50, 256]\nG: float32[256]\n"
    "S[i] = sum over d < 256 of float32(E[min(max(I[i], 0), 49), d]) * float32(E[min(max(I[i], 0), 49), d])\n"
    "Y[i, d] = float16(float32(E[min(max(I[i], 0), 49), d]) / sqrt(S[i] / 256 + 0.00001) * G[d])",
    "a layer norm behind the sum of three embeddings": "I: int32[4, 20]\nJ: uint8[4, 20]\nE: float16[90, 384]\n"
    "F: float16[256, 384]\nP: float16[20, 384]\nX[b, t, d < 384] = float32(E[min(max(int64(I[b, t]), 0), 89), d]) "
    "+ float32(F[min(max(int64(J[b, t]), 0), 255), d]) + float32(P[t, d])\nM[b, t] = sum over d < 384 of X[b, t, d]\n"
    "V[b, t] = sum over d < 384 of (X[b, t, d] - M[b, t] / 384) * (X[b, t, d] - M[b, t] / 384)\n"
    "Y[b, t, d] = float16((X[b, t, d] - M[b, t] / 384) / sqrt(V[b, t] / 384 + 0.00001))",
    "a norm of the difference from a chosen centre": "X: float32[40, 512]\nC: float32[8, 512]\nI: int64[40]\n"
    "Y[i] = sum over d < 512 of abs(X[i, d] - C[min(max(I[i], 0), 7), d])",
    "rows of pages": "K: float32[6, 16, 128]\nP: int64[5]\n"
    "Y[t < 80] = max over d < 128 of abs(K[min(max(P[t // 16], 0), 5), t % 16, d])",
}


@pytest.mark.parametrize("case", GATHERED)
def test_rows_at_loaded_numbers_are_read_once(case: str) -> None:
    workload = parse_workload(GATHERED[case])
    assert [s.name for s in sketches_for(workload, H200)] == ["cuda_rowwise"]
    assert assert_agrees(SKETCH, workload, 6, H200, WHOLE) == 6
    resources = build(workload, H200, default_schedule(workload, H200)).resources
    assert all(r.spill_bytes == 0 for r in resources.values())


def test_products_with_chosen_matrices_are_left_to_others() -> None:
    """A row kernel would read the matrix of each row, where rows share few of them."""
    workload = parse_workload(
        "X: float32[64, 128]\nW: float32[4, 96, 128]\nE: int64[64]\n"
        "Y[i, j < 96] = sum over k < 128 of X[i, k] * W[min(max(E[i], 0), 3), j, k]"
    )
    assert not SKETCH.matches(workload, H200)
