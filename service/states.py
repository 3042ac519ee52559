"""Defines the life of a job: a table holds every change of state that is allowed."""

from collections.abc import Mapping, Sequence

from .views import JobState

ALLOWED: Mapping[JobState, tuple[JobState, ...]] = {
    JobState.QUEUED: (JobState.RUNNING, JobState.CANCELLING, JobState.FAILED),
    JobState.RUNNING: (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLING),
    JobState.CANCELLING: (JobState.CANCELLED,),
    JobState.SUCCEEDED: (),
    JobState.FAILED: (),
    JobState.CANCELLED: (),
}

UNFINISHED = (JobState.CANCELLING, JobState.RUNNING, JobState.QUEUED)
"""Jobs in these states want work, the most urgent first."""

CANCEL: Mapping[str, Sequence[str]] = {
    JobState.QUEUED: (JobState.CANCELLING, JobState.CANCELLED),  # it does not run, so that there is nothing to wait for
    JobState.RUNNING: (JobState.CANCELLING,),
    JobState.CANCELLING: (),
    JobState.CANCELLED: (),
}
"""What a request to cancel does in each state. In the states that are missing it is a conflict."""

CANCEL_UNATTENDED: Mapping[str, Sequence[str]] = {
    JobState.QUEUED: (JobState.CANCELLING, JobState.CANCELLED),
    JobState.RUNNING: (JobState.CANCELLING, JobState.CANCELLED),
    JobState.CANCELLING: (JobState.CANCELLED,),
    JobState.CANCELLED: (),
}
"""What a request to cancel does where no process runs jobs: nobody would finish the cancellation later."""


def to(state: JobState) -> Mapping[str, Sequence[str]]:
    """Return the paths of one allowed step into ``state`` from each state that has one. A job that is in ``state``
    already stays there."""
    paths: dict[str, Sequence[str]] = {before: (state,) for before, after in ALLOWED.items() if state in after}
    paths[state] = ()
    return paths
