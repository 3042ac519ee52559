"""The fleet's part of the database: units, leases with fences, claims of tasks, attempts and tenants.

PostgreSQL assigns: whoever holds a lease may work, and every write of a holder checks its fence in the transaction that
writes. Time is the database's (``db.clock``), so that the clocks of hosts do not matter. Each method is one transaction.
"""

from collections.abc import Mapping, Sequence

from ..core.fleet import AttemptEnd, Lease, TaskClaim, Unit, UnitState, Wanted
from .engine import Database
from .rows import AttemptRow, JobRow, QueueRow, TenantRow, UnitRow


class FleetStore:
    """Thread-safe. Every method raises StoreError when the database cannot serve."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # units

    def register_units(self, units: Sequence[Unit], *, seen_seconds: float) -> None:
        """Add these units, or note that they are there: each counts as seen for ``seen_seconds``. A lost unit becomes
        ready; one that is suspect, draining or quarantined stays so."""
        raise NotImplementedError

    def units(self) -> tuple[UnitRow, ...]:
        """Return every unit with its state, its health and who holds it."""
        raise NotImplementedError

    def set_unit_state(
        self, uuid: str, state: UnitState, reason: str | None = None, *, health: Mapping[str, float] | None = None
    ) -> UnitRow:
        """Change a unit's state. Raises NotFound. A unit that leaves ``ready`` gets no new lease; a holder is told to
        yield."""
        raise NotImplementedError

    def lease_unit(self, uuid: str, owner: str, *, seconds: float) -> Lease | None:
        """Lease a unit; None while it is not ready, not seen, held, or shut out. A processor and the other units of its
        host shut each other out, because builds for the one disturb the timing of the other."""
        raise NotImplementedError

    # leases

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> Wanted:
        """Renew every lease or none; return what is wanted of the holder. Raises LeaseLost."""
        raise NotImplementedError

    def wanted(self, lease: Lease) -> Wanted:
        """Return what is wanted of the holder of a task. Raises LeaseLost. This reads only, and costs little."""
        raise NotImplementedError

    def release(self, leases: Sequence[Lease]) -> None:
        """Give leases of units up. Those that are lost already are passed over."""
        raise NotImplementedError

    def reap(self) -> int:
        """End every lease that ran out; return how many. Their tasks become ready again, with an attempt that ended as
        ``lease_lost``, or dead after ``MOST_LOSSES`` such attempts without a new record. Units that nobody saw in time
        become lost. Jobs whose last task is over come to their end; so do jobs that passed their deadline."""
        raise NotImplementedError

    # tasks

    def claim_task(
        self, targets: Sequence[str], executor: str, owner: str, *, units: Sequence[str], seconds: float
    ) -> TaskClaim | None:
        """Lease the task that is next for a holder of ``units`` that serve ``targets``; None when there is none.

        The tenant with the least virtual time goes first. Within a tenant the higher priority goes first (a step more
        for each ten minutes of waiting, two at most), then the older job. The job becomes RUNNING with the first task,
        with its event. An attempt begins."""
        raise NotImplementedError

    def finish_task(self, lease: Lease, stop_reason: str, facts: Mapping[str, object]) -> JobRow:
        """End a task that its holder has searched: store the facts (columns of TaskRow) with their event, end its
        attempt as ``done`` (``cancelled``, ``failed`` by the reason) and the lease, and end the job if this was its
        last task. Raises LeaseLost."""
        raise NotImplementedError

    def end_attempt(self, lease: Lease, how: AttemptEnd, detail: str = "") -> None:
        """Give a task back unfinished. ``yielded`` and ``cancelled`` are no loss; any other end counts as one, and
        ``MOST_LOSSES`` losses in a row without a new record make the task dead. Raises LeaseLost."""
        raise NotImplementedError

    def fence_job(self, job_id: str) -> JobRow:
        """Take the leases of a job's tasks away from holders that do not answer and commit its cancellation."""
        raise NotImplementedError

    def attempts(self, job_id: str, task: int) -> tuple[AttemptRow, ...]:
        """Return the attempts at a task, oldest first. Raises NotFound."""
        raise NotImplementedError

    def queue(self, *, limit: int) -> tuple[QueueRow, ...]:
        """Return the tasks that wait or run, in the order in which they are to be claimed."""
        raise NotImplementedError

    # tenants

    def tenants(self) -> tuple[TenantRow, ...]:
        """Return every tenant with its weight, its virtual time and its quotas."""
        raise NotImplementedError

    def set_tenant(self, name: str, *, weight: float, most_units: int | None, most_queued: int | None) -> TenantRow:
        """Add a tenant or change it. Raises InvalidParameter for a weight that is not above 0."""
        raise NotImplementedError
