"""Tensor maps describe a tensor, and the boxes that TMA copies of it, to the copy engine."""

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

from ...codegen.backend import KernelParameter, TensorMap
from ...ir.buffer import Buffer
from .driver import attribute, call, error_of

BYTES, ALIGNMENT_BYTES = 128, 64
"""The size and alignment of a tensor map in bytes (CUDA Driver API, "Tensor Map Object Management")."""
_SINCE = 12_000
_SMALL_BYTES, _SMALL_FLAG, _LAST_WRONG_DRIVER = 128 << 10, 1 << 21, 13_010
"""Up to this version of the driver, im2col maps of smaller tensors than this have the flag in their second word."""
_WORDS = "<16Q"


@functools.lru_cache(maxsize=1024)
def encode(described: TensorMap, parameter: KernelParameter, address: int) -> bytes:
    """Return the tensor map of ``parameter`` at ``address``, as a device function is given it. Elements outside are
    zeros.

    Raises DeviceFault where the driver refuses it.
    """
    shape = parameter.shape if described.shape is None else described.shape
    size = parameter.dtype.bytes
    strides = Buffer("", shape, parameter.dtype).strides if described.strides is None else described.strides
    buffer = ctypes.create_string_buffer(BYTES + ALIGNMENT_BYTES)
    type = "TFLOAT32" if described.rounds_to_tf32 else f"UINT{8 * size}"
    aligned = -(-ctypes.addressof(buffer) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    tensor = (
        aligned,
        _constant(f"DataType.CU_TENSOR_MAP_DATA_TYPE_{type}"),
        len(shape),
        address,
        _array(ctypes.c_uint64, shape[::-1]),
        _array(ctypes.c_uint64, [stride * size for stride in strides[-2::-1]]),
    )
    how = (
        _constant("Interleave.CU_TENSOR_MAP_INTERLEAVE_NONE"),
        _constant(f"Swizzle.CU_TENSOR_MAP_SWIZZLE_{'128B' if described.swizzle_128b else 'NONE'}"),
        _constant(f"L2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_{described.l2_promotion_bytes}B"),
        _constant("FloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"),
    )
    window = described.im2col
    if window is None:
        box = _array(ctypes.c_uint32, described.box[::-1])
        status = _tiled()(*tensor, box, _array(ctypes.c_uint32, [1] * len(shape)), *how)
    else:
        lower = _array(ctypes.c_int32, window.lower[::-1])
        upper = _array(ctypes.c_int32, window.upper(shape[1:-1])[::-1])
        pixels, channels = described.box
        steps = _array(ctypes.c_uint32, [1, *window.strides[::-1], 1])
        status = _im2col()(*tensor, lower, upper, channels, pixels, steps, *how)
    if status:
        raise error_of(status, f"the tensor map of {parameter.name} in boxes of {list(described.box)}")
    encoded = ctypes.string_at(aligned, BYTES)
    if window is not None and parameter.bytes < _SMALL_BYTES and _driver_version() <= _LAST_WRONG_DRIVER:
        return without_small_flag(encoded)
    return encoded


def without_small_flag(encoded: bytes) -> bytes:
    """Return an im2col tensor map without a bit that drivers set by mistake for tensors under 128 KiB. CUTLASS clears
    it too."""
    first, second, *rest = struct.unpack(_WORDS, encoded)
    return struct.pack(_WORDS, first, second & ~_SMALL_FLAG, *rest)


@functools.cache
def _driver_version() -> int:
    return int(call("cuDriverGetVersion"))


@functools.cache
def _tiled() -> Callable[..., int]:
    """Return ``cuTensorMapEncodeTiled``: after the tensor it takes a box and element strides."""
    pointer = ctypes.c_void_p
    return _function(b"cuTensorMapEncodeTiled", pointer, pointer)


@functools.cache
def _im2col() -> Callable[..., int]:
    """Return ``cuTensorMapEncodeIm2col``: after the tensor it takes two corners, how many channels and pixels a box
    has, and element strides."""
    number, pointer = ctypes.c_uint32, ctypes.c_void_p
    return _function(b"cuTensorMapEncodeIm2col", pointer, pointer, number, number, pointer)


def _function(name: bytes, *box: Any) -> Callable[..., int]:
    """Return a function of the driver that encodes tensor maps, with arguments ``box`` between those for the tensor and
    those for how it is copied. It wants the map at a multiple of 64 bytes, which the bindings do not ensure."""
    number, pointer = ctypes.c_int, ctypes.c_void_p
    prototype = ctypes.CFUNCTYPE(
        number, pointer, number, ctypes.c_uint32, pointer, pointer, pointer, *box, *[number] * 4
    )
    address, _ = call("cuGetProcAddress", name, _SINCE, 0)
    return prototype(int(address))


def _constant(name: str) -> int:
    return int(attribute(f"CUtensorMap{name}"))


def _array(type: Any, values: Sequence[int]) -> Any:
    return (type * max(len(values), 1))(*values)
