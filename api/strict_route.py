"""Routes that refuse what they do not know: query parameters, media types, JSON."""

from collections.abc import Callable, Collection, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from .json_body import BadBody, parse_json
from .problem_handlers import RequestRefused


class _StrictRequest(Request):
    async def json(self) -> Any:
        return parse_json(await self.body())


class StrictRoute(APIRoute):
    """A route that refuses query parameters it does not have or that are given twice (422), and a body that is not
    sent as ``application/json`` (415) or is not JSON in the strict sense of ``parse_json`` (400)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        takes_body = self.body_field is not None
        described = (self.openapi_extra or {}).get("parameters", [])
        known = _query_names(self.dependant) | {field["name"] for field in described}

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


class DirectRoute(APIRoute):
    """A route whose endpoint takes the request as it is and checks it itself. It is for the hot path, where FastAPI's
    own handling costs as much as the answer."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
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
