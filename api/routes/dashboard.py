"""Answers with the figures that the dashboard shows: of the whole service, and of one task."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from ..dashboard_responses import (
    DeviceHealthOut,
    FailureList,
    FailureOut,
    KnobsOut,
    ModelQualityOut,
    OverviewOut,
    ProgressOut,
    WorkerList,
)
from ..dependencies import JobId, ServiceDependency, TaskIndex
from ..problem_responses import FINDS, READS
from ..strict_route import StrictRoute
from .trials import AfterSequence

router = APIRouter(prefix="/v1", tags=["dashboard"], route_class=StrictRoute)
KnobName = Annotated[str | None, Query(max_length=64, description="A knob of the slice; absent: the most important.")]


@router.get("/overview", operation_id="getOverview", responses=READS)
def overview(service: ServiceDependency) -> OverviewOut:
    """Show the queue, what runs and how fast, what was won lately, device seconds, and why trials failed."""
    return OverviewOut.model_validate(service.dashboard.overview())


@router.get("/jobs/{job_id}/progress", operation_id="getProgress", responses=FINDS)
def progress(job_id: JobId, service: ServiceDependency, task: TaskIndex = 0, after: AfterSequence = -1) -> ProgressOut:
    """Show the trials of one task as columns, thinned out above 5,000 trials."""
    return ProgressOut.model_validate(service.dashboard.progress(job_id, task=task, after=after))


@router.get(
    "/jobs/{job_id}/trials.csv",
    operation_id="getTrialsAsCsv",
    response_class=PlainTextResponse,
    responses={**FINDS, 200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def trials_csv(job_id: JobId, service: ServiceDependency, task: TaskIndex = 0) -> Response:
    """Answer with all trials of one task as CSV, in the order they ran."""
    first = service.series(job_id, task=task)  # what is not there is told before the answer begins

    def lines() -> Iterator[str]:
        yield "trial,record_id,elapsed_seconds,seconds,failure\r\n"
        columns = first
        while columns.sequence:
            values = (columns.record_id, columns.elapsed_seconds, columns.seconds, columns.failure)
            for row in zip(columns.sequence, *values, strict=True):
                yield ",".join("" if value is None else str(value) for value in row) + "\r\n"
            columns = service.series(job_id, task=task, after=columns.sequence[-1])

    return StreamingResponse(lines(), media_type="text/csv")


@router.get("/jobs/{job_id}/failures", operation_id="listFailures", responses=FINDS)
def failures(job_id: JobId, service: ServiceDependency, task: TaskIndex = 0) -> FailureList:
    """List why trials of one task failed, with the newest message of each kind."""
    found = service.failures(job_id, task=task)
    return FailureList(failures=tuple(FailureOut.model_validate(one) for one in found))


@router.get("/jobs/{job_id}/knobs", operation_id="getKnobs", responses=FINDS)
def knobs(
    job_id: JobId, service: ServiceDependency, task: TaskIndex = 0, x: KnobName = None, y: KnobName = None
) -> KnobsOut:
    """Show which knobs of one task matter, the fastest settings, and a slice through two knobs."""
    return KnobsOut.model_validate(service.dashboard.knobs(job_id, task=task, x=x, y=y))


@router.get("/jobs/{job_id}/model-quality", operation_id="getModelQuality", responses=FINDS)
def model_quality(job_id: JobId, service: ServiceDependency, task: TaskIndex = 0) -> ModelQualityOut:
    """Compare what the cost model foretold of one task's trials with what was measured, round by round."""
    return ModelQualityOut.model_validate(service.dashboard.model(job_id, task=task))


@router.get("/jobs/{job_id}/workers", operation_id="listWorkers", responses=FINDS)
def workers(job_id: JobId, service: ServiceDependency, task: TaskIndex = 0) -> WorkerList:
    """Show on what the trials of one task spent time, by unit."""
    return WorkerList.model_validate(service.dashboard.workers(job_id, task=task))


@router.get("/jobs/{job_id}/device-health", operation_id="getDeviceHealth", responses=FINDS)
def device_health(job_id: JobId, service: ServiceDependency, task: TaskIndex = 0) -> DeviceHealthOut:
    """Show the device beside the trials of one task: its anchor kernel, load, clocks, power."""
    return DeviceHealthOut.model_validate(service.dashboard.health(job_id, task=task))
