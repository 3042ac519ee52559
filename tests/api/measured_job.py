"""Stores a job whose schedules are really built, checked and timed on this processor, in this process."""

import time

import numpy as np

from tilewright.core.budget import Budget
from tilewright.core.policy import DEFAULT_POLICY
from tilewright.core.record import MeasuredOn
from tilewright.core.target import DeviceInfo, Profile, Toolchain
from tilewright.core.trial import Clocks, Evidence, Timed, Trial
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.runtime.devices import host_target
from tilewright.runtime.module import load_module
from tilewright.service import wiring
from tilewright.te.operators import OPERATORS
from tilewright.tests.api.filled import operator_task
from tilewright.tests.db.fleets import move_job

SHAPE = {"m": 64, "n": 48, "k": 32}
TRIALS = 8
HERE = MeasuredOn(
    DeviceInfo("This processor", host_target("llvm"), {"cores": 2.0}, {"copy_bytes_per_second": 1e10}),
    Toolchain({"llvm": "here"}),
    Profile(),
)


def keep_measured_job(store: RecordStore, name: str) -> None:
    """Store the job, which has ended."""
    workload, task = OPERATORS["matmul"].workload(SHAPE), operator_task("matmul", dict(SHAPE))
    pool = wiring.pool_of(workload, HERE.device, 0, DEFAULT_POLICY)
    a, b = (np.random.default_rng(n).random(shape, dtype=np.float32) for n, shape in enumerate(((64, 32), (32, 48))))
    store.create_job(NewJob(name, "queued", (task,), Budget(TRIALS), "random", 1, "llvm", "local", "warm"))
    move_job(store, name, {"queued": ("running",)})
    store.set_device(name, HERE.device)
    store.begin_task(name, 0)
    store.note_task(name, 0, space_size=len(pool), roofline_seconds=1e-7, roofline_by="flops")
    for sequence in range(TRIALS):
        schedule = pool.schedule(sequence * (len(pool) // TRIALS))
        began = time.perf_counter()
        kernel = load_module(workload, schedule)
        compiled = time.perf_counter()
        np.testing.assert_allclose(kernel(a, b)[0], a @ b, rtol=1e-5)
        samples = []
        for _ in range(6):
            start = time.perf_counter()
            kernel(a, b)
            samples.append(time.perf_counter() - start)
        clocks = Clocks(0.0, compiled - began, 0.0, sum(samples), 0.0)
        evidence = Evidence(0, 0.01, 1e-5, 1e-5, True, True, 1e-3, environment={"load": 1.0})
        trial = Trial(schedule, Timed(tuple(samples)), clocks, evidence)
        store.add_trial(NewTrial(name, 0, sequence, task.workload_key, HERE, trial, 0.1 * (sequence + 1)))
    store.note_task(name, 0, stop_reason="trials")
    move_job(store, name, {"running": ("succeeded",)})
