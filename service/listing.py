"""Lists in pages: each page is found by the key of the last item before it, never by counting."""

import re

from ..core.errors import InvalidParameter, NotFound
from ..core.trial import Timed
from ..db.rows import TrialRow
from ..db.store import Store
from .convert import job_view, trial_view
from .pages import page_size, read_token, write_token
from .views import JobState, JobView, Page, TrialOrder, TrialView

KEY = re.compile(r"[\x21-\x7e]{1,128}")
"""What keys and names of jobs look like: visible ASCII."""


def number(value: int, field: str, *, low: int = 0) -> int:
    """``value`` if a table can hold such a number; raises InvalidParameter."""
    if not low <= value < 1 << 62:
        raise InvalidParameter(f"{field} {value}; allowed: {low} to 2^62 - 1", field=field)
    return value


def key(value: str, field: str) -> str:
    """``value`` if a table can hold such a key; otherwise there is nothing by that name: raises NotFound."""
    if not KEY.fullmatch(value):
        raise NotFound(f"there is nothing named {value[:80]!a}", field=field)
    return value


def jobs(store: Store, size: int, token: str, state: JobState | None) -> Page[JobView]:
    """Jobs, newest first."""
    size = page_size(size)
    name = ("jobs", "" if state is None else state.value)
    position = read_token(token, name, (int,))
    before = None if position is None else int(position[0])
    rows = store.jobs(before=before, limit=size + 1, state=None if state is None else state.value)
    more = len(rows) > size
    return Page(tuple(job_view(row) for row in rows[:size]), write_token(name, [rows[size - 1].number]) if more else "")


def trials(store: Store, job_id: str, task: int, size: int, token: str, order: TrialOrder) -> Page[TrialView]:
    """Trials of a task in any order."""
    size = page_size(size)
    number(task, "task")
    if order is TrialOrder.BEST:
        return _by_seconds(store, job_id, task, size, token)
    name = ("trials", job_id, str(task), order.value)
    position = read_token(token, name, (int,))
    after = None if position is None else int(position[0])
    rows = store.trials(job_id, task, after=after, limit=size + 1, newest_first=order is TrialOrder.NEWEST)
    more = len(rows) > size
    next_token = write_token(name, [rows[size - 1].record.sequence]) if more else ""
    return Page(tuple(trial_view(row) for row in rows[:size]), next_token)


def _by_seconds(store: Store, job_id: str, task: int, size: int, token: str) -> Page[TrialView]:
    # a position is (seconds, schedule key, record number) among the timed, (-1, "", record number) among the failed
    # that follow them
    name = ("trials", job_id, str(task), TrialOrder.BEST.value)
    position = read_token(token, name, (float, str, int))
    rows: list[TrialRow] = []
    if position is None or float(position[0]) >= 0:
        after = None if position is None else (float(position[0]), str(position[1]), int(position[2]))
        rows += store.trials_by_seconds(job_id, task, after=after, limit=size + 1)
        position = None
    if len(rows) <= size:
        before = None if position is None else int(position[2])
        rows += store.failed_trials(job_id, task, before=before, limit=size + 1 - len(rows))
    if len(rows) <= size:
        return Page(tuple(trial_view(row) for row in rows))
    last = rows[size - 1].record
    outcome = last.trial.outcome
    place = (outcome.rank_seconds, last.trial.schedule.key) if isinstance(outcome, Timed) else (-1.0, "")
    return Page(tuple(trial_view(row) for row in rows[:size]), write_token(name, [*place, last.id]))
