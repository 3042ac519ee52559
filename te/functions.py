"""Functions to write expressions with.

All are plain functions over the nodes of ``ir.expr``. A number among the operands takes the dtype of the first
expression.
"""

from collections.abc import Iterator

from ..core.dtypes import INDEX, INPUT_DTYPES, DType
from ..core.errors import InvalidWorkload
from ..ir.expr import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Logic,
    LogicOp,
    Select,
    Unary,
    UnaryOp,
    as_expr,
    const,
)


def select(condition: Expr, then: Expr | float, otherwise: Expr | float) -> Expr:
    """``then`` where ``condition`` holds, and ``otherwise`` elsewhere. Loads of the branch that is not taken do not
    happen."""
    if isinstance(then, Expr):
        return Select(condition, then, as_expr(otherwise, then.dtype))
    if isinstance(otherwise, Expr):
        return Select(condition, as_expr(then, otherwise.dtype), otherwise)
    raise InvalidWorkload("select of two plain numbers has no dtype; make one a constant")


def constant(value: float, dtype: str | DType) -> Const:
    """Return a number of the given dtype."""
    return const(value, dtype_of(dtype))


def cast(e: Expr, dtype: str | DType) -> Expr:
    """``e`` converted to ``dtype`` by the rules of ``ir.expr.Cast``. It is ``e`` itself where it has that dtype."""
    wanted = dtype_of(dtype)
    return e if e.dtype == wanted else Cast(e, wanted)


def exp(e: Expr) -> Expr:
    """Return the exponential function of ``e``."""
    return Unary(UnaryOp.EXP, e)


def exp2(e: Expr) -> Expr:
    """2 to the power ``e``."""
    return Unary(UnaryOp.EXP2, e)


def log(e: Expr) -> Expr:
    """Return the natural logarithm of ``e``."""
    return Unary(UnaryOp.LOG, e)


def tanh(e: Expr) -> Expr:
    """Return the hyperbolic tangent of ``e``."""
    return Unary(UnaryOp.TANH, e)


def erf(e: Expr) -> Expr:
    """Return the error function of ``e``."""
    return Unary(UnaryOp.ERF, e)


def sqrt(e: Expr) -> Expr:
    """Return the square root of ``e``."""
    return Unary(UnaryOp.SQRT, e)


def rsqrt(e: Expr) -> Expr:
    """Return one over the square root of ``e``."""
    return Unary(UnaryOp.RSQRT, e)


def sin(e: Expr) -> Expr:
    """Return the sine of ``e`` radians."""
    return Unary(UnaryOp.SIN, e)


def cos(e: Expr) -> Expr:
    """Return the cosine of ``e`` radians."""
    return Unary(UnaryOp.COS, e)


def absolute(e: Expr) -> Expr:
    """Return the absolute value of ``e``."""
    return Unary(UnaryOp.ABS, e)


def floor(e: Expr) -> Expr:
    """Return the greatest whole number that is not above ``e``, as a float."""
    return Unary(UnaryOp.FLOOR, e)


def ceil(e: Expr) -> Expr:
    """Return the least whole number that is not below ``e``, as a float."""
    return Unary(UnaryOp.CEIL, e)


def rint(e: Expr) -> Expr:
    """Return the whole number nearest to ``e``, as a float; the even one of two."""
    return Unary(UnaryOp.RINT, e)


def sigmoid(e: Expr) -> Expr:
    """``1 / (1 + exp(-e))``."""
    return 1.0 / (exp(-e) + 1.0)


def power(e: Expr, exponent: Expr | float) -> Expr:
    """``e`` to the ``exponent``, both floats."""
    return Binary(BinaryOp.POW, e, as_expr(exponent, e.dtype))


def maximum(a: Expr, b: Expr | float) -> Expr:
    """Return the greater of two expressions. ``max`` is the greatest over a range."""
    return Binary(BinaryOp.MAX, a, as_expr(b, a.dtype))


def minimum(a: Expr, b: Expr | float) -> Expr:
    """Return the lesser of two expressions. ``min`` is the least over a range."""
    return Binary(BinaryOp.MIN, a, as_expr(b, a.dtype))


