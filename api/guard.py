"""Guards every route: request ids, the list of allowed hosts, the origin check, who asks and how often, bodies that are
too large or too slow, security headers."""

import asyncio
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Collection
from functools import lru_cache
from urllib.parse import quote, urlsplit

from fastapi import Request
from fastapi.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.errors import StoreError
from ..core.log_context import begin_work
from ..service.callers import Caller, acting_as
from .access import CHALLENGE, OPEN_PATHS, SIGN_IN, VISITOR, AccessControl, RateLimits
from .json_body import BadBody
from .limits import MAX_BODY_BYTES, MAX_BODY_PAUSE_SECONDS, MAX_BODY_SECONDS, MAX_RECORDS_BYTES, MAX_REQUESTS_OF_A_USER
from .problem_handlers import problem_answer
from .rendering import wants_page

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # without a referrer browsers hide the origin of our own forms too
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
Refusal = tuple[int, str, str, str] | tuple[int, str, str, str, int]
"""Status, code, detail and field of a problem document, and after how many seconds to try again."""
_WANTED_KEY = "this service wants a key: Authorization: Bearer KEY"
_REFUSED_KEY = "the key that was given is unknown here, was revoked, or has ended"
"""Which of these it is stays untold: whoever guesses keys learns nothing."""
ONCE = (b"authorization", b"content-length", b"host", b"origin")
"""Headers that no request has twice."""
TOO_LARGE = "BODY_TOO_LARGE"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@lru_cache(maxsize=256)
def host_name(host: str) -> str:
    """Return the name in a Host header without the port: ``[::1]:80`` -> ``::1``."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class RequestGuard:
    """Is an ASGI middleware.

    ``allowed_hosts`` are the names that a Host header may carry; None allows any. On a loopback address the list keeps
    a foreign web page from reaching the service by a name of its own that resolves to 127.0.0.1 (DNS rebinding).
    ``access`` finds out who sends a request, and ``requests_per_second`` is the limit of keys without one of their own.
    With ``shares_records`` callers see records of all tenants. A body of which nothing arrives for ``pause_seconds`` is
    refused. ``answered`` is told of each answer: method, route, status, and the seconds until it began.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: AccessControl,
        allowed_hosts: Collection[str] | None = None,
        requests_per_second: float | None = None,
        shares_records: bool = False,
        pause_seconds: float = MAX_BODY_PAUSE_SECONDS,
        answered: Callable[[str, str, int, float], None] = lambda *_: None,
    ) -> None:
        self.app = app
        self.access = access
        self.limits = RateLimits(requests_per_second, MAX_REQUESTS_OF_A_USER)
        self.shares_records = shares_records
        self.pause_seconds = pause_seconds
        self.answered = answered
        self.allowed_hosts = None if allowed_hosts is None else frozenset(allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"]}
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        scope.setdefault("state", {})["request_id"] = request_id
        begin_work({"request_id": request_id})  # every line that this request logs has it
        began = time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = message.setdefault("headers", [])
                answer.extend(_RAW_HEADERS)
                answer.append((b"x-request-id", request_id.encode()))
                if not any(name == b"cache-control" for name, _ in answer):
                    static = scope["path"].startswith("/static/")
                    answer.append((b"cache-control", b"no-cache" if static else b"no-store"))
                route = getattr(scope.get("route"), "path", "other")
                self.answered(scope["method"], route, message["status"], time.perf_counter() - began)
                if _log.isEnabledFor(logging.DEBUG):  # looking up a logger of structlog costs a tenth of a look-up
                    about = {"method": scope["method"], "path": scope["path"], "status": message["status"]}
                    _log.debug("request", extra=about)
            await send(message)

        caller: Caller | None = None
        refusal = self._refusal(scope, headers)
        if refusal is None:
            caller, refusal = await self._admitted(scope, headers)
        if caller is not None:
            await self._answer(caller, scope, receive, send_with_headers)
            return
        assert refusal is not None
        status, code, detail, field, *wait = refusal
        request = Request(scope)
        if status == 413:
            await _drain(receive)
        if status == 401 and scope["method"] == "GET" and wants_page(request) and b"hx-request" not in headers:
            asked = f"{scope['path']}?{scope['query_string'].decode('latin-1')}".removesuffix("?")
            await RedirectResponse(f"{SIGN_IN}?next={quote(asked, safe='')}", 303)(scope, receive, send_with_headers)
            return
        extra = {"WWW-Authenticate": CHALLENGE} if status == 401 else {}
        if wait:
            extra["Retry-After"] = str(wait[0])
        answer = problem_answer(request, status, code, detail, field, headers=extra)
        await answer(scope, receive, send_with_headers)

    async def _admitted(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[Caller | None, Refusal | None]:
        """Return who sends a request, or why nobody may send it."""
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith("/static/"):
            return VISITOR, None
        try:
            caller = await self.access.caller_of(headers)
        except StoreError as error:
            return None, (503, error.code, error.message, "")
        if caller is None:
            refused = f"{_REFUSED_KEY}; " if b"authorization" in headers else ""
            return None, (401, "KEY_REQUIRED", f"{refused}{_WANTED_KEY}", "authorization")
        wait = self.limits.wait_seconds(caller)
        if wait:
            return None, (429, "RATE_LIMITED", f"this key may send another request in {wait} s", "authorization", wait)
        if not path.endswith("/events") and not self.limits.begin(caller):
            detail = f"{MAX_REQUESTS_OF_A_USER} requests of this user are being answered; send fewer at the same moment"
            return None, (429, "TOO_MANY_AT_ONCE", detail, "authorization", 1)
        return caller, None

    async def _answer(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with acting_as(caller, shares_records=self.shares_records):
                await self.app(scope, self._limited(scope, receive), send)
        finally:
            if not scope["path"].endswith("/events"):
                self.limits.end(caller)

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        total = math.inf if scope["path"] == "/v1/records" else MAX_BODY_SECONDS
        return _limited(receive, _max_body_bytes(scope), self.pause_seconds, total)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> Refusal | None:
        """Return why a request is refused whoever sends it, or None when it is not."""
        if len(headers) != len(scope["headers"]):
            names = [name for name, _ in scope["headers"]]
            for name in ONCE:
                if names.count(name) > 1:
                    return 400, "REPEATED_HEADER", f"the header {name.decode()} is given twice", name.decode()
        host = headers.get(b"host", b"").decode("latin-1")
        if self.allowed_hosts is not None and host_name(host) not in self.allowed_hosts:
            return 400, "HOST_NOT_ALLOWED", f"this service does not answer as {host[:80]!a}", "host"
        if scope["method"] not in SAFE_METHODS and _is_foreign(headers.get(b"origin"), host):
            return 403, "FOREIGN_ORIGIN", "changes are taken from this service's own pages only", "origin"
        length, allowed = headers.get(b"content-length", b"0"), _max_body_bytes(scope)
        if length.isdigit() and int(length) > allowed:
            return 413, TOO_LARGE, f"a body of {length.decode()} bytes; allowed: {allowed}", "content-length"
        return None


def _max_body_bytes(scope: Scope) -> int:
    return MAX_RECORDS_BYTES if scope["path"] == "/v1/records" else MAX_BODY_BYTES


def _limited(receive: Receive, allowed: int, pause_seconds: float, most_seconds: float) -> Receive:
    """Return a ``receive`` that refuses a body without a stated length once it is too large, and one that arrives too
    slowly."""
    total, complete = 0, False
    end = time.monotonic() + most_seconds

    async def receive_some() -> Message:
        nonlocal total, complete
        if complete:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), min(pause_seconds, max(0.0, end - time.monotonic())))
        except TimeoutError:
            raise BadBody(408, "BODY_TOO_SLOW", f"nothing of the body arrived for {pause_seconds:g} s") from None
        complete = not message.get("more_body", False)
        total += len(message.get("body", b""))
        if total > allowed:
            if message.get("more_body", False):
                await _drain(receive)
            raise BadBody(413, TOO_LARGE, f"a body of more than {allowed} bytes")
        return message

    return receive_some


async def _drain(receive: Receive) -> None:
    """Read on for a while, so that a client that is still sending gets to see the answer."""
    left = 8 * MAX_BODY_BYTES
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return


def _is_foreign(origin: bytes | None, host: str) -> bool:
    if origin is None:  # programs do not send it, and browsers always send it with a POST
        return False
    try:
        return urlsplit(origin.decode("latin-1")).netloc.lower() != host.lower()
    except ValueError:
        return True
