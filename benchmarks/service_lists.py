"""What every list and page of the service costs on a database with many records.

``PATHS`` has each route that answers with rows of the database; ``NOT_LISTS`` says of the others why they are not here.
Placeholders stand for a job of 64 tasks, and a record and a workload of it. The page of a task with 10,000 trials
(``/jobs/long``) has a bar of its own (``benchmarks.dashboard``).
"""

from collections.abc import Mapping, Sequence
from statistics import median

import psutil

from benchmarks.http_load import get, send
from benchmarks.service_records import key_of

MOST_MS = 50.0
REPEATS = 15
NAMES = {
    "job_id": "filled7",
    "task": "0",
    "record_id": "4481",  # of the job filled7
    "workload_key": key_of(448),
    "name": "all",
    "channel": "stable",
}
ABSENT = "0" * 64
PATHS: Mapping[str, Sequence[str]] = {
    "/v1/jobs": ("", "?state=failed", "?owner=nobody", "?state=succeeded&tag=nightly", "?tag=weekly"),
    "/v1/jobs/{job_id}": ("",),
    "/v1/jobs/{job_id}/tasks/{task}/attempts": ("",),
    "/v1/models": ("",),
    "/v1/families": ("",),
    "/v1/jobs/{job_id}/trials": ("", "?order=best", "?order=newest"),
    "/v1/jobs/{job_id}/series": ("",),
    "/v1/trials/{record_id}": ("",),
    "/v1/trials/{record_id}/relatives": ("",),
    "/v1/overview": ("",),
    "/v1/jobs/{job_id}/progress": ("",),
    "/v1/jobs/{job_id}/failures": ("",),
    "/v1/jobs/{job_id}/knobs": ("",),
    "/v1/jobs/{job_id}/model-quality": ("",),
    "/v1/jobs/{job_id}/workers": ("",),
    "/v1/jobs/{job_id}/device-health": ("",),
    "/v1/trials": (
        "",
        "?operator=softmax",
        "?operator=conv2d",
        "?outcome=failed",
        "?reason=timeout",
        f"?device_key={ABSENT}",
        "?sketch=nothing",
        "?workload_key={workload_key}",
        "?job_id={job_id}&outcome=failed",
    ),
    "/v1/releases": ("",),
    "/v1/channels": ("",),
    "/v1/operators": ("",),
    "/v1/workloads": ("", "?operator=softmax", "?operator=conv2d"),
    "/v1/workloads/{workload_key}": ("",),
    "/v1/comparisons": ("?items=record:{record_id},record:1", "?items=job:filled7,job:filled8"),
    "/v1/cost-models": ("",),
    "/v1/devices": ("",),
    "/v1/units": ("",),
    "/v1/queue": ("",),
    "/v1/tenants": ("",),
    "/v1/keys": ("",),
    "/v1/audit": ("",),
    "/v1/caller": ("",),
    "/healthz": ("",),
    "/readyz": ("",),
    "/metrics": ("",),
    "/version": ("",),
    "/": ("",),
    "/jobs": ("", "?state=failed"),
    "/jobs/{job_id}": ("",),
    "/jobs/{job_id}/summary": ("",),
    "/jobs/{job_id}/figures": ("",),
    "/jobs/{job_id}/failures": ("",),
    "/jobs/{job_id}/trials": ("",),
    "/jobs/{job_id}/best": ("",),
    "/data": ("", "?operator=softmax", "?reason=timeout"),
    "/devices": ("",),
    "/devices/table": ("",),
    "/queue": ("",),
    "/queue/table": ("",),
    "/models": ("",),
    "/releases": ("",),
    "/workloads": ("", "?operator=softmax"),
    "/workloads/{workload_key}": ("",),
    "/compare": ("", "?job=filled7&job=filled8"),
    "/cost-models": ("",),
    "/submit": ("",),
    "/sign-in": ("",),
}
LONG = tuple(f"/v1/jobs/long/trials{order}" for order in ("", "?order=best", "?order=newest"))
"""The lists of a task with 10,000 trials."""
_COMPILES = "compiles code in a child"
NOT_LISTS = {
    "/v1/schedules/best": "a look-up, which has a bar of its own",
    "/v1/jobs/{job_id}/events": "a stream",
    "/v1/jobs/{job_id}/trials.csv": "a file of a whole task",
    "/v1/trials.csv": "a file of up to 100,000 records",
    "/v1/records": "a file of all records",
    "/v1/models/{model_key}": "one model",
    "/models/{model_key}": "one model",
    "/models/{model_key}/kernels": "one model",
    "/v1/families/{name}": "one family",
    "/v1/families/{name}/schedule": "one family",
    "/v1/families/{name}/dispatcher": "one family",
    "/v1/releases/{name}": "one release",
    "/releases/{name}": "one release",
    "/v1/releases/{name}/bundle": "a file of a whole release",
    "/v1/releases/{name}/diff": "two releases",
    "/v1/release_key": "one key",
    "/v1/channels/{channel}": "one channel",
    "/v1/operators/{name}": "one operator",
    "/v1/trials/{record_id}/source": _COMPILES,
    "/v1/trials/{record_id}/export": _COMPILES,
    "/v1/trials/{record_id}/binary": "a file",
    "/jobs/{job_id}/trials/{record_id}": _COMPILES,
    "/jobs/{job_id}/trials/{record_id}/panel": _COMPILES,
    "/trials/{record_id}/layers": _COMPILES,
    "/trials/{record_id}/kernel.zip": _COMPILES,
    "/sign-in/oidc": "goes to the provider of identities",
    "/sign-in/callback": "comes from there",
}


def addresses() -> list[str]:
    """Return what is asked, with values for the placeholders."""
    return [(path + query).format_map(NAMES) for path, queries in PATHS.items() for query in queries] + [*LONG]


def measure(
    port: int, secret: str, admin: str, processes: Sequence[psutil.Process], chosen: Sequence[str]
) -> list[dict[str, object]]:
    """Ask for the chosen lists and pages of the server on ``port`` with a key of a tenant, or of an administrator where
    that is needed. The CPU time is that of ``processes``: the server, and the database where it is another program."""
    rows: list[dict[str, object]] = []
    for address in chosen:
        key = admin if address.startswith(("/v1/keys", "/v1/audit")) else secret
        request = get(address, key)
        first = send(port, [request], connections=1)
        cpu = cpu_seconds(processes)
        load = send(port, [request] * REPEATS, connections=1)
        cpu = (cpu_seconds(processes) - cpu) / REPEATS
        ms = 1e3 * median(load.seconds)
        fits = set(load.statuses) <= {200, 303}
        about = {
            "ms": ms,
            "slowest_ms": 1e3 * load.seconds[-1],
            "first_ms": 1e3 * first.seconds[0],
            "cpu_ms": 1e3 * cpu,
        }
        rows.append({"row": address, **about, "most_ms": MOST_MS, "met": fits and ms < MOST_MS})
    return rows


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU time that processes, and children of theirs, have taken so far."""
    total = 0.0
    for process in [other for one in processes for other in (one, *one.children(recursive=True))]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += sum(times[:4])  # its own, and that of children which have ended
    return total
