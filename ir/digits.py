"""Places taken apart into digits, and put together again: ``e // c * c + e % c`` is ``e``."""

from collections.abc import Mapping

from .expr import Binary, BinaryOp, Broadcast, Const, Expr


def joined_digits(terms: Mapping[Expr, int]) -> dict[Expr, int] | None:
    """A sum of ``coefficient * term``, scalars or vectors, with one remainder and the quotient that belongs to it
    replaced by what was divided; None where there is no such pair."""
    for term, coefficient in terms.items():
        match term:
            case Binary(op=BinaryOp.MOD, a=a, b=b):
                divisor = _number(b)
                quotient = None if divisor is None else _quotient(terms, a, b, divisor)
                if divisor is None or quotient is None or terms[quotient] != coefficient * divisor:
                    continue
                rest = {t: c for t, c in terms.items() if t not in (term, quotient)}
                rest[a] = rest.get(a, 0) + coefficient
                return rest
    return None


def _quotient(terms: Mapping[Expr, int], a: Expr, b: Expr, divisor: int) -> Expr | None:
    """The term ``a // b``; where ``a`` is ``x // n`` itself, ``x // (n * b)`` is the same."""
    plain = Binary(BinaryOp.FLOORDIV, a, b)
    if plain in terms:
        return plain
    match a:
        case Binary(op=BinaryOp.FLOORDIV, a=x, b=n):
            inner = _number(n)
            for term in terms:
                match term:
                    case Binary(op=BinaryOp.FLOORDIV, a=y, b=d) if inner is not None and y == x:
                        if _number(d) == inner * divisor:
                            return term
    return None


def _number(expr: Expr) -> int | None:
    """The positive number that an expression is in every lane."""
    if isinstance(expr, Broadcast):
        expr = expr.value
    return int(expr.value) if isinstance(expr, Const) and expr.value > 0 else None
