"""The suite that measures what search costs searches as tasks of a service do, with records of a database."""

from benchmarks.ranking import run
from benchmarks.suite import Options


def test_tasks_learn_from_the_nearest_of_many_records() -> None:
    result = run(Options(rows="softmax*", trials=8, extra={"records": "2000"}))
    (row,) = result.rows
    assert result.settings["records"] == 2000
    assert 256 <= int(str(row["learned_from"])) < 512
    costs = [float(str(row[f"{name}_ms_per_candidate"])) for name in ("cold", "model", "warm")]
    assert min(costs) > 0 and result.summary["max_ms_per_candidate"] == max(costs)
