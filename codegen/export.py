"""A schedule as files that are used without Tilewright: source, machine code, and a description of how to call it."""

import json
from collections.abc import Mapping
from dataclasses import asdict

from ..core.schedule import Schedule
from ..core.target import Target
from ..te.json import workload_to_json
from ..te.workload import Workload
from .backend import AS_KERNEL, Binary, Package, Packaging
from .backends import backend_for
from .lowering import finish, lower

DESCRIPTION = "kernel.json"


def exported(
    workload: Workload, target: Target, schedule: Schedule, packaging: Packaging = AS_KERNEL
) -> Mapping[str, bytes]:
    """File name -> content. Raises IllegalSchedule, CompileError, UnsupportedTarget."""
    backend = backend_for(target)
    source = backend.emit(finish(lower(workload, target, schedule), target), target)
    binary = backend.compile(source, target)
    package = backend.package(source, target, packaging)
    text = json.dumps(_description(workload, target, schedule, binary, package), indent=2) + "\n"
    return {**package.files, DESCRIPTION: text.encode()}


def _description(
    workload: Workload, target: Target, schedule: Schedule, binary: Binary, package: Package
) -> dict[str, object]:
    """How to call what is in a package, and where it comes from."""
    return {
        "entry": package.entry,
        "format": binary.format,
        "target": target.to_json(),
        "toolchain": dict(binary.toolchain.components),
        "parameters": [
            {"name": p.name, "role": p.role, "shape": list(p.shape), "dtype": p.dtype.name, "bytes": p.bytes}
            for p in package.parameters
        ],
        "launches": [asdict(grid) for grid in binary.launches],
        "resources": {name: asdict(taken) for name, taken in binary.resources.items()},
        "schedule": schedule.to_json(),
        "workload": workload_to_json(workload),
    }
