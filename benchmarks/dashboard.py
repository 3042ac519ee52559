"""How soon the dashboard's pages can be used, and what following a job costs the browser. SQLite, Chromium.

Bars: the overview with 10,000 jobs and 1,000,000 trials within 1 s; the page of a job with 10,000 trials within 1.5 s,
which then follows 50 trials a second without growing by more than 100 MB in an hour.

``--set jobs=N`` and ``--trials N`` (of each job) give another size, ``--set seconds=N`` follows for so long (3600 is
the bar's; the default is a minute), ``--set folder=PATH`` keeps the database there and uses it again.
"""

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from playwright.sync_api import Browser, Page
from sqlalchemy import Connection, text

from benchmarks.suite import Options, Result
from tilewright.api import assets
from tilewright.api.app import create_app
from tilewright.core.budget import Budget
from tilewright.db.rows import NewJob
from tilewright.db.store import RecordStore
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api.browser import chromium
from tilewright.tests.api.filled import keep_job, new_trial, operator_task, outcomes, repeat_trials
from tilewright.tests.api.serving import running
from tilewright.tests.db.fleets import move_job

JOBS, TRIALS, LARGE, FOLLOWED_SECONDS, RATE = 10_000, 100, 10_000, 60.0, 50.0
REPEATS = 7
BARS = {"overview": 1.0, "job of 10,000 trials": 1.5}
MOST_GROWTH_BYTES = 100e6
READY = {
    "overview": "#spent .plot[data-drawn=yes]",
    "job of 10,000 trials": "#chart[data-last-sequence='%d']",
}


def run(options: Options) -> Result:
    jobs = int(options.extra.get("jobs", JOBS))
    trials = options.trials or TRIALS
    seconds = float(options.extra.get("seconds", FOLLOWED_SECONDS))
    kept = options.extra.get("folder")
    if not assets.assets_present():
        assets.install_assets()
    rows: list[Mapping[str, object]] = []
    with nullcontext(kept) if kept else tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dashboard.sqlite3"
        settings = Settings(database_url=f"sqlite:///{path}", run_jobs=False)
        store = RecordStore(settings.database_url)
        began = time.perf_counter()
        if not store.jobs(limit=1):
            fill(store, jobs, trials)
        fill_seconds = time.perf_counter() - began
        with (
            Service(settings, store) as service,
            running(create_app(service, settings)) as address,
            chromium() as browser,
        ):
            for name, where in (("overview", "/"), ("job of 10,000 trials", "/jobs/large")):
                if fnmatch(name, options.rows):
                    rows.append(_opened(browser, address, name, where))
            if fnmatch("followed", options.rows):
                rows.append(_followed(browser, address, store, seconds))
        size = path.stat().st_size
    passed = all(bool(row["passed"]) for row in rows)
    summary = {"jobs": jobs, "trials": jobs * trials, "fill_seconds": fill_seconds, "file_bytes": size}
    return Result(tuple(rows), summary, passed, settings={"jobs": jobs, "seconds": seconds, "rate": RATE})


def fill(store: RecordStore, jobs: int, trials: int) -> None:
    """Store jobs that ended in the last two days, and one with LARGE trials. Each but the first is a copy of the first,
    a little slower, that the database makes itself."""
    task = operator_task("matmul", {"m": 1024, "n": 1024, "k": 1024})
    keep_job(store, "first", [task], trials)
    keep_job(store, "large", [task], 100, seed=9)
    repeat_trials(store, "large", LARGE // 100)
    first, last = store.job("first").number, store.job("large").number
    with store.database.writing() as connection:
        _copy(connection, "jobs", first, jobs, last, "number", {"id": "'job-' || n", **_TIMES})
        _copy(connection, "tasks", first, jobs, last, "job", {"best_trial": "NULL"})
        slower = {f"{name}": f"{name} * (1 + n % 97 / 97.0)" for name in ("seconds", "rank_seconds")}
        _copy(connection, "trials", first, jobs, last, "job", {"id": "NULL", **slower, "created_at": _MOMENT})
        best = (
            "SELECT trials.id FROM trials WHERE trials.job = tasks.job AND trials.task = 0 AND seconds IS NOT NULL"
            " ORDER BY rank_seconds, schedule_key, trials.id LIMIT 1"
        )
        connection.execute(text(f"UPDATE tasks SET best_trial = ({best}) WHERE best_trial IS NULL"))
        connection.execute(
            text("UPDATE tasks SET best_seconds = (SELECT rank_seconds FROM trials WHERE trials.id = tasks.best_trial)")
        )
        connection.execute(text("ANALYZE"))


_MOMENT = "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || (n % 2880) || ' minutes')"
_TIMES = {name: _MOMENT for name in ("created_at", "started_at", "finished_at")}


def _copy(
    connection: Connection, table: str, first: int, count: int, last: int, owner: str, changed: Mapping[str, str]
) -> None:
    """Insert copies of the rows of one job for jobs ``last + 1`` to ``last + count``; ``n`` is the number of a copy."""
    names = [row[1] for row in connection.execute(text(f"PRAGMA table_info({table})"))]
    values = {**{name: name for name in names}, owner: f"{last} + n", **changed}
    connection.execute(
        text(
            f"WITH RECURSIVE copies(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < {count}) "
            f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values[name] for name in names)} "
            f"FROM {table}, copies WHERE {table}.{owner} = {first}"
        )
    )


