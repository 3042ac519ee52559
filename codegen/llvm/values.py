"""Writes LLVM types and values as text, and says how the product's dtypes map to them.

A dtype has two LLVM types: one in memory (``storage``) and one to compute with (``computed``). Floats of 16 and 8 bits
are computed in ``float``; bool is ``i8`` in memory and ``i1`` in registers.
"""

import struct
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ...core.dtypes import DType

_STORAGE = {
    "float64": "double",
    "float32": "float",
    "float16": "half",
    "bfloat16": "i16",
    "int64": "i64",
    "int32": "i32",
    "int8": "i8",
    "uint8": "i8",
    "bool": "i8",
    "float8_e4m3fn": "i8",
    "float8_e5m2": "i8",
}
_COMPUTED = {
    **_STORAGE,
    **dict.fromkeys(("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"), "float"),
    "bool": "i1",
}
_SUFFIX = {"double": "f64", "float": "f32", "half": "f16", "ptr": "p0"}


@dataclass(frozen=True, slots=True)
class LlvmValue:
    """An SSA name or a constant of an LLVM type. A scalar has 1 in ``lanes``; a vector has more lanes of
    ``element``."""

    text: str
    element: str
    lanes: int = 1

    @property
    def type(self) -> str:
        return vector_type(self.element, self.lanes)

    @property
    def typed(self) -> str:
        """The value as an operand with its type: ``float %x``."""
        return f"{self.type} {self.text}"

    @property
    def suffix(self) -> str:
        """The suffix of overloaded intrinsics: ``f32`` or ``v16f32``."""
        return type_suffix(self.element, self.lanes)

    @property
    def is_float(self) -> bool:
        return self.element in ("double", "float", "half")


def vector_type(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def type_suffix(element: str, lanes: int) -> str:
    """Return the part of an intrinsic's name that stands for a type."""
    short = _SUFFIX.get(element, element)
    return short if lanes == 1 else f"v{lanes}{short}"


def storage(dtype: DType) -> str:
    """Return the element type in memory."""
    return _STORAGE[dtype.name]


def computed(dtype: DType) -> str:
    """Return the element type in registers."""
    return _COMPUTED[dtype.name]


def integer_of(element: str) -> str:
    """Return the integer type of the same width as a floating-point type."""
    return {"double": "i64", "float": "i32", "half": "i16"}[element]


def constant(value: float | int | bool, element: str, lanes: int = 1) -> LlvmValue:
    """Return a number as an LLVM constant. Floats are rounded to ``element`` and written exactly, in hexadecimal."""
    if element in ("float", "double"):
        number = float(np.float32(value)) if element == "float" else float(value)
        text = "0x" + struct.pack(">d", number).hex().upper()
    elif element == "i1":
        text = "true" if value else "false"
    else:
        text = str(int(value))
    return LlvmValue(text if lanes == 1 else f"splat ({element} {text})", element, lanes)


def dtype_constant(value: float | int | bool, dtype: DType) -> LlvmValue:
    """Return a number rounded to ``dtype``, as a constant of the type that is computed with."""
    if dtype.name == "float16":
        return constant(float(np.float16(value)), "float")
    if dtype.name == "bfloat16":
        return constant(float(ml_dtypes.bfloat16(value)), "float")
    if dtype.name == "uint8":
        value = int(value) - 256 if int(value) > 127 else int(value)
    return constant(value, computed(dtype))


def bits_constant(bits: int, element: str, lanes: int = 1) -> LlvmValue:
    """Return the floating-point constant of type ``element`` with the given bit pattern."""
    if element == "float":
        (value,) = struct.unpack(">f", struct.pack(">I", bits))
    else:
        (value,) = struct.unpack(">d", struct.pack(">Q", bits))
    return constant(value, element, lanes)
