"""Finds out who sends a request, by what it shows.

    Authorization: Bearer tw_…                     a key
    Authorization: Bearer TOKEN                    the service's own token: an administrator
    Cookie: tilewright_session=tw_…                a browser that signed in with a key or with OpenID Connect
    Cookie: tilewright_session=HMAC(TOKEN, …)      a browser that signed in with the token

A key that was found good is believed for ``FRESH_SECONDS`` without another look into the database. While the database
does not answer, it is believed for ``STALE_SECONDS``, so that answers that need no database go on.
"""

import asyncio
import hmac
import ipaddress
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

import anyio
import anyio.to_thread
from pydantic import SecretStr

from ..core.errors import InvalidParameter, StoreError
from ..service.callers import LOCAL, READ, Caller
from ..service.settings import Settings
from ..service.users import SECRET, Users

COOKIE = "tilewright_session"
SIGN_IN = "/sign-in"
OPEN_PATHS = frozenset({"/healthz", "/readyz", SIGN_IN, "/sign-in/oidc", "/sign-in/callback"})
"""These are answered without a key; so are the static files of the dashboard."""
CHALLENGE = 'Bearer realm="tilewright"'
TOKEN_CALLER = Caller(name="token")
"""Whoever shows the service's own token."""
VISITOR = Caller(scopes=frozenset({READ}))
"""Whoever asks for an open path."""
FRESH_SECONDS = 0.5
STALE_SECONDS = 60.0
ANSWER_SECONDS = 0.25
"""A database that takes longer than this for a key that was good before does not answer."""
MOST_KNOWN = 4096


class AccessToken:
    """The token of a service. Comparisons take the same time wherever two texts differ."""

    def __init__(self, token: SecretStr) -> None:
        self._token = token.get_secret_value().encode()
        self.session = hmac.new(self._token, b"tilewright dashboard session", "sha256").hexdigest()
        """The value of the cookie of a browser that signed in with it."""

    def is_right(self, given: str) -> bool:
        """Return whether ``given`` is the token."""
        return hmac.compare_digest(given.encode(), self._token)

    def is_session(self, given: str) -> bool:
        """Return whether ``given`` is the cookie of a browser that signed in with the token."""
        return hmac.compare_digest(given.encode(), self.session.encode())


@dataclass(slots=True)
class _Known:
    caller: Caller
    at: float


class AccessControl:
    """Belongs to one event loop, but for ``forget``. ``open``: whoever shows nothing may do everything."""

    def __init__(self, settings: Settings, users: Users) -> None:
        self.token = None if settings.token is None else AccessToken(settings.token)
        self.open = is_open(settings)
        self._users = users
        self._known: dict[bytes, _Known] = {}
        self._limiter: anyio.CapacityLimiter | None = None

    async def caller_of(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Return who sent a request with these headers; None where it does not show anything good. Raises StoreError
        where the database has to be asked and does not answer."""
        authorization = headers.get(b"authorization")
        if authorization is not None:
            scheme, _, given = authorization.decode("latin-1").partition(" ")
            given = given.strip() if scheme.lower() == "bearer" else ""
            if self.open and not SECRET.fullmatch(given):  # a token for another service, which this one does not need
                return LOCAL
            return await self.caller_with(given)
        for cookie in headers.get(b"cookie", b"").decode("latin-1").split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == COOKIE:
                if self.token is not None and self.token.is_session(value):
                    return TOKEN_CALLER
                found = await self._verified(value)
                if found is not None:
                    return found
        return LOCAL if self.open else None

    async def caller_with(self, secret: str) -> Caller | None:
        """Return who shows this token or key; None for one that is not good. Raises StoreError."""
        if self.token is not None and self.token.is_right(secret):
            return TOKEN_CALLER
        return await self._verified(secret)

    def forget(self) -> None:
        """Believe no key any longer without asking the database: one was revoked."""
        self._known = {}

    async def _verified(self, secret: str) -> Caller | None:
        if not SECRET.fullmatch(secret):
            return None
        digest = sha256(secret.encode()).digest()
        known, now = self._known.get(digest), time.monotonic()
        if known is not None and now - known.at < FRESH_SECONDS:
            return known.caller
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(8)
        ask = anyio.to_thread.run_sync(self._users.verified, secret, abandon_on_cancel=True, limiter=self._limiter)
        if known is None or now - known.at > STALE_SECONDS:
            found = await ask
        else:
            try:
                found = await asyncio.wait_for(ask, ANSWER_SECONDS)
            except (TimeoutError, StoreError):
                return known.caller
        if found is None:
            self._known.pop(digest, None)
            return None
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[digest] = _Known(found, now)
        return found


@dataclass(slots=True)
class _TokenBucket:
    tokens: float
    at: float


class RateLimits:
    """Limits how many requests each key sends, by a token bucket that holds those of one second, and how many of each
    user are answered at the same moment. ``default`` is for keys without a limit of their own; None: no limit."""

    def __init__(self, default: float | None, at_once: int) -> None:
        self._default = default
        self._at_once = at_once
        self._buckets: dict[str, _TokenBucket] = {}
        self._running: dict[tuple[str, str], int] = {}

    def wait_seconds(self, caller: Caller) -> int:
        """Take a request of a caller; return 0, or after how many seconds it may be sent instead."""
        rate = self._default if caller.requests_per_second is None else caller.requests_per_second
        if caller.key_id is None or rate is None:
            return 0
        now, most = time.monotonic(), max(rate, 1.0)
        if len(self._buckets) > MOST_KNOWN:
            self._buckets.clear()
        bucket = self._buckets.setdefault(caller.key_id, _TokenBucket(most, now))
        bucket.tokens = min(most, bucket.tokens + (now - bucket.at) * rate)
        bucket.at = now
        if bucket.tokens < 1:
            return max(1, math.ceil((1 - bucket.tokens) / rate))
        bucket.tokens -= 1
        return 0

    def begin(self, caller: Caller) -> bool:
        """Note that a request of a caller is being answered; return False where that would be too many."""
        if caller.key_id is None:
            return True
        user = (caller.tenant, caller.name)
        running = self._running.get(user, 0)
        if running >= self._at_once:
            return False
        self._running[user] = running + 1
        return True

    def end(self, caller: Caller) -> None:
        """Note that a request for which ``begin`` returned True was answered."""
        user = (caller.tenant, caller.name)
        if caller.key_id is not None:
            self._running[user] -= 1
            if not self._running[user]:
                del self._running[user]


def is_open(settings: Settings) -> bool:
    """Return whether whoever reaches the service may do everything: programs of this machine alone do, there is no
    other way to sign in, and the service answers to the machine's own names alone."""
    closed = settings.token is not None or settings.oidc_issuer is not None
    names = [host.strip("[]") for host in settings.allowed_hosts]
    return not closed and is_loopback(settings.host) and all(map(is_loopback, names))


def check_access(settings: Settings, users: Users) -> None:
    """Raise InvalidParameter (field ``token``) for a service that wants keys and that nobody could administer."""
    if is_open(settings) or settings.token is not None or settings.oidc_admins:
        return
    with suppress(StoreError):  # whoever opened the database just now is told by others that it is away
        if users.has_admin_key():
            return
    raise InvalidParameter(
        f"a service on {settings.host or 'every address'} can be reached by others and needs an administrator: set "
        "TILEWRIGHT_TOKEN to a secret of 16 or more characters, or make a key first (`tilewright key create --scope "
        "admin NAME` where the database is), or listen on 127.0.0.1 for its own names alone",
        field="token",
    )


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach an address to listen on."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
