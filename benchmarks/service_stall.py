"""Whether a service answers while everything around it goes wrong: schedules are explained, streams are open, a job is
tuned, and the database is stopped for a while.

Bars: health, readiness and look-ups that were answered before have a 99 % quantile under 100 ms; every explanation is
answered; every stream stays open or comes back; the job ends with every trial once.

A server of PostgreSQL is stopped with all its processes. The file of an embedded database cannot be: another program
holds its write lock instead, as a copy of the disk would. ``--set databases=sqlite,postgresql`` says which.

``--set explains=100``, ``--set streams=50``, ``--set stalled=20`` (seconds), ``--set rate=20`` (requests of each kind
in a second) and ``--trials 40`` (of the job) give the size. Needs PostgreSQL, and no other program that times on the
processor.
"""

import asyncio
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.http_load import get, post
from benchmarks.service_records import CONDITIONS, fill, key_of
from benchmarks.suite import Options, Result
from tilewright.tests.db.postgres import PostgresServer
from tilewright.tests.db.postgres import server as postgres
from tilewright.tests.service.killing import KillableServer

TOKEN = "a-token-of-a-benchmark"
RECORDS, EXPLAINS, STREAMS, STALLED_SECONDS, RATE, TRIALS = 10_000, 100, 50, 20.0, 20.0, 40
BEFORE_SECONDS, AFTER_SECONDS, RETRY_SECONDS, MOST_SECONDS = 5.0, 10.0, 2.0, 1800.0
MOST_P99_MS = 100.0
PROBES = {"health": "/healthz", "readiness": "/readyz"}
Answer = tuple[int, bytes]


