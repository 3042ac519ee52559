"""Spaces are columns: every legal setting of a sketch's knobs, as arrays, before anything is lowered."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InvalidParameter
from ..core.schedule import KnobValue, Schedule


@dataclass(frozen=True, slots=True)
class Knob:
    """A named, ordered set of values, all whole numbers or all strings."""

    name: str
    values: tuple[KnobValue, ...]
    meaning: str

    def to_json(self) -> dict[str, object]:
        return {"name": self.name, "values": list(self.values), "meaning": self.meaning}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A derived column of a space: what a setting implies (bytes of a tile, iterations in parallel, …)."""

    name: str
    unit: str
    meaning: str


@dataclass(frozen=True, eq=False)
class Space:
    """All legal settings (or a seeded sample of them when there are too many) of one sketch for one workload.

    ``codes``: int16[n, knobs], row r sets knob k to ``knobs[k].values[codes[r, k]]``; rows are unique.
    ``quantities``: name -> float32[n], the sketch's derived columns (see ``Sketch.quantities``).
    ``total``: how many legal settings there are, n unless sampled (then an estimate).
    """

    sketch: str
    version: int
    knobs: tuple[Knob, ...]
    codes: NDArray[np.int16]
    quantities: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    total: int = 0

    def __len__(self) -> int:
        return len(self.codes)

    def schedule(self, row: int) -> Schedule:
        """The schedule in ``row``; raises IndexError outside 0..n-1."""
        if not 0 <= row < len(self.codes):
            raise IndexError(f"row {row} of a space of {len(self.codes)}")
        codes = self.codes[row]
        return Schedule(
            self.sketch, self.version, tuple((k.name, k.values[int(c)]) for k, c in zip(self.knobs, codes, strict=True))
        )

    def column(self, knob: str) -> NDArray[np.generic]:
        """The values of one knob, as an array of n numbers or strings; raises InvalidParameter."""
        for position, k in enumerate(self.knobs):
            if k.name == knob:
                return np.asarray(k.values)[self.codes[:, position]]
        raise InvalidParameter(f"no knob {knob!r}; this space has {[k.name for k in self.knobs]}", field=knob)

    def row_of(self, schedule: Schedule) -> int | None:
        """The row that holds ``schedule``, or None when it is not in this space."""
        if (schedule.sketch, schedule.version) != (self.sketch, self.version):
            return None
        wanted = dict(schedule.knobs)
        if set(wanted) != {k.name for k in self.knobs}:
            return None
        try:
            code = [k.values.index(wanted[k.name]) for k in self.knobs]
        except ValueError:
            return None
        hits = np.flatnonzero((self.codes == np.array(code, dtype=np.int16)).all(axis=1))
        return int(hits[0]) if len(hits) else None
