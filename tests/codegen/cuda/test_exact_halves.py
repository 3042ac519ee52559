"""Arithmetic on pairs of floats of 16 bits in place of float32 that is rounded: it gives the same, and takes no
conversion."""

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.schedule.gpu.test_skinny_mixed import CASES
from tests.schedule.gpu.tiles import H200
from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.prelude.half import HALF
from tilewright.codegen.lowering import finish
from tilewright.core.dtypes import DType, bfloat16, float16
from tilewright.schedule.gpu.skinny.mixed_space import CUDA_SKINNY_MIXED as SKETCH


def _evaluated(function: str, a: int, b: int, dtype: DType = float16) -> NDArray[Any]:
    """Return the two numbers that a function of the prelude gives. Its operators are those of Python."""
    found = re.search(r"return (.*);", HALF[function].text)
    assert found is not None
    word = eval(re.sub(r"(0x[0-9a-f]+)u", r"\1", found[1]), {"a": a & 0xFFFFFFFF, "b": b & 0xFFFFFFFF})
    return np.array([word & 0xFFFFFFFF], np.uint32).view(dtype.numpy)


def test_whole_numbers_are_the_last_bits_of_float16() -> None:
    for a, b in ((0, 1023), (15, 0), (255, 254), (512, 7)):
        np.testing.assert_array_equal(_evaluated("half_pair_of_whole", a, b), [1024 + a, 1024 + b])
    for a in range(-128, 128):
        np.testing.assert_array_equal(_evaluated("pair_of_bytes", a ^ 0x80, 5 ^ 0x80), [1152 + a, 1157])


def test_whole_numbers_are_the_last_bits_of_bfloat16() -> None:
    for a, b in ((0, 127), (15, 0), (63, 64)):
        np.testing.assert_array_equal(_evaluated("bfloat_pair_of_whole", a, b, bfloat16), [128 + a, 128 + b])


def test_a_product_of_a_whole_number_and_a_bfloat16_is_rounded_once_either_way() -> None:
    """Those of subnormal numbers, too: float32 holds all of them, as float64 does."""
    scales = np.arange(1 << 16).astype(np.uint16).view(bfloat16.numpy)
    with np.errstate(all="ignore"):
        for number in (-8, -7, 1, 5, 7, 15):
            exact, product = scales.astype(np.float64) * number, scales.astype(np.float32) * np.float32(number)
            large = np.abs(exact) > np.finfo(np.float32).max
            np.testing.assert_array_equal(product, np.where(large, np.copysign(np.inf, exact), exact))


def test_a_product_of_float16_is_rounded_once_either_way() -> None:
    """Those that end among subnormal numbers, too. float64 holds the exact product."""
    bits = np.random.default_rng(0).integers(0, 1 << 16, (2, 200_000)).astype(np.uint16)
    a, b = bits.view(np.float16)
    with np.errstate(all="ignore"):
        through_float32 = (a.astype(np.float32) * b.astype(np.float32)).astype(np.float16)
        np.testing.assert_array_equal(through_float32, (a.astype(np.float64) * b.astype(np.float64)).astype(np.float16))


def _instructions(case: str) -> dict[str, int]:
    """Return how often each instruction is in a kernel of ``CASES``."""
    backend, workload = backend_for(H200), CASES[case]
    kernel = finish(SKETCH.lower(workload, H200, SKETCH.space(workload, H200).schedule(0)), H200)
    names = re.findall(r"\b([A-Z][A-Z0-9_.]+)\b", backend.assembly(backend.emit(kernel, H200), H200))
    return {name: names.count(name) for name in set(names)}


@pytest.mark.parametrize(("case", "multiply"), [("nibbles", "HMUL2"), ("nibbles in bfloat16", "HMUL2.BF16_V2")])
def test_nibbles_take_no_conversion(case: str, multiply: str) -> None:
    found = _instructions(case)
    assert found[multiply] >= 16 and not any(name.startswith(("I2F", "F2I")) for name in found)
    assert sum(n for name, n in found.items() if name.startswith("F2FP")) < 8  # results are rounded


def test_floats_of_8_bits_are_converted_two_at_a_time() -> None:
    floats = _instructions("floats of 8 bits")
    # one conversion for the two elements of each of the fragments' registers
    assert 0 < floats["F2FP.F16.E4M3.UNPACK_B"] <= 4 * floats["HMMA.16816.F32"]
