"""The sketches there are: name -> sketch."""

from ...core.target import Target
from ...te.workload import Workload
from ..sketch import Sketch
from .amdgpu_products import AMDGPU_PRODUCTS
from .cpu_dots import CPU_DOTS, CPU_TILES
from .cpu_gemm import CPU_GEMM
from .cpu_gemv import CPU_GEMV
from .cpu_loops import CPU_LOOPS
from .cuda_columns import CUDA_COLUMNS
from .cuda_gemv import CUDA_GEMV
from .cuda_layers import CUDA_LAYERS
from .cuda_loops import CUDA_LOOPS
from .cuda_mma import CUDA_MMA
from .cuda_permute import CUDA_PERMUTE
from .cuda_pointwise import CUDA_POINTWISE
from .cuda_products import CUDA_PRODUCTS
from .cuda_rows import AMDGPU_ROWS, CUDA_ROWS
from .cuda_skinny import CUDA_SKINNY
from .cuda_skinny_streams import CUDA_SKINNY_STREAMS
from .cuda_windows import CUDA_WINDOWS

SKETCHES: dict[str, Sketch] = {
    s.name: s
    for s in (
        CPU_LOOPS,
        CPU_GEMM,
        CPU_GEMV,
        CPU_DOTS,
        CPU_TILES,
        CUDA_LOOPS,
        CUDA_POINTWISE,
        CUDA_PERMUTE,
        CUDA_WINDOWS,
        CUDA_ROWS,
        CUDA_COLUMNS,
        CUDA_GEMV,
        CUDA_SKINNY,
        CUDA_SKINNY_STREAMS,
        CUDA_PRODUCTS,
        CUDA_LAYERS,
        CUDA_MMA,
        AMDGPU_ROWS,
        AMDGPU_PRODUCTS,
    )
}
"""Name -> sketch; a schedule names the sketch that it belongs to."""


def sketches_for(workload: Workload, target: Target) -> tuple[Sketch, ...]:
    """The sketches to search for the workload on the target, in the table's order: those written for its class, or the
    generic one where there is none."""
    fitting = [sketch for sketch in SKETCHES.values() if sketch.matches(workload, target)]
    return tuple([s for s in fitting if not s.generic] or fitting)