def bitwise_and(a: Expr, b: Expr | int) -> Expr:
    """Return the bits that two integers both have."""
    return Binary(BinaryOp.BIT_AND, a, as_expr(b, a.dtype))


def bitwise_or(a: Expr, b: Expr | int) -> Expr:
    """Return the bits that at least one of two integers has."""
    return Binary(BinaryOp.BIT_OR, a, as_expr(b, a.dtype))


def bitwise_xor(a: Expr, b: Expr | int) -> Expr:
    """Return the bits that one of two integers has, and the other one has not."""
    return Binary(BinaryOp.BIT_XOR, a, as_expr(b, a.dtype))


def shift_left(e: Expr, count: Expr | int) -> Expr:
    """Return the bits of an integer moved up by ``count``, as ``BinaryOp`` says."""
    return Binary(BinaryOp.SHL, e, as_expr(count, e.dtype))


def shift_right(e: Expr, count: Expr | int) -> Expr:
    """Return the bits of an integer moved down by ``count``, with copies of its sign, as ``BinaryOp`` says."""
    return Binary(BinaryOp.SHR, e, as_expr(count, e.dtype))


def within(e: Expr, extent: int) -> Expr:
    """Return an integer as an index of a dimension of ``extent``: what lies outside is moved to the nearest end. It is
    what a tensor may be read at beside plain indices: ``table[within(rows[i], 1000), j]``."""
    return minimum(maximum(cast(e, INDEX), 0), extent - 1)


def equal(a: Expr, b: Expr | float) -> Expr:
    """Return whether two expressions have equal values. (``==`` compares their structure.)"""
    return Compare(CompareOp.EQ, a, as_expr(b, a.dtype))


def not_equal(a: Expr, b: Expr | float) -> Expr:
    """Return whether two expressions have different values."""
    return Compare(CompareOp.NE, a, as_expr(b, a.dtype))


def negated(condition: Expr) -> Expr:
    """Return whether ``condition`` does not hold."""
    return Unary(UnaryOp.NOT, condition)


def all_of(*conditions: Expr) -> Expr:
    """Return whether every one of one or more conditions holds."""
    return _joined(LogicOp.AND, conditions)


def any_of(*conditions: Expr) -> Expr:
    """Return whether at least one of one or more conditions holds."""
    return _joined(LogicOp.OR, conditions)


def _joined(op: LogicOp, conditions: tuple[Expr, ...]) -> Expr:
    if not conditions:
        raise InvalidWorkload(f"{op}: no condition given; at least one is needed")
    result = conditions[0]
    for condition in conditions[1:]:
        result = Logic(op, result, condition)
    return result


def dtype_of(dtype: str | DType) -> DType:
    """Return the dtype of that name. Raises InvalidWorkload, which lists the allowed names."""
    found = dtype if isinstance(dtype, DType) else INPUT_DTYPES.get(dtype)
    if found is None:
        raise InvalidWorkload(f"{dtype!r} is no dtype; allowed: {', '.join(INPUT_DTYPES)}", field="dtype")
    return found


TURNED = {
    CompareOp.LE: CompareOp.GE,
    CompareOp.LT: CompareOp.GT,
    CompareOp.GE: CompareOp.LE,
    CompareOp.GT: CompareOp.LT,
}
"""What an order of two values is called the other way round."""


def uncast(e: Expr) -> Expr:
    """Return what an expression is a cast of, or a cast of a cast; itself, where it is none."""
    return uncast(e.value) if isinstance(e, Cast) else e


def factors_of(e: Expr) -> Iterator[Expr]:
    """Yield what is multiplied in an expression: itself, where it is no product."""
    if isinstance(e, Binary) and e.op is BinaryOp.MUL:
        yield from factors_of(e.a)
        yield from factors_of(e.b)
    else:
        yield e


def summands_of(e: Expr, sign: int = 1) -> Iterator[tuple[Expr, int]]:
    """Yield what is added (1) and what is subtracted (-1) in an expression."""
    match e:
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB as op, a=a, b=b):
            yield from summands_of(a, sign)
            yield from summands_of(b, sign if op is BinaryOp.ADD else -sign)
        case Unary(op=UnaryOp.NEG, value=value):
            yield from summands_of(value, -sign)
        case _:
            yield e, sign
