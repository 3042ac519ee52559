"""The contract of sketches: legal spaces, and kernels that compute what the expression says, however they are run."""

import json
import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.one_launch import PACKED_WEIGHTS, STORED_KEYS
from tests.random_expressions import random_workload
from tests.sketch_agreement import check_dynamic, check_schedules
from tilewright.codegen.llvm.architectures import target_named
from tilewright.core.errors import IllegalSchedule, InvalidWorkload
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.cost_model.knob_names import KNOBS
from tilewright.ir.text import kernel_text
from tilewright.runtime.devices import host_target
from tilewright.schedule.sketches import ALL_SKETCHES, SKETCHES, sketches_for
from tilewright.schedule.space.space import Space
from tilewright.schedule.step_chain import StepChain
from tilewright.te.dynamic import with_dynamic
from tilewright.te.operators import OPERATORS
from tilewright.te.operators.attention import attention_of_lengths
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

RANDOM_EXPRESSIONS = 60
RANDOM_SCHEDULES = 1
OPERATOR_SCHEDULES = 1
"""For each of an operator's cases, of which there are ten or so."""
CLASS_SCHEDULES = 2
"""The same for sketches of one class, which take few of them. Each case draws its own."""
CHAIN_SCHEDULES = 1
"""The same for chains, whose kernels are several ones of other sketches. ``tests/schedule/test_contraction_chain.py``
goes through every order with every choice of sketches."""
DYNAMIC_SCHEDULES = 2
DYNAMIC_EXTENTS: list[tuple[int, ...]] = [(1,), (67,), (130,)]
"""Extents at which each kernel with a dynamic dimension is compared, and how many kernels of each workload."""
GROUP = 10
"""How many random expressions one test works through."""

TARGETS = {
    "llvm": host_target("llvm"),
    "dots": target_named("x86-64+avx512f+avx512bw+avx512vl+avx512bf16+avx512vnni"),
    "tiles": target_named("x86-64+avx512f+avx512bw+avx512vl+avx512bf16+avx512vnni+amx-tile+amx-bf16+amx-int8"),
    "cuda": Target("cuda", "sm_90a", threads=132, vector_bytes=16),
    "blackwell": Target("cuda", "sm_100a", threads=148, vector_bytes=16),
    "amdgpu": Target("amdgpu", "gfx942", threads=304, vector_bytes=16),
}
"""What kernels are written for: this machine; some with more instructions than it may have, and devices, for which they
are interpreted."""


@cache
def _target(sketch: str) -> Target:
    """The target that a sketch is for, this machine if possible."""
    fitting = [t for t in TARGETS.values() if any(SKETCHES[sketch].matches(w, t) for w in _workloads())]
    kinds = {t.kind for t in fitting}
    assert len(kinds) == 1, f"{sketch} takes none of the operators, or writes for several kinds of target"
    return fitting[0]


def _takes_any(sketch: str) -> bool:
    """Return whether a sketch takes every workload."""
    return SKETCHES[sketch].generic and not isinstance(SKETCHES[sketch], StepChain)


@cache
def _workloads() -> tuple[Workload, ...]:
    """Large ones, one of each operator, reductions of pairs and of products, a correlation, a product of other
    axes, a filter, gradients, operands that are computed in registers, and random ones."""
    large = [OPERATORS[name].workload(parameters) for name, parameters in LARGE]
    small = [operator.workload(next(iter(operator.cases()))) for operator in OPERATORS.values()]
    texts = (
        *PAIRWISE,
        CORRELATION,
        OUT_OF_ORDER,
        FILTER,
        RAGGED,
        WEIGHT_GRADIENT,
        DEPTHWISE_GRADIENT,
        ROTARY,
        PACKED_WEIGHTS,
        STORED_KEYS,
        *ROWS_OF_PRODUCTS,
    )
    expressions = [parse_workload(text) for text in texts]
    return (*large, *small, *expressions, *(random_workload(seed) for seed in range(0, RANDOM_EXPRESSIONS, 10)))


@cache
def _cases(operator: str) -> tuple[Workload, ...]:
    """Some workloads of an operator, which every sketch is asked about."""
    return tuple(OPERATORS[operator].workload(case) for case in OPERATORS[operator].few_cases())


