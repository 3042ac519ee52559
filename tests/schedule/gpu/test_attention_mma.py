"""Attention of few queries by mma.sync: values, what is refused, and what the compiler makes of kernels."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.schedule.gpu.tiles import EVERY_LEGAL, H200, assert_agrees, schedule_of
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.schedule.gpu.attention_mma.space import CUDA_ATTENTION_MMA as SKETCH
from tilewright.schedule.sketches import sketches_for
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

AMPERE = replace(H200, arch="sm_80", threads=108)


def decode(
    stored: str = "int8",
    queries: int = 4,
    keys: int = 72,
    depth: int = 64,
    columns: int = 64,
    *,
    inputs: str = "",
    key: str = "float32(K[h, k, c])",
    v: str = "float32(V[h, k, d])",
    score: str = "S[h, q, k] * 0.125",
    weight: str = "E[h, q, k]",
    result: str = "A[h, q, d] / Z[h, q]",
    dtype: str = "float16",
) -> Workload:
    """Attention of two heads. The arguments are expressions of its text."""
    return parse_workload(
        f"Q: {dtype}[2, {queries}, {depth}]\nK: {stored}[2, {keys}, {depth}]\nV: {stored}[2, {keys}, {columns}]\n"
        f"{inputs}"
        f"S[h, q, k < {keys}] = sum over c < {depth} of float32(Q[h, q, c]) * {key}\n"
        f"T[h, q, k] = {score}\n"
        f"M[h, q] = max over k < {keys} of T[h, q, k]\n"
        f"E[h, q, k] = exp(T[h, q, k] - M[h, q])\n"
        f"Z[h, q] = sum over k < {keys} of E[h, q, k]\n"
        f"A[h, q, d < {columns}] = sum over k < {keys} of float32({dtype}({weight})) * {v}\n"
        f"Y[h, q, d] = {dtype}({result})"
    )


SCALES = "X: float16[2, 72]\nW: float16[2, 72]\n"
CASES: Mapping[str, Workload] = {
    "scales of tokens": decode(
        inputs=SCALES, score="S[h, q, k] * float32(X[h, k]) * 0.01", weight="E[h, q, k] * float32(W[h, k])"
    ),
    "scales of heads": decode(
        "float8_e4m3fn",
        inputs="X: float32[2]\nW: float32[2]\n",
        score="S[h, q, k] * X[h] * 0.125",
        result="A[h, q, d] / Z[h, q] * W[h]",
    ),
    "rounded keys": decode(
        inputs=SCALES,
        key="float32(float16(float32(K[h, k, c]) * float32(X[h, k])))",
        v="float32(float16(float32(V[h, k, d]) * float32(W[h, k])))",
        score="S[h, q, k] * 0.01",
    ),
    "lengths": decode("float8_e4m3fn", inputs="L: int32[2]\n", score="select(k < int64(L[h]), S[h, q, k] * 0.2, -inf)"),
    "a ring": decode(
        "bfloat16",
        11,
        64,
        64,
        128,
        key="float32(K[h, (k + 24) % 64, c])",
        v="float32(V[h, (k + 24) % 64, d])",
        dtype="bfloat16",
    ),
    "one query": decode("int8", 1, 130, 128, 128, score="S[h, q, k] * 0.01"),
    "pages": parse_workload(
        "Q: float16[2, 3, 64]\nK: float8_e4m3fn[9, 16, 64]\nV: float8_e4m3fn[9, 16, 64]\nP: int32[2, 4]\nL: int32[2]\n"
        "S[b, q, k < 64] = sum over c < 64 of float32(Q[b, q, c]) "
        "* float32(K[min(max(int64(P[b, k // 16]), 0), 8), k % 16, c])\n"
        "T[b, q, k] = select(k < int64(L[b]), S[b, q, k] * 0.2, -inf)\nM[b, q] = max over k < 64 of T[b, q, k]\n"
        "E[b, q, k] = exp(T[b, q, k] - M[b, q])\nZ[b, q] = sum over k < 64 of E[b, q, k]\n"
        "A[b, q, d < 64] = sum over k < 64 of float32(float16(E[b, q, k])) "
        "* float32(V[min(max(int64(P[b, k // 16]), 0), 8), k % 16, d])\nY[b, q, d] = float16(A[b, q, d] / Z[b, q])"
    ),
    "a tree": decode(
        "int8",
        40,
        inputs="L: int32[2]\nN: bool[40, 72]\n",
        score="select(k < int64(L[h]) and N[q, k], S[h, q, k] * 0.01, -inf)",
    ),
    "a sink": parse_workload(
        "Q: float16[2, 3, 64]\nK: int8[2, 80, 64]\nV: int8[2, 80, 64]\nB: float32[2]\n"
        "S[h, q, k < 80] = sum over c < 64 of float32(Q[h, q, c]) * float32(K[h, k, c])\n"
        "M[h, q] = max over k < 80 of S[h, q, k] * 0.01\nN[h, q] = max(M[h, q], B[h])\n"
        "E[h, q, k] = exp(S[h, q, k] * 0.01 - N[h, q])\nZ[h, q] = sum over k < 80 of E[h, q, k]\n"
        "A[h, q, d < 64] = sum over k < 80 of float32(float16(E[h, q, k])) * float32(V[h, k, d])\n"
        "Y[h, q, d] = float16(A[h, q, d] / (Z[h, q] + exp(B[h] - N[h, q])))"
    ),
    "packed keys": decode(
        "uint8",
        3,
        48,
        inputs="P: uint8[2, 48, 32]\n",
        key="float32(float16(float32(bitand(shr(int32(P[h, k, c // 2]), int32(4 * (c % 2))), 15)) - 8))",
        score="S[h, q, k] * 0.02 + float32(K[h, k, 0]) * 0.01",
    ),
    "rotated queries": decode(
        "float16",
        2,
        40,
        inputs="R: float32[64]\n",
        score="S[h, q, k] * 0.125",
        key="float32(float16(float32(K[h, k, c]) * R[c]))",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case], 5) >= 2


@pytest.mark.parametrize("case", ["scales of tokens", "one query", "lengths"])
def test_every_legal_setting_computes_the_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case], 6, H200, EVERY_LEGAL) == 6


def test_it_takes_what_the_kernel_of_hopper_does_not() -> None:
    halves = decode("float16")
    assert not SKETCH.matches(halves, H200) and SKETCH.matches(halves, AMPERE)
    assert assert_agrees(SKETCH, halves, 2, AMPERE) == 2
    assert SKETCH.matches(decode(queries=64), H200) and not SKETCH.matches(decode(queries=65), H200)
    causal = "select(k <= q + 32, S[h, q, k] * 0.125, -inf)"  # gives tiles of queries different numbers of blocks
    assert SKETCH.matches(decode(queries=16, score=causal), H200)
    assert not SKETCH.matches(decode(queries=40, score=causal), H200)
    assert not SKETCH.matches(decode(depth=72), H200)  # vectors of four lanes do not cover a key
    assert not SKETCH.matches(decode(depth=256, columns=256), H200)  # the sums of a warp do not fit its registers
    assert not SKETCH.matches(decode("float32"), H200)  # float16 does not hold these keys
    assert [s.name for s in sketches_for(decode(), H200)] == ["cuda_attention_mma"]


def test_nothing_spills_and_the_matrix_units_are_used() -> None:
    workload = decode("int8", 4, 4096, 128, 128, score="S[h, q, k] * 0.01")
    kernel = build_kernel(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, H200, split_kv=32)), H200)
    assert all(r.spill_bytes == 0 and r.stack_bytes == 0 for r in kernel.resources.values())
    backend = backend_for(H200)
    source = backend.emit(finish(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, H200)), H200), H200)
    assert "HMMA.16816.F32" in backend.assembly(source, H200)
