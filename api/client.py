"""The Python client: every route of the service as a typed method.

    with Client("http://127.0.0.1:8421") as client:
        job = client.submit(operator_task("matmul", {"m": 512, "n": 512, "k": 512}), budget=Budget(trials=64))
        for event in client.events(job.id):
            print(event.kind, event.data)
        print(client.best(job.tasks[0].workload_key).seconds)

Needs the extra ``client`` only. Methods raise the errors of ``client_errors``; all are TilewrightErrors.
"""

import time
import uuid
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ValidationError

from ..core.budget import Budget
from ..core.schedule import Schedule
from ..te.json import workload_to_json
from ..te.workload import Workload
from .answers import (
    BestOut,
    DeviceList,
    DeviceOut,
    EventList,
    EventOut,
    ExplanationOut,
    ExportOut,
    HealthOut,
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
from .client_errors import ERROR_OF_STATUS, ServiceFault, Unreachable
from .problem import Problem
from .requests import ExpressionIn
from .sse import read_events

DEFAULT_ADDRESS = "http://127.0.0.1:8421"
Model = TypeVar("Model", bound=BaseModel)
Task = ExpressionIn | Workload
_STREAM_READ_SECONDS = 60.0
"""The service sends something at least every 15 seconds; silence for longer is a lost connection."""


def operator_task(operator: str, parameters: Mapping[str, object] | None = None) -> ExpressionIn:
    """The task of tuning a library operator."""
    return ExpressionIn(operator=operator, parameters=dict(parameters or {}))


class Client:
    """A connection to a service. Safe to share between threads; close it, or use it in a ``with``.

    ``retries``: how often a call is repeated after a connection error or a 503, waiting longer each time. All
    calls may be repeated: reads are safe, and ``submit`` always carries an Idempotency-Key.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout_seconds: float = 60.0,
        retries: int = 5,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.address = address.rstrip("/")
        self._retries = retries
        self._http = httpx2.Client(
            base_url=self.address,
            timeout=httpx2.Timeout(timeout_seconds, connect=min(5.0, timeout_seconds)),
            transport=transport,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

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
        idempotency_key: str | None = None,
    ) -> JobOut:
        """Submit a job. Without a key a fresh one is sent, so that a repeated request never makes two jobs."""
        body = _job_body(tasks, budget or Budget(), strategy, seed, target, executor, cache)
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return _parsed(JobOut, self._send("POST", "/v1/jobs", json=body, headers=headers))

    def validate(self, *tasks: Task, budget: Budget | None = None, **options: Any) -> ValidatedOut:
        """Check what ``submit`` would be given; creates nothing. ``options``: as of ``submit``."""
        defaults = {"strategy": "model", "seed": 0, "target": "llvm", "executor": "local", "cache": None}
        body = _job_body(tasks, budget or Budget(), **{**defaults, **options}) | {"validate_only": True}
        return _parsed(ValidatedOut, self._send("POST", "/v1/jobs", json=body))

    def job(self, job_id: str) -> JobOut:
        """A job with the best so far of each task."""
        return _parsed(JobOut, self._send("GET", f"/v1/jobs/{_part(job_id)}"))

    def jobs(self, *, state: str | None = None, page_size: int = 100) -> Iterator[JobOut]:
        """All jobs, newest first, fetched page by page."""
        for page in self._pages("/v1/jobs", JobPage, {"state": state, "page_size": page_size}):
            yield from page.jobs

    def cancel(self, job_id: str) -> JobOut:
        """Stop a job. Raises Contradiction when it has ended already."""
        path = f"/v1/jobs/{_part(job_id)}/cancel"
        answer, tries = self._try("POST", path)
        if answer.status_code == 409 and tries > 1:  # our first, unanswered try may have been the one that worked
            job = self.job(job_id)
            if job.state in ("cancelling", "cancelled"):
                return job
        return _parsed(JobOut, _checked(answer))

    def events(self, job_id: str, *, after: int = 0) -> Iterator[EventOut]:
        """The job's events as they happen, until it has ended; reconnects by itself and misses none.

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
                time.sleep(_pause(failures))

    def poll_events(self, job_id: str, *, after: int = 0, wait_seconds: float = 0.0) -> EventList:
        """Events after one id, without a stream; waits up to ``wait_seconds`` (at most 30) for the first."""
        query = {"after": after, "wait_seconds": wait_seconds}
        return _parsed(EventList, self._send("GET", f"/v1/jobs/{_part(job_id)}/events", params=query))

    # trials and schedules

    def trials(self, job_id: str, *, task: int = 0, order: str = "oldest", page_size: int = 200) -> Iterator[TrialOut]:
        """All trials of one task, fetched page by page; ``order``: oldest, newest or best."""
        query = {"task": task, "order": order, "page_size": page_size}
        for page in self._pages(f"/v1/jobs/{_part(job_id)}/trials", TrialPage, query):
            yield from page.trials

    def series(self, job_id: str, *, task: int = 0, after: int = -1) -> SeriesOut:
        """The trials of one task as columns."""
        query = {"task": task, "after": after}
        return _parsed(SeriesOut, self._send("GET", f"/v1/jobs/{_part(job_id)}/series", params=query))

    def trial(self, record_id: int) -> TrialOut:
        """One recorded trial."""
        return _parsed(TrialOut, self._send("GET", f"/v1/trials/{record_id:d}"))

    def source(self, record_id: int) -> ExplanationOut:
        """Every layer of a trial's schedule as text."""
        return _parsed(ExplanationOut, self._send("GET", f"/v1/trials/{record_id:d}/source"))

    def best(
        self,
        workload_key: str,
        *,
        device_key: str | None = None,
        toolchain_key: str | None = None,
        profile: str | None = None,
        target: str | None = None,
    ) -> BestOut:
        """The best schedule known for a workload key. Raises Missing when there is none."""
        query = {"device_key": device_key, "toolchain_key": toolchain_key, "profile": profile, "target": target}
        return _parsed(BestOut, self._send("GET", "/v1/schedules/best", params={"workload_key": workload_key, **query}))

    def lookup(
        self,
        task: Task,
        *,
        device_key: str | None = None,
        toolchain_key: str | None = None,
        profile: str | None = None,
        target: str | None = None,
    ) -> BestOut:
        """The best schedule known for an expression. Raises Missing when there is none."""
        rest = {"device_key": device_key, "toolchain_key": toolchain_key, "profile": profile, "target": target}
        return _parsed(BestOut, self._send("POST", "/v1/schedules/lookup", json=_expression(task) | _given(rest)))

    def explain(self, task: Task, schedule: Schedule | None = None, *, target: str | None = None) -> ExplanationOut:
        """Every layer of a schedule: by default of the best one known, else of the first the sketch has. ``target``:
        what code is made for, a device of the host (``cuda``) or an architecture (``cuda:sm_90a``)."""
        body = _shown(task, schedule, target)
        return _parsed(ExplanationOut, self._send("POST", "/v1/schedules/explain", json=body))

    def export(
        self,
        task: Task,
        schedule: Schedule | None = None,
        *,
        target: str | None = None,
        name: str = "kernel",
        library: bool = False,
    ) -> ExportOut:
        """The schedule that ``explain`` would show, as files; with a shared library if asked for. ``name``: what its
        functions for other programs are called."""
        body = _shown(task, schedule, target) | {"name": name, "library": library}
        return _parsed(ExportOut, self._send("POST", "/v1/schedules/export", json=body))

    def export_record(self, record_id: int, *, name: str = "kernel", library: bool = False) -> ExportOut:
        """The schedule of a record as files, as ``export`` makes them."""
        query = {"name": name, "library": str(library).lower()}
        return _parsed(ExportOut, self._send("GET", f"/v1/trials/{record_id}/export", params=query))

    # the library and the service

    def operators(self) -> tuple[OperatorOut, ...]:
        """All operators with their parameters' schemas."""
        return _parsed(OperatorList, self._send("GET", "/v1/operators")).operators

    def operator_workload(self, name: str, parameters: Mapping[str, object] | None = None) -> WorkloadOut:
        """The workload an operator stands for."""
        body = {"parameters": dict(parameters or {})}
        return _parsed(WorkloadOut, self._send("POST", f"/v1/operators/{_part(name)}/workload", json=body))

    def devices(self) -> tuple[DeviceOut, ...]:
        """The devices that records were taken on, and those attached now."""
        return _parsed(DeviceList, self._send("GET", "/v1/devices")).devices

    def ready(self) -> HealthOut:
        """Whether the service can take jobs; asks once, without retries."""
        return _parsed(HealthOut, self._once("GET", "/readyz"))

    def version(self) -> VersionOut:
        """The versions of the service and its wire format."""
        return _parsed(VersionOut, self._send("GET", "/version"))

    # the wire

    def _send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return _checked(self._try(method, path, **options)[0])

    def _try(self, method: str, path: str, **options: Any) -> tuple[httpx2.Response, int]:
        if "params" in options:
            options["params"] = _given(options["params"])
        for attempt in range(1, self._retries + 2):
            last = attempt > self._retries
            try:
                answer = self._once(method, path, **options)
            except Unreachable:
                if last:
                    raise
                time.sleep(_pause(attempt))
                continue
            if answer.status_code != 503 or last:
                return answer, attempt
            time.sleep(_retry_after(answer, attempt))
        raise AssertionError("the last attempt returns or raises")

    def _once(self, method: str, path: str, **options: Any) -> httpx2.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx2.TransportError as error:
            raise Unreachable(f"no answer from {self.address}: {error or type(error).__name__}") from error

    def _pages(self, path: str, model: type[Model], query: Mapping[str, object]) -> Iterator[Model]:
        token = ""
        while True:
            page = _parsed(model, self._send("GET", path, params={**query, "page_token": token or None}))
            yield page
            token = str(getattr(page, "next_page_token", ""))
            if not token:
                return

    def _stream(self, job_id: str, after: int) -> Iterator[tuple[str, str, str]]:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": str(after)} if after else {})}
        timeout = httpx2.Timeout(_STREAM_READ_SECONDS, connect=5.0)
        path = f"/v1/jobs/{_part(job_id)}/events"
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if answer.status_code == 503:
                raise Unreachable("the service is not available now")
            if answer.status_code != 200:
                answer.read()
                _checked(answer)
            yield from read_events(answer.iter_lines())

    def _ended(self, job_id: str, after: int) -> bool:
        return self.poll_events(job_id, after=after).final


def _job_body(
    tasks: tuple[Task, ...], budget: Budget, strategy: str, seed: int, target: str, executor: str, cache: str | None
) -> dict[str, Any]:
    return {
        "tasks": [_expression(task) for task in tasks],
        "budget": _given({"trials": budget.trials, "seconds": budget.seconds, "stall": budget.stall}),
        "strategy": strategy,
        "seed": seed,
        "target": target,
        "executor": executor,
        "cache": cache,
    }


def _expression(task: Task) -> dict[str, Any]:
    if isinstance(task, Workload):
        return {"workload": workload_to_json(task)}
    return task.model_dump(exclude_none=True)


def _shown(task: Task, schedule: Schedule | None, target: str | None) -> dict[str, Any]:
    """What is to be explained or exported, as a body."""
    given = {"schedule": None if schedule is None else schedule.to_json(), "target": target}
    return _expression(task) | _given(given)


def _given(values: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _part(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _pause(attempt: int) -> float:
    return float(min(0.1 * 2**attempt, 5.0))


def _retry_after(answer: httpx2.Response, attempt: int) -> float:
    given = answer.headers.get("retry-after", "")
    return min(float(given), 30.0) if given.isdigit() else _pause(attempt)


def _checked(answer: httpx2.Response) -> httpx2.Response:
    if answer.status_code < 400:
        return answer
    try:
        problem = Problem.model_validate_json(answer.content)
    except ValidationError:
        detail = f"an answer of {answer.status_code} that is no problem document: {answer.text[:200]!r}"
        problem = Problem(title="Not a problem document", status=answer.status_code, detail=detail, code="BAD_ANSWER")
    raise ERROR_OF_STATUS.get(answer.status_code, ServiceFault)(problem)


def _parsed(model: type[Model], answer: httpx2.Response) -> Model:
    try:
        return model.model_validate_json(answer.content)
    except ValidationError as error:
        detail = f"an answer that is no {model.__name__}: {error.error_count()} differences, first {error.errors()[0]}"
        problem = Problem(title="Bad answer", status=answer.status_code, detail=detail, code="BAD_ANSWER")
        raise ServiceFault(problem) from error
