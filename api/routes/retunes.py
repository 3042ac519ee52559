"""Submits jobs that measure again what was the best before a change."""

from typing import Annotated

from fastapi import APIRouter, Header, Response

from ...core.errors import TilewrightError
from ...core.retuning import Retuning
from ...service.views import JobSpec
from ..dependencies import ServiceDependency
from ..limits import IDEMPOTENCY_KEY_PATTERN
from ..problem_handlers import within
from ..problem_responses import CREATES
from ..requests import RetuneIn
from ..responses import JobOut
from ..strict_route import StrictRoute
from .jobs import etag_of

router = APIRouter(prefix="/v1/retunes", tags=["jobs"], route_class=StrictRoute)


@router.post(
    "",
    operation_id="retune",
    status_code=201,
    response_model=JobOut,
    responses={
        200: {"model": JobOut, "description": "The job that an earlier request with this key created."},
        **CREATES,
    },
)
def retune(
    body: RetuneIn,
    service: ServiceDependency,
    idempotency_key: Annotated[str | None, Header(pattern=IDEMPOTENCY_KEY_PATTERN)] = None,
) -> Response:
    """Submit a job that measures the earlier winner and runners-up of each workload with the present toolchain, and
    searches only where the winner does not hold. Where there is nothing to retune, nothing is found (404)."""
    spec = JobSpec(
        tasks=(),
        budget=body.budget.budget(),
        strategy=body.strategy,
        seed=body.seed,
        target=body.target,
        executor=body.executor,
        cache=body.cache,
        tenant=body.tenant,
        priority=body.priority,
        retuning=Retuning(body.runners_up, body.toolchain_before),
    )
    try:
        job, created = service.retunes.start(spec, body.workload_keys, idempotency_key=idempotency_key)
    except TilewrightError as error:
        at = "/budget" if error.field == "trials" else ""
        raise (within(error, at) if error.field else error) from None
    headers = {"Location": f"/v1/jobs/{job.id}", "ETag": etag_of(job)}
    return Response(JobOut.model_validate(job).model_dump_json(), 201 if created else 200, headers, "application/json")
