"""Writes the operators of the IR on LLVM values. Integers wrap and divide towards minus infinity; floats keep NaN."""

from ...core.dtypes import DType
from ...core.errors import CompileError
from ...ir.expr import BinaryOp, CompareOp, LogicOp, UnaryOp
from .math import call_math, call_power
from .values import LlvmValue, constant
from .writer import CONTRACT, FunctionWriter

_COMPARE = {
    CompareOp.LT: ("olt", "slt", "ult"),
    CompareOp.LE: ("ole", "sle", "ule"),
    CompareOp.GT: ("ogt", "sgt", "ugt"),
    CompareOp.GE: ("oge", "sge", "uge"),
    CompareOp.EQ: ("oeq", "eq", "eq"),
    CompareOp.NE: ("une", "ne", "ne"),
}
_PLAIN = {BinaryOp.ADD: "add", BinaryOp.SUB: "sub", BinaryOp.MUL: "mul"}
_BITS = {BinaryOp.BIT_AND: "and", BinaryOp.BIT_OR: "or", BinaryOp.BIT_XOR: "xor"}


def compare(w: FunctionWriter, op: CompareOp, a: LlvmValue, b: LlvmValue, dtype: DType) -> LlvmValue:
    """Compare two values; ``dtype`` is that of the operands."""
    column = 0 if dtype.is_float else 1 if dtype.kind == "int" else 2
    return w.compare(_COMPARE[op][column], a, b)