@cache
def _matched(sketch: str) -> tuple[Workload, ...]:
    """Those of ``_workloads`` that the sketch takes."""
    return tuple(w for w in _workloads() if SKETCHES[sketch].matches(w, _target(sketch)))


@cache
def _space(sketch: str, workload: Workload) -> Space:
    """At most 2000 settings of a workload, for several tests."""
    return SKETCHES[sketch].space(workload, _target(sketch), seed=7, limit=2000)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("sketch", SKETCHES)
def test_kernels_of_an_operator_agree_with_the_reference(sketch: str, operator: str) -> None:
    chain = isinstance(SKETCHES[sketch], StepChain)
    count = OPERATOR_SCHEDULES if _takes_any(sketch) else CHAIN_SCHEDULES if chain else CLASS_SCHEDULES
    cases = enumerate(_cases(operator))
    compared = [check_schedules(sketch, _target(sketch), workload, seed, count) for seed, workload in cases]
    assert not _takes_any(sketch) or all(n >= 1 for n in compared)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(s, s + GROUP) for s in range(0, RANDOM_EXPRESSIONS, GROUP)], ids=str)
@pytest.mark.parametrize("sketch", SKETCHES)
def test_kernels_of_random_expressions_agree_with_the_reference(sketch: str, seeds: range) -> None:
    target = _target(sketch)
    compared = [check_schedules(sketch, target, random_workload(seed), seed, RANDOM_SCHEDULES) for seed in seeds]
    assert not _takes_any(sketch) or all(n >= 1 for n in compared)


@pytest.mark.parametrize("sketch", SKETCHES)
def test_a_sketch_takes_dynamic_dimensions_or_says_that_it_does_not(sketch: str) -> None:
    target = _target(sketch)
    if SKETCHES[sketch].dynamic:
        dynamic: list[tuple[Workload, list[tuple[int, ...]]]] = [
            (with_dynamic(OPERATORS[name].workload(parameters), representative=64), DYNAMIC_EXTENTS)
            for name, parameters in DYNAMIC
        ]
        dynamic += [(attention_of_lengths(*lengths), calls) for lengths, calls in DYNAMIC_LENGTHS]
        taken = [(w, calls) for w, calls in dynamic if SKETCHES[sketch].matches(w, target)]
        compared = [check_dynamic(sketch, target, w, calls, DYNAMIC_SCHEDULES) for w, calls in taken]
        assert len(compared) >= 2 and all(n >= 2 for n in compared)
        return
    for workload in filter(None, map(_dynamic, _matched(sketch))):
        assert not SKETCHES[sketch].matches(workload, target)
        with pytest.raises(IllegalSchedule, match="static shapes alone"):
            SKETCHES[sketch].space(workload, target)


def _dynamic(workload: Workload) -> Workload | None:
    """``workload`` with the first dimension of its outputs dynamic; None where that cannot be."""
    try:
        return with_dynamic(workload)
    except InvalidWorkload:
        return None


def test_a_sketch_has_the_name_under_which_the_table_has_it() -> None:
    assert [sketch.name for sketch in ALL_SKETCHES.values()] == list(ALL_SKETCHES)
    assert "no_such_sketch" not in SKETCHES and SKETCHES.get("no_such_sketch") is None


LOADED = """
import sys
from tilewright.core.target import Target
from tilewright.schedule.sketches import sketches_for
from tilewright.te.operators import OPERATORS
workload = OPERATORS["softmax"].workload({"rows": 3, "columns": 5})
print(len(sketches_for(workload, Target("abacus", ""))), bool(sketches_for(workload, Target("llvm", "x86-64"))))
print("tilewright.schedule.cpu.loops" in sys.modules, "tilewright.schedule.gpu.gemm" in sys.modules)
"""


def test_a_process_loads_the_sketches_of_the_targets_that_it_compiles_for() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=False)
    assert ran.stdout == "0 True\nTrue False\n", ran.stderr


