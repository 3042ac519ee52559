"""What look-ups and lists cost the server, by the CPU time of its process, and what look-ups cost in a bundle.

Bars: at least 3,000 look-ups for a CPU-second on SQLite and 1,500 on PostgreSQL, hits and misses alike; 40,000 keys in
batches; the 99 % quantile under 20 ms at half of that load, hits and misses mixed; under 2 microseconds in a bundle
from C and 20 from Python; with 1,000,000 records less than 1.3 times what it is with 10,000; a better record shows
within 1 s; and every list and page takes less than 50 ms (``benchmarks.service_lists``). Every request shows a key that
sees one tenant, and workloads are drawn uniformly from all: a tenth as many as records.

``--trials`` is how many look-ups of each kind are sent. ``--set records=10000,1000000`` and
``--set databases=sqlite,postgresql`` say what is measured; a machine without PostgreSQL takes sqlite alone.
``--set parts=lookups,fresh,bundle,lists`` and ``--rows`` choose; nothing is filled or measured for other rows. One
database with both sizes takes about 8 minutes on two quiet cores, so that the whole runs as two commands.
``--set records=10000000 --set databases=postgresql --set parts=lists`` measures lists on more:
the database has 2 KB for each record, 20 GB.
``--set resume=FILE`` takes the rows that an earlier result has, and measures the others. The summary names each row
that fails its bar; a bar that no row measures is ``null``.
"""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import cycle
from pathlib import Path
from statistics import median

import psutil

from benchmarks import service_lists
from benchmarks.http_load import get, post, send
from benchmarks.service_fresh import better_records
from benchmarks.service_lists import cpu_seconds
from benchmarks.service_records import CONDITIONS, fill, key_of
from benchmarks.suite import Options, Result
from tilewright.api.client import Client
from tilewright.core.streams import stream
from tilewright.db.store import RecordStore
from tilewright.service.bundle import HEADER, Bundle
from tilewright.service.users import Users
from tilewright.tests.db.postgres import PostgresServer
from tilewright.tests.db.postgres import server as postgres
from tilewright.tests.service.killing import KillableServer

TOKEN = "a-token-of-a-benchmark"
LOOKUPS, BATCHES, KEYS, FOUND = 20_000, 60, 1_000, 200_000
HALF_LOAD_SECONDS = 10.0
USERS = 4
C_PASSES = 25
"""In the first pass of C through the keys the bundle comes from memory; later ones have caches as warm as in Python."""
PARTS = "lookups,fresh,bundle,lists"
FEWEST = {"sqlite": 3_000.0, "postgresql": 1_500.0}
FEWEST_KEYS, MOST_P99_MS, MOST_GROWTH, MOST_C_US, MOST_PYTHON_US = 40_000.0, 20.0, 1.3, 2.0, 20.0
C_READER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "tilewright_bundle.h"
/* reader FILE DEVICE TOOLCHAIN PROFILE KEYS PASSES: prints nanoseconds for each look-up in the first pass through all
 * keys, and in the median of all passes, and how many hit */
