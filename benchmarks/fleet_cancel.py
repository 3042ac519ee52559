"""Bar: a cancelled job's work stops in under 1 s in 99 of 100 cases.

``--set cancels=N`` (default 100): so many jobs, each cancelled at a random moment of its work. ``--set executor=ray``:
on a Ray cluster that ``ray start --head`` begins on this machine; the default is ``local``. ``--set database=sqlite``:
the embedded database instead of PostgreSQL.

Work has stopped when the job is cancelled and no process holds the device to time on it, which the lock file of the
device shows.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from benchmarks.suite import Options, Result
from tilewright.core.streams import stream
from tilewright.tests.db.fleets import migrated
from tilewright.tests.db.postgres import server
from tilewright.tests.ports import free_port
from tilewright.tests.service.killing import KillableServer
from tilewright.tests.service.ray_head import RayHead

STOP_SECONDS = 1.0
SHARE = 0.99
BEGIN_SECONDS = 600.0
"""A job has its first trial within so long."""
QUIET_SECONDS = 1.0
"""The device counts as free once nobody has held it for so long; when that began is what is reported."""
LOOK_SECONDS = 0.002


def run(options: Options) -> Result:
    cancels, executor = int(options.extra.get("cancels", "100")), options.extra.get("executor", "local")
    database = options.extra.get("database", "postgresql")
    draws = stream(options.seed, "cancel")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(_environment(TILEWRIGHT_LOCK_FOLDER=str(folder)))
        if executor == "ray":
            head = stack.enter_context(RayHead(free_port()))
            stack.enter_context(_environment(TILEWRIGHT_RAY_ADDRESS=head.address))
        url = f"sqlite:///{folder}/db.sqlite3"
        if database != "sqlite":
            url = stack.enter_context(server()).url()
            with migrated(url):
                pass
        service = KillableServer(url, folder / "log")
        service.start()
        stack.callback(service.kill)
        service.wait_until_ready()
        waits = [float(draws.uniform(0.0, 2.0)) for _ in range(cancels)]
        rows = tuple(_cancelled(service, folder, executor, number, wait) for number, wait in enumerate(waits))
    stops = sorted(float(str(row["stopped_s"])) for row in rows)
    within = sum(stop < STOP_SECONDS for stop in stops)
    summary = {"within_1_s": within, "of": cancels, "median_s": stops[len(stops) // 2], "longest_s": stops[-1]}
    settings = {"cancels": cancels, "executor": executor, "database": database}
    return Result(rows, summary, passed=within >= SHARE * cancels, settings=settings)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Have these variables inside the block, for the processes that it starts."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _cancelled(service: KillableServer, folder: Path, executor: str, number: int, wait: float) -> dict[str, object]:
    """Cancel a job ``wait`` seconds after its first trial; say how long it took until its work had stopped."""
    task = {"operator": "matmul", "parameters": {"m": 256, "n": 256, "k": 256 + number}}
    body = {"tasks": [task], "budget": {"trials": 10_000}, "strategy": "random", "executor": executor, "fresh": True}
    submitted = service.ask("POST", "/v1/jobs", body)
    if submitted is None or submitted[0] != 201:
        raise RuntimeError(f"no job: {submitted}")
    path = f"/v1/jobs/{submitted[1]['id']}"
    end = time.monotonic() + BEGIN_SECONDS
    while not _job(service, path)["tasks"][0]["trials"]:
        if time.monotonic() > end:
            raise RuntimeError(f"no trial in {BEGIN_SECONDS:g} s: {_job(service, path)}")
        time.sleep(0.02)
    time.sleep(wait)
    asked = time.monotonic()
    if (service.ask("POST", f"{path}/cancel") or (0,))[0] != 200:
        raise RuntimeError("the job was not cancelled")
    state, cancelled, held = "", 0.0, asked
    while state != "cancelled" or time.monotonic() - max(held, cancelled) < QUIET_SECONDS:
        if _is_held(folder):
            held = time.monotonic()
        if state != "cancelled":
            state, cancelled = str(_job(service, path)["state"]), time.monotonic()
        time.sleep(LOOK_SECONDS)
    row = {"state_s": cancelled - asked, "device_s": held - asked, "stopped_s": max(held, cancelled) - asked}
    return {"row": f"cancel {number}", "after_s": wait, **row}


def _job(service: KillableServer, path: str) -> dict[str, list[dict[str, int]]]:
    answer = service.ask("GET", path)
    if answer is None or answer[0] != 200:
        raise RuntimeError(f"{path} is not answered: {answer}")
    found: dict[str, list[dict[str, int]]] = answer[1]
    return found


def _is_held(folder: Path) -> bool:
    """Return whether a process that lives has the device; its lock file names it. This takes no lock, which would delay
    it."""
    for path in folder.glob("tilewright-device-*.lock"):
        try:
            holder = psutil.Process(json.loads(path.read_text())["pid"])
            if holder.status() != psutil.STATUS_ZOMBIE:
                return True
        except (ValueError, psutil.NoSuchProcess):  # nobody, or one that was killed
            continue
    return False
