"""How long a task may be tuned, and why tuning stopped."""

from dataclasses import dataclass
from enum import StrEnum

from .errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Budget:
    """Whichever limit is met first ends the task. ``stall``: trials in a row without a new best; None = no limit."""

    trials: int = 64
    seconds: float | None = None
    stall: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.trials <= 1_000_000:
            raise InvalidParameter(f"budget of {self.trials} trials; allowed: 1 to 1000000", field="trials")
        if self.seconds is not None and not 0 < self.seconds <= 30 * 86_400:
            raise InvalidParameter(
                f"budget of {self.seconds} seconds; allowed: over 0, at most 30 days", field="seconds"
            )
        if self.stall is not None and not 1 <= self.stall <= 1_000_000:
            raise InvalidParameter(f"stall after {self.stall} trials; allowed: 1 to 1000000", field="stall")


class StopReason(StrEnum):
    """Why a task is no longer tuned."""

    TRIALS = "trials"
    SECONDS = "seconds"
    STALL = "stall"
    EXHAUSTED = "exhausted"
    """Every legal schedule was tried."""
    CANCELLED = "cancelled"
    ERROR = "error"
