"""The least time a device's measured peaks allow for a workload."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.target import DeviceInfo
from ..te.cost import flops, minimum_bytes
from ..te.workload import Workload

COPY, READ = "copy_bytes_per_second", "read_bytes_per_second"


@dataclass(frozen=True, slots=True)
class Roofline:
    """``by``: ``flops`` or ``bytes``, whichever takes longer."""

    seconds: float
    by: str


def roofline(workload: Workload, device: DeviceInfo, measured: Mapping[str, float], cache: str) -> Roofline | None:
    """None when nothing that limits the workload was measured.

    Bytes count only where they must come from memory: with a warm cache, tensors that fit into the last level
    need not. Integer and half-float arithmetic has no measured peak of its own here and is held to float32's.
    """
    wide = any(stage.tensor.dtype.name == "float64" for stage in workload.stages)
    peak = measured.get(f"peak_float{64 if wide else 32}_flops_per_second")
    bandwidth = max((measured[name] for name in (COPY, READ) if name in measured), default=None)
    last_level = max((size for name, size in device.hardware.items() if _is_cache(name)), default=0.0)
    traffic = minimum_bytes(workload)
    limits: list[Roofline] = []
    if peak:
        limits.append(Roofline(flops(workload) / peak, "flops"))
    if bandwidth and not (cache == "warm" and traffic <= last_level):
        limits.append(Roofline(traffic / bandwidth, "bytes"))
    found = max(limits, key=lambda limit: limit.seconds, default=None)
    return found if found is not None and found.seconds > 0 else None


def best_peaks(known: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Of two measurements of one device the better figure each: the higher rate, the shorter time."""
    better = {name: min if name.endswith("_seconds") else max for name in known}
    return {
        **known,
        **{name: better[name](known[name], value) if name in known else value for name, value in now.items()},
    }


def _is_cache(column: str) -> bool:
    return column in ("l2_bytes", "l3_bytes", "l4_bytes")
