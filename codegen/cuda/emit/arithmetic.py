"""Writes the IR's operators in C++. Integers wrap around and divide towards minus infinity, and floats keep NaN.

Functions of float32 are CUDA's accurate ones; exp2 has their error, but subnormal results become 0. Divisions and roots
have no branch, so that those of several elements overlap. Where every output of a kernel is a float of 16 bits
(``EmittedFunction.fast_math``), an error of some units in the last place of float32 is far below the final rounding.
Cheap functions then stand in:

- exp and exp2 are ``ex2.approx``, and sqrt is ``sqrt.approx``;
- a division is ``div.full`` (2 units), or ``rcp.approx`` where a constant is divided;
- erf is two polynomials, and tanh is a series near 0 and exp elsewhere.

``tanh.approx`` is not used: its error of 2^-11 is as large as the rounding of float16.
"""

from math import frexp

from ....core.dtypes import DType, float32
from ....core.errors import CompileError
from ....ir.expr import Binary, BinaryOp, CompareOp, Const, Expr, LogicOp, Unary, UnaryOp
from ....ir.lanes import scalar_of
from .function import EmittedFunction
from .text import CppValue, Precedence, call, conditional, converted, infix
from .types import compute_type, is_half

_INFIX = {
    BinaryOp.ADD: ("+", Precedence.ADDITIVE),
    BinaryOp.SUB: ("-", Precedence.ADDITIVE),
    BinaryOp.MUL: ("*", Precedence.MULTIPLICATIVE),
}
_COMPARE = {
    CompareOp.LT: ("<", Precedence.RELATIONAL),
    CompareOp.LE: ("<=", Precedence.RELATIONAL),
    CompareOp.GT: (">", Precedence.RELATIONAL),
    CompareOp.GE: (">=", Precedence.RELATIONAL),
    CompareOp.EQ: ("==", Precedence.EQUALITY),
    CompareOp.NE: ("!=", Precedence.EQUALITY),
}
_MATH = {
    UnaryOp.EXP: "exp",
    UnaryOp.EXP2: "exp2",
    UnaryOp.LOG: "log",
    UnaryOp.TANH: "tanh",
    UnaryOp.ERF: "erf",
    UnaryOp.SQRT: "sqrt",
    UnaryOp.RSQRT: "rsqrt",
    UnaryOp.SIN: "sin",
    UnaryOp.COS: "cos",
    UnaryOp.FLOOR: "floor",
    UnaryOp.CEIL: "ceil",
    UnaryOp.RINT: "rint",
    UnaryOp.ABS: "fabs",
}
_APPROXIMATE = {
    UnaryOp.EXP: "fast_exp",
    UnaryOp.EXP2: "fast_exp2",
    UnaryOp.TANH: "fast_tanh",
    UnaryOp.ERF: "fast_erf",
    UnaryOp.SQRT: "fast_sqrt",
}
_FROM_BITS = {
    "float16": "half_to_float",
    "bfloat16": "bfloat_to_float",
    "float8_e4m3fn": "e4m3_to_float",
    "float8_e5m2": "e5m2_to_float",
}
_BYTES_TO_FLOAT = {"int8": "byte_to_float", "uint8": "small_to_float"}
_BITS = {
    BinaryOp.BIT_AND: ("&", Precedence.BITWISE),
    BinaryOp.BIT_OR: ("|", Precedence.BITWISE),
    BinaryOp.BIT_XOR: ("^", Precedence.BITWISE),
    BinaryOp.SHL: ("<<", Precedence.SHIFT),
    BinaryOp.SHR: (">>", Precedence.SHIFT),
}
MATH_NAMES = frozenset(f"{name}{kind}" for name in (*_MATH.values(), "pow") for kind in ("", "f"))
"""These functions of CUDA's math library may be called."""


def compare(op: CompareOp, a: CppValue, b: CppValue) -> CppValue:
    """Return ``a op b``."""
    return infix(a, _COMPARE[op][0], b, "bool", _COMPARE[op][1])


def logic(op: LogicOp, a: CppValue, b: CppValue) -> CppValue:
    """Return ``a && b`` or ``a || b``."""
    if op is LogicOp.AND:
        return infix(a, "&&", b, "bool", Precedence.LOGICAL_AND)
    return infix(a, "||", b, "bool", Precedence.LOGICAL_OR)


def binary(fn: EmittedFunction, expr: Binary, a: CppValue, b: CppValue) -> CppValue:
    """Return ``a op b`` of the dtype of ``expr``."""
    dtype = expr.dtype
    if dtype.is_float:
        return _float_binary(fn, expr, a, b)
    if dtype.is_bool:
        return _bool_binary(expr.op, a, b)
    if expr.op in (BinaryOp.FLOORDIV, BinaryOp.MOD):
        return _divide(fn, expr, a, b)
    if expr.op in (BinaryOp.MIN, BinaryOp.MAX):
        return min_max(fn, expr.op, dtype, a, b)
    if expr.op in _BITS:
        return _bitwise(expr, a, b)
    return _integer_binary(fn, expr, a, b)


