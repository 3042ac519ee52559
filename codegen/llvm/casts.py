"""Writes conversions between memory and registers and between dtypes, with the roundings that the IR promises."""

from ...core.dtypes import DType
from ...core.errors import CompileError
from .values import LlvmValue, bits_constant, computed, constant
from .writer import FunctionWriter


def from_storage(w: FunctionWriter, value: LlvmValue, dtype: DType) -> LlvmValue:
    """Convert a value that was loaded to the type that is computed with."""
    if dtype.name == "float16":
        _require_float16(w)
        return w.convert("fpext", value, "float")
    if dtype.name == "bfloat16":
        return _widen_bfloat16(w, value)
    if dtype.is_float8:
        return _widen_float8(w, value, dtype)
    if dtype.is_bool:
        return w.compare("ne", value, constant(0, "i8", value.lanes))
    return value


def to_storage(w: FunctionWriter, value: LlvmValue, dtype: DType) -> LlvmValue:
    """Convert a value that will be stored to its type in memory, with rounding."""
    if dtype.name == "float16":
        _require_float16(w)
        return w.convert("fptrunc", value, "half")
    if dtype.name == "bfloat16":
        return _narrow_bfloat16(w, value)
    if dtype.is_float8:
        return _narrow_float8(w, value, dtype)
    if dtype.is_bool:
        return w.convert("zext", value, "i8")
    return value


def cast(w: FunctionWriter, value: LlvmValue, source: DType, target: DType) -> LlvmValue:
    """Write the IR's Cast. Conversions to float round to nearest, ties to even. Conversions from float to integer
    round towards zero and saturate; a NaN gives 0. Conversions to bool are ``!= 0``."""
    if source == target:
        return value
    if target.is_bool:
        return w.compare("une" if value.is_float else "ne", value, w.number(0, value))
    if target.is_float:
        return _to_float(w, value, source, target)
    if value.is_float:
        return _saturate(w, value, target)
    if source.is_bool:
        return w.convert("zext", value, computed(target))
    if target.bits <= source.bits:
        return w.convert("trunc", value, computed(target))
    return w.convert("zext" if source.kind == "uint" else "sext", value, computed(target))


def _require_float16(w: FunctionWriter) -> None:
    """Raise CompileError where the target cannot convert float16. LLVM would otherwise call functions that the
    process does not have."""
    needed = w.module.float16_extensions
    if needed and w.module.features.isdisjoint(needed):
        raise CompileError(f"float16 needs the {' or '.join(needed)} extension, which the target lacks")


def _to_float(w: FunctionWriter, value: LlvmValue, source: DType, target: DType) -> LlvmValue:
    unsigned = source.is_bool or source.kind == "uint"
    if target.bits == 16:
        if source.name in ("int32", "int64"):  # float32 cannot hold them: round once, from float64.
            value = w.convert("sitofp", value, "double")
        elif not source.is_float:
            value = w.convert("uitofp" if unsigned else "sitofp", value, "float")
        if value.element == "double":
            value = _round_to_odd(w, value)
        return from_storage(w, to_storage(w, value, target), target)
    if not source.is_float:
        return w.convert("uitofp" if unsigned else "sitofp", value, computed(target))
    return w.convert("fpext" if target.bits == 64 else "fptrunc", value, computed(target))


def _saturate(w: FunctionWriter, value: LlvmValue, target: DType) -> LlvmValue:
    element = computed(target)
    if value.lanes > 1 and target.bits <= 32:
        return _saturate_vector(w, value, target)
    result = LlvmValue("", element, value.lanes)
    name = f"llvm.fpto{'u' if target.kind == 'uint' else 's'}i.sat.{result.suffix}.{value.suffix}"
    w.module.declare(f"declare {result.type} @{name}({value.type})")
    return w.call(name, [value], element, value.lanes)


def _saturate_vector(w: FunctionWriter, value: LlvmValue, target: DType) -> LlvmValue:
    """Convert a vector to integers of at most 32 bits, by the instruction for int32. LLVM takes the intrinsic for
    vectors apart on x86-64, lane by lane."""
    signed = target.kind != "uint"
    least, most = -(1 << target.bits - 1) if signed else 0, (1 << target.bits - signed) - 1
    single = target.bits == 32 and value.element == "float"  # the greatest int32 is no float32
    low, high = w.number(float(least), value), w.number(float(most - 127 if single else most), value)
    inside = w.select(w.compare("ogt", value, low), value, low)
    inside = w.select(w.compare("olt", inside, high), inside, high)
    found = w.convert("fptosi", inside, "i32")
    if single:
        found = w.select(w.compare("ogt", value, high), w.number(most, found), found)
    found = w.select(w.compare("uno", value, value), w.number(0, found), found)
    return w.convert("trunc", found, computed(target))


