"""Looks the best schedule up by key or by expression, and explains and exports schedules."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from ...service.lookup import Answer, Miss
from ...service.service import Service
from ...te.key import workload_key
from ..compilations import compiles, explanation_answer, export_answer
from ..dependencies import ServiceDependency
from ..exact_lookups import find_exact, lookup_answer
from ..expressions import schedule_of, task_of
from ..lookup_answers import batch_text, tagged
from ..problem_responses import COMPUTES, FINDS
from ..requests import BatchLookupIn, BestQuery, ExplainIn, ExportIn, LookupIn
from ..responses import BatchOut, BestOut, ExplanationOut, ExportOut
from ..strict_route import DirectRoute, StrictRoute, refuse_others

router = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=StrictRoute)


_TAG = {
    "ETag": {"schema": {"type": "string"}, "description": "Strong: a hash of the answer."},
    "Age": {
        "schema": {"type": "integer"},
        "description": "The database does not answer: for so many seconds the answer has been known. Else absent.",
    },
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "What is known.", "headers": _TAG},
    304: {"description": "The answer is the one that the ETag in If-None-Match names."},
}
_IF_NONE_MATCH: dict[str, Any] = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "The ETag of an answer that the client has.",
}


def _query_parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Return the fields of a query as OpenAPI describes parameters. Lists have commas between their items."""
    described = model.model_json_schema()
    return [
        {"name": name, "in": "query", "required": name in described.get("required", []), "schema": schema}
        | ({"style": "form", "explode": False} if schema.get("type") == "array" else {})
        for name, schema in described["properties"].items()
    ]


async def best(request: Request) -> Response:
    """Look up the best schedule known for a workload. The match is exact: this workload, device, toolchain and
    measuring profile, and a sketch of the present version. Parts that `relax` names may give way where no such record
    is known; `match` says which did, and `expected_loss` what that may cost. Parts that are left out are those of the
    service's own machine."""
    # Most requests are answered by ``ExactLookups`` and do not come here. It does without what costs time in FastAPI.
    refuse_others(request, BestQuery.model_fields)
    try:
        asked = BestQuery.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise RequestValidationError([{**e, "loc": ("query", *e["loc"])} for e in error.errors()]) from error
    service: Service = request.app.state.service
    key = asked.workload_key
    age = 0.0
    incomplete = None in (asked.device_key, asked.toolchain_key, asked.profile)
    if asked.relax or asked.target is not None or (incomplete and not service.knows_itself):
        found = await run_in_threadpool(_find, service, asked)
    else:
        found, age = await find_exact(service, request.app.state.lookups, key, service.conditions(**asked.parts()))
    return lookup_answer(request, key, found, age)


def _find(service: Service, asked: BestQuery) -> Answer | Miss:
    (found,) = service.look_up([asked.workload_key], service.conditions(**asked.parts()))
    return found


BEST_ROUTE = DirectRoute(
    f"{router.prefix}/best",
    best,
    methods=["GET"],
    operation_id="getBestSchedule",
    tags=["schedules"],
    response_model=BestOut,
    responses={**_ANSWERS, **FINDS},
    openapi_extra={"parameters": [*_query_parameters(BestQuery), _IF_NONE_MATCH]},
)
router.routes.append(BEST_ROUTE)


@router.post(
    "/batch_lookup",
    operation_id="lookUpSchedules",
    response_model=BatchOut,
    responses={**_ANSWERS, **COMPUTES},
    openapi_extra={"parameters": [_IF_NONE_MATCH]},
)
def batch_lookup(body: BatchLookupIn, request: Request, service: ServiceDependency) -> Response:
    """Look up the best schedules of up to 1,000 workloads under the same conditions, as for one."""
    wanted = service.conditions(**body.parts())
    return tagged(request, batch_text(service.look_up(body.workload_keys, wanted)))


@router.post("/lookup", operation_id="lookUpSchedule", responses=COMPUTES)
def lookup(body: LookupIn, service: ServiceDependency) -> BestOut:
    """Look up the best schedule known for an expression: a workload in JSON, or an operator with parameters. Where none
    is known, the problem names the nearest workloads that have one."""
    task = task_of(service, body)
    view = service.best(workload_key(task.workload), **body.parts(), operator=task.operator, parameters=task.parameters)
    return BestOut.model_validate(view)


@router.post("/explain", operation_id="explainSchedule", response_model=ExplanationOut, responses=COMPUTES)
@compiles
def explain(body: ExplainIn, service: ServiceDependency) -> Response:
    """Show every layer of a schedule as text, its instructions by class, and how near it comes to the roofline."""
    task = task_of(service, body)
    schedule = None if body.schedule is None else schedule_of(body.schedule)
    return explanation_answer(service.explain(task.workload, schedule, target=body.target))


@router.post("/export", operation_id="exportSchedule", response_model=ExportOut, responses=COMPUTES)
@compiles
def export(body: ExportIn, service: ServiceDependency) -> Response:
    """Export a schedule as files to use without Tilewright: source, machine code, and how to call it."""
    task = task_of(service, body)
    schedule = None if body.schedule is None else schedule_of(body.schedule)
    made = service.export(task.workload, schedule, target=body.target, name=body.name, library=body.library)
    return export_answer(made)
