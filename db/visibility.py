"""Says whose rows the present request sees: row-level security, as PostgreSQL calls it, for SQLite too.

Reading functions of this folder ask ``visible`` and ``visible_record`` for a condition and put it into their queries.
A request sets what it sees once (``seeing``), before anything is read; threads that it starts inherit that. Task
workers and other programs of the service set nothing and see all.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from sqlalchemy import Column, ColumnElement, exists, true

from .tables import jobs


@dataclass(frozen=True, slots=True)
class Visibility:
    """Rows of ``tenant`` alone are seen; None: those of all. With ``shares_records``, records and workloads of all
    tenants are seen, but no job of another one."""

    tenant: str | None = None
    shares_records: bool = False


EVERYTHING = Visibility()
_present: ContextVar[Visibility] = ContextVar("visibility", default=EVERYTHING)


@contextmanager
def seeing(visibility: Visibility) -> Iterator[None]:
    """See these rows alone while the block runs."""
    token = _present.set(visibility)
    try:
        yield
    finally:
        _present.reset(token)


def job_tenant() -> str | None:
    """Return the tenant whose jobs are seen; None: all are."""
    return _present.get().tenant


def record_tenant() -> str | None:
    """Return the tenant whose records are seen; None: all are."""
    present = _present.get()
    return None if present.shares_records else present.tenant


def visible(column: Column[str]) -> ColumnElement[bool]:
    """Return the condition that a job, or what belongs to it, is seen; ``column`` has its tenant."""
    tenant = job_tenant()
    return true() if tenant is None else column == tenant


def of_visible_job(column: Column[int]) -> ColumnElement[bool]:
    """Return the condition that a record's job is seen; ``column`` has its number. Whoever sees all pays nothing."""
    tenant = job_tenant()
    return true() if tenant is None else exists().where(jobs.c.number == column, jobs.c.tenant == tenant)


def visible_record(column: Column[str]) -> ColumnElement[bool]:
    """Return the condition that a record is seen; ``column`` has the tenant of its job."""
    tenant = record_tenant()
    return true() if tenant is None else column == tenant
