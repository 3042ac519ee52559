"""Reads and writes cache files of Kernel Tuner (github.com/KernelTuner/kernel_tuner).

A cache has ``tune_params_keys``, ``tune_params`` (the values of every parameter), names of the device and kernel, and
``cache``. That maps each configuration, as text, to its parameters, what it cost in milliseconds, and its result:
``time`` and ``times`` in milliseconds, or the name of an error as ``time``. Kernel Tuner writes it line by line, and
closes it when a search ends: one that was interrupted lacks the last braces.
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
from ..core.trial import Failed, Outcome, Reason, Timed, TrialStage
from ..schedule.space.knob import Knob
from ..schedule.space.space import Space

Json = Mapping[str, Any]
_COSTS = ("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time")
_ERRORS: Mapping[str, tuple[TrialStage, Reason]] = {
    "InvalidConfig": (TrialStage.LOWER, Reason.ILLEGAL_SCHEDULE),
    "CompilationFailedConfig": (TrialStage.COMPILE, Reason.COMPILE_ERROR),
    "RuntimeFailedConfig": (TrialStage.TIME, Reason.LAUNCH_ERROR),
}
_NAMES: Mapping[TrialStage, str] = {
    TrialStage.LOWER: "InvalidConfig",
    TrialStage.COMPILE: "CompilationFailedConfig",
}
"""The error that a failure is written as; ``RuntimeFailedConfig`` for the others."""


def read_cache(text: str) -> Json:
    """Return the document of a cache, whole or interrupted. Raises ValueError where it is no JSON."""
    try:
        document: Json = json.loads(text)
    except ValueError:
        document = json.loads(text.rstrip().rstrip(",") + "}}")
    return document


def parse_cache(document: Json, name: str) -> tuple[Space, list[Outcome], NDArray[np.float64]]:
    """(space, outcome of each row, seconds that each once took). Raises InvalidParameter."""
    try:
        keys: Sequence[str] = document["tune_params_keys"]
        entries: Sequence[Json] = list(document["cache"].values())
        given = document.get("tune_params", {})
        values = {key: given.get(key) or _values(entries, key) for key in keys}
        knobs = tuple(Knob(key, tuple(values[key]), f"{key} of {document['kernel_name']}") for key in keys)
        places = [{value: place for place, value in enumerate(knob.values)} for knob in knobs]
        codes = np.array(
            [[place[entry[key]] for key, place in zip(keys, places, strict=True)] for entry in entries], np.int16
        )
        outcomes = [_outcome(entry) for entry in entries]
        cost = [sum(float(entry.get(part, 0.0)) for part in _COSTS) / 1e3 for entry in entries]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidParameter(f"{name} is no cache of Kernel Tuner ({error!r})", field="path") from error
    space = Space(str(document["kernel_name"]), 1, knobs, codes.reshape(len(entries), len(knobs)), {}, len(entries))
    return space, outcomes, np.array(cost, dtype=np.float64)


def write_cache(
    path: Path, space: Space, outcomes: Sequence[Outcome], cost_seconds: Sequence[float], device: str
) -> None:
    """Write a table as a whole cache, compressed where the name ends in ``.gz``. ``device`` is its name."""
    document = {
        "device_name": device,
        "kernel_name": space.sketch,
        "problem_size": "",
        "tune_params_keys": [knob.name for knob in space.knobs],
        "tune_params": {knob.name: list(knob.values) for knob in space.knobs},
        "cache": {},
    }
    cache: dict[str, object] = {}
    for row, (outcome, cost) in enumerate(zip(outcomes, cost_seconds, strict=True)):
        knobs = dict(space.schedule(row).knobs)
        cache[",".join(map(str, knobs.values()))] = {**knobs, **_times(outcome), "benchmark_time": 1e3 * float(cost)}
    data = json.dumps({**document, "cache": cache}).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _values(entries: Sequence[Json], key: str) -> list[KnobValue]:
    return sorted({entry[key] for entry in entries}, key=lambda value: (isinstance(value, str), value))


def _outcome(entry: Json) -> Outcome:
    time = entry["time"]
    if isinstance(time, str):
        stage, reason = _ERRORS.get(time, (TrialStage.TIME, Reason.LAUNCH_ERROR))
        return Failed(stage, reason, time)
    return Timed(tuple(float(one) / 1e3 for one in entry.get("times") or [time]))


def _times(outcome: Outcome) -> dict[str, object]:
    if isinstance(outcome, Timed):
        return {"time": 1e3 * outcome.seconds, "times": [1e3 * sample for sample in outcome.samples]}
    return {"time": _NAMES.get(outcome.stage, "RuntimeFailedConfig")}
