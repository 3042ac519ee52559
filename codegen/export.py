"""Exports a schedule as files for use without Tilewright: source, machine code, and how to call it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict

from ..core.schedule import Schedule
from ..core.target import Target
from ..ir.text import expr_text
from ..te.json import workload_to_json
from ..te.workload import Workload
from .backend import DEFAULT_PACKAGING, CompiledKernel, LaunchConfig, Package, Packaging, TensorMap
from .backends import backend_for
from .lowering import finish, lower

DESCRIPTION_FILE = "kernel.json"


def exported(
    workload: Workload, target: Target, schedule: Schedule, packaging: Packaging = DEFAULT_PACKAGING
) -> Mapping[str, bytes]:
    """Return file name -> content. Raises IllegalSchedule, CompileError, UnsupportedTarget."""
    backend = backend_for(target)
    source = backend.emit(finish(lower(workload, target, schedule), target), target)
    binary = backend.compile(source, target)
    package = backend.package(source, target, packaging)
    text = json.dumps(_description(workload, target, schedule, binary, package), indent=2) + "\n"
    return {**package.files, DESCRIPTION_FILE: text.encode()}


def _description(
    workload: Workload, target: Target, schedule: Schedule, binary: CompiledKernel, package: Package
) -> dict[str, object]:
    """Return how to call what is in a package, and where it comes from. ``binary_sha256`` is what a record that
    measures this binary has as evidence."""
    return {
        "entry": package.entry,
        "format": binary.format,
        "binary_sha256": hashlib.sha256(binary.code).hexdigest(),
        "target": target.to_json(),
        "toolchain": dict(binary.toolchain.components),
        "parameters": [
            {"name": p.name, "role": p.role, "shape": list(p.shape), "dtype": p.dtype.name, "bytes": p.bytes}
            for p in package.parameters
        ],
        "launches": [_launch(config) for config in binary.launches],
        **_dynamic(binary),
        "resources": {name: asdict(taken) for name, taken in binary.resources.items()},
        "schedule": schedule.to_json(),
        "workload": workload_to_json(workload),
    }


def _dynamic(binary: CompiledKernel) -> dict[str, object]:
    """Return the extents that every call gives, and which dimensions of parameters have them."""
    if not binary.dynamic:
        return {}
    order = [p.name for p in binary.parameters]
    return {
        "dynamic": [
            {"name": d.var, "most": d.most, "places": sorted(d.places, key=lambda place: order.index(place[0]))}
            for d in binary.dynamic
        ]
    }


def _launch(config: LaunchConfig) -> dict[str, object]:
    """Return one launch under the names that programs read in ``kernel.json``. They stay when fields are renamed."""
    fields: dict[str, object] = {
        "function": config.function,
        "blocks": list(config.blocks),
        "threads": config.threads,
        "cluster": config.cluster,
        "shared_bytes": config.shared_bytes,
        "arguments": list(config.arguments),
        "tensor_maps": [_tensor_map(m) for m in config.tensor_maps],
        "overlaps": config.programmatic_dependent_launch,
    }
    if config.block_counts is not None:
        fields["block_counts"] = [expr_text(count) for count in config.block_counts]
    if config.in_prologue:
        fields["prologue"] = True
    if config.cooperative:
        fields["cooperative"] = True
    if config.takes_extents:
        fields["takes_extents"] = list(config.takes_extents)
    return fields


def _tensor_map(described: TensorMap) -> dict[str, object]:
    fields: dict[str, object] = {
        "parameter": described.parameter,
        "box": list(described.box),
        "swizzled": described.swizzle_128b,
        "line_bytes": described.l2_promotion_bytes,
    }
    if described.shape is not None:
        fields["shape"] = list(described.shape)
    if described.strides is not None:
        fields["strides"] = list(described.strides)
    if described.rounds_to_tf32:
        fields["rounds_to_tf32"] = True
    if described.im2col is not None:
        fields["im2col"] = asdict(described.im2col)
    return fields
