"""Says who asks: the caller of the present request, what it may do, and whose rows it sees."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from ..core.errors import Forbidden
from ..db.visibility import Visibility, seeing

READ, SUBMIT, WORKER, ADMIN = "read", "submit", "worker", "admin"
SCOPES = (READ, SUBMIT, WORKER, ADMIN)
"""What a key may be for: to see; to submit and change jobs and models; to bring records; everything, of every
tenant."""
DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class Caller:
    """Names whoever sent a request. ``key_id`` is None for a program of this machine, for the service's own token, and
    for the service itself. ``requests_per_second`` is its own limit; None: that of the settings."""

    name: str = ""
    tenant: str = DEFAULT_TENANT
    scopes: frozenset[str] = frozenset(SCOPES)
    key_id: str | None = None
    requests_per_second: float | None = None

    @property
    def is_admin(self) -> bool:
        """Whether it may do everything and sees all tenants."""
        return ADMIN in self.scopes

    def may(self, scope: str) -> bool:
        """Return whether it has a scope."""
        return scope in self.scopes or self.is_admin

    def sees(self, *, shares_records: bool) -> Visibility:
        """Return whose rows it sees."""
        return Visibility() if self.is_admin else Visibility(self.tenant, shares_records)


LOCAL = Caller()
"""Whoever may use a service that asks for no key, and the service itself."""
_present: ContextVar[Caller] = ContextVar("caller", default=LOCAL)


@contextmanager
def acting_as(caller: Caller, *, shares_records: bool) -> Iterator[None]:
    """Answer a request of this caller while the block runs."""
    token = _present.set(caller)
    try:
        with seeing(caller.sees(shares_records=shares_records)):
            yield
    finally:
        _present.reset(token)


def present_caller() -> Caller:
    """Return who sent the present request."""
    return _present.get()


def tenant_for(given: str | None) -> str:
    """Return the tenant that what the present caller makes belongs to: its own where none is ``given``. Raises
    Forbidden for another one, unless the caller is an administrator."""
    caller = present_caller()
    if given is None or given == caller.tenant:
        return caller.tenant
    if not caller.is_admin:
        raise Forbidden(
            f"this key is of tenant {caller.tenant!r}; only one with the scope admin acts for others", field="tenant"
        )
    return given
