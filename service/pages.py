"""Page tokens: opaque, URL-safe, good for the list they were given for and for no other."""

import base64
import binascii
import json
from collections.abc import Sequence

from ..core.errors import InvalidParameter

LARGEST_PAGE = 1000
"""A larger page is cut to this."""

Position = Sequence[int | float | str]


def page_size(given: int) -> int:
    """At most ``LARGEST_PAGE``; raises InvalidParameter below 1."""
    if given < 1:
        raise InvalidParameter(f"page size {given}; allowed: 1 to {LARGEST_PAGE}", field="page_size")
    return min(given, LARGEST_PAGE)


def write_token(listing: Sequence[str], position: Position) -> str:
    """The token for what comes after ``position`` in the list named by ``listing`` (its kind and its filters)."""
    text = json.dumps([list(listing), list(position)], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_token(token: str, listing: Sequence[str], kinds: Sequence[type]) -> list[int | float | str] | None:
    """The position in ``token``, None for the empty token. Raises InvalidParameter when it is of another list,
    or no token at all."""
    if not token:
        return None
    try:
        padded = token + "=" * (-len(token) % 4)
        data = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
        given, position = data
        fits = given == list(listing) and [type(value) for value in position] == list(kinds)
        fits = fits and all(not isinstance(value, str) or value.isalnum() or not value for value in position)
        # a row number of more than 63 bits cannot be asked for
        fits = fits and all(not isinstance(value, int) or abs(value) < 1 << 63 for value in position)
    except (binascii.Error, ValueError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise InvalidParameter("this page token is not one that this list gave", field="page_token")
    return list(position)
