"""Submits, lists, shows, cancels, pauses and retries jobs."""

from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from ...core.errors import TilewrightError
from ...service.views import JobState, JobView
from ...te.key import workload_key
from ..dependencies import JobId, PageSize, PageToken, ServiceDependency, TaskNumber
from ..expressions import spec_of
from ..fleet_responses import AttemptList, AttemptOut
from ..limits import IDEMPOTENCY_KEY_PATTERN, TAG_PATTERN
from ..problem_handlers import within
from ..problem_responses import CHANGES, CREATES, EDITS, FINDS, READS
from ..requests import JobIn, NotesIn, PriorityIn
from ..responses import JobOut, JobPage, ValidatedOut
from ..strict_route import StrictRoute

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=StrictRoute)
_NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "The job is as the ETag in If-None-Match says."}}
_LOCATION = {"Location": {"schema": {"type": "string"}, "description": "The job's address."}}
_ETAG = {"ETag": {"schema": {"type": "string"}, "description": "Weak: the version of the job."}}


def etag_of(job: JobView) -> str:
    """Return the weak entity tag of a job: its version, and where its tasks stand in the queue."""
    waits = [(task.queue_position, task.waits_for) for task in job.tasks]
    place = "" if not any(map(any, waits)) else f".{sha256(repr(waits).encode()).hexdigest()[:16]}"
    return f'W/"{job.version}{place}"'


@router.post(
    "",
    operation_id="submitJob",
    status_code=201,
    response_model=JobOut,
    responses={
        201: {"description": "The job was created.", "headers": {**_LOCATION, **_ETAG}},
        200: {
            "model": JobOut | ValidatedOut,
            "description": "The job that an earlier request with this key created; or, for validate_only, its keys.",
        },
        **CREATES,
    },
)
def submit(
    body: JobIn,
    service: ServiceDependency,
    idempotency_key: Annotated[str | None, Header(pattern=IDEMPOTENCY_KEY_PATTERN)] = None,
) -> Response:
    """Submit a job. With an Idempotency-Key a repeated request answers with the same job, however often it is sent.
    The same key with another body is a conflict."""
    spec = spec_of(service, body)
    try:
        if body.validate_only:
            service.checked(spec)
            keys = ValidatedOut(workload_keys=tuple(workload_key(task.workload) for task in spec.tasks))
            return Response(keys.model_dump_json(), 200, media_type="application/json")
        job, created = service.submit(spec, idempotency_key=idempotency_key)
    except TilewrightError as error:
        raise (within(error, "") if error.field else error) from None
    headers = {"Location": f"/v1/jobs/{job.id}", "ETag": etag_of(job)}
    text = JobOut.model_validate(job).model_dump_json()
    return Response(text, 201 if created else 200, headers, "application/json")


@router.get("", operation_id="listJobs", responses=READS)
def list_jobs(
    service: ServiceDependency,
    page_size: PageSize = 50,
    page_token: PageToken = "",
    state: Annotated[JobState | None, Query()] = None,
    owner: Annotated[str | None, Query(max_length=128, pattern=r"^[^\x00]*$", description="Who submitted it.")] = None,
    tag: Annotated[str | None, Query(pattern=TAG_PATTERN, description="A tag that it has.")] = None,
) -> JobPage:
    """List jobs, newest first, with the first three tasks of each."""
    page = service.jobs(page_size=page_size, token=page_token, state=state, owner=owner, tag=tag)
    return JobPage(jobs=tuple(JobOut.model_validate(j) for j in page.items), next_page_token=page.next_token)


@router.get(
    "/{job_id}",
    operation_id="getJob",
    response_model=JobOut,
    responses={200: {"description": "The job.", "headers": _ETAG}, **_NOT_MODIFIED, **FINDS},
)
def get_job(
    job_id: JobId,
    request: Request,
    service: ServiceDependency,
    if_none_match: Annotated[str | None, Header(max_length=1024)] = None,
) -> Response:
    """Show a job in any state, with its tasks and the best schedule so far of each."""
    job = service.job(job_id)
    tag = etag_of(job)
    if if_none_match is not None and _matches(if_none_match, tag):
        return Response(status_code=304, headers={"ETag": tag})
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    return Response(JobOut.model_validate(job).model_dump_json(), 200, headers, "application/json")


@router.post("/{job_id}/cancel", operation_id="cancelJob", responses=CHANGES)
def cancel(job_id: JobId, service: ServiceDependency) -> JobOut:
    """Stop a job that is queued or running. What it has measured is kept. A job that has ended is a conflict."""
    return JobOut.model_validate(service.cancel(job_id))


@router.post("/{job_id}/pause", operation_id="pauseJob", responses=CHANGES)
def pause(job_id: JobId, service: ServiceDependency) -> JobOut:
    """Hold a job back. Its tasks in hand are given back after the trial that runs."""
    return JobOut.model_validate(service.fleet.pause(job_id))


@router.post("/{job_id}/resume", operation_id="resumeJob", responses=CHANGES)
def resume(job_id: JobId, service: ServiceDependency) -> JobOut:
    """Let a paused job go on."""
    return JobOut.model_validate(service.fleet.resume(job_id))


@router.post("/{job_id}/retry", operation_id="retryJob", responses=CHANGES)
def retry(job_id: JobId, service: ServiceDependency) -> JobOut:
    """Try the tasks of a job again that are dead after too many lost attempts. Where there are none it is a
    conflict."""
    return JobOut.model_validate(service.fleet.retry(job_id))


@router.put("/{job_id}/priority", operation_id="setPriority", responses=EDITS)
def set_priority(job_id: JobId, body: PriorityIn, service: ServiceDependency) -> JobOut:
    """Change the priority of a job that has not ended."""
    return JobOut.model_validate(service.fleet.set_priority(job_id, body.priority))


@router.put("/{job_id}/notes", operation_id="annotateJob", responses=EDITS)
def annotate(job_id: JobId, body: NotesIn, service: ServiceDependency) -> JobOut:
    """Replace the tags and notes of a job in any state."""
    return JobOut.model_validate(service.annotate(job_id, tuple(body.tags), body.notes))


@router.get("/{job_id}/tasks/{task}/attempts", operation_id="listAttempts", responses=FINDS)
def list_attempts(job_id: JobId, task: TaskNumber, service: ServiceDependency) -> AttemptList:
    """List the attempts at a task, oldest first: who searched it with which units, and how that ended."""
    found = service.fleet.attempts(job_id, task)
    return AttemptList(attempts=tuple(AttemptOut.model_validate(attempt) for attempt in found))


def _matches(given: str, tag: str) -> bool:
    opaque = tag.removeprefix("W/")
    return given.strip() == "*" or opaque in (part.strip().removeprefix("W/") for part in given.split(","))
