"""Models that users run: stored once, and tuned by one job whose trials go where they save most."""

from collections import Counter
from dataclasses import replace

import pytest

from tilewright.core.allocation import (
    LEAST_TRIALS,
    MOST_IMPROVEMENT,
    SLICE_TRIALS,
    UNTIMED_TRIALS,
    GivenUp,
    TaskProgress,
    expected_gain,
    expected_saving,
    first_trials,
    given_up,
    most_worthwhile,
    usual_gap,
)
from tilewright.core.budget import Budget
from tilewright.core.errors import NotFound
from tilewright.core.fleet import TaskClaim
from tilewright.db.recording import record_trial
from tilewright.db.rows import ModelTimingRow, NewJob, NewTunedModel
from tilewright.db.store import RecordStore
from tilewright.tests.db.fleets import claim, claimed, finish, measure, new_tasks, submit, trial

KEY = "ab" * 32


def keep(store: RecordStore, *counts: int, key: str = KEY, name: str = "net") -> bool:
    tasks = new_tasks(len(counts))
    parts = tuple((task, f"conv {n}", counts[n]) for n, task in enumerate(tasks))
    return store.add_tuned_model(NewTunedModel(key, name, parts, {"aten.topk.default": 2}))[1]


def submit_model(store: RecordStore, name: str, *counts: int, budget: Budget, flight: str | None = None) -> bool:
    tasks = new_tasks(len(counts), flight=flight)
    weighed = tuple(replace(task, weight=float(count)) for task, count in zip(tasks, counts, strict=True))
    new = NewJob(name, "queued", weighed, budget, "random", 7, "cuda", "local", "cold", model_key=KEY)
    return store.create_model_job(new)[1]


def limits(store: RecordStore, name: str) -> list[int | None]:
    return [task.trial_limit for task in store.job(name).tasks]


def run_slice(store: RecordStore, held: TaskClaim, seconds: float) -> str:
    """Measure what a task was granted; the fastest trial takes ``seconds``."""
    task = store.job(held.job_id).tasks[held.task]
    assert task.trial_limit is not None
    record(store, held, task.trials, task.trial_limit, seconds)
    return finish(store, held)


def record(store: RecordStore, held: TaskClaim, first: int, end: int, seconds: float) -> None:
    """Record the trials from ``first`` to before ``end`` in one transaction: commits are what takes time. Each
    takes half of ``seconds`` longer than the one before."""
    with store.database.writing() as connection:
        for sequence in range(first, end):
            slower = seconds * (1 + 0.5 * sequence)
            record_trial(connection, trial(held.job_id, held.task, sequence, slower), lease=held.lease)


def test_the_saving_follows_the_gaps_between_the_fastest_times() -> None:
    usual = TaskProgress(3.0, 48, (5e-3, 6e-3, 8e-3))
    assert expected_gain(usual) == pytest.approx(2e-3 * (1 - (48 / 56) ** 0.5))  # the gap is 2 ms in the mean
    assert expected_saving(usual) == pytest.approx(3 * expected_gain(usual))
    assert expected_gain(replace(usual, trials=480)) < expected_gain(usual)  # less is expected of the same
    assert expected_gain(replace(usual, limit_seconds=4.9e-3)) < expected_gain(
        usual
    )  # no more than the roofline leaves
    unknown = TaskProgress(1.0, 16, ())
    assert most_worthwhile([usual, unknown, usual]) == 1
    assert most_worthwhile([replace(unknown, trials=UNTIMED_TRIALS), usual, usual]) == 1
    assert most_worthwhile([]) is None
    assert (first_trials(1000, 10), first_trials(50, 10), first_trials(10, 10)) == (SLICE_TRIALS, 5, 1)