static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
int main(int count, char **a) {
    FILE *file = fopen(a[1], "rb"), *keys = fopen(a[5], "rb");
    if (count < 7 || !file || !keys) return 9;
    fseek(file, 0, SEEK_END);
    size_t bytes = (size_t)ftell(file), length, n = 0, hits = 0;
    rewind(file);
    char *data = malloc(bytes), *names = malloc(65 * 1000000u);
    if (!data || !names || fread(data, 1, bytes, file) != bytes) return 9;
    while (n < 1000000u && fscanf(keys, "%64s", names + 65 * n) == 1) n++;
    tilewright_bundle bundle;
    if (tilewright_bundle_open(&bundle, data, bytes, NULL, 0)) return 8;
    long at = tilewright_bundle_conditions(&bundle, a[2], a[3], a[4]);
    int passes = atoi(a[6]);
    double *ns = malloc(sizeof(double) * (size_t)passes), first;
    for (int i = 0; i < passes; i++) {
        struct timespec start, end;
        const char *json;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
        for (size_t k = 0; k < n; k++)
            hits += (size_t)tilewright_bundle_find(&bundle, at, names + 65 * k, &json, &length);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
        ns[i] = (1e9 * (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec)) / (double)n;
    }
    first = ns[0];
    qsort(ns, (size_t)passes, sizeof(double), by_size);
    printf("%.1f %.1f %zu\n", first, ns[passes / 2], hits);
    return 0;
}
"""


def run(options: Options) -> Result:
    sizes = [int(size) for size in options.extra.get("records", "10000,1000000").split(",")]
    databases = options.extra.get("databases", "sqlite,postgresql").split(",")
    parts = options.extra.get("parts", PARTS).split(",")
    rows = _earlier(options)
    known = {str(row["row"]) for row in rows}
    for database in databases:
        for size in sizes:
            # lists are measured with the most records alone
            here = [part for part in parts if part != "lists" or size == max(sizes)]
            missing = {
                part: names
                for part in here
                if (names := [n for n in _names(database, size, part) if fnmatch(n, options.rows) and n not in known])
            }
            if missing:
                rows += _measured(database, size, missing, options)
    growth = _growth(rows, min(sizes), max(sizes))
    bars = _bars(rows, growth)
    failed = [str(row["row"]) for row in rows if not row["met"]]
    summary = {"bars": bars, "failed": failed, "growth": growth, "most_growth": MOST_GROWTH, "rows": len(rows)}
    return Result(
        tuple(rows),
        summary,
        all(met is not False for met in bars.values()),
        settings={"records": sizes, "databases": databases, "parts": parts, "lookups": options.trials or LOOKUPS},
    )


def _earlier(options: Options) -> list[dict[str, object]]:
    if "resume" not in options.extra:
        return []
    found: list[dict[str, object]] = json.loads(Path(options.extra["resume"]).read_text())["rows"]
    return found


def _names(database: str, size: int, part: str) -> list[str]:
    """Return what the rows of a part are called."""
    at = f"{database} {size}"
    if part == "bundle":
        return [f"bundle {size} {language}" for language in ("python", "c")] if database == "sqlite" else []
    if part == "lists":
        return [f"{at} list {address}" for address in service_lists.addresses()]
    return [f"{at} {name}" for name in {"lookups": LOOKED_UP, "fresh": ("better record",)}[part]]


LOOKED_UP = ("hit", "miss", "batch", "half load")
BARS = {
    "look-ups for a CPU-second, hits and misses": ("* hit", "* miss"),
    "keys in batches for a CPU-second": ("* batch",),
    "99 % quantile at half load": ("* half load",),
    "a better record shows within 1 s": ("* better record",),
    "a look-up in a bundle": ("bundle *",),
    "lists and pages under 50 ms": ("* list *",),
}
"""Bar -> the rows that it is about."""


def _bars(rows: Sequence[Mapping[str, object]], growth: Mapping[str, float]) -> dict[str, bool | None]:
    """Return for each bar whether it was met; None: not measured."""
    found: dict[str, bool | None] = {}
    for bar, patterns in BARS.items():
        met = [bool(row["met"]) for row in rows if any(fnmatch(str(row["row"]), pattern) for pattern in patterns)]
        found[bar] = all(met) if met else None
    found["growth with the records"] = all(factor < MOST_GROWTH for factor in growth.values()) if growth else None
    return found


def _growth(rows: Sequence[dict[str, object]], small: int, large: int) -> dict[str, float]:
    """Return how much dearer each kind of look-up is with the most records than with the fewest."""
    costs = {str(row["row"]): float(str(row["cpu_us"])) for row in rows if "cpu_us" in row}
    found = {}
    for name, cost in costs.items():
        other = name.replace(f" {small} ", f" {large} ")
        if other != name and other in costs:
            found[name.replace(f" {small} ", " ")] = costs[other] / cost
    return found


@dataclass(frozen=True, slots=True)
class Measured:
    """What is measured: a server over a database with so many records. ``keys`` see one tenant and only read; each is
    another user's, because requests of one user at the same moment are limited."""

    server: KillableServer
    processes: Sequence[psutil.Process]
    """The server, and the database where it is another program."""
    keys: Sequence[str]
    database: str
    url: str
    folder: Path
    records: int
    workloads: int

    @property
    def name(self) -> str:
        return f"{self.database} {self.records}"


