"""Offsets of accesses: the quotients and remainders of one flat index are put together again, those of two are not."""

import pytest

from tilewright.codegen.cuda.emit.access import StridedOffset, strided_offset, with_shared_divisions
from tilewright.ir.expr import Binary, BinaryOp, Broadcast, Expr, Ramp, Var, index
from tilewright.ir.linear_form import affine_form

FLAT = Var("block") * 2048 + Var("thread") * 8


def _lanes(base: Expr, count: int = 8) -> tuple[Expr, ...]:
    """Return the indices of ``count`` contiguous elements in shape […, 5, 37], from flat index ``base`` on."""
    x = Ramp(base, 1, count)

    def broadcast(n: int) -> Expr:
        return Broadcast(index(n), count)

    def over(a: Expr, n: int, op: BinaryOp = BinaryOp.FLOORDIV) -> Expr:
        return Binary(op, a, broadcast(n))

    return (over(x, 185), over(over(x, 37), 5, BinaryOp.MOD), over(x, 37, BinaryOp.MOD))


def _affine(found: StridedOffset | None) -> object:
    assert found is not None
    return affine_form(found.base), found.stride


def test_a_vector_that_crosses_rows_is_contiguous() -> None:
    assert _affine(strided_offset(_lanes(FLAT), (185, 37, 1))) == (affine_form(FLAT), 1)


def test_scalars_and_multiples_are_joined_too() -> None:
    number = Var("block") * 256 + Var("thread")
    reduced = Var("block") * (256 % 49) + Var("thread")  # as the simplifier writes the dividend of a remainder
    indices = (number // 49, reduced % 49 * 8)
    assert _affine(strided_offset(indices, (49 * 8, 1))) == (affine_form(number * 8), 0)


@pytest.mark.parametrize(
    "indices",
    [
        (FLAT // 37, (FLAT + 1) % 37),  # another index
        (FLAT // 36, FLAT % 37),  # another length of rows
        (FLAT // 37, FLAT % 37 + Var("thread") % 37),
    ],
)
def test_quotients_and_remainders_of_different_indices_are_not_joined(indices: tuple[Expr, ...]) -> None:
    found = strided_offset(indices, (37, 1))
    assert found is not None and affine_form(found.base) is None


def test_padded_rows_have_no_constant_stride() -> None:
    assert strided_offset(_lanes(FLAT), (190, 38, 1)) is None


def test_a_remainder_takes_the_dividend_of_a_quotient_beside_it() -> None:
    whole, reduced = Var("t") * 128 + Var("k") + 17, Var("t") * 29 + Var("k") + 17
    quotient, place = with_shared_divisions(whole // 33, reduced % 33 * 5)
    assert (quotient, place) == (whole // 33, whole % 33 * 5)
    for roots in ((reduced % 33 * 5,), (whole // 31, reduced % 33), (whole // 33, (reduced + 1) % 33)):
        assert with_shared_divisions(*roots) == roots
    masked = (Var("t") * 9 // 8, Var("t") % 8)  # takes no division
    assert with_shared_divisions(*masked) == masked
