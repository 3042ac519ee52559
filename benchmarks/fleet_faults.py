"""Bar: whatever dies, hangs or loses its database, nothing acknowledged is lost or doubled and every job ends well.

Three services share a PostgreSQL database and this machine's processor, with leases of 3 s. ``--set kills=N`` (default
40): so many ``kill -9`` in equal parts of services, task workers and their children; ``stops=N`` (4): so many task
workers stopped beyond the end of their lease; ``restarts=N`` (8) and ``stalls=N`` (4) of the database.
``disks=N`` (0): so often the database's disk is full for a while; ``cuts=N`` (0): so often a service is cut off the
database, which has a network namespace then; ``heads=N`` (0): so often the head of a Ray cluster, to which every second
job goes then, is killed and started again. The first two need root.
``before=FILE``: the counts of an earlier part are added. ``--trials N``: trials of each task (default 60).
"""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.suite import Options, Result
from tilewright.core.streams import stream
from tilewright.tests.service.fleet_faults import LEASE_SECONDS, disturb_with_what_is_needed


def run(options: Options) -> Result:
    counts = {name: int(options.extra.get(name, default)) for name, default in DEFAULTS.items()}
    killed = ("kill service", "kill task worker", "kill child")
    kinds = [killed[n % 3] for n in range(counts["kills"])]
    kinds += ["stop task worker"] * counts["stops"]
    kinds += ["restart database"] * counts["restarts"]
    kinds += ["stall database"] * counts["stalls"]
    kinds += ["fill disk"] * counts["disks"] + ["cut network"] * counts["cuts"] + ["lose head"] * counts["heads"]
    order = [kinds[n] for n in stream(options.seed, "order").permutation(len(kinds))]
    with tempfile.TemporaryDirectory() as folder:
        report = disturb_with_what_is_needed(Path(folder), order, options.seed, trials=options.trials or 60)
    row = {"row": f"part with seed {options.seed}", **asdict(report), "faults": list(report.faults)}
    rows = [row]
    if "before" in options.extra:
        rows = [*json.loads(Path(options.extra["before"]).read_text())["rows"], row]
    done: dict[str, int] = {}
    for part in rows:
        for kind, count in part["done"].items():
            done[kind] = done.get(kind, 0) + count
    faults = sum(len(part["faults"]) for part in rows)
    summary = {"done": done, "faults": faults, "longest_pause_s": max(part["longest_pause"] for part in rows)}
    return Result(tuple(rows), summary, passed=faults == 0, settings={**counts, "lease_seconds": LEASE_SECONDS})


DEFAULTS = {"kills": "40", "stops": "4", "restarts": "8", "stalls": "4", "disks": "0", "cuts": "0", "heads": "0"}
