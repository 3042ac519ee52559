"""Answers every failure with a problem document: which error becomes which status, and the handlers."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from ..core.errors import (
    CompileError,
    Conflict,
    Forbidden,
    IllegalSchedule,
    InvalidParameter,
    InvalidWorkload,
    NotFound,
    QuotaExceeded,
    StorageFull,
    StoreError,
    TilewrightError,
    UnsupportedTarget,
    WorkerLost,
)
from .json_body import BadBody, pointer_part
from .limits import QUOTA_RETRY_AFTER_SECONDS, RETRY_AFTER_SECONDS
from .problem import FieldProblem, ProblemDetails
from .rendering import render, wants_page

STATUS_OF: dict[type[TilewrightError], int] = {
    InvalidWorkload: 422,
    InvalidParameter: 422,
    IllegalSchedule: 422,
    UnsupportedTarget: 422,
    CompileError: 422,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    QuotaExceeded: 429,
    StoreError: 503,
    StorageFull: 507,
    WorkerLost: 503,
}
TITLES = {
    400: "Bad request",
    401: "Not signed in",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    408: "Body too slow",
    409: "Conflict",
    413: "Body too large",
    415: "Unsupported media type",
    422: "Invalid input",
    429: "Too much at once",
    500: "Internal error",
    503: "Not available now",
    507: "Out of storage",
}
CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
RETRY_AFTER = {429: QUOTA_RETRY_AFTER_SECONDS, 503: RETRY_AFTER_SECONDS}
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_log = structlog.get_logger("tilewright.api")


class RequestRefused(Exception):
    """The web layer itself refuses a request."""

    def __init__(self, status: int, code: str, detail: str, field: str = "", retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.field, self.retry_after = status, code, detail, field, retry_after


def status_of(error: TilewrightError) -> int:
    """Return the HTTP status of an error: that of its nearest class in the table, else 500."""
    return next((STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF), 500)


def status_of_any(error: Exception) -> int:
    """Return the HTTP status that the handlers give an error."""
    match error:
        case TilewrightError():
            return status_of(error)
        case RequestRefused():
            return error.status
        case HTTPException():
            return error.status_code
        case RequestValidationError():
            return 422
    return 500


def within(error: TilewrightError, pointer: str) -> TilewrightError:
    """Return the same error with its field moved below ``pointer``, which is where that part of the body stood."""
    below = "" if error.field == "/" else error.field
    if below and not below.startswith("/"):
        below = f"/{below}"
    error.field = pointer + below
    return error


def problem_answer(
    request: Request,
    status: int,
    code: str,
    detail: str,
    field: str = "",
    errors: Sequence[FieldProblem] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """Return the answer that carries a problem document."""
    problem = ProblemDetails(
        type=f"urn:tilewright:problem:{code.lower().replace('_', '-')}",
        title=TITLES.get(status, "Error"),
        status=status,
        detail=detail,
        code=code,
        field=field,
        request_id=_request_id(request),
        errors=list(errors),
    )
    extra = dict(headers or {})
    if status in RETRY_AFTER:
        extra.setdefault("Retry-After", str(RETRY_AFTER[status]))
    if wants_page(request):
        page = render("problem.html", status, problem=problem)
        page.headers.update(extra)
        return page
    return Response(problem.model_dump_json(), status, extra, "application/problem+json")


async def _tilewright_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TilewrightError)
    return problem_of(request, error)


def problem_of(request: Request, error: TilewrightError) -> Response:
    """Return the answer to a request that ended in an error of ours."""
    status = status_of(error)
    if status >= 500:
        _log.warning("request failed", **_of(request), code=error.code, detail=error.message)
    return problem_answer(request, status, error.code, error.message, error.field)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)
    headers = None if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return problem_answer(request, error.status, error.code, error.detail, error.field, headers=headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, BadBody):
        return problem_answer(request, error.status_code, error.code, str(error.detail), error.field)
    headers, detail = dict(error.headers or {}), str(error.detail)
    if error.status_code == 405:
        headers = {"Allow": ", ".join(allowed_methods(request))}
        detail = f"{request.method[:20]} is not allowed here; allowed: {headers['Allow']}"
    if error.status_code == 404:
        detail = f"there is nothing at {_shown(request.url.path)}"
    code = CODES.get(error.status_code, "HTTP_ERROR")
    return problem_answer(request, error.status_code, code, detail, headers=headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    body = getattr(request.scope.get("route"), "body_field", None)
    model = None if body is None else body.field_info.annotation
    errors = [FieldProblem(field=_field_of(e["loc"]), detail=_sentence(e, model)) for e in error.errors()[:20]]
    first = errors[0]
    return problem_answer(request, 422, "INVALID_REQUEST", first.detail, first.field, errors)


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("unexpected error", **_of(request), exc_info=error)
    return problem_answer(request, 500, "INTERNAL", "an unexpected error; the server's log has it by the request id")


def _of(request: Request) -> dict[str, str]:
    """Return what a line of the log says of the request."""
    return {"path": request.url.path, "request_id": _request_id(request)}


def _request_id(request: Request) -> str:
    return str(request.scope.get("state", {}).get("request_id", ""))


def allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes that match the path."""
    routes = request.app.router.routes
    return [
        method
        for method in METHODS
        if any(route.matches({**request.scope, "method": method})[0] == Match.FULL for route in routes)
    ]


def _field_of(location: Sequence[Any]) -> str:
    where, *rest = location
    if where == "body":
        return "".join(f"/{pointer_part(part)}" for part in rest)
    return ".".join(str(part) for part in rest)


def _sentence(error: Any, body: object) -> str:
    """Say what is wrong, with what was given and what is allowed. ``body`` is the type of the body."""
    if error["type"] == "missing":
        return "this field is required"
    if error["type"] == "extra_forbidden":
        names = sorted({name for model in _models_at(body, error["loc"][1:-1]) for name in model.model_fields})
        return f"unknown field; allowed: {', '.join(names)}" if names else "unknown field"
    message: str = _OWN_WORDS.get(error["type"], error["msg"].removeprefix("Value error, "))
    return f"{message[:1].lower()}{message[1:]}; given: {_shown(error.get('input'))}"


_OWN_WORDS = {"model_attributes_type": "input should be an object", "dict_type": "input should be an object"}
"""What pydantic says in words of Python, by its type of error."""


def _shown(given: object) -> str:
    """Show a value of JSON: a simple one as it is, of others what they are."""
    match given:
        case None | bool():
            return json.dumps(given)
        case list():
            return f"a list of {len(given)}"
        case dict():
            return "an object"
    return ascii(repr(given)[:80])[1:-1] if isinstance(given, int | float | str) else type(given).__name__


def _models_at(annotation: object, location: Sequence[int | str]) -> Iterator[type[BaseModel]]:
    """Give the models of requests that may stand at ``location`` below a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not location:
            yield annotation
        elif (field := annotation.model_fields.get(str(location[0]))) is not None:
            yield from _models_at(field.annotation, location[1:])
        return
    rest = location[1:] if location and isinstance(location[0], int) else location
    for inner in get_args(annotation):
        yield from _models_at(inner, rest)


def install_problem_handlers(app: FastAPI) -> None:
    """Give ``app`` one handler for each kind of failure."""
    app.add_exception_handler(TilewrightError, _tilewright_error)
    app.add_exception_handler(RequestRefused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
