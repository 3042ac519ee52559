"""Units that come, fail and go while one task is measured on several."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from tilewright.core.errors import TilewrightError, WorkerLost
from tilewright.core.schedule import Schedule
from tilewright.core.target import Toolchain
from tilewright.core.trial import Trial
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload
from tilewright.tests.service.simulated import SimulatedExecutor, simulated_unit
from tilewright.workers import joint_executor
from tilewright.workers.joint_executor import JointExecutor
from tilewright.workers.losses import DeviceLost

WORK = OPERATORS["matmul"].workload({"m": 8, "n": 8, "k": 8})
SCHEDULES = [Schedule.of("loops", 1, {"tile": n}) for n in range(60)]


class Failing(SimulatedExecutor):
    """It is lost with its third candidate."""

    def measure(self, workload: Workload, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        for position, trial in super().measure(workload, schedules):
            if position == 2:
                raise DeviceLost("planted")
            yield position, trial


class Endless(SimulatedExecutor):
    """No candidate of it is ever done."""

    def measure(self, workload: Workload, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        next(iter(schedules))
        while True:
            self.heartbeat()
            yield from ()


class Other(SimulatedExecutor):
    """Its toolchain is not that of the others."""

    def __init__(self, *about: object) -> None:
        super().__init__(*about)  # type: ignore[arg-type]
        self.measured_on = replace(self.measured_on, toolchain=Toolchain({"simulated": "2"}))


def unit(number: int, kind: type[SimulatedExecutor] = SimulatedExecutor) -> SimulatedExecutor:
    return kind(simulated_unit(number), "warm", 0.002)


class Joined:
    """Two units, of which the second one is of a ``kind``. It joins at once, and again after it has left, unless it was
    lost; ``leave_after`` so many trials of all it is dismissed."""

    def __init__(self, kind: type[SimulatedExecutor], leave_after: int = 1000) -> None:
        self.executor = JointExecutor(unit(0), "first", ahead=4)
        self.executor.adjust = self._adjust
        self.ends: list[TilewrightError | None] = []
        self.opened = 0
        self.seen: Counter[str | None] = Counter()
        self._kind = kind
        self._leave_after = leave_after

    def run(self, seen: Callable[[], object] = lambda: None) -> None:
        positions = []
        for position, trial in self.executor.measure(WORK, SCHEDULES):
            positions.append(position)
            assert trial.schedule == SCHEDULES[position]
            self.seen[trial.unit] += 1
            seen()
        assert sorted(positions) == list(range(len(SCHEDULES)))

    def _adjust(self) -> None:
        if "second" in self.executor.units:
            if self.seen.total() >= self._leave_after:
                self.executor.dismiss("second")
        elif not self.opened:
            self.executor.add("second", self._open, self.ends.append)
            self.opened += 1

    def _open(self) -> SimulatedExecutor:
        return unit(1, self._kind)


def test_two_units_share_the_candidates_of_one_call() -> None:
    joined = Joined(SimulatedExecutor)
    joined.run()
    assert set(joined.seen) == {"first", "second"} and joined.ends == [None]


@pytest.mark.parametrize(("kind", "error"), [(Failing, DeviceLost), (Other, WorkerLost)])
def test_what_a_lost_unit_had_is_measured_by_another(kind: type[SimulatedExecutor], error: type[Exception]) -> None:
    joined = Joined(kind)
    joined.run()
    assert [type(end) for end in joined.ends] == [error]
    assert joined.seen["second"] == (2 if kind is Failing else 0)


@pytest.mark.parametrize("kind", [SimulatedExecutor, Endless])
def test_a_unit_that_is_dismissed_leaves_whatever_it_does(
    kind: type[SimulatedExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint_executor, "LEAVE_SECONDS", 0.0)
    joined = Joined(kind, leave_after=20)
    joined.run()
    assert joined.ends == [None] and joined.seen["first"] >= 30


def test_the_loss_of_the_first_unit_ends_the_call() -> None:
    executor = JointExecutor(unit(0, Failing), "first")
    with pytest.raises(DeviceLost, match="planted"):
        list(executor.measure(WORK, SCHEDULES))
    with pytest.raises(DeviceLost, match="planted"):  # it can be used again
        list(executor.measure(WORK, SCHEDULES))


def test_an_error_of_the_heartbeat_ends_the_call_and_all_units() -> None:
    joined = Joined(SimulatedExecutor)

    def stop() -> None:
        raise KeyError("stop")

    def seen() -> None:
        if joined.seen.total() == 10:
            joined.executor.heartbeat = stop

    with pytest.raises(KeyError, match="stop"):
        joined.run(seen)
    assert joined.executor.units == () and joined.ends == [None]
