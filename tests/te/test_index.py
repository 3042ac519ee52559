"""Indices with quotients and remainders: bounds against every point, one spelling, JSON, and what kernels read."""

import operator
import random
from collections.abc import Callable

import numpy as np
import pytest

from tilewright.core.errors import InvalidWorkload
from tilewright.ir.expr import Binary, BinaryOp, Const, Expr, Unary, Var
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.index import Index, index_of
from tilewright.te.json import workload_from_json, workload_to_json
from tilewright.te.key import workload_key
from tilewright.te.reference import reference
from tilewright.te.region import Region
from tilewright.te.workload import Workload

_OPERATIONS: dict[BinaryOp, Callable[[int, int], int]] = {
    BinaryOp.ADD: operator.add,
    BinaryOp.SUB: operator.sub,
    BinaryOp.MUL: operator.mul,
    BinaryOp.FLOORDIV: operator.floordiv,
    BinaryOp.MOD: operator.mod,
}
BOX = {"i": (0, 4), "j": (0, 6)}


def _drawn(draw: random.Random, depth: int) -> Expr:
    if depth == 0:
        return Var(draw.choice("ij")) * draw.randint(-3, 3) + draw.randint(-4, 4)
    a, b, divisor = _drawn(draw, depth - 1), _drawn(draw, depth - 1), draw.randint(1, 5)
    return draw.choice([a + b, a - b, a * draw.randint(-2, 2), a // divisor, a % divisor, -a])


def _value(index: Index, at: dict[str, int]) -> int:
    total = index.affine.at(at)
    for part, times in index.parts:
        inner = _value(part.of, at)
        total += times * (inner // part.divisor if part.op is BinaryOp.FLOORDIV else inner % part.divisor)
    return total


def _evaluated(e: Expr, at: dict[str, int]) -> int:
    if isinstance(e, Var):
        return at[e.name]
    below = [_evaluated(c, at) for c in e.children]
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Unary):
        return -below[0]
    assert isinstance(e, Binary)
    return _OPERATIONS[e.op](*below)


def test_bounds_hold_and_spellings_keep_values() -> None:
    draw = random.Random(0)
    for _ in range(400):
        e = _drawn(draw, draw.randint(0, 3))
        found = index_of(e)
        assert found is not None
        points = [{"i": i, "j": j} for i in range(5) for j in range(7)]
        values = [_evaluated(e, at) for at in points]
        assert values == [_value(found, at) for at in points] == [_evaluated(found.expr("ij"), at) for at in points]
        low, high = found.bounds(Region(BOX))
        assert low <= min(values) and max(values) <= high
        assert index_of(found.expr("ij")) == found


def _reshaped() -> Workload:
    x = te.placeholder((6, 8), name="X")
    return te.workload(te.compute((4, 12), lambda i, j: x[(12 * i + j) // 8, (12 * i + j) % 8], "Y"))


def test_a_reshape_reads_what_it_should_and_survives_json() -> None:
    w = _reshaped()
    inputs = random_inputs(w, 0)
    np.testing.assert_array_equal(reference(w, inputs)["Y"], inputs["X"].reshape(4, 12))
    data = workload_to_json(w)
    assert workload_from_json(data) == w and workload_key(workload_from_json(data)) == workload_key(w)


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"op": "add", "of": "i", "by": 2, "times": 1}, "/op"),
        ({"op": "mod", "of": "i", "by": 0, "times": 1}, "/by"),
        ({"op": "mod", "of": "i", "by": 1 << 40, "times": 1}, "/by"),
        ({"op": "mod", "of": "k", "by": 2, "times": 1}, "/of"),
        ({"op": "mod", "of": "i", "by": 2}, "/times"),
    ],
)
def test_wrong_parts_are_refused_by_name(part: dict[str, object], field: str) -> None:
    data = workload_to_json(_reshaped())
    data["stages"][0]["body"]["at"][0] = {"terms": {}, "constant": 0, "parts": [part]}  # type: ignore[index]
    with pytest.raises(InvalidWorkload) as caught:
        workload_from_json(data)
    assert caught.value.field == f"/stages/0/body/at/0/parts/0{field}"


def test_indices_cannot_be_nested_without_end() -> None:
    index: object = "i"
    for _ in range(50):
        index = {"terms": {}, "constant": 1, "parts": [{"op": "floordiv", "of": index, "by": 2, "times": 1}]}
    data = workload_to_json(_reshaped())
    data["stages"][0]["body"]["at"][0] = index  # type: ignore[index]
    with pytest.raises(InvalidWorkload, match="nested deeper"):
        workload_from_json(data)
