"""Schedules: the best known one, by key or by expression, and what any of them becomes."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from ...te.key import workload_key
from ..answers import BestOut, ExplanationOut
from ..context import KeyQuery, OptionalKey, Serving
from ..documents import COMPUTES, FINDS
from ..explaining import explain_workload
from ..expressions import schedule_of, task_of
from ..json_body import StrictJsonRoute
from ..limits import NAME_PATTERN
from ..requests import ExplainIn, LookupIn

router = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=StrictJsonRoute)


@router.get("/best", operation_id="getBestSchedule", response_model=BestOut, responses=FINDS)
async def best(
    request: Request,
    workload_key: KeyQuery,
    device_key: OptionalKey = None,
    toolchain_key: OptionalKey = None,
    profile: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
) -> Response:
    """The best schedule known for a workload. Parts of the identity that are not given, or that no record has, are
    relaxed; `match` says which."""
    # The hot route: answered without a thread and without validating our own answer again.
    view = request.app.state.service.best(
        workload_key, device_key=device_key, toolchain_key=toolchain_key, profile=profile
    )
    return Response(BestOut.model_validate(view).model_dump_json(), 200, media_type="application/json")


@router.post("/lookup", operation_id="lookUpSchedule", responses=COMPUTES)
def lookup(body: LookupIn, service: Serving) -> BestOut:
    """The best schedule known for an expression: a workload in JSON, or an operator with parameters."""
    task = task_of(service, body)
    view = service.best(
        workload_key(task.workload),
        device_key=body.device_key,
        toolchain_key=body.toolchain_key,
        profile=body.profile,
    )
    return BestOut.model_validate(view)


@router.post("/explain", operation_id="explainSchedule", responses=COMPUTES)
def explain(body: ExplainIn, service: Serving) -> ExplanationOut:
    """Every layer of a schedule as text, the instructions in its assembly, and its place under the roofline."""
    task = task_of(service, body)
    schedule = None if body.schedule is None else schedule_of(body.schedule)
    return ExplanationOut.model_validate(explain_workload(service, task.workload, schedule))
