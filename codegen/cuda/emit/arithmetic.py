"""The IR's operators in CUDA C++: integers that wrap and divide towards minus infinity, floats that keep NaN.

Functions of float32 are CUDA's accurate ones. Where every output of a kernel is a 16-bit float, an error of some units
in the last place of float32 is far below the final rounding, and cheap ones stand in (``Function.approximate``):
exp (``ex2.approx``), division (``div.full``, 2 units; of constants ``rcp.approx``), tanh (a series near 0, else by
exp), sqrt (``sqrt.approx``).
``tanh.approx`` itself, with its error of 2^-11, is not used: it is as large as the rounding of float16.
"""

from ....core.dtypes import DType
from ....core.errors import CompileError
from ....ir.expr import Binary, BinaryOp, CompareOp, Const, Expr, LogicOp, Unary, UnaryOp
from .function import Function
from .text import Level, Value, call, converted, infix
from .types import computed, is_half

_PLAIN = {
    BinaryOp.ADD: ("+", Level.SUM),
    BinaryOp.SUB: ("-", Level.SUM),
    BinaryOp.MUL: ("*", Level.PRODUCT),
}
_COMPARE = {
    CompareOp.LT: ("<", Level.ORDER),
    CompareOp.LE: ("<=", Level.ORDER),
    CompareOp.GT: (">", Level.ORDER),
    CompareOp.GE: (">=", Level.ORDER),
    CompareOp.EQ: ("==", Level.EQUALITY),
    CompareOp.NE: ("!=", Level.EQUALITY),
}
_MATH = {
    UnaryOp.EXP: "exp",
    UnaryOp.LOG: "log",
    UnaryOp.TANH: "tanh",
    UnaryOp.ERF: "erf",
    UnaryOp.SQRT: "sqrt",
    UnaryOp.RSQRT: "rsqrt",
    UnaryOp.SIN: "sin",
    UnaryOp.COS: "cos",
    UnaryOp.FLOOR: "floor",
    UnaryOp.CEIL: "ceil",
    UnaryOp.ABS: "fabs",
}
_APPROXIMATE = {UnaryOp.EXP: "fast_exp", UnaryOp.TANH: "fast_tanh", UnaryOp.SQRT: "fast_sqrt"}
MATH_NAMES = frozenset(f"{name}{kind}" for name in (*_MATH.values(), "pow") for kind in ("", "f"))
"""Names of functions of CUDA that may be called."""


def compare(op: CompareOp, a: Value, b: Value) -> Value:
    return infix(a, _COMPARE[op][0], b, "bool", _COMPARE[op][1])


def logic(op: LogicOp, a: Value, b: Value) -> Value:
    return infix(a, "&&", b, "bool", Level.AND) if op is LogicOp.AND else infix(a, "||", b, "bool", Level.OR)


def binary(fn: Function, expr: Binary, a: Value, b: Value) -> Value:
    """``a op b`` of the dtype of ``expr``."""
    dtype = expr.dtype
    if dtype.is_float:
        return _float_binary(fn, expr, a, b)
    if dtype.is_bool:
        return _bool_binary(expr.op, a, b)
    if expr.op in (BinaryOp.FLOORDIV, BinaryOp.MOD):
        return _divide(fn, expr, a, b)
    if expr.op in (BinaryOp.MIN, BinaryOp.MAX):
        return extreme(fn, expr.op, dtype, a, b)
    return _integer_binary(fn, expr, a, b)


def extreme(fn: Function, op: BinaryOp, dtype: DType, a: Value, b: Value) -> Value:
    """The smaller or the larger of two numbers; a NaN wins."""
    if dtype.is_float:
        return call(fn.use(f"{op.value}_nan"), computed(dtype), a, b)
    if dtype.is_bool:
        return _bool_binary(op, a, b)
    type = "long long" if "long long" in (a.type, b.type) else "int"
    return call(op.value, type, converted(a, type), converted(b, type))


def plain(fn: Function, op: BinaryOp, dtype: DType, a: Value, b: Value) -> Value:
    """``a op b`` of two values that are no longer expressions of the IR; one of add, mul, min and max."""
    if op in (BinaryOp.MIN, BinaryOp.MAX):
        return extreme(fn, op, dtype, a, b)
    if dtype.is_bool:
        return _bool_binary(op, a, b)
    sign, level = _PLAIN[op]
    return infix(a, sign, b, a.type, level) if dtype.is_float else _wrapping(a, sign, b, dtype, level)


