"""What a best-schedule look-up costs with 100,000 records in SQLite. Bar: under 0.5 ms of server CPU each.

``service``: the look-up itself, as a program in the same process makes it. ``http``: the whole request on a running
server, by the CPU time of the server's process. Both over random workloads, half with all identity parts given, and
``relaxed`` rows where the record is of another toolchain or device than asked for.
"""

import http.client
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path

import psutil
from sqlalchemy import insert

from benchmarks.suite import Options, Result
from tilewright.core.budget import Budget
from tilewright.core.record import MeasuredOn
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import DeviceInfo, Profile, Target, Toolchain
from tilewright.core.trial import Clocks, Evidence, Timed, Trial
from tilewright.db.catalog import keep_device, keep_toolchain, keep_workload
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.db.tables import trials
from tilewright.db.task import task_of
from tilewright.db.trials import columns_of
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.views import BestView
from tilewright.te.operators import OPERATORS
from tilewright.tests.service.killing import KillableServer

RECORDS, WORKLOADS, LOOKUPS = 100_000, 1_000, 3_000
LIMIT_MS = 0.5


def run(options: Options) -> Result:
    records = options.trials or RECORDS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tilewright.sqlite3"
        settings = Settings(database_url=f"sqlite:///{path}", run_jobs=False)
        with Service.open(settings) as service:
            here = service.default_device
            assert here is not None, "this machine has no device"
        started = time.perf_counter()
        keys = fill(settings.database_url, records, here)
        fill_seconds = time.perf_counter() - started
        rows = [
            row
            for row in (*_in_process(settings, keys, here, options), *_over_http(path, keys, options))
            if fnmatch(str(row["row"]), options.rows)
        ]
        size = path.stat().st_size
    slowest = max((float(str(row["cpu_ms"])) for row in rows), default=0.0)
    summary = {"records": records, "slowest_ms": slowest, "fill_seconds": fill_seconds, "file_bytes": size}
    settings_used = {"records": records, "workloads": WORKLOADS, "lookups": LOOKUPS}
    return Result(tuple(rows), summary, passed=slowest < LIMIT_MS, settings=settings_used)


def fill(url: str, records: int, here: MeasuredOn) -> Sequence[str]:
    """Records of matmuls of many shapes: on this device, an older toolchain of it, and another device."""
    draws = stream(0, "fill")
    older = Toolchain({**here.toolchain.components, "tilewright": "older"})
    other = DeviceInfo("Some other CPU", Target("llvm", "x86-64"), {"cores": 64.0})
    places = [
        here,
        MeasuredOn(here.device, older, here.profile),
        MeasuredOn(here.device, here.toolchain, Profile("cold")),
        MeasuredOn(other, here.toolchain, here.profile),
    ]
    tasks = []
    for number in range(WORKLOADS):
        shape: dict[str, object] = {"m": 8 + number, "n": 64, "k": 32}
        tasks.append(task_of(OPERATORS["matmul"].workload(shape), "matmul", shape))
    with RecordStore(url) as store:
        new = NewJob("filled", "succeeded", tuple(tasks), Budget(), "random", 0, "llvm", "local", "warm")
        job, _ = store.create_job(new)
        with store.database.writing() as connection:
            workloads = [keep_workload(connection, task) for task in tasks]
            nouns = [(keep_device(connection, on.device), keep_toolchain(connection, on.toolchain)) for on in places]
            rows = []
            for number in range(records):
                task, sequence = number % WORKLOADS, number // WORKLOADS
                # a third of the workloads have records of one place only: a look-up may have to relax to find them
                place = task % 4 if task % 3 == 0 else int(draws.integers(4))
                knobs: dict[str, int | str] = {"tile_m": sequence, "tile_n": 8, "unroll": 4, "order": "ijk"}
                trial = Trial(
                    Schedule.of("cpu_loops", 1, knobs),
                    Timed(tuple(1e-5 * (1 + draws.random(7))), 10),
                    Clocks(0.001, 0.02, 0.003, 0.01, 0.001),
                    Evidence(1, 0.25, 1e-5, 1e-5, True, True, 1e-5, "0" * 64, 4096, {"load_average_1min": 0.5}),
                )
                kept = NewTrial("filled", task, sequence, "", places[place], trial, 0.1 * number)
                rows.append(columns_of(kept, job.number, workloads[task], *nouns[place]))
            connection.execute(insert(trials), rows)
    return [task.workload_key for task in tasks]


def _in_process(
    settings: Settings, keys: Sequence[str], here: MeasuredOn, options: Options
) -> Sequence[dict[str, object]]:
    draws = stream(options.seed, "lookups")
    wanted = [keys[int(i)] for i in draws.integers(len(keys), size=LOOKUPS)]
    parts = (here.device.key, here.toolchain.key, str(here.profile))
    with Service.open(settings) as service:

        def best(key: str, device: str | None, toolchain: str | None, profile: str | None) -> BestView:
            return service.best(key, device_key=device, toolchain_key=toolchain, profile=profile)

        exact = [key for key in wanted if best(key, *parts).match == ("exact",)]
        relaxed = [key for key in wanted if key not in set(exact)]

        def look(which: Sequence[str], *given: str | None) -> Callable[[], None]:
            def looks() -> None:
                for key in which:
                    best(key, *given)

            return looks

        return [
            _row("service exact", len(exact), *_cpu_seconds(look(exact, *parts))),
            _row("service exact, this machine by default", len(exact), *_cpu_seconds(look(exact, None, None, None))),
            _row("service relaxed", len(relaxed), *_cpu_seconds(look(relaxed, *parts))),
        ]


def _cpu_seconds(work: Callable[[], None]) -> tuple[float, float]:
    work()
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def _over_http(path: Path, keys: Sequence[str], options: Options) -> Sequence[dict[str, object]]:
    draws = stream(options.seed, "requests")
    wanted = [keys[int(i)] for i in draws.integers(len(keys), size=LOOKUPS)]
    server = KillableServer(f"sqlite:///{path}", path.with_suffix(".log"))
    server.start()
    try:
        server.wait_until_ready()
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)

        def asks() -> None:
            for key in wanted:
                connection.request("GET", f"/v1/schedules/best?workload_key={key}")
                answer = connection.getresponse()
                body = answer.read()
                assert answer.status == 200, body
                assert json.loads(body)["workload_key"] == key

        asks()
        before, wall = process.cpu_times(), time.perf_counter()
        asks()
        after = process.cpu_times()
        cpu = after.user + after.system - before.user - before.system
        return [_row("http", len(wanted), cpu, time.perf_counter() - wall)]
    finally:
        server.kill()


def _row(name: str, count: int, cpu_seconds: float, wall_seconds: float) -> dict[str, object]:
    return {
        "row": name,
        "lookups": count,
        "cpu_ms": 1e3 * cpu_seconds / count,
        "wall_ms": 1e3 * wall_seconds / count,
        "limit_ms": LIMIT_MS,
    }
