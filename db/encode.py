"""Converts the nouns to and from what a column or a line of JSON holds. Reading checks; writing cannot fail."""

import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from ..core.errors import InvalidParameter
from ..core.target import DeviceInfo, Profile, Target, Toolchain
from ..core.trial import Clocks, Evidence, Failed, Outcome, Reason, Timed, TrialStage

T = TypeVar("T")


def now() -> str:
    """Return the present time as the tables hold it: RFC 3339 in UTC with microseconds."""
    return time_text(datetime.now(UTC))


def time_text(moment: datetime) -> str:
    """Return a time in UTC as the tables hold it."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def profile_from_text(text: str) -> Profile:
    """Parse a profile that is written as ``warm-v1``. Raises InvalidParameter."""
    cache, _, protocol = text.rpartition("-v")
    if not cache or not protocol.isdecimal():
        raise InvalidParameter(f"{text!r} is no measuring profile; one looks like warm-v1", field="profile")
    return Profile(cache, int(protocol))


def evidence_to_json(evidence: Evidence) -> dict[str, object]:
    """Encode evidence. Members that are None are left out. NaN and infinities become text, which JSON can hold."""
    data: dict[str, object] = {}
    for item in fields(evidence):
        value = getattr(evidence, item.name)
        if isinstance(value, float):
            data[item.name] = _number_or_text(value)
        elif isinstance(value, Mapping):
            if value:
                data[item.name] = {name: _number_or_text(float(number)) for name, number in value.items()}
        elif value is not None:
            data[item.name] = value
    return data


def stored_evidence(data: Mapping[str, Any]) -> Evidence:
    """Decode evidence that ``evidence_to_json`` wrote into our own tables. Nothing is checked."""
    if any(isinstance(data.get(name), str) for name in _FLOATS):
        data = {name: float(value) if name in _FLOATS else value for name, value in data.items()}
    environment = data.get("environment")
    if environment and any(isinstance(value, str) for value in environment.values()):
        data = {**data, "environment": {name: float(value) for name, value in environment.items()}}
    return Evidence(**data)


_FLOATS = ("max_error", "absolute_tolerance", "relative_tolerance", "anchor_seconds")


def evidence_from_json(data: Mapping[str, object]) -> Evidence:
    """Decode evidence. Raises InvalidParameter for members that evidence does not have or that have another type."""
    allowed = {item.name for item in fields(Evidence)}
    _closed(data, allowed, "/evidence")
    environment = data.get("environment", {})
    if not isinstance(environment, Mapping):
        raise InvalidParameter("the environment is an object of numbers", field="/evidence/environment")
    return Evidence(
        input_seed=_typed(data.get("input_seed", 0), int, "/evidence/input_seed"),
        max_error=_number(data.get("max_error"), "/evidence/max_error"),
        absolute_tolerance=_number(data.get("absolute_tolerance"), "/evidence/absolute_tolerance"),
        relative_tolerance=_number(data.get("relative_tolerance"), "/evidence/relative_tolerance"),
        guard_bands_intact=_optional(data.get("guard_bands_intact"), bool, "/evidence/guard_bands_intact"),
        outputs_written=_optional(data.get("outputs_written"), bool, "/evidence/outputs_written"),
        anchor_seconds=_number(data.get("anchor_seconds"), "/evidence/anchor_seconds"),
        binary_key=_optional(data.get("binary_key"), str, "/evidence/binary_key"),
        binary_bytes=_optional(data.get("binary_bytes"), int, "/evidence/binary_bytes"),
        environment={
            str(name): _required(_number(value, f"/evidence/environment/{name}"), f"/evidence/environment/{name}")
            for name, value in environment.items()
        },
    )


def outcome_to_json(outcome: Outcome) -> dict[str, object]:
    """Encode an outcome as ``{samples, launches_per_sample}`` or ``{stage, reason, detail}``. A re-measurement adds
    ``final_samples`` and ``final_rank_seconds`` to a time, as far as the outcome has them."""
    if isinstance(outcome, Timed):
        data: dict[str, object] = {
            "samples": list(outcome.samples),
            "launches_per_sample": outcome.launches_per_sample,
        }
        if outcome.final_samples:
            data["final_samples"] = list(outcome.final_samples)
        if outcome.final_rank_seconds is not None:
            data["final_rank_seconds"] = outcome.final_rank_seconds
        return data
    return {"stage": outcome.stage.value, "reason": outcome.reason.value, "detail": outcome.detail}


def outcome_from_json(data: object) -> Outcome:
    """Decode an outcome. Raises InvalidParameter that names the member which is wrong."""
    if not isinstance(data, Mapping):
        raise InvalidParameter("an outcome is an object", field="/outcome")
    if "samples" in data:
        _closed(data, {"samples", "launches_per_sample", "final_samples", "final_rank_seconds"}, "/outcome")
        seconds = _samples(data, "samples")
        final = _samples(data, "final_samples") if "final_samples" in data else ()
        rank = data.get("final_rank_seconds")
        launches = _typed(data.get("launches_per_sample", 1), int, "/outcome/launches_per_sample")
        if launches < 1:
            raise InvalidParameter(f"{launches} launches per sample; at least 1", field="/outcome/launches_per_sample")
        return Timed(seconds, launches, final, None if rank is None else _positive(rank, "/outcome/final_rank_seconds"))
    _closed(data, {"stage", "reason", "detail"}, "/outcome")
    return Failed(
        _member(TrialStage, data.get("stage"), "/outcome/stage"),
        _member(Reason, data.get("reason"), "/outcome/reason"),
        _typed(data.get("detail", ""), str, "/outcome/detail"),
    )


def _samples(data: Mapping[str, object], name: str) -> tuple[float, ...]:
    samples = data[name]
    if not isinstance(samples, list) or not 1 <= len(samples) <= 100_000:
        raise InvalidParameter(f"{name} are a list of 1 to 100000 numbers", field=f"/outcome/{name}")
    return tuple(_positive(value, f"/outcome/{name}/{i}") for i, value in enumerate(samples))


def clocks_to_json(clocks: Clocks) -> dict[str, float]:
    """Encode clocks as an object of clock name -> seconds."""
    return {item.name: getattr(clocks, item.name) for item in fields(clocks)}


def clocks_from_json(data: object) -> Clocks:
    """Decode clocks. Raises InvalidParameter for clocks that do not exist or are not seconds."""
    if not isinstance(data, Mapping):
        raise InvalidParameter("clocks are an object of seconds", field="/clocks")
    names = {item.name for item in fields(Clocks)}
    _closed(data, names, "/clocks")
    return Clocks(**{name: _required(_number(data[name], f"/clocks/{name}"), f"/clocks/{name}") for name in data})


def device_to_json(info: DeviceInfo) -> dict[str, object]:
    """Encode a device as ``device_from_json`` reads it."""
    return {
        "name": info.name,
        "target": info.target.to_json(),
        "hardware": dict(info.hardware),
        "measured": dict(info.measured),
    }


def device_from_json(data: object) -> DeviceInfo:
    """Decode a device. Raises InvalidParameter for anything but ``{name, target, hardware, measured}``."""
    if not isinstance(data, Mapping):
        raise InvalidParameter("a device is an object", field="/device")
    _closed(data, {"name", "target", "hardware", "measured"}, "/device")
    return DeviceInfo(
        _typed(data.get("name"), str, "/device/name"),
        target_from_json(data.get("target")),
        _numbers(data.get("hardware", {}), "/device/hardware"),
        _numbers(data.get("measured", {}), "/device/measured"),
    )


def target_from_json(data: object) -> Target:
    """Decode a target. Raises InvalidParameter for anything but the members of a Target."""
    if not isinstance(data, Mapping):
        raise InvalidParameter("a target is an object", field="/target")
    _closed(data, {"kind", "arch", "features", "threads", "vector_bytes"}, "/target")
    features = data.get("features", [])
    if not isinstance(features, list):
        raise InvalidParameter("features are a list of names", field="/target/features")
    return Target(
        _typed(data.get("kind"), str, "/target/kind"),
        _typed(data.get("arch"), str, "/target/arch"),
        tuple(_typed(name, str, f"/target/features/{i}") for i, name in enumerate(features)),
        _typed(data.get("threads", 1), int, "/target/threads"),
        _typed(data.get("vector_bytes", 16), int, "/target/vector_bytes"),
    )


def toolchain_from_json(data: object) -> Toolchain:
    """Decode a toolchain. Raises InvalidParameter for anything but an object of texts."""
    if not isinstance(data, Mapping):
        raise InvalidParameter("a toolchain is an object of versions", field="/toolchain")
    return Toolchain({str(name): _typed(value, str, f"/toolchain/{name}") for name, value in data.items()})


def value_in(data: Mapping[str, object], name: str, kind: type[T]) -> T:
    """Return the member ``name``, which must have the type ``kind`` (a bool is no int). Raises InvalidParameter."""
    return _typed(data.get(name), kind, f"/{name}")


def number_in(data: Mapping[str, object], name: str) -> float:
    """Return the member ``name``, which must be a number. Raises InvalidParameter."""
    return _required(_number(data.get(name), f"/{name}"), f"/{name}")


def _closed(data: Mapping[str, object], allowed: set[str], where: str) -> None:
    for name in data:
        if name not in allowed:
            raise InvalidParameter(f"{name!r} is not known; allowed: {', '.join(sorted(allowed))}", field=where)


def _typed(value: object, kind: type[T], where: str) -> T:
    if type(value) is not kind:  # isinstance would take a bool for an int
        raise InvalidParameter(f"{value!r} is not of type {kind.__name__}", field=where)
    return value


def _optional(value: object, kind: type[T], where: str) -> T | None:
    return None if value is None else _typed(value, kind, where)


def _number(value: object, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if type(value) not in (int, float):
        raise InvalidParameter(f"{value!r} is no number", field=where)
    return float(value)  # type: ignore[arg-type]


def _required(value: float | None, where: str) -> float:
    if value is None:
        raise InvalidParameter("a number is missing", field=where)
    return value


def _positive(value: object, where: str) -> float:
    number = _number(value, where)
    if number is None or not 0 < number < math.inf:
        raise InvalidParameter(f"{value!r} is no time; allowed: over 0 seconds", field=where)
    return number


def _numbers(data: object, where: str) -> dict[str, float]:
    if not isinstance(data, Mapping):
        raise InvalidParameter("this is an object of numbers", field=where)
    return {str(name): _required(_number(value, f"{where}/{name}"), f"{where}/{name}") for name, value in data.items()}


def _member(kind: type[T], value: object, where: str) -> T:
    try:
        return kind(value)  # type: ignore[call-arg]
    except ValueError as error:
        allowed = ", ".join(str(member) for member in kind)  # type: ignore[attr-defined]
        raise InvalidParameter(f"{value!r} is not known; allowed: {allowed}", field=where) from error


def _number_or_text(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
