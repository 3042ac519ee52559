"""Guards every route: request ids, the list of allowed hosts, the origin check, the token, body sizes, security
headers."""

import re
import secrets
import time
from collections.abc import Callable, Collection
from urllib.parse import quote, urlsplit

import structlog
from fastapi import Request
from fastapi.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import CHALLENGE, SIGN_IN, AccessToken
from .json_body import BadBody
from .limits import MAX_BODY_BYTES, MAX_RECORDS_BYTES
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
TOO_LARGE = "BODY_TOO_LARGE"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_log = structlog.get_logger("tilewright.api")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


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
    ``access`` is the token that requests must show; None: they need none. ``answered`` is told of each answer: method,
    route, status, and the seconds until it began.
    """

    def __init__(
        self,
        app: ASGIApp,
        allowed_hosts: Collection[str] | None = None,
        access: AccessToken | None = None,
        answered: Callable[[str, str, int, float], None] = lambda *_: None,
    ) -> None:
        self.app = app
        self.access = access
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
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)  # every line that this request logs has it
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
                _log.debug(
                    "request",
                    method=scope["method"],
                    path=scope["path"],
                    status=message["status"],
                )
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is None:
            await self.app(scope, _limited(receive, _max_body_bytes(scope)), send_with_headers)
            return
        status, code, detail, field = refusal
        request = Request(scope)
        if status == 413:
            await _drain(receive)
        if status == 401 and scope["method"] == "GET" and wants_page(request) and b"hx-request" not in headers:
            asked = f"{scope['path']}?{scope['query_string'].decode('latin-1')}".removesuffix("?")
            await RedirectResponse(f"{SIGN_IN}?next={quote(asked, safe='')}", 303)(scope, receive, send_with_headers)
            return
        challenge = {"WWW-Authenticate": CHALLENGE} if status == 401 else None
        answer = problem_answer(request, status, code, detail, field, headers=challenge)
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str, str, str] | None:
        """Return (status, code, detail, field) of why a request is refused, or None when it is not."""
        host = headers.get(b"host", b"").decode("latin-1")
        if self.allowed_hosts is not None and host_name(host) not in self.allowed_hosts:
            return 400, "HOST_NOT_ALLOWED", f"this service does not answer as {host[:80]!a}", "host"
        if scope["method"] not in SAFE_METHODS and _is_foreign(headers.get(b"origin"), host):
            return 403, "FOREIGN_ORIGIN", "changes are taken from this service's own pages only", "origin"
        if self.access is not None and not self.access.admits(scope["path"], headers):
            return 401, "TOKEN_REQUIRED", "this service wants its token: Authorization: Bearer TOKEN", "authorization"
        length, allowed = headers.get(b"content-length", b"0"), _max_body_bytes(scope)
        if length.isdigit() and int(length) > allowed:
            return 413, TOO_LARGE, f"a body of {length.decode()} bytes; allowed: {allowed}", "content-length"
        return None


def _max_body_bytes(scope: Scope) -> int:
    return MAX_RECORDS_BYTES if scope["path"] == "/v1/records" else MAX_BODY_BYTES


def _limited(receive: Receive, allowed: int) -> Receive:
    """Return a ``receive`` that refuses a body without a stated length once it is too large."""
    total = 0

    async def receive_some() -> Message:
        nonlocal total
        message = await receive()
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
