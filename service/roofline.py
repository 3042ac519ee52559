"""Computes the least time that a device's measured peaks allow for a workload (its roofline)."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.target import DeviceInfo, Target
from ..schedule.tensor_peaks import tensor_flops_per_second
from ..te.contraction import product_of
from ..te.cost import cheapest_stages, flops, minimum_bytes, stage_flops
from ..te.dynamic import at_representative
from ..te.packed_floats import read_dtypes
from ..te.workload import Workload

COPY, READ = "copy_bytes_per_second", "read_bytes_per_second"


@dataclass(frozen=True, slots=True)
class Roofline:
    """``by`` is ``flops`` or ``bytes``, whichever takes longer."""

    seconds: float
    by: str


def roofline(workload: Workload, device: DeviceInfo, measured: Mapping[str, float], cache: str) -> Roofline | None:
    """Return the roofline, or None when nothing that limits the workload was measured.

    Bytes count only where they must come from memory. With a warm cache, tensors that fit into the last level need
    not. The rate of bytes is that of copying where half of them are written, that of reading where none is written,
    and an interpolation of the two otherwise. The rate of a product is that of the best matrix instructions for any of
    its operands (``schedule.tensor_peaks``), where there are some. The rate of other arithmetic is the peak of float32
    or float64; half floats are computed in float32.
    A sum of products has the order with the fewest operations. A dynamic dimension has its representative extent.
    """
    workload = at_representative(workload)
    last_level = max((size for name, size in device.hardware.items() if _is_cache(name)), default=0.0)
    limits = [Roofline(seconds, "flops") for seconds in _arithmetic_seconds(workload, device.target, measured)]
    traffic = minimum_bytes(workload)
    if not (cache == "warm" and traffic <= last_level):
        limits += [Roofline(seconds, "bytes") for seconds in _traffic_seconds(workload, traffic, measured)]
    found = max(limits, key=lambda limit: limit.seconds, default=None)
    return found if found is not None and found.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class PeakRates:
    """The rates that bound a workload, per second; None where nothing was measured."""

    flops_per_second: float | None
    bytes_per_second: float | None


def peak_rates(workload: Workload, target: Target, measured: Mapping[str, float]) -> PeakRates:
    """Return the rates of a workload's roofline: of the arithmetic that takes longest, and of its traffic."""
    workload = at_representative(workload)
    arithmetic = max(_arithmetic_seconds(workload, target, measured), default=0.0)
    bytes_ = minimum_bytes(workload)
    traffic = max(_traffic_seconds(workload, bytes_, measured), default=0.0)
    return PeakRates(flops(workload) / arithmetic if arithmetic else None, bytes_ / traffic if traffic else None)


def _arithmetic_seconds(workload: Workload, target: Target, measured: Mapping[str, float]) -> list[float]:
    """Return the seconds that each kind of unit takes for its operations, as far as its peak is known. The units work
    at the same time."""
    seconds: dict[str, float] = {}
    for stage in (part for written in workload.stages for part in cheapest_stages(written)):
        unit = "float64" if stage.tensor.dtype.name == "float64" else "float32"
        rate = measured.get(f"peak_{unit}_flops_per_second")
        if product_of(stage) is not None:
            dtypes = read_dtypes(stage.body)
            rates = [tensor_flops_per_second(target, measured, dtype, workload.precision) for dtype in dtypes]
            best = max((found for found in rates if found), default=None)
            unit, rate = (unit, rate) if best is None else ("tensor", best)
        if rate:
            seconds[unit] = seconds.get(unit, 0.0) + stage_flops(stage) / rate
    return list(seconds.values())


def _traffic_seconds(workload: Workload, traffic: int, measured: Mapping[str, float]) -> list[float]:
    rates = {name: measured[name] for name in (COPY, READ) if measured.get(name)}
    if len(rates) < 2:
        return [traffic / rate for rate in rates.values()]
    written = sum(tensor.bytes for tensor in workload.output_buffers) / max(traffic, 1)
    copied = min(1.0, 2 * written)
    return [traffic * (copied / rates[COPY] + (1.0 - copied) / max(rates.values()))]


def _is_cache(column: str) -> bool:
    return column in ("l2_bytes", "l3_bytes", "l4_bytes")
