"""What a job is asked for that retunes, and what its tasks find.

After a change of a driver, a compiler or a sketch, the best schedule of a task and the next best of its earlier records
are measured again. Where the first of them still is the first, nothing is searched.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from .errors import InvalidParameter
from .record import Record

RUNNERS_UP, MOST_RUNNERS_UP = 8, 64


class RetuneVerdict(StrEnum):
    """What became of the earlier winner of a task."""

    KEPT = "kept"
    """It still is the fastest, and as fast as it was, as far as can be measured: nothing was searched."""
    OUTRANKED = "outranked"
    """Another of the earlier schedules is faster now."""
    SLOWER = "slower"
    """It is slower than it was."""
    FAILED = "failed"
    """It cannot be built, or not be timed, any more."""
    CURRENT = "current"
    """There is no earlier record: nothing was measured."""

    @property
    def ends_the_task(self) -> bool:
        """Whether nothing is searched."""
        return self in (RetuneVerdict.KEPT, RetuneVerdict.CURRENT)


@dataclass(frozen=True, slots=True)
class Retuning:
    """What is asked for. ``runners_up``: how many schedules are measured again beside the winner.
    ``toolchain_before``: the key of the toolchain whose records count; None: that of the newest ones of each task."""

    runners_up: int = RUNNERS_UP
    toolchain_before: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.runners_up <= MOST_RUNNERS_UP:
            raise InvalidParameter(f"{self.runners_up} runners-up; allowed: 1 to {MOST_RUNNERS_UP}", field="runners_up")

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Retuned:
    """What a task found. ``ratio`` is the winner's time now over its time before, the speed of the machine taken out;
    ``lead`` is its time now over the least of the schedules that were measured again. Both are None where it has no
    time. ``noise`` is the share by which either may be off.

    The ``earlier_`` members say where the winner comes from: its record, its toolchain, its seconds, and what the task
    spent that measured it: so many trials in so many seconds (None where nobody knows)."""

    verdict: RetuneVerdict
    measured: int = 0
    """How many schedules were measured again."""
    ratio: float | None = None
    lead: float | None = None
    noise: float = 0.0
    earlier_record_id: int | None = None
    earlier_toolchain_key: str | None = None
    earlier_seconds: float | None = None
    earlier_trials: int = 0
    earlier_wall_seconds: float | None = None

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "verdict": self.verdict.value}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> "Retuned":
        """Return what ``to_json`` gave."""
        values = {name: data[name] for name in cls.__dataclass_fields__}
        return cls(**{**values, "verdict": RetuneVerdict(str(data["verdict"]))})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class EarlierTrials:
    """Holds the fastest earlier records of a workload, one for each schedule, the fastest first, all of one toolchain.
    ``spent_trials`` and ``spent_seconds`` are what the task measured in all that found the first of them, and how long
    it took; None where nobody knows."""

    records: tuple[Record, ...]
    spent_trials: int
    spent_seconds: float | None
