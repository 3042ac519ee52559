"""Gives the ceilings that priors of GPU kernels divide by: measured ones of the device, and facts of its
architecture."""

from dataclasses import dataclass

from ...core.target import Target
from ..sketch import Peaks
from ..space.columns import Floats


@dataclass(frozen=True, slots=True)
class _NominalPeaks:
    """What one multiprocessor does in a cycle, and nominal figures for a device that nothing was measured of.

    ``tensor_flops``: dense 16-bit floating point operations of the fastest matrix instructions.
    ``warp_tensor_flops``: those that matrix instructions of single warps sustain (mma.sync on NVIDIA's devices).
    ``shared_bytes`` and ``l2_bytes``: bytes from shared memory and from L2, while all multiprocessors read.
    ``float32_lanes`` and ``float64_lanes``: units that do a multiply-add in a cycle.
    """

    tensor_flops: float
    warp_tensor_flops: float
    shared_bytes: float
    l2_bytes: float
    float32_lanes: int
    float64_lanes: int
    clock_hz: float
    memory_bytes_per_second: float
    launch_seconds: float


ARCHITECTURES: dict[str, _NominalPeaks] = {
    "sm_80": _NominalPeaks(2048, 1800, 128, 40, 64, 32, 1.41e9, 1.4e12, 2.5e-6),
    "sm_89": _NominalPeaks(1024, 900, 128, 40, 128, 2, 2.5e9, 0.9e12, 2.5e-6),
    "sm_90a": _NominalPeaks(4096, 2150, 128, 60, 128, 64, 1.778e9, 4.25e12, 1.7e-6),
    "sm_100a": _NominalPeaks(8192, 2150, 128, 60, 128, 64, 1.85e9, 7.0e12, 1.7e-6),
    "gfx942": _NominalPeaks(2048, 2048, 128, 64, 128, 64, 2.1e9, 4.3e12, 3.0e-6),
    "gfx950": _NominalPeaks(4096, 2048, 128, 64, 128, 64, 2.4e9, 6.5e12, 3.0e-6),
}
"""Architecture -> its traits (CUDA C++ Programming Guide, "Arithmetic Instructions"; the vendors' data sheets). The L2
and warp-level tensor figures of sm_90a were fitted on an H200; the others are estimates."""


@dataclass(frozen=True, slots=True)
class GpuPeaks:
    """The ceilings of one device.

    Rates ``per_cycle`` are those of one multiprocessor, others those of the whole device. ``clock_hz`` is the clock
    under load.
    """

    multiprocessors: int
    clock_hz: float
    tensor_flops_per_cycle: float
    warp_tensor_flops_per_cycle: float
    float32_flops_per_cycle: float
    float64_flops_per_cycle: float
    shared_bytes_per_cycle: float
    l2_bytes_per_cycle: float
    memory_bytes_per_second: float
    launch_seconds: float

    @property
    def memory_bytes_per_cycle(self) -> float:
        """Bytes of global memory that the whole device moves in one cycle."""
        return self.memory_bytes_per_second / self.clock_hz

    def seconds(self, cycles: float) -> float:
        """Return how long ``cycles`` cycles take."""
        return cycles / self.clock_hz


def gpu_peaks(target: Target, measured: Peaks) -> GpuPeaks:
    """Return the ceilings of a device of ``target``: from what was ``measured`` on it, else nominal ones of its
    architecture.

    The clock follows from the measured float32 rate, since each float32 unit does one multiply-add in a cycle.
    """
    traits = ARCHITECTURES[target.arch]
    float32 = measured.get("peak_float32_flops_per_second", 0.0)
    lanes = 2.0 * traits.float32_lanes
    return GpuPeaks(
        multiprocessors=target.threads,
        clock_hz=float32 / (lanes * target.threads) if float32 else traits.clock_hz,
        tensor_flops_per_cycle=traits.tensor_flops,
        warp_tensor_flops_per_cycle=traits.warp_tensor_flops,
        float32_flops_per_cycle=lanes,
        float64_flops_per_cycle=2.0 * traits.float64_lanes,
        shared_bytes_per_cycle=traits.shared_bytes,
        l2_bytes_per_cycle=traits.l2_bytes,
        memory_bytes_per_second=measured.get("copy_bytes_per_second") or traits.memory_bytes_per_second,
        launch_seconds=measured.get("launch_seconds") or traits.launch_seconds,
    )


@dataclass(frozen=True)
class UnitCycles:
    """How many cycles each unit of a multiprocessor takes for one k iteration of one tile, float64[n] each."""

    mma: Floats
    shared: Floats
    l2: Floats