def test_a_task_on_a_plateau_does_not_starve_and_a_lone_optimum_does_not_take_all() -> None:
    usual = TaskProgress(1.0, 32, (1.0, 1.04, 1.06))
    plateau = replace(usual, fastest=(1.0, 1.0, 1.0))
    lone = replace(usual, fastest=(1.0, 1.5, 1.6), trials=320)
    job = [usual, usual, plateau, lone]
    typical = usual_gap(job)
    assert typical is not None and usual_gap([]) is None
    assert expected_gain(plateau) == 0.0 < expected_gain(plateau, usual=typical) < expected_gain(usual, usual=typical)
    assert expected_gain(lone, usual=typical) < expected_gain(lone)
    assert most_worthwhile(job) == 3 and most_worthwhile(job, typical) == 0
    assert expected_gain(usual, usual=usual_gap([usual] * 3)) == pytest.approx(expected_gain(usual))
    near = replace(lone, limit_seconds=0.999)
    assert expected_gain(near, usual=typical) < 0.001  # never below the roofline


def test_what_the_cost_model_expects_counts_more_than_gaps() -> None:
    sure = TaskProgress(1.0, 8, (1.0, 1.5, 1.6), improvement=1e-4)
    unsure = replace(sure, fastest=(1.0, 1.0, 1.0), improvement=2.5e-3)
    assert most_worthwhile([sure, unsure], usual_gap([sure, unsure])) == 1
    assert expected_gain(unsure) == pytest.approx(0.05 / 8 / 2)
    hopeful = replace(unsure, improvement=0.5)
    assert (
        expected_gain(unsure) < expected_gain(hopeful) == expected_gain(replace(unsure, improvement=MOST_IMPROVEMENT))
    )
    assert most_worthwhile([replace(hopeful, trials=32), unsure]) == 1  # the longer a search, the less it finds
    assert given_up(hopeful) is None and given_up(replace(hopeful, trials=LEAST_TRIALS)) is GivenUp.NOISE
    assert expected_gain(replace(unsure, limit_seconds=0.999)) < 0.001  # never below the roofline


def test_a_task_whose_best_time_is_old_waits_for_one_that_still_gains() -> None:
    """Both cost models expect the same of tasks that are equal but for when their best time was found."""
    gains = TaskProgress(1.0, 32, (1.0, 1.1), improvement=2e-3, found=32)
    stalled = replace(gains, found=12)
    assert most_worthwhile([stalled, gains]) == 1
    assert expected_gain(stalled) == pytest.approx(12 / 32 * expected_gain(gains))
    assert expected_gain(replace(gains, found=None)) == expected_gain(gains)
    # the order counts both more than the expectation does: here it would be 1.1 times as large
    assert most_worthwhile([replace(stalled, found=28, weight=1.25), gains]) == 1
    assert most_worthwhile([replace(gains, trials=40, found=40, weight=1.7), gains]) == 1
    by_gaps = replace(gains, improvement=None)  # where one has no model, savings are compared
    assert most_worthwhile([by_gaps, replace(stalled, weight=1e6)]) == 1
    first = replace(gains, trials=SLICE_TRIALS, found=1)
    assert expected_gain(first) == expected_gain(replace(first, found=SLICE_TRIALS))  # a slice is measured as a whole
    model_says_nothing = replace(stalled, improvement=None)
    assert expected_gain(model_says_nothing) == expected_gain(replace(gains, improvement=None))


def test_a_task_is_given_up_for_a_reason() -> None:
    usual = TaskProgress(3.0, 48, (5e-3, 6e-3, 8e-3), trial_seconds=0.5)
    assert given_up(usual) is None and given_up(usual, runs=1e6) is None
    assert given_up(usual, runs=1e3) is GivenUp.COST  # 4 s of measuring against 0.4 ms a run
    assert given_up(replace(usual, limit_seconds=4.95e-3)) is GivenUp.ROOFLINE
    equal = replace(usual, fastest=(5e-3, 5.01e-3, 5.02e-3))
    assert given_up(equal) is GivenUp.NOISE
    assert given_up(replace(equal, trials=SLICE_TRIALS)) is None  # too early to say
    assert given_up(TaskProgress(1.0, 16, (), trial_seconds=9.0), runs=1.0) is None  # nothing is known of it


