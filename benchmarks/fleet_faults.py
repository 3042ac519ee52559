"""Bar: whatever dies, hangs, loses its database or has a wrong clock, nothing acknowledged is lost or
doubled, and every job ends well.

Three services share a PostgreSQL database, this machine's processor, six simulated devices and a Ray cluster of three
nodes, with leases of 3 s. The faults and how many are wanted in all: ``TOTAL``; ``--set kills=N`` and so on for other
numbers. ``kills`` are ``kill -9`` by the shares of ``KILLS``. Cuts and full disks need root, clocks libfaketime. What
is done to processes of different kinds is done at the same time; services and simulated devices start by forking.

A run is one part: it does what is missing after the parts in ``--set before=FILE``, in a random order, for
``--set minutes=N`` (40) at most, and its result holds all parts and their sum. ``--trials N``: trials of each task
(60). ``--set ray=0`` does without the cluster, and leaves for another part what needs it: on a busy machine its nodes
take minutes to start. ``--set planted=1``: the workers of simulated devices check no fence, are stopped beyond the end
of their leases, and the check has to find it; that is a part like the others, whose faults are wanted.

SIGINT, SIGTERM and SIGHUP end a part without a result. Its servers, mounts and network namespace are removed then; the
next part removes what one left behind that was killed.
"""

import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.suite import Options, Result
from tilewright.core.streams import stream
from tilewright.tests.db import database_network, postgres
from tilewright.tests.service.fleet_faults import LEASE_SECONDS, Plan, disturb

KILLS = {
    "kill service": 8,
    "kill task worker": 12,
    "kill child": 22,
    "kill simulated worker": 42,
    "kill Ray process": 4,
    "kill database process": 12,
}
"""What is killed -> its share of all kills in percent. The cheaper a process is to start, the more often it dies."""
SIMULATED = 6
TOTAL = {
    "kills": 1000,
    "restarts": 100,
    "stalls": 50,
    "cuts": 30,
    "stops": 30,
    "heads": 10,
    "disks": 20,
    "clocks": 20,
}
KINDS = {
    "restarts": "restart database",
    "stalls": "stall database",
    "cuts": "cut network",
    "stops": "stop task worker",
    "heads": "lose head",
    "disks": "fill disk",
    "clocks": "jump clock",
}
NEED_RAY = ("kill Ray process", "lose head")


def run(options: Options) -> Result:
    counts = {name: int(options.extra.get(name, number)) for name, number in TOTAL.items()}
    before = Path(options.extra.get("before", ""))
    rows: list[dict[str, Any]] = json.loads(before.read_text())["rows"] if before.is_file() else []
    planted = bool(int(options.extra.get("planted", "0")))
    minutes = float(options.extra.get("minutes", "40"))
    ray = bool(int(options.extra.get("ray", "1"))) and not planted
    missing = {"stop task worker": 20} if planted else _missing(counts, _done(rows))
    kinds = [kind for kind, count in missing.items() for _ in range(count) if ray or kind not in NEED_RAY]
    seed = options.seed + len(rows)
    order = [kinds[n] for n in stream(seed, "order").permutation(len(kinds))]
    if order:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _end)
        postgres.remove_leftovers()
        database_network.remove_leftovers()
        trials = options.trials or 60
        plan = Plan(order, seed, trials, seconds=60 * minutes, simulated=SIMULATED, ray=ray, unfenced=planted)
        with tempfile.TemporaryDirectory() as folder:
            report = disturb(Path(folder), plan)
        about = {"row": f"part with seed {seed}", "ray": ray, "planted": planted}
        rows.append({**about, **asdict(report), "faults": list(report.faults)})
    done = _done(rows)
    faults = sum(len(part["faults"]) for part in rows if not part.get("planted"))
    found = [bool(part["faults"]) for part in rows if part.get("planted")]
    left = _missing(counts, done)
    summary = {
        "done": dict(done),
        "kills": sum(done[kind] for kind in KILLS),
        "missing": {kind: count for kind, count in left.items() if count},
        "faults": faults,
        "planted_found": f"{sum(found)} of {len(found)}",
        "longest_pause_s": max((part["longest_pause"] for part in rows), default=0.0),
        "seconds": sum(part["seconds"] for part in rows),
    }
    settings = {**counts, "lease_seconds": LEASE_SECONDS, "planted": planted, "minutes": minutes}
    return Result(tuple(rows), summary, passed=not faults and all(found), settings=settings)


def _end(number: int, _frame: object) -> None:
    """End as by an exception, so that every server and mount is removed, and only once."""
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def _done(rows: list[dict[str, Any]]) -> Counter[str]:
    """Return how often each kind of fault was done in all parts but those with a planted bug."""
    done: Counter[str] = Counter()
    for part in rows:
        if not part.get("planted"):
            done.update(part["done"])
    return done


def _missing(counts: Mapping[str, int], done: Mapping[str, int]) -> dict[str, int]:
    """Return how often each kind of fault is to be done yet."""
    wanted = {kind: round(counts["kills"] * share / 100) for kind, share in KILLS.items()}
    wanted |= {kind: counts[name] for name, kind in KINDS.items()}
    return {kind: max(0, count - done.get(kind, 0)) for kind, count in wanted.items()}
