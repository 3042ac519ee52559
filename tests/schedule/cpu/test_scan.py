"""Scans on processors: every setting computes the same, and running values stay in registers."""

from typing import Any

import pytest

from tests.schedule.gpu.tiles import assert_agrees, workload_of
from tilewright.codegen.llvm.architectures import target_named
from tilewright.core.policy import SpacePolicy
from tilewright.schedule.cpu.scan.space import CPU_SCAN
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.sketches import sketches_for

AVX512 = target_named("x86-64+avx512f+avx512bw+avx512vl")
WHOLE = SpacePolicy(prune=False)


@pytest.mark.parametrize(
    "parameters",
    [
        {"shape": [8, 37], "axis": 1, "masked": True},
        {"shape": [2, 19, 48], "axis": 1, "reverse": True},
        {"shape": [23, 64], "axis": 0, "exclusive": True, "dtype": "float16"},
        {"shape": [16, 21], "axis": 1, "reverse": True, "exclusive": True, "kind": "max", "dtype": "int32"},
    ],
    ids=str,
)
def test_every_setting_computes_the_same(parameters: dict[str, Any]) -> None:
    workload = workload_of("scan", **parameters)
    assert [s.name for s in sketches_for(workload, AVX512)] == ["cpu_scan"]
    assert assert_agrees(CPU_SCAN, workload, 30, AVX512, WHOLE) >= 4


def test_columns_are_whole_vectors_and_rows_several_at_a_time() -> None:
    columns, rows = (workload_of("scan", shape=[4096, 4096], axis=axis) for axis in (0, 1))
    found = dict(default_schedule(columns, AVX512).knobs)
    assert int(found["vector_width"]) >= 16
    found = dict(default_schedule(rows, AVX512).knobs)
    assert found["vector_width"] == 1 and int(found["unroll"]) >= 4
