"""Search without hardware: spaces whose every schedule was measured before, and a measurer that looks it up."""

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InvalidParameter, NotFound, TilewrightError
from ..core.schedule import KnobValue, Schedule
from ..core.trial import Clocks, Failed, Outcome, Reason, Timed, Trial, TrialStage
from ..schedule.space.knob import Knob
from ..schedule.space.space import Space
from ..te.operators import OPERATORS
from ..te.workload import Workload
from .kernel_tuner import parse_cache
from .pool import CandidatePool
from .t4 import parse_t4, read_document

_REASONS = {"compile": Reason.COMPILE_ERROR, "timeout": Reason.TIMEOUT, "correctness": Reason.WRONG_RESULT}


@dataclass(frozen=True)
class Recorded:
    """A space with the outcome of each row and the seconds it once took to get it."""

    space: Space
    outcomes: Sequence[Outcome]
    cost_seconds: NDArray[np.float64]
    workload: Workload | None = None
    """What was computed, where the table names an operator of the library."""

    @property
    def pool(self) -> CandidatePool:
        return CandidatePool([self.space])

    @property
    def best_seconds(self) -> float:
        return min(o.seconds for o in self.outcomes if isinstance(o, Timed))

    def measure(self, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        """Yield the recorded trials, in order; raises NotFound for a schedule that was not recorded."""
        for position, schedule in enumerate(schedules):
            row = self.space.row_of(schedule)
            if row is None:
                raise NotFound(f"{schedule} is not among the {len(self.space)} recorded schedules")
            yield position, Trial(schedule, self.outcomes[row], Clocks(time=float(self.cost_seconds[row])))


def read_table(path: Path) -> Recorded:
    """Return a table in the T4 form (``.json``; see ``search.t4``), a cache of Kernel Tuner, or one of the benchmark
    hub's CSV exports, as it is or compressed (``.gz``). Raises InvalidParameter when the file has none of these
    forms."""
    if ".csv" in path.suffixes:
        return _read_csv(path)
    document = read_document(path)
    if "cache" in document:
        return Recorded(*parse_cache(document, path.name))
    return Recorded(*parse_t4(document, path.name), _workload(document["metadata"]))


def _workload(metadata: Mapping[str, Any]) -> Workload | None:
    try:
        return OPERATORS[metadata["operator"]].workload(metadata["parameters"])
    except (KeyError, TypeError, TilewrightError):
        return None  # the table names no operator, or one that is no more


def _read_csv(path: Path) -> Recorded:
    """Line 1 is ``# `` and a JSON header with ``kernel`` and ``tune_params`` (the values of every knob). CSV follows.

    It has a column for each knob, ``time`` in milliseconds (empty where the configuration failed), ``compile_ms``,
    ``verify_ms``, ``bench_ms``, ``framework_ms`` and ``status``.
    """
    with (
        gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="", encoding="utf-8") as lines
    ):
        first = lines.readline()
        try:
            header = json.loads(first.removeprefix("# "))
            parameters: Mapping[str, list[KnobValue]] = header["tune_params"]
            name = str(header["kernel"])
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidParameter(
                f"{path.name}: line 1 is no recorded-space header ({error})", field="path"
            ) from error
        rows = list(csv.DictReader(lines))
    knobs = tuple(Knob(k, tuple(values), f"{k} of {name}") for k, values in parameters.items())
    places = [{str(v): i for i, v in enumerate(k.values)} for k in knobs]
    try:
        codes = np.array([[p[row[k.name]] for k, p in zip(knobs, places, strict=True)] for row in rows], np.int16)
        cost = [sum(float(row[c]) for c in ("compile_ms", "verify_ms", "bench_ms", "framework_ms")) for row in rows]
        outcomes = [_outcome(row) for row in rows]
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidParameter(f"{path.name}: a row does not fit the header ({error!r})", field="path") from error
    return Recorded(Space(name, 1, knobs, codes, {}, len(codes)), outcomes, np.array(cost) / 1000.0)


def _outcome(row: Mapping[str, str]) -> Outcome:
    if row["time"]:
        return Timed((float(row["time"]) / 1000.0,))
    status = row["status"]
    reason = next((r for word, r in _REASONS.items() if word in status), Reason.LAUNCH_ERROR)
    return Failed(TrialStage.COMPILE if reason is Reason.COMPILE_ERROR else TrialStage.TIME, reason, status)
