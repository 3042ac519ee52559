"""Looks the best schedule up by key or by expression, and explains and exports schedules."""

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from ...te.key import workload_key
from ..compilations import explain_workload, export_workload
from ..dependencies import ServiceDependency
from ..expressions import schedule_of, task_of
from ..problem_responses import COMPUTES, FINDS
from ..requests import BestQuery, ExplainIn, ExportIn, LookupIn
from ..responses import BestOut, ExplanationOut, ExportOut
from ..strict_route import DirectRoute, StrictRoute, refuse_others

router = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=StrictRoute)


_PARAMETERS = [
    {"name": name, "in": "query", "required": name in BestQuery.model_json_schema()["required"], "schema": schema}
    for name, schema in BestQuery.model_json_schema()["properties"].items()
]


async def best(request: Request) -> Response:
    """Look up the best schedule known for a workload. Parts of the identity that are not given, or that no record has,
    are relaxed; `match` says which."""
    # This is the hot route, so that it does without what costs time in FastAPI: no thread, no dependencies, one
    # validation of the query, and none of our own answer.
    refuse_others(request, BestQuery.model_fields)
    try:
        wanted = BestQuery.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise RequestValidationError([{**e, "loc": ("query", *e["loc"])} for e in error.errors()]) from error
    view = request.app.state.service.best(
        wanted.workload_key,
        device_key=wanted.device_key,
        toolchain_key=wanted.toolchain_key,
        profile=wanted.profile,
        target=wanted.target,
    )
    return Response(BestOut.model_validate(view).model_dump_json(), 200, media_type="application/json")


router.routes.append(
    DirectRoute(
        f"{router.prefix}/best",
        best,
        methods=["GET"],
        operation_id="getBestSchedule",
        tags=["schedules"],
        response_model=BestOut,
        responses=FINDS,
        openapi_extra={"parameters": _PARAMETERS},
    )
)


@router.post("/lookup", operation_id="lookUpSchedule", responses=COMPUTES)
def lookup(body: LookupIn, service: ServiceDependency) -> BestOut:
    """Look up the best schedule known for an expression: a workload in JSON, or an operator with parameters."""
    task = task_of(service, body)
    view = service.best(
        workload_key(task.workload),
        device_key=body.device_key,
        toolchain_key=body.toolchain_key,
        profile=body.profile,
        target=body.target,
    )
    return BestOut.model_validate(view)


@router.post("/explain", operation_id="explainSchedule", responses=COMPUTES)
def explain(body: ExplainIn, service: ServiceDependency) -> ExplanationOut:
    """Show every layer of a schedule as text, its instructions by class, and how near it comes to the roofline."""
    task = task_of(service, body)
    schedule = None if body.schedule is None else schedule_of(body.schedule)
    return ExplanationOut.model_validate(explain_workload(service, task.workload, schedule, body.target))


@router.post("/export", operation_id="exportSchedule", responses=COMPUTES)
def export(body: ExportIn, service: ServiceDependency) -> ExportOut:
    """Export a schedule as files to use without Tilewright: source, machine code, and how to call it."""
    task = task_of(service, body)
    schedule = None if body.schedule is None else schedule_of(body.schedule)
    made = export_workload(service, task.workload, schedule, body.target, body.name, body.library)
    return ExportOut.model_validate(made)
