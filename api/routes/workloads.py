"""Shows workloads over devices, toolchains and time, compares schedules, and shows cost models."""

from typing import Annotated

from fastapi import APIRouter, Query

from ..analysis_responses import ComparisonOut, StoredModelsOut, WorkloadHistoryOut, WorkloadPage, WorkloadSummaryOut
from ..comparing import MOST_ITEMS_TEXT, items_of
from ..dependencies import PageSize, PageToken, ServiceDependency, WorkloadKey
from ..limits import MAX_ID, NAME_PATTERN
from ..problem_responses import FINDS, READS
from ..strict_route import StrictRoute

router = APIRouter(prefix="/v1", tags=["workloads"], route_class=StrictRoute)
OperatorFilter = Annotated[str | None, Query(pattern=NAME_PATTERN, description="Only workloads of this operator.")]
Items = Annotated[
    str,
    Query(
        max_length=MOST_ITEMS_TEXT,
        description="Two to eight, with commas: `job:ID` or `job:ID:TASK` (the best schedule of a task), `record:ID`.",
        examples=["job:0123456789abcdef,record:17"],
    ),
]


@router.get("/workloads", operation_id="listWorkloads", responses=READS)
def list_workloads(
    service: ServiceDependency, operator: OperatorFilter = None, page_size: PageSize = 50, page_token: PageToken = ""
) -> WorkloadPage:
    """List the workloads that were submitted, those of the newest jobs first."""
    page = service.analysis.workloads(operator=operator, page_size=page_size, token=page_token)
    workloads = tuple(WorkloadSummaryOut.model_validate(one) for one in page.items)
    return WorkloadPage(workloads=workloads, next_page_token=page.next_token)


@router.get("/workloads/{workload_key}", operation_id="getWorkloadHistory", responses=FINDS)
def workload_history(workload_key: WorkloadKey, service: ServiceDependency) -> WorkloadHistoryOut:
    """Show the best of each task of a workload in the order of time, which of them are slower than what was known, and
    the best for each device."""
    return WorkloadHistoryOut.model_validate(service.analysis.workload(workload_key))


@router.get("/comparisons", operation_id="compareSchedules", responses=FINDS)
def compare(items: Items, service: ServiceDependency) -> ComparisonOut:
    """Compare schedules with the first of them: times with a significance test, curves, knobs."""
    return ComparisonOut.model_validate(service.analysis.compare(items_of(items.split(","))))


@router.get("/cost-models", operation_id="listCostModels", responses=FINDS)
def models(
    service: ServiceDependency,
    model: Annotated[int | None, Query(ge=1, le=MAX_ID, description="Which one is shown; absent: a new one.")] = None,
) -> StoredModelsOut:
    """List the stored cost models, and show one: which features it goes by, and how well it predicts what was measured
    after it was trained."""
    return StoredModelsOut.model_validate(service.analysis.models(model))
