"""The frame of a product whose CTAs copy both operands to stages in shared memory by cp.async.

``gemm_mma`` and ``gemm_simt`` multiply what lies there each in its own way. A launch has one CTA for each tile of the
result, or a cluster of ``split_k`` CTAs; a CTA has ``warps_m * warps_n`` warps.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...ir.buffer import Buffer, MemoryScope
from ...ir.expr import WARP_LANES, Expr, index
from ...ir.stmt import Kernel
from ..loop_nest.nest import KERNEL_NAME
from ..problems.gemm import Gemm
from ..space.columns import Ints
from ..tile.names import FreshNameWriter
from .gemm.repack import as_stored, repack
from .gemm.tile_scheduler import TileScheduler
from .launch_axes import warp_axes
from .staged_copies import StagedCopies

GROUP_M = 8
"""Tiles along m that are scheduled before the next along n."""
N = TypeVar("N", int, Ints)


@dataclass(frozen=True)
class MultistageSizes(Generic[N]):
    """All sizes of one setting (``N`` is int), or of many settings at once (``N`` is a column, int64[n]).

    The first fields are knobs; the others follow from the knobs.

    ``tile_m``, ``tile_n``, ``tiles``: how large the tile of a CTA is, and how many tiles there are.
    ``threads``: how many threads a CTA has.
    ``k_iters``: how many iterations the main loop has, each of ``block_k`` places of ``k``.
    ``stages``, ``stage_bytes``: how many stages the pipeline has, and what each takes.
    ``copies``: how many copies a thread makes for a stage.
    ``registers``: about how many registers a thread takes.
    ``room``, ``shared_bytes``: how much shared memory a CTA may take, and how much it takes.
    """

    warps_m: N
    warps_n: N
    block_k: N
    split_k: N
    ctas_per_sm: N
    repacked: N
    tile_m: N
    tile_n: N
    tiles: N
    threads: N
    k_iters: N
    stages: N
    stage_bytes: N
    copies: N
    registers: N
    room: N
    shared_bytes: N

    @property
    def blocks(self) -> N:
        """How many CTAs a launch has."""
        return self.tiles * self.split_k


class MultistageGemmWriter(ABC):
    """Writes the kernel of one setting. Subclasses write the main loop and the epilogue."""

    def __init__(self, gemm: Gemm, sizes: MultistageSizes[int]) -> None:
        self.gemm, self._sizes = gemm, sizes
        self.distance = max(sizes.stages - 1, 1)
        """How many k iterations ahead stages are filled."""
        self.w = FreshNameWriter(gemm.names)

    @abstractmethod
    def accumulator_shape(self) -> tuple[int, ...]:
        """Return the shape of a lane's accumulators."""

    @abstractmethod
    def mainloop(self, accumulators: Buffer) -> None:
        """Write the main loop, after which ``accumulators`` hold the products."""

    @abstractmethod
    def epilogue(self, accumulators: Buffer) -> None:
        """Write what stores the outputs."""

    def kernel(self) -> Kernel:
        s, w = self._sizes, self.w
        workspace: tuple[Buffer, ...] = ()
        if s.repacked:
            self.gemm, workspace = repack(w, as_stored(self.gemm))
        gemm = self.gemm
        scheduler = TileScheduler(gemm, s.tile_m, s.tile_n, GROUP_M)
        axes = warp_axes(scheduler.cluster_tiles, s.warps_m * s.warps_n, s.split_k, block="tile", rank="cta")
        with w.launch(KERNEL_NAME, axes, min_blocks=s.ctas_per_sm) as numbers:
            warp, self.lane = numbers[-2], numbers[-1]
            self.k_rank: Expr = numbers[1] if s.split_k > 1 else index(0)
            self.thread = warp * WARP_LANES + self.lane
            self.at = scheduler.origin(numbers[0], index(0))
            tile = (s.tile_m, s.tile_n, s.block_k, s.k_iters, s.split_k)
            self.copies = StagedCopies(w, gemm, self.at, *tile, self.k_rank, self.thread, s.threads)
            self.warp_m = warp // s.warps_n * (s.tile_m // s.warps_m) if s.warps_m > 1 else index(0)
            self.warp_n = warp % s.warps_n * (s.tile_n // s.warps_n) if s.warps_n > 1 else index(0)
            shape, dtype = self.accumulator_shape(), gemm.accumulator.dtype
            accumulators = w.allocate("accumulators", shape, dtype, MemoryScope.REGISTER)
            with w.scope():
                self.mainloop(accumulators)
            with w.scope():
                self.epilogue(accumulators)
        return Kernel(KERNEL_NAME, gemm.inputs, tuple(r.tensor for r in gemm.results), workspace, w.finish())
