"""Sweeps: tables of the same settings at many numbers of rows, recorded like others and not searched on."""

from itertools import compress
from pathlib import Path

import pytest

from tilewright.benchmarks import record
from tilewright.benchmarks.recorded_sweeps import LAYERS, POOL, ROWS, SETTINGS, SWEEPS, SweepTable, pool
from tilewright.benchmarks.recorded_tables import SUFFIX, SWEEP, readme, searched_tables
from tilewright.benchmarks.recorded_workloads import linear
from tilewright.benchmarks.suite import Options
from tilewright.core.target import Target
from tilewright.runtime.devices import host_target
from tilewright.schedule.cpu.loops.sketch import CPU_LOOPS
from tilewright.search.recorded import read_table

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)


def test_every_layer_has_as_many_settings_at_every_number_of_rows() -> None:
    assert len(ROWS) == 48 and (ROWS[0], ROWS[-1]) == (1, 8192)
    for outputs, inputs in LAYERS:
        for rows in ROWS:
            tables = [t for t in SWEEPS.values() if t.parameters == linear(rows, outputs, inputs)]
            most = SETTINGS if rows <= 64 else POOL
            assert sum(t.most for t in tables if isinstance(t, SweepTable)) == most
    parts = [record.part_of(list(SWEEPS.values()), f"{n}/4") for n in (1, 2, 3, 4)]
    assert sorted(t.name for part in parts for t in part) == sorted(SWEEPS)
    for part in ("0/4", "5/4", "2", "a/b"):
        with pytest.raises(ValueError, match="allowed: K/N"):
            record.part_of(list(SWEEPS.values()), part)


@pytest.mark.parametrize("rows", [(3, 4, "cuda_skinny_mma"), (28, 32, "cuda_skinny_tma"), (448, 512, "cuda_gemm")])
def test_neighbours_share_legal_settings_and_have_the_first_of_the_prior(rows: tuple[int, int, str]) -> None:
    *neighbours, sketch = rows
    found = []
    for count in neighbours:
        table = SWEEPS[f"sweep-{count}x6144x4096-{sketch}"]
        space = table.space(H200)
        schedules = [space.schedule(row) for row in range(len(space))]
        prior = table.sketch.prior_seconds(table.workload, H200, schedules)
        assert table.sketch.legal(table.workload, H200, schedules).all()
        shared = pool(sketch, 6144, 4096, H200)
        legal = list(compress(shared, table.sketch.legal(table.workload, H200, shared)))
        assert isinstance(table, SweepTable) and set(schedules) == set(legal[: table.most])
        best = table.sketch.space(table.workload, H200).prior_seconds
        assert best is not None and prior.min() <= 1.001 * best.min()
        found.append(set(schedules))
    assert len(found[0] & found[1]) >= 0.6 * len(found[0])


def test_a_sweep_is_recorded_in_parts_and_described(tmp_path: Path) -> None:
    target = host_target("llvm")
    table = SweepTable("sweep-4x8x8-cpu_loops", "linear", linear(4, 8, 8), CPU_LOOPS, kind=SWEEP, most=3)
    first = table.selection(target)
    (row,) = record.record([table], tmp_path, "llvm", Options(trials=2))
    assert (row["settings"], row["legal"], row["complete"]) == (2, 3, False)
    (path,) = tmp_path.rglob("*" + SUFFIX)
    recorded, space = read_table(path), table.space(target)
    assert all(space.row_of(recorded.space.schedule(n)) is not None for n in range(2))
    assert "| `sweep-*x8x8-cpu_loops` | 4 | 2 | 1 |" in readme(tmp_path)
    assert searched_tables(tmp_path) == [] and searched_tables(tmp_path / SWEEP) == [path]
    assert table.selection(target) == first  # so that the file can be completed
