"""Schedules that were recorded under the names before: they read as today's, and lower."""

from dataclasses import replace
from typing import Any

import pytest

from tests.schedule.gpu.tiles import workload_of
from tilewright.codegen.llvm.architectures import target_named
from tilewright.core.schedule import Schedule
from tilewright.schedule.sketches import SKETCHES

TARGET = replace(target_named("x86-64+avx512f+avx512bw+avx512vl+avx512bf16+avx512vnni"), threads=2)
AMX = replace(TARGET, features=tuple(sorted((*TARGET.features, "amx-tile", "amx-bf16", "amx-int8"))))
LARGE: dict[str, Any] = {"m": 1024, "n": 1024, "k": 1024}
BLOCKS: dict[str, int | str] = {
    "rows": 4,
    "vectors": 4,
    "row_tasks": 16,
    "column_tasks": 4,
    "depth": 1024,
    "pack_a": "task",
}
TILES: dict[str, int | str] = {
    "rows": 32,
    "vectors": 2,
    "row_tasks": 2,
    "column_tasks": 4,
    "depth": 512,
    "pack_a": "task",
    "pack_b": "task",
}

OLD: list[tuple[str, int, dict[str, int | str], str, dict[str, Any], dict[str, int | str]]] = [
    ("cpu_gemm", 3, {**BLOCKS, "pack_b": "whole"}, "matmul", LARGE, {"mr": 4, "nr_vectors": 4, "kc": 1024}),
    (
        "cpu_dots", 3, {**BLOCKS, "pack_b": "task"}, "matmul", {**LARGE, "dtype": "bfloat16"},
        {"m_blocks": 16, "n_blocks": 4, "pack_a": "task"},
    ),
    (
        "cpu_tiles", 5, {**TILES, "by_rows": 0, "store": "streamed"}, "matmul", {**LARGE, "dtype": "bfloat16"},
        {"order": "rows_inside", "store": "non_temporal"},
    ),
    (
        "cpu_tiles", 5, {**TILES, "by_rows": 1, "store": "cached"}, "matmul", {**LARGE, "dtype": "int8"},
        {"order": "columns_inside", "store": "cached"},
    ),
    (
        "cpu_gemv", 2, {"rows": 4, "vectors": 2, "column_tasks": 1, "row_tasks": 8}, "matmul", {**LARGE, "m": 1},
        {"k_unroll": 4, "n_blocks": 1, "split_k": 8},
    ),
    (
        "cpu_loops", 3, {"lanes": 16, "vectors": 8, "rows": 128, "store": "streamed"}, "softmax",
        {"rows": 4096, "columns": 1024}, {"rows": 128, "store": "non_temporal"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("sketch", "version", "knobs", "operator", "parameters", "today"), OLD)
def test_old_schedules_lower(
    sketch: str,
    version: int,
    knobs: dict[str, int | str],
    operator: str,
    parameters: dict[str, Any],
    today: dict[str, int | str],
) -> None:
    schedule = Schedule.from_json({"sketch": sketch, "version": version, "knobs": knobs})
    assert today.items() <= dict(schedule.knobs).items() and len(schedule.knobs) == len(knobs)
    target = AMX if sketch == "cpu_tiles" else TARGET
    SKETCHES[schedule.sketch].lower(workload_of(operator, **parameters), target, schedule)