def _measured(
    database: str, records: int, parts: Mapping[str, Sequence[str]], options: Options
) -> list[dict[str, object]]:
    """Fill a database and measure these rows of each part."""
    with tempfile.TemporaryDirectory() as name, _database(database, Path(name)) as (url, running):
        started = time.perf_counter()
        workloads = fill(url, records, options.seed)
        filled = time.perf_counter() - started
        keys = _prepared(url)
        with _server(url, Path(name)) as server:
            assert server.process is not None
            processes = [psutil.Process(server.process.pid), *(() if running is None else running.processes()[:1])]
            at = Measured(server, processes, keys, database, url, Path(name), records, workloads)
            rows = _look_ups(at, options, parts["lookups"]) if "lookups" in parts else []
            if "fresh" in parts:
                rows += [_fresh(at)]
            if "bundle" in parts:
                rows += _bundle(at, options)
            if "lists" in parts:
                chosen = [name.removeprefix(f"{at.name} list ") for name in parts["lists"]]
                lists = service_lists.measure(server.port, keys[0], TOKEN, processes, chosen)
                rows += [{**row, "row": f"{at.name} list {row['row']}"} for row in lists]
        for row in rows:
            row["fill_seconds"] = filled
    return [row for row in rows if any(row["row"] in names for names in parts.values())]


def _prepared(url: str) -> list[str]:
    """Add the jobs that have ended to the totals, as a service does every hour; return the secrets of new keys."""
    with RecordStore(url) as store:
        store.count_ended()
        return [Users(store.keys).create_key(f"user {number}", ["read"])[1] for number in range(USERS)]


@contextmanager
def _database(kind: str, folder: Path) -> Iterator[tuple[str, PostgresServer | None]]:
    if kind == "sqlite":
        yield f"sqlite:///{folder}/tilewright.sqlite3", None
        return
    with postgres() as running:
        yield running.url(), running


@contextmanager
def _server(url: str, folder: Path) -> Iterator[KillableServer]:
    chosen = {"TOKEN": TOKEN, "RUN_JOBS": "false", "LOG_LEVEL": "warning"}
    environment = {f"TILEWRIGHT_{name}": value for name, value in chosen.items()}
    server = KillableServer(url, folder / "server.log", environment=environment)
    try:
        server.start()
        server.wait_until_ready()
        yield server
    finally:
        server.kill()


def _fresh(at: Measured) -> dict[str, object]:
    """Say how soon a better record shows that another server of the same database takes, or the same one where it is
    the only one that may open the database."""
    with ExitStack() as stack:
        other = at.server if at.database == "sqlite" else stack.enter_context(_server(at.url, at.folder))
        slowest = max(better_records(at.server.port, other.port, at.keys[0], TOKEN, at.folder))
    return {"row": f"{at.name} better record", "slowest_seconds": slowest, "most_seconds": 1.0, "met": slowest < 1.0}


