"""Renders the overview and the list of jobs. They show all numbers without scripts."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from ...service.views import JobState
from ..chart_table import ChartColumn, ChartTable
from ..dashboard_responses import OverviewOut
from ..dependencies import PageToken, ServiceDependency
from ..rendering import render
from ..strict_route import StrictRoute

router = APIRouter(include_in_schema=False, route_class=StrictRoute)
JOBS_ON_A_PAGE = 50
State = Annotated[JobState | None, Query()]
_SPENT = (
    ChartColumn("device_name", "Device", "text"),
    ChartColumn("day_device_seconds", "Last day", "duration"),
    ChartColumn("device_seconds", "In all", "duration"),
    ChartColumn("trials", "Trials in all", "count"),
    ChartColumn("tasks", "Tasks in all", "count"),
)
_CAUSES = (
    ChartColumn("reason", "Reason", "words"),
    ChartColumn("count", "Trials", "count"),
    ChartColumn("stage", "Stage", "text"),
    ChartColumn("newest_record_id", "Newest", "id", href="/jobs/{newest_job_id}/trials/{newest_record_id}"),
    ChartColumn("newest_detail", "What it said", "text"),
)


@router.get("/")
def overview_page(service: ServiceDependency) -> Response:
    """Show what runs, what was won, what the last day cost and why trials failed."""
    seen = OverviewOut.model_validate(service.dashboard.overview())
    spent = ChartTable.of("/v1/overview", "/spent", _SPENT, seen.spent)
    causes = ChartTable.of("/v1/overview", "/failures", _CAUSES, seen.failures)
    return render("overview.html", seen=seen, spent=spent, causes=causes, unserved=service.fleet.unserved())


@router.get("/jobs")
def jobs_page(service: ServiceDependency, state: State = None, page_token: PageToken = "") -> Response:
    """Show all jobs, newest first."""
    page = service.jobs(page_size=JOBS_ON_A_PAGE, token=page_token, state=state)
    return render(
        "jobs.html", page=page, state=state, states=list(JobState), page_token=page_token, page_size=JOBS_ON_A_PAGE
    )
