"""The compilation child compiles schedules for people to look at and to take away: nothing of it is measured."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from itertools import pairwise
from typing import Any

from ..codegen.backend import LaunchConfig, Packaging, Resources
from ..codegen.export import exported
from ..codegen.layers import code_layers, linked_share
from ..codegen.lowering import lowering_stages, sketch_of
from ..codegen.matrix_use import matrix_use, operations_by_layer
from ..codegen.memory_traffic import accessed_bytes
from ..core.errors import CompileError, ResourcesExceeded, TilewrightError, UnsupportedTarget
from ..core.schedule import Schedule
from ..core.target import Target
from ..schedule.gpu.occupancy import limits_of
from ..schedule.sketches import sketches_for
from ..te.json import workload_from_json
from ..te.workload import Workload
from .frames import Frame
from .report import Announce
from .wire import Json, target_from_json


class CompilationRole:
    """It answers ``{ask, workload, target, …}`` with ``{answer}`` and blobs, or with ``{error, code, field}``."""

    def __init__(self, setup: Json) -> None:
        module, name = str(setup["compiler"]).split(":")
        self._compile: Callable[[Mapping[str, Any]], Frame] = getattr(import_module(module), name)

    def answer(self, frame: Frame, announce: Announce) -> Frame:
        del announce
        try:
            return self._compile(frame.header)
        except TilewrightError as error:
            return Frame({"error": error.message, "code": error.code, "field": error.field})
        except MemoryError:
            return Frame({"error": "the compiler ran out of memory", "code": ResourcesExceeded.code, "field": ""})
        except Exception as error:  # a bug in a sketch or an emitter is no reason to end
            return Frame({"error": f"{type(error).__name__}: {error}", "code": CompileError.code, "field": ""})


def compiled(question: Mapping[str, Any]) -> Frame:
    """Return the answer to a question. Raises IllegalSchedule, CompileError, UnsupportedTarget, InvalidParameter."""
    workload, target = workload_from_json(question["workload"]), target_from_json(question["target"])
    if question["ask"] == "first":
        return Frame({"answer": {"schedule": first_schedule(workload, target).to_json()}})
    schedule = Schedule.from_json(question["schedule"])
    if question["ask"] == "layers":
        return Frame({"answer": layers(workload, target, schedule)})
    packaging = Packaging(str(question["name"]), bool(question["library"]))
    files = exported(workload, target, schedule, packaging)
    return Frame({"answer": {"files": list(files)}}, tuple(files.values()))


def first_schedule(workload: Workload, target: Target) -> Schedule:
    """Return a legal schedule when none is known yet: the first one of the first sketch that fits."""
    sketches = sketches_for(workload, target)
    if not sketches:
        raise UnsupportedTarget(f"no sketch can write this workload for {target}", field="target")
    return sketches[0].space(workload, target, limit=64).schedule(0)


def layers(workload: Workload, target: Target, schedule: Schedule) -> Json:
    """Return every layer of the lowering pipeline for one schedule, under the names that ``service.views`` has, and
    what its knobs mean."""
    lowered = lowering_stages(workload, target, schedule)
    shown = code_layers(workload, lowered)
    sections: list[Json] = [
        {
            "title": layer.title,
            "language": layer.language,
            "text": layer.text,
            "above": above.title,
            "origins": layer.origins,
            "linked": linked_share(layer),
        }
        for above, layer in pairwise(shown)
    ]
    use = matrix_use(workload, target, schedule, lowered)
    if use is not None:
        text = "\n".join((use.summary, *use.warnings))
        sections.append({"title": "matrix instructions", "language": "text", "text": text})
    space = sketch_of(schedule).space(workload, target, limit=64)
    return {
        "sections": sections,
        "instructions": dict(lowered.artifacts.instructions),
        "functions": [_function(grid, lowered.artifacts.resources, target) for grid in lowered.source.launches],
        "accessed_bytes": accessed_bytes(lowered.final),
        "warnings": () if use is None else use.warnings,
        "matrix_layers": () if use is None else operations_by_layer(workload, shown),
        "meanings": {knob.name: knob.meaning for knob in space.knobs},
    }


def _function(launch: LaunchConfig, resources: Mapping[str, Resources], target: Target) -> Json:
    taken = asdict(resources.get(launch.function, Resources(0)))
    del taken["static_shared_bytes"]
    limits = limits_of(target)
    resident = int(limits.resident_blocks(launch.threads, taken["registers"], launch.shared_bytes))
    return {
        **taken,
        "name": launch.function,
        "blocks": launch.blocks,
        "threads": launch.threads,
        "cluster": launch.cluster,
        "shared_bytes": launch.shared_bytes,
        "resident_blocks": resident,
        "occupancy": resident * launch.threads / limits.threads_per_multiprocessor,
        "waves": float(limits.waves(math.prod(launch.blocks), resident, target.threads)) if resident else 0.0,
    }