@pytest.mark.parametrize("sketch", SKETCHES)
def test_spaces_are_unique_legal_and_described(sketch: str) -> None:
    for workload in _matched(sketch):
        space = _space(sketch, workload)
        assert 1 <= len(space) <= 2000 and space.total >= len(space)
        assert len(np.unique(space.codes, axis=0)) == len(space)
        assert set(space.quantities) == {q.name for q in SKETCHES[sketch].quantities}
        for name, column in space.quantities.items():
            assert column.shape == (len(space),) and column.dtype == np.float32 and np.isfinite(column).all(), name
        for knob in space.knobs:
            step, _, name = knob.name.rpartition(".")  # a knob of a step is one of the sketch that writes the step
            known = (*KNOBS, "sketch") if step else KNOBS
            assert name in known, "a new knob needs a line in cost_model/knob_names.py"
            assert knob.meaning and len(set(knob.values)) == len(knob.values)


@pytest.mark.parametrize("sketch", SKETCHES)
def test_columns_of_given_schedules_are_those_of_the_space(sketch: str) -> None:
    target = _target(sketch)
    for workload in _matched(sketch):
        space = _space(sketch, workload)
        rows = np.linspace(0, len(space) - 1, 20).astype(int)
        derived = SKETCHES[sketch].derive(workload, target, [space.schedule(int(r)) for r in rows])
        for quantity, column in space.quantities.items():
            np.testing.assert_array_equal(derived[quantity], column[rows], err_msg=f"{workload.outputs}: {quantity}")


@pytest.mark.parametrize("sketch", SKETCHES)
def test_what_is_said_to_be_legal_is_what_lower_takes(sketch: str) -> None:
    workload, target = _matched(sketch)[0], _target(sketch)
    space, own = _space(sketch, workload), SKETCHES[sketch]
    draws = np.random.default_rng(1)
    drawn = [{k.name: k.values[draws.integers(len(k.values))] for k in space.knobs} for _ in range(6)]
    schedules = [space.schedule(0), *(Schedule.of(sketch, own.version, knobs) for knobs in drawn)]
    schedules += [Schedule.of(sketch, own.version, {**drawn[0], "no_such_knob": 1})]
    taken = []
    for schedule in schedules:
        try:
            own.lower(workload, target, schedule)
            taken.append(True)
        except IllegalSchedule:
            taken.append(False)
    assert own.legal(workload, target, schedules).tolist() == taken and taken[0] and not taken[-1]
    every = [space.schedule(row) for row in range(0, len(space), 100)]
    assert own.legal(workload, target, every).all()