def min_max(fn: EmittedFunction, op: BinaryOp, dtype: DType, a: CppValue, b: CppValue) -> CppValue:
    """Return the smaller or the larger of two numbers; NaN if either is."""
    if dtype.is_float:
        return call(fn.use(f"{op.value}_nan"), compute_type(dtype), a, b)
    if dtype.is_bool:
        return _bool_binary(op, a, b)
    type = "long long" if "long long" in (a.type, b.type) else "int"
    return call(op.value, type, converted(a, type), converted(b, type))


def combine(fn: EmittedFunction, op: BinaryOp, dtype: DType, a: CppValue, b: CppValue) -> CppValue:
    """Return ``a op b`` in a reduction by add, mul, min or max, where neither value is an expression of the IR."""
    if op in (BinaryOp.MIN, BinaryOp.MAX):
        return min_max(fn, op, dtype, a, b)
    if dtype.is_bool:
        return _bool_binary(op, a, b)
    sign, precedence = _INFIX[op]
    return infix(a, sign, b, a.type, precedence) if dtype.is_float else _wrapping(a, sign, b, dtype, precedence)


def _bitwise(expr: Binary, a: CppValue, b: CppValue) -> CppValue:
    """Return an operation on bits. C++ has no shift by all bits or more: what that gives is written out."""
    sign, precedence = _BITS[expr.op]
    bits, type = expr.dtype.bits, "long long" if expr.dtype.bits == 64 else "int"
    a, b, count = converted(a, type), converted(b, type), _constant(expr.b)
    unknown = expr.op in (BinaryOp.SHL, BinaryOp.SHR) and not (count is not None and 0 <= count < bits)
    inside = CppValue(f"(unsigned {type}){b.unary} < {bits}", "bool", Precedence.RELATIONAL)
    if unknown and expr.op is BinaryOp.SHR:
        b = conditional(inside, b, CppValue(str(bits - 1), type), type)
    if expr.op is BinaryOp.SHL:  # bits may be shifted into the sign
        a = converted(a, f"unsigned {type}")
    result = converted(infix(a, sign, b, a.type, precedence), compute_type(expr.dtype))
    if unknown and expr.op is BinaryOp.SHL:
        return conditional(inside, result, CppValue("0", result.type), result.type)
    return result


def _integer_binary(fn: EmittedFunction, expr: Binary, a: CppValue, b: CppValue) -> CppValue:
    if expr.op not in _INFIX:
        raise CompileError(f"{expr.op.value} is not defined for {expr.dtype}")
    sign, precedence = _INFIX[expr.op]
    if expr.dtype.bits < 32:
        result = infix(a, sign, b, "int", precedence)
        return converted(result, compute_type(expr.dtype))
    if not fn.ranges.exact(expr):
        return _wrapping(a, sign, b, expr.dtype, precedence)
    type = result_type(fn, expr, a, b)
    if type == "long long" and "long long" not in (a.type, b.type):
        a = converted(a, type)
    return infix(a, sign, b, type, precedence)


def result_type(fn: EmittedFunction, expr: Expr, *operands: CppValue) -> str:
    """Return ``int`` for an index whose values fit it and whose operands are ``int``; otherwise the type of its
    dtype."""
    if expr.dtype.bits < 64:
        return compute_type(expr.dtype)
    bounds = fn.ranges.of(expr)
    fits = -(1 << 31) <= bounds.low and bounds.high < 1 << 31
    return "int" if fits and all(v.type != "long long" for v in operands) else "long long"


def _wrapping(a: CppValue, sign: str, b: CppValue, dtype: DType, precedence: Precedence) -> CppValue:
    """Return ``a sign b`` where it may overflow. It is computed in unsigned types, since signed overflow is undefined
    in C++."""
    if dtype.bits < 32:
        return converted(infix(a, sign, b, "int", precedence), compute_type(dtype))
    type = "long long" if dtype.bits == 64 else "int"
    left, right = (
        converted(converted(v, type), f"unsigned {type}".replace("unsigned int", "unsigned")) for v in (a, b)
    )
    return converted(infix(left, sign, right, "", precedence), type)


