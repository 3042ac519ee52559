"""The candidate pool: the spaces of every sketch that fits a task, joined into one list of candidates."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..core.policy import DEFAULT_POLICY, SpacePolicy
from ..core.schedule import Schedule
from ..core.target import DeviceInfo
from ..cost_model.model import CostModel
from ..schedule.sketches import sketches_for
from ..schedule.space.space import Space
from ..te.workload import Workload

ROWS_PER_SPACE = 65_536
"""How many rows of a space are ranked in every round; larger spaces are sampled down to it, since a round may cost
milliseconds per trial."""

LEAST_SPEED = 1e-3
"""A model that expects a failure expects it to be as bad as a schedule so many times slower than the best."""


class CandidatePool:
    """Candidates are numbered 0..len-1, space after space. ``workload`` and ``device`` are None for recorded spaces.
    ``model``: one that has learned from earlier tasks what the priors leave to be learned."""

    def __init__(
        self,
        spaces: Sequence[Space],
        workload: Workload | None = None,
        device: DeviceInfo | None = None,
        policy: SpacePolicy = DEFAULT_POLICY,
        model: CostModel | None = None,
    ) -> None:
        self.spaces = tuple(spaces)
        self._model = model
        self.policy = policy
        self.workload = workload
        self.device = device
        self._starts = np.cumsum([0, *(len(s) for s in self.spaces)])

    @classmethod
    def of(
        cls,
        workload: Workload,
        device: DeviceInfo,
        *,
        seed: int,
        limit: int = ROWS_PER_SPACE,
        policy: SpacePolicy = DEFAULT_POLICY,
        model: CostModel | None = None,
    ) -> "CandidatePool":
        """Return the pool of every sketch that matches, of what ``policy`` keeps of its legal settings.

        Each space holds at most ``limit`` settings, sampled by ``seed``. The priors are made from the peaks that were
        measured on ``device``.
        """
        target, peaks = device.target, device.measured
        sketches = sketches_for(workload, target)
        spaces = [s.space(workload, target, seed=seed, limit=limit, policy=policy, peaks=peaks) for s in sketches]
        return cls(spaces, workload, device, policy, model)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def total(self) -> int:
        """How many legal settings there are, those not sampled included."""
        return sum(max(s.total, len(s)) for s in self.spaces)

    def locate(self, candidate: int) -> tuple[int, int]:
        """(number of the space, row in it); raises IndexError."""
        if not 0 <= candidate < len(self):
            raise IndexError(f"candidate {candidate} of a pool of {len(self)}")
        space = int(np.searchsorted(self._starts, candidate, side="right")) - 1
        return space, candidate - int(self._starts[space])

    def schedule(self, candidate: int) -> Schedule:
        space, row = self.locate(candidate)
        return self.spaces[space].schedule(row)

    def candidate_of(self, schedule: Schedule) -> int | None:
        """Return the candidate that is ``schedule``, or None when it is not in the pool."""
        for start, space in zip(self._starts, self.spaces, strict=False):
            row = space.row_of(schedule)
            if row is not None:
                return int(start) + row
        return None

    @cached_property
    def prior_seconds(self) -> NDArray[np.float32] | None:
        """float32[len], the time that the priors estimate for each candidate, corrected by the model that has learned
        from earlier tasks, if there is one; None where a space has no prior."""
        columns = [s.prior_seconds for s in self.spaces]
        if any(c is None for c in columns):
            return None
        prior = np.concatenate([c for c in columns if c is not None])
        if self._model is None or not len(self):
            return prior
        relative = 1.0 / np.maximum(self._model.predict(self.features), LEAST_SPEED)
        scale = np.exp(np.log(prior).mean() - np.log(relative).mean())  # as fast on the whole as the priors say
        return np.asarray(scale * relative, dtype=np.float32)

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """float32[len, columns], see cost_model.features."""
        from ..cost_model.features import space_features  # loads all sketches, for their columns

        return np.concatenate([space_features(s, self.workload, self.device) for s in self.spaces])

    @cached_property
    def _index(self) -> list[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
        """Per space: its rows' code numbers in ascending order, and the rows in that order."""
        tables = []
        for space in self.spaces:
            numbers = _number(space, space.codes)
            order = np.argsort(numbers, kind="stable")
            tables.append((numbers[order], order))
        return tables

    def rows_with(self, space: int, codes: NDArray[np.int16]) -> NDArray[np.int64]:
        """Candidates whose knob codes are among ``codes`` int16[m, knobs]; settings that are not legal are dropped."""
        numbers, order = self._index[space]
        wanted = _number(self.spaces[space], codes)
        first, behind = (np.searchsorted(numbers, wanted, side) for side in ("left", "right"))
        found = np.full(len(codes), -1)
        for step in range(int((behind - first).max(initial=0))):
            rows = order[np.minimum(first + step, len(numbers) - 1)]
            found = np.where((self.spaces[space].codes[rows] == codes).all(axis=1), rows, found)
        return np.asarray(found[found >= 0] + self._starts[space], dtype=np.int64)


_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def _number(space: Space, codes: NDArray[np.int16]) -> NDArray[np.uint64]:
    """uint64[n]: a number for the codes of each row, a polynomial in an odd multiplier modulo 2^64. Rows may
    share one: two of a million do with a probability of 10^-7."""
    number = np.zeros(len(codes), dtype=np.uint64)
    for place in range(len(space.knobs)):
        number = number * _MULTIPLIER + codes[:, place].astype(np.uint64)
    return number
