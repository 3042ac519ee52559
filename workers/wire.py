"""Turns frozen values into the JSON that crosses between an executor and its children, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from ..codegen.backend import CompiledKernel, KernelParameter, LaunchConfig, Resources, TensorMap
from ..core.dtypes import KERNEL_DTYPES
from ..core.target import DeviceInfo, Profile, Target, Toolchain
from ..core.trial import Clocks, Evidence, Failed, Outcome, Reason, Timed, TrialStage
from ..ir.gpu.tma import Im2col
from .frames import Frame
from .report import RunReport
from .timing import RemeasureRules, TimingRules

Json = dict[str, object]


def binary_to_frame(binary: CompiledKernel, header: Json) -> Frame:
    """``header`` with the binary beside it: its description under ``binaries``, its code as the only blob."""
    return binaries_to_frame([binary], header)


def binaries_to_frame(binaries: Sequence[CompiledKernel], header: Json) -> Frame:
    """``header`` with binaries beside it: their descriptions under ``binaries``, their code as blobs."""
    return Frame({**header, "binaries": [_description(b) for b in binaries]}, tuple(b.code for b in binaries))


def binary_from_frame(frame: Frame) -> CompiledKernel:
    """Return the inverse of ``binary_to_frame``."""
    (binary,) = binaries_from_frame(frame)
    return binary


def binaries_from_frame(frame: Frame) -> list[CompiledKernel]:
    """Return the inverse of ``binaries_to_frame``."""
    descriptions = cast(list[Json], frame.header["binaries"])
    return [_binary(d, code) for d, code in zip(descriptions, frame.blobs, strict=True)]


def _description(binary: CompiledKernel) -> Json:
    return {
        "format": binary.format,
        "entry": binary.entry,
        "prologue": binary.prologue,
        "parameters": [[p.name, p.role, list(p.shape), p.dtype.name] for p in binary.parameters],
        "toolchain": dict(binary.toolchain.components),
        "launches": [asdict(launch) for launch in binary.launches],
        "resources": {name: asdict(r) for name, r in binary.resources.items()},
    }


def _binary(description: Json, code: bytes) -> CompiledKernel:
    parameters = cast(list[tuple[str, str, list[int], str]], description["parameters"])
    return CompiledKernel(
        str(description["format"]),
        code,
        str(description["entry"]),
        tuple(KernelParameter(n, role, tuple(shape), KERNEL_DTYPES[dtype]) for n, role, shape, dtype in parameters),
        Toolchain(cast(dict[str, str], description["toolchain"])),
        tuple(_launch_from_json(launch) for launch in cast(list[Json], description["launches"])),
        {n: Resources(**cast(dict[str, int], r)) for n, r in cast(Json, description["resources"]).items()},
        str(description["prologue"]),
    )


def _launch_from_json(data: Json) -> LaunchConfig:
    x, y, z = cast(list[int], data["blocks"])
    arguments = tuple(cast(list[int], data["arguments"]))
    maps = tuple(_tensor_map_from_json(m) for m in cast(list[dict[str, Any]], data["tensor_maps"]))
    numbers = tuple((place, number) for place, number in cast(list[tuple[int, int]], data.get("numbers", [])))
    extents = tuple(cast(list[str], data.get("takes_extents", [])))
    fields: Json = {**data, "blocks": (x, y, z), "arguments": arguments, "tensor_maps": maps, "numbers": numbers}
    fields["takes_extents"] = extents
    return LaunchConfig(**fields)  # type: ignore[arg-type]


def _tensor_map_from_json(data: Mapping[str, Any]) -> TensorMap:
    window = data["im2col"]
    fields: dict[str, Any] = {**data, "box": tuple(data["box"])}
    fields |= {name: None if data[name] is None else tuple(data[name]) for name in ("shape", "strides")}
    fields["im2col"] = None if window is None else Im2col(**{name: tuple(sides) for name, sides in window.items()})
    return TensorMap(**fields)


def target_from_json(data: object) -> Target:
    """Return the inverse of ``Target.to_json``."""
    fields = cast(Json, data)
    return Target(
        str(fields["kind"]),
        str(fields["arch"]),
        tuple(cast(list[str], fields["features"])),
        cast(int, fields["threads"]),
        cast(int, fields["vector_bytes"]),
    )


def device_to_json(info: DeviceInfo) -> Json:
    """Return all of a DeviceInfo; numbers as floats."""
    return {
        "name": info.name,
        "target": info.target.to_json(),
        "hardware": dict(info.hardware),
        "measured": dict(info.measured),
    }


def device_from_json(data: object) -> DeviceInfo:
    """Return the inverse of ``device_to_json``."""
    fields = cast(Json, data)
    return DeviceInfo(
        str(fields["name"]),
        target_from_json(fields["target"]),
        cast(dict[str, float], fields["hardware"]),
        cast(dict[str, float], fields["measured"]),
    )


def profile_to_json(profile: Profile) -> Json:
    return {"cache": profile.cache, "protocol": profile.protocol}


def profile_from_json(data: object) -> Profile:
    fields = cast(Json, data)
    return Profile(str(fields["cache"]), cast(int, fields["protocol"]))


def rules_to_json(rules: TimingRules | RemeasureRules) -> Json:
    return asdict(rules)


def rules_from_json(data: object) -> TimingRules:
    return TimingRules(**cast(dict[str, float], data))  # type: ignore[arg-type]


def final_from_json(data: object) -> RemeasureRules:
    return RemeasureRules(**cast(dict[str, float], data))  # type: ignore[arg-type]


def outcome_to_json(outcome: Outcome) -> Json:
    if isinstance(outcome, Timed):
        return {"samples": list(outcome.samples), "launches_per_sample": outcome.launches_per_sample}
    return {"stage": outcome.stage.value, "reason": outcome.reason.value, "detail": outcome.detail}


def outcome_from_json(data: object) -> Outcome:
    fields = cast(Json, data)
    if "samples" in fields:
        return Timed(tuple(cast(list[float], fields["samples"])), cast(int, fields["launches_per_sample"]))
    return Failed(TrialStage(str(fields["stage"])), Reason(str(fields["reason"])), str(fields["detail"]))


def clocks_to_json(clocks: Clocks) -> Json:
    return {name: getattr(clocks, name) for name in Clocks.__slots__}


def clocks_from_json(data: object) -> Clocks:
    return Clocks(**cast(dict[str, float], data))


def evidence_to_json(evidence: Evidence) -> Json:
    values = {name: getattr(evidence, name) for name in Evidence.__slots__}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def evidence_from_json(data: object) -> Evidence:
    return Evidence(**cast(dict[str, float], data))  # type: ignore[arg-type]


def report_to_json(report: RunReport) -> Json:
    return {
        "outcome": outcome_to_json(report.outcome),
        "clocks": clocks_to_json(report.clocks),
        "evidence": evidence_to_json(report.evidence),
        "tainted": report.tainted,
    }


def report_from_json(data: Json) -> RunReport:
    """Return the inverse of ``report_to_json``; raises KeyError or ValueError for what is no report."""
    return RunReport(
        outcome_from_json(data["outcome"]),
        clocks_from_json(data["clocks"]),
        evidence_from_json(data["evidence"]),
        bool(data["tainted"]),
    )
