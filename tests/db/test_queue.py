"""Who has the next task: fair share between tenants, priorities, ageing, quotas; and what a claim costs."""

import heapq
from collections import Counter

import pytest
from sqlalchemy import text

from tilewright.core.errors import InvalidParameter, QuotaExceeded
from tilewright.core.fleet import AttemptEnd, TaskClaim, TaskState, Wanted
from tilewright.db import tenants, wanted
from tilewright.db.claims import AGE_SECONDS, next_ready
from tilewright.db.store import RecordStore
from tilewright.tests.db.fleets import claim, claimed, finish, gpus, measure, submit, wait

WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 4.0}


def weigh(store: RecordStore, **weights: float) -> None:
    for name, weight in weights.items():
        store.fleet.set_tenant(name, weight=weight, most_units=None, most_queued=None)


def simulated(store: RecordStore, units: list[str], claims: int, running: list[tuple[float, int, TaskClaim]]) -> None:
    """Let each unit take one task after the other, each of a single trial of 10 or 20 seconds, until so many more were
    claimed. ``running`` is a heap of (end in simulated seconds, number, task), and holds what runs afterwards."""
    number = max((number for _, number, _ in running), default=0)
    for _ in range(claims):
        now, unit = 0.0, units[len(running)] if len(running) < len(units) else ""
        if not unit:
            now, _, done = heapq.heappop(running)
            unit = store.fleet.attempts(done.job_id, done.task)[-1].units[0]
            finish(store, done)
        held = claimed(store, unit=unit)
        number += 1
        spent = 10.0 + 10.0 * (number % 2)
        measure(store, held, spent=spent)
        heapq.heappush(running, (now + spent, number, held))


def spent_by_tenant(store: RecordStore) -> dict[str, float]:
    return {row.name: row.virtual_seconds * row.weight for row in store.fleet.tenants()}


def test_tenants_share_the_units_by_their_weights(fleet_store: RecordStore) -> None:
    weigh(fleet_store, **WEIGHTS)
    for name in WEIGHTS:
        submit(fleet_store, name, 90, tenant=name)
    units, running = gpus(fleet_store, 8), list[tuple[float, int, TaskClaim]]()
    simulated(fleet_store, units, 8, running)
    held = Counter(claim.job_id for _, _, claim in running)
    assert held == {"a": 1, "b": 1, "c": 2, "d": 4}  # units that are free at once do not all go to one
    simulated(fleet_store, units, 160, running)
    spent = spent_by_tenant(fleet_store)
    total, weights = sum(spent.values()), sum(WEIGHTS.values())
    for name, weight in WEIGHTS.items():
        assert spent[name] / total == pytest.approx(weight / weights, abs=0.02)


def test_a_tenant_that_was_idle_neither_saved_time_up_nor_owes_any(fleet_store: RecordStore) -> None:
    units, running = gpus(fleet_store, 4), list[tuple[float, int, TaskClaim]]()
    submit(fleet_store, "a", 90, tenant="a")
    submit(fleet_store, "b", 90, tenant="b")
    simulated(fleet_store, units, 40, running)
    before = spent_by_tenant(fleet_store)
    submit(fleet_store, "late", 90, tenant="late")
    entered = {row.name: row.virtual_seconds for row in fleet_store.fleet.tenants()}
    assert entered["late"] == min(entered["a"], entered["b"])
    simulated(fleet_store, units, 60, running)
    since = {name: spent - before.get(name, entered["late"]) for name, spent in spent_by_tenant(fleet_store).items()}
    for name in ("a", "b", "late"):
        assert since[name] / sum(since.values()) == pytest.approx(1 / 3, abs=0.05)


def test_when_nobody_works_all_start_again_from_the_same_time(fleet_store: RecordStore) -> None:
    submit(fleet_store, "a", tenant="a")
    held = claimed(fleet_store)
    measure(fleet_store, held, spent=1000.0)
    finish(fleet_store, held)
    submit(fleet_store, "b", 2, tenant="b")
    submit(fleet_store, "a2", 2, tenant="a")
    assert {row.name: row.virtual_seconds for row in fleet_store.fleet.tenants()}["b"] == 1000.0
    assert {claimed(fleet_store, unit=f"u{i}").job_id for i in range(2)} == {"a2", "b"}


