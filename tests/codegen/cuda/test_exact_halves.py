"""Arithmetic on pairs of float16 in place of float32 that is rounded: it gives the same, and takes no conversion."""

import re

import numpy as np
from numpy.typing import NDArray

from tests.schedule.gpu.test_skinny_mixed import CASES
from tests.schedule.gpu.tiles import H200
from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.prelude.half import HALF
from tilewright.codegen.lowering import finish
from tilewright.schedule.gpu.skinny.mixed_space import CUDA_SKINNY_MIXED as SKETCH


def _evaluated(function: str, a: int, b: int) -> NDArray[np.float16]:
    """Return the two float16 numbers that a function of the prelude gives. Its operators are those of Python."""
    found = re.search(r"return (.*);", HALF[function].text)
    assert found is not None
    word = eval(re.sub(r"(0x[0-9a-f]+)u", r"\1", found[1]), {"a": a & 0xFFFFFFFF, "b": b & 0xFFFFFFFF})
    return np.array([word & 0xFFFFFFFF], np.uint32).view(np.float16)


def test_whole_numbers_are_the_last_bits_of_float16() -> None:
    for a, b in ((0, 1023), (15, 0), (255, 254), (512, 7)):
        np.testing.assert_array_equal(_evaluated("pair_of_whole", a, b), [1024 + a, 1024 + b])
    for a in range(-128, 128):
        np.testing.assert_array_equal(_evaluated("pair_of_bytes", a ^ 0x80, 5 ^ 0x80), [1152 + a, 1157])


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


def test_weights_take_no_conversion() -> None:
    nibbles, floats = _instructions("nibbles"), _instructions("floats of 8 bits")
    assert nibbles["HMUL2"] >= 16 and not any(name.startswith(("I2F", "F2I")) for name in nibbles)
    # one conversion for the two elements of each of the fragments' registers
    assert 0 < floats["F2FP.F16.E4M3.UNPACK_B"] <= 4 * floats["HMMA.16816.F32"]
