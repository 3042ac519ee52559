"""Gives the ceilings that priors of CPU kernels divide by: measured ones of the device, else nominal ones of the
target."""

from dataclasses import dataclass
from math import inf

from ...core.dtypes import DType, float64
from ...core.target import Target
from ..sketch import Peaks

NOMINAL_CLOCK_HZ = 2.5e9
NOMINAL_THREAD_BYTES_PER_SECOND = 10e9
"""What one thread copies through memory, of what is read and of what is written together."""
NOMINAL_SOCKET_BYTES_PER_SECOND = 200e9
"""What all threads copy together, however many there are."""
NOMINAL_L2_VECTORS = 0.75
"""Vectors that a core reads from its second-level cache in one cycle."""
NOMINAL_LAUNCH_SECONDS = 5e-6
"""How long it takes until all threads have begun and ended."""
FMA_UNITS = 2
"""Vector multiply-adds that a core begins in one cycle, which server cores of x86-64 and Arm do."""
TILE_FLOPS_PER_CYCLE = {"bfloat16": 1024.0, "int8": 2048.0}
"""Operations of AMX that a core does in one cycle: one product of tiles takes 16 (Intel 64 and IA-32 Architectures
Optimization Reference Manual, "Intel AMX")."""


@dataclass(frozen=True, slots=True)
class CpuPeaks:
    """Ceilings of one device. Rates are those of all threads together; a multiply-add counts as two operations.

    ``float32_flops`` and ``float64_flops``: multiply-adds on full vectors. ``tile_flops``: operations of AMX for each
    element type. ``memory_bytes_per_second``: bytes copied, read and written ones together. ``read_bytes_per_second``:
    bytes that are only read. ``l2_read_bytes_per_second``: what vectors read from the second-level caches at best;
    infinite where only the others were measured, as earlier versions did. ``launch_seconds``: a kernel that does
    nothing on all threads.
    """

    threads: int
    vector_bytes: int
    clock_hz: float
    float32_flops: float
    float64_flops: float
    tile_flops: dict[str, float]
    memory_bytes_per_second: float
    read_bytes_per_second: float
    l2_read_bytes_per_second: float
    launch_seconds: float

    @property
    def l2_bytes_per_second(self) -> float:
        """Bytes that come from the second-level caches: half a vector for each core and cycle."""
        return self.threads * self.clock_hz * self.vector_bytes / 2

    def vector_flops(self, dtype: DType) -> float:
        """Operations a second of multiply-adds that are summed up in ``dtype``, on full vectors."""
        return self.float64_flops if dtype == float64 else self.float32_flops * 4 / dtype.bytes

    def vector_steps(self) -> float:
        """Vector instructions of arithmetic a second."""
        return self.threads * self.clock_hz * FMA_UNITS


def cpu_peaks(target: Target, measured: Peaks) -> CpuPeaks:
    """Return the ceilings of a device of ``target``: from what was ``measured`` on it, else nominal ones.

    The clock follows from the measured float32 rate, since each unit does one multiply-add of a vector in a cycle.
    """
    cycle_flops = 2.0 * FMA_UNITS * target.threads * max(target.vector_bytes // 4, 1)
    float32_flops = measured.get("peak_float32_flops_per_second") or cycle_flops * NOMINAL_CLOCK_HZ
    clock = float32_flops / cycle_flops
    nominal = min(target.threads * NOMINAL_THREAD_BYTES_PER_SECOND, NOMINAL_SOCKET_BYTES_PER_SECOND)
    memory = measured.get("copy_bytes_per_second") or nominal
    nominal_l2 = NOMINAL_L2_VECTORS * target.threads * target.vector_bytes * clock
    return CpuPeaks(
        threads=target.threads,
        vector_bytes=target.vector_bytes,
        clock_hz=clock,
        float32_flops=float32_flops,
        float64_flops=measured.get("peak_float64_flops_per_second") or float32_flops / 2,
        tile_flops={
            dtype: measured.get(f"peak_tensor_{dtype}_flops_per_second") or flops * clock * target.threads
            for dtype, flops in TILE_FLOPS_PER_CYCLE.items()
        },
        memory_bytes_per_second=memory,
        read_bytes_per_second=measured.get("read_bytes_per_second") or memory,
        l2_read_bytes_per_second=measured.get("l2_read_bytes_per_second") or (inf if measured else nominal_l2),
        launch_seconds=measured.get("launch_seconds") or NOMINAL_LAUNCH_SECONDS,
    )
