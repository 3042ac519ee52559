"""Floats of 4 bits, two in a byte, and powers of two in a byte: what they stand for, and who recognises them."""

from math import prod

import ml_dtypes
import numpy as np
import pytest

from tilewright.core.dtypes import float4_e2m1fn, float8_e4m3fn
from tilewright.core.errors import InvalidParameter, InvalidWorkload
from tilewright.runtime.devices import host_target
from tilewright.runtime.module import load_module
from tilewright.schedule.sketches import SKETCHES
from tilewright.te import build as te
from tilewright.te.cost import flops, minimum_bytes
from tilewright.te.data import EXPONENTS, random_inputs
from tilewright.te.key import workload_key
from tilewright.te.operators import OPERATORS
from tilewright.te.packed_floats import e2m1_of, e8m0_of, read_dtypes
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.text import workload_text
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

NVFP4 = {"m": 64, "n": 48, "k": 128, "dtype": "uint8", "scales": "e4m3", "precision": "fast_accumulation"}
MXFP4 = {**NVFP4, "scales": "e8m0"}


def _product(parameters: dict[str, object]) -> Workload:
    return OPERATORS["block_scaled_matmul"].workload(parameters)


def test_every_float_of_4_bits_in_either_half_is_what_ml_dtypes_has() -> None:
    """By the reference and by a compiled kernel, from all 256 bytes."""
    x = te.placeholder((256,), "uint8", "X")
    workload = te.workload(te.compute((512,), lambda i: te.e2m1(x[i // 2], i), "Y"))
    given = np.arange(256, dtype=np.uint8)
    codes = np.stack([given & 15, given >> 4], axis=-1).reshape(-1)
    wanted = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(reference(workload, {"X": given})["Y"], wanted)
    target = host_target("llvm")
    schedule = SKETCHES["cpu_loops"].space(workload, target).schedule(0)
    np.testing.assert_array_equal(load_module(workload, schedule, target)(given)[0], wanted)


def test_every_power_of_two_is_what_ml_dtypes_has() -> None:
    x = te.placeholder((255,), "uint8", "X")
    workload = te.workload(te.compute((255,), lambda i: te.e8m0(x[i]), "Y"))
    given = np.arange(255, dtype=np.uint8)
    wanted = given.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    np.testing.assert_array_equal(reference(workload, {"X": given})["Y"], wanted)


def test_texts_name_them_and_are_read_again() -> None:
    text = workload_text(_product(MXFP4))
    assert "e2m1(A[i, k//2], k) * e8m0(SA[i, k//32]) * (e2m1(B[j, k//2], k) * e8m0(SB[j, k//32]))" in text
    assert parse_workload(text) == _product(MXFP4)
    with pytest.raises(InvalidWorkload, match="e2m1 of 1 is no function; allowed: abs"):
        parse_workload("A: uint8[4]\nB[i < 8] = e2m1(A[i // 2])")


def test_what_differs_in_anything_is_recognised_as_nothing() -> None:
    x, wide = te.placeholder((4,), "uint8", "X"), te.placeholder((4,), "int32", "W")
    i = te.reduce_axis(8)
    byte, place = x[i // 2], i + 1
    assert e2m1_of(te.e2m1(byte, place)) == (byte, place) and e8m0_of(te.e8m0(byte)) == byte
    assert read_dtypes(te.e2m1(byte, i) * te.e8m0(byte)) == {float4_e2m1fn, x.dtype}
    for other in (te.e2m1(byte, i) + 0.0, te.e2m1(wide[i // 2], i), te.e2m1(byte, i) / 2.0, te.cast(byte, "float32")):
        assert e2m1_of(other) is None
    for other in (te.exp2(te.cast(byte, "float32") - 126.0), te.e8m0(wide[i // 2]), te.exp2(te.e8m0(byte))):
        assert e8m0_of(other) is None


def test_powers_of_two_are_drawn_from_where_no_sum_overflows() -> None:
    drawn = random_inputs(_product(MXFP4), 3)
    assert {EXPONENTS[0], EXPONENTS[1] - 1} <= set(drawn["SA"].ravel()) <= set(range(*EXPONENTS))
    assert len(set(drawn["A"].ravel())) == 256
    absolute, relative = tolerance(_product(MXFP4))["C"]
    assert 0 < absolute < 0.2 and 0 < relative < 0.05


def test_matrix_units_may_round_their_sums_as_those_of_8_bits() -> None:
    long = {**MXFP4, "k": 4096, "result": "float32"}
    limits = [tolerance(_product({**long, "precision": p}))["C"][0] for p in ("ieee", "fast_accumulation")]
    assert limits[0] < limits[1] / 8


@pytest.mark.parametrize("parameters", [NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])
def test_two_floats_are_a_byte_and_factors_are_made_once(parameters: dict[str, object]) -> None:
    workload = _product(parameters)
    block = 16 if parameters is NVFP4 else 32
    moved = (64 + 48) * (128 // 2 + 128 // block) + 2 * 64 * 48 + (8 if parameters is NVFP4 else 0)
    assert minimum_bytes(workload) == moved
    assert 2 * 64 * 48 * 128 < flops(workload) < 2 * 64 * 48 * 128 + 20 * (64 + 48) * 128 + 3 * 64 * 48


def test_keys_tell_formats_apart() -> None:
    formats = [NVFP4, MXFP4, {**MXFP4, "dtype": "float8_e4m3fn"}, {**MXFP4, "dtype": "float8_e5m2"}]
    assert len({workload_key(_product(f)) for f in formats}) == 4


@pytest.mark.parametrize(
    ("change", "field"), [({"k": 127}, "k"), ({"dtype": "float8_e4m3fn", "scales": "e4m3"}, "scales")]
)
def test_what_no_format_has_is_refused_by_name(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidParameter, match="allowed:") as caught:
        _product({**MXFP4, **change})
    assert caught.value.field == field


def test_scales_without_sign_are_read_as_such() -> None:
    workload = _product({**NVFP4, "result": "float32"})
    drawn = random_inputs(workload, 0)
    positive = {**drawn, "SA": np.abs(drawn["SA"].astype(np.float32)).astype(float8_e4m3fn.numpy)}
    assert (drawn["SA"].astype(np.float32) < 0).any() and prod(drawn["SA"].shape) == 64 * 8
    np.testing.assert_array_equal(reference(workload, drawn)["C"], reference(workload, positive)["C"])