def _round_to_odd(w: FunctionWriter, value: LlvmValue) -> LlvmValue:
    """Convert float64 to float32 so that a second rounding, to 16 bits, gives what one rounding would have given.

    This is rounding to odd: truncate, then set the last bit if anything was lost. Source: Boldo and Melquiond, "When
    double rounding is odd", 2005.
    """
    nearest = w.convert("fptrunc", value, "float")
    back = w.convert("fpext", nearest, "double")
    inexact = w.compare("one", back, value)
    too_far = w.compare("ogt", w.absolute(back), w.absolute(value))
    bits = w.bits(nearest)
    truncated = w.select(too_far, w.sub(bits, w.number(1, bits)), bits)
    odd = w.select(inexact, w.op("or", truncated, w.number(1, bits)), bits)
    return w.convert("bitcast", odd, "float")


def _widen_bfloat16(w: FunctionWriter, value: LlvmValue) -> LlvmValue:
    """Widen bfloat16 to float32. Its bits are the upper half of the float32 of the same value."""
    wide = w.convert("zext", value, "i32")
    return w.convert("bitcast", w.op("shl", wide, w.number(16, wide)), "float")


def _widen_float8(w: FunctionWriter, value: LlvmValue, dtype: DType) -> LlvmValue:
    """Widen a float of 8 bits to float32, by way of float16. That has the exponent of e5m2, and one bit of exponent
    more than e4m3fn, with a bias that is 8 larger."""
    _require_float16(w)
    wide = w.convert("zext", value, "i16")
    if dtype.name == "float8_e5m2":
        return w.convert("fpext", w.convert("bitcast", w.op("shl", wide, w.number(8, wide)), "half"), "float")
    sign = w.op("shl", w.op("and", wide, w.number(0x80, wide)), w.number(8, wide))
    rest = w.op("and", wide, w.number(0x7F, wide))
    bits = w.op("or", sign, w.op("shl", rest, w.number(7, wide)))
    number = w.convert("fpext", w.convert("bitcast", bits, "half"), "float")
    scaled = w.op("fmul", number, w.number(256.0, number))
    return w.select(
        w.compare("eq", rest, w.number(0x7F, wide)), bits_constant(0x7FC00000, "float", value.lanes), scaled
    )


def _narrow_float8(w: FunctionWriter, value: LlvmValue, dtype: DType) -> LlvmValue:
    """Narrow a float32 that is a number of ``dtype``: one that was loaded, since nothing is rounded to it. It is the
    inverse of ``_widen_float8``."""
    _require_float16(w)
    if dtype.name == "float8_e5m2":
        bits = w.convert("bitcast", w.convert("fptrunc", value, "half"), "i16")
        return w.convert("trunc", w.op("lshr", bits, w.number(8, bits)), "i8")
    scaled = w.op("fmul", value, w.number(2.0**-8, value))
    bits = w.convert("bitcast", w.convert("fptrunc", scaled, "half"), "i16")
    sign = w.op("and", w.op("lshr", bits, w.number(8, bits)), w.number(0x80, bits))
    rest = w.op("and", w.op("lshr", bits, w.number(7, bits)), w.number(0x7F, bits))
    rest = w.select(w.compare("uno", value, value), w.number(0x7F, rest), rest)
    return w.convert("trunc", w.op("or", sign, rest), "i8")


def _narrow_bfloat16(w: FunctionWriter, value: LlvmValue) -> LlvmValue:
    """Round float32 to bfloat16, to nearest with ties to even: add just under half of the last bit that is kept, and
    one more if that bit is odd. A NaN stays a NaN; the addition alone could turn it into an infinity."""
    bits = w.bits(value)
    upper = w.op("lshr", bits, w.number(16, bits))
    parity = w.op("and", upper, w.number(1, bits))
    rounded = w.add(bits, w.add(parity, w.number(0x7FFF, bits)))
    quiet = w.op("or", bits, w.number(0x40_0000, bits))
    return w.upper_halves(w.select(w.compare("uno", value, value), quiet, rounded))
