"""Estimates what a job would cost."""

from fastapi import APIRouter

from ...core.errors import TilewrightError
from ..analysis_responses import JobEstimateOut
from ..dependencies import ServiceDependency
from ..expressions import spec_of
from ..problem_handlers import within
from ..problem_responses import COMPUTES
from ..requests import JobIn
from ..strict_route import StrictRoute

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=StrictRoute)


@router.post("/estimate", operation_id="estimateJob", responses=COMPUTES)
def estimate(body: JobIn, service: ServiceDependency) -> JobEstimateOut:
    """Check a job as submitting it would, create nothing, and say what it would cost: trials, seconds by what earlier
    tasks took, and memory."""
    spec = spec_of(service, body)
    try:
        return JobEstimateOut.model_validate(service.analysis.estimate(spec))
    except TilewrightError as error:
        raise (within(error, "") if error.field else error) from None
