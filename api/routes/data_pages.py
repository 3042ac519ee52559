"""Renders the page that searches all records, and exports what it shows."""

import csv
import io
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from ...core.record import RecordFilter
from ...core.trial import Reason, Timed
from ...schedule.sketches import SKETCHES
from ...service.views import TrialView
from .. import limits
from ..dependencies import PageSize, PageToken, ServiceDependency
from ..problem_responses import READS
from ..rendering import render
from ..responses import RecordOut, RecordPage
from ..strict_route import StrictRoute

pages = APIRouter(include_in_schema=False, route_class=StrictRoute)
router = APIRouter(prefix="/v1", tags=["records"], route_class=StrictRoute)
RECORDS_ON_A_PAGE = 50
MOST_EXPORTED = 100_000
PAGE = 500
Name = Annotated[str, Query(pattern=f"^$|{limits.NAME_PATTERN}", description="Empty: any.")]
Key = Annotated[str, Query(pattern=f"^$|{limits.KEY_PATTERN}", description="Empty: any.")]
Outcome = Annotated[str, Query(pattern="^(|timed|failed)$", description="timed, failed, or empty: any.")]
Why = Annotated[str, Query(pattern=f"^({'|'.join(Reason)})?$", description="Why it failed; empty: any.")]
Own = Annotated[bool, Query(description="Leave out records that tasks adopted from others.")]
_HEAD = (
    "record_id,job_id,task,trial,workload_key,device_key,profile,sketch,sketch_version,seconds,spread,stage,reason,"
    "created_at,knobs"
).split(",")


def wanted_records(
    operator: Name = "",
    workload_key: Key = "",
    device_key: Key = "",
    sketch: Name = "",
    job_id: Name = "",
    outcome: Outcome = "",
    reason: Why = "",
    own: Own = False,
) -> RecordFilter:
    """Return the filter of a query."""
    return RecordFilter(
        operator=operator or None,
        workload_key=workload_key or None,
        device_key=device_key or None,
        sketch=sketch or None,
        job_id=job_id or None,
        failed=None if not outcome else outcome == "failed",
        reason=reason or None,
        own=own,
    )


Wanted = Annotated[RecordFilter, Depends(wanted_records)]


@router.get("/trials", operation_id="searchTrials", responses=READS)
def search_trials(
    service: ServiceDependency, wanted: Wanted, page_size: PageSize = 50, page_token: PageToken = ""
) -> RecordPage:
    """Search the trials of all jobs, newest first. One request looks at no more than 20,000 of them, so that a page may
    hold few or none though there are more: only an empty `next_page_token` is the end."""
    page = service.dashboard.search(wanted, page_size=page_size, token=page_token)
    return RecordPage(records=tuple(RecordOut.model_validate(t) for t in page.items), next_page_token=page.next_token)


@router.get(
    "/trials.csv",
    operation_id="searchTrialsAsCsv",
    response_class=PlainTextResponse,
    responses={**READS, 200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def search_trials_csv(service: ServiceDependency, wanted: Wanted) -> Response:
    """Answer with at most 100,000 trials that the filter lets through as CSV, newest first."""

    def lines() -> Iterator[str]:
        yield _line(_HEAD)
        token, count = "", 0
        while count < MOST_EXPORTED:
            page = service.dashboard.search(wanted, page_size=PAGE, token=token)
            for trial in page.items:
                yield _line(_cells(trial))
            count, token = count + len(page.items), page.next_token
            if not token:
                return

    return StreamingResponse(lines(), media_type="text/csv")


@pages.get("/data")
def data_page(
    service: ServiceDependency,
    wanted: Wanted,
    operator: Name = "",
    workload_key: Key = "",
    device_key: Key = "",
    sketch: Name = "",
    job_id: Name = "",
    outcome: Outcome = "",
    reason: Why = "",
    own: Own = False,
    page_token: PageToken = "",
) -> Response:
    """Show the records that the filters in the address let through."""
    given = {
        "operator": operator,
        "workload_key": workload_key,
        "device_key": device_key,
        "sketch": sketch,
        "job_id": job_id,
        "outcome": outcome,
        "reason": reason,
        "own": "true" if own else "",
    }
    devices = service.devices()
    return render(
        "data.html",
        page=service.dashboard.search(wanted, page_size=RECORDS_ON_A_PAGE, token=page_token),
        page_token=page_token,
        page_size=RECORDS_ON_A_PAGE,
        given=given,
        query=urlencode({name: value for name, value in given.items() if value}),
        operators=[operator.name for operator in service.operators()],
        sketches=sorted(SKETCHES),
        reasons=[one.value for one in Reason],
        devices=devices,
        device_names={device.key: device.info.name for device in devices},
    )


def _cells(trial: TrialView) -> list[object]:
    outcome = trial.outcome
    if isinstance(outcome, Timed):
        found: tuple[object, ...] = (outcome.seconds, outcome.spread, "", "")
    else:
        found = ("", "", outcome.stage, outcome.reason)
    return [
        trial.record_id,
        trial.job_id,
        trial.task,
        trial.sequence,
        trial.workload_key,
        trial.device_key,
        trial.profile,
        trial.schedule.sketch,
        trial.schedule.version,
        *found,
        trial.created_at,
        " ".join(f"{name}={value}" for name, value in trial.schedule.knobs),
    ]


def _line(cells: list[object] | list[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()
