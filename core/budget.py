"""How long a task may be tuned, and why tuning stopped."""

from dataclasses import dataclass
from enum import StrEnum

from .errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Budget:
    """Whichever limit is met first ends the task. ``stall``: trials in a row without a new best; None = no limit.
    When ``seconds`` are over, the candidate that a search began with is still waited for.
    ``runs``: how often a model is to run that is tuned: what takes longer to measure than it is expected to save in so
    many runs is left; None = nothing takes too long."""

    trials: int = 64
    seconds: float | None = None
    stall: int | None = None
    runs: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.trials <= 1_000_000:
            raise InvalidParameter(f"budget of {self.trials} trials; allowed: 1 to 1000000", field="trials")
        if self.seconds is not None and not 0 < self.seconds <= 30 * 86_400:
            raise InvalidParameter(
                f"budget of {self.seconds} seconds; allowed: over 0, at most 30 days", field="seconds"
            )
        if self.stall is not None and not 1 <= self.stall <= 1_000_000:
            raise InvalidParameter(f"stall after {self.stall} trials; allowed: 1 to 1000000", field="stall")
        if self.runs is not None and not 1 <= self.runs <= 1e18:
            raise InvalidParameter(f"{self.runs} runs; allowed: 1 to 1e18", field="runs")

    def to_json(self) -> dict[str, int | float | None]:
        """``runs`` is there where it is given."""
        limits = {"trials": self.trials, "seconds": self.seconds, "stall": self.stall}
        return limits if self.runs is None else {**limits, "runs": self.runs}


class StopReason(StrEnum):
    """Why a task is no longer tuned."""

    TRIALS = "trials"
    SECONDS = "seconds"
    STALL = "stall"
    EXHAUSTED = "exhausted"
    """Every legal schedule was tried."""
    NOT_WORTHWHILE = "not_worthwhile"
    """Of a model's job: further trials are not expected to save what they cost (``core.allocation.GivenUp``)."""
    KEPT = "kept"
    """Of a job that retunes: what was the best before still is (``core.retuning.RetuneVerdict``)."""
    CANCELLED = "cancelled"
    ERROR = "error"
