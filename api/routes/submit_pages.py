"""Renders the form with which people submit a job, and takes it: with scripts, which check it while it is filled, and
without."""

import secrets
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from ...core.errors import InvalidParameter, NotFound, TilewrightError
from ...service.analysis_views import JobEstimate
from ...service.service import Service
from ...service.views import JobSpec, OperatorView
from ...service.wiring import CACHES, EXECUTOR_NAMES, STRATEGY_NAMES
from ..dependencies import ServiceDependency
from ..expressions import spec_of
from ..json_body import BadBody
from ..problem_handlers import status_of
from ..rendering import render
from ..strict_route import GuardedRoute, StrictRoute, refuse_others
from ..submit_form import STARTING_TEXT, TE, field_of, filled_from, job_of, known_names, operator_fields

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
"""``StrictRoute`` needs the names of query parameters beforehand; here they depend on the operator."""
checks = APIRouter(include_in_schema=False, route_class=StrictRoute)
FIRST = "matmul"
"""The operator of an empty form."""
MOST_TEXT_IN_ADDRESS = 3000
Filled = Mapping[str, str]


async def _filled(request: Request) -> Filled:
    """Return the fields of a form that was sent. Raises BadBody for another media type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise BadBody(415, "UNSUPPORTED_MEDIA_TYPE", f"body of type {kind[:80]!a}; send a form")
    body = (await request.body()).decode("utf-8", "replace").replace("\0", "")
    return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=200))


FormDependency = Annotated[Filled, Depends(_filled)]


@router.get("/submit")
def submit_page(request: Request, service: ServiceDependency) -> Response:
    """Show the form. The query string fills its fields, and ``job`` with ``task`` those of an earlier task."""
    given = dict(request.query_params)
    if "job" in given:
        given = {**_of_job(service, given["job"], given.get("task", "0")), **given}
    operator = _operator(service, given.get("operator", FIRST))
    refuse_others(request, known_names(operator))
    return _page(service, operator, given)


@router.post("/submit")
def submit(given: FormDependency, service: ServiceDependency) -> Response:
    """Submit the job and go to its page, or show the form again with what is wrong. A form that is sent twice makes
    one job."""
    operator = _operator(service, given.get("operator", FIRST))
    if given.get("action") == "check":
        return _page(service, operator, given)
    try:
        spec = _spec(service, operator, given)
        key = sha256(urlencode(sorted(given.items())).encode()).hexdigest()
        job, _ = service.submit(spec, idempotency_key=key)
    except TilewrightError as error:
        return _page(service, operator, given, error)
    return RedirectResponse(f"/jobs/{job.id}", 303)


@checks.post("/submit/check")
def check(given: FormDependency, service: ServiceDependency) -> Response:
    """Show what a filled form would cost, or what is wrong with it, as a part of the page."""
    operator = _operator(service, given.get("operator", FIRST))
    estimate, error = _estimate(service, operator, given)
    return render("estimate.html", **_costs(estimate, error))


def _page(
    service: Service, operator: OperatorView | None, given: Filled, refused: TilewrightError | None = None
) -> Response:
    filled = {"text": STARTING_TEXT, **given} if operator is None else given
    estimate, error = (None, refused) if refused else _estimate(service, operator, filled)
    fields = () if operator is None else operator_fields(operator, filled)
    return render(
        "submit.html",
        200 if refused is None else status_of(refused),
        operators=service.operators(),
        operator=operator,
        te=TE,
        fields=fields,
        given=filled,
        key=secrets.token_hex(8),
        targets=_targets(service, filled.get("target", "llvm")),
        strategies=STRATEGY_NAMES,
        executors=EXECUTOR_NAMES,
        caches=CACHES,
        **_costs(estimate, error),
    )


def _costs(estimate: JobEstimate | None, error: TilewrightError | None) -> dict[str, Any]:
    text = "" if estimate is None else estimate.tasks[0].expression
    edit = f"/submit?{urlencode({'operator': TE, 'text': text})}" if 0 < len(text) <= MOST_TEXT_IN_ADDRESS else ""
    field = "" if error is None else field_of(error.field)
    return {"estimate": estimate, "problem": "" if error is None else error.message, "field": field, "edit": edit}


def _estimate(
    service: Service, operator: OperatorView | None, given: Filled
) -> tuple[JobEstimate | None, TilewrightError | None]:
    try:
        return service.analysis.estimate(_spec(service, operator, given)), None
    except TilewrightError as error:
        if status_of(error) >= 500:
            raise
        return None, error


def _spec(service: Service, operator: OperatorView | None, given: Filled) -> JobSpec:
    if operator is not None and not any(name.startswith("p.") for name in given):
        given = {**given, **{field.name: field.value for field in operator_fields(operator, given)}}
    return spec_of(service, job_of(operator, given))


def _operator(service: Service, name: str) -> OperatorView | None:
    """Return the operator of a form, or None where the expression is written by hand. Raises NotFound."""
    if name == TE:
        return None
    found = next((one for one in service.operators() if one.name == name), None)
    if found is None:
        raise NotFound(f"there is no operator {name[:80]!r}", field="operator")
    return found


def _of_job(service: Service, job_id: str, task: str) -> dict[str, str]:
    job = service.job(job_id)
    if not task.isdecimal() or int(task[:6]) >= len(job.tasks):
        raise InvalidParameter(f"job {job_id} has {len(job.tasks)} tasks, none with index {task[:20]!r}", field="task")
    return filled_from(job, job.tasks[int(task)])


def _targets(service: Service, chosen: str) -> dict[str, str]:
    """Return the targets that can be chosen, with what they mean: classes of the devices there are."""
    devices = service.devices()
    found = {"llvm": "any processor"} | {d.info.target.kind: f"any device for {d.info.target.kind}" for d in devices}
    found["llvm"] = "any processor"
    found |= {f"{d.info.target.kind}:{d.info.target.arch}": f"any {d.info.target.arch}" for d in devices}
    found |= {d.key: f"{d.info.name}{'' if d.present else ' (not attached here)'}" for d in devices}
    return found if chosen in found else {**found, chosen: "as given"}
