"""A front end ends leases that ran out, though no process with task workers is there."""

import time

import pytest

from tilewright.core.fleet import TaskState
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.db.fleets import claimed, migrated, submit
from tilewright.tests.db.postgres import PostgresServer

WAIT_SECONDS = 120.0


@pytest.mark.postgres
def test_a_front_end_ends_leases_that_ran_out(postgres: PostgresServer) -> None:
    url = postgres.url()
    with migrated(url) as store:
        submit(store, "j")
        held = claimed(store, seconds=1.0)
        with Service.open(Settings(database_url=url, run_jobs=False, lease_seconds=1.0)):
            end = time.monotonic() + WAIT_SECONDS
            while store.job("j").tasks[0].state is not TaskState.READY:
                assert time.monotonic() < end
                time.sleep(0.05)
        (attempt,) = store.fleet.attempts("j", 0)
        assert (attempt.fence, attempt.how) == (held.lease.fence, "lease_lost")
