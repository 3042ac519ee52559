"""What look-ups and lists cost the server, by the CPU time of its process, and what look-ups cost in a bundle.

Bars: at least 3,000 look-ups for a CPU-second on SQLite and 1,500 on PostgreSQL, hits and misses alike; 40,000 keys in
batches; the 99 % quantile under 20 ms at half of that load, hits and misses mixed; under 2 microseconds in a bundle
from C and 20 from Python (``benchmarks.service_bundle``); with 1,000,000 records less than 1.3 times what it is with
10,000; a better record shows within 1 s; and every list and page takes less than 50 ms (``benchmarks.service_lists``).
Every request shows a key that sees one tenant, and workloads are drawn uniformly from all: a tenth as many as records.

Databases of all sizes are asked in turn, in ``BLOCKS`` short blocks, so that whatever else the machine does meanwhile
meets all of them. A figure is the median of its blocks, and so is a growth of their quotients; ``blocks_us`` has each
block, and ``growth_spread`` the middle half of the quotients. The first block is the one in which a new server maps the
pages of its database. On PostgreSQL a figure says as much about how many look-ups one statement answers
(``api.lookup_batches``): that depends on how soon clients ask again, and varies with the load of the machine.

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

from benchmarks import service_bundle, service_lists
from benchmarks.http_load import get, post, send
from benchmarks.service_fresh import better_records
from benchmarks.service_records import CONDITIONS, fill, key_of
from benchmarks.suite import Options, Result
from tilewright.api.client import Client
from tilewright.core.streams import stream
from tilewright.db.store import RecordStore
from tilewright.service.users import Users
from tilewright.tests.db.postgres import PostgresServer
from tilewright.tests.db.postgres import server as postgres
from tilewright.tests.service.killing import KillableServer

TOKEN = "a-token-of-a-benchmark"
LOOKUPS, BATCHES, KEYS, FOUND = 20_000, 60, 1_000, 200_000
BLOCKS = 10
HALF_LOAD_SECONDS = 10.0
USERS = 4
PARTS = "lookups,fresh,bundle,lists"
FEWEST = {"sqlite": 3_000.0, "postgresql": 1_500.0}
FEWEST_KEYS, MOST_P99_MS, MOST_GROWTH = 40_000.0, 20.0, 1.3


def run(options: Options) -> Result:
    sizes = [int(size) for size in options.extra.get("records", "10000,1000000").split(",")]
    databases = options.extra.get("databases", "sqlite,postgresql").split(",")
    parts = options.extra.get("parts", PARTS).split(",")
    rows = _earlier(options)
    known = {str(row["row"]) for row in rows}
    for database in databases:
        wanted = dict[int, dict[str, list[str]]]()
        for size in sizes:
            # lists are measured with the most records alone
            here = [part for part in parts if part != "lists" or size == max(sizes)]
            missing = {
                part: names
                for part in here
                if (names := [n for n in _names(database, size, part) if fnmatch(n, options.rows) and n not in known])
            }
            if missing:
                wanted[size] = missing
        if wanted:
            rows += _measured(database, wanted, options)
    growth, spread = _growth(rows, min(sizes), max(sizes))
    bars = _bars(rows, growth)
    failed = [str(row["row"]) for row in rows if not row["met"]]
    figures = {"growth": growth, "growth_spread": spread, "most_growth": MOST_GROWTH}
    summary = {"bars": bars, "failed": failed, **figures, "rows": len(rows)}
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
        return [f"bundle {size} {kind}" for kind in service_bundle.KINDS] if database == "sqlite" else []
    if part == "lists":
        return [f"{at} list {address}" for address in service_lists.addresses()]
    return [f"{at} {name}" for name in {"lookups": LOOKED_UP, "fresh": ("better record",)}[part]]


LOOKED_UP = ("hit", "miss", "batch", "half load")
BARS = {
    "look-ups for a CPU-second, hits and misses": ("* hit", "* miss"),
    "keys in batches for a CPU-second": ("*sql* batch",),
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


def _growth(
    rows: Sequence[dict[str, object]], small: int, large: int
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Return how much dearer each kind of look-up is with the most records than with the fewest, and the middle half of
    that over the blocks, where there are blocks."""
    by_name = {str(row["row"]): row for row in rows if "cpu_us" in row}
    found, spread = dict[str, float](), dict[str, tuple[float, float]]()
    for name, row in by_name.items():
        other = by_name.get(name.replace(f" {small} ", f" {large} "))
        if other is None or other is row:
            continue
        kind = name.replace(f" {small} ", " ")
        found[kind] = float(str(other["cpu_us"])) / float(str(row["cpu_us"]))
        pairs = zip(_blocks(row), _blocks(other), strict=False)
        quotients = sorted(more / less for less, more in pairs)
        if quotients:
            found[kind] = median(quotients)
            spread[kind] = (quotients[len(quotients) // 4], quotients[3 * len(quotients) // 4])
    return found, spread


def _blocks(row: Mapping[str, object]) -> list[float]:
    blocks = row.get("blocks_us", [])
    assert isinstance(blocks, list)
    return blocks


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
    database: str, wanted: Mapping[int, Mapping[str, Sequence[str]]], options: Options
) -> list[dict[str, object]]:
    """Fill a database of each size and measure these rows of each part."""
    rows, about, bundles = list[dict[str, object]](), dict[int, dict[str, object]](), list[service_bundle.Asked]()
    with ExitStack() as stack:
        served = [stack.enter_context(_served(database, records, options)) for records in wanted]
        names = [name for parts in wanted.values() for name in parts.get("lookups", ())]
        if names:
            rows += _look_ups(served, options, names)
        for at in served:
            parts = wanted[at.records]
            if "fresh" in parts:
                rows += [_fresh(at)]
            if "bundle" in parts:
                bundle, about[at.records] = _bundle(at, options)
                bundles.append(bundle)
            if "lists" in parts:
                chosen = [name.removeprefix(f"{at.name} list ") for name in parts["lists"]]
                lists = service_lists.measure(at.server.port, at.keys[0], TOKEN, at.processes, chosen)
                rows += [{**row, "row": f"{at.name} list {row['row']}"} for row in lists]
        if bundles:
            rows += [{**row, **about[int(str(row["row"]).split()[1])]} for row in service_bundle.measure(bundles)]
    named = {name for parts in wanted.values() for names in parts.values() for name in names}
    return [row for row in rows if row["row"] in named]


@contextmanager
def _served(database: str, records: int, options: Options) -> Iterator[Measured]:
    """Fill a database, and run a server over it in the block."""
    with tempfile.TemporaryDirectory() as name, _database(database, Path(name)) as (url, running):
        workloads = fill(url, records, options.seed)
        keys = _prepared(url)
        with _server(url, Path(name)) as server:
            assert server.process is not None
            processes = [psutil.Process(server.process.pid), *(() if running is None else running.processes()[:1])]
            yield Measured(server, processes, keys, database, url, Path(name), records, workloads)


def _prepared(url: str) -> list[str]:
    """Add the jobs that have ended to the totals, as a service does every hour, and have what changed analysed, as a
    database does by itself after a minute; return the secrets of new keys."""
    with RecordStore(url) as store:
        store.count_ended()
        with store.database.writing() as connection:
            connection.exec_driver_sql("ANALYZE jobs")
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


def _look_ups(served: Sequence[Measured], options: Options, names: Sequence[str]) -> list[dict[str, object]]:
    rows = list[dict[str, object]]()
    asked = {at.name: _asked(at, options) for at in served}
    for kind in ("hit", "miss", "batch"):
        here = [at for at in served if f"{at.name} {kind}" in names]
        blocks: dict[str, list[float]] = {at.name: [] for at in here}
        for block in range(BLOCKS):
            for at in here[:: 1 if block % 2 else -1]:
                blocks[at.name].append(_block(at, kind, asked[at.name][kind][block::BLOCKS]))
        for at in here:
            cost = median(blocks[at.name])
            fewest = FEWEST_KEYS if kind == "batch" else FEWEST[at.database]
            row: dict[str, object] = {"row": f"{at.name} {kind}", "cpu_us": cost, "per_cpu_second": 1e6 / cost}
            rows.append({**row, "blocks_us": blocks[at.name], "fewest": fewest, "met": 1e6 / cost >= fewest})
    for at in served:
        if f"{at.name} half load" in names:
            pairs = zip(asked[at.name]["hit"], asked[at.name]["miss"], strict=True)
            mixed = [request for pair in pairs for request in pair]
            rows.append(_half_load(at.server, f"{at.name} half load", mixed, FEWEST[at.database] / 2))
    return rows


def _asked(at: Measured, options: Options) -> dict[str, list[bytes]]:
    """Return the requests of each kind of look-up."""
    draws, users = stream(options.seed, "lookups"), cycle(at.keys)
    lookups = options.trials or LOOKUPS
    parts = "&".join(f"{name}={value}" for name, value in CONDITIONS.items())

    def path(key: str) -> bytes:
        return get(f"/v1/schedules/best?workload_key={key}&{parts}", next(users))

    hits = [path(key_of(int(n))) for n in draws.integers(at.workloads, size=lookups)]
    misses = [path(key_of(-1 - int(n))) for n in draws.integers(1 << 40, size=lookups)]
    batches = []
    for _ in range(BATCHES):
        # no key twice: of fewer workloads more would be drawn twice, and be found once
        chosen = draws.choice(at.workloads, size=_keys_each(at), replace=False)
        body = json.dumps({"workload_keys": [key_of(int(n)) for n in chosen], **CONDITIONS}).encode()
        batches.append(post("/v1/schedules/batch_lookup", body, next(users)))
    return {"hit": hits, "miss": misses, "batch": batches}


def _keys_each(at: Measured) -> int:
    return min(KEYS, at.workloads)


def _block(at: Measured, kind: str, requests: Sequence[bytes]) -> float:
    """Send requests, and return the microseconds that each look-up took the server."""
    clock = ~at.processes[0].pid << 3 | 2  # the CPU clock of a process (clock_getcpuclockid, Linux)
    before = time.clock_gettime(clock)
    load = send(at.server.port, requests, connections=2 if kind == "batch" else 16)
    cpu = time.clock_gettime(clock) - before
    assert load.statuses == {404 if kind == "miss" else 200: len(requests)}, load.statuses
    return 1e6 * cpu / (len(requests) * (_keys_each(at) if kind == "batch" else 1))


def _half_load(server: KillableServer, name: str, requests: Sequence[bytes], rate: float) -> dict[str, object]:
    count = int(rate * HALF_LOAD_SECONDS)
    sent = [requests[number % len(requests)] for number in range(count)]
    load = send(server.port, sent, connections=32, rate=rate)
    assert set(load.statuses) <= {200, 404}, load.statuses
    p50, p99 = (1e3 * load.quantile(share) for share in (0.5, 0.99))
    row: dict[str, object] = {"row": name, "rate": rate, "p50_ms": p50, "p99_ms": p99}
    return {**row, "most_ms": MOST_P99_MS, "met": p99 < MOST_P99_MS}


def _bundle(at: Measured, options: Options) -> tuple[service_bundle.Asked, dict[str, object]]:
    """Return a bundle of all best schedules with keys to look up, and what is told about it."""
    file = at.folder / "all.bundle"
    with Client(f"http://127.0.0.1:{at.server.port}", token=TOKEN, timeout_seconds=600.0) as client:
        started = time.perf_counter()
        release = client.freeze("all")
        frozen = time.perf_counter() - started
        client.fetch_bundle("all", file, public_key=client.release_key().public_key)
    draws = stream(options.seed, "bundle")
    keys = [key_of(int(n)) for n in draws.integers(at.workloads, size=FOUND)]
    device, toolchain, profile = CONDITIONS.values()
    about: dict[str, object] = {
        "entries": release.entries,
        "bundle_bytes": release.bundle_bytes,
        "freeze_seconds": frozen,
    }
    return service_bundle.Asked(at.records, file, keys, (device, toolchain, profile)), about
