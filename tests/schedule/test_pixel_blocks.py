"""Correlations of neighbouring pixels as products of blocks of pixels: which sums they are, and what they compute."""

import pytest

from tests.schedule.gpu.tiles import H200, assert_agrees
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.pixel_blocks import with_pixel_blocks
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.parse import parse_workload
from tilewright.te.text import workload_text

SKETCH = SKETCHES["cuda_correlation"]
COST_VOLUME = """
A: float16[{n}, {h}, {w}, {c}]
B: float16[{n}, {h} + 8, {w} + 8, {c}]
O[n, y, x, v < 9, u < 9] = sum over c < {c} of float32(A[n, y, x, c]) * float32(B[n, y + v, x + u, c])
"""


def _volume(n: int, h: int, w: int, c: int) -> str:
    return COST_VOLUME.replace("{h} + 8", str(h + 8)).replace("{w} + 8", str(w + 8)).format(n=n, h=h, w=w, c=c)


CASES = {
    "whole blocks": _volume(1, 8, 16, 32),
    "parts of blocks": _volume(2, 5, 11, 16),
    "channels first": """
        A: float16[2, 32, 8, 8]
        B: float16[2, 32, 12, 12]
        S[n, v < 5, u < 5, y, x] = sum over c < 32 of float32(A[n, c, y, x]) * float32(B[n, c, y + v, x + u])
        O[n, v, u, y, x] = float16(max(S[n, v, u, y, x] / 32, 0))""",
    "padding": "A: float16[1, 16, 8, 12]\nB: float16[1, 16, 8, 12]\n"
    "O[n, y, x, v < 5, u < 5] = sum over c < 16 of float32(A[n, c, y, x]) * float32(select(y + v >= 2 and y + v < 10 "
    "and x + u >= 2 and x + u < 14, B[n, c, y + v - 2, x + u - 2], 0))",
    "displacements along one axis": """
        A: float16[1, 16, 8, 12]
        B: float16[1, 16, 12, 16]
        O[n, d < 25, y, x] = sum over c < 16 of float32(A[n, c, y, x]) * float32(B[n, c, y + d // 5, x + d % 5])""",
    "every second pixel": """
        A: bfloat16[6, 8, 32]
        B: bfloat16[14, 16, 32]
        O[y, x, v < 5, u < 5] = sum over c < 32 of float32(A[y, x, c]) * float32(B[y + 2 * v, x + 2 * u, c])""",
    "pixels of a coarser grid": "A: float16[10, 17, 16]\nB: float16[14, 21, 16]\nO[y < 5, x < 9, v < 5, u < 5] = "
    "sum over c < 16 of float32(A[2 * y, 2 * x, c]) * float32(B[2 * y + v, 2 * x + u, c])",
    "scores in a window": """
        Q: float32[2, 40, 16]
        K: float32[2, 51, 16]
        S[b, i, j < 12] = sum over d < 16 of Q[b, i, d] * K[b, i + j, d]""",
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, parse_workload(CASES[case]), 3) == 3


def test_blocks_have_the_least_traffic() -> None:
    """With 9 x 9 displacements of 128 channels a block of 64 pixels meets 256; its products are 64 x 256 x 128."""
    blocks = with_pixel_blocks(parse_workload(_volume(8, 64, 96, 128)))
    assert blocks is not None
    assert [s.tensor.shape for s in blocks.stages] == [(8, 8, 12, 8, 8, 16, 16), (8, 64, 96, 9, 9)]
    assert "O_blocks[n, y//8, x//8, y%8, x%8, v + y%8, u + x%8]" in workload_text(blocks)


def test_what_is_no_correlation() -> None:
    for text in (
        "A: float32[8, 16]\nB: float32[8, 16]\nC[i, j < 8] = sum over k < 16 of A[i, k] * B[j, k]",
        "A: float32[64]\nW: float32[3, 4]\nY[x < 62, o < 4] = sum over r < 3 of A[x + r] * W[r, o]",
        "A: float32[8, 16]\nB: float32[8, 16]\nS[i] = sum over k < 16 of A[i, k] * B[i, k]",
        "A: float32[8, 16]\nB: float32[24, 16]\nS[i, j < 4] = sum over k < 16 of A[i, k] * B[2 * i + 3 * j, k]",
        "A: float32[8, 16]\nB: float32[11, 16]\nS[i, j < 4] = max over k < 16 of A[i, k] * B[i + j, k]",
    ):
        workload = parse_workload(text)
        assert with_pixel_blocks(workload) is None and not SKETCH.matches(workload, H200)


def test_the_default_of_a_cost_volume_and_of_scores_in_a_window_is_made_of_blocks() -> None:
    """The latter are taken by kernels, too, that load each element of each product."""
    window = "Q: float16[4, 12, 4096, 64]\nK: float16[4, 12, 4607, 64]\n"
    window += "S[b, h, i, j < 512] = sum over d < 64 of float32(Q[b, h, i, d]) * float32(K[b, h, i + j, d])"
    for text in (_volume(8, 64, 96, 128), window):
        assert default_schedule(parse_workload(text), H200).sketch == SKETCH.name
