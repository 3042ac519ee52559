"""Bar: 100 of 100 jobs succeed although PostgreSQL is restarted while each runs, and each goes on within 10 s.

Two services share the database and this machine's processor. ``--set jobs=N`` (default 100): so many jobs, one after
the other. ``--trials N``: trials of each of a job's two tasks (default 20). A pause is the time from the moment at
which PostgreSQL answers again to the next trial that a service shows.
"""

import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.suite import Options, Result
from tilewright.core.streams import stream
from tilewright.tests.db.fleets import migrated
from tilewright.tests.db.postgres import PostgresServer, server
from tilewright.tests.service.fleet_faults import Services
from tilewright.tests.service.killing import KillableServer, Observer

PAUSE_SECONDS = 10.0
LEASE_SECONDS = 15.0
END_SECONDS = 240.0
"""A job that is not done by then has failed the bar."""
LOOK_SECONDS = 0.02


def run(options: Options) -> Result:
    jobs, trials = int(options.extra.get("jobs", "100")), options.trials or 20
    with tempfile.TemporaryDirectory() as folder, server() as postgres:
        url = postgres.url()
        with migrated(url):
            pass
        group = Services([KillableServer(url, Path(folder) / f"log-{n}", LEASE_SECONDS) for n in range(2)])
        for one in group.servers:
            one.start()
        try:
            for one in group.servers:
                one.wait_until_ready()
            observer = Observer(group, trials, options.seed)
            rows = [_restarted(observer, postgres, number) for number in range(jobs)]
            faults = observer.verdict()
        finally:
            for one in group.servers:
                one.kill()
    pauses = [float(str(row["pause_s"])) for row in rows]
    succeeded = sum(row["state"] == "succeeded" for row in rows)
    longest = max(pauses)
    summary = {
        "succeeded": succeeded,
        "of": jobs,
        "longest_pause_s": longest,
        "median_pause_s": median(pauses),
        "faults": faults,
    }
    passed = succeeded == jobs and longest <= PAUSE_SECONDS and not faults
    settings = {"jobs": jobs, "lease_seconds": LEASE_SECONDS, "services": 2}
    return Result(tuple(rows), summary, passed=passed, settings=settings)


def _restarted(observer: Observer, postgres: PostgresServer, number: int) -> dict[str, object]:
    """Run a job, and restart the database after some of its trials."""
    key, began = f"job-{number}", time.monotonic()
    while key not in observer.jobs:
        observer.submit(number)
    job = observer.jobs[key]
    draws = stream(observer.seed, "restart", number)
    _see(observer, int(draws.integers(1, observer.trials)))
    stopped = time.monotonic()
    postgres.stop()
    postgres.start()
    up = time.monotonic()
    _see(observer, 1)
    pause = time.monotonic() - up
    while (state := observer.state(job)) not in ("succeeded", "failed", "cancelled"):
        if time.monotonic() > began + END_SECONDS:
            break
        observer.look()
        time.sleep(LOOK_SECONDS)
    observer.look()
    seconds = time.monotonic() - began
    return {"row": key, "state": state, "pause_s": pause, "restart_s": up - stopped, "seconds": seconds}


def _see(observer: Observer, count: int) -> None:
    """Look on until so many more trials were seen, or for as long as a job may take."""
    wanted, end = len(observer.seen) + count, time.monotonic() + END_SECONDS
    while len(observer.seen) < wanted and time.monotonic() < end:
        observer.look()
        time.sleep(LOOK_SECONDS)
