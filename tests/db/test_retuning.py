"""What was the best before a change, in a database with records of several toolchains, sketches and tenants."""

from dataclasses import replace

from tilewright.core.budget import Budget
from tilewright.core.record import MeasuredOn
from tilewright.core.retuning import EarlierTrials
from tilewright.core.schedule import Schedule
from tilewright.core.target import Profile, Toolchain
from tilewright.core.trial import Failed, Reason, Timed, Trial, TrialStage
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.db.visibility import Visibility, seeing
from tilewright.tests.db.fleets import ON_GPU, new_tasks

OLD = replace(ON_GPU, toolchain=Toolchain({"cuda": "11"}))
OLDER = replace(ON_GPU, toolchain=Toolchain({"cuda": "10"}))
SKETCHES = {"loops": 2}
KEYS = [task.workload_key for task in new_tasks(4)]
NO_TIME = Failed(TrialStage.TIME, Reason.TIMEOUT)


def keep(
    store: RecordStore, name: str, on: MeasuredOn, workload: int, *times: float | None, version: int = 2,
    tenant: str = "default",
) -> None:  # fmt: skip
    """Store a job whose trials took these times: a schedule for each; None: it failed."""
    task = new_tasks(first=workload)[0]
    store.create_job(NewJob(name, "queued", (task,), Budget(9), "random", 1, "cuda", "local", "cold", tenant=tenant))
    for number, seconds in enumerate(times):
        schedule = Schedule.of("loops", version, {"tile": number})
        trial = Trial(schedule, NO_TIME if seconds is None else Timed((seconds,)))
        store.add_trial(NewTrial(name, 0, number, "", on, trial, 1.5 * (1 + number)))


def moved(store: RecordStore, on: MeasuredOn = ON_GPU, before: str | None = None, limit: int = 9) -> list[int]:
    found = store.moved(on.device.key, str(on.profile), on.toolchain.key, SKETCHES, before, limit=limit)
    return [KEYS.index(key) for key in found]


def earlier(
    store: RecordStore, workload: int, *, before: str | None = None, tenant: str | None = None, until: int = 1 << 40
) -> EarlierTrials | None:
    key = KEYS[workload]
    return store.earlier_trials(key, ON_GPU, SKETCHES, before, tenant=tenant, until=until, limit=3)


def tiles(found: EarlierTrials | None) -> list[object]:
    return [] if found is None else [record.trial.schedule["tile"] for record in found.records]


def test_workloads_without_a_present_record_have_moved(fleet_store: RecordStore) -> None:
    keep(fleet_store, "a", OLD, 0, 2.0, 1.0)
    keep(fleet_store, "b", OLD, 1, 2.0)
    keep(fleet_store, "b now", ON_GPU, 1, 3.0)  # slower than before, but it is known
    keep(fleet_store, "c", ON_GPU, 2, 2.0, version=1)  # by a sketch of an earlier version
    keep(fleet_store, "d", replace(OLD, profile=Profile("warm", 2)), 3, 2.0)  # another profile
    assert moved(fleet_store) == [2, 0]  # the newest first
    assert moved(fleet_store, limit=1) == [2]
    assert moved(fleet_store, before=OLD.toolchain.key) == [0]
    assert moved(fleet_store, replace(ON_GPU, device=replace(ON_GPU.device, name="another"))) == []
    found = fleet_store.moved(ON_GPU.device.key, "cold-v2", None, SKETCHES, None, limit=9)
    assert sorted(KEYS.index(key) for key in found) == [0, 1, 2]  # nobody knows what the present toolchain is


def test_earlier_trials_are_the_fastest_of_the_newest_toolchain_before(fleet_store: RecordStore) -> None:
    keep(fleet_store, "older", OLDER, 0, 0.1, 0.2)
    keep(fleet_store, "old", OLD, 0, 5.0, 2.0, None, 4.0, 3.0)
    keep(fleet_store, "again", OLD, 0, 4.5)  # a schedule that the job before had measured as well
    until = fleet_store.newest_record()
    keep(fleet_store, "now", ON_GPU, 0, 0.5)
    found = earlier(fleet_store, 0)
    assert tiles(found) == [1, 4, 3] and found is not None
    assert [record.identity.toolchain_key for record in found.records] == [OLD.toolchain.key] * 3
    assert (found.spent_trials, found.spent_seconds) == (5, 7.5)  # what the task of the fastest one took
    assert tiles(earlier(fleet_store, 0, before=OLDER.toolchain.key)) == [0, 1]
    assert earlier(fleet_store, 0, before=ON_GPU.toolchain.key) is None
    keep(fleet_store, "late", OLD, 0, 0.3)
    assert tiles(earlier(fleet_store, 0, until=until)) == [1, 4, 3]  # the same when a task is resumed
    assert earlier(fleet_store, 1) is None


def test_records_of_other_tenants_count_where_they_are_shared(fleet_store: RecordStore) -> None:
    keep(fleet_store, "theirs", OLD, 0, 1.0, tenant="theirs")
    keep(fleet_store, "ours", OLD, 1, 1.0, tenant="ours")
    with seeing(Visibility("ours")):
        assert moved(fleet_store) == [1]
    with seeing(Visibility("ours", shares_records=True)):
        assert moved(fleet_store) == [1, 0]
    assert earlier(fleet_store, 0, tenant="ours") is None
    assert tiles(earlier(fleet_store, 0)) == [0]


def test_what_a_job_was_asked_for_and_what_its_tasks_found_is_kept(fleet_store: RecordStore) -> None:
    asked = {"runners_up": 3, "toolchain_before": OLD.toolchain.key}
    new = NewJob("r", "queued", new_tasks(2), Budget(9), "random", 1, "cuda", "local", "cold", retuning=asked)
    assert fleet_store.create_job(new)[0].retuning == asked
    fleet_store.note_task("r", 1, retuned={"verdict": "kept"})
    job = fleet_store.job("r")
    assert job.retuning == asked and [task.retuned for task in job.tasks] == [None, {"verdict": "kept"}]
