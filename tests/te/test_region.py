"""Regions never claim less than is there: checked against every point of small boxes."""

import itertools
import random

from tilewright.ir.expr import Expr, Logic, LogicOp, Unary, UnaryOp, Var, index
from tilewright.ir.linear_form import LinearForm
from tilewright.te.functions import equal, not_equal
from tilewright.te.region import Region, box_bounds


def _affine(draw: random.Random) -> LinearForm:
    return LinearForm({Var(n): c for n in "ij" if (c := draw.randint(-3, 3))}, draw.randint(-4, 4))


def _condition(draw: random.Random, depth: int) -> Expr:
    if depth and draw.random() < 0.6:
        a, b = _condition(draw, depth - 1), _condition(draw, depth - 1)
        return draw.choice([Logic(LogicOp.AND, a, b), Logic(LogicOp.OR, a, b), Unary(UnaryOp.NOT, a)])
    a, b = _affine(draw).to_expr(), _affine(draw).to_expr()
    if draw.random() < 0.3:
        a, b = a // draw.randint(1, 3), index(draw.randint(-3, 3))
    return draw.choice([a < b, a <= b, a > b, a >= b, equal(a, b), not_equal(a, b)])


def _holds(condition: Expr, at: dict[str, int]) -> bool:
    match condition:
        case Logic(op=op, a=a, b=b):
            left, right = _holds(a, at), _holds(b, at)
            return (left and right) if op is LogicOp.AND else (left or right)
        case Unary(value=value):
            return not _holds(value, at)
    from_ops = {
        "lt": int.__lt__,
        "le": int.__le__,
        "gt": int.__gt__,
        "ge": int.__ge__,
        "eq": int.__eq__,
        "ne": int.__ne__,
    }
    a, b = condition.children
    return bool(from_ops[str(condition.op)](_value(a, at), _value(b, at)))  # type: ignore[attr-defined]


def _value(e: Expr, at: dict[str, int]) -> int:
    if isinstance(e, Var):
        return at[e.name]
    values = [_value(c, at) for c in e.children]
    op = str(getattr(e, "op", ""))
    if not values:
        return int(e.value)  # type: ignore[attr-defined]
    return {
        "add": lambda: values[0] + values[1],
        "sub": lambda: values[0] - values[1],
        "mul": lambda: values[0] * values[1],
        "floordiv": lambda: values[0] // values[1],
        "neg": lambda: -values[0],
    }[op]()


def test_bounds_hold_at_every_point() -> None:
    draw = random.Random(0)
    tightened = 0
    for _ in range(400):
        box = {"i": (0, draw.randint(0, 5)), "j": (0, draw.randint(0, 5))}
        condition, holds, f = _condition(draw, 2), draw.random() < 0.5, _affine(draw)
        region = Region(box).where(condition, holds)
        low, high = region.bounds(f) if not region.is_empty else (1, 0)
        points = [
            dict(zip("ij", p, strict=True)) for p in itertools.product(range(box["i"][1] + 1), range(box["j"][1] + 1))
        ]
        values = [f.at(p) for p in points if _holds(condition, p) == holds]
        assert all(low <= v <= high for v in values)
        tightened += (low, high) != box_bounds(f, box)
    assert tightened > 100


def test_a_quotient_below_a_number_is_below_a_multiple() -> None:
    i = Var("i")
    region = Region({"i": (-20, 20)}).where(Logic(LogicOp.AND, i // 3 < 4, i // 3 > -3), True)
    assert region.box == {"i": (-6, 11)}


def test_conditions_on_one_axis_are_kept_however_many_there_are() -> None:
    i, j = Var("i"), Var("j")
    region = Region({"i": (0, 99), "j": (0, 99)}).where(i + j < 150, True)
    for n in range(80):
        region = region.where(i < n, False).where(i + j < 70, False)
    assert region.box == {"i": (79, 99), "j": (0, 70)}
    assert region.bounds(LinearForm({i: 1, j: 1})) == (79, 149)