@dataclass
class Figures:
    """What was seen: the seconds of each probe, and statuses."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    statuses: dict[str, dict[int, int]] = field(default_factory=dict)
    streams_ended: int = 0

    def count(self, name: str, status: int) -> None:
        counts = self.statuses.setdefault(name, {})
        counts[status] = counts.get(status, 0) + 1


def run(options: Options) -> Result:
    given = {name: float(options.extra.get(name, usual)) for name, usual in _USUAL.items()}
    trials = options.trials or TRIALS
    databases = options.extra.get("databases", "sqlite,postgresql").split(",")
    rows = [row for name in databases for row in _rows(name, given, trials, options.seed)]
    met = all(bool(row["met"]) for row in rows)
    failed = [str(row["row"]) for row in rows if not row["met"]]
    settings = {**given, "trials": trials, "databases": databases}
    return Result(tuple(rows), {"most_p99_ms": MOST_P99_MS, "failed": failed}, met, settings=settings)


def _rows(database: str, given: dict[str, float], trials: int, seed: int) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder, _database(database, Path(folder)) as (url, stalled):
        workloads = fill(url, RECORDS, seed)
        with _server(url, Path(folder)) as server:
            figures, job = asyncio.run(_all(server.port, stalled, given, trials, workloads))
    rows: list[dict[str, object]] = []
    for name, seconds in figures.seconds.items():
        ordered = sorted(seconds)
        p50, p99 = (1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
        met = p99 < MOST_P99_MS
        statuses = figures.statuses[name]
        rows.append(
            {"row": name, "p50_ms": p50, "p99_ms": p99, "max_ms": 1e3 * ordered[-1], "met": met, **_said(statuses)}
        )
    explained = figures.statuses.get("explain", {})
    rows.append({"row": "explain", "met": explained == {200: int(given["explains"])}, **_said(explained)})
    rows.append({"row": "streams", "met": figures.streams_ended == 0, "ended": figures.streams_ended})
    whole = job["state"] == "succeeded" and job["trials"] == list(range(len(job["trials"]))) and bool(job["trials"])
    rows.append({"row": "job", "met": whole, "state": job["state"], "trials": len(job["trials"])})
    return [{**row, "row": f"{database} {row['row']}"} for row in rows]


_USUAL = {"explains": EXPLAINS, "streams": STREAMS, "stalled": STALLED_SECONDS, "rate": RATE}


def _said(statuses: dict[int, int]) -> dict[str, object]:
    return {"requests": sum(statuses.values()), "statuses": json.dumps(statuses)}


Stalled = Callable[[], AbstractContextManager[None]]
"""While this lasts, the database does not answer, or takes nothing."""


@contextmanager
def _database(kind: str, folder: Path) -> Iterator[tuple[str, Stalled]]:
    if kind == "sqlite":
        path = folder / "tilewright.sqlite3"
        yield f"sqlite:///{path}", lambda: _locked(path)
        return
    with postgres() as running:
        yield running.url(), lambda: _stopped(running)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, timeout=60.0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def _stopped(database: PostgresServer) -> Iterator[None]:
    processes = database.processes()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # it ended with its connection
                process.resume()


@contextmanager
def _server(url: str, folder: Path) -> Iterator[KillableServer]:
    before = dict(os.environ)
    os.environ.update(
        {"TILEWRIGHT_TOKEN": TOKEN, "TILEWRIGHT_LOG_LEVEL": "warning", "TILEWRIGHT_LOCK_FOLDER": str(folder)}
    )
    server = KillableServer(url, folder / "server.log", lease_seconds=60.0)
    try:
        server.start()
        server.wait_until_ready()
        yield server
    finally:
        server.kill()
        os.environ.clear()
        os.environ.update(before)


async def _all(
    port: int, stalled: Stalled, given: dict[str, float], trials: int, workloads: int
) -> tuple[Figures, dict[str, Any]]:
    """Do all of it at once; return what was seen, and how the job ended."""
    figures = Figures()
    body = {"tasks": [_operator(64)], "budget": {"trials": trials}}
    status, text = await _ask(port, post("/v1/jobs", json.dumps(body).encode(), TOKEN))
    assert status in (200, 201), text
    job = json.loads(text)["id"]
    parts = "&".join(f"{name}={value}" for name, value in CONDITIONS.items())
    known = [f"/v1/schedules/best?workload_key={key_of(n)}&{parts}" for n in range(min(100, workloads))]
    for path in known:  # from now on they are known
        status, text = await _ask(port, get(path, TOKEN))
        assert status == 200, text
    over = asyncio.Event()
    streams = [asyncio.create_task(_stream(port, job, figures, over)) for _ in range(int(given["streams"]))]
    explains = [asyncio.create_task(_explain(port, figures, n)) for n in range(int(given["explains"]))]
    probes = [
        asyncio.create_task(_probe(port, name, [path], given["rate"], figures, over)) for name, path in PROBES.items()
    ]
    probes.append(asyncio.create_task(_probe(port, "known look-up", known, given["rate"], figures, over)))
    await asyncio.sleep(BEFORE_SECONDS)
    with stalled():
        await asyncio.sleep(given["stalled"])
    await asyncio.sleep(AFTER_SECONDS)
    await asyncio.wait_for(asyncio.gather(*explains), MOST_SECONDS)
    ended = await _ended(port, job)
    over.set()
    await asyncio.gather(*probes, *streams)
    return figures, ended


def _operator(m: int) -> dict[str, object]:
    return {"operator": "matmul", "parameters": {"m": m, "n": 64, "k": 64}}


async def _explain(port: int, figures: Figures, number: int) -> None:
    """Have a schedule explained; as a client does, ask again after a while where it cannot be at the moment."""
    body, end, status = json.dumps(_operator(65 + number)).encode(), time.monotonic() + MOST_SECONDS, 503
    while status == 503 and time.monotonic() < end:
        status, _ = await _ask(port, post("/v1/schedules/explain", body, TOKEN))
        if status == 503:
            await asyncio.sleep(RETRY_SECONDS)
    figures.count("explain", status)


async def _probe(port: int, name: str, paths: list[str], rate: float, figures: Figures, over: asyncio.Event) -> None:
    """Ask at a fixed rate, whether the answer before has come or not."""
    began, asked = time.perf_counter(), list[asyncio.Task[None]]()

    async def ask(path: str, due: float) -> None:
        status, _ = await _ask(port, get(path, TOKEN))
        figures.seconds.setdefault(name, []).append(time.perf_counter() - due)
        figures.count(name, status)

    while not over.is_set():
        due = began + len(asked) / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        asked.append(asyncio.create_task(ask(paths[len(asked) % len(paths)], due)))
    await asyncio.gather(*asked)


async def _stream(port: int, job: str, figures: Figures, over: asyncio.Event) -> None:
    """Keep a stream of events open until all is over; the stream of a job that has ended, ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = get(f"/v1/jobs/{job}/events", TOKEN)[:-2] + b"Accept: text/event-stream\r\n\r\n"
    writer.write(head)
    seen = b""
    while not over.is_set():
        try:
            part = await asyncio.wait_for(reader.read(1 << 16), 1.0)
        except TimeoutError:
            continue
        if not part:
            break
        seen = (seen + part)[-64:]
    if not over.is_set() and b"event: end" not in seen:
        figures.streams_ended += 1
    writer.close()


async def _ended(port: int, job: str) -> dict[str, Any]:
    end = time.monotonic() + MOST_SECONDS
    while True:
        status, text = await _ask(port, get(f"/v1/jobs/{job}", TOKEN))
        state = json.loads(text)["state"] if status == 200 else ""
        if state in ("succeeded", "failed", "cancelled") or time.monotonic() > end:
            break
        await asyncio.sleep(1.0)
    _, text = await _ask(port, get(f"/v1/jobs/{job}/series", TOKEN))
    return {"state": state, "trials": json.loads(text)["sequence"]}


async def _ask(port: int, request: bytes) -> Answer:
    """Send one request over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        text = await reader.readexactly(int(length or 0))
        return int(head.split(b" ", 2)[1]), text
    finally:
        writer.close()
