"""Maps the IR's element types to those of CUDA C++: the type in memory, and the type that is computed with."""

import struct

import numpy as np

from ....core.dtypes import DType
from .text import CppValue, Precedence

_STORED = {
    "float64": "double",
    "float32": "float",
    "float16": "unsigned short",
    "bfloat16": "unsigned short",
    "int64": "long long",
    "int32": "int",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "unsigned char",
    "float8_e4m3fn": "unsigned char",
    "float8_e5m2": "unsigned char",
    "tfloat32": "float",
}
_COMPUTED = {"float16": "float", "bfloat16": "float", "float8_e4m3fn": "float", "float8_e5m2": "float", "bool": "bool"}
INT32 = (-(1 << 31), (1 << 31) - 1)
"""These are the lowest and the highest ``int``."""

VECTOR_TYPES = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}
"""It maps the bytes of one access to the C++ type that moves them in one instruction."""


def storage_type(dtype: DType) -> str:
    """Return the C++ type of one element in memory; floats of 16 and 8 bits are kept as their bits."""
    return _STORED[dtype.name]


def compute_type(dtype: DType) -> str:
    """Return the C++ type that values of ``dtype`` are computed with."""
    return _COMPUTED.get(dtype.name) or _STORED[dtype.name]


def is_half(dtype: DType) -> bool:
    """Return whether ``dtype`` is one of the floats of 16 bits."""
    return dtype.is_float and dtype.bits == 16


def half_name(dtype: DType) -> str:
    """Return what device functions of the prelude call a float of 16 bits."""
    return "half" if dtype.name == "float16" else "bfloat"


def literal(value: int | float | bool, dtype: DType) -> CppValue:
    """Return a literal of ``value``, rounded to ``dtype``."""
    if dtype.is_bool:
        return CppValue("true" if value else "false", "bool")
    if not dtype.is_float:
        return _integer(int(value), dtype)
    rounded = float(np.array(value, np.float64).astype(dtype.numpy).astype(np.float64))
    if dtype.bits == 64:
        if rounded in (float("inf"), float("-inf")):
            bits = struct.unpack("<Q", struct.pack("<d", rounded))[0]
            return CppValue(f"__longlong_as_double(0x{bits:016x}ll)", "double")
        return _signed(repr(rounded), "double")
    if rounded in (float("inf"), float("-inf")):
        return CppValue(f"__int_as_float({'0x7f800000' if rounded > 0 else '(int)0xff800000'})", "float")
    return _signed(f"{np.float32(rounded)!s}".removesuffix("f") + "f", "float")


def _signed(text: str, type: str) -> CppValue:
    if "." not in text and "e" not in text:
        text = text.replace("f", "") + ".0" + ("f" if type == "float" else "")
    return CppValue(text, type, Precedence.UNARY if text.startswith("-") else Precedence.PRIMARY)


def _integer(value: int, dtype: DType) -> CppValue:
    if dtype.bits == 64 and not INT32[0] < value <= INT32[1]:
        text = f"(-{-(value + 1)}ll - 1)" if value < 0 else f"{value}ll"
        return CppValue(text, "long long")
    if value == INT32[0]:
        return CppValue(f"(-{-(value + 1)} - 1)", "int")
    return CppValue(str(value), "int", Precedence.UNARY if value < 0 else Precedence.PRIMARY)


def bits_of(value: float, dtype: DType) -> int:
    """Return the bits of ``value``, rounded to a float of 16 or 8 bits."""
    return int(np.array(value, np.float64).astype(dtype.numpy).view(f"u{dtype.bytes}"))
