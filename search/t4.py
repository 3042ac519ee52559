"""Reads and writes tuning results in the T4 form, in which the autotuning community exchanges them
(github.com/odgaard/TuningSchema).

A document has ``metadata``, of any content, and ``results``, one for each configuration. A result has

- ``configuration``: knob -> value;
- ``times``: what it cost, and ``runtimes``, all in milliseconds;
- ``invalidity``: ``correct``, or the class of its failure;
- ``measurements`` (name, value, unit), and ``objectives``, which says which of them is minimised.

Beyond what others read, ours say in ``failure`` what exactly happened. The sketch's derived columns are among the
measurements, so that a space is as informative without its sketch.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InvalidParameter
from ..core.schedule import KnobValue
from ..core.trial import Failed, Outcome, Reason, Timed, Trial, TrialStage
from ..schedule.space.knob import Knob
from ..schedule.space.space import Space
from .kernel_tuner import read_cache

Json = Mapping[str, Any]

SCHEMA_VERSION = "1.0.0"
OBJECTIVE = "time"
CORRECT = "correct"

_INVALIDITIES: Mapping[Reason, str] = {
    Reason.ILLEGAL_SCHEDULE: "constraints",
    Reason.COMPILE_ERROR: "compile",
    Reason.RESOURCES: "compile",
    Reason.TIMEOUT: "timeout",
    Reason.OUT_OF_BOUNDS: "correctness",
    Reason.UNWRITTEN: "correctness",
    Reason.WRONG_RESULT: "correctness",
}
"""Reason -> the schema's class; ``runtime`` for the others."""
_FAILURES: Mapping[str, tuple[TrialStage, Reason]] = {
    "constraints": (TrialStage.LOWER, Reason.ILLEGAL_SCHEDULE),
    "compile": (TrialStage.COMPILE, Reason.COMPILE_ERROR),
    "timeout": (TrialStage.TIME, Reason.TIMEOUT),
    "correctness": (TrialStage.CHECK, Reason.WRONG_RESULT),
    "runtime": (TrialStage.TIME, Reason.LAUNCH_ERROR),
}
_DIGITS = 7
"""Of the numbers that are written: more than any clock gives."""


def t4_result(trial: Trial, quantities: Mapping[str, float], timestamp: str) -> dict[str, object]:
    """Return one result. ``quantities``: the derived columns of the schedule; what its evidence says is
    ``evidence.*``."""
    outcome, clocks = trial.outcome, trial.clocks
    times: dict[str, object] = {
        "compilation": _milliseconds(clocks.compile),
        "validation": _milliseconds(clocks.check),
        "benchmark": _milliseconds(clocks.time),
        "framework": _milliseconds(clocks.overhead),
        "search_algorithm": _milliseconds(clocks.search),
    }
    found: dict[str, object] = {
        "timestamp": timestamp,
        "configuration": dict(trial.schedule.knobs),
        "objectives": [OBJECTIVE],
        "times": times,
        "invalidity": CORRECT,
        "correctness": 1,
    }
    measurements: list[dict[str, object]] = []
    if isinstance(outcome, Timed):
        times["runtimes"] = [_milliseconds(s) for s in outcome.samples]
        times["launches_per_runtime"] = outcome.launches_per_sample
        measurements.append({"name": OBJECTIVE, "value": _milliseconds(outcome.seconds), "unit": "ms"})
    else:
        found["invalidity"] = _INVALIDITIES.get(outcome.reason, "runtime")
        found["correctness"] = 0
        found["failure"] = {"stage": outcome.stage, "reason": outcome.reason, "detail": outcome.detail}
    known = {**quantities, **{f"evidence.{name}": v for name, v in trial.evidence.environment.items()}}
    if trial.evidence.max_error is not None:
        known["evidence.max_error"] = trial.evidence.max_error
    measurements += [{"name": n, "value": _short(v), "unit": ""} for n, v in known.items() if np.isfinite(v)]
    return {**found, "measurements": measurements}


def write_t4(path: Path, metadata: Json, results: Sequence[Json]) -> None:
    """``results`` under ``metadata``, compressed, a result on a line; moved into place when it is whole."""
    lines = ",\n".join(json.dumps(r, separators=(",", ":")) for r in results)
    head = json.dumps({"schema_version": SCHEMA_VERSION, "metadata": metadata}, indent=1)
    text = f'{head[:-2]},\n "results": [\n{lines}\n]}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".new")
    aside.write_bytes(gzip.compress(text.encode(), mtime=0))
    aside.replace(path)