def test_priority_decides_within_a_tenant_and_age_between_equals(fleet_store: RecordStore) -> None:
    for name, priority in (("old", 0), ("low", -1), ("high", 2), ("new", 0)):
        submit(fleet_store, name, priority=priority)
    submit(fleet_store, "theirs", tenant="other", priority=-100)  # a priority is nothing to other tenants
    fleet_store.fleet.set_priority("new", 1)
    foretold = [row.job_id for row in fleet_store.fleet.queue(limit=9)]
    taken = [claimed(fleet_store, unit=f"u{i}").job_id for i in range(5)]
    assert [name for name in taken if name != "theirs"] == ["high", "new", "old", "low"]
    assert taken.index("theirs") == 1 and foretold == taken
    assert fleet_store.job("new").priority == 1


def test_waiting_raises_the_priority_by_two_steps_at_most(fleet_store: RecordStore) -> None:
    submit(fleet_store, "low", priority=-1)
    submit(fleet_store, "usual")

    def priorities() -> tuple[int, int]:
        return (fleet_store.job("low").tasks[0].priority, fleet_store.job("usual").tasks[0].priority)

    for steps in (0, 1, 2, 2):
        fleet_store.fleet.reap()
        assert priorities() == (steps - 1, steps)
        wait(fleet_store, AGE_SECONDS)
    submit(fleet_store, "later", priority=1)
    assert [claimed(fleet_store).job_id for _ in range(2)] == ["usual", "low"]
    held = claimed(fleet_store)
    wait(fleet_store, 2 * AGE_SECONDS)  # a task that runs does not age
    fleet_store.fleet.reap()
    fleet_store.fleet.end_attempt(held.lease, AttemptEnd.YIELDED)
    assert fleet_store.job("later").tasks[0].priority == 1


def test_nobody_starves(fleet_store: RecordStore) -> None:
    """A task of low priority is claimed though more urgent ones keep coming, as long as they are two steps more urgent
    at most."""
    submit(fleet_store, "low")
    for number in range(30):
        submit(fleet_store, f"urgent{number}", priority=2)
        held = claimed(fleet_store)
        if held.job_id == "low":
            break
        measure(fleet_store, held)
        finish(fleet_store, held)
        wait(fleet_store, AGE_SECONDS / 10)
        fleet_store.fleet.reap()
    assert held.job_id == "low" and number > 10


