"""Routes that refuse callers without their scope, and what they do not know: query parameters, media types, JSON."""

from collections.abc import Callable, Collection, Coroutine
from typing import Any

import structlog
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from ..core.errors import TilewrightError
from ..service.callers import LOCAL, READ, Caller, present_caller
from .json_body import BadBody, parse_json
from .problem_handlers import RequestRefused, status_of_any
from .scopes import scope_of


class _StrictRequest(Request):
    async def json(self) -> Any:
        return parse_json(await self.body())


Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_log = structlog.get_logger("tilewright.api")


class GuardedRoute(APIRoute):
    """A route that asks for its scope (``scopes.scope_of``), and that notes in the audit log what a key changed or was
    not allowed to do."""

    def get_route_handler(self) -> Handler:
        handler = self.checked_handler()
        scope, action = scope_of(self.methods or (), self.path), self.operation_id or self.name

        async def handle(request: Request) -> Response:
            caller = present_caller()
            if scope == READ and caller.may(READ):
                return await handler(request)
            status = 500
            try:
                if not caller.may(scope):
                    detail = f"this needs a key with the scope {scope}; the given one has {_listed(caller.scopes)}"
                    raise RequestRefused(403, "SCOPE_MISSING", detail, "authorization")
                answer = await handler(request)
                status = answer.status_code
                return answer
            except Exception as error:
                status = status_of_any(error)
                raise
            finally:
                if caller is not LOCAL:
                    await _audit(request, caller, action, status)

        return handle

    def checked_handler(self) -> Handler:
        """Return what answers a request that may be sent."""
        return super().get_route_handler()


def _listed(scopes: Collection[str]) -> str:
    return ", ".join(sorted(scopes)) or "none"


async def _audit(request: Request, caller: Caller, action: str, status: int) -> None:
    users, path = request.app.state.service.users, request.url.path
    request_id = request.scope["state"]["request_id"]
    try:
        await run_in_threadpool(users.audit, caller, action, path, status, request_id)
    except TilewrightError as error:  # what was answered stays true
        _log.error("not in the audit log", action=action, path=path, status=status, name=caller.name, why=error.message)


class StrictRoute(GuardedRoute):
    """A route that refuses query parameters that it does not have, or that are given twice (422). It also refuses a
    body that is not sent as ``application/json`` (415), or is not JSON in the strict sense of ``parse_json`` (400)."""

    def checked_handler(self) -> Handler:
        handler = super().checked_handler()
        takes_body = self.body_field is not None
        described = (self.openapi_extra or {}).get("parameters", [])
        known = _query_names(self.dependant) | {field["name"] for field in described if field["in"] == "query"}

        async def handle(request: Request) -> Response:
            if request.scope["query_string"]:
                refuse_others(request, known)
            if takes_body:
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
                    raise BadBody(415, "UNSUPPORTED_MEDIA_TYPE", f"body of type {kind[:80]!a}; send application/json")
                request = _StrictRequest(request.scope, request.receive)
                if not await request.body():
                    raise BadBody(400, "INVALID_JSON", "the body is empty; send a JSON object")
            return await handler(request)

        return handle


def _query_names(dependant: Dependant) -> set[str]:
    """Return the names of the query parameters of a route and of what it depends on."""
    names = {field.alias for field in dependant.query_params}
    return names.union(*(_query_names(inner) for inner in dependant.dependencies))


class DirectRoute(GuardedRoute):
    """A route whose endpoint takes the request as it is and checks it itself. It is for the hot path, where FastAPI's
    own handling costs as much as the answer."""

    def checked_handler(self) -> Handler:
        endpoint: Handler = self.endpoint
        return endpoint


def refuse_others(request: Request, known: Collection[str]) -> None:
    """Raise RequestRefused (422) for a query parameter that is not ``known``, and for one that is given twice."""
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise RequestRefused(
                422, "UNKNOWN_PARAMETER", f"unknown query parameter; allowed: {allowed}", ascii(name)[1:-1][:64]
            )
    if len(given) != len(set(given)):
        twice = next(name for name in given if given.count(name) > 1)
        raise RequestRefused(422, "REPEATED_PARAMETER", "a query parameter is given twice", twice)