def read_document(path: Path) -> Json:
    """Return the document in a file, compressed or not: results in the T4 form, or a cache of Kernel Tuner. Raises
    InvalidParameter where it is of neither form."""
    try:
        data = path.read_bytes()
        document = read_cache((gzip.decompress(data) if path.suffix == ".gz" else data).decode())
        if isinstance(document.get("cache"), dict):
            return document
        if not isinstance(document["results"], list) or not isinstance(document["metadata"], dict):
            raise TypeError("results are a list and metadata an object")
    except (OSError, ValueError, TypeError, KeyError, EOFError, AttributeError) as error:
        raise InvalidParameter(f"{path.name} holds no results in the T4 form: {error}", field="path") from error
    return document


def parse_t4(document: Json, name: str) -> tuple[Space, list[Outcome], NDArray[np.float64]]:
    """(space, outcome of each row, seconds that each once took). ``name``: what the space is called where the
    metadata has neither ``sketch`` nor ``kernel``. Raises InvalidParameter."""
    metadata, results = document["metadata"], document["results"]
    try:
        values = metadata.get("tune_params") or _values([r["configuration"] for r in results])
        knobs = tuple(Knob(n, tuple(v), str(metadata.get("meanings", {}).get(n, n))) for n, v in values.items())
        places = [{v: i for i, v in enumerate(k.values)} for k in knobs]
        rows = [[p[r["configuration"][k.name]] for k, p in zip(knobs, places, strict=True)] for r in results]
        quantities = _quantities(results, [q["name"] for q in metadata.get("quantities", [])])
        outcomes = [_outcome(r) for r in results]
        cost = np.array([_cost_milliseconds(r["times"]) for r in results], dtype=np.float64) / 1e3
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InvalidParameter(f"a result is not of the T4 form ({error!r})", field="results") from error
    codes = np.array(rows, dtype=np.int16).reshape(len(rows), len(knobs))
    space_name = str(metadata.get("sketch", metadata.get("kernel", name)))
    space = Space(space_name, int(metadata.get("version", 1)), knobs, codes, quantities, len(codes))
    return space, outcomes, cost


def _values(configurations: Sequence[Mapping[str, KnobValue]]) -> dict[str, list[KnobValue]]:
    """Return the values that each knob has anywhere, numbers in order."""
    found: dict[str, list[KnobValue]] = {}
    for name in configurations[0]:
        values = dict.fromkeys(c[name] for c in configurations)
        found[name] = sorted(values, key=lambda v: (isinstance(v, str), v))
    return found


def _quantities(results: Sequence[Json], names: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """Return the named measurements as columns, NaN where a result has none."""
    had = [{m["name"]: m["value"] for m in r["measurements"]} for r in results]
    return {n: np.array([h.get(n, np.nan) for h in had], dtype=np.float32) for n in names}


def _outcome(result: Json) -> Outcome:
    if result["invalidity"] == CORRECT:
        times = result["times"].get("runtimes")
        if not times:
            objective = result["objectives"][0]
            times = [m["value"] for m in result["measurements"] if m["name"] == objective]
        samples = tuple(float(t) / 1e3 for t in times)
        if not samples:
            raise ValueError("a correct result without a time")
        return Timed(samples, int(result["times"].get("launches_per_runtime", 1)))
    if "failure" in result:
        failure = result["failure"]
        return Failed(TrialStage(failure["stage"]), Reason(failure["reason"]), str(failure["detail"]))
    stage, reason = _FAILURES[result["invalidity"]]
    return Failed(stage, reason, result["invalidity"])


def _cost_milliseconds(times: Json) -> float:
    """Return all that a result cost; its runtimes count where nothing says what timing took in all."""
    parts = ("compilation", "compilation_time", "validation", "benchmark", "framework", "search_algorithm")
    timing = 0.0 if "benchmark" in times else sum(times.get("runtimes", ()))
    return float(sum(times.get(part, 0.0) for part in parts) + timing)


def _milliseconds(seconds: float) -> float:
    return _short(1e3 * seconds)


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
