"""What waiting tasks wait for, and when they are expected to begin."""

from dataclasses import replace

from tilewright.core.fleet import TaskState, Unit, UnitState
from tilewright.db.rows import QueueRow, UnitRow
from tilewright.service.waiting import expected_starts, serving, waits_for, why_no_unit
from tilewright.tests.db.fleets import CPU, GPU

NOW = 1000.0
READY = QueueRow("job", 0, "default", "cuda", "local", TaskState.READY, 0, 0.0, 0, 64)


def unit(number: int, executor: str = "local", state: UnitState = UnitState.READY, seen: bool = True) -> UnitRow:
    one = Unit(f"GPU-{number}", GPU, "h1", executor, number)
    return UnitRow(one, state, None, 0.0, NOW + 30 if seen else NOW - 1, {}, None, None, 0)


def running(number: int, trials: int) -> QueueRow:
    return replace(READY, state=TaskState.LEASED, trials=trials, units=(f"GPU-{number}",))


def test_a_unit_serves_its_kind_its_architecture_its_device_and_its_number() -> None:
    rows = [unit(0), unit(1)]
    for target in ("cuda", "cuda:sm_90a", GPU.key):
        assert serving(target, "local", rows) == rows
    assert serving("cuda:1", "local", rows) == rows[1:]
    assert serving("cuda:sm_80", "local", rows) == serving(CPU.key, "local", rows) == []


def test_units_of_a_cluster_serve_the_tasks_of_ray_alone() -> None:
    here, there = unit(0), unit(1, "ray")
    assert serving("cuda", "local", [here, there]) == [here]
    assert serving("cuda", "ray", [here, there]) == [there]
    assert serving("cuda", "ray", [here]) == [here]  # there is no cluster: its host starts a Ray of its own
    assert serving("cuda", "local", [there]) == []


def test_why_there_is_no_unit_is_said_with_the_states_of_those_that_serve() -> None:
    assert why_no_unit("cuda", "local", [], NOW) == "no unit of the fleet serves cuda"
    assert why_no_unit("cuda", "local", [unit(0), unit(1, state=UnitState.LOST)], NOW) is None
    bad = [unit(0, seen=False), unit(1, state=UnitState.QUARANTINED), unit(2, state=UnitState.QUARANTINED)]
    assert why_no_unit("cuda", "local", bad, NOW) == "no unit that serves cuda is ready: 1 lost, 2 quarantined"


def test_blocked_tasks_say_on_what() -> None:
    blocked = (TaskState.BLOCKED, "cuda", "local")
    assert waits_for(*blocked, None, [], NOW) == "its job is paused"
    assert waits_for(*blocked, ("other", 2), [], NOW) == "an equal task is searched: task 2 of job other"
    assert waits_for(TaskState.LEASED, "cuda", "local", None, [], NOW) is None


def test_tasks_begin_on_the_unit_that_is_free_first() -> None:
    queue = [running(0, 48), running(1, 16), READY, READY, READY]
    starts = expected_starts(queue, [unit(0), unit(1)], {"cuda": 40.0}, NOW)
    assert starts == [None, None, NOW + 10, NOW + 30, NOW + 50]


def test_what_is_not_known_is_not_guessed() -> None:
    assert expected_starts([READY, READY], [unit(0)], {}, NOW) == [NOW, None]
    assert expected_starts([running(0, 0), READY], [unit(0)], {}, NOW) == [None, None]
    assert expected_starts([READY], [unit(0, state=UnitState.DRAINING)], {"cuda": 1.0}, NOW) == [None]
    draining = [unit(0, state=UnitState.DRAINING), unit(1)]
    assert expected_starts([running(0, 0), READY], draining, {"cuda": 9.0}, NOW) == [None, NOW]
    blocked = replace(READY, state=TaskState.BLOCKED)
    assert expected_starts([blocked, READY], [unit(0)], {"cuda": 9.0}, NOW) == [None, NOW]