def test_a_model_is_stored_once_under_its_newest_name(fleet_store: RecordStore) -> None:
    assert keep(fleet_store, 3, 1) and not keep(fleet_store, 3, 1, name="resnet")
    assert keep(fleet_store, 4, key="cd" * 32)
    model = fleet_store.tuned_model(KEY)
    assert (model.name, model.foreign_calls, model.jobs) == ("resnet", {"aten.topk.default": 2}, ())
    assert [(w.label, w.count, w.flops) for w in model.workloads] == [("conv 0", 3, 1000), ("conv 1", 1, 1000)]
    newest, older = fleet_store.tuned_models(limit=5)
    assert (newest.key, older.key) == ("cd" * 32, KEY) and newest.workloads[0] == replace(
        model.workloads[0], count=4
    )  # fmt: skip
    assert fleet_store.tuned_models(before=newest.number, limit=5) == (model,)
    assert fleet_store.tuned_models(limit=5, most_workloads=0) == (newest,)
    assert fleet_store.tuned_models(limit=5, most_workloads=1) == (newest, older)
    timing = ModelTimingRow("ef" * 32, 1e-3, "default schedules", 2e-3, 2, "2026-01-01T00:00:00.000Z")
    assert fleet_store.add_model_timing(KEY, timing).timings == (timing,)
    for call in (fleet_store.tuned_model, lambda key: fleet_store.add_model_timing(key, timing)):
        with pytest.raises(NotFound, match="no model"):
            call("00" * 32)


def test_slices_go_where_they_save_most_until_the_budget_is_spent(fleet_store: RecordStore) -> None:
    keep(fleet_store, 10, 1, 1)
    budget = Budget(8 * SLICE_TRIALS + 5)
    assert submit_model(fleet_store, "job", 10, 1, 1, budget=budget)
    assert not submit_model(fleet_store, "again", 10, 1, 1, budget=budget)  # one is under way
    assert fleet_store.tuned_model(KEY).jobs == ("job",) and fleet_store.job("job").model_key == KEY
    assert limits(fleet_store, "job") == [SLICE_TRIALS] * 3
    seconds = {0: 1e-3, 1: 1e-4, 2: 5e-3}  # ten times a millisecond weighs more than once five of them
    states, order = [], []
    while (held := claim(fleet_store)) is not None:
        order.append(held.task)
        states.append(run_slice(fleet_store, held, seconds[held.task]))
    assert order[:3] == [0, 1, 2] and states == ["running"] * (len(states) - 1) + ["succeeded"]
    assert Counter(order[3:]) == {0: 4, 2: 2} and order[3] == 0  # what is expected shrinks with what was spent
    job = fleet_store.job("job")
    assert sum(task.trials for task in job.tasks) == budget.trials
    assert [task.stop_reason for task in job.tasks] == ["trials"] * 3
    assert submit_model(fleet_store, "later", 10, 1, 1, budget=budget)  # none is under way any more


def test_the_next_slice_goes_to_the_task_whose_best_time_is_the_newest(fleet_store: RecordStore) -> None:
    keep(fleet_store, 1, 1)
    submit_model(fleet_store, "job", 1, 1, budget=Budget(5 * SLICE_TRIALS))
    order = []
    for first_seconds in (1e-3, 1e-3, 1e-3, 1.9e-4):  # trial 9 of the second task takes 0.95 ms, its first one 1 ms
        held = claimed(fleet_store)
        order.append(held.task)
        task = fleet_store.job("job").tasks[held.task]
        assert task.trial_limit is not None
        record(fleet_store, held, task.trials, task.trial_limit, first_seconds)
        fleet_store.fleet.finish_task(held.lease, "trials", {"improvement": 2e-3})
    assert order == [0, 1, 0, 1]
    assert claimed(fleet_store).task == 1  # the first one takes longer, but has found nothing since its first slice


def test_the_fastest_times_of_workloads_are_known_before_a_job(fleet_store: RecordStore) -> None:
    keep(fleet_store, 1, 1)
    submit_model(fleet_store, "job", 1, 1, budget=Budget(32))
    held = claimed(fleet_store)
    record(fleet_store, held, 0, 6, 1e-3)
    key, other = (task.workload_key for task in fleet_store.job("job").tasks)
    stored = fleet_store.trials("job", 0, limit=1)[0].record.identity
    found = fleet_store.fastest([key, other], stored.device_key, stored.profile, 3)
    assert set(found) == {key} and found[key] == (6, found[key][1])
    assert found[key][1] == pytest.approx((1e-3, 1.5e-3, 2e-3))
    assert fleet_store.fastest([key], stored.device_key, "another", 3) == {}


