"""Defines the answers about users: keys, the caller, the audit log."""

from pydantic import Field

from .responses import ResponseModel


class KeyOut(ResponseModel):
    """Shows a key, but not its secret. ``id`` is the part of the key after ``tw_``."""

    id: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    requests_per_second: float | None
    created_at: str
    expires_at: str | None
    revoked_at: str | None


class NewKeyOut(KeyOut):
    """Shows a key that was just made."""

    secret: str = Field(description="What requests show: `Authorization: Bearer SECRET`. It is shown this once.")


class KeyPage(ResponseModel):
    """Lists keys, newest first."""

    keys: tuple[KeyOut, ...]
    next_page_token: str = ""


class CallerOut(ResponseModel):
    """Says as whom the service knows the sender of a request. ``key_id`` is null where no key was needed."""

    name: str
    tenant: str
    scopes: tuple[str, ...]
    key_id: str | None


class AuditEntryOut(ResponseModel):
    """Shows who asked for what, and the status of the answer."""

    at: str
    key_id: str | None
    name: str
    tenant: str
    action: str
    path: str
    status: int
    request_id: str


class AuditPage(ResponseModel):
    """Lists what was changed, and what was not allowed, newest first."""

    entries: tuple[AuditEntryOut, ...]
    next_page_token: str = ""
