"""Few long rows in one cooperative launch: values, what is taken, and that nothing is read twice."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, compiled, legal_schedule_of, workload_of
from tilewright.codegen.lowering import build, finish
from tilewright.codegen.memory_traffic import accessed_bytes
from tilewright.core.errors import KernelFault
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.ir.gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import map_statements
from tilewright.ir.stmt import Seq, Stmt
from tilewright.schedule.gpu.rowwise.cooperative import CUDA_ROWWISE_COOPERATIVE as SKETCH
from tilewright.schedule.gpu.rowwise.split import MOST_ROWS
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

FEW = Target("cuda", "sm_90a", threads=11, vector_bytes=16)
"""A device of few multiprocessors, so that the interpreter has few threads to run."""
SOFTMAX = workload_of("softmax", rows=3, columns=140003, dtype="float16")

ROWS = {
    "softmax of odd rows": SOFTMAX,
    "one row": workload_of("softmax", rows=1, columns=1 << 17),
    "softmax in float32": workload_of("softmax", rows=5, columns=65537),
    "logarithms": workload_of("log_softmax", rows=2, columns=131072, dtype="bfloat16"),
    "layer norm": workload_of("layer_norm", rows=3, columns=131075, dtype="float16"),
    "RMS norm": workload_of("rms_norm", rows=4, columns=70000),
    "sums of several axes": parse_workload(
        "X: float32[2, 40, 2000]\nt[i] = sum over j < 40, k < 2000 of X[i, j, k]\n"
        "Y[i, j, k] = X[i, j, k] / t[i] + float32(j)"
    ),
    "independent reductions, a position, outputs of rows": parse_workload(
        "t: float32[3, 80000]\ngroup: float32[3, 80000]\ntop[i] = max over k < 80000 of t[i, k]\n"
        "at[i] = argmax over k < 80000 of group[i, k]\n"
        "Y[i, k < 80000] = select(k == at[i], t[i, k] - top[i], group[i, k])\nZ[i] = top[i] * 2"
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, ROWS[case], 4, FEW, WHOLE) == 4


@pytest.mark.parametrize("seed", range(6))
def test_random_few_long_rows(seed: int) -> None:
    draw = stream(seed, "few long rows")
    operator = ("softmax", "log_softmax", "layer_norm", "rms_norm")[int(draw.integers(4))]
    dtype = ("float16", "bfloat16", "float32")[int(draw.integers(3))]
    columns = int(draw.integers(131072 // (2 if dtype == "float32" else 1), 150_000))
    parameters: dict[str, Any] = {"rows": int(draw.integers(1, 6)), "columns": columns, "dtype": dtype}
    assert assert_agrees(SKETCH, workload_of(operator, **parameters), 2, FEW, WHOLE) == 2


def test_the_whole_device_shares_the_rows() -> None:
    """On an H200 each row of three has 44 multiprocessors, or all 132 if each CTA has a part of all rows. With 128
    threads a CTA, 35 and 69 CTAs need no more vectors for a thread, of which a row has 17,500."""
    for own, blocks in ((1, (35, 3, 1)), (3, (69, 1, 1))):
        schedule = legal_schedule_of(SKETCH, SOFTMAX, H200, rows_per_cta=own, ctas_per_sm=1)
        (launch,) = build(SOFTMAX, H200, schedule).launches
        assert launch.cooperative and launch.blocks == blocks
    assert assert_agrees(SKETCH, SOFTMAX, 2, H200) == 2


def test_the_interpreter_finds_that_the_barrier_is_missing() -> None:
    schedule = legal_schedule_of(SKETCH, SOFTMAX, FEW, rows_per_cta=1, row_storage="registers_and_shared")
    kernel = SKETCH.lower(SOFTMAX, FEW, schedule)
    inputs = {"X": np.zeros((3, 140003), np.float16)}

    def removed(stmt: Stmt) -> Stmt:
        return Seq(()) if isinstance(stmt, GridBarrierArrive | GridBarrierWait) else stmt

    without = replace(kernel, body=map_statements(kernel.body, removed))
    with pytest.raises(KernelFault, match=r"race on partial\[0, 1\]: read here, written by thread 0 of block 1"):
        interpret(finish(without, FEW), inputs)


def test_memory_is_read_once() -> None:
    """Unless a part is read again, from the L2 cache, when it is written."""
    x, y = workload_of("softmax", rows=2, columns=131072), 2 * 131072 * 4
    for storage, passes in (("registers_and_shared", 2), ("registers", 2), ("global", 3)):
        kernel = finish(SKETCH.lower(x, FEW, legal_schedule_of(SKETCH, x, FEW, row_storage=storage)), FEW)
        assert passes * y <= accessed_bytes(kernel) < (passes + 0.1) * y


def test_sums_of_rows_that_are_minus_infinity_in_part() -> None:
    """As exact as in one pass where a thread, a CTA, or a whole row, has nothing but -inf."""
    workload = workload_of("softmax", rows=3, columns=65541)
    kernel = finish(SKETCH.lower(workload, FEW, legal_schedule_of(SKETCH, workload, FEW)), FEW)
    x = np.full((3, 65541), -np.inf, np.float32)
    x[0, 17000:17003] = (-3e38, 5, 5)
    x[2, 65540] = np.nan
    got = np.asarray(interpret(kernel, {"X": x})["Y"])
    np.testing.assert_array_equal(got[0], np.where(np.isin(np.arange(65541), (17001, 17002)), 0.5, 0))
    assert np.isnan(got[1:]).all()


def test_squares_of_deviations_keep_their_digits_where_the_mean_is_far_from_0() -> None:
    workload = parse_workload(
        "X: float32[2, 65541]\nt[i] = sum over k < 65541 of X[i, k]\n"
        "s[i] = sum over k < 65541 of (X[i, k] - t[i] / 65541) * (X[i, k] - t[i] / 65541)\n"
        "Y[i, k < 65541] = (X[i, k] - t[i] / 65541) * rsqrt(s[i] / 65541)\nV[i] = s[i] / 65541"
    )
    kernel = finish(SKETCH.lower(workload, FEW, legal_schedule_of(SKETCH, workload, FEW)), FEW)
    x = np.float32(1000) + np.random.default_rng(1).random((2, 65541), np.float32)
    x[:, 30000:] += 2
    wanted = x.astype(np.float64).var(axis=1)
    np.testing.assert_allclose(np.asarray(interpret(kernel, {"X": x})["V"]), wanted, 1e-4)


def test_what_the_prior_ranks_first_is_what_is_fastest_and_compiles_without_spills() -> None:
    """An H200 takes 23.3 to 24.0 us with two CTAs of 512 threads a multiprocessor, and 25 to 35 us with most others."""
    workload = workload_of("softmax", rows=16, columns=1048576, dtype="float16")
    space = SKETCH.space(workload, H200)
    assert space.prior_seconds is not None
    best = dict(space.schedule(int(space.prior_seconds.argmin())).knobs)
    assert (best["threads_per_row"], best["ctas_per_sm"]) == (512, 2) and best["rows_per_cta"] in (2, 4)
    found = compiled(SKETCH, workload, H200, **best)
    assert found.spill_bytes == 0 and found.registers <= 64


REFUSED = {
    "short rows": "X: float32[9, 4000]\nt[i] = sum over k < 4000 of X[i, k]\nY[i, k < 4000] = X[i, k] - t[i]",
    "nothing is computed from rows": "X: float32[2, 90000]\nY[i] = sum over k < 90000 of X[i, k]",
    "more than a device holds": "X: float32[40000000]\nt[] = sum over k < 40000000 of X[k]\n"
    "Y[k < 40000000] = X[k] - t[]",
    "a reduction waits for another one": "X: float32[2, 90000]\nt[i] = max over k < 90000 of X[i, k]\n"
    "s[i] = sum over k < 90000 of X[i, k] * t[i]\nY[i, k < 90000] = X[i, k] - s[i]",
    "many rows": f"X: float32[{MOST_ROWS + 1}, 70000]\nt[i] = sum over k < 70000 of X[i, k]\n"
    "Y[i, k < 70000] = X[i, k] - t[i]",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_left_to_other_sketches(case: str) -> None:
    workload: Workload = parse_workload(REFUSED[case])
    assert not SKETCH.matches(workload, H200)