def logic(w: FunctionWriter, op: LogicOp, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    return w.op(op.value, a, b)


def binary(
    w: FunctionWriter, op: BinaryOp, a: LlvmValue, b: LlvmValue, dtype: DType, *, positive: bool = False
) -> LlvmValue:
    """Write ``a op b``. ``positive`` says of an index division that ``a >= 0`` and ``b > 0`` are known."""
    if dtype.is_float:
        return _float_binary(w, op, a, b, dtype)
    if dtype.is_bool:
        return _bool_binary(w, op, a, b)
    if op in _PLAIN:
        return w.op(_PLAIN[op], a, b)
    if op in _BITS:
        return w.op(_BITS[op], a, b)
    if op in (BinaryOp.SHL, BinaryOp.SHR):
        return _shift(w, op, a, b, dtype)
    if op in (BinaryOp.MIN, BinaryOp.MAX):
        return w.intrinsic(f"{'u' if dtype.kind == 'uint' else 's'}{op.value}", a, b)
    if op in (BinaryOp.FLOORDIV, BinaryOp.MOD):
        return _divide(w, op, a, b, dtype, positive)
    raise CompileError(f"{op.value} is not defined for {dtype}")


def unary(w: FunctionWriter, op: UnaryOp, a: LlvmValue, dtype: DType) -> LlvmValue:
    """Write an operation on one operand, a scalar or a vector of ``dtype``; return its result."""
    if op is UnaryOp.NOT:
        return w.op("xor", a, w.number(1, a))
    if op is UnaryOp.NEG:
        return w.negate(a) if a.is_float else w.sub(w.number(0, a), a)
    if op is UnaryOp.ABS:
        return w.absolute(a) if a.is_float else _integer_absolute(w, a, dtype)
    if not a.is_float:
        raise CompileError(f"{op.value} is not defined for {dtype}")
    if op in (UnaryOp.SQRT, UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.RINT):
        return w.intrinsic(op.value, a)
    if op is UnaryOp.RSQRT:
        return w.div(w.number(1.0, a), w.intrinsic("sqrt", a))
    return call_math(w, op, a)


def reduce_lanes(w: FunctionWriter, op: BinaryOp, value: LlvmValue, dtype: DType) -> LlvmValue:
    """Combine all lanes of ``value`` to one, in an order that suits the machine."""
    if value.lanes == 1:
        return value
    if dtype.is_float and op in (BinaryOp.ADD, BinaryOp.MUL):
        name, start = ("fadd", -0.0) if op is BinaryOp.ADD else ("fmul", 1.0)
        full = f"llvm.vector.reduce.{name}.{value.suffix}"
        w.module.declare(f"declare {value.element} @{full}({value.element}, {value.type})")
        return w.call(full, [constant(start, value.element), value], value.element, flags="reassoc nsz")
    names = {BinaryOp.ADD: "add", BinaryOp.MUL: "mul", BinaryOp.MIN: "min", BinaryOp.MAX: "max"}
    if op not in names:
        raise CompileError(f"lanes cannot be combined by {op.value}")
    if dtype.is_bool:
        name = "and" if op in (BinaryOp.MIN, BinaryOp.MUL) else "or"
    elif dtype.is_float:
        name = f"f{names[op]}imum"
    else:
        sign = "" if op in (BinaryOp.ADD, BinaryOp.MUL) else "u" if dtype.kind == "uint" else "s"
        name = sign + names[op]
    full = f"llvm.vector.reduce.{name}.{value.suffix}"
    w.module.declare(f"declare {value.element} @{full}({value.type})")
    return w.call(full, [value], value.element, flags="nsz" if dtype.is_float else "")


def _float_binary(w: FunctionWriter, op: BinaryOp, a: LlvmValue, b: LlvmValue, dtype: DType) -> LlvmValue:
    match op:
        case BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL:
            return w.op(f"f{_PLAIN[op]}", a, b, CONTRACT)
        case BinaryOp.DIV:
            return w.op("fdiv", a, b, "nsz arcp contract")
        case BinaryOp.MIN | BinaryOp.MAX:  # A NaN in either operand is the result, as in NumPy.
            return w.intrinsic(f"{op.value}imum", a, b, flags="nsz")
        case BinaryOp.POW:
            return call_power(w, a, b)
    raise CompileError(f"{op.value} is not defined for {dtype}")


def _shift(w: FunctionWriter, op: BinaryOp, a: LlvmValue, b: LlvmValue, dtype: DType) -> LlvmValue:
    """Write a shift. LLVM has none by all bits or more: what that gives is written out."""
    if op is BinaryOp.SHR and dtype.kind == "int":
        return w.op("ashr", a, w.intrinsic("umin", b, w.number(dtype.bits - 1, b)))
    shifted = w.op("shl" if op is BinaryOp.SHL else "lshr", a, b)
    return w.select(w.compare("ult", b, w.number(dtype.bits, b)), shifted, w.number(0, a))


def _bool_binary(w: FunctionWriter, op: BinaryOp, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    match op:
        case BinaryOp.MIN | BinaryOp.MUL:
            return w.op("and", a, b)
        case BinaryOp.MAX | BinaryOp.ADD:
            return w.op("or", a, b)
    raise CompileError(f"{op.value} is not defined for bool")


def _divide(w: FunctionWriter, op: BinaryOp, a: LlvmValue, b: LlvmValue, dtype: DType, positive: bool) -> LlvmValue:
    """Write a floor division or its remainder. Both are 0 for a division by zero, as in NumPy. The lowest value
    divided by -1 wraps."""
    name = "div" if op is BinaryOp.FLOORDIV else "rem"
    known = _constant_of(b)
    if positive and known:
        return w.op(f"u{name}", a, b)
    if dtype.kind == "uint":
        if known:
            return w.op(f"u{name}", a, b)
        nought = w.compare("eq", b, w.number(0, b))
        result = w.op(f"u{name}", a, w.select(nought, w.number(1, b), b))
        return w.select(nought, w.number(0, b), result)
    if known and known > 0 and known & (known - 1) == 0:
        if op is BinaryOp.MOD:
            return w.op("and", a, w.number(known - 1, a))
        return w.op("ashr", a, w.number(known.bit_length() - 1, a))
    zero = None
    safe = b
    if known in (None, 0, -1):  # sdiv traps here: divide by 1, then select the right result.
        zero = w.compare("eq", b, w.number(0, b))
        minus = w.compare("eq", b, w.number(-1, b))
        safe = w.select(w.op("or", zero, minus), w.number(1, b), b)
    quotient, rest = w.op("sdiv", a, safe), w.op("srem", a, safe)
    signs = w.compare("slt", w.op("xor", rest, safe), w.number(0, a))
    wrong = w.op("and", w.compare("ne", rest, w.number(0, a)), signs)
    if op is BinaryOp.MOD:
        result = w.select(wrong, w.add(rest, safe), rest)
    else:
        result = w.select(wrong, w.sub(quotient, w.number(1, a)), quotient)
        if zero is not None:
            result = w.select(w.compare("eq", b, w.number(-1, b)), w.sub(w.number(0, a), a), result)
    return result if zero is None else w.select(zero, w.number(0, a), result)


def _constant_of(value: LlvmValue) -> int | None:
    """Return the number that a scalar or splat integer constant holds, and None for any other value."""
    text = value.text
    if text.startswith("splat ("):
        text = text.removeprefix("splat (").removesuffix(")").split()[-1]
    return int(text) if text.lstrip("-").isdigit() else None


def _integer_absolute(w: FunctionWriter, a: LlvmValue, dtype: DType) -> LlvmValue:
    if dtype.kind == "uint":
        return a
    full = f"llvm.abs.{a.suffix}"
    w.module.declare(f"declare {a.type} @{full}({a.type}, i1)")
    return w.call(full, [a, constant(False, "i1")], a.element, a.lanes)