def _look_ups(at: Measured, options: Options, names: Sequence[str]) -> list[dict[str, object]]:
    server, process, workloads = at.server, at.processes[:1], at.workloads
    draws, users = stream(options.seed, "lookups"), cycle(at.keys)
    lookups = options.trials or LOOKUPS
    parts = "&".join(f"{name}={value}" for name, value in CONDITIONS.items())

    def path(key: str) -> bytes:
        return get(f"/v1/schedules/best?workload_key={key}&{parts}", next(users))

    hits = [path(key_of(int(n))) for n in draws.integers(workloads, size=lookups)]
    misses = [path(key_of(-1 - int(n))) for n in draws.integers(1 << 40, size=lookups)]
    batches = []
    for _ in range(BATCHES):
        # no key twice: of fewer workloads more would be drawn twice, and be found once
        chosen = draws.choice(workloads, size=min(KEYS, workloads), replace=False)
        keys = [key_of(int(n)) for n in chosen]
        body = json.dumps({"workload_keys": keys, **CONDITIONS}).encode()
        batches.append(post("/v1/schedules/batch_lookup", body, next(users)))
    rows = []
    for name, requests, keys_each, status, fewest in (
        ("hit", hits, 1, 200, FEWEST[at.database]),
        ("miss", misses, 1, 404, FEWEST[at.database]),
        ("batch", batches, min(KEYS, workloads), 200, FEWEST_KEYS),
    ):
        if f"{at.name} {name}" not in names:
            continue
        send(server.port, requests[: len(requests) // 4])
        before = cpu_seconds(process)
        load = send(server.port, requests, connections=16 if keys_each == 1 else 2)
        cpu = cpu_seconds(process) - before
        assert load.statuses == {status: len(requests)}, load.statuses
        cost = cpu / (len(requests) * keys_each)
        row: dict[str, object] = {
            "row": f"{at.name} {name}",
            "cpu_us": 1e6 * cost,
            "per_cpu_second": 1 / cost,
        }
        rows.append({**row, "fewest": fewest, "met": 1 / cost >= fewest})
    mixed = [request for pair in zip(hits, misses, strict=True) for request in pair]
    if f"{at.name} half load" in names:
        rows.append(_half_load(server, f"{at.name} half load", mixed, FEWEST[at.database] / 2))
    return rows


def _half_load(server: KillableServer, name: str, requests: Sequence[bytes], rate: float) -> dict[str, object]:
    count = int(rate * HALF_LOAD_SECONDS)
    sent = [requests[number % len(requests)] for number in range(count)]
    load = send(server.port, sent, connections=32, rate=rate)
    assert set(load.statuses) <= {200, 404}, load.statuses
    p50, p99 = (1e3 * load.quantile(share) for share in (0.5, 0.99))
    row: dict[str, object] = {"row": name, "rate": rate, "p50_ms": p50, "p99_ms": p99}
    return {**row, "most_ms": MOST_P99_MS, "met": p99 < MOST_P99_MS}


def _bundle(at: Measured, options: Options) -> list[dict[str, object]]:
    server, folder, records, workloads = at.server, at.folder, at.records, at.workloads
    file = folder / "all.bundle"
    with Client(f"http://127.0.0.1:{server.port}", token=TOKEN, timeout_seconds=600.0) as client:
        started = time.perf_counter()
        release = client.freeze("all")
        frozen = time.perf_counter() - started
        client.fetch_bundle("all", file, public_key=client.release_key().public_key)
    draws = stream(options.seed, "bundle")
    keys = [key_of(int(n)) for n in draws.integers(workloads, size=FOUND)]
    about: dict[str, object] = {
        "entries": release.entries,
        "bundle_bytes": release.bundle_bytes,
        "freeze_seconds": frozen,
    }
    place = tuple(CONDITIONS.values())
    with Bundle.open(file) as bundle:
        costs = []
        for _ in range(3):
            cpu = time.process_time()
            for key in keys:
                bundle.find(key, *place)
            costs.append((time.process_time() - cpu) / len(keys))
        assert all(bundle.find(key, *place) is not None for key in keys[:1000])
    python = 1e6 * median(costs)
    rows = [
        {"row": f"bundle {records} python", "cpu_us": python, "most_us": MOST_PYTHON_US, "met": python < MOST_PYTHON_US}
    ]
    compiler = shutil.which("cc")
    if compiler is not None:
        (folder / "reader.c").write_text(C_READER)
        (folder / "keys").write_text("\n".join(keys))
        reader = folder / "reader"
        command = [compiler, "-O2", f"-I{HEADER.parent}", str(folder / "reader.c"), "-o", str(reader)]
        subprocess.run(command, check=True)
        command = [str(reader), str(file), *place, str(folder / "keys"), str(C_PASSES)]
        first, usual, hits = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert int(hits) == C_PASSES * len(keys)
        c_us, first_us = float(usual) / 1e3, float(first) / 1e3
        met = first_us < MOST_C_US
        rows.append(
            {"row": f"bundle {records} c", "cpu_us": c_us, "first_us": first_us, "most_us": MOST_C_US, "met": met}
        )
    return [{**row, **about} for row in rows]
