"""Bar: tenants with weights 1:1:2:4 share simulated devices within 2 points, none starves, higher priorities go first,
and 20 identical submissions measure once.

``--set jobs=N`` (default 500): so many jobs of one task each, dealt out by weight, all submitted over HTTP before the
first device is there; 20 of them are equal. ``--set units=N`` (8): so many simulated devices. ``--trials N``: trials of
a job (default 10). Every trial takes ``--set trial_ms=N`` (50).

Shares are those of device seconds until the first tenant has no task left to claim.
"""

import os
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from datetime import datetime
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import select

from benchmarks.suite import Options, Result
from tilewright.core.streams import stream
from tilewright.db.store import RecordStore
from tilewright.db.tables import attempts, jobs, tasks, trials, workloads
from tilewright.tests.db.fleets import migrated
from tilewright.tests.db.postgres import server
from tilewright.tests.service.killing import KillableServer
from tilewright.tests.service.simulated import simulated_fleet

WEIGHTS = {"a": 1, "b": 1, "c": 2, "d": 4}
POINTS = 0.02
EQUAL = 20
PRIORITIES = (-1, 0, 1)
SAME_MOMENT = 0.5
"""Claims that are so close to each other, in seconds, came at the same moment: a claimer passes over a task that
another looks at."""
END_SECONDS = 3600.0
STARVED_SHARE = 0.25
"""A tenant that gets no task in so much of the time has starved."""


def run(options: Options) -> Result:
    count, units = int(options.extra.get("jobs", "500")), int(options.extra.get("units", "8"))
    budget, seconds = options.trials or 10, float(options.extra.get("trial_ms", "50")) / 1e3
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(server()).url()
        store = stack.enter_context(migrated(url))
        os.environ["TILEWRIGHT_RUN_JOBS"] = "false"
        front = KillableServer(url, folder / "log")
        front.start()
        del os.environ["TILEWRIGHT_RUN_JOBS"]
        stack.callback(front.kill)
        front.wait_until_ready()
        for name, weight in WEIGHTS.items():
            store.fleet.set_tenant(name, weight=weight, most_units=None, most_queued=None)
        equal = _submit(front, count, budget, options.seed)
        began = time.monotonic()
        with simulated_fleet(url, units, seconds):
            while (left := _unfinished(store)) and time.monotonic() < began + END_SECONDS:
                time.sleep(0.5)
        wall = time.monotonic() - began
        states = dict(store.count_by_state())
        found = _Claims(store)
        measured = found.measured_of(equal)
    shares, wanted = found.shares(), {name: weight / sum(WEIGHTS.values()) for name, weight in WEIGHTS.items()}
    off = max(abs(shares[name] - wanted[name]) for name in WEIGHTS)
    gaps = found.longest_gaps()
    rows = tuple(
        {"row": f"tenant {name}", "weight": weight, "share": shares[name], "wanted": wanted[name], **gaps[name]}
        for name, weight in WEIGHTS.items()
    )
    starved = [name for name in WEIGHTS if float(gaps[name]["longest_gap_share"]) > STARVED_SHARE]
    passed = off <= POINTS and not left and not starved and found.inversions() == 0 and measured == budget
    summary = {
        "most_off_points": 100 * off,
        "starved": starved,
        "claims_against_priority": found.inversions(),
        "equal_jobs": EQUAL,
        "trials_measured_for_them": measured,
        "states": states,
        "wall_seconds": wall,
    }
    settings = {"jobs": count, "units": units, "trials": budget, "trial_seconds": seconds, "simulated": True}
    return Result(rows, summary, passed=passed and states.get("succeeded") == count, settings=settings)


def _submit(front: KillableServer, count: int, budget: int, seed: int) -> str:
    """Submit all jobs in a random order; return the expression's key of the equal ones."""
    draws = stream(seed, "fleet share")
    whose = [name for name, weight in WEIGHTS.items() for _ in range(count * weight // sum(WEIGHTS.values()))]
    whose += ["d"] * (count - len(whose))
    key = ""
    for number, place in enumerate(draws.permutation(count)):
        equal = number % (count // EQUAL) == 0 and number < count // EQUAL * EQUAL
        task = {"operator": "matmul", "parameters": {"m": 16, "n": 16, "k": 8 if equal else 16 + number}}
        body = {
            "tasks": [task],
            "budget": {"trials": budget},
            "strategy": "random",
            "seed": 0 if equal else number,
            "tenant": whose[int(place)],
            "priority": PRIORITIES[int(draws.integers(len(PRIORITIES)))],
            "fresh": not equal,
        }
        answer = front.ask("POST", "/v1/jobs", body)
        if answer is None or answer[0] != 201:
            raise RuntimeError(f"job {number} was not taken: {answer}")
        if equal:
            key = str(answer[1]["tasks"][0]["workload_key"])
    return key


def _unfinished(store: RecordStore) -> int:
    counts = store.count_by_state()
    return sum(count for state, count in counts.items() if state in ("queued", "running"))


class _Claims:
    """What the database says of who was given which task, and when."""

    def __init__(self, store: RecordStore) -> None:
        claimed = (
            select(jobs.c.tenant, jobs.c.priority, jobs.c.number, attempts.c.began_at)
            .join(attempts, attempts.c.job == jobs.c.number)
            .where(jobs.c.fresh)
            .order_by(attempts.c.began_at)
        )
        spent = (
            select(jobs.c.tenant, trials.c.created_at, trials.c.time_seconds, workloads.c.key)
            .join(jobs, jobs.c.number == trials.c.job)
            .join(tasks, (tasks.c.job == trials.c.job) & (tasks.c.position == trials.c.task))
            .join(workloads, workloads.c.id == tasks.c.workload)
            .where(trials.c.adopted_from.is_(None))
        )
        with store.database.reading() as connection:
            self._claims = [dict(row) for row in connection.execute(claimed).mappings()]
            self._trials = [dict(row) for row in connection.execute(spent).mappings()]
        self._of: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for claim in self._claims:
            self._of[claim["tenant"]].append(claim)
        self._end = min(claims[-1]["began_at"] for claims in self._of.values())

    def shares(self) -> dict[str, float]:
        seconds: Counter[str] = Counter()
        for trial in self._trials:
            if datetime.fromisoformat(trial["created_at"]).timestamp() <= self._end:
                seconds[trial["tenant"]] += trial["time_seconds"]
        return {name: seconds[name] / max(seconds.total(), 1e-9) for name in WEIGHTS}

    def longest_gaps(self) -> dict[str, dict[str, float]]:
        """Return the longest time without a claim of each tenant, until the first one has no task left."""
        first = self._claims[0]["began_at"]
        found = {}
        for name in WEIGHTS:
            times = [first, *(c["began_at"] for c in self._of[name] if c["began_at"] <= self._end), self._end]
            gap = max(after - before for before, after in pairwise(times))
            found[name] = {"longest_gap_s": gap, "longest_gap_share": gap / max(self._end - first, 1e-9)}
        return found

    def inversions(self) -> int:
        """Return how many pairs of a tenant's tasks were claimed against their priorities, or against their age."""
        return sum(
            (later["priority"], -later["number"]) > (earlier["priority"], -earlier["number"])
            and later["began_at"] - earlier["began_at"] > SAME_MOMENT
            for claims in self._of.values()
            for earlier, later in combinations(claims, 2)
        )

    def measured_of(self, key: str) -> int:
        return sum(trial["key"] == key for trial in self._trials)
