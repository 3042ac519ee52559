"""Places of accesses: what a flat number was taken apart into comes together again, and only that."""

import pytest

from tilewright.codegen.cuda.emit.access import Place, place_of
from tilewright.ir.expr import Binary, BinaryOp, Broadcast, Expr, Ramp, Var, index
from tilewright.ir.linear_form import affine_form

FLAT = Var("block") * 2048 + Var("thread") * 8


def _lanes(base: Expr, count: int = 8) -> tuple[Expr, ...]:
    """The indices of ``count`` neighbours in shape […, 5, 37], from place ``base`` on."""
    x = Ramp(base, 1, count)

    def spread(n: int) -> Expr:
        return Broadcast(index(n), count)

    def over(a: Expr, n: int, op: BinaryOp = BinaryOp.FLOORDIV) -> Expr:
        return Binary(op, a, spread(n))

    return (over(x, 185), over(over(x, 37), 5, BinaryOp.MOD), over(x, 37, BinaryOp.MOD))


def _affine(place: Place | None) -> object:
    assert place is not None
    return affine_form(place.base), place.step


def test_vectors_that_run_over_rows_are_neighbours() -> None:
    assert _affine(place_of(_lanes(FLAT), (185, 37, 1))) == (affine_form(FLAT), 1)


def test_scalars_and_multiples_too() -> None:
    number = Var("block") * 256 + Var("thread")
    reduced = Var("block") * (256 % 49) + Var("thread")  # as the simplifier writes the dividend of a remainder
    indices = (number // 49, reduced % 49 * 8)
    assert _affine(place_of(indices, (49 * 8, 1))) == (affine_form(number * 8), 0)


@pytest.mark.parametrize(
    "indices",
    [
        (FLAT // 37, (FLAT + 1) % 37),  # another number
        (FLAT // 36, FLAT % 37),  # another length of rows
        (FLAT // 37, FLAT % 37 + Var("thread") % 37),
    ],
)
def test_what_belongs_to_different_numbers_stays_apart(indices: tuple[Expr, ...]) -> None:
    place = place_of(indices, (37, 1))
    assert place is not None and affine_form(place.base) is None


def test_rows_that_do_not_lie_side_by_side_have_no_even_step() -> None:
    assert place_of(_lanes(FLAT), (190, 38, 1)) is None
