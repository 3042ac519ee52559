"""Pieces of vectors: how many neighbours a load reads from contiguous aligned places, under one condition; and which
neighbours a load reads in any order."""

import pytest

from tilewright.ir.expr import Const, Load, index
from tilewright.ir.rewrite import loads_of
from tilewright.ir.simplify import simplify
from tilewright.schedule.tile.masked_loads import masked_loads_of
from tilewright.schedule.tile.pieces import lanes_of_piece, span_of
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


SPANS = {
    "half a row further on": ("X[i, (j + 32) % 64]", [*range(8)], 0, False),
    "the other one of a pair": ("X[i, j // 2 * 2 + 1 - j % 2]", [1, 0, 3, 2, 5, 4, 7, 6], 1, True),
    "one for a pair": ("X[i, j // 2 + 32]", [0, 0, 1, 1, 2, 2, 3, 3], 0, False),
    "the second one of a pair": ("X[i, j // 2 * 2 + 1]", [1, 1, 3, 3, 5, 5, 7, 7], 0, True),
    "a flipped row": ("X[i, 63 - j]", [*reversed(range(8))], 7, False),
    "half of a gathered row": ("X[min(max(P[i], 0), 63), j // 2]", [0, 0, 1, 1, 2, 2, 3, 3], 0, False),
    "under a condition": ("select(j < 32, X[i, j + 32], 0)", [*range(8)], 0, False),
    "of an earlier row": ("select(i > 0, X[i - 1, j], 0)", [*range(8)], 0, True),
}
ALONE = [
    "X[i, j // 2 + j % 2 * 32]",
    "select(j > 0, X[i, j - 1], 0)",
    "X[i, (j + 1) % 64]",
    "X[j, i]",
    "X[i, min(max(P[j], 0), 63)]",
]


@pytest.mark.parametrize("case", SPANS)
def test_the_neighbours_that_a_vector_needs_are_found_in_any_order(case: str) -> None:
    body, places, lowest, begins = SPANS[case]
    load, extents = _load_of(body)
    span = span_of(load, "j", 8, extents)
    assert span is not None
    found = [simplify(span.place(index(n)), {}) for n in range(8)]
    assert [int(e.value) for e in found if isinstance(e, Const)] == places
    assert (span.count, span.lowest, span.begins_with_vector) == (max(places) + 1, lowest, begins)
    assert (span.mask is not None) == body.startswith("select")


@pytest.mark.parametrize("body", ALONE)
def test_elements_that_are_no_neighbours_are_loaded_alone(body: str) -> None:
    load, extents = _load_of(body)
    assert span_of(load, "j", 8, extents) is None


def _load_of(body: str) -> tuple[Load, dict[str, int]]:
    positions = "P: int64[64]\n" if "P" in body else ""
    (stage,) = parse_workload(f"X: float16[64, 64]\n{positions}Y[i < 64, j < 64] = {body}").stages
    (load,) = (load for load in loads_of(stage.body) if load.buffer.name == "X")
    return load, {a.name: a.extent for a in stage.axes}