def _bool_binary(op: BinaryOp, a: CppValue, b: CppValue) -> CppValue:
    match op:
        case BinaryOp.MIN | BinaryOp.MUL:
            return infix(a, "&&", b, "bool", Precedence.LOGICAL_AND)
        case BinaryOp.MAX | BinaryOp.ADD:
            return infix(a, "||", b, "bool", Precedence.LOGICAL_OR)
    raise CompileError(f"{op.value} is not defined for bool")


def _float_binary(fn: EmittedFunction, expr: Binary, a: CppValue, b: CppValue) -> CppValue:
    type = compute_type(expr.dtype)
    if expr.op in _INFIX:
        return infix(a, _INFIX[expr.op][0], b, type, _INFIX[expr.op][1])
    match expr.op:
        case BinaryOp.MIN | BinaryOp.MAX:
            return min_max(fn, expr.op, expr.dtype, a, b)
        case BinaryOp.DIV if fn.fast_math and type == "float" and _constant(expr.a) is not None:
            inverse = call(fn.use("fast_reciprocal"), type, b)
            return inverse if _constant(expr.a) == 1 else infix(a, "*", inverse, type, Precedence.MULTIPLICATIVE)
        case BinaryOp.DIV if fn.fast_math and type == "float":
            return call(fn.use("fast_divide"), type, a, b)
        case BinaryOp.DIV if type == "float" and not _is_power_of_two(expr.b):
            return call(fn.use("divide"), type, a, b)
        case BinaryOp.DIV:
            return infix(a, "/", b, type, Precedence.MULTIPLICATIVE)
        case BinaryOp.POW if _constant(expr.b) == 2:
            return infix(a, "*", a, type, Precedence.MULTIPLICATIVE)
        case BinaryOp.POW:
            return call("powf" if type == "float" else "pow", type, a, b)
    raise CompileError(f"{expr.op.value} is not defined for {expr.dtype}")


def _constant(expr: Expr) -> float | int | None:
    """Return the number that ``expr`` is, alone, broadcast or cast; None where it is no constant."""
    inner = getattr(expr, "value", None)
    if isinstance(expr, Const):
        return expr.value
    return (
        inner.value if isinstance(inner, Const) and expr.children == (inner,) and not isinstance(expr, Unary) else None
    )


def _is_power_of_two(expr: Expr) -> bool:
    """Return whether ``expr`` is a constant whose reciprocal is exact, so that a compiler multiplies by it."""
    value = _constant(expr)
    return value is not None and abs(frexp(value)[0]) == 0.5


def _divide(fn: EmittedFunction, expr: Binary, a: CppValue, b: CppValue) -> CppValue:
    """Return a quotient or remainder. Powers of two take shifts and masks, operands that are never negative take
    unsigned division, and all others a device function."""
    is_quotient = expr.op is BinaryOp.FLOORDIV
    divisor = _constant(expr.b)
    type = result_type(fn, expr, a, b) if expr.dtype.bits == 64 else compute_type(expr.dtype)
    if divisor and divisor > 0 and int(divisor) & (int(divisor) - 1) == 0:
        if is_quotient:
            shift = CppValue(str(int(divisor).bit_length() - 1), "int")
            return converted(infix(a, ">>", shift, a.type, Precedence.SHIFT), type) if divisor != 1 else a
        mask = CppValue(str(int(divisor) - 1) + ("ll" if a.type == "long long" else ""), a.type)
        return converted(infix(a, "&", mask, a.type, Precedence.BITWISE), type)
    if expr.dtype.bits >= 32 and fn.ranges.of(expr.a).low >= 0 and fn.ranges.of(expr.b).low > 0:
        is_long = "long long" in (a.type, b.type)
        unsigned = "unsigned long long" if is_long else "unsigned"
        sign = "/" if is_quotient else "%"
        quotient = infix(converted(a, unsigned), sign, converted(b, unsigned), unsigned, Precedence.MULTIPLICATIVE)
        return converted(quotient, "long long" if is_long else "int")
    name = fn.use("floor_div" if is_quotient else "floor_mod")
    of = "long long" if "long long" in (a.type, b.type) else "int"
    of = compute_type(expr.dtype) if expr.dtype.bits < 64 else of
    return call(f"{name}<{of}>", of, a, b)


def unary(fn: EmittedFunction, expr: Unary, a: CppValue) -> CppValue:
    """Return ``op a`` of the dtype of ``expr``."""
    dtype = expr.dtype
    type = compute_type(dtype)
    if expr.op is UnaryOp.NOT:
        return CppValue(f"!{a.unary}", "bool", Precedence.UNARY)
    if expr.op is UnaryOp.NEG and dtype.is_float:
        return _negated(a, type)
    if dtype.is_integer and expr.op in (UnaryOp.NEG, UnaryOp.ABS):
        return _integer_unary(fn, expr, a)
    name = _MATH.get(expr.op)
    if name is None or not dtype.is_float:
        raise CompileError(f"{expr.op.value} is not defined for {dtype}")
    if type == "float" and (expr.op is UnaryOp.EXP2 or (fn.fast_math and expr.op in _APPROXIMATE)):
        return call(fn.use(_APPROXIMATE[expr.op]), type, a)
    if expr.op is UnaryOp.SQRT and type == "float":
        return call(fn.use("root"), type, a)
    return call(name if type == "double" else f"{name}f", type, a)


