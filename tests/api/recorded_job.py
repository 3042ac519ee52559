"""Stores a job that searched a recorded space of a GPU with the cost model: real times, and what the model foretold."""

from pathlib import Path

from tilewright.core.budget import Budget
from tilewright.core.fleet import Unit
from tilewright.core.record import MeasuredOn
from tilewright.core.target import DeviceInfo, Profile, Target, Toolchain
from tilewright.core.trial import Evidence
from tilewright.db.recording import record_trial
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.search.recorded import read_table
from tilewright.search.strategies.model import ModelSearch
from tilewright.search.strategy import SearchProblem
from tilewright.search.tuner import tune
from tilewright.tests.api.filled import operator_task
from tilewright.tests.db.fleets import move_job

TABLE = read_table(Path(__file__).parents[1] / "data" / "hub_convolution_milo__A100.csv")
A100 = MeasuredOn(
    DeviceInfo(
        "NVIDIA A100",
        Target("cuda", "sm_80", (), 108, 16),
        {"multiprocessors": 108.0, "l2_bytes": 4e7, "sm_clock_mhz": 1410.0},
        {"copy_bytes_per_second": 1.4e12, "flops_per_second_float32": 1.9e13},
    ),
    Toolchain({"nvrtc": "13.0"}),
    Profile("cold"),
)
TRIALS = 48


def keep_recorded_job(store: RecordStore, name: str) -> None:
    """Store the search as a job that has ended, on a unit that is there and ready."""
    store.fleet.register_units([Unit("GPU-a100", A100.device, "gpu-host", "local", 0)], seen_seconds=3600.0)
    task = operator_task("softmax", {"rows": 8192, "columns": 1024, "dtype": "float16"})
    store.create_job(NewJob(name, "queued", (task,), Budget(TRIALS), "model", 1, "cuda", "local", "cold"))
    move_job(store, name, {"queued": ("running",)})
    store.set_device(name, A100.device)
    store.begin_task(name, 0)
    store.note_task(name, 0, space_size=TABLE.pool.total, roofline_seconds=2e-4, roofline_by="bytes")
    search = ModelSearch(SearchProblem(TABLE.pool, 1))
    with store.database.writing() as connection:
        for step in tune(TABLE.pool, search, TABLE.measure, Budget(TRIALS)):
            hot = 40.0 + step.sequence / 4
            readings = {"sm_clock_mhz": 1410.0 - step.sequence, "power_watts": 250.0, "temperature_celsius": hot}
            evidence = Evidence(anchor_seconds=1e-4, environment=readings)
            record_trial(
                connection,
                NewTrial(
                    name,
                    0,
                    step.sequence,
                    task.workload_key,
                    A100,
                    type(step.trial)(step.trial.schedule, step.trial.outcome, step.trial.clocks, evidence),
                    1.5 * (step.sequence + 1),
                    unit="GPU-a100",
                    host="gpu-host",
                    prediction=step.prediction,
                ),
            )
    store.note_task(name, 0, stop_reason="trials", wall_seconds=75.0, timing_seconds=30.0)
    move_job(store, name, {"running": ("succeeded",)})
