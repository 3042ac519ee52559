"""Describes the methods of the Python clients: every route of the service is a typed method (``request_flow``)."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import httpx2

from ..core.budget import Budget
from ..core.errors import InvalidParameter
from ..core.policy import DEFAULT_POLICY, SpacePolicy
from ..core.retuning import RUNNERS_UP
from ..core.schedule import Schedule
from .analysis_responses import JobEstimateOut
from .client_families import FamilyMethods
from .client_lookups import LookupMethods, Task, expression_body
from .client_releases import ReleaseMethods
from .dashboard_responses import DeviceHealthOut, KnobsOut, ModelQualityOut, ProgressOut, WorkerList
from .fleet_responses import AttemptList, AttemptOut, QueueEntryOut, QueueList, TenantList, TenantOut, UnitList, UnitOut
from .key_responses import AuditEntryOut, AuditPage, CallerOut, KeyOut, KeyPage, NewKeyOut
from .model_requests import ModelTimingIn
from .model_responses import ModelExpectationOut, ModelOut, ModelPage
from .relatives_responses import RelativesOut
from .request_flow import (
    FlowRequest,
    Listing,
    RequestFlow,
    call,
    checked,
    given_parts,
    listed,
    parsed,
    path_part,
    request,
    slow_request,
)
from .requests import ExpressionIn
from .responses import (
    DeviceList,
    DeviceOut,
    EventList,
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


def operator_task(operator: str, parameters: Mapping[str, object] | None = None) -> ExpressionIn:
    """Return the task of tuning a library operator."""
    return ExpressionIn(operator=operator, parameters=dict(parameters or {}))


class ServiceMethods(LookupMethods, ReleaseMethods, FamilyMethods):
    """Is the base of ``Client`` and ``AsyncClient``, which add what streams."""

    # jobs

    @call
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
        tenant: str | None = None,
        priority: int = 0,
        deadline_seconds: float | None = None,
        fresh: bool = False,
        units: int = 1,
        tags: Sequence[str] = (),
        notes: str = "",
        idempotency_key: str | None = None,
    ) -> RequestFlow[JobOut]:
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
            units=units,
            tags=tuple(tags),
            notes=notes,
        )
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._job((yield request("POST", "/v1/jobs", json=body, headers=headers)))

    @call
    def retune(
        self,
        /,
        *workload_keys: str,
        toolchain_before: str | None = None,
        runners_up: int = RUNNERS_UP,
        budget: Budget | None = None,
        target: str = "llvm",
        idempotency_key: str | None = None,
        **options: Any,
    ) -> RequestFlow[JobOut]:
        """Submit a job that measures again what was the best of these workloads before a change, and searches where
        that does not hold; without keys of all whose best records are of an earlier toolchain or sketch. ``options``:
        strategy, seed, executor, cache, tenant, priority. Raises NotFound where there is nothing to retune."""
        limits = (budget or Budget()).to_json()
        body = {
            "workload_keys": workload_keys,
            "runners_up": runners_up,
            "budget": given_parts({name: limits[name] for name in ("trials", "seconds", "stall")}),
            "target": target,
            **given_parts({"toolchain_before": toolchain_before}),
            **options,
        }
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._job((yield request("POST", "/v1/retunes", json=body, headers=headers)))

    @call
    def validate(self, /, *tasks: Task, budget: Budget | None = None, **options: Any) -> RequestFlow[ValidatedOut]:
        """Check what ``submit`` would be given, and create nothing. ``options`` are those of ``submit``."""
        body = _job_body(tasks, budget or Budget(), **options) | {"validate_only": True}
        return parsed(ValidatedOut, (yield request("POST", "/v1/jobs", json=body)))

    @call
    def estimate(self, /, *tasks: Task, budget: Budget | None = None, **options: Any) -> RequestFlow[JobEstimateOut]:
        """Return what a job would cost, and create nothing. ``options`` are those of ``submit``."""
        body = _job_body(tasks, budget or Budget(), **options)
        return parsed(JobEstimateOut, (yield request("POST", "/v1/jobs/estimate", json=body)))

    @call
    def job(self, job_id: str) -> RequestFlow[JobOut]:
        """Return a job with the best so far of each task."""
        return self._job((yield request("GET", f"/v1/jobs/{path_part(job_id)}")))

    @call
    def progress(self, job_id: str, *, task: int = 0, after: int = -1) -> RequestFlow[ProgressOut]:
        """Return the trials of a task beyond sequence ``after`` as columns, thinned out where they are many."""
        params = {"task": task, "after": after}
        return parsed(ProgressOut, (yield request("GET", f"/v1/jobs/{path_part(job_id)}/progress", params=params)))

    @call
    def knobs(self, job_id: str, *, task: int = 0) -> RequestFlow[KnobsOut]:
        """Return what the knobs of a task do: their importance, a slice of two, and settings with their times."""
        return parsed(KnobsOut, (yield self._about_task(job_id, "knobs", task)))

    @call
    def model_quality(self, job_id: str, *, task: int = 0) -> RequestFlow[ModelQualityOut]:
        """Return what the cost model of a task foretold beside what was measured."""
        return parsed(ModelQualityOut, (yield self._about_task(job_id, "model-quality", task)))

    @call
    def task_workers(self, job_id: str, *, task: int = 0) -> RequestFlow[WorkerList]:
        """Return on which units the trials of a task spent their time, and on what."""
        return parsed(WorkerList, (yield self._about_task(job_id, "workers", task)))

    @call
    def device_health(self, job_id: str, *, task: int = 0) -> RequestFlow[DeviceHealthOut]:
        """Return the readings of the device beside the trials of a task."""
        return parsed(DeviceHealthOut, (yield self._about_task(job_id, "device-health", task)))

    def _about_task(self, job_id: str, what: str, task: int) -> FlowRequest:
        return request("GET", f"/v1/jobs/{path_part(job_id)}/{what}", params={"task": task})

    @call
    def pause(self, job_id: str) -> RequestFlow[JobOut]:
        """Hold a job back. Raises Contradiction when it has ended."""
        return self._job((yield request("POST", f"/v1/jobs/{path_part(job_id)}/pause")))

    @call
    def resume(self, job_id: str) -> RequestFlow[JobOut]:
        """Let a paused job go on. Raises Contradiction when it has ended."""
        return self._job((yield request("POST", f"/v1/jobs/{path_part(job_id)}/resume")))

    @call
    def retry(self, job_id: str) -> RequestFlow[JobOut]:
        """Try the dead tasks of a job again. Raises Contradiction where there are none."""
        return self._job((yield request("POST", f"/v1/jobs/{path_part(job_id)}/retry")))

    @call
    def set_priority(self, job_id: str, priority: int) -> RequestFlow[JobOut]:
        """Change the priority of a job. Raises Contradiction when it has ended."""
        body = {"priority": priority}
        return self._job((yield request("PUT", f"/v1/jobs/{path_part(job_id)}/priority", json=body)))

    @call
    def attempts(self, job_id: str, *, task: int = 0) -> RequestFlow[tuple[AttemptOut, ...]]:
        """Return the attempts at a task, oldest first."""
        path = f"/v1/jobs/{path_part(job_id)}/tasks/{task:d}/attempts"
        return parsed(AttemptList, (yield request("GET", path))).attempts

    @call
    def poll_events(self, job_id: str, *, after: int = 0, wait_seconds: float = 0.0) -> RequestFlow[EventList]:
        """Return events after one id, without a stream. Wait up to ``wait_seconds`` (at most 30) for the first."""
        query = {"after": after, "wait_seconds": wait_seconds}
        return parsed(EventList, (yield request("GET", f"/v1/jobs/{path_part(job_id)}/events", params=query)))

    # trials and schedules

    @call
    def series(self, job_id: str, *, task: int = 0, after: int = -1) -> RequestFlow[SeriesOut]:
        """Return the trials of one task as columns."""
        query = {"task": task, "after": after}
        return parsed(SeriesOut, (yield request("GET", f"/v1/jobs/{path_part(job_id)}/series", params=query)))

    @call
    def trial(self, record_id: int) -> RequestFlow[TrialOut]:
        """Return one recorded trial."""
        return parsed(TrialOut, (yield request("GET", f"/v1/trials/{record_id:d}")))

    @call
    def source(self, record_id: int) -> RequestFlow[ExplanationOut]:
        """Return every layer of a trial's schedule as text."""
        return parsed(ExplanationOut, (yield request("GET", f"/v1/trials/{record_id:d}/source")))

    @call
    def relatives(self, record_id: int) -> RequestFlow[RelativesOut]:
        """Return what a trial can be compared with, and which records have the same schedule."""
        return parsed(RelativesOut, (yield request("GET", f"/v1/trials/{record_id:d}/relatives")))

    @call
    def explain(
        self, task: Task, schedule: Schedule | None = None, *, target: str | None = None
    ) -> RequestFlow[ExplanationOut]:
        """Return every layer of a schedule: by default of the best one known, else of the sketch's first. ``target`` is
        what code is made for: a device of the host (``cuda``) or an architecture (``cuda:sm_90a``)."""
        body = _shown(task, schedule, target)
        return parsed(ExplanationOut, (yield request("POST", "/v1/schedules/explain", json=body)))

    @call
    def export(
        self,
        task: Task,
        schedule: Schedule | None = None,
        *,
        target: str | None = None,
        name: str = "kernel",
        library: bool = False,
    ) -> RequestFlow[ExportOut]:
        """Return the schedule that ``explain`` would show as files, with a shared library if ``library``. ``name`` is
        what its functions for other programs are called."""
        body = _shown(task, schedule, target) | {"name": name, "library": library}
        return parsed(ExportOut, (yield request("POST", "/v1/schedules/export", json=body)))

    @call
    def export_record(self, record_id: int, *, name: str = "kernel", library: bool = False) -> RequestFlow[ExportOut]:
        """Return the schedule of a record as files, as ``export`` makes them."""
        query = {"name": name, "library": str(library).lower()}
        return parsed(ExportOut, (yield request("GET", f"/v1/trials/{record_id}/export", params=query)))

    # records

    @call
    def binary(self, record_id: int) -> RequestFlow[bytes]:
        """Return the very binary that a record measured, found to be whole. Raises Missing where it is not kept."""
        answer = yield request("GET", f"/v1/trials/{record_id:d}/binary")
        if f'"{sha256(answer.content).hexdigest()}"' != answer.headers["ETag"]:
            raise InvalidParameter("the binary has changed on its way", field="record_id")
        return answer.content

    # models that users run

    @call
    def add_model(
        self,
        name: str,
        workloads: Iterable[tuple[Task, int, str]],
        foreign_calls: Mapping[str, int] | None = None,
    ) -> RequestFlow[ModelOut]:
        """Store a model: its workloads as (task, how often it occurs, label), and the operators that its own library
        computes with how often each occurs. The same model is stored once."""
        parts = [expression_body(task) | {"count": count, "label": label} for task, count, label in workloads]
        body = {"name": name, "workloads": parts, "foreign_calls": dict(foreign_calls or {})}
        return parsed(ModelOut, (yield request("POST", "/v1/models", json=body)))

    @call
    def model(self, model_key: str, *, target: str | None = None) -> RequestFlow[ModelOut]:
        """Return a model with what is known of its workloads on a device."""
        return parsed(ModelOut, (yield request("GET", f"/v1/models/{path_part(model_key)}", params={"target": target})))

    @call
    def tune_model(
        self, /, model_key: str, *, budget: Budget, target: str = "llvm", **options: Any
    ) -> RequestFlow[JobOut]:
        """Tune a model by one job, whose budget its workloads share. A job that is under way for the same target is the
        answer instead. ``options``: strategy, seed, executor, tenant, priority."""
        shared = given_parts({"trials": budget.trials, "seconds": budget.seconds, "stall": budget.stall})
        body = {"budget": shared, **given_parts({"runs": budget.runs}), "target": target, **options}
        return parsed(JobOut, (yield request("POST", f"/v1/models/{path_part(model_key)}/jobs", json=body)))

    @call
    def expect_of_model(
        self, model_key: str, *, budget: Budget, target: str = "llvm"
    ) -> RequestFlow[ModelExpectationOut]:
        """Return what a job of a model is expected to save of one run, and what it would cost."""
        limits = given_parts({"trials": budget.trials, "seconds": budget.seconds, "stall": budget.stall})
        path = f"/v1/models/{path_part(model_key)}/jobs/estimate"
        return parsed(ModelExpectationOut, (yield request("POST", path, json={"budget": limits, "target": target})))

    @call
    def keep_model_timing(self, model_key: str, timing: ModelTimingIn) -> RequestFlow[ModelOut]:
        """Keep the time of whole runs of a model."""
        path = f"/v1/models/{path_part(model_key)}/timings"
        return parsed(ModelOut, (yield request("POST", path, json=timing.model_dump())))

    # the fleet

    @call
    def units(self) -> RequestFlow[tuple[UnitOut, ...]]:
        """Return the physical devices of the fleet with their states and what they do."""
        return parsed(UnitList, (yield request("GET", "/v1/units"))).units

    @call
    def drain(self, uuid: str, reason: str) -> RequestFlow[UnitOut]:
        """Take a unit out: the task in hand is given back after the trial that runs, and no other begins."""
        return (yield from self._change_unit(uuid, "drain", reason))

    @call
    def release(self, uuid: str, reason: str) -> RequestFlow[UnitOut]:
        """Let a unit take tasks again."""
        return (yield from self._change_unit(uuid, "release", reason))

    @call
    def quarantine(self, uuid: str, reason: str) -> RequestFlow[UnitOut]:
        """Use a unit no more until it is released."""
        return (yield from self._change_unit(uuid, "quarantine", reason))

    def _change_unit(self, uuid: str, verb: str, reason: str) -> RequestFlow[UnitOut]:
        body = {"reason": reason}
        return parsed(UnitOut, (yield request("POST", f"/v1/units/{path_part(uuid)}/{verb}", json=body)))

    @call
    def queue(self, *, limit: int = 200) -> RequestFlow[tuple[QueueEntryOut, ...]]:
        """Return the tasks that run or wait, in the order in which they are to be claimed."""
        return parsed(QueueList, (yield request("GET", "/v1/queue", params={"limit": limit}))).tasks

    @call
    def tenants(self) -> RequestFlow[tuple[TenantOut, ...]]:
        """Return the tenants with their weights and quotas."""
        return parsed(TenantList, (yield request("GET", "/v1/tenants"))).tenants

    @call
    def set_tenant(
        self, name: str, *, weight: float = 1.0, most_units: int | None = None, most_queued: int | None = None
    ) -> RequestFlow[TenantOut]:
        """Add a tenant, or change its weight and quotas; None: no quota."""
        body = {"weight": weight, "most_units": most_units, "most_queued": most_queued}
        return parsed(TenantOut, (yield request("PUT", f"/v1/tenants/{path_part(name)}", json=body)))

    # the library and the service

    @call
    def operators(self) -> RequestFlow[tuple[OperatorOut, ...]]:
        """Return all operators with the schemas of their parameters."""
        return parsed(OperatorList, (yield request("GET", "/v1/operators"))).operators

    @call
    def operator_workload(self, name: str, parameters: Mapping[str, object] | None = None) -> RequestFlow[WorkloadOut]:
        """Return the workload that an operator stands for."""
        body = {"parameters": dict(parameters or {})}
        return parsed(WorkloadOut, (yield request("POST", f"/v1/operators/{path_part(name)}/workload", json=body)))

    @call
    def devices(self) -> RequestFlow[tuple[DeviceOut, ...]]:
        """Return the devices that records were measured on, and those attached now."""
        return parsed(DeviceList, (yield request("GET", "/v1/devices"))).devices

    @call
    def version(self) -> RequestFlow[VersionOut]:
        """Return the versions of the service and its wire format, and the name of its run."""
        return parsed(VersionOut, (yield request("GET", "/version")))

    def _job(self, answer: httpx2.Response) -> JobOut:
        return self._with_plot(parsed(JobOut, answer))

    def _with_plot(self, job: JobOut) -> JobOut:
        """Return a job as this kind of client answers with it."""
        return job

    @listed
    def jobs(
        self, *, state: str | None = None, owner: str | None = None, tag: str | None = None, page_size: int = 100
    ) -> Listing[JobOut]:
        """Yield all jobs, newest first, fetched page by page, with the first three tasks of each (``task_count`` says
        how many there are; ``job`` answers with all of them)."""
        query = {"state": state, "owner": owner, "tag": tag, "page_size": page_size}
        return Listing("/v1/jobs", JobPage, lambda page: map(self._with_plot, page.jobs), query)

    @call
    def annotate(self, job_id: str, *, tags: Sequence[str] = (), notes: str = "") -> RequestFlow[JobOut]:
        """Replace the tags and notes of a job in any state."""
        body = {"tags": list(tags), "notes": notes}
        return self._job((yield request("PUT", f"/v1/jobs/{path_part(job_id)}/notes", json=body)))

    @call
    def cancel(self, job_id: str) -> RequestFlow[JobOut]:
        """Stop a job. Raises Contradiction when it has ended already."""
        path = f"/v1/jobs/{path_part(job_id)}"
        asked = request("POST", f"{path}/cancel")
        asked.allowed = (409,)
        answer = yield asked
        if answer.status_code == 409 and asked.tries > 1:  # our first try, which got no answer, may have cancelled it
            job = self._job((yield request("GET", path)))
            if job.state in ("cancelling", "cancelled"):
                return job
        return self._job(checked(answer))

    @listed
    def trials(self, job_id: str, *, task: int = 0, order: str = "oldest", page_size: int = 200) -> Listing[TrialOut]:
        """Yield all trials of one task, fetched page by page. ``order`` is ``oldest``, ``newest`` or ``best``."""
        query = {"task": task, "order": order, "page_size": page_size}
        return Listing(f"/v1/jobs/{path_part(job_id)}/trials", TrialPage, lambda page: page.trials, query)

    @listed
    def models(self, *, page_size: int = 20) -> Listing[ModelOut]:
        """Yield all models, newest first, fetched page by page."""
        return Listing("/v1/models", ModelPage, lambda page: page.models, {"page_size": page_size})

    @call
    def import_records(self, lines: Iterable[str]) -> RequestFlow[ImportedOut]:
        """Add the records of such lines. They are sent once, without retries: a repeated import adds nothing twice."""
        content = (line.rstrip("\n").encode() + b"\n" for line in lines)
        headers = {"Content-Type": "application/jsonl"}
        return parsed(ImportedOut, (yield slow_request("POST", "/v1/records", content=content, headers=headers)))

    @call
    def ready(self) -> RequestFlow[HealthOut]:
        """Return whether the service can take jobs. This asks once, without retries."""
        asked = request("GET", "/readyz")
        asked.once, asked.allowed = True, (503,)
        return parsed(HealthOut, (yield asked))

    # keys

    @call
    def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        tenant: str | None = None,
        requests_per_second: float | None = None,
        days: float | None = None,
    ) -> RequestFlow[NewKeyOut]:
        """Make a key. Its ``secret`` is shown this once."""
        limits = {"tenant": tenant, "requests_per_second": requests_per_second, "days": days}
        asked = request("POST", "/v1/keys", json={"name": name, "scopes": list(scopes), **given_parts(limits)})
        asked.once = True  # a repeated one would make another key
        return parsed(NewKeyOut, (yield asked))

    @listed
    def keys(self, *, page_size: int = 100) -> Listing[KeyOut]:
        """Yield all keys, newest first, without their secrets."""
        return Listing("/v1/keys", KeyPage, lambda page: page.keys, {"page_size": page_size})

    @call
    def revoke_key(self, key_id: str) -> RequestFlow[KeyOut]:
        """Revoke a key."""
        return parsed(KeyOut, (yield request("POST", f"/v1/keys/{path_part(key_id)}/revoke")))

    @listed
    def audit(self, *, page_size: int = 100) -> Listing[AuditEntryOut]:
        """Yield the audit log, newest first."""
        return Listing("/v1/audit", AuditPage, lambda page: page.entries, {"page_size": page_size})

    @call
    def caller(self) -> RequestFlow[CallerOut]:
        """Return as whom the service knows this client, and what it may do."""
        return parsed(CallerOut, (yield request("GET", "/v1/caller")))


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
    defaults = {"tenant": None, "tags": (), "notes": "", "priority": 0, "deadline_seconds": None, "fresh": False}
    defaults["units"] = 1
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
