"""A task of a job that retunes: its earlier winner and runners-up are measured again, and searched is only where the
winner does not hold."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.budget import Budget, StopReason
from ..core.record import MeasuredOn
from ..core.retuning import EarlierTrials, Retuned, RetuneVerdict, Retuning
from ..core.schedule import Schedule
from ..core.trial import Timed, Trial
from ..db.rows import JobRow, TaskRow
from ..search.retuning import compared, measured_again
from ..search.tuner import Finished
from ..te.workload import Workload
from . import wiring
from .settings import Settings

if TYPE_CHECKING:  # it loads SQLAlchemy, which the task worker of an embedded database does without
    from ..db.store import RecordStore


@dataclass(frozen=True)
class Earlier:
    """What a task knew before a change: ``trials``, the winner first, with their schedules as they are written now.
    ``schedules`` are those of them that are legal now. ``found`` is None where there is nothing earlier."""

    found: EarlierTrials | None
    trials: Sequence[Trial] = ()
    schedules: Sequence[Schedule] = ()

    def retuned(self, now: Sequence[Trial]) -> Retuned:
        """Return what became of the winner, by trials of these schedules that were taken now."""
        if self.found is None:
            return Retuned(RetuneVerdict.CURRENT)
        keys = {schedule.key for schedule in self.schedules}
        again = [trial for trial in now if trial.schedule.key in keys]
        comparison, winner = compared(self.trials, again), self.found.records[0]
        outcome = winner.trial.outcome
        assert isinstance(outcome, Timed)  # the store finds no others
        return Retuned(
            verdict=comparison.verdict,
            measured=len(again),
            ratio=comparison.ratio,
            lead=comparison.lead,
            noise=comparison.noise,
            earlier_record_id=winner.id,
            earlier_toolchain_key=winner.identity.toolchain_key,
            earlier_seconds=outcome.seconds,
            earlier_trials=self.found.spent_trials,
            earlier_wall_seconds=self.found.spent_seconds,
        )


def earlier_of(
    store: "RecordStore",
    job: JobRow,
    task: TaskRow,
    workload: Workload,
    on: MeasuredOn,
    settings: Settings,
    *,
    until: int,
) -> Earlier | None:
    """Return what was known of a task's workload before the change that ``job`` retunes for, in records up to
    ``until``; None where the job does not retune, or it is known that the winner does not hold. Raises StoreError."""
    if job.retuning is None:
        return None
    if task.retuned is not None and not Retuned.from_json(task.retuned).verdict.ends_the_task:
        return None
    asked = Retuning(**job.retuning)  # type: ignore[arg-type]
    found = store.earlier_trials(
        task.workload_key,
        on,
        wiring.sketch_versions(),
        asked.toolchain_before,
        tenant=None if settings.share_records else job.tenant,
        until=until,
        limit=1 + asked.runners_up,
    )
    if found is None:
        return Earlier(None)
    trials, legal = wiring.as_of_now(workload, on.device.target, [record.trial for record in found.records])
    return Earlier(found, trials, legal)


def retuning(
    earlier: Earlier,
    measure: Callable[[Iterable[Schedule]], Iterator[tuple[int, Trial]]],
    budget: Budget,
    *,
    done: Callable[[], Sequence[Trial]],
    elapsed_seconds: float,
    cancelled: Callable[[], bool],
    remeasure: Callable[[], object],
    decide: Callable[[Retuned], None],
    search: Callable[[], Generator[Finished, None, StopReason]],
) -> Generator[Finished, None, StopReason]:
    """Yield every new trial as it ends; return why the task ended.

    ``done`` gives the trials of the task by now. ``remeasure`` times the fastest of them again, interleaved, and stores
    that; ``decide`` stores what became of the winner; ``search`` goes on where it does not hold. What is told to the
    store is there when a task resumes, which measures what is missing and decides again."""
    began = time.monotonic()
    known = {trial.schedule.key for trial in done()}
    missing = [schedule for schedule in earlier.schedules if schedule.key not in known]

    def stopped() -> bool:
        seconds = elapsed_seconds + time.monotonic() - began
        return cancelled() or (budget.seconds is not None and seconds >= budget.seconds)

    complete = yield from measured_again(missing, measure, done=len(known), stopped=stopped)
    if not complete:
        return StopReason.CANCELLED if cancelled() else StopReason.SECONDS
    if earlier.schedules:
        remeasure()
    retuned = earlier.retuned(done())
    decide(retuned)
    if retuned.verdict.ends_the_task:
        return StopReason.KEPT
    return (yield from search())
