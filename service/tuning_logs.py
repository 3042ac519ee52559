"""Turns logs of other tuners into records that search learns from and that no look-up serves.

Times of another program's clock are compared with one another alone. Their records therefore lie under a device of
their own, which no unit is (``DeviceInfo.imported``), and under a toolchain that is named after the form of the log.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..core.keys import content_key
from ..core.target import IMPORTED, DeviceInfo, Toolchain
from ..core.trial import Clocks, Evidence
from ..db.encode import clocks_to_json, device_from_json, device_to_json, evidence_to_json, now, outcome_to_json
from ..search.tuning_logs import LOG_FORMS, read_log
from ..te.json import workload_to_json
from ..te.key import workload_key
from .targets import compiled_for, default_cache, profile_of
from .views import TaskSpec

FORMS: tuple[str, ...] = tuple(LOG_FORMS)
"""The forms of logs, see ``search.tuning_logs``."""


@dataclass(frozen=True, slots=True)
class TuningLog:
    """Holds a log as records. ``lines`` are JSON lines to import (``db.json_lines``), none where no row was taken.
    ``refused``: why rows were not taken -> how many."""

    lines: tuple[str, ...]
    taken: int
    refused: Mapping[str, int]


def device_named(target: str, known: Iterable[Mapping[str, object]]) -> DeviceInfo:
    """Return the device of those ``known`` that has this key, or the one that code for a target is made for. ``known``
    are objects with ``key`` and what ``db.encode.device_from_json`` reads. Raises UnsupportedTarget."""
    for device in known:
        if device["key"] == target:
            return device_from_json({name: device[name] for name in ("name", "target", "hardware", "measured")})
    return compiled_for(target, ()).device


def read_tuning_log(text: str, form: str, task: TaskSpec, device: DeviceInfo, cache: str | None = None) -> TuningLog:
    """Read a log of a form in FORMS, of searches for a task on a device. ``cache`` says whether the other program
    timed with cold or with warm caches; by default as we do on such devices. Raises InvalidParameter."""
    from ..search.imported import imported  # it loads sketches, which no other command does

    found = imported(read_log(text, form), task.workload, device)
    profile = profile_of(device.target.kind, cache or default_cache(device.target.kind))
    toolchain = Toolchain({IMPORTED: form})
    stand_in = replace(device, name=f"{device.name}, {form}", hardware={**device.hardware, IMPORTED: 1.0})
    key, parameters = workload_key(task.workload), None if task.parameters is None else dict(task.parameters)
    results = [(schedule.to_json(), outcome_to_json(outcome)) for schedule, outcome in found.results]
    job = "import-" + content_key([stand_in.key, key, str(profile), results])[:24]
    created = now()
    lines: list[Mapping[str, object]] = [
        {"kind": "workload", "key": key, "data": workload_to_json(task.workload)},
        {"kind": "device", "key": stand_in.key, "data": device_to_json(stand_in)},
        {"kind": "toolchain", "key": toolchain.key, "data": dict(toolchain.components)},
        {
            "kind": "job",
            "id": job,
            "state": "succeeded",
            "created_at": created,
            "budget": {"trials": len(results), "seconds": None, "stall": None},
            "strategy": IMPORTED,
            "seed": 0,
            "target": device.target.kind,
            "executor": IMPORTED,
            "cache": profile.cache,
            "tasks": [{"workload": key, "operator": task.operator, "parameters": parameters}],
        },
    ]
    for sequence, (schedule, outcome) in enumerate(results):
        identity = {"device": stand_in.key, "toolchain": toolchain.key, "profile": str(profile)}
        record = {"kind": "record", "job": job, "task": 0, "sequence": sequence, **identity, "schedule": schedule}
        said = {"outcome": outcome, "clocks": clocks_to_json(Clocks()), "evidence": evidence_to_json(Evidence())}
        lines.append({**record, **said, "elapsed_seconds": 0.0, "created_at": created})
    text_lines = tuple(json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines)
    return TuningLog(text_lines if results else (), len(results), found.refused)
