"""Families as users have them: times become records of a service, which makes a family of them and chooses from it."""

from pathlib import Path

from tilewright.benchmarks.families import ROWS, Sweep
from tilewright.core.budget import Budget
from tilewright.core.record import MeasuredOn
from tilewright.core.trial import Timed, Trial
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.db.task import task_of
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.te.operators import OPERATORS

OPERATOR = "linear"


def opened(folder: Path, sweeps: list[Sweep], on: MeasuredOn) -> Service:
    """Return a service, to be closed, whose database in ``folder`` has the times of ``sweeps`` as records of ``on``."""
    settings = Settings(database_url=f"sqlite:///{folder / 'families.sqlite3'}", run_jobs=False)
    with RecordStore(settings.database_url) as store:
        for sweep in sweeps:
            _keep(store, sweep, on)
    return Service.open(settings)


def _keep(store: RecordStore, sweep: Sweep, on: MeasuredOn) -> None:
    """Add what was timed, as a job that has ended."""
    spec = sweep.spec
    given = [{**spec.parameters, ROWS: rows} for (rows,) in sweep.times]
    tasks = tuple(task_of(OPERATORS[OPERATOR].workload(one), OPERATOR, one) for one in given)
    kind, cache = on.device.target.kind, on.profile.cache
    store.create_job(NewJob(spec.name, "succeeded", tasks, Budget(1), "random", 0, kind, "local", cache))
    for position, (task, seconds) in enumerate(zip(tasks, sweep.times.values(), strict=True)):
        for sequence, (schedule, taken) in enumerate(seconds.items()):
            trial = Trial(schedule, Timed((taken,)))
            store.add_trial(NewTrial(spec.name, position, sequence, task.workload_key, on, trial, 0.0))
