"""The table of all sketches. A new one is added here."""

from collections.abc import Iterable, Iterator

from ..core.target import Target
from ..te.triton import TritonWorkload
from ..te.workload import Workload
from .contraction_chain import ContractionChain
from .cpu.gemm.dot_products import CPU_GEMM_AMX, CPU_GEMM_DOT
from .cpu.gemm.fma import CPU_GEMM
from .cpu.gemv.space import CPU_GEMV
from .cpu.loops.sketch import CPU_LOOPS
from .cpu.scan.space import CPU_SCAN
from .cpu.winograd.space import CPU_WINOGRAD
from .gpu.attention.space import CUDA_ATTENTION
from .gpu.columnwise.space import CUDA_COLUMNWISE
from .gpu.conv.space import CUDA_CONV
from .gpu.gemm.space import CUDA_GEMM
from .gpu.gemm.tcgen05_space import CUDA_GEMM_TCGEN05
from .gpu.gemm_mfma.space import AMDGPU_GEMM
from .gpu.gemm_mma.space import CUDA_GEMM_MMA
from .gpu.gemm_simt.space import CUDA_GEMM_SIMT
from .gpu.gemv.space import CUDA_GEMV
from .gpu.loops.space import CUDA_LOOPS
from .gpu.mlp.space import CUDA_MLP
from .gpu.permute.space import CUDA_PERMUTE
from .gpu.pointwise.space import CUDA_POINTWISE
from .gpu.rowwise.space import AMDGPU_ROWWISE, CUDA_ROWWISE
from .gpu.rowwise.split import CUDA_ROWWISE_SPLIT
from .gpu.scan.space import AMDGPU_SCAN, CUDA_SCAN
from .gpu.skinny.mma_space import CUDA_SKINNY_MMA
from .gpu.skinny.tma_space import CUDA_SKINNY_TMA
from .gpu.triton import CUDA_TRITON
from .gpu.window.space import CUDA_WINDOW
from .sketch import Sketch

_CLASSES = (
    CPU_LOOPS,
    CPU_GEMM,
    CPU_WINOGRAD,
    CPU_GEMV,
    CPU_GEMM_DOT,
    CPU_GEMM_AMX,
    CPU_SCAN,
    CUDA_LOOPS,
    CUDA_POINTWISE,
    CUDA_PERMUTE,
    CUDA_WINDOW,
    CUDA_ROWWISE,
    CUDA_ROWWISE_SPLIT,
    CUDA_COLUMNWISE,
    CUDA_SCAN,
    CUDA_GEMV,
    CUDA_SKINNY_MMA,
    CUDA_SKINNY_TMA,
    CUDA_GEMM,
    CUDA_GEMM_TCGEN05,
    CUDA_CONV,
    CUDA_MLP,
    CUDA_ATTENTION,
    CUDA_GEMM_MMA,
    CUDA_GEMM_SIMT,
    AMDGPU_ROWWISE,
    AMDGPU_SCAN,
    AMDGPU_GEMM,
)
_CHAINS = (
    ContractionChain("cpu_chain", "llvm", _CLASSES),
    ContractionChain("cuda_chain", "cuda", _CLASSES),
    ContractionChain("amdgpu_chain", "amdgpu", _CLASSES),
)
SKETCHES: dict[str, Sketch] = {s.name: s for s in (*_CLASSES, *_CHAINS)}
"""Name -> sketch. A schedule names the sketch that it belongs to."""
ALL_SKETCHES: dict[str, Sketch] = {**SKETCHES, CUDA_TRITON.name: CUDA_TRITON}
"""With the configurations of Triton kernels, which no kernel IR is made of and no cost model learns from."""


def sketches_for(workload: Workload, target: Target) -> tuple[Sketch, ...]:
    """Return the sketches to search for the workload on the target, in the order of the table. They are those written
    for its class, or the generic one where there is none."""
    return tuple(class_sketches(workload, target)) or tuple(_matching(workload, target, generic=True))


def class_sketches(workload: Workload, target: Target) -> Iterator[Sketch]:
    """Yield the sketches that are written for the class of the workload, in the order of the table."""
    return _matching(workload, target, generic=False)


def _matching(workload: Workload, target: Target, *, generic: bool) -> Iterator[Sketch]:
    table: Iterable[Sketch] = [CUDA_TRITON] if isinstance(workload, TritonWorkload) else SKETCHES.values()
    return (s for s in table if s.generic is generic and s.matches(workload, target))
