"""The table of all sketches. A new one is added here."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module

from ..core.lazy_table import LazyTable
from ..core.target import Target
from ..te.triton import TritonWorkload
from ..te.workload import Workload
from .contraction_chain import CONTRACTIONS
from .decomposition import CORRELATION, CPU_DECOMPOSED, DECOMPOSED, PAIRWISE
from .gpu.triton import CUDA_TRITON
from .parallel_split_k import PARALLEL_SPLIT_K
from .permuted_product import CPU_PERMUTED, PERMUTED
from .sketch import Sketch
from .step_chain import Decomposer, StepChain
from .tile_sketch import TileSketch

_CLASSES: Mapping[str, Mapping[str, str]] = {
    "llvm": {
        "cpu_loops": "cpu.loops.sketch:CPU_LOOPS",
        "cpu_gemm": "cpu.gemm.fma:CPU_GEMM",
        "cpu_winograd": "cpu.winograd.space:CPU_WINOGRAD",
        "cpu_gemv": "cpu.gemv.space:CPU_GEMV",
        "cpu_gemm_dot": "cpu.gemm.dot_products:CPU_GEMM_DOT",
        "cpu_gemm_amx": "cpu.gemm.dot_products:CPU_GEMM_AMX",
        "cpu_scan": "cpu.scan.space:CPU_SCAN",
        "cpu_scatter": "cpu.scatter.space:CPU_SCATTER",
        "cpu_ranges": "cpu.ranges:CPU_RANGES",
    },
    "cuda": {
        "cuda_loops": "gpu.loops.space:CUDA_LOOPS",
        "cuda_plane_window": "gpu.plane_window.space:CUDA_PLANE_WINDOW",
        "cuda_row_window": "gpu.row_window.space:CUDA_ROW_WINDOW",
        "cuda_long_window": "gpu.long_window.space:CUDA_LONG_WINDOW",
        "cuda_separable_window": "gpu.separable_window.space:CUDA_SEPARABLE_WINDOW",
        "cuda_pointwise": "gpu.pointwise.space:CUDA_POINTWISE",
        "cuda_thread_tile": "gpu.thread_tile.space:CUDA_THREAD_TILE",
        "cuda_permute": "gpu.permute.space:CUDA_PERMUTE",
        "cuda_depthwise": "gpu.depthwise.space:CUDA_DEPTHWISE",
        "cuda_depthwise_wgrad": "gpu.depthwise_gradient.space:CUDA_DEPTHWISE_WGRAD",
        "cuda_window": "gpu.window.space:CUDA_WINDOW",
        "cuda_rowwise": "gpu.rowwise.space:CUDA_ROWWISE",
        "cuda_rowwise_split": "gpu.rowwise.split:CUDA_ROWWISE_SPLIT",
        "cuda_rowwise_cooperative": "gpu.rowwise.cooperative:CUDA_ROWWISE_COOPERATIVE",
        "cuda_columnwise": "gpu.columnwise.space:CUDA_COLUMNWISE",
        "cuda_columnwise_persistent": "gpu.columnwise.persistent:CUDA_COLUMNWISE_PERSISTENT",
        "cuda_scan": "gpu.scan.space:CUDA_SCAN",
        "cuda_scatter": "gpu.scatter.space:CUDA_SCATTER",
        "cuda_scatter_private": "gpu.scatter.private_space:CUDA_SCATTER_PRIVATE",
        "cuda_scatter_atomic": "gpu.scatter.atomic_space:CUDA_SCATTER_ATOMIC",
        "cuda_gemv": "gpu.gemv.space:CUDA_GEMV",
        "cuda_skinny_mma": "gpu.skinny.mma_space:CUDA_SKINNY_MMA",
        "cuda_skinny_tma": "gpu.skinny.tma_space:CUDA_SKINNY_TMA",
        "cuda_skinny_mixed": "gpu.skinny.mixed_space:CUDA_SKINNY_MIXED",
        "cuda_gemm": "gpu.gemm.space:CUDA_GEMM",
        "cuda_gemm_swap_ab": "gpu.gemm.swap_ab_space:CUDA_GEMM_SWAP_AB",
        "cuda_gemm_row_reduction": "gpu.gemm.row_reduction_space:CUDA_GEMM_ROW_REDUCTION",
        "cuda_gemm_tcgen05": "gpu.gemm.tcgen05_space:CUDA_GEMM_TCGEN05",
        "cuda_conv_mma": "gpu.conv_mma.space:CUDA_CONV_MMA",
        "cuda_conv_few_channels": "gpu.conv_few_channels.space:CUDA_CONV_FEW_CHANNELS",
        "cuda_conv": "gpu.conv.space:CUDA_CONV",
        "cuda_conv_wgrad": "gpu.conv.weight_gradient:CUDA_CONV_WGRAD",
        "cuda_mlp": "gpu.mlp.space:CUDA_MLP",
        "cuda_attention": "gpu.attention.space:CUDA_ATTENTION",
        "cuda_attention_mma": "gpu.attention_mma.space:CUDA_ATTENTION_MMA",
        "cuda_gemm_mma": "gpu.gemm_mma.space:CUDA_GEMM_MMA",
        "cuda_gemm_simt": "gpu.gemm_simt.space:CUDA_GEMM_SIMT",
    },
    "amdgpu": {
        "amdgpu_rowwise": "gpu.rowwise.space:AMDGPU_ROWWISE",
        "amdgpu_scan": "gpu.scan.space:AMDGPU_SCAN",
        "amdgpu_gemm": "gpu.gemm_mfma.space:AMDGPU_GEMM",
    },
}
"""Kind of target -> name -> ``module:sketch`` in this folder. Named rather than imported: a process loads the sketches
of the kinds that it uses."""
_CHAINS: Mapping[str, Mapping[str, Decomposer]] = {
    "llvm": {"cpu_chain": CONTRACTIONS, "cpu_permuted": CPU_PERMUTED, "cpu_decomposed": CPU_DECOMPOSED},
    "cuda": {
        "cuda_chain": CONTRACTIONS,
        "cuda_pairwise": PAIRWISE,
        "cuda_correlation": CORRELATION,
        "cuda_decomposed": DECOMPOSED,
        "cuda_parallel_split_k": PARALLEL_SPLIT_K,
        "cuda_permuted": PERMUTED,
    },
    "amdgpu": {"amdgpu_chain": CONTRACTIONS},
}
"""Kind of target -> name -> what the workloads of that sketch are decomposed into."""
_KINDS = {name: kind for table in (_CLASSES, _CHAINS) for kind, names in table.items() for name in names}


@cache
def _of_kind(kind: str) -> Mapping[str, Sketch]:
    """Return the sketches for a kind of target by name; none for a kind that has none."""
    if kind not in _CLASSES:
        return {}
    classes: list[TileSketch] = []
    for place in _CLASSES[kind].values():
        module, name = place.split(":")
        classes.append(getattr(import_module(f".{module}", __package__), name))
    sketches: list[Sketch] = [*classes]
    sketches += [StepChain(name, kind, classes, source) for name, source in _CHAINS[kind].items()]
    return {sketch.name: sketch for sketch in sketches}


def _load(name: str) -> Sketch:
    return CUDA_TRITON if name == CUDA_TRITON.name else _of_kind(_KINDS[name])[name]


SKETCHES: Mapping[str, Sketch] = LazyTable(_KINDS, _load)
"""Name -> sketch. A schedule names the sketch that it belongs to."""
ALL_SKETCHES: Mapping[str, Sketch] = LazyTable((*_KINDS, CUDA_TRITON.name), _load)
"""With the configurations of Triton kernels, which no kernel IR is made of and no cost model learns from."""


def sketches_for(workload: Workload, target: Target) -> tuple[Sketch, ...]:
    """Return the sketches to search for the workload on the target, in the order of the table. They are those written
    for its class, or the generic one where there is none."""
    return tuple(class_sketches(workload, target)) or tuple(_matching(workload, target, generic=True))


def class_sketches(workload: Workload, target: Target) -> Iterator[Sketch]:
    """Yield the sketches that are written for the class of the workload, in the order of the table."""
    return _matching(workload, target, generic=False)


def _matching(workload: Workload, target: Target, *, generic: bool) -> Iterator[Sketch]:
    of_kind = _of_kind(target.kind).values()
    table: Iterable[Sketch] = [CUDA_TRITON] if isinstance(workload, TritonWorkload) else of_kind
    return (s for s in table if s.generic is generic and s.matches(workload, target))
