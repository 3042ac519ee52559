"""An executor over several units of one class: the candidates of one task go to whichever unit is free.

It has the interface of ``executor.Executor``, and drives one such executor for each unit, on a thread of its own:

    caller's thread    draws schedules, so many for each unit ahead of their results, and gives the trials back
    a unit's thread    takes the next schedule that nobody has, and measures it
    the first unit     is there from the beginning, and alone does all but ``measure``: what is compared in the end is
                       timed on one unit
    further units      come and go between two trials (``add``, ``dismiss``). What one leaves undone goes to another
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from ..codegen.backend import CompiledKernel
from ..core.errors import TilewrightError, WorkerLost
from ..core.record import MeasuredOn
from ..core.schedule import Schedule
from ..core.trial import Timed, Trial
from ..te.workload import Workload
from .executor import HEARTBEAT_SECONDS
from .lease_guard import Allowed, always
from .settings import ExecutorSettings

LEAVE_SECONDS = 2.0
"""A unit that is dismissed while it builds, so that no trial of it ends, is given up after so long."""


class UnitExecutor(Protocol):
    """What drives one unit; see ``executor.Executor``."""

    heartbeat: Callable[[], object]
    allowed: Allowed

    @property
    def overlaps(self) -> bool: ...

    @property
    def measured_on(self) -> MeasuredOn: ...

    def prefetch(self, workload: Workload, schedules: Sequence[Schedule] = ()) -> None: ...

    def measure(self, workload: Workload, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]: ...

    def remeasure(self, workload: Workload, schedules: Sequence[Schedule]) -> Sequence[tuple[float, ...]]: ...

    def binary(self, schedule: Schedule) -> CompiledKernel | None: ...

    def baseline(self, operator: str, parameters: Mapping[str, object]) -> Timed | None: ...

    def peaks(self) -> dict[str, float]: ...

    def abandon(self) -> None: ...

    def close(self) -> None: ...


class _Left(Exception):
    """A unit is given up in the middle of what it does."""


@dataclass(eq=False)
class _Member:
    """Holds what is known of one unit. ``held`` are the candidates that it has, by position."""

    unit: str
    open: Callable[[], UnitExecutor]
    gone: Callable[[TilewrightError | None], object]
    is_first: bool = False
    executor: UnitExecutor | None = None
    thread: threading.Thread | None = None
    left_at: float | None = None
    held: dict[int, Schedule] = field(default_factory=dict)


@dataclass(frozen=True)
class _Gone:
    member: _Member
    error: BaseException | None


class _Work:
    """What one call of ``measure`` has under way. ``drawn`` and ``returned`` are for the caller's thread, all else for
    those of the units as well."""

    def __init__(self, workload: Workload, schedules: Iterable[Schedule]) -> None:
        self.workload = workload
        self.events: queue.SimpleQueue[tuple[int, Trial] | _Gone] = queue.SimpleQueue()
        self.drawn = self.returned = 0
        self.stopping = False
        self._source = iter(schedules)
        self._drained = False
        self._limit = self._under_way = 0
        self._ready: deque[tuple[int, Schedule]] = deque()
        self._changed = threading.Condition()

    @property
    def is_over(self) -> bool:
        return self._drained and self.drawn == self.returned

    def fill(self, limit: int) -> None:
        """Draw schedules until so many are without a result that the caller has seen, or there are no more."""
        self._limit = limit
        while not self._drained and self.drawn - self.returned < limit:
            schedule = next(self._source, None)
            with self._changed:
                if schedule is None:
                    self._drained = True
                else:
                    self._ready.append((self.drawn, schedule))
                    self._under_way += 1
                    self.drawn += 1
                self._changed.notify_all()

    def source(self, member: _Member, given: list[int]) -> Iterator[Schedule]:
        """Yield what nobody else has, and note its positions in ``given``. It ends where a unit would wait for what
        only its own results can bring."""
        while True:
            with self._changed:
                while not self._ready:
                    if self._ends_for(member) or self._drained or self._under_way >= self._limit:
                        return
                    self._changed.wait(HEARTBEAT_SECONDS)
                if self._ends_for(member):
                    return
                position, schedule = self._ready.popleft()
                member.held[position] = schedule
                given.append(position)
            yield schedule

    def has_more(self, member: _Member) -> bool:
        """Wait for a candidate that nobody has. False: there will be none for this unit."""
        with self._changed:
            while not self._ready and not self._ends_for(member):
                self._changed.wait(HEARTBEAT_SECONDS)
            return not self._ends_for(member)

    def put(self, member: _Member, position: int, trial: Trial) -> None:
        with self._changed:
            del member.held[position]
            self._under_way -= 1
            self.events.put((position, trial))
            self._changed.notify_all()

    def leave(self, member: _Member, error: BaseException | None) -> None:
        """A unit has ended. What it has not done goes to the others, in the order in which it was drawn."""
        with self._changed:
            self._ready.extendleft(reversed(sorted(member.held.items())))
            member.held.clear()
            self.events.put(_Gone(member, error))
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def _ends_for(self, member: _Member) -> bool:
        return self.stopping or member.left_at is not None


class JointExecutor:
    """A Measurer over the unit of ``first``, whose name is ``unit``, and over others while ``measure`` runs. ``ahead``
    candidates are under way for each unit; by default, as many as an executor of one has. ``adjust``
    is called in the caller's thread between trials and in every wait of ``measure``: it may ``add`` and ``dismiss``.
    ``close`` closes ``first`` too. For the other hooks see ``executor.Executor``."""

    def __init__(self, first: UnitExecutor, unit: str, *, ahead: int | None = None) -> None:
        self.heartbeat: Callable[[], object] = lambda: None
        self.allowed: Allowed = always
        self.adjust: Callable[[], object] = lambda: None
        self._ahead = ExecutorSettings().ahead if ahead is None else ahead
        self._first = first
        self._unit = unit
        self._members: dict[str, _Member] = {}
        self._work: _Work | None = None
        self._take_first_back()

    @property
    def units(self) -> tuple[str, ...]:
        """The units that measure now and have not been dismissed, the first one before the others."""
        return tuple(unit for unit, member in self._members.items() if member.left_at is None)

    def add(
        self, unit: str, open_unit: Callable[[], UnitExecutor], gone: Callable[[TilewrightError | None], object]
    ) -> None:
        """Let another unit measure as well. ``open_unit`` is called in its thread; the executor is closed when it has
        left. ``gone`` is called then, in the caller's thread, with what went wrong if anything did, after the trials
        that the unit has brought."""
        assert self._work is not None and unit not in self._members
        self._start(_Member(unit, open_unit, gone), self._work)

    def dismiss(self, unit: str) -> None:
        """Let a unit go after the trial that it is timing. It has left when its ``gone`` is called."""
        member = self._members[unit]
        if member.left_at is None and not member.is_first:
            member.left_at = time.monotonic()

    def measure(self, workload: Workload, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        """See ``search.measurer.Measurer``. Raises what the first unit raises. A further unit that is lost leaves."""
        work = self._work = _Work(workload, schedules)
        try:
            self._start(_Member(self._unit, lambda: self._first, lambda error: None, is_first=True), work)
            while True:
                self.adjust()
                work.fill(self._ahead * len(self.units))
                if work.is_over:
                    return
                event = self._next_event(work)
                if isinstance(event, _Gone):
                    self._ended(event)
                else:
                    work.returned += 1
                    yield event
        finally:
            self._stop(work)

    def prefetch(self, workload: Workload, schedules: Sequence[Schedule] = ()) -> None:
        """See ``executor.Executor``."""
        self._first.prefetch(workload, schedules)

    def remeasure(self, workload: Workload, schedules: Sequence[Schedule]) -> Sequence[tuple[float, ...]]:
        """See ``search.measurer.Measurer``. All are timed on the first unit."""
        return self._first.remeasure(workload, schedules)

    def binary(self, schedule: Schedule) -> CompiledKernel | None:
        """See ``executor.Executor``."""
        executors = [self._first, *(member.executor for member in list(self._members.values()) if not member.is_first)]
        found = (executor.binary(schedule) for executor in executors if executor is not None)
        return next((binary for binary in found if binary is not None), None)

    def baseline(self, operator: str, parameters: Mapping[str, object]) -> Timed | None:
        """See ``executor.Executor``."""
        return self._first.baseline(operator, parameters)

    def peaks(self) -> dict[str, float]:
        """See ``executor.Executor``."""
        return self._first.peaks()

    @property
    def measured_on(self) -> MeasuredOn:
        """See ``executor.Executor``. Units on which this is other leave at once."""
        return self._first.measured_on

    @property
    def overlaps(self) -> bool:
        """See ``executor.Executor``."""
        return self._first.overlaps

    def abandon(self) -> None:
        """Stop what is under way, within a second. The executor can be used again."""
        if self._work is not None:
            self._work.stop()
        self._first.abandon()

    def close(self) -> None:
        """End all children. A second call does nothing."""
        if self._work is not None:
            self._work.stop()
        self._first.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _take_first_back(self) -> None:
        """Outside of ``measure`` the first unit is the caller's thread's alone."""
        self._first.heartbeat = lambda: self.heartbeat()
        self._first.allowed = lambda: self.allowed()

    def _start(self, member: _Member, work: _Work) -> None:
        self._members[member.unit] = member
        name = f"unit-{member.unit[:12]}"
        member.thread = threading.Thread(target=self._drive, args=(member, work), name=name, daemon=True)
        member.thread.start()

    def _next_event(self, work: _Work) -> tuple[int, Trial] | _Gone:
        self.heartbeat()
        while True:
            try:
                return work.events.get(timeout=HEARTBEAT_SECONDS)
            except queue.Empty:
                self.heartbeat()
                self.adjust()
                work.fill(self._ahead * len(self.units))

    def _ended(self, event: _Gone) -> None:
        member, error = event.member, event.error
        del self._members[member.unit]
        if member.is_first:
            raise error or WorkerLost("this executor was closed")
        if error is not None and not isinstance(error, TilewrightError):
            raise error
        member.gone(error)

    def _stop(self, work: _Work) -> None:
        """End the threads of all units, whatever is under way."""
        work.stop()
        for member in list(self._members.values()):
            assert member.thread is not None
            while member.thread.is_alive():
                member.thread.join(HEARTBEAT_SECONDS)
                with suppress(Exception):  # whoever ends this knows why, and the leases are to be kept meanwhile
                    self.heartbeat()
            if not member.is_first:
                member.gone(None)
        self._members.clear()
        self._work = None
        self._take_first_back()

    def _drive(self, member: _Member, work: _Work) -> None:
        """Measure on one unit, until there is nothing more or the unit is dismissed."""
        error: BaseException | None = None
        try:
            executor = member.executor = member.open()
            executor.heartbeat = lambda: self._check_member(member, work)
            if not member.is_first and _kind(executor.measured_on) != _kind(self.measured_on):
                raise WorkerLost(f"unit {member.unit} is of the class but not as the first one of this task")
            while work.has_more(member):
                given: list[int] = []
                trials = executor.measure(work.workload, work.source(member, given))
                with closing(_closable(trials)) as found:
                    for position, trial in found:
                        work.put(member, given[position], replace(trial, unit=member.unit))
                        self._check_member(member, work, between=True)
        except _Left:
            pass
        except BaseException as fault:
            error = fault
        finally:
            if member.executor is not None and not member.is_first:
                with suppress(TilewrightError):
                    member.executor.close()
            work.leave(member, None if work.stopping else error)

    def _check_member(self, member: _Member, work: _Work, *, between: bool = False) -> None:
        """Raise _Left where a unit is to end what it does: now, or between two trials."""
        if work.stopping:
            raise _Left
        if member.left_at is not None and (between or time.monotonic() - member.left_at > LEAVE_SECONDS):
            raise _Left


def _closable(trials: Iterator[tuple[int, Trial]]) -> Generator[tuple[int, Trial], None, None]:
    yield from trials


def _kind(on: MeasuredOn) -> tuple[str, str, str]:
    return on.device.key, on.toolchain.key, str(on.profile)
