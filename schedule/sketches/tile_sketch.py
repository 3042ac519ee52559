"""The frame of a tile sketch: a plan per workload says knobs, legality, derived columns and the kernel of a setting."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...core.errors import IllegalSchedule
from ...core.schedule import KnobValue, Schedule
from ...core.streams import stream
from ...core.target import Target
from ...ir.stmt import Kernel
from ...te.workload import Workload
from ..gpu import GpuLimits
from ..space import Knob, Quantity, Space
from .columns import Bools, Columns, Ints, codes_of
from .enumerate import all_settings, legal_codes


class Plan(Protocol):
    """What a sketch has found out about one workload on one target."""

    @property
    def knobs(self) -> tuple[Knob, ...]: ...

    def legal(self, columns: Columns) -> Bools:
        """Which settings have a kernel that fits the device and repeats no other setting; bool[n]."""
        ...

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        """The derived columns, float64[n] each."""
        ...

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        """The kernel of one legal setting."""
        ...


class UsualPlan(ABC):
    """A plan whose settings should all be ``usual``; for the oddest shapes, which have none such, the plainest one, the
    first value of every knob, stands in."""

    @property
    @abstractmethod
    def knobs(self) -> tuple[Knob, ...]: ...

    @abstractmethod
    def usual(self, columns: Columns) -> Bools:
        """Which settings are as they should be; bool[n]."""

    def legal(self, columns: Columns) -> Bools:
        """See ``Plan``."""
        usual = self.usual(columns)
        return usual if self._some_usual else usual | (columns.codes == 0).all(axis=1)

    @cached_property
    def _some_usual(self) -> bool:
        return bool(self.usual(all_settings(self.knobs)).any())


GPU_QUANTITIES: tuple[Quantity, ...] = (
    Quantity("blocks", "blocks", "blocks of the largest launch"),
    Quantity("threads", "threads", "threads of a block"),
    Quantity("waves", "waves", "how often the device fills up until all blocks have run"),
    Quantity("registers_estimate", "registers", "registers of a thread, estimated from what it holds"),
    Quantity("shared_bytes", "B", "shared memory of a block"),
    Quantity("bytes_in_flight", "B", "bytes asked for by a multiprocessor before the first one is used"),
)
"""The derived columns that every sketch for graphics processors has."""


def gpu_columns(
    limits: GpuLimits, multiprocessors: int, *, blocks: Ints, threads: Ints, registers: Ints, shared: Ints, wanted: Ints
) -> dict[str, NDArray[np.float64]]:
    """The columns of ``GPU_QUANTITIES``; ``wanted``: bytes that one thread asks for before it uses the first."""
    resident = np.maximum(limits.resident_blocks(threads, registers, shared), 1)
    here = np.minimum(resident, -(-blocks // multiprocessors))
    return {
        "blocks": blocks.astype(np.float64),
        "threads": threads.astype(np.float64),
        "waves": limits.waves(blocks, resident, multiprocessors),
        "registers_estimate": registers.astype(np.float64),
        "shared_bytes": shared.astype(np.float64),
        "bytes_in_flight": (wanted * threads * here).astype(np.float64),
    }


class TileSketch:
    """See ``schedule.sketch.Sketch``. ``plan`` gives None for what the sketch does not match; ``kind`` is that of the
    targets it is for."""

    generic = False

    def __init__(
        self,
        name: str,
        version: int,
        quantities: tuple[Quantity, ...],
        plan: Callable[[Workload, Target], Plan | None],
        kind: str = "cuda",
    ) -> None:
        self.name = name
        self.version = version
        self.quantities = quantities
        self._plan = lru_cache(maxsize=16)(plan)  # candidates of one workload come in a row
        self._kind = kind

    def matches(self, workload: Workload, target: Target) -> bool:
        return target.kind == self._kind and self._plan(workload, target) is not None

    def space(self, workload: Workload, target: Target, *, seed: int = 0, limit: int = 1_000_000) -> Space:
        plan = self._planned(workload, target)
        draws = stream(seed, self.name)
        codes, total = legal_codes(plan.knobs, (), _always, plan.legal, {}, limit, draws)
        return Space(self.name, self.version, plan.knobs, codes, _float32(plan, codes), total)

    def derive(
        self, workload: Workload, target: Target, schedules: Sequence[Schedule]
    ) -> Mapping[str, NDArray[np.float32]]:
        plan = self._planned(workload, target)
        for schedule in schedules:
            self._check(schedule)
        return _float32(plan, codes_of(plan.knobs, schedules))

    def lower(self, workload: Workload, target: Target, schedule: Schedule) -> Kernel:
        self._check(schedule)
        plan = self._planned(workload, target)
        columns = Columns(plan.knobs, codes_of(plan.knobs, [schedule]), {})
        if not plan.legal(columns)[0]:
            raise IllegalSchedule(
                f"these knobs do not fit together for this workload on {target} (registers, memory, shapes, or "
                f"a setting that repeats another): {schedule}",
                field="/schedule/knobs",
            )
        return plan.lower(dict(schedule.knobs))

    def _planned(self, workload: Workload, target: Target) -> Plan:
        plan = self._plan(workload, target) if target.kind == self._kind else None
        if plan is None:
            raise IllegalSchedule(f"{self.name} does not match this workload on {target}", field="/schedule/sketch")
        return plan

    def _check(self, schedule: Schedule) -> None:
        if (schedule.sketch, schedule.version) != (self.name, self.version):
            raise IllegalSchedule(
                f"a schedule of {schedule.sketch}@{schedule.version}; allowed: {self.name}@{self.version}",
                field="/schedule/sketch",
            )


def _always(columns: Columns) -> Bools:
    return np.ones(len(columns), dtype=bool)


def _float32(plan: Plan, codes: NDArray[np.int16]) -> dict[str, NDArray[np.float32]]:
    derived = plan.derive(Columns(plan.knobs, codes, {}))
    return {name: column.astype(np.float32) for name, column in derived.items()}
