"""What a strategy is. It asks for candidates to be measured and is told how they did."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..core.trial import Outcome
from ..cost_model.dataset import Experience
from .pool import Pool


@dataclass(frozen=True, slots=True)
class Observation:
    """How one candidate of the pool did."""

    candidate: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Problem:
    """What a strategy is made for. ``history``: earlier tasks to learn from; ``model``: a name in MODELS."""

    pool: Pool
    seed: int
    history: Sequence[Experience] = field(default=())
    model: str = "xgboost"


class Strategy(Protocol):
    """Its answers are a function of the problem, of what it was told, in order, and of what is pending: never of the
    clock or of a global generator. So a task resumes by telling the recorded trials to a new strategy."""

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        """At most ``count`` distinct candidates, none of which it was told of and none of ``pending``, whose results
        are yet to come; fewer only when no more are left."""
        ...

    def tell(self, observations: Sequence[Observation]) -> None:
        """How candidates did, asked for or not."""
        ...
