"""Waits for what happens to a job."""

from collections.abc import Callable

from tilewright.service.service import Service
from tilewright.service.views import EventView, JobState, JobView, TrialView

WAIT_SECONDS = 120.0
QUICK = ("broadcast_affine", {"rows": 60, "columns": 96})
"""An operator of thousands of schedules whose kernels are short: each is built in a tenth of a small product's time."""


def follow(service: Service, job_id: str, until: Callable[[EventView], bool]) -> list[EventView]:
    """Return the events of a job from its beginning up to the first one that ``until`` accepts."""
    events: list[EventView] = []
    while True:
        more = service.events(job_id, after=events[-1].id if events else 0, timeout_seconds=WAIT_SECONDS)
        assert more, f"nothing happens after {events[-1] if events else None}"
        for event in more:
            events.append(event)
            if until(event):
                return events


def ended(event: EventView) -> bool:
    """Return whether this is the last event of its job."""
    return event.kind == "state" and JobState(str(event.data["state"])).is_final


def finished(service: Service, job: JobView) -> JobView:
    """Wait until the job has ended, and return it."""
    follow(service, job.id, ended)
    return service.job(job.id)


def all_trials(service: Service, job: JobView, task: int = 0) -> list[TrialView]:
    """Return every trial of a task, read page by page."""
    trials: list[TrialView] = []
    token = ""
    while True:
        page = service.trials(job.id, task=task, page_size=7, token=token)
        trials += page.items
        token = page.next_token
        if not token:
            return trials
