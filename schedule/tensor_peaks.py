"""How fast the best matrix instructions of a device are, for factors of each dtype."""

from ..core.dtypes import DType, float4_e2m1fn
from ..core.precision import IEEE, PRECISIONS
from ..core.target import Target
from .gpu.peaks import ARCHITECTURES, gpu_peaks
from .sketch import Peaks

FLOAT8_ARCHITECTURES = ("sm_89", "sm_90a", "sm_100a", "gfx942", "gfx950")
"""Devices whose matrix units take floats of 8 bits."""
FLOAT4_ARCHITECTURES = ("sm_100a", "gfx950")
"""Those that take floats of 4 bits."""


def tensor_flops_per_second(target: Target, measured: Peaks, dtype: DType, precision: str = IEEE) -> float | None:
    """Operations a second of products of ``dtype`` under ``precision``; None where no matrix unit does them, or nothing
    was measured.

    On a GPU that is what the fastest matrix instructions do at the clock that was measured: on sm_90a those of
    warpgroups (wgmma). What was measured with instructions of single warps (mma.sync) is about half of it there.
    """
    known = measured.get(f"peak_tensor_{dtype}_flops_per_second")
    share = _share(target, dtype, precision)
    if target.arch not in ARCHITECTURES or not share or not measured.get("peak_float32_flops_per_second"):
        return known
    peaks = gpu_peaks(target, measured)
    return max(known or 0.0, share * peaks.tensor_flops_per_cycle * peaks.multiprocessors * peaks.clock_hz)


def _share(target: Target, dtype: DType, precision: str) -> float:
    """Return the rate for a dtype relative to that for 16-bit floats (CUDA C++ Programming Guide, "Arithmetic
    Instructions"); 0 for none."""
    if dtype.is_float and dtype.bits == 16:
        return 1.0
    if dtype.bits == 8 and (dtype.is_integer or (dtype.is_float and target.arch in FLOAT8_ARCHITECTURES)):
        return 2.0
    if dtype == float4_e2m1fn and target.arch in FLOAT4_ARCHITECTURES:
        return 4.0
    found = PRECISIONS[precision]
    if dtype.name == "float32" and found.pairs:
        return (0.5 if found.part == "tfloat32" else 1.0) / len(found.pairs)
    return 0.0