@pytest.mark.parametrize("sketch", SKETCHES)
def test_a_limit_gives_a_seeded_sample(sketch: str) -> None:
    target = _target(sketch)
    workload = max(_matched(sketch), key=lambda w: _space(sketch, w).total)
    whole = SKETCHES[sketch].space(workload, target)
    limit = min(300, len(whole) // 2)
    samples = [SKETCHES[sketch].space(workload, target, seed=seed, limit=limit) for seed in (1, 1, 2)]
    assert limit >= 5 and [len(s) for s in samples] == [limit] * 3
    assert all(s.total == len(whole) for s in samples)
    assert np.array_equal(samples[0].codes, samples[1].codes)
    assert not np.array_equal(samples[0].codes, samples[2].codes)
    assert all(whole.row_of(samples[2].schedule(r)) is not None for r in range(0, limit, 50))


@pytest.mark.parametrize("sketch", SKETCHES)
def test_schedules_survive_json_and_wrong_ones_are_refused_by_name(sketch: str) -> None:
    workload, target = _matched(sketch)[0], _target(sketch)
    space = _space(sketch, workload)
    schedule = space.schedule(len(space) // 2)
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule
    knobs = dict(schedule.knobs)
    first = next(iter(knobs))
    wrong: list[dict[str, Any]] = [
        {**knobs, first: 12345},
        {**knobs, first: "many"},
        {**knobs, "no_such_knob": 1},
    ]
    for values in wrong:
        with pytest.raises(IllegalSchedule) as caught:
            SKETCHES[sketch].lower(workload, target, Schedule.of(sketch, SKETCHES[sketch].version, values))
        assert caught.value.field.startswith("/schedule")
    with pytest.raises(IllegalSchedule):
        SKETCHES[sketch].lower(workload, target, Schedule.of(sketch, SKETCHES[sketch].version + 1, knobs))


@pytest.mark.parametrize("sketch", SKETCHES)
def test_a_knob_that_a_schedule_does_not_name_has_its_first_value(sketch: str) -> None:
    """So a schedule that was stored before a knob was added goes on meaning what it meant."""
    workload, target = _matched(sketch)[0], _target(sketch)
    space = _space(sketch, workload)
    row = int(np.flatnonzero((space.codes == 0).any(axis=1))[0])
    schedule = space.schedule(row)
    left_out = next(k.name for k, code in zip(space.knobs, space.codes[row], strict=True) if code == 0)
    knobs = {name: value for name, value in schedule.knobs if name != left_out}
    shorter = Schedule.of(sketch, schedule.version, knobs)
    assert space.row_of(shorter) == row
    lowered = [SKETCHES[sketch].lower(workload, target, s) for s in (schedule, shorter)]
    assert kernel_text(lowered[0]) == kernel_text(lowered[1])


@pytest.mark.parametrize("name", list(OPERATORS))
def test_some_sketch_takes_every_operator(name: str) -> None:
    for case in OPERATORS[name].cases():
        assert sketches_for(OPERATORS[name].workload(case), TARGETS["llvm"])


DYNAMIC: tuple[tuple[str, dict[str, Any]], ...] = (
    ("softmax", {"rows": 130, "columns": 96}),
    ("layer_norm", {"rows": 130, "columns": 77, "dtype": "float16"}),
    ("linear", {"rows": 130, "inputs": 64, "outputs": 40, "bias": True, "dtype": "float16"}),
    ("matmul", {"m": 130, "n": 81, "k": 72, "dtype": "bfloat16", "transpose_b": True}),
    ("elementwise", {"shape": [130, 24], "functions": ["relu", "add1"]}),
    ("elementwise", {"shape": [130], "functions": ["relu"], "dtype": "float16"}),
)
"""Operators whose rows are dynamic, up to 130 of them."""

_HEADS: dict[str, Any] = {"heads": 1, "depth": 32, "causal": True, "dtype": "float16"}
DYNAMIC_LENGTHS: tuple[tuple[tuple[dict[str, Any], int, int], list[tuple[int, ...]]], ...] = (
    (({**_HEADS, "queries": 130, "keys": 140}, 100, 140), [(1, 1), (67, 139)]),
    (({**_HEADS, "queries": 5, "keys": 300}, 1, 300), [(1, 9), (5, 300)]),
)
"""Attention whose lengths are dynamic, and (queries, keys) of calls of it."""

LARGE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("matmul", {"m": 512, "n": 768, "k": 1024}),
    ("matmul", {"m": 512, "n": 768, "k": 1024, "dtype": "bfloat16"}),
    ("matmul", {"m": 512, "n": 768, "k": 1024, "dtype": "int8"}),
    ("matmul", {"m": 512, "n": 768, "k": 1024, "dtype": "float64"}),
    ("matmul", {"m": 1, "n": 768, "k": 1024}),
    ("matmul", {"m": 32, "n": 40, "k": 4160, "dtype": "float16"}),
    ("multi_dot", {"m": 200, "n": 311, "k": 177, "p": 160, "precision": "tf32", "dtype": "float16"}),
    ("bilinear", {"rows": 64, "first": 128, "second": 96, "outputs": 32}),
    ("linear", {"rows": 4, "inputs": 1024, "outputs": 512, "dtype": "float16"}),
    ("linear", {"rows": 16, "inputs": 1024, "outputs": 512, "dtype": "float16"}),
    ("linear", {"rows": 9, "inputs": 333, "outputs": 210, "dtype": "float16"}),
    ("matmul", {"m": 20, "n": 133, "k": 320, "dtype": "bfloat16"}),
    ("matmul", {"m": 20, "n": 136, "k": 96, "precision": "tf32"}),
    ("linear", {"rows": 64, "inputs": 1024, "outputs": 512, "dtype": "bfloat16"}),
    ("matmul", {"m": 512, "n": 768, "k": 1024, "dtype": "bfloat16"}),
    ("grouped_matmul", {"groups": 8, "m": 512, "n": 768, "k": 1024, "skew": 1.0, "dtype": "bfloat16"}),
    ("mlp", {"rows": 64, "width": 128, "layers": 2, "dtype": "float16"}),
    ("matmul", {"m": 200, "n": 311, "k": 177, "dtype": "float16"}),
    ("matmul", {"m": 1568, "n": 512, "k": 256, "dtype": "float16"}),
    ("attention", {"heads": 4, "queries": 512, "keys": 600, "depth": 128, "causal": True, "dtype": "float16"}),
    ("softmax", {"rows": 4096, "columns": 1024}),
    ("layer_norm", {"rows": 100, "columns": 50257, "dtype": "float16"}),
    ("log_softmax", {"rows": 6, "columns": 140003, "dtype": "float16"}),
    ("group_norm", {"batch": 4, "channels": 64, "pixels": 400, "groups": 8, "layout": "NHWC", "dtype": "float16"}),
    ("reduce", {"shape": [4096, 4096], "axes": [0, 1]}),
    ("reduce", {"shape": [256, 131072], "axes": [0, 1]}),
    ("reduce", {"shape": [4096, 4096], "axes": [0]}),
    ("reduce", {"shape": [64, 512, 1024], "axes": [0, 2], "dtype": "float16"}),
    ("group_norm", {"batch": 16, "channels": 320, "pixels": 4096, "groups": 32, "dtype": "float16"}),
    ("scan", {"shape": [4096, 4096], "axis": 1}),
    ("scan", {"shape": [4096, 4096], "axis": 0, "dtype": "float16"}),
    ("segment_reduce", {"terms": 32768, "segments": 50000, "columns": 768, "dtype": "float16"}),
    ("segment_reduce", {"terms": 100000, "segments": 256}),
    ("elementwise", {"shape": [4096, 4096], "functions": ["relu", "add1"]}),
    ("transpose", {"shape": [1024, 4096], "axes": [1, 0]}),
    (
        "conv2d",
        {
            "batch": 1, "channels": 64, "height": 56, "width": 56, "filters": 64,
            "kernel_h": 3, "kernel_w": 3, "padding": 1,
        },
    ),
    (
        "conv2d",
        {
            "batch": 4, "channels": 64, "height": 28, "width": 28, "filters": 128,
            "kernel_h": 3, "kernel_w": 3, "padding": 1, "layout": "NHWC", "dtype": "float16",
        },
    ),
    (
        "conv2d",
        {
            "batch": 4, "channels": 64, "height": 28, "width": 28, "filters": 64, "groups": 64,
            "kernel_h": 5, "kernel_w": 5, "padding": 2, "layout": "NHWC", "dtype": "float16",
        },
    ),
    (
        "conv2d",
        {
            "batch": 2, "channels": 64, "height": 28, "width": 28, "filters": 3,
            "kernel_h": 3, "kernel_w": 3, "padding": 1, "layout": "NHWC", "dtype": "float16",
        },
    ),
    (
        "conv3d",
        {
            "batch": 1, "channels": 16, "depth": 4, "height": 16, "width": 16, "filters": 32, "layout": "NDHWC",
            "kernel_d": 3, "kernel_h": 3, "kernel_w": 3, "padding": 1, "dtype": "float16",
        },
    ),
    (
        "conv2d",
        {
            "batch": 2, "channels": 3, "height": 32, "width": 40, "filters": 32, "stride": 2,
            "kernel_h": 3, "kernel_w": 3, "padding": 1, "layout": "NHWC", "dtype": "float16",
        },
    ),
    (
        "conv2d",
        {
            "batch": 4, "channels": 64, "height": 28, "width": 28, "filters": 64, "groups": 64,
            "kernel_h": 5, "kernel_w": 5, "padding": 2, "dtype": "float16",
        },
    ),
    (
        "pool2d",
        {"batch": 4, "channels": 8, "height": 1, "width": 2000, "kernel_h": 1, "kernel_w": 8, "dtype": "float32"},
    ),
    (
        "pool2d",
        {
            "batch": 4, "channels": 64, "height": 28, "width": 28, "kernel_h": 3, "kernel_w": 3, "padding": 1,
            "kind": "average", "layout": "NHWC", "dtype": "float16",
        },
    ),
)  # fmt: skip
"""Operators with sizes that have many schedules."""

_ROWS = "A: float32[200, 131]\nB: float32[171, 131]\n"
PAIRWISE = (
    _ROWS + "S[i, j] = sum over k < 131 of abs(A[i, k] - B[j, k])\nD[i, j] = sqrt(S[i, j])",
    _ROWS + "D[i, j] = max over k < 131 of A[i, k] + B[j, k]",
    _ROWS.replace("32[", "16[") + "D[i, j] = sum over k < 131 of abs(float32(A[i, k]) - float32(B[j, k]))",
)
"""Reductions of functions of two rows."""
CORRELATION = (
    "A: float16[16, 16, 32]\nB: float16[18, 18, 32]\n"
    "O[y, x, v < 3, u < 3] = sum over c < 32 of float32(A[y, x, c]) * float32(B[y + v, x + u, c])"
)
"""Products of pixels and displaced pixels."""
OUT_OF_ORDER = (
    "A: float16[72, 40, 3]\nB: float16[40, 3, 72]\n"
    "S[i, j, b] = sum over k < 72 of float32(A[k, i, b]) * float32(B[j, b, k])\nC[i, j, b] = float16(S[i, j, b])"
)
"""A batch of products whose axes stand in an order that no kernel has."""
FILTER = "X: float32[3, 300]\nH: float32[41]\nY[b, i < 260] = sum over k < 41 of H[k] * X[b, i + k]"
"""A filter of many taps."""
RAGGED = (
    "V: float32[600]\nP: int32[33]\n"
    "Y[r < 32] = sum over e < 600 of select(e >= int64(P[r]) and e < int64(P[r + 1]), V[e], 0.0)"
)
"""Sums over ranges that are read from memory."""
WEIGHT_GRADIENT = (
    "D: float16[2, 8, 8, 64]\nI: float16[2, 8, 8, 64]\n"
    "G[k, r < 3, s < 3, c] = sum over n < 2, y < 8, x < 8 of float32(D[n, y, x, k]) * select(y + r >= 1 and "
    "x + s >= 1 and y + r < 9 and x + s < 9, float32(I[n, y + r - 1, x + s - 1, c]), 0.0)"
)
"""The gradient of a convolution towards its filters."""
DEPTHWISE_GRADIENT = (
    "D: float16[2, 8, 8, 16]\nI: float16[2, 10, 10, 16]\n"
    "G[c, r < 3, s < 3] = sum over n < 2, y < 8, x < 8 of float32(D[n, y, x, c]) * float32(I[n, y + r, x + s, c])"
)
"""The gradient of a depthwise convolution towards its filters."""
ROTARY = (
    "X: float16[9, 6, 64]\nG: float16[64]\nC: float32[9, 32]\nN: float32[9, 32]\n"
    "S[t, h < 4] = sum over c < 64 of float32(X[t, h + 2, c]) * float32(X[t, h + 2, c])\n"
    "A[t, h < 4, d < 64] = float32(X[t, h + 2, d]) / sqrt(S[t, h] / 64 + 0.00001) * float32(G[d])\n"
    "Y[h < 4, t < 9, d < 64] = float16(A[t, h, d] * C[t, d % 32] + "
    "select(d < 32, -A[t, h, d + 32], A[t, h, d - 32]) * N[t, d % 32])"
)
"""The norm of some heads and its rotary embedding, heads first."""

_PRODUCT = """
A: float16[300, 72]
B: float16[72, 520]
D[i < 300, j < 520] = sum over k < 72 of float32(A[i, k]) * float32(B[k, j])
"""
ROWS_OF_PRODUCTS = (
    _PRODUCT + "M[i] = argmin over j < 520 of 1 - 2 * D[i, j]",
    _PRODUCT
    + "M[i] = max over j < 520 of D[i, j]\nS[i] = sum over j < 520 of exp(D[i, j] - M[i])\nY[i] = log(S[i]) + M[i]",
)
"""Reductions of the rows of a product."""
