"""What a strategy is: it is asked for candidates to measure, and is told their outcomes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ..core.trial import Outcome, Prediction
from ..cost_model.dataset import Experience
from .pool import CandidatePool


@dataclass(frozen=True, slots=True)
class Observation:
    """The outcome of one candidate of the pool."""

    candidate: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """What a strategy is made for. It may learn from ``history``, earlier tasks. ``model`` is a name in MODELS."""

    pool: CandidatePool
    seed: int
    history: Sequence[Experience] = field(default=())
    model: str = "xgboost"


class Strategy(Protocol):
    """Ask and tell, as in Optuna and Nevergrad.

    An answer depends on the problem, on what the strategy was told in which order, and on what is pending. It never
    depends on the clock or on a global generator. A task therefore resumes by telling its recorded trials to a new
    strategy.
    """

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        """At most ``count`` distinct candidates, fewer only when no more are left.

        None of them is known, and none is in ``pending``, the candidates that are being measured.
        """
        ...

    def tell(self, observations: Sequence[Observation]) -> None:
        """Take in the outcomes of candidates, whether they were asked for or not."""
        ...


@runtime_checkable
class Predicts(Protocol):
    """What a strategy with a cost model offers beside, so that predictions can be compared with measurements."""

    def prediction(self, candidate: int) -> Prediction | None:
        """Return what the model said of a candidate when it was last asked; None before there is a model."""
        ...


@runtime_checkable
class ExpectsImprovement(Protocol):
    """What a strategy offers beside that can tell what further trials are worth (``core.allocation``)."""

    def expected_improvement(self) -> float | None:
        """By which share of the best time the next ``LOOK_AHEAD`` trials are expected to lower it. None where that is
        a guess: before there is a model, and where no prior leads the search."""
        ...


LOOK_AHEAD = 8
"""Of how many trials to come the expected improvement is."""
