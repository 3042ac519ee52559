"""Pieces of vectors: how many neighbours a load reads from contiguous aligned places, under one condition."""

import pytest

from tilewright.schedule.tile.masked_loads import masked_loads_of
from tilewright.schedule.tile.pieces import lanes_of_piece
from tilewright.te.parse import parse_workload

PADDED = "Y[i < 64, j < 64] = select(j >= {0} and j < {1}, X[i, j - {0}], 0)"
PIECES = {
    "whole vectors": ("X: float16[64, 48]", PADDED.format(8, 56), 8),
    "rows of pairs": ("X: float16[64, 50]", PADDED.format(8, 56), 2),
    "rows of quadruples": ("X: float16[64, 52]", PADDED.format(4, 56), 4),
    "a mask at pairs": ("X: float16[64, 52]", PADDED.format(6, 58), 2),
    "a mask at an odd place": ("X: float16[64, 52]", PADDED.format(8, 57), 1),
    "odd rows": ("X: float16[64, 51]", PADDED.format(8, 56), 1),
    "an odd shift": ("X: float16[64, 64]", "Y[i < 64, j < 56] = X[i, j + 5]", 1),
    "a shift": ("X: float16[64, 64]", "Y[i < 64, j < 56] = X[i, j + 4]", 4),
    "a mask of rows": ("X: float16[64, 64]", "Y[i < 64, j < 64] = select(i >= 3, X[i - 3, j], 0)", 8),
    "a triangle": ("X: float16[64, 64]", "Y[i < 64, j < 64] = select(j <= i, X[i, j], 0)", 1),
    "blocks of a triangle": ("X: float16[64, 64]", "Y[i < 64, j < 64] = select(j // 4 <= i, X[i, j], 0)", 4),
    "a mask up to and with an odd place": ("X: float16[64, 64]", "Y[i < 64, j < 64] = select(j <= 11, X[i, j], 0)", 4),
    "every place but one": ("X: float16[64, 64]", "Y[i < 64, j < 64] = select(j != 8, X[i, j], 0)", 1),
    "a wrapped row": ("X: float16[64, 64]", "Y[i < 64, j < 64] = X[i, (j + 4) % 64]", 4),
    "a wrapped row at an odd place": ("X: float16[64, 64]", "Y[i < 64, j < 64] = X[i, (j + 5) % 64]", 1),
    "a flipped row": ("X: float16[64, 64]", "Y[i < 64, j < 64] = X[i, 63 - j]", 1),
    "every second element": ("X: float16[64, 128]", "Y[i < 64, j < 64] = X[i, j * 2]", 1),
    "repeated elements": ("X: float16[64, 32]", "Y[i < 64, j < 64] = X[i, j // 2]", 1),
    "gathered rows": ("X: float16[9, 64]\nP: int64[64]", "Y[i < 64, j < 64] = X[min(max(P[i], 0), 8), j]", 8),
}


@pytest.mark.parametrize("case", PIECES)
def test_neighbours_are_loaded_together_as_far_as_they_are_aligned(case: str) -> None:
    inputs, stage, lanes = PIECES[case]
    (load, *_) = (
        m for m in masked_loads_of(parse_workload(f"{inputs}\n{stage}").stages[0].body) if len(m.load.indices) > 1
    )
    assert lanes_of_piece(load, "j", 8) == lanes
