"""``python -m benchmarks record``: tables are recorded by the normal executor, in parts, and searched on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.benchmarks import prior_search, record, recorded_search
from tilewright.benchmarks.prior_search import curve_of, recorded_workloads
from tilewright.benchmarks.recorded_tables import FOLDER, KINDS, SUFFIX, readme, searched_tables
from tilewright.benchmarks.recorded_workloads import LANGUAGE_MODELS, TABLES, Table
from tilewright.benchmarks.suite import Options
from tilewright.codegen.lowering import build
from tilewright.core.budget import Budget
from tilewright.core.target import Target
from tilewright.core.trial import Reason, Timed
from tilewright.runtime.devices import host_target
from tilewright.schedule.cpu.gemm.fma import CPU_GEMM
from tilewright.schedule.sketches import SKETCHES
from tilewright.search.recorded import read_table
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import SearchProblem
from tilewright.search.t4 import read_document, write_t4
from tilewright.search.tuner import tune

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)
RECORDED = sorted(FOLDER.glob("*" + SUFFIX))
SMALL = Table("small", "matmul", {"m": 64, "n": 64, "k": 64}, CPU_GEMM, {})


@pytest.mark.parametrize("kind", ["softmax", "permute", "reduction", "convolution", "product"])
def test_a_kind_has_three_workloads_with_enough_settings_and_what_the_prior_likes_best(kind: str) -> None:
    tables = [table for table in TABLES.values() if table.kind == kind]
    workloads = {str(table.parameters) for table in tables}
    assert len(workloads) == 3
    for workload in workloads:
        found = [(t.space(H200), t) for t in tables if str(t.parameters) == workload]
        assert {t.sketch.name for _, t in found} == {
            s.name for s in SKETCHES.values() if s.matches(found[0][1].workload, H200)
        }
        assert sum(len(space) for space, _ in found) >= 2000 or not any(t.subspace for _, t in found)
        space, table = found[0]
        best = table.sketch.space(table.workload, H200).prior_seconds
        assert space.prior_seconds is not None and best is not None
        assert space.prior_seconds.min() <= 1.001 * best.min()


def test_what_a_space_leaves_out_is_built_too() -> None:
    table = TABLES["llama-3-8b-qkv-256x6144x4096"]
    space = table.space(H200)
    assert space.prior_seconds is not None
    worst = space.schedule(int(space.prior_seconds.argmax()))
    assert build(table.workload, H200, worst).code.startswith(b"\x7fELF")


def test_a_table_is_recorded_in_parts_and_searched_on(tmp_path: Path) -> None:
    space = SMALL.space(host_target("llvm"))
    knob = max(space.knobs, key=lambda k: len(set(space.column(k.name))))
    few = replace(SMALL, subspace={knob.name: (space.schedule(0)[knob.name],)})
    legal = len(few.space(host_target("llvm")))
    (first,) = record.record([few], tmp_path, "llvm", Options(trials=3))
    assert (first["settings"], first["legal"], first["complete"], first["measured_now"]) == (3, legal, False, 3)
    before = read_table(tmp_path / f"small{SUFFIX}")
    (second,) = record.record([few], tmp_path, "llvm", Options(trials=2))
    assert (second["settings"], second["measured_now"]) == (5, 2)
    table = read_table(tmp_path / f"small{SUFFIX}")
    for row, outcome in enumerate(before.outcomes):
        place = table.space.row_of(before.space.schedule(row))
        assert place is not None and table.outcomes[place] == outcome
    for outcome in table.outcomes:  # a busy machine may spoil the times
        assert isinstance(outcome, Timed) or outcome.reason is Reason.NOISY, outcome
    assert set(table.space.quantities) == {q.name for q in CPU_GEMM.quantities}
    steps = tune(table.pool, STRATEGIES["model"](SearchProblem(table.pool, 1)), table.measure, Budget(100))
    assert sorted(step.candidate for step in steps) == list(range(5))
    found = recorded_search.run(Options(trials=5, extra={"folder": str(tmp_path), "seeds": "1"}))
    timed = any(isinstance(outcome, Timed) for outcome in table.outcomes)
    assert found.rows[0]["model"] == found.rows[0]["random"] == float(timed)  # all that there are
    assert f"| {knob.name} {space.schedule(0)[knob.name]} | 5 of {legal} |" in readme(tmp_path)
    with pytest.raises(ValueError, match="another seed"):  # what was taken under other conditions is not mixed
        record.record([few], tmp_path, "llvm", Options(trials=1, seed=7))


@pytest.mark.parametrize("path", RECORDED, ids=[path.name for path in RECORDED])
def test_a_recorded_table_is_whole(path: Path) -> None:
    table = read_table(path)
    assert len(table.space) >= record.LEAST_SETTINGS
    assert sum(isinstance(o, Timed) for o in table.outcomes) > 0.9 * len(table.space)
    assert np.isfinite(table.space.quantities["estimate"]).all()


def test_workloads_have_the_tables_of_all_their_sketches_in_the_names_of_today() -> None:
    workloads = {w.name: w for w in recorded_workloads(sorted(FOLDER.glob("softmax/*" + SUFFIX)))}
    found = workloads["softmax-8192x1024"]
    assert {t.space.sketch for t in found.tables} == {"cuda_rowwise", "cuda_loops"}
    assert found.settings == found.legal == 196
    other = workloads["softmax-8192x8192"].experience(100, 0)
    with_history = curve_of(found, 0, (1, 8), [other])
    assert 0.8 < with_history[1] <= with_history[8] <= 1.0
    pool = found.pool()
    assert pool.prior_seconds is not None
    ((_, trial),) = found.measure([pool.schedule(int(np.argmin(pool.prior_seconds)))])
    assert isinstance(trial.outcome, Timed) and found.best_seconds / trial.outcome.seconds > 0.95


@pytest.fixture
def two_devices(tmp_path: Path) -> Path:
    """Return a folder with tables of an H200, in which the folder ``h100`` has one of their workloads from an H100."""
    for name in ("softmax-8192x1024", "softmax-8192x8192"):
        for path in FOLDER.glob(f"softmax/{name}*{SUFFIX}"):
            document = read_document(path)
            write_t4(tmp_path / "softmax" / path.name, document["metadata"], document["results"])
            if name == "softmax-8192x1024":
                device = {**document["metadata"]["device"], "name": "NVIDIA H100"}
                other = {**document["metadata"], "device": device}
                write_t4(tmp_path / "h100" / "softmax" / path.name, other, document["results"])
    return tmp_path


def test_devices_are_kept_apart(two_devices: Path) -> None:
    own, other = searched_tables(two_devices), searched_tables(two_devices / "h100")
    assert (len(own), len(other)) == (4, 2)
    found = recorded_workloads([*own, *other])
    assert sorted((w.name, w.device.name, len(w.tables)) for w in found) == [
        ("softmax-8192x1024", "NVIDIA H100", 2),
        ("softmax-8192x1024", "NVIDIA H200", 2),
        ("softmax-8192x8192", "NVIDIA H200", 2),
    ]
    (two_devices / "h100" / "README.md").write_text(of_other := readme(two_devices / "h100"))
    assert "NVIDIA H200" in (of_own := readme(two_devices)) and "NVIDIA H100" not in of_own
    assert "- In `h100`: tables of another device" in of_own and "timed again by a later run" in of_own
    assert "NVIDIA H100" in of_other and "timed again by a later run" not in of_other
    assert {table.kind for table in TABLES.values()} == {*KINDS, LANGUAGE_MODELS}


def test_one_device_learns_from_another(two_devices: Path) -> None:
    folders = {"folder": str(two_devices / "h100"), "history_folder": str(two_devices)}
    result = prior_search.run(Options(extra={**folders, "runs": "1", "history": "1000"}))
    (row,) = result.rows
    assert (row["row"], row["history"]) == ("softmax-8192x1024", 2)
    assert row["told"] == row["measured_4"] == 1.0  # the same settings are the fastest there
    assert 0.8 < float(str(row["others_measured_4"])) <= 1.0 and result.passed
    (alone,) = prior_search.run(Options(extra={"folder": folders["folder"], "runs": "1"})).rows
    assert (alone["history"], alone["cold_4"]) == (0, row["cold_4"])


@pytest.mark.parametrize("path", RECORDED[:1], ids=[path.name for path in RECORDED[:1]])
def test_a_recorded_table_can_be_searched(path: Path) -> None:
    table = read_table(path)
    steps = tune(table.pool, STRATEGIES["model"](SearchProblem(table.pool, 1)), table.measure, Budget(96))
    best = min(s.trial.outcome.seconds for s in steps if isinstance(s.trial.outcome, Timed))
    assert best < 1.15 * table.best_seconds
