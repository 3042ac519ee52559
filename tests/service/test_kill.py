"""``kill -9`` at any moment loses nothing and doubles nothing (``python -m benchmarks kill`` does it 200 times)."""

from pathlib import Path

from tilewright.tests.service.killing import kill_again_and_again


def test_a_job_survives_the_death_of_its_server(tmp_path: Path) -> None:
    outcome = kill_again_and_again(tmp_path, kills=3, seed=1, trials=24)
    assert outcome.faults == ()
    assert outcome.seen > 0 and outcome.orphans == 0
