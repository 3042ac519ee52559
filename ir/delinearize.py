"""Places taken apart into digits, and put together again: ``e // c * c + e % c`` is ``e``."""

from collections.abc import Callable, Mapping

from .expr import Binary, BinaryOp, Broadcast, Const, Expr

Congruent = Callable[[Expr, Expr, int], bool]
"""Whether two expressions surely leave the same remainder when divided by a number."""


def joined_digits(terms: Mapping[Expr, int], congruent: Congruent) -> dict[Expr, int] | None:
    """A sum of ``coefficient * term``, scalars or vectors, with one remainder and the quotient that belongs to it
    replaced by what was divided; None where there is no such pair."""
    for term, coefficient in terms.items():
        match term:
            case Binary(op=BinaryOp.MOD, a=a, b=b):
                divisor = _number(b)
                if divisor is None:
                    continue
                found = _quotient(terms, a, divisor, coefficient * divisor, congruent)
                if found is None:
                    continue
                quotient, whole = found
                rest = {t: c for t, c in terms.items() if t not in (term, quotient)}
                rest[whole] = rest.get(whole, 0) + coefficient
                return rest
    return None


def _quotient(
    terms: Mapping[Expr, int], a: Expr, divisor: int, wanted: int, congruent: Congruent
) -> tuple[Expr, Expr] | None:
    """The term ``e // divisor`` with the coefficient ``wanted`` where ``e % divisor`` is ``a % divisor``, and ``e``.
    Where ``a`` is ``x // n``, ``x // (n * divisor)`` will do."""
    for term, coefficient in terms.items():
        match term:
            case Binary(op=BinaryOp.FLOORDIV, a=e, b=d) if coefficient == wanted and e.lanes == a.lanes:
                number = _number(d)
                if number == divisor and (e == a or congruent(e, a, divisor)):
                    return term, e
                match a:
                    case Binary(op=BinaryOp.FLOORDIV, a=x, b=n) if x == e:
                        inner = _number(n)
                        if inner is not None and number == inner * divisor:
                            return term, a
    return None


def _number(expr: Expr) -> int | None:
    """The positive number that an expression is in every lane."""
    if isinstance(expr, Broadcast):
        expr = expr.value
    return int(expr.value) if isinstance(expr, Const) and expr.value > 0 else None
