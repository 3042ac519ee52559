"""The use cases of users: keys, sessions of browsers, and the audit log.

    tw_3f9c0a1b22d4_<43 characters of base64url>
       the key's id       256 random bits

Only the SHA-256 of a key is stored. Nobody can find a key of so many random bits by trying, so that a slow hash would
only cost time.
"""

import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from ..core.errors import InvalidParameter
from ..db.encode import time_text
from ..db.key_store import KeyStore
from ..db.keys import KEY, SESSION
from ..db.rows import AuditRow, KeyRow, NewKey
from .callers import SCOPES, Caller, tenant_for
from .page_token import page_size as checked_size
from .page_token import read_token, write_token
from .submit import checked_tenant
from .views import Page

SECRET = re.compile(r"tw_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
MOST_NAME = 128
MOST_DAYS = 3660
MOST_REQUESTS_PER_SECOND = 1e6
SESSION_HOURS = 12
"""A browser that signed in has to do so again after this time."""


@dataclass(frozen=True, slots=True)
class KeyView:
    """Shows a key, but not its secret."""

    id: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    requests_per_second: float | None
    created_at: str
    expires_at: str | None
    revoked_at: str | None


@dataclass(frozen=True, slots=True)
class AuditView:
    """Shows an entry of the audit log: who asked for what, and the status of the answer."""

    at: str
    key_id: str | None
    name: str
    tenant: str
    action: str
    path: str
    status: int
    request_id: str


class Users:
    """Makes, lists and revokes keys. It is thread-safe. Every method raises StoreError when the database cannot
    serve."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store

    def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        tenant: str | None = None,
        requests_per_second: float | None = None,
        days: float | None = None,
    ) -> tuple[KeyView, str]:
        """Make a key; return it and its secret, which nobody sees again. ``days``: how long it is good; None: until it
        is revoked. Raises InvalidParameter, and Forbidden for a tenant that is not the caller's."""
        _checked_name(name)
        chosen = tuple(scope for scope in SCOPES if scope in scopes)
        for scope in scopes:
            if scope not in SCOPES:
                raise InvalidParameter(f"{scope[:80]!r} is no scope; allowed: {', '.join(SCOPES)}", field="scopes")
        if not chosen:
            raise InvalidParameter(f"a key needs a scope; allowed: {', '.join(SCOPES)}", field="scopes")
        if requests_per_second is not None and not 0 < requests_per_second <= MOST_REQUESTS_PER_SECOND:
            allowed = f"over 0, at most {MOST_REQUESTS_PER_SECOND:g}"
            raise InvalidParameter(f"{requests_per_second:g}; allowed: {allowed}", field="requests_per_second")
        if days is not None and not 0 < days <= MOST_DAYS:
            raise InvalidParameter(f"{days:g} days; allowed: over 0, at most {MOST_DAYS}", field="days")
        owner = checked_tenant(tenant_for(tenant), "tenant")
        row, secret = self._add(KEY, name, owner, chosen, None, requests_per_second, days)
        return _key_view(row), secret

    def open_session(self, caller: Caller) -> str:
        """Return the secret of a session of a browser that acts as ``caller``, for some hours, and no longer than the
        key that it showed is good."""
        scopes = tuple(sorted(caller.scopes))
        days, limit = SESSION_HOURS / 24, caller.requests_per_second
        return self._add(SESSION, caller.name, caller.tenant, scopes, caller.key_id, limit, days)[1]

    def _add(
        self,
        kind: str,
        name: str,
        tenant: str,
        scopes: tuple[str, ...],
        parent: str | None,
        limit: float | None,
        days: float | None,
    ) -> tuple[KeyRow, str]:
        key_id = secrets.token_hex(6)
        secret = f"tw_{key_id}_{secrets.token_urlsafe(32)}"
        row = NewKey(
            id=key_id,
            sha256=_hash(secret),
            kind=kind,
            name=name,
            tenant=tenant,
            scopes=scopes,
            parent=parent,
            requests_per_second=limit,
            expires_at=None if days is None else time_text(datetime.now(UTC) + timedelta(days=days)),
        )
        return self._store.add(row), secret

    def verified(self, secret: str) -> Caller | None:
        """Return whose key or session this is; None unless it is good."""
        named = SECRET.fullmatch(secret)
        found = None if named is None else self._store.good(named[1])
        if found is None or not hmac.compare_digest(found.sha256, _hash(secret)):
            return None
        return Caller(found.name, found.tenant, frozenset(found.scopes), found.id, found.requests_per_second)

    def keys(self, *, page_size: int = 50, token: str = "") -> Page[KeyView]:
        """Return keys, newest first. Raises InvalidParameter for a bad page size or token."""
        size, cursor = checked_size(page_size), read_token(token, ("keys",), (int,))
        rows = self._store.list(before=None if cursor is None else int(cursor[0]), limit=size + 1)
        following = write_token(("keys",), [rows[size - 1].number]) if len(rows) > size else ""
        return Page(tuple(_key_view(row) for row in rows[:size]), following)

    def revoke(self, key_id: str) -> KeyView:
        """Revoke a key, and the sessions that it opened. Raises NotFound."""
        return _key_view(self._store.revoke(key_id))

    def has_admin_key(self) -> bool:
        """Return whether somebody has a good key that may do everything."""
        return self._store.has_admin()

    def audit(self, caller: Caller, action: str, path: str, status: int, request_id: str) -> None:
        """Note in the audit log what a caller asked for, and what the answer was."""
        row = AuditRow(0, "", caller.key_id, caller.name, caller.tenant, action, path[:1024], status, request_id)
        self._store.audit(row)

    def audited(self, *, page_size: int = 50, token: str = "") -> Page[AuditView]:
        """Return the audit log, newest first. Raises InvalidParameter for a bad page size or token."""
        size, cursor = checked_size(page_size), read_token(token, ("audit",), (int,))
        rows = self._store.audited(before=None if cursor is None else int(cursor[0]), limit=size + 1)
        following = write_token(("audit",), [rows[size - 1].number]) if len(rows) > size else ""
        return Page(tuple(_audit_view(row) for row in rows[:size]), following)


def _hash(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _checked_name(name: str) -> None:
    if not (1 <= len(name) <= MOST_NAME and name.isprintable()):
        raise InvalidParameter(f"a name has 1 to {MOST_NAME} printable characters", field="name")


def _key_view(row: KeyRow) -> KeyView:
    return KeyView(**{name: getattr(row, name) for name in KeyView.__dataclass_fields__})


def _audit_view(row: AuditRow) -> AuditView:
    return AuditView(**{name: getattr(row, name) for name in AuditView.__dataclass_fields__})
