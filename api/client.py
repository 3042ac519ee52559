"""The Python client: every route of the service is a typed method.

    with Client("http://127.0.0.1:8421") as client:
        job = client.submit(operator_task("matmul", {"m": 512, "n": 512, "k": 512}), budget=Budget(trials=64))
        for event in client.events(job.id):
            print(event.kind, event.data)
        print(client.best(job.tasks[0].workload_key).seconds)

It needs the extra ``client`` only. Methods raise the errors of ``client_errors``, which are TilewrightErrors.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from ..core.budget import Budget
from ..core.errors import InvalidParameter
from ..core.policy import DEFAULT_POLICY, SpacePolicy
from ..core.schedule import Schedule
from .analysis_responses import JobEstimateOut
from .client_errors import Unreachable
from .client_families import FamilyMethods
from .client_lookups import LookupMethods, Task, expression_body
from .client_releases import ReleaseMethods
from .connection import checked, given_parts, parsed, path_part, pause_seconds
from .dashboard_responses import ProgressOut
from .figure import progress_figure
from .fleet_responses import (
    AttemptList,
    AttemptOut,
    QueueEntryOut,
    QueueList,
    TenantList,
    TenantOut,
    UnitList,
    UnitOut,
)
from .lookup_cache import LookupCache
from .model_requests import ModelTimingIn
from .model_responses import ModelExpectationOut, ModelOut, ModelPage
from .relatives_responses import RelativesOut
from .requests import ExpressionIn
from .responses import (
    DeviceList,
    DeviceOut,
    EventList,
    EventOut,
    ExplanationOut,
    ExportOut,
    HealthOut,
    ImportedOut,
    JobOut,
    JobPage,
    OperatorList,
    OperatorOut,
    SeriesOut,
    TrialOut,
    TrialPage,
    ValidatedOut,
    VersionOut,
    WorkloadOut,
)
from .sse import read_events

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_ADDRESS = "http://127.0.0.1:8421"
_STREAM_READ_SECONDS = 60.0
"""The service sends something at least every 15 seconds; silence for longer is a lost connection."""


def operator_task(operator: str, parameters: Mapping[str, object] | None = None) -> ExpressionIn:
    """Return the task of tuning a library operator."""
    return ExpressionIn(operator=operator, parameters=dict(parameters or {}))


class Client(LookupMethods, ReleaseMethods, FamilyMethods):
    """Connects to a service. Threads may share a client. Close it, or use it in a ``with``.

    ``token`` is what a service that has one wants to see. ``retries`` is how often a call is repeated after a
    connection error or a 503; the pause before it grows each time. All calls may be repeated: reads are safe, and
    ``submit`` always carries an Idempotency-Key. Answers of look-ups are kept, and with a ``cache_folder`` for other
    processes too: one that has not changed is not sent again.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        token: str | None = None,
        timeout_seconds: float = 60.0,
        retries: int = 5,
        transport: httpx2.BaseTransport | None = None,
        cache_folder: Path | None = None,
    ) -> None:
        super().__init__(address, token=token, timeout_seconds=timeout_seconds, retries=retries, transport=transport)
        self.cache = LookupCache(cache_folder)

    # jobs

    def submit(
        self,
        *tasks: Task,
        budget: Budget | None = None,
        strategy: str = "model",
        seed: int = 0,
        target: str = "llvm",
        executor: str = "local",
        cache: str | None = None,
        policy: SpacePolicy = DEFAULT_POLICY,
        tenant: str = "default",
        priority: int = 0,
        deadline_seconds: float | None = None,
        fresh: bool = False,
        idempotency_key: str | None = None,
    ) -> JobOut:
        """Submit a job; ``service.views.JobSpec`` says what the options mean. Without a key a new one is sent, so that
        a repeated request never makes two jobs."""
        body = _job_body(
            tasks,
            budget or Budget(),
            strategy=strategy,
            seed=seed,
            target=target,
            executor=executor,
            cache=cache,
            policy=policy,
            tenant=tenant,
            priority=priority,
            deadline_seconds=deadline_seconds,
            fresh=fresh,
        )
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._job(self._send("POST", "/v1/jobs", json=body, headers=headers))

    def validate(self, *tasks: Task, budget: Budget | None = None, **options: Any) -> ValidatedOut:
        """Check what ``submit`` would be given, and create nothing. ``options`` are those of ``submit``."""
        body = _job_body(tasks, budget or Budget(), **options) | {"validate_only": True}
        return parsed(ValidatedOut, self._send("POST", "/v1/jobs", json=body))

    def estimate(self, *tasks: Task, budget: Budget | None = None, **options: Any) -> JobEstimateOut:
        """Return what a job would cost, and create nothing. ``options`` are those of ``submit``."""
        body = _job_body(tasks, budget or Budget(), **options)
        return parsed(JobEstimateOut, self._send("POST", "/v1/jobs/estimate", json=body))

    def job(self, job_id: str) -> JobOut:
        """Return a job with the best so far of each task."""
        return self._job(self._send("GET", f"/v1/jobs/{path_part(job_id)}"))

    def jobs(self, *, state: str | None = None, page_size: int = 100) -> Iterator[JobOut]:
        """Yield all jobs, newest first, fetched page by page."""
        for page in self._pages("/v1/jobs", JobPage, {"state": state, "page_size": page_size}):
            for job in page.jobs:
                job._plot = self.plot
                yield job

    def progress(self, job_id: str, *, task: int = 0) -> ProgressOut:
        """Return the trials of a task as columns, thinned out where they are many."""
        return parsed(ProgressOut, self._send("GET", f"/v1/jobs/{path_part(job_id)}/progress", params={"task": task}))

    def plot(self, job_id: str, *, task: int = 0, across: str = "trials", log: bool = True) -> "Figure":
        """Return the progress of a task as a matplotlib figure (``figure.progress_figure``)."""
        job = self.job(job_id)
        if not 0 <= task < len(job.tasks):
            raise InvalidParameter(f"job {job_id} has {len(job.tasks)} tasks, none with index {task}", field="task")
        shown = job.tasks[task]
        sizes = " ".join(f"{name}={value}" for name, value in (shown.parameters or {}).items())
        title = f"{shown.operator or f'workload {shown.workload_key[:12]}'} {sizes}"
        return progress_figure(shown, self.progress(job_id, task=task), title, across=across, log=log)

    def _job(self, answer: httpx2.Response) -> JobOut:
        job = parsed(JobOut, answer)
        job._plot = self.plot
        return job

    def cancel(self, job_id: str) -> JobOut:
        """Stop a job. Raises Contradiction when it has ended already."""
        path = f"/v1/jobs/{path_part(job_id)}/cancel"
        answer, tries = self._try("POST", path)
        if answer.status_code == 409 and tries > 1:  # our first try, which got no answer, may have cancelled it
            job = self.job(job_id)
            if job.state in ("cancelling", "cancelled"):
                return job
        return self._job(checked(answer))

    def pause(self, job_id: str) -> JobOut:
        """Hold a job back. Raises Contradiction when it has ended."""
        return self._job(self._send("POST", f"/v1/jobs/{path_part(job_id)}/pause"))

    def resume(self, job_id: str) -> JobOut:
        """Let a paused job go on. Raises Contradiction when it has ended."""
        return self._job(self._send("POST", f"/v1/jobs/{path_part(job_id)}/resume"))

    def retry(self, job_id: str) -> JobOut:
        """Try the dead tasks of a job again. Raises Contradiction where there are none."""
        return self._job(self._send("POST", f"/v1/jobs/{path_part(job_id)}/retry"))

    def set_priority(self, job_id: str, priority: int) -> JobOut:
        """Change the priority of a job. Raises Contradiction when it has ended."""
        body = {"priority": priority}
        return self._job(self._send("PUT", f"/v1/jobs/{path_part(job_id)}/priority", json=body))

    def attempts(self, job_id: str, *, task: int = 0) -> tuple[AttemptOut, ...]:
        """Return the attempts at a task, oldest first."""
        path = f"/v1/jobs/{path_part(job_id)}/tasks/{task:d}/attempts"
        return parsed(AttemptList, self._send("GET", path)).attempts

    def events(self, job_id: str, *, after: int = 0) -> Iterator[EventOut]:
        """Yield the job's events as they happen, until it has ended. This reconnects by itself and misses none.

        Raises Unreachable after ``retries`` failed attempts in a row.
        """
        failures = 0
        while True:
            try:
                for name, text, identifier in self._stream(job_id, after):
                    failures = 0
                    if name == "end":
                        return
                    after = int(identifier or after)
                    yield EventOut.model_validate_json(text)
                if self._ended(job_id, after):
                    return
            except (httpx2.TransportError, Unreachable) as error:
                failures += 1
                if failures > self._retries:
                    raise Unreachable(f"lost the events of job {job_id}: {error or type(error).__name__}") from error
                time.sleep(pause_seconds(failures))

    def poll_events(self, job_id: str, *, after: int = 0, wait_seconds: float = 0.0) -> EventList:
        """Return events after one id, without a stream. Wait up to ``wait_seconds`` (at most 30) for the first."""
        query = {"after": after, "wait_seconds": wait_seconds}
        return parsed(EventList, self._send("GET", f"/v1/jobs/{path_part(job_id)}/events", params=query))

    # trials and schedules

    def trials(self, job_id: str, *, task: int = 0, order: str = "oldest", page_size: int = 200) -> Iterator[TrialOut]:
        """Yield all trials of one task, fetched page by page. ``order`` is ``oldest``, ``newest`` or ``best``."""
        query = {"task": task, "order": order, "page_size": page_size}
        for page in self._pages(f"/v1/jobs/{path_part(job_id)}/trials", TrialPage, query):
            yield from page.trials

    def series(self, job_id: str, *, task: int = 0, after: int = -1) -> SeriesOut:
        """Return the trials of one task as columns."""
        query = {"task": task, "after": after}
        return parsed(SeriesOut, self._send("GET", f"/v1/jobs/{path_part(job_id)}/series", params=query))

    def trial(self, record_id: int) -> TrialOut:
        """Return one recorded trial."""
        return parsed(TrialOut, self._send("GET", f"/v1/trials/{record_id:d}"))

    def source(self, record_id: int) -> ExplanationOut:
        """Return every layer of a trial's schedule as text."""
        return parsed(ExplanationOut, self._send("GET", f"/v1/trials/{record_id:d}/source"))

    def relatives(self, record_id: int) -> RelativesOut:
        """Return what a trial can be compared with, and which records have the same schedule."""
        return parsed(RelativesOut, self._send("GET", f"/v1/trials/{record_id:d}/relatives"))

    def explain(self, task: Task, schedule: Schedule | None = None, *, target: str | None = None) -> ExplanationOut:
        """Return every layer of a schedule: by default of the best one known, else of the sketch's first. ``target`` is
        what code is made for: a device of the host (``cuda``) or an architecture (``cuda:sm_90a``)."""
        body = _shown(task, schedule, target)
        return parsed(ExplanationOut, self._send("POST", "/v1/schedules/explain", json=body))

    def export(
        self,
        task: Task,
        schedule: Schedule | None = None,
        *,
        target: str | None = None,
        name: str = "kernel",
        library: bool = False,
    ) -> ExportOut:
        """Return the schedule that ``explain`` would show as files, with a shared library if ``library``. ``name`` is
        what its functions for other programs are called."""
        body = _shown(task, schedule, target) | {"name": name, "library": library}
        return parsed(ExportOut, self._send("POST", "/v1/schedules/export", json=body))

    def export_record(self, record_id: int, *, name: str = "kernel", library: bool = False) -> ExportOut:
        """Return the schedule of a record as files, as ``export`` makes them."""
        query = {"name": name, "library": str(library).lower()}
        return parsed(ExportOut, self._send("GET", f"/v1/trials/{record_id}/export", params=query))

    # records

    def export_records(self) -> Iterator[str]:
        """Yield every record as JSON lines, with the workloads, devices, toolchains and jobs that it refers to. Raises
        Unreachable when the connection is lost on the way."""
        timeout = httpx2.Timeout(_STREAM_READ_SECONDS, connect=5.0)
        try:
            with self._http.stream("GET", "/v1/records", timeout=timeout) as answer:
                if answer.status_code != 200:
                    answer.read()
                    checked(answer)
                yield from _lines(answer.iter_bytes())
        except httpx2.TransportError as error:
            raise Unreachable(f"no answer from {self.address}: {error or type(error).__name__}") from error

    def import_records(self, lines: Iterable[str]) -> ImportedOut:
        """Add the records of such lines. They are sent once, without retries: a repeated import adds nothing twice."""
        body = (line.rstrip("\n").encode() + b"\n" for line in lines)
        headers = {"Content-Type": "application/jsonl"}
        timeout = httpx2.Timeout(None, connect=5.0)  # the answer comes when all lines are stored
        answer = self._once("POST", "/v1/records", content=body, headers=headers, timeout=timeout)
        return parsed(ImportedOut, checked(answer))

    # models that users run

    def add_model(
        self,
        name: str,
        workloads: Iterable[tuple[Task, int, str]],
        foreign_calls: Mapping[str, int] | None = None,
    ) -> ModelOut:
        """Store a model: its workloads as (task, how often it occurs, label), and the operators that its own library
        computes with how often each occurs. The same model is stored once."""
        parts = [expression_body(task) | {"count": count, "label": label} for task, count, label in workloads]
        body = {"name": name, "workloads": parts, "foreign_calls": dict(foreign_calls or {})}
        return parsed(ModelOut, self._send("POST", "/v1/models", json=body))

    def models(self, *, page_size: int = 20) -> Iterator[ModelOut]:
        """Yield all models, newest first, fetched page by page."""
        for page in self._pages("/v1/models", ModelPage, {"page_size": page_size}):
            yield from page.models

    def model(self, model_key: str, *, target: str | None = None) -> ModelOut:
        """Return a model with what is known of its workloads on a device."""
        return parsed(ModelOut, self._send("GET", f"/v1/models/{path_part(model_key)}", params={"target": target}))

    def tune_model(self, model_key: str, *, budget: Budget, target: str = "llvm", **options: Any) -> JobOut:
        """Tune a model by one job, whose budget its workloads share. A job that is under way for the same target is the
        answer instead. ``options``: strategy, seed, executor, tenant, priority."""
        shared = given_parts({"trials": budget.trials, "seconds": budget.seconds, "stall": budget.stall})
        body = {"budget": shared, **given_parts({"runs": budget.runs}), "target": target, **options}
        return parsed(JobOut, self._send("POST", f"/v1/models/{path_part(model_key)}/jobs", json=body))

    def expect_of_model(self, model_key: str, *, budget: Budget, target: str = "llvm") -> ModelExpectationOut:
        """Return what a job of a model is expected to save of one run, and what it would cost."""
        limits = given_parts({"trials": budget.trials, "seconds": budget.seconds, "stall": budget.stall})
        path = f"/v1/models/{path_part(model_key)}/jobs/estimate"
        return parsed(ModelExpectationOut, self._send("POST", path, json={"budget": limits, "target": target}))

    def keep_model_timing(self, model_key: str, timing: ModelTimingIn) -> ModelOut:
        """Keep the time of whole runs of a model."""
        path = f"/v1/models/{path_part(model_key)}/timings"
        return parsed(ModelOut, self._send("POST", path, json=timing.model_dump()))

    # the fleet

    def units(self) -> tuple[UnitOut, ...]:
        """Return the physical devices of the fleet with their states and what they do."""
        return parsed(UnitList, self._send("GET", "/v1/units")).units

    def drain(self, uuid: str, reason: str) -> UnitOut:
        """Take a unit out: the task in hand is given back after the trial that runs, and no other begins."""
        return self._change_unit(uuid, "drain", reason)

    def release(self, uuid: str, reason: str) -> UnitOut:
        """Let a unit take tasks again."""
        return self._change_unit(uuid, "release", reason)

    def quarantine(self, uuid: str, reason: str) -> UnitOut:
        """Use a unit no more until it is released."""
        return self._change_unit(uuid, "quarantine", reason)

    def _change_unit(self, uuid: str, verb: str, reason: str) -> UnitOut:
        body = {"reason": reason}
        return parsed(UnitOut, self._send("POST", f"/v1/units/{path_part(uuid)}/{verb}", json=body))

    def queue(self, *, limit: int = 200) -> tuple[QueueEntryOut, ...]:
        """Return the tasks that run or wait, in the order in which they are to be claimed."""
        return parsed(QueueList, self._send("GET", "/v1/queue", params={"limit": limit})).tasks

    def tenants(self) -> tuple[TenantOut, ...]:
        """Return the tenants with their weights and quotas."""
        return parsed(TenantList, self._send("GET", "/v1/tenants")).tenants

    def set_tenant(
        self, name: str, *, weight: float = 1.0, most_units: int | None = None, most_queued: int | None = None
    ) -> TenantOut:
        """Add a tenant, or change its weight and quotas; None: no quota."""
        body = {"weight": weight, "most_units": most_units, "most_queued": most_queued}
        return parsed(TenantOut, self._send("PUT", f"/v1/tenants/{path_part(name)}", json=body))

    # the library and the service

    def operators(self) -> tuple[OperatorOut, ...]:
        """Return all operators with the schemas of their parameters."""
        return parsed(OperatorList, self._send("GET", "/v1/operators")).operators

    def operator_workload(self, name: str, parameters: Mapping[str, object] | None = None) -> WorkloadOut:
        """Return the workload that an operator stands for."""
        body = {"parameters": dict(parameters or {})}
        return parsed(WorkloadOut, self._send("POST", f"/v1/operators/{path_part(name)}/workload", json=body))

    def devices(self) -> tuple[DeviceOut, ...]:
        """Return the devices that records were measured on, and those attached now."""
        return parsed(DeviceList, self._send("GET", "/v1/devices")).devices

    def ready(self) -> HealthOut:
        """Return whether the service can take jobs. This asks once, without retries."""
        return parsed(HealthOut, self._once("GET", "/readyz"))

    def version(self) -> VersionOut:
        """Return the versions of the service and its wire format, and the name of its run."""
        return parsed(VersionOut, self._send("GET", "/version"))

    # the wire

    def _stream(self, job_id: str, after: int) -> Iterator[tuple[str, str, str]]:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": str(after)} if after else {})}
        timeout = httpx2.Timeout(_STREAM_READ_SECONDS, connect=5.0)
        path = f"/v1/jobs/{path_part(job_id)}/events"
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if answer.status_code == 503:
                raise Unreachable("the service is not available now")
            if answer.status_code != 200:
                answer.read()
                checked(answer)
            yield from read_events(answer.iter_lines())

    def _ended(self, job_id: str, after: int) -> bool:
        return self.poll_events(job_id, after=after).final


