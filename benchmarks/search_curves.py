"""Searches on recorded tables as curves, and the file that keeps them: recorded once, in parts, by peers too.

A curve holds the evaluations that improved on all before, with their moments; the moments between are interpolated.
The file: ``{"strategies": {name: {"about": {...}, "spaces": {space: {run: curve}}}}}``.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.benchmarks.methodology import Run, Scale
from tilewright.core.trial import Timed
from tilewright.search.recorded import Recorded
from tilewright.search.strategy import Observation, Strategy

MARGIN = 1.1
"""Runs go on for a tenth beyond the budget, so that the curve is known at its end."""


@dataclass(frozen=True)
class Curve:
    """``improved``: the numbers of the evaluations (from 1) that improved, ``moments``: when each had ended, in seconds
    with search time, ``best``: the times found. ``evaluations`` in all took ``seconds``, of which ``search`` was spent
    proposing."""

    improved: Sequence[int]
    moments: Sequence[float]
    best: Sequence[float]
    evaluations: int
    seconds: float
    search: float

    @classmethod
    def of(cls, times: Sequence[float], costs: Sequence[float], search: Sequence[float]) -> "Curve":
        """``times``: NaN where an evaluation failed; ``costs``, ``search``: seconds to evaluate and to propose each."""
        moments = np.cumsum(np.asarray(costs) + np.asarray(search))
        best = np.fmin.accumulate(np.asarray(times, np.float64))
        before = np.concatenate([[np.inf], np.where(np.isnan(best), np.inf, best)[:-1]])
        places = np.flatnonzero(best < before)
        return cls(
            [int(p) + 1 for p in places],
            [round(float(moments[p]), 4) for p in places],
            [float(best[p]) for p in places],
            len(times),
            round(float(moments[-1]), 4),
            round(float(sum(search)), 4),
        )

    @property
    def run(self) -> Run:
        at = np.arange(1, self.evaluations + 1)
        known = [0, *self.improved, self.evaluations]
        seconds = np.interp(at, known, [0.0, *self.moments, self.seconds])
        place = np.searchsorted(self.improved, at, side="right")
        return Run(seconds, np.array([np.nan, *self.best])[place])


def play(table: Recorded, scale: Scale, strategy: Strategy, batch: int = 1) -> Curve:
    """Search on a table until its budget is spent by time and by evaluations, or the strategy has no more candidates.

    Search time is processor time, which a busy machine does not lengthen. A run that has found the optimum is not
    played on, since nothing can change: what is missing is filled with evaluations of mean cost and no search time.
    """
    end, most = scale.seconds[-1] * MARGIN, MARGIN * scale.evaluations[1] + 2
    times: list[float] = []
    costs: list[float] = []
    search: list[float] = []
    elapsed = 0.0
    while elapsed < end or len(times) < most:
        began = time.process_time()
        chosen = strategy.ask(batch)
        if not chosen:
            break
        outcomes = [table.outcomes[c] for c in chosen]
        strategy.tell([Observation(c, o) for c, o in zip(chosen, outcomes, strict=True)])
        spent = time.process_time() - began
        times += [o.seconds if isinstance(o, Timed) else float("nan") for o in outcomes]
        costs += [float(table.cost_seconds[c]) for c in chosen]
        search += [spent / len(chosen)] * len(chosen)
        elapsed += sum(costs[-len(chosen) :]) + spent
        if np.nanmin(times, initial=np.inf) <= scale.optimum:
            break
    mean = float(table.cost_seconds.mean())
    missing = max(int(np.ceil((end - elapsed) / mean)), int(most) - len(times), 0)
    return Curve.of(times + [float("nan")] * missing, costs + [mean] * missing, search + [0.0] * missing)


class Curves:
    """The file of curves. Runs that it has are not played again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._data: dict[str, dict[str, object]] = {}
        if path is not None and path.exists():
            self._data = json.loads(path.read_text())["strategies"]

    @property
    def names(self) -> list[str]:
        return list(self._data)

    def about(self, name: str) -> object:
        return self._data[name].get("about")

    def get(self, name: str, space: str) -> dict[int, Curve]:
        """Run -> curve."""
        found = self._spaces(name).get(space, {})
        return {int(run): Curve(*fields) for run, fields in found.items()}

    def put(self, name: str, space: str, run: int, curve: Curve, about: object) -> None:
        """Keep a curve; the file is written at once."""
        spaces = self._spaces(name)
        spaces.setdefault(space, {})[str(run)] = [
            curve.improved, curve.moments, curve.best, curve.evaluations, curve.seconds, curve.search
        ]  # fmt: skip
        self._data[name] = {"about": about, "spaces": spaces}
        if self._path is not None:
            text = json.dumps({"strategies": self._data}, separators=(",", ":"))
            self._path.write_text(text.replace('"spaces":{', '"spaces":{\n').replace("]]]},", "]]]},\n") + "\n")

    def _spaces(self, name: str) -> dict[str, dict[str, Any]]:
        found = self._data.get(name, {}).get("spaces", {})
        assert isinstance(found, dict)
        return found
