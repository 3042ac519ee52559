"""Makes, lists and revokes keys, says who asks, and shows the audit log."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Request

from ...service.callers import SCOPES, present_caller
from ..dependencies import PageSize, PageToken, ServiceDependency
from ..key_responses import AuditEntryOut, AuditPage, CallerOut, KeyOut, KeyPage, NewKeyOut
from ..limits import KEY_ID_PATTERN
from ..problem_responses import CHANGES, CREATES, READS
from ..requests import KeyIn
from ..strict_route import StrictRoute

router = APIRouter(prefix="/v1", tags=["keys"], route_class=StrictRoute)
KeyId = Annotated[str, Path(pattern=KEY_ID_PATTERN, description="The key's id.")]


@router.post("/keys", operation_id="createKey", status_code=201, responses=CREATES)
def create(body: KeyIn, service: ServiceDependency) -> NewKeyOut:
    """Make a key. The answer has its secret, which the service does not keep."""
    key, secret = service.users.create_key(
        body.name,
        body.scopes,
        tenant=body.tenant,
        requests_per_second=body.requests_per_second,
        days=body.days,
    )
    return NewKeyOut(**asdict(key), secret=secret)


@router.get("/keys", operation_id="listKeys", responses=READS)
def list_keys(service: ServiceDependency, page_size: PageSize = 50, page_token: PageToken = "") -> KeyPage:
    """List keys, newest first, with those that were revoked."""
    page = service.users.keys(page_size=page_size, token=page_token)
    return KeyPage(keys=tuple(KeyOut.model_validate(key) for key in page.items), next_page_token=page.next_token)


@router.post("/keys/{key_id}/revoke", operation_id="revokeKey", responses=CHANGES)
def revoke(key_id: KeyId, request: Request, service: ServiceDependency) -> KeyOut:
    """Revoke a key, and the sessions of browsers that signed in with it. This takes effect within a second."""
    key = service.users.revoke(key_id)
    request.app.state.access.forget()
    return KeyOut.model_validate(key)


@router.get("/caller", operation_id="getCaller", responses=READS)
async def caller() -> CallerOut:
    """Say as whom the service knows the sender of the request, and what it may do."""
    found = present_caller()
    scopes = tuple(scope for scope in SCOPES if scope in found.scopes)
    return CallerOut(name=found.name, tenant=found.tenant, scopes=scopes, key_id=found.key_id)


@router.get("/audit", operation_id="listAuditEntries", responses=READS)
def audit(service: ServiceDependency, page_size: PageSize = 50, page_token: PageToken = "") -> AuditPage:
    """List what keys changed and were not allowed to do, newest first."""
    page = service.users.audited(page_size=page_size, token=page_token)
    entries = tuple(AuditEntryOut.model_validate(entry) for entry in page.items)
    return AuditPage(entries=entries, next_page_token=page.next_token)
