"""``python -m benchmarks families``: sweeps become families, whose dispatchers are compiled and timed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.benchmarks import families
from tilewright.benchmarks.recorded_sweeps import SweepTable
from tilewright.benchmarks.recorded_tables import SWEEP
from tilewright.benchmarks.recorded_workloads import linear
from tilewright.benchmarks.served_families import opened
from tilewright.benchmarks.suite import Options
from tilewright.core.schedule import Schedule
from tilewright.core.target import DeviceInfo, Target
from tilewright.core.trial import Clocks, Failed, Reason, Timed, Trial, TrialStage
from tilewright.runtime.module import load_module
from tilewright.schedule.cpu.loops.sketch import CPU_LOOPS
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM
from tilewright.schedule.gpu.skinny.tma_space import CUDA_SKINNY_TMA
from tilewright.search.families.shapes import Shape, ShapeTable
from tilewright.search.t4 import t4_result, write_t4
from tilewright.service.family_times import FamilyTimes
from tilewright.service.family_views import FamilySpec
from tilewright.service.targets import DeviceSelector, measured_on
from tilewright.service.wiring import is_legal
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)
ROWS = (9, 12, 17, 24, 33, 40, 48, 64)


def write(folder: Path, rows: int, device: DeviceInfo, complete: bool = True) -> None:
    """Write a table whose times are a tenth longer than the prior says, and twice that where split_k is 2."""
    table = SweepTable(f"{SWEEP}-{rows}x96x512-tma", "linear", linear(rows, 96, 512), CUDA_SKINNY_TMA, kind=SWEEP)
    whole = CUDA_SKINNY_TMA.space(OPERATORS["linear"].workload(linear(max(ROWS), 96, 512)), H200)
    results = []
    for row in range(0, len(whole), max(1, len(whole) // 20)):
        schedule = whole.schedule(row)
        prior = float(CUDA_SKINNY_TMA.prior_seconds(table.workload, H200, [schedule])[0])
        outcome = Timed((1.1 * schedule.integer("split_k") * prior,))
        results.append(t4_result(Trial(schedule, outcome, Clocks()), {}, ""))
    failed = Failed(TrialStage.COMPILE, Reason.RESOURCES, "spills")
    results.append(t4_result(Trial(whole.schedule(1), failed, Clocks()), {}, ""))
    about = {"name": device.name, "target": device.target.to_json(), "hardware": dict(device.hardware)}
    head = {"sketch": whole.sketch, "version": whole.version, "parameters": dict(table.parameters), "device": about}
    head["complete"] = complete
    path = table.path(folder)
    path.parent.mkdir(exist_ok=True)
    write_t4(path, head, results)


def test_what_a_sketch_refuses_at_a_shape_never_serves_it() -> None:
    """A setting whose knobs have known values may break a constraint at some shapes alone."""
    large, small = (OPERATORS["linear"].workload(linear(count, 4096, 4096)) for count in (8192, 65))
    space = CUDA_GEMM.space(large, H200)
    schedule = space.schedule(int(np.flatnonzero(space.column("group_m") == 16)[0]))
    assert is_legal(large, H200, schedule) and not is_legal(small, H200, schedule)
    fixed = {name: value for name, value in linear(1, 4096, 4096).items() if name != "rows"}
    times = FamilyTimes(FamilySpec("f", "linear", fixed, (("rows", 1, 8192, 1),)), DeviceInfo("a device", H200))
    other = space.schedule(0)
    table = ShapeTable.of({(8192,): {schedule: 1.0, other: 2.0}, (4096,): {schedule: 0.5, other: 1.0}})
    expected = times.learn(table)([(65,), (6000,)], [schedule, other])
    assert expected[0, 0] == np.inf and np.isfinite(expected[1]).all()


def test_a_service_makes_a_family_of_a_sweep_and_serves_it(tmp_path: Path) -> None:
    on = measured_on(DeviceSelector("llvm"))
    rows = (4, 8, 12, 16, 24, 32)
    whole = CPU_LOOPS.space(OPERATORS["linear"].workload(linear(4, 16, 16)), on.device.target)
    schedules = [whole.schedule(row) for row in range(0, len(whole), len(whole) // 5)]
    times: dict[Shape, dict[Schedule, float]] = {
        (count,): {s: 1e-6 * (1 + abs(n - count / 8)) for n, s in enumerate(schedules)} for count in rows
    }
    sweep = families.Sweep(linear(4, 16, 16), on.device, times)
    with opened(tmp_path, [sweep], on) as service:
        made = service.families.make(sweep.spec, target="llvm")
        assert len(made.family.measured) == len(rows) and made.family.regret is not None
        chosen = service.families.choose("16x16", {"rows": 9})
    workload = OPERATORS["linear"].workload(chosen.parameters)
    inputs = random_inputs(workload, 0)
    (found,) = load_module(workload, chosen.schedule, on.device.target)(*inputs.values())
    (wanted,) = reference(workload, inputs).values()
    assert workload.inputs[0].shape == (9, 16) and chosen.schedule in schedules
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, atol=0.05, rtol=0.05)


def test_records_from_before_and_after_a_knob_was_added_are_of_one_schedule(tmp_path: Path) -> None:
    """The older half does not name the knobs that have their first value."""
    on = measured_on(DeviceSelector("llvm"))
    rows = (4, 8, 12, 16, 24, 32)
    whole = CPU_LOOPS.space(OPERATORS["linear"].workload(linear(4, 16, 16)), on.device.target)
    best, other = whole.schedule(0), whole.schedule(len(whole) - 1)
    first = {knob.name: knob.values[0] for knob in whole.knobs}
    older = Schedule.of(best.sketch, best.version, {n: v for n, v in best.knobs if v != first[n]})
    assert len(older.knobs) < len(best.knobs)
    times: dict[Shape, dict[Schedule, float]] = {
        (count,): {older if count in rows[::2] else best: 1e-6, other: 2e-6} for count in rows
    }
    sweep = families.Sweep(linear(4, 16, 16), on.device, times)
    with opened(tmp_path, [sweep], on) as service:
        made = service.families.make(replace(sweep.spec, target_regret=0.0), target="llvm")
        assert made.family.schedules == (best,)
        assert service.families.choose("16x16", {"rows": 9}).schedule == best


def test_a_sweep_becomes_a_family_with_dispatchers(tmp_path: Path) -> None:
    device = DeviceInfo("a device", H200)
    for rows in ROWS:
        write(tmp_path, rows, device)
    extra = {"folder": str(tmp_path / SWEEP), "most": "2"}
    result = families.run(Options(extra=extra))
    (row,) = result.rows
    assert row["row"] == "96x512" and row["shapes"] == len(ROWS) and 1 <= int(str(row["kernels"])) <= 2
    assert result.device == {"name": "a device"}
    for name in ("mean", "folds_mean", "known_mean"):
        assert float(str(row["cover_mean"])) - 1e-9 <= float(str(row[name])) < 0.05
    assert 0 < float(str(row["c_ns"])) and 0 < float(str(row["python_ns"]))
    write(tmp_path, 28, DeviceInfo("another device", H200), complete=False)
    assert [len(sweep.times) for sweep in families.sweeps(tmp_path / SWEEP)] == [len(ROWS)]
    write(tmp_path, 20, DeviceInfo("another device", H200))
    with pytest.raises(ValueError, match="another device"):
        families.run(Options(extra=extra))
    assert families.run(Options(rows="other", extra={"folder": str(tmp_path)})).passed is False
