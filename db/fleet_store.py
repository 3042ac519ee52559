"""The fleet's part of the database: units, leases with fences, claims of tasks, attempts and tenants.

The database assigns the work. Whoever holds a lease may work, and every write of a holder checks its fence in the
transaction that writes. Time is the database's (``db.clock``), so that the clocks of hosts do not matter. Each method
is one transaction, but for ``reap`` and for what follows from the end of a task in other jobs. Each of those steps is a
transaction, and ``reap`` does what a process that died left undone.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import select

from ..core.errors import Conflict, InvalidParameter
from ..core.fleet import AttemptEnd, Lease, TaskClaim, Unit, UnitState, Wanted
from . import attempts as attempt_rows
from . import claims, flights, job_changes, job_ends
from . import jobs as job_rows
from . import leases as lease_rows
from . import tenants as tenant_rows
from . import units as unit_rows
from .adoption import adopt, exact_records
from .clock import clock, database_now
from .engine import Database
from .fleet_figures import count_tasks, load_figures, load_task_seconds, load_waiting, silent_seconds
from .queue import load_queue
from .rows import AttemptRow, FleetFigures, JobRow, QueueRow, TenantRow, UnitRow
from .tables import jobs
from .visibility import EVERYTHING, Visibility, seeing
from .wanted import wanted_of


class FleetStore:
    """Thread-safe. Every method raises StoreError when the database cannot serve."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> float:
        """Return the database's time: seconds since 1970. Deadlines are in these."""
        with self._database.reading() as connection:
            return database_now(connection)

    # units

    def register_units(self, units: Sequence[Unit], *, seen_seconds: float) -> None:
        """Add these units, or note that they are there: each counts as seen for ``seen_seconds``. A lost unit becomes
        ready; one that is suspect, draining or quarantined stays so."""
        with self._database.writing() as connection:
            unit_rows.register(connection, units, seen_seconds)

    def units(self) -> tuple[UnitRow, ...]:
        """Return every unit with its state, its health and who holds it."""
        with self._database.reading() as connection:
            return unit_rows.load_units(connection)

    def set_unit_state(
        self,
        uuid: str,
        state: UnitState,
        reason: str | None = None,
        *,
        health: Mapping[str, float] | None = None,
        anchor_seconds: float | None = None,
        before: UnitState | None = None,
    ) -> UnitRow:
        """Change a unit's state, and store what a probe found. Raises NotFound. A unit that leaves ``ready`` gets no
        new lease; a holder is told to yield. With ``before``, nothing changes unless the unit has that state: what an
        administrator did meanwhile stays."""
        with self._database.writing() as connection:
            return unit_rows.change_state(connection, uuid, state, reason, health, anchor_seconds, before)

    def lease_unit(self, uuid: str, owner: str, *, seconds: float) -> Lease | None:
        """Lease a unit; None while it is not ready, not seen, held, or shut out. A processor and the other units of its
        host shut each other out, because builds for the one disturb the timing of the other. A lease that ran out holds
        its unit until it is reaped."""
        with self._database.writing() as connection:
            return unit_rows.lease(connection, uuid, owner, seconds)

    def join_unit(
        self, task: Lease, uuid: str, *, targets: Sequence[str], executors: Sequence[str], seconds: float
    ) -> Lease | None:
        """Lease one more unit for a task, which counts as one of the attempt from now on. Return None where it is not
        to be had (see ``lease_unit``), and where the tenant may have no more. Return None also where a ready task waits
        for a unit that serves ``targets`` by ``executors``. Raises LeaseLost."""
        with self._database.writing() as connection:
            lease_rows.guard(connection, task)
            return claims.join(connection, task, uuid, targets, executors, seconds)

    def leave_unit(self, task: Lease, unit: Lease) -> None:
        """Give a unit back that ``join_unit`` leased, or note that its lease was lost; the task goes on without it."""
        with self._database.writing() as connection:
            claims.leave(connection, task, unit)

    def is_wanted(self, targets: Sequence[str], executors: Sequence[str]) -> bool:
        """Return whether a ready task waits for a unit that serves these targets, and its tenant may have one more."""
        with self._database.reading() as connection:
            return claims.is_wanted(connection, targets, executors)

    # leases

    def renew(self, leases: Sequence[Lease], *, seconds: float) -> Wanted:
        """Renew every lease or none; return what is wanted of the holder. Raises LeaseLost."""
        with self._database.writing() as connection:
            lease_rows.renew(connection, leases, seconds)
            return wanted_of(connection, leases)

    def wanted(self, lease: Lease) -> Wanted:
        """Return what is wanted of the holder of a task. Raises LeaseLost. This reads only, and costs little."""
        with self._database.reading() as connection:
            lease_rows.check(connection, lease)
            return wanted_of(connection, [lease])

    def release(self, leases: Sequence[Lease]) -> None:
        """Give leases of units up. Those that are lost already are passed over. Raises InvalidParameter for the lease
        of a task, which ``finish_task`` and ``end_attempt`` give up."""
        for lease in leases:
            if lease.kind != lease_rows.UNIT:
                raise InvalidParameter(f"a lease of a {lease.kind} given; allowed: of units", field="leases")
        with self._database.writing() as connection:
            for lease in sorted(leases, key=lambda lease: lease.subject):
                lease_rows.drop(connection, lease)

    def reap(self) -> int:
        """End every lease that ran out; return how many. Their tasks become ready again, with an attempt that ended as
        ``lease_lost``, or dead after ``MOST_LOSSES`` such attempts without a new record. Units that nobody saw in time
        become lost. Jobs whose last task is over come to their end; so do jobs that passed their deadline. Tasks that
        waited for an equal one go on where that one is over, and those that wait for long rise in priority. A lease
        that ran out while its holder could not reach the database, because that was starting, is no loss of the
        task."""
        ended = self._end_leases(alive=False)
        with self._database.writing() as connection:
            unit_rows.mark_lost(connection)
        more = True
        while more:
            with self._database.writing() as connection:
                more = claims.age(connection)
        self._end_overdue_jobs()
        self._end_finished_jobs()
        self._go_on()
        return ended

    def end_all_leases(self) -> int:
        """End every lease, whoever holds it; return how many. For an embedded database that was just opened: whoever
        held leases died with the process before, and the tasks need not wait for the leases to run out. No task counts
        this as a loss."""
        return self._end_leases(alive=True)

    def end_leases_of(self, owner: str, how: AttemptEnd, detail: str) -> int:
        """End the leases of a process that has died, without waiting until they run out; return how many.

        Its attempts ended as ``how`` says (see ``end_attempt``). So did those whose lease was found to have run out a
        moment before: where the process was killed or held up from outside, they no longer count as losses of their
        tasks. If the database still has a write of the process in hand, that comes first, and its lease is left to
        ``reap``."""
        ended = self._end_leases(alive=True, owner=owner, end=(how, detail))
        if how in claims.INFRASTRUCTURE:
            with self._database.writing() as connection:
                claims.forgive(connection, owner, how, detail)
        self._go_on()
        return ended

    def _end_leases(self, *, alive: bool, owner: str | None = None, end: tuple[AttemptEnd, str] | None = None) -> int:
        with self._database.reading() as connection:
            found = lease_rows.load_leases(connection, alive=alive)
        ended = 0
        for lease in (one for one in found if owner in (None, one.owner)):
            with self._database.writing() as connection:
                if lease_rows.lock_to_end(connection, lease, alive=alive):
                    ended += 1
                    if lease.kind == lease_rows.UNIT:
                        lease_rows.drop(connection, lease)
                    elif end is not None:
                        claims.give_back(connection, lease, *end)
                    elif alive or claims.lost_with_database(connection, lease):
                        claims.give_back(connection, lease, AttemptEnd.DATABASE_LOST, "the database was started again")
                    else:
                        claims.give_back(connection, lease, AttemptEnd.LEASE_LOST, f"{lease.owner} did not renew it")
        return ended

    def _end_overdue_jobs(self) -> None:
        """End jobs whose deadline has passed."""
        unfinished = jobs.c.state.in_(("queued", "running"))
        late = select(jobs.c.id).where(jobs.c.deadline.is_not(None), jobs.c.deadline <= clock(), unfinished)
        with self._database.reading() as connection:
            late_ids = list(connection.execute(late).scalars())
        for job_id in late_ids:
            with self._database.writing() as connection:
                job_ends.end_job(connection, job_id, "failed", "its deadline passed before its tasks were done")
            with self._database.writing() as connection:
                job_ends.revoke(connection, job_id, "the deadline of the job passed")

    def _end_finished_jobs(self) -> None:
        """End jobs of which nothing is left to do, and which no holder has ended: one that another program began to
        cancel, or whose last task it ended."""
        with self._database.reading() as connection:
            finished = job_ends.finished_jobs(connection)
        for job_id in finished:
            with self._database.writing() as connection:
                job_ends.settle(connection, job_rows.lock_job(connection, job_id)["number"])

    def _go_on(self, job_id: str | None = None) -> None:
        """Let tasks go on that waited for an equal one, of this job or of any, which is over."""
        with self._database.reading() as connection:
            waiting = flights.landed(connection, job_id)
        for number, position in waiting:  # tasks of whichever tenant
            with seeing(EVERYTHING), self._database.writing() as connection:
                flights.go_on(connection, number, position)

    # tasks

    def claim_task(
        self, targets: Sequence[str], executor: str, owner: str, *, units: Sequence[str], seconds: float
    ) -> TaskClaim | None:
        """Lease the task that is next for a holder of ``units`` that serve ``targets``; None when there is none.

        The tenant with the least virtual time goes first. Within a tenant the higher priority goes first (a step more
        for each ten minutes of waiting, two at most), then the older job. The job becomes RUNNING with the first task,
        with its event. An attempt begins."""
        again = True
        while again:
            with self._database.writing() as connection:
                claimed, again = claims.claim(connection, targets, executor, owner, units, seconds)
        return claimed

    def has_ready(self, targets: Sequence[str], executors: Sequence[str]) -> bool:
        """Return whether a task for one of these targets and executors is ready to be claimed."""
        with self._database.autocommit() as connection:
            return claims.has_ready(connection, targets, executors)

    def adopt_known(
        self,
        lease: Lease,
        *,
        device_key: str,
        toolchain_key: str,
        profile: str,
        sketches: Mapping[str, int],
        shared: bool = True,
    ) -> int:
        """Adopt records as the first trials of a task that has none, at most its budget; return how many. They fit
        exactly: the workload, the device, the toolchain, the profile, and a sketch of ``sketches`` (name -> version).
        If not ``shared``, they are of the tenant of the task. Nothing is adopted for a job that is ``fresh``. The
        task's event says how many. Raises LeaseLost."""
        job_id, position = lease_rows.task_in(lease)
        with self._database.writing() as connection:
            lease_rows.guard(connection, lease)
            number = job_rows.number_of_job(connection, job_id)
            task = job_rows.load_task(connection, number, position, lock=True)
            job = job_rows.load_row(connection, number)
            if job["fresh"] or task["trials"] or not sketches:
                return 0
            limit = job["budget_trials"]  # also of a budget that tasks share: records that are there cost nothing
            with seeing(EVERYTHING if shared else Visibility(task["tenant"])):
                known = exact_records(task, device_key, toolchain_key, profile, sketches, limit)
            told = adopt(connection, task, known)
            if told["adopted"]:
                job_rows.lock_job(connection, job_id)
                job_rows.update_job(connection, number)
                job_rows.add_event(connection, number, "task", {"task": position, **told})
            return int(str(told["adopted"]))

    def finish_task(self, lease: Lease, stop_reason: str, facts: Mapping[str, object], *, detail: str = "") -> str:
        """End a task that its holder has searched; return the state of its job.

        The facts (columns of TaskRow) are stored with their event. The attempt ends as ``done``, or by the reason as
        ``cancelled`` or ``failed``, and the lease ends with it. The job ends if this was its last task. ``detail`` says
        for people why a task failed (``error``). Raises LeaseLost."""
        with self._database.writing() as connection:
            lease_rows.guard(connection, lease)
            claims.finish(connection, lease, stop_reason, facts, detail)
        job_id = lease_rows.task_in(lease)[0]
        self._go_on(job_id)
        with self._database.reading() as connection:
            return job_rows.load_state(connection, job_id)

    def end_attempt(self, lease: Lease, how: AttemptEnd, detail: str = "") -> None:
        """Give a task back unfinished. ``yielded`` and ``cancelled`` are no loss. Nor is any other end where a unit of
        the attempt is not ready, where the node, the cluster or the database was lost, or where the process was killed
        or held up from outside. ``MOST_LOSSES`` losses in a row without a new record make the task
        dead. Raises LeaseLost."""
        with self._database.writing() as connection:
            lease_rows.guard(connection, lease)
            claims.give_back(connection, lease, how, detail)
        self._go_on(lease_rows.task_in(lease)[0])

    def excuse_delay(self, lease: Lease, detail: str) -> None:
        """Note that the holder of a task lives, and was held up until its lease ran out: the attempt ends as
        ``holder_delayed``, which is no loss, also where it was counted as one before. Its lease ends, if it has not.
        For an attempt that ended in another way, nothing happens."""
        with self._database.writing() as connection:
            claims.excuse(connection, lease, AttemptEnd.HOLDER_DELAYED, detail)
        self._go_on(lease_rows.task_in(lease)[0])

    def attempts(self, job_id: str, task: int) -> tuple[AttemptRow, ...]:
        """Return the attempts at a task, oldest first. Raises NotFound."""
        with self._database.reading() as connection:
            return attempt_rows.load_attempts(connection, job_id, task)

    def queue(self, *, limit: int) -> tuple[QueueRow, ...]:
        """Return the tasks that wait or run: those that run, those that are ready in the order in which they are to be
        claimed, and those that are blocked."""
        with self._database.reading() as connection:
            return load_queue(connection, limit)

    def task_counts(self) -> tuple[dict[str, int], float | None]:
        """Return how many tasks there are in each state that has any, and for how long the oldest of those that are
        ready has waited; None where none is."""
        with self._database.reading() as connection:
            return count_tasks(connection, database_now(connection))

    def waiting(self) -> dict[tuple[str, str], int]:
        """Return how many tasks are ready for each target and executor."""
        with self._database.reading() as connection:
            return load_waiting(connection)

    def task_seconds(self) -> dict[str, float]:
        """Return how long a task for each target took lately, on average, where that is known."""
        with self._database.reading() as connection:
            return load_task_seconds(connection)

    def silent_seconds(self) -> float:
        """Return for how long the task that is silent longest, of those that run, has recorded no trial."""
        with self._database.reading() as connection:
            return silent_seconds(connection, database_now(connection))

    def figures(self) -> FleetFigures:
        """Return counts of tasks, leases and attempts, and how busy the units are."""
        with self._database.reading() as connection:
            return load_figures(connection)

    # jobs

    def cancel_job(self, job_id: str) -> JobRow:
        """Cancel a job: at once where none of its tasks is leased, else when their holders stop, who are told. Asking
        twice is allowed. Raises NotFound, and Conflict for a job that succeeded or failed."""
        with self._database.writing() as connection:
            job = job_ends.end_job(connection, job_id, "cancelling")
            if job["state"] in ("succeeded", "failed"):
                raise Conflict(f"job {job_id} is {job['state']}; this is possible while it is queued or running")
            job_ends.settle(connection, job["number"])
        return self._followed(job_id)

    def fence_job(self, job_id: str) -> JobRow:
        """Cancel a job, and take the leases of its tasks away from holders that do not answer: they can write nothing
        more. Raises NotFound, and Conflict for a job that succeeded or failed."""
        self.cancel_job(job_id)
        with self._database.writing() as connection:
            job_ends.revoke(connection, job_id, "the job was cancelled, and the holder did not answer")
        return self._followed(job_id)

    def pause_job(self, job_id: str) -> JobRow:
        """Hold a job back: its tasks are claimed no more, and holders are told to yield. Raises NotFound, and Conflict
        for a job that is being cancelled or has ended."""
        with self._database.writing() as connection:
            job_changes.pause(connection, job_id, True)
        return self._followed(job_id)

    def resume_job(self, job_id: str) -> JobRow:
        """Let a job go on that was paused. Raises NotFound, and Conflict for a job that is being cancelled or has
        ended."""
        with self._database.writing() as connection:
            job_changes.pause(connection, job_id, False)
        return self._followed(job_id)

    def set_priority(self, job_id: str, priority: int) -> JobRow:
        """Change the priority of a job. Raises NotFound, InvalidParameter for one beyond ``MOST_PRIORITY``, and
        Conflict for a job that has ended."""
        with self._database.writing() as connection:
            job_changes.prioritise(connection, job_id, priority)
        return self._followed(job_id)

    def retry_job(self, job_id: str) -> JobRow:
        """Make the dead tasks of a job ready again; a job that failed with them is queued again. Raises NotFound, and
        Conflict where there are none, for a job that is cancelled, or whose deadline has passed."""
        with self._database.writing() as connection:
            job_changes.retry(connection, job_id)
        return self._followed(job_id)

    def _followed(self, job_id: str) -> JobRow:
        """Let tasks go on that waited for one of this job; return the job."""
        self._go_on(job_id)
        with self._database.reading() as connection:
            return job_rows.load_job(connection, job_id)

    # tenants

    def tenants(self) -> tuple[TenantRow, ...]:
        """Return every tenant with its weight, its virtual time and its quotas."""
        with self._database.reading() as connection:
            return tenant_rows.load_tenants(connection)

    def set_tenant(self, name: str, *, weight: float, most_units: int | None, most_queued: int | None) -> TenantRow:
        """Add a tenant or change it. ``most_units``: units that its tasks may hold at once; ``most_queued``: its tasks
        that may wait at once; None: no quota. Raises InvalidParameter for a weight that is not above 0, or a quota
        below 0."""
        with self._database.writing() as connection:
            return tenant_rows.store_tenant(connection, name, weight, most_units, most_queued)
