"""Element types: one frozen value each, with its NumPy counterpart."""

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np

from .errors import InvalidParameter

Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. ``bits`` is its storage width (bool is stored in 8)."""

    name: str
    kind: Kind
    bits: int

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @property
    def integer_range(self) -> tuple[int, int]:
        """The least and the greatest value of an integer dtype."""
        low = -(1 << (self.bits - 1)) if self.kind == "int" else 0
        return low, low + (1 << self.bits) - 1

    @property
    def is_float8(self) -> bool:
        return self.is_float and self.bits == 8

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype with the same storage (bfloat16 and the floats of 8 bits come from ml_dtypes)."""
        found: np.dtype[np.generic] = np.dtype(_NUMPY.get(self.name, self.name))
        return found

    def __str__(self) -> str:
        return self.name


float64 = DType("float64", "float", 64)
float32 = DType("float32", "float", 32)
float16 = DType("float16", "float", 16)
bfloat16 = DType("bfloat16", "float", 16)
int64 = DType("int64", "int", 64)
int32 = DType("int32", "int", 32)
int8 = DType("int8", "int", 8)
uint8 = DType("uint8", "uint", 8)
boolean = DType("bool", "bool", 8)
float8_e4m3fn = DType("float8_e4m3fn", "float", 8)
"""4 bits of exponent, 3 of mantissa; up to 448, without infinities (OCP 8-bit Floating Point Specification)."""
float8_e5m2 = DType("float8_e5m2", "float", 8)
float4_e2m1fn = DType("float4_e2m1fn", "float", 4)
"""2 bits of exponent, 1 of mantissa; up to 6. Two lie in each byte of a tensor of uint8 (``te.packed_floats``), so that
no tensor has this dtype. It names what matrix units multiply."""
tfloat32 = DType("tfloat32", "float", 32)
"""TF32: a float32 whose mantissa has 10 bits. Kernels have it inside, tensors of workloads do not."""

_NUMPY = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "tfloat32": np.float32,
}

INDEX = int64
"""The type of loop variables and of every index."""

DTYPES: dict[str, DType] = {
    d.name: d for d in (float64, float32, float16, bfloat16, int64, int32, int8, uint8, boolean)
}
"""What expressions compute with, and computed tensors hold."""
INPUT_DTYPES: dict[str, DType] = {**DTYPES, **{d.name: d for d in (float8_e4m3fn, float8_e5m2)}}
"""What inputs hold. Floats of 8 bits are read by a cast to a wider float."""
KERNEL_DTYPES: dict[str, DType] = {**INPUT_DTYPES, tfloat32.name: tfloat32}
"""What kernels hold in workspaces."""


def dtype_named(name: str, *, field: str = "dtype") -> DType:
    """Return the dtype called ``name``; raises InvalidParameter naming the allowed ones."""
    found = INPUT_DTYPES.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidParameter(f"{name!r} is no dtype; allowed: {', '.join(INPUT_DTYPES)}", field=field)
    return found


def dtype_of_numpy(dtype: np.dtype[np.generic]) -> DType:
    """Return the DType stored as the given NumPy dtype; raises InvalidParameter when there is none."""
    return dtype_named(dtype.name)
