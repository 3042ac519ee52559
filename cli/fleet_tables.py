"""Renders the fleet for a terminal."""

from collections.abc import Iterable

from rich.table import Table

from ..api.fleet_responses import AttemptOut, QueueEntryOut, TenantOut, UnitOut


def units_table(units: Iterable[UnitOut]) -> Table:
    """Show one line for each unit: where it is, its state, and what it does."""
    table = _table("unit", "host", "device", "state", "does")
    for unit in units:
        state = unit.state.value if unit.seen else f"{unit.state.value}, not seen"
        reason = f" ({unit.reason})" if unit.reason else ""
        held = "" if unit.owner is None else f"held by {unit.owner}"
        tasks = ", ".join(f"task {one.task} of job {one.job_id}" for one in unit.tasks)
        table.add_row(unit.uuid, unit.host, unit.device_name, state + reason, tasks or held or "nothing")
    return table


def queue_table(tasks: Iterable[QueueEntryOut]) -> Table:
    """Show one line for each task that runs or waits."""
    table = _table("place", "job", "task", "tenant", "priority", "target", "state", "trials", "about")
    for task in tasks:
        place = "" if task.position is None else str(task.position)
        if task.waits_for is not None:
            about = f"waits: {task.waits_for}"
        elif task.units:
            about = f"on {', '.join(task.units)}"
        else:
            about = "" if task.expected_start is None else f"expected to begin at {short_time(task.expected_start)}"
        trials = f"{task.trials} of {task.budget_trials}"
        row = (place, task.job_id, str(task.task), task.tenant, str(task.priority), task.target)
        table.add_row(*row, task.state.value, trials, about)
    return table


def attempts_table(attempts: Iterable[AttemptOut]) -> Table:
    """Show one line for each attempt."""
    table = _table("attempt", "began", "ended", "how", "units", "owner", "detail")
    for one in attempts:
        ended = "" if one.ended_at is None else short_time(one.ended_at)
        how = "goes on" if one.how is None else one.how.value.replace("_", " ")
        began = short_time(one.began_at)
        table.add_row(str(one.fence), began, ended, how, ", ".join(one.units), one.owner, one.detail[:200])
    return table


def tenants_table(tenants: Iterable[TenantOut]) -> Table:
    """Show one line for each tenant."""
    table = _table("tenant", "weight", "units", "most units", "running", "waiting", "most queued")
    for one in tenants:
        quotas = ["no quota" if most is None else str(most) for most in (one.most_units, one.most_queued)]
        numbers = (str(one.running), str(one.waiting))
        table.add_row(one.name, f"{one.weight:g}", str(one.units), quotas[0], *numbers, quotas[1])
    return table


def short_time(stamp: str) -> str:
    """Write an RFC 3339 time to the second."""
    return stamp[:19].replace("T", " ") + " UTC"


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in columns:  # what a user may copy stays whole, and the last column takes the rest
        table.add_column(column, overflow="fold", no_wrap=column in ("unit", "job", "attempt", "tenant", "place"))
    return table
