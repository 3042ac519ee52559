"""Is it alive, is it ready, how is it doing, what is it."""

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from ... import __version__
from ..answers import HealthOut, VersionOut
from ..context import Serving
from ..documents import READS
from ..strict_route import StrictRoute

router = APIRouter(tags=["health"], route_class=StrictRoute)
_PROBLEM_TOO = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}


@router.get("/healthz", operation_id="isAlive", responses=READS)
async def alive() -> VersionOut:
    """The process answers; says nothing about the database."""
    return VersionOut(version=__version__)


@router.get(
    "/readyz",
    operation_id="isReady",
    response_model=HealthOut,
    responses={**READS, 503: {"model": HealthOut, "description": "Not ready; `checks` says why.", **_PROBLEM_TOO}},
)
def ready(service: Serving) -> Response:
    """Whether jobs can be taken: the database answers and is current, the job thread runs, there is disk left."""
    health = HealthOut.model_validate(service.health())
    return Response(health.model_dump_json(), 200 if health.ready else 503, media_type="application/json")


@router.get(
    "/metrics",
    operation_id="getMetrics",
    response_class=PlainTextResponse,
    responses={**READS, 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(service: Serving) -> Response:
    """Counters and gauges in the Prometheus text format."""
    return Response(service.metrics(), 200, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/version", operation_id="getVersion", responses=READS)
async def version() -> VersionOut:
    """The versions of the service and of its wire format."""
    return VersionOut(version=__version__)