def _opened(browser: Browser, address: str, name: str, where: str) -> Mapping[str, object]:
    """Open a page several times in fresh contexts; return the median seconds until its charts are drawn."""
    ready = READY[name]
    whole, server = [], []
    for _ in range(REPEATS):
        with _page(browser, address) as page:
            began = time.perf_counter()
            page.goto(where, wait_until="commit")
            page.locator(ready % (LARGE - 1) if "%" in ready else ready).wait_for(state="attached", timeout=120_000)
            whole.append(time.perf_counter() - began)
            timing = page.evaluate("performance.getEntriesByType('navigation')[0].toJSON()")
            server.append((timing["responseEnd"] - timing["requestStart"]) / 1e3)
    seconds = median(whole)
    return {
        "row": name,
        "seconds": seconds,
        "slowest_seconds": max(whole),
        "server_seconds": median(server),
        "bar_seconds": BARS[name],
        "passed": seconds < BARS[name],
    }


def _followed(browser: Browser, address: str, store: RecordStore, seconds: float) -> Mapping[str, object]:
    """Follow a job that gets RATE trials a second; return what the page took more at the end than at the start."""
    task = operator_task("matmul", {"m": 1024, "n": 1024, "k": 1024})
    name = f"followed-{time.time_ns():x}"
    many = Budget(1_000_000, None, None)
    store.create_job(NewJob(name, "queued", (task,), many, "model", 1, "llvm", "local", "warm"))
    move_job(store, name, {"queued": ("running",)})
    store.begin_task(name, 0)
    stop = threading.Event()
    kinds = outcomes(3, 4096, 0.012)
    written = 0

    def write() -> None:
        nonlocal written
        began = time.monotonic()
        while not stop.is_set():
            store.add_trial(new_trial(name, 0, written, task.workload_key, kinds[written % len(kinds)]))
            written += 1
            stop.wait(max(0.0, began + written / RATE - time.monotonic()))

    with _page(browser, address) as page:
        writer = threading.Thread(target=write)
        writer.start()
        try:
            page.goto(f"/jobs/{name}")
            page.wait_for_timeout(1000 * min(20.0, seconds))  # what is loaded once is no growth
            heap, resident = _heap_bytes(page), _resident_bytes()
            page.wait_for_timeout(1000 * seconds)
            grown, grown_resident = _heap_bytes(page) - heap, _resident_bytes() - resident
            shown = page.locator("#chart").get_attribute("data-last-sequence")
            points = page.locator("#chart").get_attribute("data-points")
        finally:
            stop.set()
            writer.join()
    move_job(store, name, {"running": ("cancelling",)})
    behind = written - 1 - int(shown or -1)
    return {
        "row": "followed",
        "seconds": seconds,
        "trials": written,
        "behind_trials": behind,
        "points": int(points or 0),
        "heap_growth_bytes": grown,
        "resident_growth_bytes": grown_resident,
        "passed": grown < MOST_GROWTH_BYTES and grown_resident < MOST_GROWTH_BYTES and behind < 5 * RATE,
    }


@contextmanager
def _page(browser: Browser, address: str) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1400, "height": 900}, base_url=address)
    try:
        yield context.new_page()
    finally:
        context.close()


def _heap_bytes(page: Page) -> float:
    """Return what the page's scripts hold, after a collection of garbage."""
    session: Any = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = session.send("Performance.getMetrics")["metrics"]
    session.detach()
    return float(next(metric["value"] for metric in metrics if metric["name"] == "JSHeapUsedSize"))


def _resident_bytes() -> int:
    """Return the memory of the browser's renderers."""
    found = 0
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            if "--type=renderer" in process.cmdline():
                found += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return found
