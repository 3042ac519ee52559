"""A short form of ``python -m benchmarks fleet-faults``: each kind of fault once, on three services."""

from pathlib import Path

import pytest

from tests.service.fleet_faults import KINDS, Plan, disturb
from tilewright.core.fleet import Lease
from tilewright.db import leases
from tilewright.tests.db.fleets import claimed, gpus, measure, migrated, run_out, submit
from tilewright.tests.db.postgres import server
from tilewright.tests.service.late_records import late_records, watch_for_late_records

pytestmark = pytest.mark.postgres


def test_nothing_is_lost_or_doubled_whatever_dies(tmp_path: Path) -> None:
    report = disturb(tmp_path, Plan(list(KINDS), seed=1, trials=25))
    assert report.faults == ()
    assert report.done.keys() == KINDS.keys() and report.seen > 0


def test_a_record_of_somebody_who_lost_the_task_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: no write checks its fence."""
    with server() as postgres, migrated(postgres.url()) as store:
        watch_for_late_records(store)
        first, second = gpus(store, 2)
        submit(store, "j")
        late = claimed(store, unit=first)
        measure(store, late, unit=first)
        run_out(store, late.lease)
        store.fleet.reap()
        measure(store, claimed(store, unit=second), unit=second)
        assert late_records(store) == []
        unguarded: list[Lease] = []
        monkeypatch.setattr(leases, "guard", lambda _, lease: unguarded.append(lease))
        measure(store, late, unit=first)
        (found,) = late_records(store)
        assert first in found and unguarded == [late.lease]