def test_a_task_that_is_not_worth_it_is_given_up_with_the_number(fleet_store: RecordStore) -> None:
    keep(fleet_store, 1, 1)
    submit_model(fleet_store, "job", 1, 1, budget=Budget(1000, runs=1e6))
    for seconds in (1e-3, 1e-6):
        held = claimed(fleet_store)
        record(fleet_store, held, 0, SLICE_TRIALS, seconds)
        fleet_store.fleet.finish_task(held.lease, "trials", {"wall_seconds": 16.0})
    held = claimed(fleet_store)  # a millisecond is worth going on with, a microsecond is not
    assert held.task == 0 and fleet_store.job("job").tasks[1].stop_reason == "not_worthwhile"
    told = [event.data for event in fleet_store.events("job", after=0, limit=100) if "given_up" in event.data]
    assert [(data["task"], data["given_up"], data["slice_seconds"]) for data in told] == [(1, "cost", 16.0)]
    saving = told[0]["expected_saving_seconds"]
    assert isinstance(saving, float) and 0 < saving * 1e6 < 16.0
    assert fleet_store.job("job").budget.runs == 1e6


def test_what_a_task_cannot_use_others_get(fleet_store: RecordStore) -> None:
    keep(fleet_store, 1, 1)
    submit_model(fleet_store, "job", 1, 1, budget=Budget(3 * SLICE_TRIALS))
    first, second = claimed(fleet_store), claimed(fleet_store)
    measure(fleet_store, first, 4, seconds=1e-3)
    assert (
        finish(fleet_store, first, "exhausted") == "running"
    )  # one still runs, and nothing can be granted to this one
    assert claim(fleet_store) is None
    run_slice(fleet_store, second, 1e-6)
    spent = Counter[int]()
    while (held := claim(fleet_store)) is not None:
        spent[held.task] += 1
        run_slice(fleet_store, held, 1e-6)
    job = fleet_store.job("job")
    assert set(spent) == {1} and sum(task.trials for task in job.tasks) == 3 * SLICE_TRIALS
    assert job.state == "succeeded"


def test_seconds_are_shared_and_a_paused_job_is_granted_nothing_to_run(fleet_store: RecordStore) -> None:
    keep(fleet_store, 1)
    submit_model(fleet_store, "job", 1, budget=Budget(10 * SLICE_TRIALS, seconds=30.0))
    held = claimed(fleet_store)
    fleet_store.fleet.pause_job("job")
    run_slice(fleet_store, held, 1e-3)
    assert fleet_store.job("job").tasks[0].state == "blocked" and claim(fleet_store) is None
    fleet_store.fleet.resume_job("job")
    held = claimed(fleet_store)
    record(fleet_store, held, SLICE_TRIALS, 2 * SLICE_TRIALS, 1e-3)
    fleet_store.fleet.finish_task(held.lease, "trials", {"wall_seconds": 31.0})
    ended = fleet_store.job("job")
    assert ended.state == "succeeded" and ended.tasks[0].trials == 2 * SLICE_TRIALS


def test_equal_tasks_of_two_models_are_measured_once(fleet_store: RecordStore) -> None:
    keep(fleet_store, 1)
    submit(fleet_store, "plain", 1, trials=40, flight="f")
    submit_model(fleet_store, "job", 1, budget=Budget(3 * SLICE_TRIALS), flight="f")
    assert fleet_store.job("job").tasks[0].state == "blocked"
    held = claimed(fleet_store)
    record(fleet_store, held, 0, 40, 1e-3)
    finish(fleet_store, held)
    task = fleet_store.job("job").tasks[0]
    assert (task.adopted, task.trials, task.state) == (40, 40, "ready")  # they cost nothing of the budget
    while (granted := claim(fleet_store)) is not None:
        run_slice(fleet_store, granted, 1e-3)
    assert fleet_store.job("job").tasks[0].trials == 40 + 3 * SLICE_TRIALS