def _negated(a: CppValue, type: str) -> CppValue:
    return CppValue(f"-{a.primary}", type, Precedence.UNARY)


def _integer_unary(fn: EmittedFunction, expr: Unary, a: CppValue) -> CppValue:
    dtype = expr.dtype
    if expr.op is UnaryOp.ABS and dtype.kind == "uint":
        return a
    if expr.op is UnaryOp.NEG:
        if dtype.bits == 64 and fn.ranges.of(expr).low > -(1 << 62):
            return _negated(a, a.type)
        zero = CppValue("0", "int")
        return _wrapping(zero, "-", a, dtype, Precedence.ADDITIVE)
    zero = CppValue("0", "int")
    negated = _wrapping(zero, "-", a, dtype, Precedence.ADDITIVE)
    return conditional(compare(CompareOp.LT, a, zero), negated, a, negated.type)


def cast(fn: EmittedFunction, value: CppValue, source: DType, target: DType) -> CppValue:
    """Convert ``value``. To a float it rounds to nearest even. From a float to an integer it rounds towards zero and
    saturates, and NaN gives 0. To bool it is ``value != 0``."""
    if source == target:
        return value
    if target.is_bool:
        zero = {"float": "0.0f", "double": "0.0"}.get(value.type, "0")
        return infix(value, "!=", CppValue(zero, value.type), "bool", Precedence.EQUALITY)
    if target.name == "tfloat32":
        return call(fn.use("round_to_tf32"), "float", converted(value, "float"))
    if is_half(target) or target.is_float8:
        bits = to_bits(fn, value, source, target)
        return from_bits(fn, bits, target)
    if target.name == "float32" and source.name in _BYTES_TO_FLOAT:
        return call(fn.use(_BYTES_TO_FLOAT[source.name]), "float", value)
    if target.is_float:
        return converted(value, compute_type(target))
    if source.is_float:
        return _saturated(fn, value, target)
    if target.bits == 64 and value.type != "long long":
        return value if value.type == "int" else converted(value, "int")
    return converted(value, compute_type(target))


def unclamped(value: Expr, target: DType) -> Expr:
    """Return ``value`` without bounds that a conversion from a float to an integer of up to 32 bits has anyway:
    uint8(min(max(x, 0), 255)) is uint8(x)."""
    if value.dtype.is_float and target.is_integer and target.bits < 64:
        match value:
            case Binary(op=BinaryOp.MIN | BinaryOp.MAX as op, a=a, b=b) if isinstance(bound := scalar_of(b), Const):
                low, high = target.integer_range
                if bound.value >= high if op is BinaryOp.MIN else bound.value <= low:
                    return unclamped(a, target)
    return value


def _saturated(fn: EmittedFunction, value: CppValue, target: DType) -> CppValue:
    if target.bits == 64:
        return call(fn.use("float_to_long"), "long long", value)
    if target.name == "uint8" and value.type == "float":
        return call(fn.use("float_to_byte"), compute_type(target), value)
    whole = call(fn.use("float_to_int"), "int", value)
    if target.bits == 32:
        return whole
    low, high = target.integer_range
    return converted(call("min", "int", call("max", "int", whole, str(low)), str(high)), compute_type(target))


def to_bits(fn: EmittedFunction, value: CppValue, source: DType, target: DType) -> CppValue:
    """Return the bits of a number that is rounded, once, to a float of 16 bits. Raises CompileError for one of 8, to
    which nothing is rounded."""
    if target.is_float8:
        raise CompileError(f"a value is rounded to {target}, which can only be moved")
    name = fn.use("float_to_half" if target.name == "float16" else "float_to_bfloat")
    if source.name == "float64":
        value = call(fn.use("double_to_float_odd"), "float", value)
    elif source.name in ("int32", "int64"):  # float32 could not hold them
        value = call(fn.use("double_to_float_odd"), "float", converted(value, "double"))
    elif not source.is_float:
        value = cast(fn, value, source, float32)
    return call(name, "unsigned short", value)


def from_bits(fn: EmittedFunction, bits: CppValue, dtype: DType) -> CppValue:
    """Return the float32 that the bits of a float of 16 or 8 bits stand for."""
    return call(fn.use(_FROM_BITS[dtype.name]), "float", bits)
