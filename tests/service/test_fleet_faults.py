"""A short form of ``python -m benchmarks fleet-faults``: each kind of fault once, on three services."""

from pathlib import Path

import pytest

from tests.service.fleet_faults import KINDS, disturb
from tilewright.tests.db.postgres import server


@pytest.mark.postgres
def test_nothing_is_lost_or_doubled_whatever_dies(tmp_path: Path) -> None:
    with server() as postgres:
        report = disturb(tmp_path, postgres, list(KINDS), seed=1, trials=25)
    assert report.faults == ()
    assert report.done == dict.fromkeys(KINDS, 1) and report.seen > 0
