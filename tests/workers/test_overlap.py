"""Where a device times while the processor builds: candidates flow without a pause, and what is built ahead is used."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tilewright.core.errors import WorkerLost
from tilewright.core.schedule import Schedule
from tilewright.core.trial import Failed, Timed
from tilewright.runtime.devices import host_target
from tilewright.tests.contracts.test_executors import FAULTY
from tilewright.tests.workers.faulty_kernels import add_one
from tilewright.workers.local import LocalExecutor

AHEAD = 5


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    with LocalExecutor(host_target(), settings=replace(FAULTY, ahead=AHEAD, builders=2)) as opened:
        opened.overlaps = True  # the processor stands for a device of its own: only its times suffer
        yield opened


def numbered(fault: str, number: int) -> Schedule:
    return Schedule.of("hand_made", 1, {"fault": fault, "number": number})


def test_a_new_one_is_drawn_whenever_one_has_ended(executor: LocalExecutor) -> None:
    drawn: list[int] = []

    def source() -> Iterator[Schedule]:
        for n in range(12):
            drawn.append(n)
            yield numbered("wrong" if n == 3 else "builder_exits" if n == 5 else "good", n)

    ended: dict[int, object] = {}
    for position, trial in executor.measure(add_one(), source()):
        assert trial.schedule["number"] == position
        ended[position] = trial.outcome
        assert len(drawn) <= len(ended) + AHEAD
    assert sorted(ended) == list(range(12))
    assert [n for n, o in ended.items() if isinstance(o, Failed)] == [n for n in ended if n in (3, 5)]


def test_what_was_built_ahead_is_taken_once(executor: LocalExecutor) -> None:
    chosen = [numbered("good", n) for n in (100, 101)]
    executor.prefetch(add_one("float64"), chosen)
    executor.prefetch(add_one("float64"), chosen)
    assert len(executor._ahead) == 2
    found = dict(executor.measure(add_one("float64"), chosen))
    assert all(isinstance(t.outcome, Timed) for t in found.values()) and not executor._ahead


def test_what_was_built_ahead_survives_an_early_close(executor: LocalExecutor) -> None:
    executor.prefetch(add_one("int32"), [numbered("good", n) for n in range(6)])
    results = executor.measure(add_one(), [numbered("good", 7), *[numbered("loops_for_ever", n) for n in range(3)]])
    next(results)
    results.close()  # type: ignore[attr-defined]
    found = dict(executor.measure(add_one("int32"), [numbered("good", n) for n in range(6)]))
    assert len(found) == 6 and all(isinstance(t.outcome, Timed) for t in found.values())


def test_a_builder_that_does_not_start_is_told_when_its_candidate_comes() -> None:
    settings = replace(FAULTY, builder="tilewright.no_such_module:build", builders=1)
    with LocalExecutor(host_target(), settings=settings) as executor:
        executor.overlaps = True
        executor.prefetch(add_one(), [numbered("good", 0)])
        with pytest.raises(WorkerLost, match="no_such_module"):
            list(executor.measure(add_one(), [numbered("good", 0)]))
