"""Tensor maps describe a tensor, and the boxes that TMA copies of it, to the copy engine."""

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...codegen.backend import KernelParameter, TensorMap
from .driver import attribute, call, error_of

BYTES, ALIGNMENT_BYTES = 128, 64
"""The size and alignment of a tensor map in bytes (CUDA Driver API, "Tensor Map Object Management")."""
_SINCE = 12_000


@functools.lru_cache(maxsize=1024)
def encode(described: TensorMap, parameter: KernelParameter, address: int) -> bytes:
    """Return the tensor map of ``parameter`` at ``address``, as a device function is given it. Elements outside are
    zeros.

    Raises DeviceFault where the driver refuses it.
    """
    shape, size = parameter.shape, parameter.dtype.bytes
    strides = [size]
    for extent in reversed(shape):
        strides.append(strides[-1] * extent)
    buffer = ctypes.create_string_buffer(BYTES + ALIGNMENT_BYTES)
    aligned = -(-ctypes.addressof(buffer) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    status = _function()(
        aligned,
        _constant(f"DataType.CU_TENSOR_MAP_DATA_TYPE_UINT{8 * size}"),
        len(shape),
        address,
        _array(ctypes.c_uint64, shape[::-1]),
        _array(ctypes.c_uint64, strides[1:-1]),
        _array(ctypes.c_uint32, described.box[::-1]),
        _array(ctypes.c_uint32, [1] * len(shape)),
        _constant("Interleave.CU_TENSOR_MAP_INTERLEAVE_NONE"),
        _constant(f"Swizzle.CU_TENSOR_MAP_SWIZZLE_{'128B' if described.swizzle_128b else 'NONE'}"),
        _constant(f"L2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_{described.l2_promotion_bytes}B"),
        _constant("FloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"),
    )
    if status:
        raise error_of(status, f"the tensor map of {parameter.name} in boxes of {list(described.box)}")
    return ctypes.string_at(aligned, BYTES)


@functools.cache
def _function() -> Callable[..., int]:
    """Return ``cuTensorMapEncodeTiled``. It wants the map at a multiple of 64 bytes, which the bindings do not
    ensure."""
    number, pointer = ctypes.c_int, ctypes.c_void_p
    prototype = ctypes.CFUNCTYPE(
        number, pointer, number, ctypes.c_uint32, pointer, pointer, pointer, pointer, pointer, *[number] * 4
    )
    address, _ = call("cuGetProcAddress", b"cuTensorMapEncodeTiled", _SINCE, 0)
    return prototype(int(address))


def _constant(name: str) -> int:
    return int(attribute(f"CUtensorMap{name}"))


def _array(type: Any, values: Sequence[int]) -> Any:
    return (type * max(len(values), 1))(*values)
