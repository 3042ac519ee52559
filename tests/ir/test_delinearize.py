"""Digits put together again."""

from tilewright.codegen.llvm.linear import flat_index
from tilewright.ir.delinearize import joined_digits
from tilewright.ir.expr import Binary, BinaryOp, Broadcast, Expr, Ramp, Var, index

X, Y = Var("x"), Var("y")


def _divided(op: BinaryOp, e: Expr, n: int) -> Expr:
    return Binary(op, e, index(n) if e.lanes == 1 else Broadcast(index(n), e.lanes))


def _digits(e: Expr, n: int) -> tuple[Expr, Expr]:
    return _divided(BinaryOp.FLOORDIV, e, n), _divided(BinaryOp.MOD, e, n)


def test_a_quotient_and_its_remainder_are_what_was_divided() -> None:
    high, low = _digits(X, 7)
    assert joined_digits({high: 14, low: 2, Y: 3}, lambda a, b, n: False) == {Y: 3, X: 2}
    assert joined_digits({high: 13, low: 2}, lambda a, b, n: False) is None
    assert joined_digits({high: 7}, lambda a, b, n: True) is None
    assert joined_digits({high: 7, _divided(BinaryOp.MOD, Y, 7): 1}, lambda a, b, n: False) is None


def test_three_digits_are_joined_however_the_first_is_written() -> None:
    high, low = _digits(X, 4)
    for first in (_divided(BinaryOp.FLOORDIV, high, 5), _divided(BinaryOp.FLOORDIV, X, 20)):
        form = flat_index((first, high % 5, low), (20, 4, 1))
        assert form is not None and dict(form.terms) == {X: 1}


def test_vectors_across_rows_are_evenly_spaced_again() -> None:
    lanes = Ramp(X * 32 + 3, 1, 16)
    high, low = _digits(lanes, 28)
    form = flat_index((high, low), (28, 1))
    assert form is not None and (dict(form.terms), form.constant, form.stride) == ({X: 32}, 3, 1)
    reduced = _divided(BinaryOp.MOD, Ramp(X * 4 + 31, 1, 16), 28)  # the same remainder, written with smaller numbers
    form = flat_index((high, reduced), (28, 1))
    assert form is not None and (dict(form.terms), form.constant, form.stride) == ({X: 32}, 3, 1)


def test_what_does_not_belong_together_stays_apart() -> None:
    high, _ = _digits(Ramp(X, 1, 16), 28)
    other = _divided(BinaryOp.MOD, Ramp(Y, 1, 16), 28)
    assert flat_index((high, other), (28, 1)) is None
    assert flat_index((high, _divided(BinaryOp.MOD, Ramp(X, 1, 16), 27)), (28, 1)) is None
    assert flat_index((high, _divided(BinaryOp.MOD, Ramp(X, 1, 16), 28)), (30, 1)) is None  # rows with a gap
