"""The frame of a sketch for a kernel class: one plan for each workload and target says everything about it.

plan.knobs          the knobs and their values
plan.constraints    which settings are legal: they can be built, are correct, and repeat no other setting
plan.derive         the derived columns of settings
plan.prior_seconds  an estimated time for each setting
plan.promising      which legal settings are worth a measurement, by rules of thumb and by the prior
plan.lower          the kernel of one legal setting
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.errors import IllegalSchedule
from ..core.policy import DEFAULT_POLICY, SpacePolicy
from ..core.schedule import KnobValue, Schedule
from ..core.streams import stream
from ..core.target import Target
from ..ir.stmt import Kernel
from ..te.dynamic import at_representative, dynamic_extents, has_dynamic_rows
from ..te.workload import Workload
from .sketch import NO_PEAKS, Peaks
from .space.columns import Bools, Columns, Derived, Floats, codes_of, columns_of_setting, completed, row_of_record
from .space.constraint import Constraint
from .space.elimination import Elimination
from .space.enumerate import SettingTable, settings_of
from .space.knob import Knob, Quantity
from .space.space import Space

MOST_SETTINGS = 1_000_000
"""A policy prunes so many legal settings at most. Of more, it sees a uniform sample."""

MOST_KEPT = 1 << 16
"""A sketch keeps the count of the legal settings that it was last asked for, if that has so many rows at most, and so
many promising settings. The same space is wanted again and again: for the default schedule, an estimate, a search."""

FAR, NEAR, MOST_NEAR = 1.5, 1.1, 64
"""Where the promising settings are estimated to be FAR slower than the best one, those within NEAR of it are added,
about MOST_NEAR at most."""

P = TypeVar("P")


class Plan(ABC):
    """What a sketch has found out about one workload on one target."""

    @property
    @abstractmethod
    def knobs(self) -> tuple[Knob, ...]: ...

    @property
    def defaults(self) -> Mapping[str, KnobValue]:
        """What ``Columns`` gives for a knob that formulas ask for and that this workload does not have."""
        return {}

    @property
    @abstractmethod
    def constraints(self) -> Sequence[Constraint]:
        """The rules that a legal setting keeps. The fewer knobs each of them reads, the larger the spaces that can be
        counted and sampled without rejections."""

    @abstractmethod
    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        """Return which of the legal settings are worth a measurement, bool[n]. ``columns`` holds all legal settings, or
        a uniform sample of them, so that a rule may compare a setting with the best one. Those with values that a knob
        itself does not call promising are left out."""

    @abstractmethod
    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        """Return the estimated time of each setting in seconds, float64[n], from the measured ``peaks`` of a device."""

    @abstractmethod
    def derive(self, columns: Columns) -> Derived:
        """Return the derived columns."""

    @abstractmethod
    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        """Return the kernel of one legal setting."""


class SizedPlan(Plan):
    """A plan that says what settings imply in a record of derived sizes."""

    @abstractmethod
    def sizes(self, columns: Columns) -> Any:
        """Return the derived sizes of the settings: a dataclass with a column, int64[n], in each field."""

    def sizes_of(self, setting: Mapping[str, KnobValue]) -> Any:
        """Return the derived sizes of one setting (knob -> value): ``sizes`` with an int in each field."""
        return row_of_record(self.sizes(columns_of_setting(self.knobs, setting, self.defaults)), 0)

    def rule(self, meaning: str, knobs: Sequence[str] | None, holds: Callable[[Any], Bools]) -> Constraint:
        """Return a constraint on the derived sizes that follow from ``knobs`` (their names) alone; None: from all."""
        names = [knob.name for knob in self.knobs] if knobs is None else knobs
        return Constraint(meaning, tuple(names), lambda columns: holds(self.sizes(columns)))


def planned(
    problem_of: Callable[[Workload], P | None], plan: Callable[[P, Target], Plan]
) -> Callable[[Workload, Target], Plan | None]:
    """Return the function that plans a workload: for the problem that it is, on any target, and None where it is
    none."""

    def planned_for(workload: Workload, target: Target) -> Plan | None:
        problem = problem_of(workload)
        return None if problem is None else plan(problem, target)

    return planned_for


class TileSketch:
    """A sketch (see ``schedule.sketch.Sketch``) that is made of plans. ``plan`` gives None for a workload that the
    sketch does not match. ``kind`` is the kind of target that the sketch is for; ``dynamic`` says whether plans take
    workloads with dynamic rows, and ``lengths`` whether they look at any dynamic dimension themselves. How fast their
    settings are is estimated at the representative extents."""

    generic = False

    def __init__(
        self,
        name: str,
        version: int,
        quantities: tuple[Quantity, ...],
        plan: Callable[[Workload, Target], Plan | None],
        kind: str = "cuda",
        *,
        generic: bool = False,
        dynamic: bool = False,
        lengths: bool = False,
    ) -> None:
        self.name = name
        self.version = version
        self.quantities = quantities
        self.generic = generic
        self.dynamic = dynamic or lengths
        self._lengths = lengths
        self._plan = lru_cache(maxsize=16)(plan)  # candidates of one workload come in a row
        self._counted: tuple[Plan, Elimination] | None = None
        self._promising: tuple[Plan, Peaks, SettingTable] | None = None
        self._kind = kind

    def matches(self, workload: Workload, target: Target) -> bool:
        return target.kind == self._kind and self._takes(workload) and self._plan(workload, target) is not None

    def space(
        self,
        workload: Workload,
        target: Target,
        *,
        seed: int = 0,
        limit: int = 1_000_000,
        policy: SpacePolicy = DEFAULT_POLICY,
        peaks: Peaks = NO_PEAKS,
    ) -> Space:
        plan = self._planned(workload, target)
        draws = stream(seed, self.name)
        rated = self._rated(workload, target, plan)
        found = self._settings(plan, rated, peaks, draws, limit, policy.prunes)
        if not len(found.codes):
            raise IllegalSchedule(f"{self.name} has no legal setting for this workload on {target}", field="/workload")
        codes = found.codes
        if len(codes) > limit:
            codes = codes[np.sort(draws.permutation(len(codes))[:limit])]
        columns = Columns(plan.knobs, codes, plan.defaults)
        prior = rated.prior_seconds(columns, peaks).astype(np.float32) if policy.prior else None
        quantities = _float32(rated, columns)
        return Space(
            *(self.name, self.version, plan.knobs, codes, quantities, found.total, prior),
            low=found.low,
            high=found.high,
        )

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        return self._planned(workload, target).knobs

    def legal(self, workload: Workload, target: Target, schedules: Sequence[Schedule]) -> Bools:
        plan = self._planned(workload, target)
        try:
            columns = self._columns(plan, schedules)
        except IllegalSchedule:  # some have knobs, or values, that others need not have
            if len(schedules) == 1:
                return np.zeros(1, np.bool_)
            return np.concatenate([self.legal(workload, target, [schedule]) for schedule in schedules])
        legal = np.ones(len(schedules), np.bool_)
        for constraint in plan.constraints if len(schedules) else ():
            legal &= constraint.holds(columns)
        return legal

    def derive(
        self, workload: Workload, target: Target, schedules: Sequence[Schedule]
    ) -> Mapping[str, NDArray[np.float32]]:
        plan = self._planned(workload, target)
        return _float32(self._rated(workload, target, plan), self._columns(plan, schedules))

    def prior_seconds(
        self, workload: Workload, target: Target, schedules: Sequence[Schedule], peaks: Peaks = NO_PEAKS
    ) -> NDArray[np.float32]:
        plan = self._planned(workload, target)
        rated = self._rated(workload, target, plan)
        return rated.prior_seconds(self._columns(plan, schedules), peaks).astype(np.float32)

    def lower(self, workload: Workload, target: Target, schedule: Schedule) -> Kernel:
        plan = self._planned(workload, target)
        columns = self._columns(plan, [schedule])
        broken = [c.meaning for c in plan.constraints if not c.holds(columns)[0]]
        if broken:
            raise IllegalSchedule(
                f"{schedule} is not legal for this workload on {target}. Each of these must hold: {'; '.join(broken)}.",
                field="/schedule/knobs",
            )
        kernel = plan.lower(completed(plan.knobs, dict(schedule.knobs)))
        return replace(kernel, dynamic=dynamic_extents(workload)) if workload.dynamic else kernel

    def _settings(
        self, plan: Plan, rated: Plan, peaks: Peaks, draws: np.random.Generator, limit: int, prunes: bool
    ) -> SettingTable:
        """Return legal settings: about ``limit`` of them at most, or the promising ones among ``MOST_SETTINGS``."""
        if not prunes:
            return settings_of(self._count(plan), limit, draws)
        known = self._promising
        if known is not None and known[0] is plan and known[1] == peaks:
            return known[2]
        counted = self._count(plan)
        found = settings_of(counted, MOST_SETTINGS, draws)
        if not len(found.codes):
            return found
        codes = _pruned(rated, found.codes, peaks)
        share = len(codes) / len(found.codes)
        kept = SettingTable(codes, *(round(n * share) for n in (found.total, found.low, found.high)))
        if len(found.codes) == counted.total and len(codes) <= MOST_KEPT:  # nothing was drawn
            self._promising = (plan, dict(peaks), kept)
        return kept

    def _count(self, plan: Plan) -> Elimination:
        """Return the legal settings of a plan, counted."""
        known = self._counted
        if known is not None and known[0] is plan:
            return known[1]
        found = Elimination(plan.knobs, plan.constraints, plan.defaults)
        if found.rows <= MOST_KEPT:
            self._counted = (plan, found)
        return found

    def _takes(self, workload: Workload) -> bool:
        return not workload.dynamic or self._lengths or (self.dynamic and has_dynamic_rows(workload))

    def _planned(self, workload: Workload, target: Target) -> Plan:
        if workload.dynamic and not self.dynamic:
            raise IllegalSchedule(
                f"{self.name} writes kernels for static shapes alone; this workload has a dynamic dimension",
                field="/schedule/sketch",
            )
        plan = self._plan(workload, target) if target.kind == self._kind and self._takes(workload) else None
        if plan is None:
            raise IllegalSchedule(f"{self.name} does not match this workload on {target}", field="/schedule/sketch")
        return plan

    def _rated(self, workload: Workload, target: Target, plan: Plan) -> Plan:
        """Return the plan that knows how fast settings are: of a dynamic workload, that of the representative extent,
        where it has the same knobs."""
        found = self._plan(at_representative(workload), target) if workload.dynamic else plan
        return plan if found is None or found.knobs != plan.knobs else found

    def _columns(self, plan: Plan, schedules: Sequence[Schedule]) -> Columns:
        for schedule in schedules:
            if (schedule.sketch, schedule.version) != (self.name, self.version):
                raise IllegalSchedule(
                    f"a schedule of {schedule.sketch}@{schedule.version}; allowed: {self.name}@{self.version}",
                    field="/schedule/sketch",
                )
        return Columns(plan.knobs, codes_of(plan.knobs, schedules), plan.defaults)


def _pruned(plan: Plan, codes: NDArray[np.int16], peaks: Peaks) -> NDArray[np.int16]:
    """Return the promising rows of ``codes``. Rules of thumb fail for odd workloads. Where no setting is promising, or
    the best of them is estimated to be ``FAR`` slower than the best of all, those that are nearly the best join
    them."""
    most = [len(knob.values) if knob.most_promising is None else knob.most_promising for knob in plan.knobs]
    codes = codes[(codes < most).all(axis=1)]
    columns = Columns(plan.knobs, codes, plan.defaults)
    promising, prior = plan.promising(columns, peaks), plan.prior_seconds(columns, peaks)
    if len(codes) and (not promising.any() or prior[promising].min() > FAR * prior.min()):
        promising = promising | ((prior <= NEAR * prior.min()) & (prior <= np.sort(prior)[:MOST_NEAR][-1]))
    return codes[promising]


def _float32(plan: Plan, columns: Columns) -> dict[str, NDArray[np.float32]]:
    return {name: column.astype(np.float32) for name, column in plan.derive(columns).items()}
