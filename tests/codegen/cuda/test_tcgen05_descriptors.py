"""Descriptors of ``tcgen05``, read back through the fields that CUTLASS gives them (cute/arch/mma_sm100_desc.hpp:
``SmemDescriptor``, ``InstrDescriptor``, ``InstrDescriptorBlockScaled``)."""

import pytest

from tilewright.codegen.cuda.tcgen05_descriptors import (
    block_scaled_descriptor,
    instruction_descriptor,
    matrix_descriptor,
    scales_descriptor,
)
from tilewright.core.dtypes import float8_e4m3fn, float8_e5m2, uint8
from tilewright.ir.gpu.tcgen05 import BLOCK_SCALED_ATOMS, TCGEN05_ATOMS

_MATRIX = "address:14 -:2 leading:14 -:2 stride:14 version:2 -:1 base_offset:3 leading_mode:1 -:8 layout:3"
_INSTRUCTION = "sparse_id:2 sparse:1 saturate:1 c:2 -:1 a:3 b:3 negated:2 a_major:1 b_major:1 n:6 -:1 m:5 -:1 shift:2"
_BLOCK_SCALED = (
    "sparse_id:2 sparse:1 -:1 b_scale:2 -:1 a:3 b:3 negated:2 a_major:1 b_major:1 n:6 scale_format:1 m:5 a_scale:2 "
    "k_size:1"
)
"""Fields and their numbers of bits, from the lowest bit on. Bits without a name are 0."""


def _fields(layout: str, value: int) -> dict[str, int]:
    """Return the fields of a descriptor that are not 0."""
    found: dict[str, int] = {}
    for field in layout.split():
        name, _, bits = field.partition(":")
        found |= {name: value & (1 << int(bits)) - 1} if value & (1 << int(bits)) - 1 else {}
        value >>= int(bits)
    assert value == 0, "bits beyond the last field"
    return found


def test_matrices_have_the_swizzle_and_the_version_of_this_architecture() -> None:
    k_major = matrix_descriptor(16, 1024)
    assert _fields(_MATRIX, k_major) == {"leading": 1, "stride": 64, "version": 1, "layout": 2}
    assert _fields(_MATRIX, scales_descriptor()) == {"stride": 8, "version": 1}


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
    assert _fields(_INSTRUCTION, made) == {**types, "n": 32, "m": 8}


def test_operands_that_are_mn_major_say_so() -> None:
    made = instruction_descriptor(TCGEN05_ATOMS["float16", "float16"], 64, 8, True, True)
    assert _fields(_INSTRUCTION, made) == {"c": 1, "a_major": 1, "b_major": 1, "n": 1, "m": 4}


def test_block_scaled_instructions_name_the_format_of_their_scales() -> None:
    mxfp8 = block_scaled_descriptor(BLOCK_SCALED_ATOMS["mxfp8"], 128, float8_e5m2, float8_e4m3fn)
    assert _fields(_BLOCK_SCALED, mxfp8) == {"a": 1, "n": 16, "scale_format": 1, "m": 8}
    nvfp4 = block_scaled_descriptor(BLOCK_SCALED_ATOMS["nvfp4"], 64, uint8, uint8)
    assert _fields(_BLOCK_SCALED, nvfp4) == {"a": 1, "b": 1, "n": 8, "m": 8}
