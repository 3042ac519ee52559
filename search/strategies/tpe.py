"""The tree-structured Parzen estimator of Optuna, to compare with. It needs the extra ``optuna``."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...core.errors import InvalidParameter
from ...core.schedule import KnobValue
from ...core.streams import stream
from ...core.trial import Timed
from ..encoding import Encoding
from ..gaussian_process import Floats
from ..seen import Seen
from ..strategy import Observation, SearchProblem

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_FIRST = 10
"""How many random candidates come first, as is Optuna's default."""


class TreeParzen:
    """Optuna proposes one value for each knob without knowing which settings are legal. The nearest candidate that is
    not known is taken instead. Failures are told as the slowest time so far."""

    def __init__(self, problem: SearchProblem) -> None:
        try:
            import optuna
        except ImportError as error:
            raise InvalidParameter(
                "strategy 'tpe' needs Optuna: pip install tilewright[optuna]", field="strategy"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._pool = problem.pool
        self._seed = problem.seed
        self._seen = Seen(problem.pool)
        encoding = Encoding.of(problem.pool)
        self._points = encoding.points(problem.pool)
        self._columns: Mapping[str, Mapping[KnobValue, float]] = {
            **dict(encoding.columns),
            **({"sketch": {}} if len(encoding.sketches) > 1 else {}),
        }
        self._sketches = len(encoding.sketches)
        self._numbers = {name: sorted(set(c.values())) for name, c in encoding.columns}
        self._study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        chosen: list[int] = []
        for n in range(count):
            told = len(self._seen.observations)
            rng = stream(self._seed, "tpe", told + len(pending) + n)
            if told < _FIRST:
                chosen += self._seen.draw(1, rng, [*pending, *chosen])
                continue
            free = self._seen.free([*pending, *chosen])
            if not len(free):
                break
            wanted = self._suggested(int(rng.integers(1 << 31)))
            distance = np.sum(np.abs(self._points[free] - wanted), axis=1)
            chosen.append(int(free[distance.argmin()]))
        return chosen

    def tell(self, observations: Sequence[Observation]) -> None:
        for observation in observations:
            self._seen.add([observation])
            times = [o.outcome.seconds for o in self._seen.observations if isinstance(o.outcome, Timed)]
            if not times:
                continue
            outcome = observation.outcome
            value = outcome.seconds if isinstance(outcome, Timed) else max(times)
            self._study.add_trial(
                self._optuna.create_trial(
                    params=self._parameters(observation.candidate),
                    distributions=self._distributions(),
                    value=float(np.log(value)),
                )
            )

    def _suggested(self, seed: int) -> Floats:
        sampler = self._optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=0)
        self._study.sampler = sampler
        trial = self._study.ask(self._distributions())
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)  # only its parameters are wanted
        point = np.zeros(self._points.shape[1])
        for place, (name, numbers) in enumerate(self._numbers.items()):
            point[place] = numbers[int(trial.params[name])]
        if self._sketches > 1:
            point[len(self._numbers) + int(trial.params["sketch"])] = 1
        return point

    def _parameters(self, candidate: int) -> dict[str, int]:
        point = self._points[candidate]
        places = {
            name: int(np.abs(np.array(numbers) - point[place]).argmin())
            for place, (name, numbers) in enumerate(self._numbers.items())
        }
        if self._sketches > 1:
            places["sketch"] = int(point[len(self._numbers) :].argmax())
        return places

    def _distributions(self) -> "dict[str, BaseDistribution]":
        found: dict[str, BaseDistribution] = {
            name: self._optuna.distributions.IntDistribution(0, len(numbers) - 1)
            for name, numbers in self._numbers.items()
        }
        if self._sketches > 1:
            found["sketch"] = self._optuna.distributions.CategoricalDistribution(tuple(range(self._sketches)))
        return found
