"""Stores three jobs of one workload with schedules that compile: the second is faster than the first, the third slower
and of a newer toolchain. Between them a cost model was trained."""

from dataclasses import replace

import numpy as np

from tilewright.core.budget import Budget
from tilewright.core.policy import DEFAULT_POLICY
from tilewright.core.record import MeasuredOn
from tilewright.core.streams import stream
from tilewright.core.target import Toolchain
from tilewright.core.trial import Clocks, Evidence, Timed, Trial
from tilewright.cost_model.dataset import Experience
from tilewright.db.recording import record_trial
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.service import wiring
from tilewright.te.operators import OPERATORS
from tilewright.tests.api.filled import HERE, operator_task
from tilewright.tests.db.fleets import move_job

SHAPE = {"m": 48, "n": 64, "k": 32}
NEWER = replace(HERE, toolchain=Toolchain({"llvm": "21", "tilewright": "0.1.0"}))
TASK = operator_task("matmul", dict(SHAPE))


def keep(store: RecordStore, name: str, on: MeasuredOn, trials: list[Trial]) -> None:
    """Store a job that has ended with these trials."""
    store.create_job(NewJob(name, "queued", (TASK,), Budget(len(trials)), "model", 1, "llvm", "local", "warm"))
    move_job(store, name, {"queued": ("running",)})
    store.set_device(name, on.device)
    store.begin_task(name, 0)
    store.note_task(name, 0, space_size=999, roofline_seconds=1e-6, roofline_by="flops")
    with store.database.writing() as connection:
        for sequence, trial in enumerate(trials):
            record_trial(connection, NewTrial(name, 0, sequence, TASK.workload_key, on, trial, 0.5 * (sequence + 1)))
    store.note_task(name, 0, stop_reason="trials", wall_seconds=0.5 * len(trials))
    move_job(store, name, {"running": ("succeeded",)})


def keep_three_jobs(store: RecordStore) -> None:
    """Store the jobs ``first``, ``second`` and ``third``, and the model that knows the first."""
    workload = OPERATORS["matmul"].workload(SHAPE)
    pool = wiring.pool_of(workload, HERE.device, 0, DEFAULT_POLICY)
    rng = stream(1, "schedules")
    schedules = [pool.schedule(int(i)) for i in rng.permutation(len(pool))[:36]]

    def trials(first: int, count: int, scale: float) -> list[Trial]:
        seconds = scale * (1 + np.arange(count)[::-1] / 8)
        samples = [s * (1 + 0.01 * rng.random(12)) for s in seconds]
        outcomes = [Timed(tuple(map(float, values)), 10) for values in samples]
        chosen = schedules[first : first + count]
        return [Trial(s, o, Clocks(0.01, 0.1, 0.02, 0.2), Evidence()) for s, o in zip(chosen, outcomes, strict=True)]

    first = trials(0, 16, 1e-5)
    keep(store, "first", HERE, first)
    own = Experience(workload, HERE.device, [(trial.schedule, trial.outcome) for trial in first])
    trained = wiring.train([own], 1)
    assert trained is not None
    metrics = {"pairwise_accuracy": 0.8, "top_8_score": 0.9, "until_record": store.newest_record()}
    store.keep_model(
        trained.kind, trained.feature_version, trained.data, records=16, metrics=metrics, device=HERE.device
    )
    keep(store, "second", HERE, trials(16, 10, 0.9e-5))
    keep(store, "third", NEWER, trials(26, 10, 1.3e-5))
