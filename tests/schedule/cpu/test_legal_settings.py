"""What is legal for kernels on processors: all of it computes its expression, and no setting repeats another."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import workload_of
from tests.sketch_agreement import assert_kernel_agrees, check_schedules
from tilewright.codegen.llvm.architectures import target_named
from tilewright.core.errors import IllegalSchedule
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.ir.text import kernel_text
from tilewright.schedule.sketches import SKETCHES
from tilewright.schedule.space.space import Space
from tilewright.te.parse import parse_workload

WHOLE_SPACE = SpacePolicy(prune=False)
AVX2 = Target("llvm", "x86-64", ("avx2", "fma"), threads=2, vector_bytes=32)
DOTS = replace(target_named("x86-64+avx512f+avx512bw+avx512vl+avx512bf16+avx512vnni"), threads=2)
AMX = replace(DOTS, features=tuple(sorted((*DOTS.features, "amx-tile", "amx-bf16", "amx-int8"))))
IMAGE = {"batch": 1, "channels": 16, "filters": 32, "kernel_h": 3, "kernel_w": 3, "padding": 1}

CASES: dict[str, tuple[str, Target, str, dict[str, Any]]] = {
    "odd": ("cpu_gemm", AVX2, "matmul", {"m": 51, "n": 67, "k": 83}),
    "epilogue": ("cpu_gemm", AVX2, "linear", {"rows": 21, "inputs": 300, "outputs": 45, "activation": "relu"}),
    "direct": ("cpu_gemm", AVX2, "conv2d", {**IMAGE, "height": 7, "width": 11}),
    "im2col": ("cpu_gemm", AVX2, "conv2d", {**IMAGE, "height": 15, "width": 5}),
    "dots": ("cpu_gemm_dot", DOTS, "matmul", {"m": 51, "n": 67, "k": 84, "dtype": "bfloat16"}),
    "bytes": ("cpu_gemm_dot", DOTS, "matmul", {"m": 51, "n": 67, "k": 83, "dtype": "int8"}),
    "tiles": ("cpu_gemm_amx", AMX, "batch_matmul", {"batch": 2, "m": 64, "n": 40, "k": 128, "dtype": "bfloat16"}),
    "few rows": ("cpu_gemv", AVX2, "matmul", {"m": 3, "n": 200, "k": 512}),
    "loops": ("cpu_loops", AVX2, "matmul", {"m": 9, "n": 13, "k": 7, "transpose_b": True}),
    "padding": ("cpu_loops", AVX2, "conv2d", {**IMAGE, "channels": 2, "filters": 3, "height": 5, "width": 9}),
    "layers": ("cpu_loops", AVX2, "mlp", {"rows": 5, "width": 16, "layers": 2}),
}
SMALL = ("odd", "tiles", "few rows", "loops")


def _space(case: str, policy: SpacePolicy, limit: int = 1_000_000) -> Space:
    sketch, target, operator, parameters = CASES[case]
    return SKETCHES[sketch].space(workload_of(operator, **parameters), target, limit=limit, policy=policy)


@pytest.mark.parametrize("case", CASES)
def test_every_legal_setting_computes_its_expression(case: str) -> None:
    sketch, target, operator, parameters = CASES[case]
    assert check_schedules(sketch, target, workload_of(operator, **parameters), 1, 2, WHOLE_SPACE) == 2


def test_rows_are_cut_where_no_axis_of_theirs_ends() -> None:
    """Rows of three axes are one number, of which each task has four; 14 rows make a whole one of the last axis."""
    workload = parse_workload(
        "P: float32[2, 2, 14, 141]\nO: float32[2, 2, 14, 64]\nT[h, g, i] = sum over t < 141 of P[h, g, i, t]\n"
        "Y[h, g, i, e] = O[h, g, i, e] / T[h, g, i]"
    )
    space = SKETCHES["cpu_loops"].space(workload, AVX2, policy=WHOLE_SPACE)
    rows = [n for n in range(len(space)) if dict(space.schedule(n).knobs)["rows"] == 4]
    assert rows
    assert_kernel_agrees(workload, SKETCHES["cpu_loops"].lower(workload, AVX2, space.schedule(rows[0])), AVX2)


@pytest.mark.parametrize("case", CASES)
def test_pruning_only_drops_settings(case: str) -> None:
    whole, pruned = _space(case, WHOLE_SPACE), _space(case, SpacePolicy())
    rows = {tuple(row) for row in whole.codes.tolist()}
    assert {tuple(row) for row in pruned.codes.tolist()} <= rows
    assert case == "layers" or len(pruned) < len(whole)  # rows, of which all settings are promising
    assert whole.prior_seconds is not None and (whole.prior_seconds > 0).all()
    assert np.isfinite(whole.prior_seconds).all()


@pytest.mark.parametrize("case", SMALL)
def test_no_two_legal_settings_are_the_same_kernel(case: str) -> None:
    sketch, target, operator, parameters = CASES[case]
    workload, space = workload_of(operator, **parameters), _space(case, WHOLE_SPACE, limit=120)
    texts = {kernel_text(SKETCHES[sketch].lower(workload, target, space.schedule(n))) for n in range(len(space))}
    assert len(texts) == len(space)


ILLEGAL: list[tuple[str, dict[str, int | str], str]] = [
    ("odd", {"mr": 16, "nr_vectors": 4}, "fit 16 vector registers"),
    ("odd", {"m_blocks": 2048}, "none of the m_blocks blocks is without a row"),
    ("odd", {"n_blocks": 2048}, "each of the n_blocks blocks has nr_vectors vectors or more"),
    ("tiles", {"mr": 48, "nr_vectors": 3}, "fit 8 tile registers"),
    ("tiles", {"mr": 48, "nr_vectors": 1, "pack_a": "never"}, "mr divides m"),
    ("tiles", {"order": "columns_inside", "m_blocks": 2, "mr": 32}, "order is rows_inside unless"),
    ("few rows", {"n_blocks": 128}, "none of the n_blocks ranges"),
    ("loops", {"rows": 8, "vectors": 2, "vectorise": "columns"}, "fit 16 vector registers"),
    ("loops", {"unroll": 7, "vectorise": "reduction", "lanes": 8}, "unroll is at most the number of steps"),
    ("loops", {"rows": 8, "row_tiles": 16}, "row_tiles is 1 or less than twice"),
    ("loops", {"order": "columns_inside", "row_tiles": 1}, "order is rows_inside unless"),
]


@pytest.mark.parametrize(("case", "changes", "message"), ILLEGAL)
def test_messages_say_which_rule_is_broken(case: str, changes: dict[str, int | str], message: str) -> None:
    sketch, target, operator, parameters = CASES[case]
    schedule = _space(case, WHOLE_SPACE).schedule(0)
    wrong = Schedule.of(sketch, schedule.version, {**dict(schedule.knobs), **changes})
    with pytest.raises(IllegalSchedule, match=message):
        SKETCHES[sketch].lower(workload_of(operator, **parameters), target, wrong)


def test_what_a_thread_cannot_hold_is_illegal() -> None:
    """A task of all rows would pack 1.5 GiB."""
    workload = workload_of("matmul", m=1 << 19, n=1024, k=1536)
    space = SKETCHES["cpu_gemm"].space(workload, AVX2, limit=20_000, policy=WHOLE_SPACE)
    blocks = space.quantities["a_block_bytes"] * (space.column("pack_a") == "task")
    assert (blocks < 1 << 30).all()
    knobs = {**dict(space.schedule(0).knobs), "mr": 4, "m_blocks": 1, "kc": 768, "pack_a": "task"}
    with pytest.raises(IllegalSchedule, match="scratch memory"):
        SKETCHES["cpu_gemm"].lower(workload, AVX2, Schedule.of("cpu_gemm", space.version, knobs))
