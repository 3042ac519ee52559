"""Products with few rows whose weights have fewer bits than they are multiplied in: values, and what is refused."""

from collections.abc import Mapping

import pytest

from tests.schedule.gpu.tiles import EVERY_LEGAL, H200, assert_agrees, compiled, schedule_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import finish
from tilewright.schedule.gpu.skinny.mixed_space import CUDA_SKINNY_MIXED as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

NIBBLE = "bitand(shr(int32(W[j, k // 2]), int32(4 * (k % 2))), 15)"


def product(m: int, n: int, k: int, weights: str, inputs: str, dtype: str = "float16", epilogue: str = "") -> Workload:
    """The product of ``A`` and of what ``weights`` says of the places ``j`` and ``k``."""
    return parse_workload(
        f"A: {dtype}[{m}, {k}]\n{inputs}\n"
        f"C[i < {m}, j < {n}] = sum over k < {k} of float32(A[i, k]) * float32({weights})\n"
        f"Y[i, j] = {dtype}(C[i, j]{epilogue})"
    )


def nibbles(m: int, n: int, k: int, dtype: str = "float16", zero: str = "8") -> Workload:
    inputs = f"W: uint8[{n}, {k // 2}]\nS: {dtype}[{n}, {k // 64}]\nZ: uint8[{n}, {k // 64}]"
    inputs = inputs if "Z" in zero else inputs.rsplit("\n", 1)[0]
    return product(m, n, k, f"{dtype}((float32({NIBBLE}) - {zero}) * float32(S[j, k // 64]))", inputs, dtype)


CASES: Mapping[str, Workload] = {
    "nibbles": nibbles(3, 48, 256),
    "nibbles in bfloat16": nibbles(3, 48, 256, "bfloat16"),
    "zero points": nibbles(17, 40, 192, "bfloat16", "float32(Z[j, k // 64])"),
    "one row": nibbles(1, 72, 320),
    "floats of 8 bits": product(9, 64, 272, "W[j, k]", "W: float8_e4m3fn[64, 272]\nS: float32[64]", epilogue=" * S[j]"),
    "bytes": product(5, 33, 144, "W[j, k]", "W: int8[33, 144]", "bfloat16"),
    "a table": product(
        6,
        32,
        128,
        f"float16(T[min(max(int64({NIBBLE}), 0), 15)] * float32(S[j, k // 32]))",
        "W: uint8[32, 64]\nT: float32[16]\nS: float16[32, 4]",
    ),
    "words of eight": product(
        4,
        24,
        256,
        "float16(float32(bitand(shr(W[j, k // 8], int32(4 * (k % 8))), 15)) * float32(S[j, k // 128]))",
        "W: int32[24, 32]\nS: float16[24, 2]",
    ),
    "scales in float32": product(9, 40, 320, "W[j, k]) * float32(S[j, k // 64]", "W: int8[40, 320]\nS: float16[40, 5]"),
    "scales of short groups": product(
        6, 24, 256, f"({NIBBLE} - 8)) * (S[j, k // 32]", "W: uint8[24, 128]\nS: float32[24, 8]"
    ),
    "vectors of 8 bytes": product(5, 40, 200, "W[j, k]", "W: int8[40, 200]"),
    "transposed": parse_workload(
        "W: int8[32, 160]\nA: float16[7, 160]\n"
        "C[j < 32, i < 7] = sum over k < 160 of float32(W[j, k]) * float32(A[i, k])"
    ),
    "computed halves": product(
        6, 40, 136, "float16(float32(W[j, k]) * float32(S[k]))", "W: float16[40, 136]\nS: float16[136]"
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case], 4) >= 2


@pytest.mark.parametrize("case", ["nibbles", "one row", "floats of 8 bits"])
def test_every_legal_setting_computes_the_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case], 6, H200, EVERY_LEGAL) == 6


def test_what_it_leaves_to_others() -> None:
    def taken(m: int, weights: str, inputs: str, dtype: str = "float16") -> bool:
        return SKETCH.matches(product(m, 64, 128, weights, inputs, dtype), H200)

    assert taken(64, "W[j, k]", "W: int8[64, 128]") and not taken(65, "W[j, k]", "W: int8[64, 128]")
    assert not taken(4, "W[j, k]", "W: float16[64, 128]")  # nothing is to be computed
    assert not taken(4, "W[j, k]", "W: int32[64, 128]")  # float16 does not hold these
    assert not taken(4, "W[k, j]", "W: int8[128, 64]")  # neighbours are no places of k
    assert not taken(4, "W[j, k]", "W: int8[64, 128]", "float32")
    assert SKETCH.matches(product(4, 64, 120, "W[j, k]", "W: int8[64, 120]"), H200)  # vectors of 8 bytes
    assert not SKETCH.matches(product(4, 64, 124, "W[j, k]", "W: int8[64, 124]"), H200)  # A has no whole vectors


@pytest.mark.parametrize("m", [8, 64])
def test_it_matches_where_it_has_a_setting(m: int) -> None:
    """A lane holds 64 places of each eighth row of A beside weights of 2 bits."""
    bits = "bitand(shr(int32(W[j, k // 4]), int32(2 * (k % 4))), 3)"
    workload = product(m, 64, 512, f"float16(float32({bits}) - 1)", "W: uint8[64, 128]")
    assert SKETCH.matches(workload, H200) == (m == 8)
    assert m > 8 or assert_agrees(SKETCH, workload, 2) == 2


def test_few_rows_of_packed_weights_are_left_to_it_by_default() -> None:
    large = nibbles(8, 4096, 4096)
    assert [s.name for s in sketches_for(large, H200)] == ["cuda_gemv", "cuda_skinny_mixed"]


def test_nothing_spills_and_the_matrix_units_are_used() -> None:
    workload, knobs = nibbles(8, 4096, 4096), {"atoms_n": 2, "warps_n": 2, "warps_k": 4, "vectors": 2}
    resources = compiled(SKETCH, workload, H200, **knobs)
    assert resources.spill_bytes == 0 and resources.stack_bytes == 0
    kernel = finish(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, H200, **knobs)), H200)
    backend = backend_for(H200)
    assert "HMMA.16816.F32" in backend.assembly(backend.emit(kernel, H200), H200)
