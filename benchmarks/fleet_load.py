"""Bars: scheduling costs under 5 ms of database time a task with 10,000 tasks in the queue; 16 task workers record
1,000 trials a second on PostgreSQL; Ray adds less than 8 ms to a trial.

``--rows claims``, ``--rows 'records*'``, ``--rows ray``: one of them. PostgreSQL waits for its disk here (fsync is on).

- claims: ``--set queued=N`` (10000) tasks of four tenants are ready. ``--set claims=N`` (300) of them are claimed,
  looked after and finished. Database time is what PostgreSQL counts as ``active_time`` (``pg_stat_database``).
- records: ``--set workers=N`` (16) processes, each with a leased task, record trials for ``--set seconds=N`` (10):
  tasks of one job, whose row they all change, and tasks of jobs of their own. The processor time of a record, of the
  worker and of PostgreSQL, says most where the machine does other things too.
- ray: one trial at a time of one schedule, by turns through a local executor and through Ray (``ray start --head``), on
  this processor; ``--trials N`` (60) each. The overhead is what a trial takes beside compiling, checking and timing.
"""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles

from sqlalchemy import text

from benchmarks.suite import Options, Result
from tilewright.db.store import RecordStore
from tilewright.runtime.devices import device_info
from tilewright.search.pool import CandidatePool
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload
from tilewright.tests.db.fleets import LONG, gpus, migrated, submit, trial
from tilewright.tests.db.postgres import PostgresServer, server
from tilewright.tests.ports import free_port
from tilewright.tests.service.ray_head import RayHead
from tilewright.workers.child_environment import ray_variables
from tilewright.workers.executor import Executor
from tilewright.workers.executors import open_executor
from tilewright.workers.settings import ExecutorSettings

CLAIM_MS, RECORDS_PER_SECOND, RAY_MS = 5.0, 1000.0, 8.0
TASKS_OF_A_JOB = 50
TENANTS = 4
CONNECT_SECONDS = 120.0


def run(options: Options) -> Result:
    rows = [made(options) for made in options.chosen(ROWS).values()]
    summary = {str(row["row"]): row["figure"] for row in rows}
    return Result(tuple(rows), summary, passed=all(bool(row["passed"]) for row in rows))


def _claims(options: Options) -> Mapping[str, object]:
    queued, claims = int(options.extra.get("queued", "10000")), int(options.extra.get("claims", "300"))
    with server(durable=True) as postgres:
        url = postgres.url()
        with migrated(url) as store:
            uuids = gpus(store, 8)
            for number in range(queued // TASKS_OF_A_JOB):
                submit(store, f"j{number}", TASKS_OF_A_JOB, tenant=f"t{number % TENANTS}")
            with store.database.engine.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("VACUUM ANALYZE"))
        with RecordStore(url) as watching:
            before, began = _active_ms(watching), time.monotonic()
            with RecordStore(url) as store:
                _schedule(store, uuids, claims)
            wall = time.monotonic() - began
            spent = _active_ms(watching) - before
    per_task = spent / claims
    return {
        "row": "claims",
        "figure": per_task,
        "unit": "ms of database time a task",
        "wall_ms": 1e3 * wall / claims,
        "queued": queued,
        "claims": claims,
        "passed": per_task < CLAIM_MS,
    }


def _schedule(store: RecordStore, uuids: list[str], claims: int) -> None:
    """Do what a task worker asks of the queue for each task."""
    fleet, targets = store.fleet, ("cuda", "cuda:sm_90a")
    for number in range(claims):
        assert fleet.has_ready(targets, ("local",))
        held = fleet.claim_task(targets, "local", "o", units=[uuids[number % len(uuids)]], seconds=LONG)
        assert held is not None
        fleet.wanted(held.lease)
        fleet.renew([held.lease], seconds=LONG)
        fleet.finish_task(held.lease, "trials", {})


def _active_ms(store: RecordStore) -> float:
    """Return how long PostgreSQL has worked on statements of this database. Sessions report when they end, or each
    second."""
    time.sleep(2.0)
    with store.database.reading() as connection:
        query = text("SELECT active_time FROM pg_stat_database WHERE datname = current_database()")
        return float(connection.execute(query).scalar_one())


