"""The life of a job: every state change there is."""

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
"""States that want work, the most urgent first."""

CANCEL: Mapping[str, Sequence[str]] = {
    JobState.QUEUED: (JobState.CANCELLING, JobState.CANCELLED),  # nothing runs: there is nothing to wait for
    JobState.RUNNING: (JobState.CANCELLING,),
    JobState.CANCELLING: (),
    JobState.CANCELLED: (),
}
"""What a request to cancel does in each state; in the others it is a conflict."""


def to(state: JobState) -> Mapping[str, Sequence[str]]:
    """One allowed step into ``state``, from wherever the table has one; being there already is fine."""
    path: dict[str, Sequence[str]] = {before: (state,) for before, after in ALLOWED.items() if state in after}
    path[state] = ()
    return path
