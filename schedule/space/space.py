"""A space: legal settings of a sketch's knobs as integer columns, before anything is lowered."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InvalidParameter
from ...core.schedule import Schedule
from .columns import completed
from .knob import Knob


@dataclass(frozen=True, eq=False)
class Space:
    """Legal settings of one sketch for one workload: all of them, those that a policy kept, or a uniform sample.

    ``codes``: int16[n, knobs]. Row r sets knob k to ``knobs[k].values[codes[r, k]]``; rows are unique.
    ``quantities``: name -> float32[n], the sketch's derived columns (see ``Sketch.quantities``).
    ``prior_seconds``: float32[n], the time of each setting as the sketch's analytic prior estimates it; None where the
    policy uses no prior.
    ``total``: how many settings there are before sampling. It is exact where ``low == high``; otherwise it is an
    estimate with the 95 % confidence interval [``low``, ``high``].
    """

    sketch: str
    version: int
    knobs: tuple[Knob, ...]
    codes: NDArray[np.int16]
    quantities: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    total: int = 0
    prior_seconds: NDArray[np.float32] | None = None
    low: int = 0
    high: int = 0

    def __len__(self) -> int:
        return len(self.codes)

    def schedule(self, row: int) -> Schedule:
        """Return the schedule in ``row``. Raises IndexError outside 0..n-1."""
        if not 0 <= row < len(self.codes):
            raise IndexError(f"row {row} of a space of {len(self.codes)}")
        codes = self.codes[row]
        return Schedule(
            self.sketch, self.version, tuple((k.name, k.values[int(c)]) for k, c in zip(self.knobs, codes, strict=True))
        )

    def column(self, knob: str) -> NDArray[np.generic]:
        """Return the values of one knob, as an array of n numbers or strings. Raises InvalidParameter for an unknown
        knob."""
        for position, k in enumerate(self.knobs):
            if k.name == knob:
                return np.asarray(k.values)[self.codes[:, position]]
        raise InvalidParameter(f"no knob {knob!r}; this space has {[k.name for k in self.knobs]}", field=knob)

    def row_of(self, schedule: Schedule) -> int | None:
        """Return the row that holds ``schedule``, or None when it is not in this space."""
        if (schedule.sketch, schedule.version) != (self.sketch, self.version):
            return None
        wanted = completed(self.knobs, dict(schedule.knobs))
        if set(wanted) != {k.name for k in self.knobs}:
            return None
        try:
            code = [k.values.index(wanted[k.name]) for k in self.knobs]
        except ValueError:
            return None
        hits = np.flatnonzero((self.codes == np.array(code, dtype=np.int16)).all(axis=1))
        return int(hits[0]) if len(hits) else None
