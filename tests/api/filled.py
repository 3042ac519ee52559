"""Fills a database with jobs that have ended. Their trials look as if a search had found them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from sqlalchemy import insert, select

from tilewright.core.budget import Budget
from tilewright.core.record import MeasuredOn
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import DeviceInfo, Profile, Target, Toolchain
from tilewright.core.trial import Clocks, Evidence, Failed, Reason, Timed, Trial, TrialStage
from tilewright.db.recording import record_trial
from tilewright.db.rows import NewJob, NewTask, NewTrial
from tilewright.db.store import RecordStore
from tilewright.db.tables import tasks, trials
from tilewright.service.wiring import sketch_versions
from tilewright.te.cost import flops, minimum_bytes
from tilewright.te.json import workload_to_json
from tilewright.te.key import workload_key
from tilewright.te.operators import OPERATORS
from tilewright.te.text import workload_text
from tilewright.tests.db.fleets import move_job

HERE = MeasuredOn(
    DeviceInfo("Example CPU, 2 cores", Target("llvm", "x86-64", ("avx2", "fma"), 2, 32), {"cores": 2.0}),
    Toolchain({"llvm": "20", "tilewright": "0.1.0"}),
    Profile(),
)
VERSION = sketch_versions()["cpu_loops"]
FAILURES = (
    Failed(TrialStage.TIME, Reason.TIMEOUT, "no answer for 10 s; the process group was killed"),
    Failed(
        TrialStage.CHECK,
        Reason.WRONG_RESULT,
        "C[3, 7] is 1.5, expected 1.25 +- 2e-05; <b>17 of 1024</b> differ",
    ),
    Failed(TrialStage.LOWER, Reason.ILLEGAL_SCHEDULE, "vectorise: loop j_inner has extent 3; allowed: a multiple of 8"),
)


def operator_task(operator: str, parameters: dict[str, object]) -> NewTask:
    """Return a task to store for a library operator."""
    workload = OPERATORS[operator].workload(parameters)
    return NewTask(
        workload_key(workload),
        workload_to_json(workload),
        workload_text(workload),
        flops(workload),
        minimum_bytes(workload),
        operator,
        parameters,
    )


def outcomes(seed: int, count: int, fastest: float) -> list[Timed | Failed]:
    """Return outcomes that get better with time, with log-normal noise; one in twelve failed."""
    random = stream(seed, "outcomes")
    progress = np.linspace(0.0, 1.0, count)
    typical = fastest * (1.25 + 6.0 * np.exp(-4.0 * progress))
    seconds = np.maximum(typical * random.lognormal(0.0, 0.35, count), fastest * (1 + 0.4 * (1 - progress)))
    failed = random.random(count) < 1 / 12
    kinds = random.integers(0, len(FAILURES), count)
    spread = random.uniform(0.001, 0.03, count)
    return [
        FAILURES[kind] if bad else Timed((s, s * (1 - wide), s * (1 + wide), s), 10)
        for s, bad, kind, wide in zip(seconds.tolist(), failed.tolist(), kinds.tolist(), spread.tolist(), strict=True)
    ]


def keep_job(
    store: RecordStore,
    name: str,
    tasks: Sequence[NewTask],
    trials: int,
    *,
    fastest: float = 0.012,
    state: str = "succeeded",
    seed: int = 1,
    tenant: str = "default",
    notes: str = "",
) -> None:
    """Store a job that has ended with ``trials`` trials of each task."""
    budget = Budget(max(trials, 1), None, None)
    new = NewJob(name, "queued", tuple(tasks), budget, "model", seed, "llvm", "local", "warm")
    store.create_job(replace(new, tenant=tenant, notes=notes))
    move_job(store, name, {"queued": ("running",)})
    store.set_device(name, HERE.device)
    for index, task in enumerate(tasks):
        store.begin_task(name, index)
        store.note_task(
            name,
            index,
            space_size=1_234_567,
            baseline_seconds=fastest * 1.8,
            baseline_name="NumPy matmul",
            roofline_seconds=fastest * 0.62,
            roofline_by="flops",
        )
        with store.database.writing() as connection:  # one transaction for all: commits are what takes time
            for sequence, outcome in enumerate(outcomes(seed + index, trials, fastest)):
                record_trial(connection, new_trial(name, index, sequence, task.workload_key, outcome))
        store.note_task(name, index, stop_reason="trials")
    move_job(store, name, {"running": (state,)}, error="the worker was lost twice" if state == "failed" else None)


def new_trial(job: str, task: int, sequence: int, workload: str, outcome: Timed | Failed) -> NewTrial:
    """Return a trial to store, with knobs that depend on its sequence."""
    knobs: dict[str, int | str] = {
        "tile_i": 8 << sequence % 4,
        "tile_j": 16 << sequence % 3,
        "tile_k": 64,
        "order": "ikj",
        "number": sequence,
    }
    evidence = Evidence(3, 0.021, 1e-5, 1e-5, True, True, 0.0011, "ab" * 32, 18_432, {"load": 0.25})
    trial = Trial(Schedule.of("cpu_loops", VERSION, knobs), outcome, Clocks(0.002, 0.09, 0.03, 0.2, 0.01), evidence)
    return NewTrial(job, task, sequence, workload, HERE, trial, 0.35 * (sequence + 1))


def repeat_trials(store: RecordStore, job: str, times: int) -> None:
    """Make the trials of a job's first task ``times`` as many, quickly; copies are a little slower."""
    row = store.job(job)
    columns = [
        column.name for column in trials.columns if column.name not in ("id", "sequence", "seconds", "elapsed_seconds")
    ]
    count = row.tasks[0].trials
    with store.database.writing() as connection:
        for copy in range(1, times):
            made = (
                trials.c.sequence + copy * count,
                trials.c.seconds * (1 + copy / 500),
                trials.c.elapsed_seconds + copy,
            )
            chosen = select(*(trials.c[name] for name in columns), *made).where(
                trials.c.job == row.number, trials.c.task == 0, trials.c.sequence < count
            )
            names = [*columns, "sequence", "seconds", "elapsed_seconds"]
            connection.execute(insert(trials).from_select(names, chosen))
        failures = {kind: number * times for kind, number in row.tasks[0].failures.items()}
        mine = tasks.update().where(tasks.c.job == row.number, tasks.c.position == 0)
        connection.execute(mine.values(trials=count * times, failures=failures))
