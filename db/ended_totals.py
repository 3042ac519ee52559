"""Keeps how many jobs, tasks and attempts are in which state, so that nobody counts all of them.

    in a state = what ``ended_totals`` has  +  what is counted of the jobs that do not stand there yet

``device_totals.count_ended`` puts a job there some time after its end, and says so at the job. Both terms are read by
one statement, which sees them before that or afterwards.
"""

from collections.abc import Sequence

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, func, literal, select, true, union_all
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from .tables import attempts, ended_totals, jobs, tasks
from .visibility import job_tenant

JOB, TASK, ATTEMPT = "job", "task", "attempt"
NOT_COUNTED = jobs.c.counted.is_(None)
_STATES: dict[str, tuple[Table | None, Column[str]]] = {
    JOB: (None, jobs.c.state),
    TASK: (tasks, tasks.c.state),
    ATTEMPT: (attempts, attempts.c.how),
}
"""The table and its column with the state, for each kind. An attempt that goes on is in none."""


class _NumberOfJob(ColumnElement[int]):
    """``jobs.number``, from which SQLite finds the rows of a job, and not the other way round."""

    inherit_cache = True
    type = jobs.c.number.type


@compiles(_NumberOfJob)
def _plain(element: _NumberOfJob, compiler: SQLCompiler, **_: object) -> str:
    return compiler.process(jobs.c.number)


@compiles(_NumberOfJob, "sqlite")
def _with_zero(element: _NumberOfJob, compiler: SQLCompiler, **_: object) -> str:
    return f"({compiler.process(jobs.c.number)} + 0)"


def of_job(column: ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition that a row, whose ``column`` has the number of its job, is of this job. What SQLite adds to
    the number keeps it from beginning with the rows, of which there may be millions, and looking each job up."""
    return column == _NumberOfJob()


def count_states(connection: Connection, kind: str, *, of_all: bool = False) -> dict[str, int]:
    """Return how many jobs, tasks or attempts there are in each state that has any: those that the request sees, or
    ``of_all`` tenants."""
    tenant = None if of_all else job_tenant()
    kept, seen = (true() if tenant is None else column == tenant for column in (ended_totals.c.tenant, jobs.c.tenant))
    totals = select(ended_totals.c.state, ended_totals.c.count).where(ended_totals.c.kind == kind, kept)
    _, state = _STATES[kind]
    others = _counted(kind, NOT_COUNTED, seen).add_columns(state.label("state"), literal(1).label("count"))
    both = union_all(totals, others).subquery()
    query = select(both.c.state, func.sum(both.c.count)).group_by(both.c.state)
    return {name: int(count) for name, count in connection.execute(query)}


def add_states(connection: Connection, numbers: Sequence[int]) -> None:
    """Add what there is of these jobs, whose rows the caller has locked, and mark them."""
    kind_of = sqlite if connection.dialect.name == "sqlite" else postgresql
    found = []
    for kind, (_, state) in _STATES.items():
        query = _counted(kind, jobs.c.number.in_(numbers)).add_columns(
            jobs.c.tenant, literal(kind), state, func.count()
        )
        found += [tuple(row) for row in connection.execute(query.group_by(jobs.c.tenant, state))]
    # all transactions change rows in one order, so that none waits for another that waits for it
    for tenant, kind, state_name, count in sorted(found):
        new = kind_of.insert(ended_totals).values(tenant=tenant, kind=kind, state=state_name, count=count)
        grown = {"count": ended_totals.c.count + new.excluded["count"]}
        connection.execute(new.on_conflict_do_update(index_elements=["tenant", "kind", "state"], set_=grown))


def _counted(kind: str, *of_jobs: ColumnElement[bool]) -> Select[tuple[()]]:
    """Select from jobs, or from what they have of this kind, without columns."""
    table, state = _STATES[kind]
    query = select().select_from(jobs if table is None else jobs.join(table, of_job(table.c.job)))
    return query.where(*of_jobs, state.is_not(None))
