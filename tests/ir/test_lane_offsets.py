"""Index vectors whose lanes differ by known numbers."""

import pytest

from tilewright.ir.expr import Binary, BinaryOp, Broadcast, Expr, Ramp, Var, index
from tilewright.ir.lane_offsets import lane_offsets, windows
from tilewright.ir.linear_form import LinearForm, linear_form

X, LANES = Var("x"), 8


def _with_number(op: BinaryOp, vector: Expr, number: int) -> Expr:
    return Binary(op, vector, Broadcast(index(number), vector.lanes))


def _at(base: Expr, stride: int = 1) -> Expr:
    return Ramp(base, stride, LANES)


@pytest.mark.parametrize(
    "vector, scalar, offsets",
    [
        (_at(X), {X: 1}, range(8)),
        (_with_number(BinaryOp.FLOORDIV, _at(X * 8), 2), {X: 4}, [0, 0, 1, 1, 2, 2, 3, 3]),
        (_with_number(BinaryOp.FLOORDIV, _at(X * 8 + 3), 2), {X: 4}, [0, 1, 1, 2, 2, 3, 3, 4]),
        (_with_number(BinaryOp.MOD, _at(X * 8 - 1), 4), {}, [3, 0, 1, 2, 3, 0, 1, 2]),
        (_with_number(BinaryOp.FLOORDIV, _at(X * 8), 24), {X * 8 // 24: 1}, [0] * 8),
        (_with_number(BinaryOp.MOD, _at(X * 16 + 5, -1), 24), {X * 16 % 24: 1}, None),
        (_with_number(BinaryOp.MOD, _at(X * 16 + 8, -1), 24), {X * 16 % 24: 1}, None),
        (_with_number(BinaryOp.MOD, _at(X * 8 + 7, -1), 24), {X * 8 % 24: 1}, [7, 6, 5, 4, 3, 2, 1, 0]),
        (_with_number(BinaryOp.MIN, _at(index(4)), 7), {}, [4, 5, 6, 7, 7, 7, 7, 7]),
        (_with_number(BinaryOp.MIN, _at(X), 7), {}, None),
        (_with_number(BinaryOp.FLOORDIV, _at(X), 2), {}, None),
        (Binary(BinaryOp.MOD, _at(index(0)), Broadcast(X, 8)), {}, None),
    ],
)
def test_lanes_are_a_scalar_and_known_numbers(vector: Expr, scalar: dict[Expr, int], offsets: list[int] | None) -> None:
    found = lane_offsets(linear_form(vector))
    if offsets is None:
        assert found is None
        return
    assert found is not None
    constant = found[0].constant
    assert found[0] - constant == LinearForm(scalar)
    assert [constant + o - found[1][0] for o in found[1]] == [constant + o - next(iter(offsets)) for o in offsets]


@pytest.mark.parametrize("op", [BinaryOp.FLOORDIV, BinaryOp.MOD])
@pytest.mark.parametrize("divisor", [1, 2, 3, 4, 8, 12])
@pytest.mark.parametrize("shift, stride", [(0, 1), (5, 1), (-3, 2), (7, -1)])
def test_known_lanes_are_those_of_each_value(op: BinaryOp, divisor: int, shift: int, stride: int) -> None:
    """The scalar and the offsets give each lane its quotient or remainder, wherever the vector begins."""
    known = lane_offsets(linear_form(_with_number(op, _at(X * 12 + shift, stride), divisor)))
    if known is None:
        assert divisor == 8
        return
    for x in range(-3, 4):
        values = [x * 12 + shift + stride * lane for lane in range(LANES)]
        wanted = [v // divisor if op is BinaryOp.FLOORDIV else v % divisor for v in values]
        assert [known[0].at({"x": x}) + o for o in known[1]] == wanted


def test_windows_cover_offsets_and_nothing_beyond_them() -> None:
    assert windows([0, 0, 1, 1, 2, 2, 3, 3], 8) == [(0, 4)]
    assert windows([0, 100, 1, 101, 2, 102, 3, 103], 8) == [(0, 4), (100, 4)]
    assert windows(range(0, 24, 3), 8) == [(0, 7), (9, 7), (18, 4)]
