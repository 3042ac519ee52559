"""How soon the dashboard's pages can be used, and what following a job costs the browser. SQLite, Chromium.

Bars: the overview with 10,000 jobs and 1,000,000 trials within 1 s; the page of a job with 10,000 trials within 1.5 s,
which then follows 50 trials a second without growing by more than 100 MB in an hour.

The page is followed in a Chromium of its own, in a window so tall that every part of the page is seen and therefore
renewed. No tool is connected to it meanwhile: while developer tools (and Playwright) are, a renderer keeps the bodies
of all answers for them, up to 200 MB, which no user's browser does. After the first minute, and at the end, the row
``followed`` reads the resident memory of the renderers, then collects garbage (``HeapProfiler.collectGarbage``) and
reads it again. ``resident_growth_bytes`` is between the readings after a collection, ``uncollected_growth_bytes``
between those before, ``heap_growth_bytes`` that of the scripts after one; all three must be below the bar.
``most_resident_growth_bytes`` is the highest of the readings at each ten seconds over the first, for information.

``--set jobs=N`` and ``--trials N`` (of each job) give another size, ``--set seconds=N`` follows for so long (3600 is
the bar's; the default is a minute), ``--set folder=PATH`` keeps the database there and uses it again.
"""

import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from playwright.sync_api import Browser, Page, sync_playwright
from sqlalchemy import Connection, text

from benchmarks.suite import Options, Result
from tilewright.api import assets
from tilewright.api.app import create_app
from tilewright.core.budget import Budget
from tilewright.db.rows import NewJob
from tilewright.db.store import RecordStore
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api.browser import CHROMIUM, FLAGS, chromium
from tilewright.tests.api.filled import keep_job, new_trial, operator_task, outcomes, repeat_trials
from tilewright.tests.api.serving import running
from tilewright.tests.db.fleets import move_job

JOBS, TRIALS, LARGE, FOLLOWED_SECONDS, RATE = 10_000, 100, 10_000, 60.0, 50.0
REPEATS = 7
BARS = {"overview": 1.0, "job of 10,000 trials": 1.5}
WARM_SECONDS, READING_SECONDS = 60.0, 10.0
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
        with Service(settings, store) as service, running(create_app(service, settings)) as address:
            with chromium() as browser:
                for name, where in (("overview", "/"), ("job of 10,000 trials", "/jobs/large")):
                    if fnmatch(name, options.rows):
                        rows.append(_opened(browser, address, name, where))
            if fnmatch("followed", options.rows):
                rows.append(_followed(address, store, seconds))
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


def _followed(address: str, store: RecordStore, seconds: float) -> Mapping[str, object]:
    """Follow a job that gets RATE trials a second; return what the page takes more at the end than at the start."""
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

    with _unwatched(f"{address}/jobs/{name}") as window:
        writer = threading.Thread(target=write)
        writer.start()
        try:
            window.let_run(min(WARM_SECONDS, seconds))  # what is loaded once is no growth
            first = window.reading()
            most = window.let_run(seconds)
            last = window.reading()
            behind = written - 1 - last.shown
        finally:
            stop.set()
            writer.join()
    move_job(store, name, {"running": ("cancelling",)})
    growth = {
        "heap_growth_bytes": last.heap - first.heap,
        "resident_growth_bytes": last.resident - first.resident,
        "uncollected_growth_bytes": last.uncollected - first.uncollected,
    }
    return {
        "row": "followed",
        "seconds": seconds,
        "trials": written,
        "behind_trials": behind,
        "points": last.points,
        **growth,
        "most_resident_growth_bytes": most - first.uncollected,
        "passed": all(grown < MOST_GROWTH_BYTES for grown in growth.values()) and behind < 5 * RATE,
    }


@contextmanager
def _page(browser: Browser, address: str) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1400, "height": 900}, base_url=address)
    try:
        yield context.new_page()
    finally:
        context.close()


@dataclass(frozen=True)
class Reading:
    """What the followed page takes, in bytes, and shows. ``uncollected`` is ``resident`` before the collection."""

    uncollected: int
    resident: int
    heap: float
    shown: int
    points: int


@dataclass(frozen=True)
class Window:
    """A Chromium with one window, to which nothing is connected except for a reading."""

    process: psutil.Process
    profile: Path

    def let_run(self, seconds: float) -> int:
        """Wait; return the most memory that was seen."""
        end = time.monotonic() + seconds
        most = self.resident()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(READING_SECONDS, left))
            most = max(most, self.resident())
        return most

    def resident(self) -> int:
        """Return the memory of the renderers."""
        found = 0
        for process in self.process.children(recursive=True):
            try:
                if "--type=renderer" in process.cmdline():
                    found += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return found

    def reading(self) -> Reading:
        """Read what the page takes before and after a collection of garbage, and what it shows."""
        uncollected = self.resident()
        port = (self.profile / "DevToolsActivePort").read_text().split()[0]
        with sync_playwright() as playwright:
            browser = playwright.chromium.connect_over_cdp(f"http://127.0.0.1:{port}")
            page = browser.contexts[0].pages[0]
            heap = _heap_bytes(page)
            resident = self.resident()
            shown, points = page.evaluate(SHOWN)
            browser.close()
        return Reading(uncollected, resident, heap, shown, points)


SHOWN = (
    "(({ lastSequence, points }) => [Number(lastSequence), Number(points)])(document.getElementById('chart').dataset)"
)


@contextmanager
def _unwatched(address: str) -> Iterator[Window]:
    """Open ``address`` in a Chromium that no tool is connected to."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = [*FLAGS.split(), f"--user-data-dir={profile}", "--remote-debugging-port=0", "--window-size=1400,8000"]
        with subprocess.Popen([str(CHROMIUM), *flags, address], stderr=subprocess.DEVNULL) as process:
            try:
                yield Window(psutil.Process(process.pid), Path(profile))
            finally:
                process.terminate()


def _heap_bytes(page: Page) -> float:
    """Return what the page's scripts hold, after a collection of garbage."""
    session: Any = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = session.send("Performance.getMetrics")["metrics"]
    session.detach()
    return float(next(metric["value"] for metric in metrics if metric["name"] == "JSHeapUsedSize"))
