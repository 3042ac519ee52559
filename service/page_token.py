"""Page tokens are opaque, safe in URLs, and valid for the list that they were given for and for no other."""

import base64
import binascii
import json
from collections.abc import Sequence

from ..core.errors import InvalidParameter

MAX_PAGE_SIZE = 1000
"""A larger page is cut to this size."""

Cursor = Sequence[int | float | str]
"""The sort key of the last item of a page."""


def page_size(given: int) -> int:
    """Return the size to use, at most ``MAX_PAGE_SIZE``. Raises InvalidParameter below 1."""
    if given < 1:
        raise InvalidParameter(f"page size {given}; allowed: 1 to {MAX_PAGE_SIZE}", field="page_size")
    return min(given, MAX_PAGE_SIZE)


def write_token(listing: Sequence[str], cursor: Cursor) -> str:
    """Return the token for what comes after ``cursor`` in the list named by ``listing`` (its kind and filters)."""
    text = json.dumps([list(listing), list(cursor)], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_token(token: str, listing: Sequence[str], kinds: Sequence[type]) -> list[int | float | str] | None:
    """Return the cursor in ``token``, or None for the empty token. Raises InvalidParameter for a token of another list
    and for text that is no token."""
    if not token:
        return None
    try:
        padded = token + "=" * (-len(token) % 4)
        data = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
        given, cursor = data
        fits = given == list(listing) and [type(value) for value in cursor] == list(kinds)
        fits = fits and all(not isinstance(value, str) or value.isalnum() or not value for value in cursor)
        # no row id has more than 63 bits
        fits = fits and all(not isinstance(value, int) or abs(value) < 1 << 63 for value in cursor)
    except (binascii.Error, ValueError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise InvalidParameter("this page token is not one that this list gave", field="page_token")
    return list(cursor)