def test_a_tenant_holds_no_more_units_than_it_may(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    fleet.set_tenant("a", weight=1.0, most_units=2, most_queued=None)
    submit(fleet_store, "a", 4, tenant="a")
    held = [claimed(fleet_store, unit=f"u{i}") for i in range(2)]
    assert claim(fleet_store, unit="u2") is None
    (row,) = [row for row in fleet.tenants() if row.name == "a"]
    assert (row.units, row.running, row.waiting, row.most_units) == (2, 2, 2, 2)
    fleet.end_attempt(held[0].lease, AttemptEnd.YIELDED)
    assert fleet.claim_task(["cuda"], "local", "o", units=["u0", "u2"], seconds=60.0) is None
    assert claim(fleet_store, unit="u2") is not None
    submit(fleet_store, "b", tenant="b")
    assert claimed(fleet_store, unit="u0").job_id == "b"


def test_a_queue_that_is_full_is_told_and_keeps_nothing(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    fleet.set_tenant("a", weight=1.0, most_units=None, most_queued=3)
    submit(fleet_store, "one", 2, tenant="a")
    submit(fleet_store, "theirs", 9, tenant="b")
    with pytest.raises(QuotaExceeded, match="2 tasks of tenant 'a' are queued and 2 more were given; allowed: 3"):
        submit(fleet_store, "two", 2, tenant="a")
    assert [job.id for job in fleet_store.jobs(limit=9)] == ["theirs", "one"]
    held = claimed(fleet_store)
    assert held.job_id == "one"  # what runs does not wait
    submit(fleet_store, "two", 2, tenant="a")
    fleet.pause_job("one")
    with pytest.raises(QuotaExceeded):
        submit(fleet_store, "three", tenant="a")


@pytest.mark.parametrize(
    ("name", "weight", "quota", "said"),
    [
        ("a", 0.0, None, "weight 0.0; allowed: over 0"),
        ("a", float("nan"), None, "weight nan"),
        ("a", 1.0, -1, "most_units of -1; allowed: 0 to"),
        ("", 1.0, None, "name of 0 characters"),
        ("a" * 65, 1.0, None, "name of 65 characters"),
    ],
)
def test_a_tenant_has_a_name_a_weight_and_quotas(
    fleet_store: RecordStore, name: str, weight: float, quota: int | None, said: str
) -> None:
    with pytest.raises(InvalidParameter, match=said):
        fleet_store.fleet.set_tenant(name, weight=weight, most_units=quota, most_queued=None)


def test_a_task_is_claimed_by_whoever_serves_its_target(fleet_store: RecordStore) -> None:
    submit(fleet_store, "any", target="cuda")
    submit(fleet_store, "hopper", target="cuda:sm_90a", priority=1)
    submit(fleet_store, "cpu", target="llvm", priority=2)
    submit(fleet_store, "ray", executor="ray", priority=3)
    ampere, hopper = ("cuda", "cuda:sm_80"), ("cuda", "cuda:sm_90a")
    assert [claim(fleet_store, targets=("cuda:sm_80",)), claim(fleet_store, targets=())] == [None, None]
    first = claim(fleet_store, targets=hopper)
    assert first is not None and first.job_id == "hopper"
    second = claim(fleet_store, targets=ampere)
    assert second is not None and second.job_id == "any"
    assert claim(fleet_store, targets=hopper) is None
    rest = [(row.job_id, row.state) for row in fleet_store.fleet.queue(limit=9)][2:]
    assert sorted(rest) == [("cpu", TaskState.READY), ("ray", TaskState.READY)]
    assert len(fleet_store.fleet.queue(limit=3)) == 3


def test_a_more_urgent_task_takes_the_place_of_the_youngest(
    fleet_store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = fleet_store.fleet
    submit(fleet_store, "j", 3)
    held = [claimed(fleet_store) for _ in range(3)]
    submit(fleet_store, "urgent", priority=1)
    submit(fleet_store, "theirs", priority=9, tenant="other")

    def told() -> list[Wanted]:
        return [fleet.wanted(one.lease) for one in held]

    assert told() == [Wanted.GO] * 3  # nobody gives way before it had its time
    monkeypatch.setattr(wanted, "SLICE_SECONDS", 0.0)
    assert told() == [Wanted.GO] * 3  # a unit may become free
    wait(fleet_store, wanted.PATIENCE_SECONDS)
    assert told() == [Wanted.GO, Wanted.GO, Wanted.YIELD]
    assert measure(fleet_store, held[2]).wanted is Wanted.YIELD
    fleet.end_attempt(held[2].lease, AttemptEnd.YIELDED)
    taken = {claimed(fleet_store, unit=f"u{i}").job_id for i in range(2)}
    assert taken == {"theirs", "urgent"}
    held.pop()
    assert told() == [Wanted.GO] * 2


def plans(store: RecordStore, *statements: object) -> list[str]:
    """Return how PostgreSQL would run these statements."""
    engine = store.database.engine
    with store.database.reading() as connection:
        return [
            "\n".join(connection.exec_driver_sql(f"EXPLAIN {_literal(statement, engine)}").scalars())
            for statement in statements
        ]


def _literal(statement: object, engine: object) -> str:
    compiled = statement.compile(engine, compile_kwargs={"literal_binds": True})  # type: ignore[attr-defined]
    return str(compiled).replace("%", "%%")


@pytest.mark.postgres
def test_a_claim_among_ten_thousand_tasks_reads_one_entry_of_an_index(shared_store: RecordStore) -> None:
    submit(shared_store, "j")
    with shared_store.database.writing() as connection:
        connection.execute(
            text(
                "INSERT INTO tasks (job, position, workload, trials, failures, target, executor, tenant, priority) "
                "SELECT job, i, workload, 0, '{}', CASE i % 3 WHEN 0 THEN 'llvm' ELSE 'cuda' END, 'local', "
                "'tenant' || i % 4, i % 5 FROM tasks, generate_series(1, 10000) AS i"
            )
        )
        connection.execute(text("INSERT INTO tenants (name) SELECT 'tenant' || i FROM generate_series(0, 3) AS i"))
    with shared_store.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))
    head = next_ready("tenant1", "cuda", "local").with_for_update(key_share=True, skip_locked=True)
    (plan, turn) = plans(shared_store, head, tenants.turn_query(["cuda", "cuda:sm_90a"], "local"))
    assert "Index Scan using ix_tasks_claim" in plan and "Sort" not in plan and "Seq Scan" not in plan
    assert "ix_tasks_claim" in turn and "Seq Scan on tasks" not in turn
    assert [claimed(shared_store).task for _ in range(2)] == [0, 4]
