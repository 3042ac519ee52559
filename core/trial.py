"""How a trial ends: timed, or failed at a named stage for a named reason. Never a sentinel number."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from .schedule import Schedule


class TrialStage(StrEnum):
    """The stages of a trial, in one of which it may fail."""

    LOWER = "lower"
    COMPILE = "compile"
    LOAD = "load"
    CHECK = "check"
    TIME = "time"


class Reason(StrEnum):
    """Why a trial failed."""

    ILLEGAL_SCHEDULE = "illegal_schedule"
    COMPILE_ERROR = "compile_error"
    RESOURCES = "resources"
    LAUNCH_ERROR = "launch_error"
    ILLEGAL_ACCESS = "illegal_access"
    """The kernel crashed its process (SIGSEGV, SIGBUS, SIGILL, SIGFPE, a CUDA fault)."""
    OUT_OF_BOUNDS = "out_of_bounds"
    """A guard band around a buffer was written."""
    UNWRITTEN = "unwritten"
    """An output element still holds the poison it was filled with."""
    WRONG_RESULT = "wrong_result"
    TIMEOUT = "timeout"
    NOISY = "noisy"
    WORKER_LOST = "worker_lost"


@dataclass(frozen=True, slots=True)
class Timed:
    """Samples of the seconds one launch takes; each sample is the mean of ``launches_per_sample`` launches.

    ``final_samples``: those of the final, in which the fastest candidates of a task were timed again in turns; empty
    for one that was not among them. ``final_rank_seconds``: what the final says it is ranked by (see
    ``search.remeasurement``); None while it is ranked by its own time.
    """

    samples: tuple[float, ...]
    launches_per_sample: int = 1
    final_samples: tuple[float, ...] = ()
    final_rank_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """What a launch takes: the median sample, of the final where there was one."""
        samples = self.final_samples or self.samples
        return samples[0] if len(samples) == 1 else median(samples)

    @property
    def rank_seconds(self) -> float:
        """The figure trials are ranked by: those that are equally fast by all that was measured have the same."""
        return self.seconds if self.final_rank_seconds is None else self.final_rank_seconds

    @property
    def spread(self) -> float:
        """Relative distance between the quartiles of the samples that ``seconds`` is the median of."""
        ordered = sorted(self.final_samples or self.samples)
        low, high = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
        return (high - low) / self.seconds


def median_interval(samples: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the median, relative to it, from order statistics.

    The ranks n/2 -+ 0.98 sqrt(n) enclose the median of any distribution with 95 % probability (Hahn & Meeker 1991).
    """
    ordered = sorted(samples)
    reach = 0.98 * math.sqrt(len(ordered))
    low = max(0, math.floor(len(ordered) / 2 - reach))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach) - 1)
    return (ordered[high] - ordered[low]) / 2 / median(ordered)


@dataclass(frozen=True, slots=True)
class Failed:
    """The stage at which, and the reason why, a trial has no time. ``detail`` is for people."""

    stage: TrialStage
    reason: Reason
    detail: str = ""


Outcome = Timed | Failed


@dataclass(frozen=True, slots=True)
class Clocks:
    """Seconds spent on one trial, apart: nothing is counted twice."""

    search: float = 0.0
    compile: float = 0.0
    check: float = 0.0
    time: float = 0.0
    overhead: float = 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a cost model said of a candidate before it was measured. ``score``: the best seconds it knew of, over the
    seconds it expects; more is faster. ``learned_from``: how many results of the task it had learned from by then."""

    score: float
    learned_from: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why the result can be trusted.

    ``max_error``: largest ``|got - want| / (absolute + relative * |want|)`` over all outputs against the
    float64 reference; at most 1 passes. ``anchor_seconds``: the anchor kernel timed beside this trial.
    ``binary_key``: SHA-256 of the binary. ``environment``: load, clocks and the like (name_unit -> value).
    """

    input_seed: int = 0
    max_error: float | None = None
    absolute_tolerance: float | None = None
    relative_tolerance: float | None = None
    guard_bands_intact: bool | None = None
    outputs_written: bool | None = None
    anchor_seconds: float | None = None
    binary_key: str | None = None
    binary_bytes: int | None = None
    environment: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trial:
    """One schedule built, checked and timed once."""

    schedule: Schedule
    outcome: Outcome
    clocks: Clocks = Clocks()
    evidence: Evidence = Evidence()
    unit: str | None = field(default=None, compare=False)
    """The UUID of the unit that took it, where several may have."""
