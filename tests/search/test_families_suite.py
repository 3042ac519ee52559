"""``python -m benchmarks families``: sweeps become families, whose dispatchers are compiled and timed."""

from pathlib import Path

import pytest

from tilewright.benchmarks import families
from tilewright.benchmarks.recorded_sweeps import SweepTable
from tilewright.benchmarks.recorded_tables import SWEEP
from tilewright.benchmarks.recorded_workloads import linear
from tilewright.benchmarks.suite import Options
from tilewright.core.target import DeviceInfo, Target
from tilewright.core.trial import Clocks, Failed, Reason, Timed, Trial, TrialStage
from tilewright.schedule.gpu.skinny.tma_space import CUDA_SKINNY_TMA
from tilewright.search.t4 import t4_result, write_t4
from tilewright.te.operators import OPERATORS

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)
ROWS = (9, 12, 17, 24, 33, 40, 48, 64)


def write(folder: Path, rows: int, device: DeviceInfo) -> None:
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
    path = table.path(folder)
    path.parent.mkdir(exist_ok=True)
    write_t4(path, head, results)


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
    write(tmp_path, 20, DeviceInfo("another device", H200))
    with pytest.raises(ValueError, match="another device"):
        families.run(Options(extra=extra))
    assert families.run(Options(rows="other", extra={"folder": str(tmp_path)})).passed is False