def _integer_binary(fn: Function, expr: Binary, a: Value, b: Value) -> Value:
    if expr.op not in _PLAIN:
        raise CompileError(f"{expr.op.value} is not defined for {expr.dtype}")
    sign, level = _PLAIN[expr.op]
    if expr.dtype.bits < 32:
        result = infix(a, sign, b, "int", level)
        return converted(result, computed(expr.dtype))
    if not fn.ranges.exact(expr):
        return _wrapping(a, sign, b, expr.dtype, level)
    type = result_type(fn, expr, a, b)
    if type == "long long" and "long long" not in (a.type, b.type):
        a = converted(a, type)
    return infix(a, sign, b, type, level)


def result_type(fn: Function, expr: Expr, *operands: Value) -> str:
    """``int`` for an index whose values fit, computed of ``int``; else the type of its dtype."""
    if expr.dtype.bits < 64:
        return computed(expr.dtype)
    bounds = fn.ranges.of(expr)
    fits = -(1 << 31) <= bounds.low and bounds.high < 1 << 31
    return "int" if fits and all(v.type != "long long" for v in operands) else "long long"


def _wrapping(a: Value, sign: str, b: Value, dtype: DType, level: Level) -> Value:
    """Signed arithmetic that overflows is undefined in C++, unsigned wraps."""
    if dtype.bits < 32:
        return converted(infix(a, sign, b, "int", level), computed(dtype))
    type = "long long" if dtype.bits == 64 else "int"
    left, right = (
        converted(converted(v, type), f"unsigned {type}".replace("unsigned int", "unsigned")) for v in (a, b)
    )
    return converted(infix(left, sign, right, "", level), type)


def _bool_binary(op: BinaryOp, a: Value, b: Value) -> Value:
    match op:
        case BinaryOp.MIN | BinaryOp.MUL:
            return infix(a, "&&", b, "bool", Level.AND)
        case BinaryOp.MAX | BinaryOp.ADD:
            return infix(a, "||", b, "bool", Level.OR)
    raise CompileError(f"{op.value} is not defined for bool")


def _float_binary(fn: Function, expr: Binary, a: Value, b: Value) -> Value:
    type = computed(expr.dtype)
    if expr.op in _PLAIN:
        return infix(a, _PLAIN[expr.op][0], b, type, _PLAIN[expr.op][1])
    match expr.op:
        case BinaryOp.MIN | BinaryOp.MAX:
            return extreme(fn, expr.op, expr.dtype, a, b)
        case BinaryOp.DIV if fn.approximate and type == "float" and _constant(expr.a) is not None:
            inverse = call(fn.use("fast_reciprocal"), type, b)
            return inverse if _constant(expr.a) == 1 else infix(a, "*", inverse, type, Level.PRODUCT)
        case BinaryOp.DIV if fn.approximate and type == "float":
            return call(fn.use("fast_divide"), type, a, b)
        case BinaryOp.DIV:
            return infix(a, "/", b, type, Level.PRODUCT)
        case BinaryOp.POW if _constant(expr.b) == 2:
            return infix(a, "*", a, type, Level.PRODUCT)
        case BinaryOp.POW:
            return call("powf" if type == "float" else "pow", type, a, b)
    raise CompileError(f"{expr.op.value} is not defined for {expr.dtype}")


def _constant(expr: Expr) -> float | int | None:
    inner = getattr(expr, "value", None)
    if isinstance(expr, Const):
        return expr.value
    return (
        inner.value if isinstance(inner, Const) and expr.children == (inner,) and not isinstance(expr, Unary) else None
    )


def _divide(fn: Function, expr: Binary, a: Value, b: Value) -> Value:
    """Shifts and masks for powers of two, unsigned division where nothing is negative, else a function."""
    is_quotient = expr.op is BinaryOp.FLOORDIV
    divisor = _constant(expr.b)
    type = result_type(fn, expr, a, b) if expr.dtype.bits == 64 else computed(expr.dtype)
    if divisor and divisor > 0 and int(divisor) & (int(divisor) - 1) == 0:
        if is_quotient:
            shift = Value(str(int(divisor).bit_length() - 1), "int")
            return converted(infix(a, ">>", shift, a.type, Level.SHIFT), type) if divisor != 1 else a
        mask = Value(str(int(divisor) - 1) + ("ll" if a.type == "long long" else ""), a.type)
        return converted(infix(a, "&", mask, a.type, Level.BITS), type)
    if expr.dtype.bits >= 32 and fn.ranges.of(expr.a).low >= 0 and fn.ranges.of(expr.b).low > 0:
        wide = "long long" in (a.type, b.type)
        unsigned = "unsigned long long" if wide else "unsigned"
        sign = "/" if is_quotient else "%"
        quotient = infix(converted(a, unsigned), sign, converted(b, unsigned), unsigned, Level.PRODUCT)
        return converted(quotient, "long long" if wide else "int")
    name = fn.use("floor_div" if is_quotient else "floor_mod")
    of = "long long" if "long long" in (a.type, b.type) else "int"
    of = computed(expr.dtype) if expr.dtype.bits < 64 else of
    return call(f"{name}<{of}>", of, a, b)


