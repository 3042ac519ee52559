"""The forms with which people sign in to the dashboard of a service that wants keys, and sign out."""

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response

from ...core.errors import Forbidden
from ...service.callers import Caller, present_caller
from ...service.service import Service
from ...service.users import SECRET, SESSION_HOURS
from ..access import COOKIE, SIGN_IN, TOKEN_CALLER, AccessControl
from ..open_id_connect import Attempt, OpenIdConnect
from ..rendering import render
from ..strict_route import StrictRoute

router = APIRouter(include_in_schema=False, route_class=StrictRoute)
ATTEMPT_COOKIE = "tilewright_attempt"
ATTEMPT_SECONDS = 600
CALLBACK = f"{SIGN_IN}/callback"


@router.get(SIGN_IN)
def sign_in_page(request: Request, next: Annotated[str, Query(max_length=2048)] = "/") -> Response:
    """Show the form. A service that wants no key has nobody sign in."""
    if request.app.state.access.open:
        return RedirectResponse("/", 303)
    return _form(request, _own(next))


@router.post(SIGN_IN)
async def sign_in(request: Request) -> Response:
    """Take a key or the token, give the browser its cookie, and go on to the page that was asked for."""
    access: AccessControl = request.app.state.access
    fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=8)
    onward = _own(fields.get("next", ["/"])[0])
    if access.open:
        return RedirectResponse(onward, 303)
    caller = await access.caller_with(fields.get("token", [""])[0].strip())
    if caller is None:
        return _form(request, onward, 403, wrong=True)
    if caller is TOKEN_CALLER:
        assert access.token is not None
        return _signed_in(request, access.token.session, onward)
    return _signed_in(request, await _session(request, caller), onward)


@router.get(f"{SIGN_IN}/oidc")
def begin(request: Request, next: Annotated[str, Query(max_length=2048)] = "/") -> Response:
    """Send the browser to the OpenID provider."""
    provider: OpenIdConnect | None = request.app.state.sign_in
    if provider is None:
        return RedirectResponse(SIGN_IN, 303)
    address, attempt = provider.begin(_own(next), _callback(request))
    answer = RedirectResponse(address, 303)
    # the browser comes back from another site, and strict cookies are not sent then
    _set_cookie(request, answer, ATTEMPT_COOKIE, attempt.cookie(), "lax", ATTEMPT_SECONDS)
    return answer


@router.get(CALLBACK)
async def finish(
    request: Request,
    code: Annotated[str, Query(max_length=4096)] = "",
    state: Annotated[str, Query(max_length=256)] = "",
    error: Annotated[str, Query(max_length=256)] = "",
    error_description: Annotated[str, Query(max_length=2048)] = "",
    session_state: Annotated[str, Query(max_length=2048)] = "",
    iss: Annotated[str, Query(max_length=2048)] = "",
) -> Response:
    """Take the browser back from the OpenID provider, and give it its cookie."""
    provider: OpenIdConnect | None = request.app.state.sign_in
    if provider is None or error or not code:
        raise Forbidden(f"the provider did not sign you in: {ascii(error or 'no code')[1:-1]}", field="error")
    attempt = Attempt.from_cookie(request.cookies.get(ATTEMPT_COOKIE, ""))
    caller = await run_in_threadpool(provider.finish, code, state, attempt, _callback(request))
    answer = _signed_in(request, await _session(request, caller), _own(attempt.onward), "lax")
    answer.delete_cookie(ATTEMPT_COOKIE, path=SIGN_IN)
    return answer


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """End the session of the browser, and note it in the audit log."""
    users, named = request.app.state.service.users, SECRET.fullmatch(request.cookies.get(COOKIE, ""))
    if named is not None:
        await run_in_threadpool(users.revoke, named[1])
        request.app.state.access.forget()
        request_id = request.scope["state"]["request_id"]
        await run_in_threadpool(users.audit, present_caller(), "sign_out", request.url.path, 303, request_id)
    answer = RedirectResponse(SIGN_IN, 303)
    answer.delete_cookie(COOKIE, path="/")
    return answer


async def _session(request: Request, caller: Caller) -> str:
    service: Service = request.app.state.service
    return await run_in_threadpool(service.users.open_session, caller)


def _signed_in(request: Request, session: str, onward: str, same_site: str = "strict") -> RedirectResponse:
    answer = RedirectResponse(onward, 303)
    _set_cookie(request, answer, COOKIE, session, same_site, SESSION_HOURS * 3600)
    return answer


def _set_cookie(request: Request, answer: Response, name: str, value: str, same_site: str, seconds: int) -> None:
    place = "/" if name == COOKIE else SIGN_IN
    flags = f"; HttpOnly; SameSite={same_site}" + ("; Secure" if request.url.scheme == "https" else "")
    answer.headers.append("Set-Cookie", f"{name}={value}; Path={place}; Max-Age={seconds}{flags}")


def _form(request: Request, onward: str, status: int = 200, *, wrong: bool = False) -> Response:
    return render("sign_in.html", status, next=onward, wrong=wrong, oidc=request.app.state.sign_in is not None)


def _callback(request: Request) -> str:
    return str(request.base_url).rstrip("/") + CALLBACK


def _own(address: str) -> str:
    """Return ``address`` if it is a page of this service, and its first page otherwise."""
    plain = address.isascii() and address.isprintable() and "\\" not in address
    return address if plain and address.startswith("/") and not address.startswith("//") else "/"
