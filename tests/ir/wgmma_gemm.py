"""A persistent, warp-specialised GEMM on ``wgmma``: a producer warp fills a circular buffer of stages by TMA, two
consumer warpgroups multiply with wgmmas in flight, and the epilogue stores tiles by TMA. Blocks run alone, or in
clusters that share operand B by multicast. Each operand is K-major or transposed. A fault of ``FAULTS`` can be planted;
"" is the right kernel.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.core.dtypes import INDEX, bfloat16, float32
from tilewright.core.streams import stream
from tilewright.ir.buffer import Buffer, Layout, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Cast, Compare, CompareOp, Expr, Load, Ramp, index, logical_and
from tilewright.ir.gpu.barrier import SyncScope
from tilewright.ir.gpu.fence import AsyncProxyFence
from tilewright.ir.gpu.ldmatrix import StoreMatrix
from tilewright.ir.gpu.mbarrier import MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from tilewright.ir.gpu.setmaxnreg import SetMaxRegisters
from tilewright.ir.gpu.tma import TmaLoad, TmaStore, TmaStoreCommit, TmaStoreWait
from tilewright.ir.gpu.wgmma import SWIZZLE_128B, WarpgroupMma, WarpgroupMmaWait
from tilewright.ir.stmt import HardwareAxis, Kernel

M, N, K = 200, 136, 160
TILE_M, TILE_N, STAGES = 128, 128, 2
K_TILES = -(-K // 64)
TILES = 2
"""How many tiles every block computes, one after the other along n."""
ZERO, ONE = index(0), index(1)


@dataclass(frozen=True)
class GemmForm:
    """``a_transposed`` and ``b_transposed`` say whether an operand is transposed, not K-major. ``cluster`` is 2 for
    blocks that each load half of B for both. ``pending`` is how many wgmmas are kept in flight."""

    a_transposed: bool = False
    b_transposed: bool = False
    cluster: int = 1
    pending: int = 1


FAULTS = {
    "wgmma not awaited": "d is accessed while a wgmma that accumulates in it is in flight",
    "stage given early": r"race on a\[0, .*\]: written here, read by thread",
    "one warpgroup for both": r"race on .*: written here, read by thread 128 of block 0",
    "data not awaited": "is read while an asynchronous copy to it is in flight",
    "room not awaited": "is written while|gets more than its|gets bytes after its end|race",
    "wrong parity": "a wait that never ends",
    "bytes forgotten": r"a phase of mbarrier full\[0\] gets bytes after its end",
    "bytes never sent": r"a wait that never ends: phase 0 of full\[0\] gets 32768 of 65536 bytes",
    "never cleared": r"d\[0\] is read before it is written",
    "no fence": "is accessed asynchronously, was written by .* with no async_proxy_fence after that",
    "late fence": "is accessed asynchronously, was written by .* nothing orders its async_proxy_fence before this",
    "no barrier": r"race on c\[.*\]: read here, written by thread",
    "store not awaited": "is written while a wgmma, a tcgen05.mma or a TMA store in flight reads it",
    "too many registers": "warpgroups want 240, 240, 40 registers a thread, 504 together are there",
    "no decrease": "no decrease of registers: from 168 to 176",
    "store never awaited": "is still being read asynchronously where c ends",
}
"""Fault -> the message that it must cause."""
CLUSTER_FAULTS = {
    "not synchronised before": r"mbarrier .* is used before all who use it have synchronised",
    "not synchronised after": "there is no barrier of the cluster between a use of another block's memory and the end",
    "room here alone": r"race on b\[0, .*\]: written here",
    "half of the mask": r"a wait that never ends: phase 0 of full\[0\] gets .* of 32768 bytes",
}


def _operand_stages(rows: int, transposed: bool) -> tuple[tuple[int, ...], Layout]:
    """(shape, layout) of the stages of an operand: rows along k, or chunks of 64 rows across it."""
    if transposed:
        return (STAGES, rows // 64, 64, 64), Layout((rows * 64, 64 * 64, 64, 1), SWIZZLE_128B)
    return (STAGES, rows, 64), Layout((rows * 64, 64, 1), SWIZZLE_128B)


class WgmmaGemm:
    def __init__(self, form: GemmForm, fault: str) -> None:
        self.form, self.fault, self.w = form, fault, Writer()
        self.a = Buffer("A", (K, M) if form.a_transposed else (M, K), bfloat16)
        self.b = Buffer("B", (K, N) if form.b_transposed else (N, K), bfloat16)
        self.result = Buffer("C", (M, N), bfloat16)

    def kernel(self) -> Kernel:
        w, form = self.w, self.form
        axes = [
            ("block", 2 // form.cluster, HardwareAxis.GRID_X),
            ("rank", form.cluster, HardwareAxis.CLUSTER),
            ("u", 12, HardwareAxis.WARP),
            ("l", 32, HardwareAxis.LANE),
        ]
        if form.cluster == 1:
            del axes[1]
        with w.launch("f", axes, min_blocks=1) as variables:
            block, self.warp, self.lane = variables[0], variables[-2], variables[-1]
            self.rank: Expr = variables[1] if form.cluster > 1 else ZERO
            self.row = (block * form.cluster + self.rank) * TILE_M
            self._shared()
            scope = SyncScope.CLUSTER if form.cluster > 1 else SyncScope.BLOCK
            w.barrier(SyncScope.BLOCK if self.fault == "not synchronised before" else scope)
            d = w.allocate("d", (TILE_N // 2,), float32, MemoryScope.REGISTER)
            with w.when(self.warp >= index(8)):
                w.emit(SetMaxRegisters(176 if self.fault == "no decrease" else 40, False))
            with w.when(self.warp < index(8)):
                w.emit(SetMaxRegisters(240 if self.fault == "too many registers" else 232, True))
            with w.loop("tile", TILES) as tile:
                with w.loop("step", K_TILES) as step:
                    self._step(d, tile, step)
                with w.when(self.warp < index(8)):
                    self._finish(d, tile)
            if self.fault != "store never awaited":
                with w.when(logical_and(self.warp < index(8), self.first_of_warpgroup)):
                    w.emit(TmaStoreWait(0))
            if form.cluster > 1 and self.fault != "not synchronised after":
                w.barrier(SyncScope.CLUSTER)
        return Kernel("k", (self.a, self.b), (self.result,), (), w.finish())

    def _shared(self) -> None:
        w, form = self.w, self.form
        shape, layout = _operand_stages(TILE_M, form.a_transposed)
        self.a_stages = w.allocate("a", shape, bfloat16, MemoryScope.SHARED, layout)
        shape, layout = _operand_stages(TILE_N, form.b_transposed)
        self.b_stages = w.allocate("b", shape, bfloat16, MemoryScope.SHARED, layout)
        layout = Layout((64 * TILE_N, 64 * 64, 64, 1), SWIZZLE_128B)
        self.c_tile = w.allocate("c", (2, TILE_N // 64, 64, 64), bfloat16, MemoryScope.SHARED, layout)
        self.full = w.allocate("full", (STAGES,), INDEX, MemoryScope.SHARED)
        self.free = w.allocate("free", (STAGES,), INDEX, MemoryScope.SHARED)
        self.first = Compare(CompareOp.EQ, self.lane, ZERO)
        self.first_of_warpgroup = logical_and(Compare(CompareOp.EQ, self.warp % 4, ZERO), self.first)
        self.copies = logical_and(Compare(CompareOp.EQ, self.warp, index(8)), self.first)
        with w.when(self.copies), w.loop("i", STAGES) as i:
            w.emit(MbarrierInit(self.full, i, 1))
            w.emit(MbarrierInit(self.free, i, 2 * form.cluster))

    def _step(self, d: Buffer, tile: Expr, step: Expr) -> None:
        w, form, fault = self.w, self.form, self.fault
        iteration = tile * K_TILES + step
        stage, parity = iteration % STAGES, iteration // STAGES % 2
        with w.when(self.copies):
            if fault != "room not awaited":
                w.emit(MbarrierWait(self.free, stage, parity if fault == "wrong parity" else ONE - parity))
            whole = 2 * 64 * (TILE_M + TILE_N)
            tx_expected = {"bytes forgotten": whole // 2, "bytes never sent": 2 * whole}.get(fault, whole)
            w.emit(MbarrierArriveExpectTx(self.full, stage, tx_expected))
            self._copy(self.a_stages, self.a, self.row, step, stage, form.a_transposed)
            self._copy(self.b_stages, self.b, tile * TILE_N, step, stage, form.b_transposed, multicast=form.cluster > 1)
        with w.when(self.warp < index(8)):
            if fault != "data not awaited":
                w.emit(MbarrierWait(self.full, stage, parity))
            warpgroup = self.warp // 4
            at = (stage, warpgroup, ZERO, ZERO) if form.a_transposed else (stage, warpgroup * 64, ZERO)
            other = (stage, *[ZERO] * (len(self.b_stages.shape) - 1))
            adds = True if fault == "never cleared" else step > ZERO
            transposed = (form.a_transposed, form.b_transposed)
            w.emit(WarpgroupMma(d, (ZERO,), self.a_stages, at, self.b_stages, other, TILE_N, 64, adds, *transposed))
            w.emit(WarpgroupMmaWait(form.pending))
            if fault == "stage given early" or not form.pending:
                self._release(stage, None)
            else:
                self._release((iteration + STAGES - 1) % STAGES, step > ZERO)

    def _copy(
        self,
        stages: Buffer,
        source: Buffer,
        row: Expr,
        step: Expr,
        stage: Expr,
        transposed: bool,
        multicast: bool = False,
    ) -> None:
        """Boxes of 64 rows. ``multicast`` ones go to both blocks of the cluster, one from each."""
        w = self.w
        mask = index(1 if self.fault == "half of the mask" else 3) if multicast else None
        with w.unrolled(f"{stages.name}_chunk", 1 if multicast else 2) as n:
            chunk = self.rank if multicast else n
            to = (stage, chunk, ZERO, ZERO) if transposed else (stage, chunk * 64, ZERO)
            at = (step * 64, row + chunk * 64) if transposed else (row + chunk * 64, step * 64)
            w.emit(TmaLoad(stages, to, source, at, (64, 64), self.full, stage, True, mask))

    def _release(self, stage: Expr, when: Expr | None) -> None:
        """Release a stage: it may be filled again."""
        w, form = self.w, self.form
        conditions = [Compare(CompareOp.EQ, self.warp % 4, ZERO), self.lane < index(form.cluster)]
        if self.fault == "one warpgroup for both":
            conditions = [Compare(CompareOp.EQ, self.warp, ZERO), self.lane < index(2)]
        with w.when(logical_and(*conditions, *([] if when is None else [when]))):
            away = form.cluster > 1 and self.fault != "room here alone"
            w.emit(MbarrierArrive(self.free, stage, self.lane if away else None))

    def _finish(self, d: Buffer, tile: Expr) -> None:
        w, fault, c_tile = self.w, self.fault, self.c_tile
        warpgroup = self.warp // 4
        if fault != "wgmma not awaited":
            w.emit(WarpgroupMmaWait(0))
        if self.form.pending and fault != "stage given early":
            self._release((tile * K_TILES + K_TILES - 1) % STAGES, None)
        half = w.allocate("h", (TILE_N // 2,), bfloat16, MemoryScope.REGISTER)
        with w.unrolled("e", TILE_N // 4) as e:
            w.store(half, (Ramp(e * 2, 1, 2),), Cast(Load(d, (Ramp(e * 2, 1, 2),)), bfloat16))
        if fault != "store not awaited":
            with w.when(self.first_of_warpgroup):
                w.emit(TmaStoreWait(0))
        w.barrier(SyncScope.WARPGROUP)
        with w.unrolled("j", TILE_N // 16) as j:
            row, column = self.warp % 4 * 16 + self.lane % 16, j % 4 * 16 + self.lane // 16 * 8
            w.emit(StoreMatrix(c_tile, (warpgroup, j // 4, row, column), half, (j * 8,), 4))
        if fault == "late fence":
            w.barrier(SyncScope.WARPGROUP)
        if fault != "no fence":
            w.emit(AsyncProxyFence())
        if fault not in ("no barrier", "late fence"):
            w.barrier(SyncScope.WARPGROUP)
        with w.when(self.first_of_warpgroup):
            with w.unrolled("subtile", TILE_N // 64) as subtile:
                at = (self.row + warpgroup * 64, tile * TILE_N + subtile * 64)
                w.emit(TmaStore(self.result, at, c_tile, (warpgroup, subtile, ZERO, ZERO), (64, 64)))
            w.emit(TmaStoreCommit())


def wgmma_gemm(form: GemmForm, fault: str = "") -> Kernel:
    """``C = A @ B.T`` of bfloat16, 200x136x160, in tiles of 128x128 of which a block makes two."""
    return WgmmaGemm(form, fault).kernel()


def data(form: GemmForm) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(inputs, result in float32): small whole numbers, so that accumulators are exact in any order and fit
    bfloat16."""
    draw = stream(7, "tensor products")
    a, b = draw.integers(-1, 2, (M, K)), draw.integers(-1, 2, (N, K))
    given = {"A": a.T if form.a_transposed else a, "B": b.T if form.b_transposed else b}
    inputs = {name: np.ascontiguousarray(v).astype(ml_dtypes.bfloat16) for name, v in given.items()}
    return inputs, (a @ b.T).astype(np.float32)


FORMS = {
    "both K-major": GemmForm(),
    "a transposed": GemmForm(a_transposed=True),
    "b transposed": GemmForm(b_transposed=True),
    "both transposed": GemmForm(a_transposed=True, b_transposed=True),
    "nothing in flight": GemmForm(pending=0),
    "cluster": GemmForm(cluster=2),
    "cluster transposed": GemmForm(a_transposed=True, b_transposed=True, cluster=2),
}
