"""Takes a job into the queue: its tenant's quota, its place in the fair share, and tasks that are in flight already."""

from sqlalchemy import Connection

from ..core.errors import InvalidParameter
from ..core.fleet import MOST_PRIORITY
from .flights import block_equal_tasks, lock_flights
from .jobs import FINAL, add_event, insert_job
from .rows import NewJob
from .tenants import check_queue, enter, is_idle, keep_tenant


def admit_job(connection: Connection, new: NewJob) -> int:
    """Add a job with its first event; return its number. Raises QuotaExceeded, and InvalidParameter for a tenant's name
    or a priority that is out of bounds."""
    if not 1 <= len(new.tenant) <= 64:
        raise InvalidParameter(f"a tenant's name of {len(new.tenant)} characters; allowed: 1 to 64", field="tenant")
    check_priority(new.priority)
    keys = (
        []
        if new.fresh or new.state in FINAL
        else [task.flight_key for task in new.tasks if task.flight_key is not None]
    )
    lock_flights(connection, keys)
    keep_tenant(connection, new.tenant)
    idle = is_idle(connection, new.tenant)
    number = insert_job(connection, new)
    if keys:
        block_equal_tasks(connection, number)
    add_event(connection, number, "state", {"state": new.state, "error": None})
    if new.state not in FINAL:
        if idle:
            enter(connection, new.tenant)
        check_queue(connection, new.tenant, len(new.tasks))
    return number


def check_priority(priority: int) -> None:
    """Raises InvalidParameter for a priority that is out of bounds."""
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise InvalidParameter(
            f"priority {priority}; allowed: {-MOST_PRIORITY} to {MOST_PRIORITY}, the usual one is 0", field="priority"
        )
