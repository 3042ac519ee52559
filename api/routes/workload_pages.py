"""Renders the dashboard's pages of workloads: which there are, and what was found for one of them. Schedules are
downloaded here."""

import io
import zipfile
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import Response

from ..analysis_responses import ResultOut, WorkloadHistoryOut, WorkloadSummaryOut
from ..chart_table import ChartColumn, ChartTable
from ..compilations import compiles
from ..dependencies import FunctionName, PageToken, RecordId, ServiceDependency, WorkloadKey
from ..limits import NAME_PATTERN
from ..rendering import render
from ..strict_route import StrictRoute

router = APIRouter(include_in_schema=False, route_class=StrictRoute)
WORKLOADS_ON_A_PAGE = 50
OperatorFilter = Annotated[str | None, Query(pattern=NAME_PATTERN)]
RESULTS = (
    ChartColumn("created_at", "Submitted", "moment"),
    ChartColumn("seconds", "Best time", "seconds"),
    ChartColumn("device_name", "Device", "text"),
    ChartColumn("profile", "Profile", "text"),
    ChartColumn("why", "Regression", "text"),
    ChartColumn("ratio", "Over the fastest before", "number", "×"),
    ChartColumn("p_value", "p", "number"),
    ChartColumn("spread", "Spread", "percent"),
    ChartColumn("trials", "Trials", "count"),
    ChartColumn("toolchain", "Toolchain", "text"),
    ChartColumn("job_id", "Job", "text"),
)
BEST = (
    ChartColumn("device_name", "Device", "text"),
    ChartColumn("seconds", "Best time", "seconds"),
    ChartColumn("gflops", "Rate", "number", "GFLOP/s"),
    ChartColumn("profile", "Profile", "text"),
    ChartColumn("toolchain", "Toolchain", "text"),
)


@router.get("/workloads")
def workloads_page(service: ServiceDependency, operator: OperatorFilter = None, page_token: PageToken = "") -> Response:
    """Show the workloads that were submitted, those of the newest jobs first."""
    page = service.analysis.workloads(operator=operator, page_size=WORKLOADS_ON_A_PAGE, token=page_token)
    return render(
        "workloads.html",
        workloads=[WorkloadSummaryOut.model_validate(one) for one in page.items],
        next_token=page.next_token,
        page_token=page_token,
        operator=operator,
        operators=[one.name for one in service.operators()],
        api=_address({"operator": operator, "page_token": page_token}),
    )


@router.get("/workloads/{workload_key}")
def workload_page(workload_key: WorkloadKey, service: ServiceDependency) -> Response:
    """Show what was found for one workload over devices, toolchains and time."""
    history = WorkloadHistoryOut.model_validate(service.analysis.workload(workload_key))
    api = f"/v1/workloads/{workload_key}"
    return render(
        "workload.html",
        workload=history,
        api=api,
        results=ChartTable.of(api, "/results", RESULTS, history.results),
        best=ChartTable.of(api, "/best", BEST, history.best),
        newest=list(reversed(list(enumerate(history.results)))),
        toolchains=len({one.toolchain_key for one in history.results}),
        again=_again(history.results),
    )


@router.get("/trials/{record_id}/kernel.zip")
@compiles
def exported(record_id: RecordId, service: ServiceDependency, name: FunctionName = "kernel") -> Response:
    """Answer with the schedule of a record as files to use without Tilewright: source, machine code, how to call it."""
    files = service.export(record_id=record_id, name=name, library=False).files
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    headers = {"Content-Disposition": f'attachment; filename="{name}-{record_id}.zip"'}
    return Response(packed.getvalue(), 200, headers, "application/zip")


def _address(query: dict[str, str | None]) -> str:
    """Return the address of the API that answers with the same workloads."""
    given = urlencode({name: value for name, value in query.items() if value})
    return f"/v1/workloads?{given}" if given else "/v1/workloads"


def _again(results: tuple[ResultOut, ...]) -> str:
    """Return the address that submits the newest task of the workload again."""
    return f"/submit?job={results[-1].job_id}&task={results[-1].task}" if results else "/submit"
