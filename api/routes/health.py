"""Answers with liveness, readiness, metrics and version of the service."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from ... import __version__
from ..dependencies import ServiceDependency
from ..problem_responses import READS
from ..readiness import Readiness
from ..responses import HealthOut, VersionOut
from ..strict_route import StrictRoute

router = APIRouter(tags=["health"], route_class=StrictRoute)
_PROBLEM_TOO = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}}


@router.get("/healthz", operation_id="isAlive", responses=READS)
async def alive() -> VersionOut:
    """The process answers. This says nothing about the database."""
    return VersionOut(version=__version__)


@router.get(
    "/readyz",
    operation_id="isReady",
    response_model=HealthOut,
    responses={**READS, 503: {"model": HealthOut, "description": "Not ready; `checks` says why.", **_PROBLEM_TOO}},
)
async def ready(request: Request) -> Response:
    """Say whether jobs can be taken: the database answers and is current, the job thread runs, and the disk has
    room."""
    readiness: Readiness = request.app.state.readiness
    health = HealthOut.model_validate(await readiness.view())
    return Response(health.model_dump_json(), 200 if health.ready else 503, media_type="application/json")


@router.get(
    "/metrics",
    operation_id="getMetrics",
    response_class=PlainTextResponse,
    responses={**READS, 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(service: ServiceDependency) -> Response:
    """Answer with counters and gauges in the Prometheus text format."""
    return Response(service.metrics(), 200, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/version", operation_id="getVersion", responses=READS)
async def version(service: ServiceDependency) -> VersionOut:
    """Answer with the versions of the service and of its wire format, and the name of this run."""
    return VersionOut(version=__version__, instance=service.instance)
