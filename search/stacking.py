"""Trees that know what earlier tasks say of a candidate beside its settings (stacked generalisation, Wolpert 1992).

    score(x) = trees(settings of x, what every source says of x),  learned from this task's results alone

Where a source is right depends on the settings: trees find where, which a weighted mean of the sources cannot say.
Trees err elsewhere than a Gaussian process does: once there is one that sees the sources too, both rank the candidates.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from ..core.trial import Prediction
from ..cost_model.dataset import labels
from ..cost_model.models import new_model
from .gaussian_process import Floats
from .improvement import learning_point
from .seen import Seen
from .transfer import Transfer

_GROWTH = 1.2
"""Trees learn again whenever the results have grown by so much: what they hold best is soon measured."""


class Stacking:
    """Proposals depend on the seed, the results and what is pending alone."""

    def __init__(self, transfer: Transfer, model: str, seed: int) -> None:
        self._features = transfer.features
        self._model = new_model(model)
        self._seed = seed
        self._scores: NDArray[np.float32] | None = None
        self._learned_from = -1

    def propose(
        self,
        seen: Seen,
        pending: Collection[int],
        count: int,
        smooth: tuple[NDArray[np.int64], Floats] | None = None,
    ) -> list[int]:
        """Return up to ``count`` new candidates of the highest scores. With ``smooth``, candidates and the z that a
        Gaussian process expects of each, those of the least product of the ranks by both. ``seen`` has a valid time."""
        if not count:
            return []
        scores = self._ranking(seen)
        if smooth is None:
            return seen.fresh(np.argsort(-scores, kind="stable"), count, pending)
        candidates, z = smooth
        new = ~seen.known[candidates]
        candidates, z = candidates[new], z[new]
        product = rankdata(-scores[candidates]) * rankdata(z)
        return seen.fresh(candidates[np.argsort(product, kind="stable")], count, pending)

    def prediction(self, candidate: int) -> Prediction | None:
        """Return what the trees say of a candidate; None before they have learned."""
        return None if self._scores is None else Prediction(float(self._scores[candidate]), self._learned_from)

    def _ranking(self, seen: Seen) -> NDArray[np.float32]:
        point = learning_point(len(seen.observations), _GROWTH)
        if self._scores is None or self._learned_from != point:
            results = seen.observations[:point]
            own = self._features[[o.candidate for o in results]]
            self._model.fit(own, labels([o.outcome for o in results]), seed=self._seed)
            self._scores = self._model.predict(self._features)
            self._learned_from = point
        return self._scores