def unary(fn: Function, expr: Unary, a: Value) -> Value:
    dtype = expr.dtype
    type = computed(dtype)
    if expr.op is UnaryOp.NOT:
        return Value(f"!{a.unary}", "bool", Level.UNARY)
    if expr.op is UnaryOp.NEG and dtype.is_float:
        return _negated(a, type)
    if dtype.is_integer and expr.op in (UnaryOp.NEG, UnaryOp.ABS):
        return _integer_unary(fn, expr, a)
    name = _MATH.get(expr.op)
    if name is None or not dtype.is_float:
        raise CompileError(f"{expr.op.value} is not defined for {dtype}")
    if fn.approximate and type == "float" and expr.op in _APPROXIMATE:
        return call(fn.use(_APPROXIMATE[expr.op]), type, a)
    return call(name if type == "double" else f"{name}f", type, a)


def _negated(a: Value, type: str) -> Value:
    return Value(f"-{a.atom}", type, Level.UNARY)


def _integer_unary(fn: Function, expr: Unary, a: Value) -> Value:
    dtype = expr.dtype
    if expr.op is UnaryOp.ABS and dtype.kind == "uint":
        return a
    if expr.op is UnaryOp.NEG:
        if dtype.bits == 64 and fn.ranges.of(expr).low > -(1 << 62):
            return _negated(a, a.type)
        zero = Value("0", "int")
        return _wrapping(zero, "-", a, dtype, Level.SUM)
    lowest = Value("0", "int")
    turned = _wrapping(lowest, "-", a, dtype, Level.SUM)
    return Value(f"{compare(CompareOp.LT, a, lowest).text} ? {turned.text} : {a.text}", turned.type, Level.CHOICE)


def cast(fn: Function, value: Value, source: DType, target: DType) -> Value:
    """The IR's Cast: to float nearest-even; float to integer towards zero, saturating, NaN to 0; to bool ``!= 0``."""
    if source == target:
        return value
    if target.is_bool:
        zero = {"float": "0.0f", "double": "0.0"}.get(value.type, "0")
        return infix(value, "!=", Value(zero, value.type), "bool", Level.EQUALITY)
    if is_half(target):
        bits = to_bits(fn, value, source, target)
        return from_bits(fn, bits, target)
    if target.is_float:
        return converted(value, computed(target))
    if source.is_float:
        return _saturated(fn, value, target)
    if target.bits == 64 and value.type != "long long":
        return value if value.type == "int" else converted(value, "int")
    return converted(value, computed(target))


def _saturated(fn: Function, value: Value, target: DType) -> Value:
    if target.bits == 64:
        return call(fn.use("float_to_long"), "long long", value)
    whole = call(fn.use("float_to_int"), "int", value)
    if target.bits == 32:
        return whole
    low, high = target.integer_range
    return converted(call("min", "int", call("max", "int", whole, str(low)), str(high)), computed(target))


def to_bits(fn: Function, value: Value, source: DType, target: DType) -> Value:
    """The bits of a number rounded to a float of 16 bits, once."""
    name = fn.use("float_to_half" if target.name == "float16" else "float_to_bfloat")
    if source.name == "float64":
        value = call(fn.use("double_to_float_odd"), "float", value)
    elif source.name in ("int32", "int64"):  # float32 could not hold them
        value = call(fn.use("double_to_float_odd"), "float", converted(value, "double"))
    elif not source.is_float:
        value = converted(value, "float")
    return call(name, "unsigned short", value)


def from_bits(fn: Function, bits: Value, dtype: DType) -> Value:
    """The number that 16 bits stand for."""
    return call(fn.use("half_to_float" if dtype.name == "float16" else "bfloat_to_float"), "float", bits)
