"""Answers exact look-ups by key, which are most of all requests, before FastAPI routes them: its own work for a request
takes longer than theirs.

    GET /v1/schedules/best?workload_key=KEY&device_key=…&toolchain_key=…&profile=…
                           └ differs      └ the conditions are checked once for each user

Whatever else is asked, and whatever is not as it should be, goes on to the route, which answers the same.
"""

import re
from collections import OrderedDict
from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from ..core.errors import NotFound, TilewrightError
from ..service.callers import READ, Caller, present_caller
from ..service.lookup import Answer, Conditions, Miss
from ..service.nearest import miss_message
from ..service.service import Service
from .lookup_answers import best_text, tagged
from .lookup_batches import LookupBatches
from .problem_handlers import problem_answer, problem_of
from .requests import BestQuery

_KEY = re.compile(rb"(?:^|&)workload_key=([0-9a-f]{64})(?=&|$)")
_ANY_KEY = "0" * 64
MOST_KNOWN = 1_024
MOST_BYTES = 512
"""Longer conditions are not remembered."""


class ExactLookups:
    """Is an ASGI middleware. ``route`` is the one that it goes before."""

    def __init__(self, app: ASGIApp, route: APIRoute, service: Service, batches: LookupBatches) -> None:
        self.app = app
        self._route = route
        self._service = service
        self._batches = batches
        self._known: OrderedDict[tuple[bytes, str, bool], Conditions] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != self._route.path or scope.get("method") != "GET":
            await self.app(scope, receive, send)
            return
        caller, query = present_caller(), scope["query_string"]
        named = _KEY.search(query)
        wanted = None if named is None else self._conditions(query[: named.start()] + query[named.end() :], caller)
        if named is None or wanted is None or not caller.may(READ):
            await self.app(scope, receive, send)
            return
        scope["route"] = self._route
        request = Request(scope)
        try:
            found, age = await find_exact(self._service, self._batches, named[1].decode(), wanted)
            answer = lookup_answer(request, named[1].decode(), found, age)
        except TilewrightError as error:
            answer = problem_of(request, error)
        await answer(scope, receive, send)

    def _conditions(self, rest: bytes, caller: Caller) -> Conditions | None:
        """Return the conditions in the rest of a query; None where they are not complete, not strict or not right."""
        place = (rest, caller.tenant, caller.is_admin)
        known = self._known.get(place)
        if known is None and len(rest) <= MOST_BYTES:
            given = parse_qsl(rest.decode("latin-1"), keep_blank_values=True)
            names = {name for name, _ in given}
            if names != {"device_key", "toolchain_key", "profile"} or len(given) != len(names):
                return None
            try:
                asked = BestQuery.model_validate({**dict(given), "workload_key": _ANY_KEY})
            except ValidationError:
                return None
            known = self._known[place] = self._service.conditions(**asked.parts())
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return known


async def find_exact(
    service: Service, batches: LookupBatches, key: str, wanted: Conditions
) -> tuple[Answer | Miss, float]:
    """Look one workload up on the event loop; return for how many seconds the answer has been known, too."""
    if service.embedded:  # one look into an index of a file waits for nobody
        (found,) = service.look_up([key], wanted)
        return found, 0.0
    return await batches.find(key, wanted)


def lookup_answer(request: Request, key: str, found: Answer | Miss, age_seconds: float) -> Response:
    """Return what a look-up of one workload answers."""
    if isinstance(found, Miss):  # raising it would cost more than the answer of a hit
        return problem_answer(request, 404, NotFound.code, miss_message(key, found), "workload_key")
    return tagged(request, best_text(found), age_seconds)