def _job_body(
    tasks: tuple[Task, ...],
    budget: Budget,
    *,
    strategy: str = "model",
    seed: int = 0,
    target: str = "llvm",
    executor: str = "local",
    cache: str | None = None,
    policy: SpacePolicy = DEFAULT_POLICY,
    **later: Any,
) -> dict[str, Any]:
    """Return the body of a submission. What came later and has its default is left out, so that a service of an earlier
    version takes it."""
    chosen = {} if policy == DEFAULT_POLICY else {"prune": policy.prune, "prior": policy.prior}
    defaults = {"tenant": "default", "priority": 0, "deadline_seconds": None, "fresh": False}
    return {
        "tasks": [expression_body(task) for task in tasks],
        "budget": given_parts({"trials": budget.trials, "seconds": budget.seconds, "stall": budget.stall}),
        "strategy": strategy,
        "seed": seed,
        "target": target,
        "executor": executor,
        "cache": cache,
        **chosen,
        **{name: value for name, value in later.items() if value != defaults.get(name)},
    }


def _shown(task: Task, schedule: Schedule | None, target: str | None) -> dict[str, Any]:
    """Return the body that says what is explained or exported."""
    given = {"schedule": None if schedule is None else schedule.to_json(), "target": target}
    return expression_body(task) | given_parts(given)


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Split at line feeds alone: JSON text may hold other characters that end a line in Unicode."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode() for line in whole)
    if rest:
        yield rest.decode()
