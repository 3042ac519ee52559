"""Records leave a database as lines of JSON and enter another one whole, once, and only when they are well formed."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.core.budget import Budget
from tilewright.core.errors import InvalidParameter
from tilewright.core.policy import SpacePolicy
from tilewright.core.record import MeasuredOn
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import DeviceInfo, Profile, Target, Toolchain
from tilewright.core.trial import Clocks, Evidence, Failed, Reason, Timed, Trial, TrialStage
from tilewright.db import migrate
from tilewright.db.engine import Database, parse_url
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.db.task import task_of
from tilewright.te.operators import OPERATORS
from tilewright.tests.db.fleets import migrated
from tilewright.tests.db.postgres import PostgresServer

ON = MeasuredOn(
    DeviceInfo("Some CPU", Target("llvm", "x86-64", ("avx2",), 2, 32), {"cores": 2.0}, {"copy_bytes_per_second": 1e10}),
    Toolchain({"llvm": "20"}),
    Profile("cold"),
)
SHAPES: tuple[dict[str, object], ...] = ({"m": 4, "n": 4, "k": 4}, {"m": 4, "n": 5, "k": 6})
TASKS = tuple(task_of(OPERATORS["matmul"].workload(shape), "matmul", shape) for shape in SHAPES)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    with migrated(f"sqlite:///{tmp_path}/from.sqlite3") as opened:
        fill(opened)
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[RecordStore]:
    with migrated(f"sqlite:///{tmp_path}/to.sqlite3") as opened:
        yield opened


POLICIES = {"one": SpacePolicy(), "two": SpacePolicy(prune=False, prior=False)}


def fill(store: RecordStore) -> None:
    for job in ("one", "two"):
        budget = Budget(9, None, 3)
        store.create_job(NewJob(job, "queued", TASKS, budget, "model", 5, "llvm", "local", "cold", POLICIES[job]))
        for task in range(2):
            for sequence in range(3):
                store.add_trial(NewTrial(job, task, sequence, "", ON, trial(sequence), 0.5 * sequence))


def trial(sequence: int) -> Trial:
    schedule = Schedule.of("loops", 1, {"tile": sequence, "order": "ij"})
    if sequence == 1:
        failed = Failed(TrialStage.CHECK, Reason.WRONG_RESULT, "C[0] is 3, not 4\nand more")
        return Trial(schedule, failed, Clocks(check=0.1), Evidence(max_error=float("inf")))
    timed = Timed((1e-6 / (1 + sequence), 2e-6), 100)
    return Trial(schedule, timed, Clocks(0.1, 0.2, 0.3, 0.4, 0.5), Evidence(3, 0.5, environment={"load": 0.2}))


def test_records_come_back_equal(store: RecordStore, other: RecordStore) -> None:
    lines = list(store.export_lines())
    assert other.import_lines(lines) == (12, 0)
    assert list(other.export_lines()) == [line.replace('"state":"queued"', '"state":"cancelled"') for line in lines]
    for job in ("one", "two"):
        for task in range(2):
            mine, theirs = store.trials(job, task, limit=9), other.trials(job, task, limit=9)
            assert [row.record.trial for row in mine] == [row.record.trial for row in theirs]
            assert [row.record.created_at for row in mine] == [row.record.created_at for row in theirs]
        kept = other.job(job)
        assert (kept.state, kept.budget, kept.seed) == ("cancelled", Budget(9, None, 3), 5)
        assert kept.policy == POLICIES[job]
        assert [task.trials for task in kept.tasks] == [3, 3]
        assert kept.tasks[0].failures == {"check:wrong_result": 1}
    for mine, theirs in zip(*(one.answers_anywhere([TASKS[1].workload_key]) for one in (store, other)), strict=True):
        assert mine.schedule_key == theirs.schedule_key == trial(2).schedule.key
        assert json.loads(mine.answer) == json.loads(theirs.answer)
    assert other.measured(ON.device.key) == {"copy_bytes_per_second": 1e10}


def test_the_unit_of_a_record_travels_with_it(store: RecordStore, other: RecordStore) -> None:
    store.create_job(NewJob("gpu", "queued", TASKS, Budget(9), "model", 5, "a" * 64, "local", "cold"))
    store.add_trial(NewTrial("gpu", 0, 0, "", ON, trial(0), 0.0, None, "GPU-1", "h1"))
    lines = list(store.export_lines())
    assert '"unit":"GPU-1","host":"h1"' in lines[-1] and "host" not in lines[-3]
    other.import_lines(lines)
    (row,) = other.trials("gpu", 0, limit=9)
    assert (row.unit, row.host, other.job("gpu").target) == ("GPU-1", "h1", "a" * 64)
    lines[-1] = lines[-1].replace("GPU-1", "")
    with pytest.raises(InvalidParameter, match="it has 1 to 64 characters"):
        other.import_lines(lines)


def test_a_copy_stays_a_copy_of_the_record_that_was_measured(store: RecordStore, other: RecordStore) -> None:
    """It keeps the unit and the host of the one that it was adopted from, too."""
    store.create_job(NewJob("gpu", "queued", TASKS, Budget(9), "model", 5, "llvm", "local", "cold"))
    store.add_trial(NewTrial("gpu", 0, 0, "", ON, trial(5), 0.0, None, "GPU-1", "h1"))
    store.create_job(NewJob("again", "queued", TASKS, Budget(9), "model", 5, "llvm", "local", "cold"))
    held = store.fleet.claim_task(["llvm"], "local", "o", units=[], seconds=600.0)
    while held is not None and (held.job_id, held.task) != ("again", 0):
        held = store.fleet.claim_task(["llvm"], "local", "o", units=[], seconds=600.0)
    assert held is not None
    adopted = store.fleet.adopt_known(
        held.lease,
        device_key=ON.device.key,
        toolchain_key=ON.toolchain.key,
        profile=str(ON.profile),
        sketches={"loops": 1},
    )
    assert adopted == 4
    lines = list(store.export_lines())
    assert '"adopted_from":{"job":"gpu","task":0,"sequence":0}' in lines[-1]
    other.import_lines(lines)
    copies, mine = other.trials("again", 0, limit=9), store.trials("again", 0, limit=9)
    assert [(row.unit, row.host) for row in copies] == [(row.unit, row.host) for row in mine]
    (origin,) = other.trials("gpu", 0, limit=9)
    assert copies[-1].adopted_from == origin.record.id and all(row.adopted_from for row in copies)
    assert other.job("again").tasks[0].adopted == 4
    assert list(other.export_lines())[-1] == lines[-1]
    lost = lines[-1].replace('"sequence":0}', '"sequence":7}').replace('"sequence":3', '"sequence":4')
    with pytest.raises(InvalidParameter, match="the record that it is a copy of"):
        other.import_lines([*lines, lost])


def test_records_enter_once(store: RecordStore, other: RecordStore) -> None:
    lines = list(store.export_lines())
    assert other.import_lines(lines[: len(lines) // 2])[0] > 0
    assert sum(other.import_lines(lines)) == 12
    assert other.import_lines(lines) == (0, 12)
    assert store.import_lines(lines) == (0, 12)  # back where they came from


def test_a_job_of_our_own_is_not_continued_from_outside(store: RecordStore, other: RecordStore) -> None:
    fresh = NewJob("one", "queued", TASKS, Budget(9, None, 3), "model", 5, "llvm", "local", "cold")
    other.create_job(fresh)
    with pytest.raises(InvalidParameter, match="this database's own"):
        other.import_lines(store.export_lines())
    assert other.newest_record() == 0


@pytest.mark.postgres
def test_records_move_to_postgresql_and_back(store: RecordStore, other: RecordStore, postgres: PostgresServer) -> None:
    lines = list(store.export_lines())
    address = postgres.url()
    database = Database(parse_url(address))
    migrate.upgrade(database)
    database.close()
    with RecordStore(address) as between:
        assert between.import_lines(lines) == (12, 0)
        other.import_lines(between.export_lines())
    assert [json.loads(line) for line in other.export_lines()] == [
        json.loads(line.replace('"state":"queued"', '"state":"cancelled"')) for line in lines
    ]


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        "{}",
        '{"kind":"virus"}',
        '{"kind":"workload","key":"a","data":null}',
        '{"kind":"workload","key":"a"}',
        '{"kind":"record"}',
        "[" * 100_000,
        '{"kind":"device","key":"a","data":{"name":1}}',
        '{"kind":"toolchain","key":"a","data":{"llvm":20}}',
        '{"kind":"toolchain","key":"a","data":{"llvm":"20"}}',
        '{"kind":"toolchain","key":NaN,"data":{}}',
    ],
)
def test_a_line_that_is_none_is_refused_by_number(store: RecordStore, other: RecordStore, line: str) -> None:
    lines = [*store.export_lines(), line]
    with pytest.raises(InvalidParameter, match=f"^line {len(lines)}: ") as caught:
        other.import_lines(lines)
    assert "\n" not in caught.value.message
    assert other.newest_record() == 0 and other.devices() == ()


def test_a_damaged_file_never_does_more_than_be_refused(store: RecordStore, other: RecordStore) -> None:
    lines = [json.loads(line) for line in store.export_lines() if '"job":"two"' not in line]
    draws = stream(5, "damage")
    junk: tuple[object, ...] = (None, -1, 1 << 70, 1.5, "", "x" * 100, [], {}, True, "a\x00b", "\ud800")
    refused = 0
    for _ in range(120):
        damaged = copy.deepcopy(lines)
        victim = damaged[int(draws.integers(len(damaged)))]
        while True:
            names = sorted(victim)
            name = names[int(draws.integers(len(names)))]
            if not isinstance(victim[name], dict) or not victim[name] or draws.random() < 0.3:
                break
            victim = victim[name]
        before = victim[name]
        victim[name] = copy.deepcopy(junk[int(draws.integers(len(junk)))])
        if victim[name] == before:
            continue
        try:
            other.import_lines(json.dumps(line) for line in damaged)
        except InvalidParameter as error:
            refused += 1
            assert error.message.startswith("line ")
        else:
            with other.database.writing() as connection:  # a change that is legal too: start afresh
                for table in ("trials", "tasks", "jobs"):
                    connection.exec_driver_sql(f"DELETE FROM {table}")
        assert other.newest_record() == 0
    assert refused > 60