def _records(options: Options, jobs: int | None) -> Mapping[str, object]:
    workers, seconds = int(options.extra.get("workers", "16")), float(options.extra.get("seconds", "10"))
    with server(durable=True) as postgres:
        url = postgres.url()
        with migrated(url) as store:
            for number in range(jobs or workers):
                submit(store, f"j{number}", workers // (jobs or workers), trials=1_000_000)
        context = multiprocessing.get_context("spawn")
        ready, answers = context.Barrier(workers + 1), context.Queue()
        processes = [context.Process(target=_record, args=(url, n, seconds, ready, answers)) for n in range(workers)]
        for process in processes:
            process.start()
        ready.wait(CONNECT_SECONDS)
        before = _server_cpu(postgres)
        took = [answers.get(timeout=CONNECT_SECONDS + 2 * seconds) for _ in processes]
        server_cpu = _server_cpu(postgres) - before
        ready.wait(CONNECT_SECONDS)
        for process in processes:
            process.join()
        found = [times for times, _ in took]
        with RecordStore(url) as store:
            kept = sum(task.trials for job in store.jobs(limit=workers) for task in job.tasks)
    times = sorted(one for each in found for one in each)
    rate = len(times) / seconds
    return {
        "row": "records" if jobs is None else "records of one job",
        "figure": rate,
        "unit": "records a second",
        "workers": workers,
        "p50_ms": 1e3 * median(times),
        "p99_ms": 1e3 * quantiles(times, n=100)[98],
        "worker_cpu_ms": 1e3 * sum(cpu for _, cpu in took) / len(times),
        "server_cpu_ms": 1e3 * server_cpu / len(times),
        "passed": rate >= RECORDS_PER_SECOND and kept == len(times),
    }


def _record(
    url: str, number: int, seconds: float, ready: "multiprocessing.synchronize.Barrier", answers: object
) -> None:
    """Record trials of one task; answer how long each took, and the processor time of all."""
    times: list[float] = []
    with RecordStore(url) as store:
        held = store.fleet.claim_task(("cuda",), "local", f"o{number}", units=[], seconds=LONG)
        while held is None:  # all others looked at the same task
            held = store.fleet.claim_task(("cuda",), "local", f"o{number}", units=[], seconds=LONG)
        ready.wait(CONNECT_SECONDS)
        end, cpu = time.monotonic() + seconds, time.process_time()
        while (began := time.monotonic()) < end:
            made = trial(held.job_id, held.task, len(times), 1e-6 / (1 + len(times) % 100))
            store.add_trial(made, lease=held.lease)
            times.append(time.monotonic() - began)
        answers.put((times, time.process_time() - cpu))  # type: ignore[attr-defined]
        ready.wait(CONNECT_SECONDS)  # the server's process for this connection is asked for its time first


def _server_cpu(postgres: PostgresServer) -> float:
    """Return the processor time of the server's processes."""
    times = [process.cpu_times() for process in postgres.processes()]
    return float(sum(used.user + used.system for used in times))


def _ray(options: Options) -> Mapping[str, object]:
    trials = options.trials or 60
    workload = OPERATORS["matmul"].workload({"m": 16, "n": 16, "k": 16})
    with tempfile.TemporaryDirectory() as folder, RayHead(free_port()) as head:
        os.environ.update(ray_variables(os.environ))  # before Ray is imported
        settings = ExecutorSettings(ray_address=head.address, builders=1, lock_folder=folder)
        info = device_info()
        with open_executor("local", info.target, settings=settings) as local, _on_ray(settings) as ray:
            found: dict[str, list[float]] = {"local": [], "ray": []}
            for _ in range(trials):
                for name, executor in (("local", local), ("ray", ray)):
                    found[name].append(_overhead(executor, workload))
    warm = {name: times[trials // 10 :] for name, times in found.items()}
    figure = 1e3 * (median(warm["ray"]) - median(warm["local"]))
    row = {f"{name}_ms": 1e3 * median(times) for name, times in warm.items()}
    return {"row": "ray", "figure": figure, "unit": "ms more a trial", **row, "passed": figure < RAY_MS}


def _on_ray(settings: ExecutorSettings) -> Executor:
    """Return an executor on the cluster, once that is there."""
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return open_executor("ray", device_info().target, settings=settings)
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def _overhead(executor: Executor, workload: Workload) -> float:
    """Return what a trial takes beside its compilation, its check and its timing."""
    schedule = CandidatePool.of(workload, device_info(), seed=0, limit=64).schedule(0)
    began = time.perf_counter()
    ((_, done),) = executor.measure(workload, [schedule])
    clocks = done.clocks
    return time.perf_counter() - began - clocks.compile - clocks.check - clocks.time


ROWS: Mapping[str, Callable[[Options], Mapping[str, object]]] = {
    "claims": _claims,
    "records": lambda options: _records(options, None),
    "records of one job": lambda options: _records(options, 1),
    "ray": _ray,
}
