"""Linear forms of indices, and quotients and remainders that are put together again."""

from tilewright.ir.expr import Binary, BinaryOp, Broadcast, Expr, Ramp, Var, index
from tilewright.ir.linear_form import LANE, LinearForm, affine_form, flat_form, linear_form, recombined
from tilewright.ir.text import expr_text

X, Y = Var("x"), Var("y")


def test_affine_forms() -> None:
    form = affine_form((X * 8 + Y) * 2 - (Y - 3))
    assert form == LinearForm({Y: 1, X: 16}, 3)
    assert form is not None
    assert expr_text(form.to_expr()) == "x*16 + y + 3"
    assert expr_text((form.scaled(-1) + 5).to_expr()) == "2 - x*16 - y"
    assert form.at({"x": 2, "y": 1}) == 36
    assert form.coefficient("x") == 16 and form.coefficient("k") == 0
    assert form.without([X]) == LinearForm({Y: 1}, 3)
    assert affine_form(X * Y) is None
    assert affine_form(X // 8) is None
    assert affine_form(Ramp(X, 1, 8)) is None
    assert affine_form(X - X) == LinearForm({})


def test_what_is_not_linear_is_an_atom() -> None:
    form = linear_form((X // 8 + Y * 3) * 2 + X // 8)
    assert form == LinearForm({X // 8: 3, Y: 6}) and not form.is_constant
    assert hash(form) == hash(LinearForm({Y: 6, X // 8: 3}))
    assert form.substituted("y", 5) == LinearForm({X // 8: 3}, 30)
    assert form.plus(form, -1) == form - form == LinearForm({})
    assert linear_form(X * Y) == LinearForm({X * Y: 1})


def test_vectors_count_their_lanes() -> None:
    form = linear_form(Binary(BinaryOp.ADD, Ramp(X * 4, 2, 8), Broadcast(Y + 1, 8)))
    assert form == LinearForm({X: 4, LANE: 2, Y: 1}, 1, 8)
    assert form.varies and form.is_strided and form.stride == 2
    assert form.base == LinearForm({X: 4, Y: 1}, 1)
    assert expr_text(form.to_expr()) == "ramp(x*4 + y + 1, 8, 2)"
    uneven = linear_form(_divided(BinaryOp.MOD, Ramp(X, 1, 8), 3))
    assert uneven.varies and not uneven.is_strided
    assert not linear_form(Broadcast(X, 8)).varies


def test_numbers_wrap_on_request_alone() -> None:
    form = LinearForm({X: 1 << 64, Y: (1 << 63) + 1}, 1 << 63)
    assert form.wrapped() == LinearForm({Y: 1 - (1 << 63)}, -(1 << 63))


def _divided(op: BinaryOp, e: Expr, n: int) -> Expr:
    return Binary(op, e, index(n) if e.lanes == 1 else Broadcast(index(n), e.lanes))


def _quotient_and_remainder(e: Expr, n: int) -> tuple[Expr, Expr]:
    return _divided(BinaryOp.FLOORDIV, e, n), _divided(BinaryOp.MOD, e, n)


def test_a_quotient_and_its_remainder_are_what_was_divided() -> None:
    high, low = _quotient_and_remainder(X, 7)
    assert recombined(LinearForm({high: 14, low: 2, Y: 3})) == LinearForm({Y: 3, X: 2})
    for other in (LinearForm({high: 13, low: 2}), LinearForm({high: 7}), LinearForm({high: 7, Y % 7: 1})):
        assert recombined(other) is other


def test_three_indices_of_one_number_are_recombined_however_the_first_is_written() -> None:
    high, low = _quotient_and_remainder(X, 4)
    for first in (_divided(BinaryOp.FLOORDIV, high, 5), _divided(BinaryOp.FLOORDIV, X, 20)):
        assert flat_form((first, high % 5, low), (20, 4, 1)) == LinearForm({X: 1})
        assert flat_form((first, high % 5), (5, 1)) == LinearForm({high: 1})
        assert flat_form((first, high % 5, low), (20, 4, 1), lower=True) == LinearForm({X: 1})
    apart = flat_form((high % 5, low), (4, 1))
    assert apart == LinearForm({high % 5: 4, low: 1})
    assert recombined(apart, lower=True) == LinearForm({X % 20: 1})


def test_vectors_across_rows_are_evenly_spaced_again() -> None:
    lanes = Ramp(X * 32 + 3, 1, 16)
    high, low = _quotient_and_remainder(lanes, 28)
    assert flat_form((high, low), (28, 1)) == LinearForm({X: 32, LANE: 1}, 3, 16)
    reduced = _divided(BinaryOp.MOD, Ramp(X * 4 + 31, 1, 16), 28)  # the same remainder, written with smaller numbers
    assert flat_form((high, reduced), (28, 1)) == LinearForm({X: 32, LANE: 1}, 3, 16)


def test_vectors_across_rows_of_several_axes_are_evenly_spaced_again() -> None:
    """Rows of 4, of which vectors of 8 take two: upper indices are quotients of the number of the vector."""
    lanes = Ramp(X * 8, 1, 8)
    high, low = _quotient_and_remainder(lanes, 4)
    middle = _divided(BinaryOp.MOD, high, 6)
    for upper, divisor in ((X // 3 % 5, 3), (X // 2 % 5, 2)):
        found = flat_form((X // 15, upper, middle, low), (120, 24, 4, 1), lower=True)
        assert (found == LinearForm({X: 8, LANE: 1}, 0, 8)) == (divisor == 3)


def test_what_does_not_belong_together_stays_apart() -> None:
    high, _ = _quotient_and_remainder(Ramp(X, 1, 16), 28)
    other = _divided(BinaryOp.MOD, Ramp(Y, 1, 16), 28)
    assert not flat_form((high, other), (28, 1)).is_strided
    assert not flat_form((high, _divided(BinaryOp.MOD, Ramp(X, 1, 16), 27)), (28, 1)).is_strided
    assert not flat_form((high, _divided(BinaryOp.MOD, Ramp(X, 1, 16), 28)), (30, 1)).is_strided  # rows with a gap


def test_the_first_index_of_a_vector_may_count_whole_vectors() -> None:
    """What is divided by 3 * 8 is the number of the vector by 3; which lane it is makes no difference."""
    x = Ramp(Y * 8, 1, 8)
    high, low = Broadcast(Y // 3, 8), Binary(BinaryOp.MOD, x, Broadcast(index(24), 8))
    assert flat_form((high, low), (24, 1)) == LinearForm({Y: 8, LANE: 1}, 0, 8)
    wider = Ramp(Y * 8 + 1, 1, 8)  # its last lane belongs to the next vector
    assert not flat_form((high, Binary(BinaryOp.MOD, wider, Broadcast(index(24), 8))), (24, 1)).is_strided
