"""Descriptors of ``tcgen05``, read back through the fields that CUTLASS gives them (cute/arch/mma_sm100_desc.hpp:
``SmemDescriptor``, ``InstrDescriptor``, ``InstrDescriptorBlockScaled``)."""

from ctypes import LittleEndianStructure, c_uint32, c_uint64, sizeof

import pytest

from tilewright.codegen.cuda.tcgen05_descriptors import (
    block_scaled_descriptor,
    instruction_descriptor,
    matrix_descriptor,
    scales_descriptor,
)
from tilewright.core.dtypes import float8_e4m3fn, float8_e5m2, uint8
from tilewright.ir.gpu.tcgen05 import BLOCK_SCALED_ATOMS, TCGEN05_ATOMS


class _Matrix(LittleEndianStructure):
    _fields_ = (
        ("address", c_uint64, 14),
        ("_0", c_uint64, 2),
        ("leading", c_uint64, 14),
        ("_1", c_uint64, 2),
        ("stride", c_uint64, 14),
        ("version", c_uint64, 2),
        ("_2", c_uint64, 1),
        ("base_offset", c_uint64, 3),
        ("leading_mode", c_uint64, 1),
        ("_3", c_uint64, 8),
        ("layout", c_uint64, 3),
    )


class _Instruction(LittleEndianStructure):
    _fields_ = (
        ("sparse_id", c_uint32, 2),
        ("sparse", c_uint32, 1),
        ("saturate", c_uint32, 1),
        ("c", c_uint32, 2),
        ("_0", c_uint32, 1),
        ("a", c_uint32, 3),
        ("b", c_uint32, 3),
        ("negated", c_uint32, 2),
        ("a_major", c_uint32, 1),
        ("b_major", c_uint32, 1),
        ("n", c_uint32, 6),
        ("_1", c_uint32, 1),
        ("m", c_uint32, 5),
        ("_2", c_uint32, 1),
        ("shift", c_uint32, 2),
    )


class _BlockScaled(LittleEndianStructure):
    _fields_ = (
        ("sparse_id", c_uint32, 2),
        ("sparse", c_uint32, 1),
        ("_0", c_uint32, 1),
        ("b_scale", c_uint32, 2),
        ("_1", c_uint32, 1),
        ("a", c_uint32, 3),
        ("b", c_uint32, 3),
        ("negated", c_uint32, 2),
        ("a_major", c_uint32, 1),
        ("b_major", c_uint32, 1),
        ("n", c_uint32, 6),
        ("scale_format", c_uint32, 1),
        ("m", c_uint32, 5),
        ("a_scale", c_uint32, 2),
        ("k_size", c_uint32, 1),
    )


def _fields(kind: type[LittleEndianStructure], value: int) -> dict[str, int]:
    """The fields of a descriptor that are not 0."""
    read = kind.from_buffer_copy(value.to_bytes(sizeof(kind), "little"))
    return {name: getattr(read, name) for name, *_ in kind._fields_ if getattr(read, name)}


def test_matrices_have_the_swizzle_and_the_version_of_this_architecture() -> None:
    k_major = matrix_descriptor(16, 1024)
    assert _fields(_Matrix, k_major) == {"leading": 1, "stride": 64, "version": 1, "layout": 2}
    assert _fields(_Matrix, scales_descriptor()) == {"stride": 8, "version": 1}


@pytest.mark.parametrize(
    ("a", "b", "types"),
    [
        ("float16", "float16", {"c": 1}),
        ("bfloat16", "bfloat16", {"c": 1, "a": 1, "b": 1}),
        ("tfloat32", "tfloat32", {"c": 1, "a": 2, "b": 2}),
        ("float8_e4m3fn", "float8_e5m2", {"c": 1, "b": 1}),
        ("int8", "uint8", {"c": 2, "a": 1}),
    ],
)
def test_instructions_name_their_types_and_their_shape(a: str, b: str, types: dict[str, int]) -> None:
    made = instruction_descriptor(TCGEN05_ATOMS[a, b], 128, 256, False, False)
    assert _fields(_Instruction, made) == {**types, "n": 32, "m": 8}


def test_operands_that_are_mn_major_say_so() -> None:
    made = instruction_descriptor(TCGEN05_ATOMS["float16", "float16"], 64, 8, True, True)
    assert _fields(_Instruction, made) == {"c": 1, "a_major": 1, "b_major": 1, "n": 1, "m": 4}


def test_block_scaled_instructions_name_the_format_of_their_scales() -> None:
    mxfp8 = block_scaled_descriptor(BLOCK_SCALED_ATOMS["mxfp8"], 128, float8_e5m2, float8_e4m3fn)
    assert _fields(_BlockScaled, mxfp8) == {"a": 1, "n": 16, "scale_format": 1, "m": 8}
    nvfp4 = block_scaled_descriptor(BLOCK_SCALED_ATOMS["nvfp4"], 64, uint8, uint8)
    assert _fields(_BlockScaled, nvfp4) == {"a": 1, "b": 1, "n": 8, "m": 8}
