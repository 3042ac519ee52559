"""The form with which people sign in to the dashboard of a service that has a token."""

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from ..access import COOKIE, SIGN_IN, AccessToken
from ..rendering import render
from ..strict_route import StrictRoute

router = APIRouter(include_in_schema=False, route_class=StrictRoute)


@router.get(SIGN_IN)
def sign_in_page(request: Request, next: Annotated[str, Query(max_length=2048)] = "/") -> Response:
    """Show the form. A service without a token has nobody sign in."""
    if request.app.state.access is None:
        return RedirectResponse("/", 303)
    return render("sign_in.html", next=_own(next), wrong=False)


@router.post(SIGN_IN)
async def sign_in(request: Request) -> Response:
    """Take the token, give the browser its cookie, and go on to the page that was asked for."""
    access: AccessToken | None = request.app.state.access
    fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=8)
    onward = _own(fields.get("next", ["/"])[0])
    if access is None:
        return RedirectResponse(onward, 303)
    if not access.is_right(fields.get("token", [""])[0].strip()):
        return render("sign_in.html", 403, next=onward, wrong=True)
    answer = RedirectResponse(onward, 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, access.session, path="/", httponly=True, samesite="strict", secure=secure)
    return answer


def _own(address: str) -> str:
    """Return ``address`` if it is a page of this service, and its first page otherwise."""
    plain = address.isascii() and address.isprintable() and "\\" not in address
    return address if plain and address.startswith("/") and not address.startswith("//") else "/"
