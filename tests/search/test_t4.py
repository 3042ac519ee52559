"""Tables in the T4 form: nothing that search needs is lost, and foreign ones are read."""

import gzip
import json
from pathlib import Path

import pytest

from tilewright.core.errors import InvalidParameter
from tilewright.core.schedule import Schedule
from tilewright.core.trial import Clocks, Evidence, Failed, Outcome, Reason, Timed, Trial, TrialStage
from tilewright.search.recorded import read_table
from tilewright.search.t4 import t4_result, write_t4

NOW = "2026-11-21T12:00:00+00:00"
OUTCOMES: tuple[Outcome, ...] = (
    Timed((0.25, 0.5, 0.125), 80),
    Failed(TrialStage.COMPILE, Reason.RESOURCES, "it spills 12 bytes"),
    Failed(TrialStage.CHECK, Reason.UNWRITTEN, "3 of 4 elements"),
    Failed(TrialStage.TIME, Reason.TIMEOUT, "time took over 30 s"),
    Failed(TrialStage.LOAD, Reason.LAUNCH_ERROR, "refused"),
)
CLASSES = ("correct", "compile", "correctness", "timeout", "runtime")


def trial(place: int, outcome: Outcome) -> Trial:
    schedule = Schedule.of("products", 3, {"wide": 64 * (place + 1), "order": "band"})
    clocks = Clocks(compile=0.5, check=0.25, time=0.125, overhead=0.0625)
    return Trial(schedule, outcome, clocks, Evidence(max_error=0.5, environment={"registers": 168.0}))


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "x.t4.json.gz"
    trials = [trial(n, outcome) for n, outcome in enumerate(OUTCOMES)]
    metadata = {
        "sketch": "products",
        "version": 3,
        "tune_params": {"wide": [64, 128, 192, 256, 320, 384], "order": ["band"]},
        "meanings": {"wide": "columns of a tile"},
        "quantities": [{"name": "waves", "unit": "waves", "meaning": "how often the device fills up"}],
    }
    results = [t4_result(t, {"waves": 1.5 + n, "shared": float("nan")}, NOW) for n, t in enumerate(trials)]
    write_t4(path, metadata, results)
    table = read_table(path)
    assert tuple(table.outcomes) == OUTCOMES
    assert [table.space.schedule(n) for n in range(len(trials))] == [t.schedule for t in trials]
    assert table.space.knobs[0].values == (64, 128, 192, 256, 320, 384)
    assert table.space.knobs[0].meaning == "columns of a tile"
    assert list(table.space.quantities["waves"]) == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert list(table.cost_seconds) == [0.9375] * len(trials)
    assert [t.outcome for _, t in table.measure([t.schedule for t in reversed(trials)])] == list(reversed(OUTCOMES))


def test_others_find_what_the_schema_wants(tmp_path: Path) -> None:
    path = tmp_path / "x.t4.json.gz"
    write_t4(path, {}, [t4_result(trial(n, outcome), {}, NOW) for n, outcome in enumerate(OUTCOMES)])
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert document["schema_version"] == "1.0.0"
    for result, outcome, invalidity in zip(document["results"], OUTCOMES, CLASSES, strict=True):
        assert {"configuration", "times", "invalidity", "correctness", "objectives"} <= set(result)
        assert (result["invalidity"], result["correctness"]) == (invalidity, int(isinstance(outcome, Timed)))
    (time,) = (m for m in document["results"][0]["measurements"] if m["name"] == "time")
    assert time == {"name": "time", "value": 250.0, "unit": "ms"}
    assert document["results"][0]["times"]["runtimes"] == [250.0, 500.0, 125.0]


def test_a_foreign_document_is_read(tmp_path: Path) -> None:
    good = {
        "configuration": {"block": 32, "unroll": 1},
        "times": {"compilation_time": 900, "framework": 50, "runtimes": [2.0, 4.0, 3.0]},
        "invalidity": "correct",
        "correctness": 1,
        "objectives": ["time"],
        "measurements": [{"name": "time", "value": 3.0, "unit": ""}],
    }
    bad = {**good, "configuration": {"block": 16, "unroll": 1}, "invalidity": "runtime", "times": {"framework": 50}}
    path = tmp_path / "convolution.json"
    path.write_text(json.dumps({"schema_version": "1.0.0", "metadata": {}, "results": [good, bad]}))
    table = read_table(path)
    assert table.space.sketch == "convolution.json"
    assert table.space.knobs[0].values == (16, 32)
    assert table.outcomes[0] == Timed((2e-3, 4e-3, 3e-3))
    assert isinstance(table.outcomes[1], Failed) and table.outcomes[1].reason is Reason.LAUNCH_ERROR
    assert list(table.cost_seconds) == [0.959, 0.05]


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"results": [], "metadata": 1}', '{"results": [{"configuration": {}}], "metadata": {}}'],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InvalidParameter, match="T4"):
        read_table(path)
