"""Shows what was measured, as pages and as columns, and explains and exports any trial's schedule."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from ...service.views import TrialOrder
from ..compilations import compiles, explain_record, explanation_answer, export_answer
from ..dependencies import FunctionName, JobId, PageSize, PageToken, RecordId, ServiceDependency, TaskIndex, WithLibrary
from ..problem_responses import FINDS
from ..relatives_responses import RelativesOut
from ..responses import ExplanationOut, ExportOut, SeriesOut, TrialOut, TrialPage
from ..strict_route import StrictRoute

router = APIRouter(prefix="/v1", tags=["trials"], route_class=StrictRoute)
AfterSequence = Annotated[int, Query(ge=-1, le=(1 << 31) - 1, description="Only trials with a larger sequence.")]


@router.get("/jobs/{job_id}/trials", operation_id="listTrials", responses=FINDS)
def list_trials(
    job_id: JobId,
    service: ServiceDependency,
    task: TaskIndex = 0,
    page_size: PageSize = 100,
    page_token: PageToken = "",
    order: TrialOrder = TrialOrder.OLDEST,
) -> TrialPage:
    """List the trials of one task of a job."""
    page = service.trials(job_id, task=task, page_size=page_size, token=page_token, order=order)
    return TrialPage(trials=tuple(TrialOut.model_validate(t) for t in page.items), next_page_token=page.next_token)


@router.get("/jobs/{job_id}/series", operation_id="getSeries", responses=FINDS)
def series(job_id: JobId, service: ServiceDependency, task: TaskIndex = 0, after: AfterSequence = -1) -> SeriesOut:
    """Show the trials of one task as columns, at most 20,000 at a time: a chart needs no more."""
    return SeriesOut.model_validate(service.series(job_id, task=task, after=after))


@router.get("/trials/{record_id}", operation_id="getTrial", responses=FINDS)
def trial(record_id: RecordId, service: ServiceDependency) -> TrialOut:
    """Show one recorded trial with its samples and evidence."""
    return TrialOut.model_validate(service.trial(record_id))


@router.get("/trials/{record_id}/source", operation_id="getTrialSource", response_model=ExplanationOut, responses=FINDS)
@compiles
def source(record_id: RecordId, service: ServiceDependency) -> Response:
    """Show every layer of a trial's schedule as text: expression, knobs, IR before and after passes, assembly."""
    return explanation_answer(explain_record(service, record_id))


@router.get("/trials/{record_id}/relatives", operation_id="getTrialRelatives", responses=FINDS)
def relatives(record_id: RecordId, service: ServiceDependency) -> RelativesOut:
    """Show what a trial can be compared with on a roofline, and which records have the same schedule."""
    return RelativesOut.model_validate(service.relatives(record_id))


@router.get("/trials/{record_id}/export", operation_id="exportTrial", response_model=ExportOut, responses=FINDS)
@compiles
def export(
    record_id: RecordId, service: ServiceDependency, name: FunctionName = "kernel", library: WithLibrary = False
) -> Response:
    """Export a trial's schedule as files to use without Tilewright: source, machine code, and how to call it."""
    return export_answer(service.export(record_id=record_id, name=name, library=library))


@router.get(
    "/trials/{record_id}/binary",
    operation_id="getTrialBinary",
    response_class=Response,
    responses={
        200: {
            "description": "A cubin, or an object for a processor. Its SHA-256 is ETag and the record's `binary_key`.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        **FINDS,
    },
)
def binary(record_id: RecordId, service: ServiceDependency) -> Response:
    """Answer with the very binary that a trial measured. Those of the fastest trials are kept."""
    found = service.binary(record_id)
    headers = {"ETag": f'"{found.sha256}"', "Cache-Control": "private, no-cache"}
    return Response(found.code, 200, headers, "application/octet-stream")
