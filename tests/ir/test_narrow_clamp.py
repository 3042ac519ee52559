"""Places that floats compute and that are clamped: 32 bits give what 64 bits do."""

import numpy as np
import pytest

from tilewright.core.dtypes import INDEX, float32, int32
from tilewright.ir.bounds import loop_range
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Cast, Expr, Load, Var, const, distinct_nodes, index, maximum, minimum
from tilewright.ir.simplify import simplify
from tilewright.te.evaluate import Evaluator

PLACES = np.array([0.0, -0.5, 7.9, 59.0, 60.0, 1e10, -1e10, 1e30, np.inf, -np.inf, np.nan])
AT, X = Var("i"), Buffer("X", (len(PLACES),), float32)
RANGES = {"i": loop_range(len(PLACES))}


def _conversions(e: Expr) -> set[str]:
    return {node.type.name for node in distinct_nodes(e) if isinstance(node, Cast) and node.value.dtype.is_float}


@pytest.mark.parametrize("inner_is_lower", [True, False])
def test_loaded_places_are_converted_to_32_bits(inner_is_lower: bool) -> None:
    place = Cast(Load(X, (AT,)), INDEX)
    clamped = minimum(maximum(place, index(0)), index(59))
    if not inner_is_lower:
        clamped = maximum(minimum(place, index(59)), index(0))
    found = simplify(clamped, RANGES)
    assert _conversions(found) == {int32.name}
    evaluate = Evaluator({"X": PLACES}, {"i": (0, len(PLACES))})
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(found), evaluate(clamped))


def test_neighbours_of_a_computed_place_are() -> None:
    place = Cast((Cast(AT, float32) - const(3.5, float32)) * const(9.0, float32), INDEX)
    clamped = minimum(maximum(place + 2, index(0)), index(59))
    found = simplify(clamped, RANGES)
    assert _conversions(found) == {int32.name}
    evaluate = Evaluator({}, {"i": (0, len(PLACES))})
    np.testing.assert_array_equal(evaluate(found), evaluate(clamped))


def test_neighbours_of_a_loaded_place_may_wrap() -> None:
    """The greatest int64 and 2 is a number below 0, which is the lower bound, not the upper one."""
    clamped = minimum(maximum(Cast(Load(X, (AT,)), INDEX) + 2, index(0)), index(59))
    assert _conversions(simplify(clamped, RANGES)) == {INDEX.name}
