"""Cache files of Kernel Tuner are tables: read, searched on, written, and read again."""

import json
from pathlib import Path

import pytest

from tilewright.core.budget import Budget
from tilewright.core.errors import InvalidParameter
from tilewright.core.trial import Failed, Reason, Timed
from tilewright.search.kernel_tuner import write_cache
from tilewright.search.recorded import read_table
from tilewright.search.strategies.random import RandomSearch
from tilewright.search.strategy import SearchProblem
from tilewright.search.tuner import tune

CACHE = {
    "device_name": "A GPU",
    "kernel_name": "convolution",
    "problem_size": [4096, 4096],
    "tune_params_keys": ["block_size_x", "layout"],
    "tune_params": {"block_size_x": [16, 32], "layout": ["rows", "columns"]},
    "cache": {
        "16,rows": {"block_size_x": 16, "layout": "rows", "time": 2.0, "times": [1.9, 2.0, 2.2], "compile_time": 900.0},
        "16,columns": {"block_size_x": 16, "layout": "columns", "time": "CompilationFailedConfig"},
        "32,rows": {"block_size_x": 32, "layout": "rows", "time": 1.5, "benchmark_time": 100.0},
    },
}


@pytest.mark.parametrize("interrupted", (False, True))
def test_a_cache_is_a_table_in_and_out(tmp_path: Path, interrupted: bool) -> None:
    path = tmp_path / "convolution.json"
    text = json.dumps(CACHE)
    path.write_text(text[: -len("}}")] + ",\n" if interrupted else text)
    table = read_table(path)
    assert [knob.values for knob in table.space.knobs] == [(16, 32), ("rows", "columns")]
    assert table.outcomes[0] == Timed((1.9e-3, 2.0e-3, 2.2e-3)) and table.best_seconds == 1.5e-3
    failed = table.outcomes[1]
    assert isinstance(failed, Failed) and failed.reason is Reason.COMPILE_ERROR
    assert list(table.cost_seconds) == pytest.approx([0.9, 0.0, 0.1])
    found = list(tune(table.pool, RandomSearch(SearchProblem(table.pool, 1)), table.measure, Budget(10)))
    assert sorted(one.candidate for one in found) == [0, 1, 2]
    copy = tmp_path / "copy.json.gz"
    write_cache(copy, table.space, table.outcomes, list(table.cost_seconds), "A GPU")
    again = read_table(copy)
    assert [again.space.schedule(n) for n in range(3)] == [table.space.schedule(n) for n in range(3)]
    assert list(again.cost_seconds) == pytest.approx(list(table.cost_seconds))
    for now, then in zip(again.outcomes, table.outcomes, strict=True):
        if isinstance(then, Timed):
            assert isinstance(now, Timed) and now.samples == pytest.approx(then.samples)
        else:
            assert now == then


def test_what_is_no_cache_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    for wrong in ("no JSON", '{"cache": {}}', json.dumps({**CACHE, "tune_params": {"block_size_x": [64]}}), "[1]"):
        path.write_text(wrong)
        with pytest.raises(InvalidParameter, match=r"wrong\.json"):
            read_table(path)
