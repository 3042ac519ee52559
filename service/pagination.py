"""Answers lists in pages. Each page is found by the sort key of the last item before it (keyset pagination)."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from ..core.errors import InvalidParameter, NotFound
from ..core.keys import content_key
from ..core.record import RecordFilter
from ..core.trial import Timed
from ..db.rows import JobRow, TrialRow
from ..db.store import RecordStore
from .convert import trial_view
from .page_token import page_size, read_token, write_token
from .views import JobView, Page, TrialOrder, TrialView

KEY = re.compile(r"[\x21-\x7e]{1,128}")
"""Keys and the names of jobs are visible ASCII."""


def valid_number(value: int, field: str, *, low: int = 0) -> int:
    """Return ``value`` if a column can hold it. Raises InvalidParameter."""
    if not low <= value < 1 << 62:
        raise InvalidParameter(f"{field} {value}; allowed: {low} to 2^62 - 1", field=field)
    return value


def valid_key(value: str, field: str) -> str:
    """Return ``value`` if a column can hold it. Otherwise nothing has that name, and this raises NotFound."""
    if not KEY.fullmatch(value):
        raise NotFound(f"there is nothing named {value[:80]!a}", field=field)
    return value


def page_of_jobs(
    store: RecordStore,
    shown: Callable[[Sequence[JobRow]], tuple[JobView, ...]],
    size: int,
    token: str,
    wanted: Mapping[str, str | None],
) -> Page[JobView]:
    """Return jobs as ``shown`` makes them, newest first; ``wanted`` are conditions of ``RecordStore.jobs``."""
    size = page_size(size)
    name = ("jobs", *(value or "" for value in wanted.values()))
    cursor = read_token(token, name, (int,))
    before = None if cursor is None else int(cursor[0])
    rows = store.jobs(before=before, limit=size + 1, **wanted)
    more = len(rows) > size
    return Page(shown(rows[:size]), write_token(name, [rows[size - 1].number]) if more else "")


def page_of_records(store: RecordStore, wanted: RecordFilter, size: int, token: str) -> Page[TrialView]:
    """Return records of all jobs that a filter lets through, newest first."""
    size = page_size(size)
    name = ("records", content_key(asdict(wanted)))
    cursor = read_token(token, name, (int,))
    before = None if cursor is None else int(cursor[0])
    found = store.dashboard.search(wanted, before=before, limit=size)
    next_token = "" if found.before is None else write_token(name, [found.before])
    return Page(tuple(trial_view(row) for row in found.rows), next_token)


def page_of_trials(
    store: RecordStore, job_id: str, task: int, size: int, token: str, order: TrialOrder
) -> Page[TrialView]:
    """Return trials of a task in any order."""
    size = page_size(size)
    valid_number(task, "task")
    if order is TrialOrder.BEST:
        return _fastest_first(store, job_id, task, size, token)
    name = ("trials", job_id, str(task), order.value)
    cursor = read_token(token, name, (int,))
    after = None if cursor is None else int(cursor[0])
    rows = store.trials(job_id, task, after=after, limit=size + 1, newest_first=order is TrialOrder.NEWEST)
    more = len(rows) > size
    next_token = write_token(name, [rows[size - 1].record.sequence]) if more else ""
    return Page(tuple(trial_view(row) for row in rows[:size]), next_token)


def _fastest_first(store: RecordStore, job_id: str, task: int, size: int, token: str) -> Page[TrialView]:
    # Among the timed trials a cursor is (rank seconds, schedule key, record id). Among the failed ones, which follow
    # them, it is (-1, "", record id).
    name = ("trials", job_id, str(task), TrialOrder.BEST.value)
    cursor = read_token(token, name, (float, str, int))
    rows: list[TrialRow] = []
    if cursor is None or float(cursor[0]) >= 0:
        after = None if cursor is None else (float(cursor[0]), str(cursor[1]), int(cursor[2]))
        rows += store.trials_by_seconds(job_id, task, after=after, limit=size + 1)
        cursor = None
    if len(rows) <= size:
        before = None if cursor is None else int(cursor[2])
        rows += store.failed_trials(job_id, task, before=before, limit=size + 1 - len(rows))
    if len(rows) <= size:
        return Page(tuple(trial_view(row) for row in rows))
    last = rows[size - 1].record
    outcome = last.trial.outcome
    rank = (outcome.rank_seconds, last.trial.schedule.key) if isinstance(outcome, Timed) else (-1.0, "")
    return Page(tuple(trial_view(row) for row in rows[:size]), write_token(name, [*rank, last.id]))
