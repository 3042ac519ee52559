"""Products of up to 64 rows on the matrix instructions of warpgroups, fed by copies of whole boxes.

One warp does nothing but start copies of boxes of the weights and the tokens into a ring in shared memory; groups of
four warps multiply what has arrived, each its own outputs ``n``, and say which stages are free again. No warp waits for
another but on the ring's arrival barriers. The blocks of a cluster share out ``k``.
"""

from dataclasses import dataclass

from ....core.dtypes import INDEX, float32
from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import WARP_LANES, Compare, CompareOp, Expr, Load, Var, const, index, logical_and
from ....ir.gpu.barrier import WARPGROUP_THREADS
from ....ir.gpu.mbarrier import MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ....ir.gpu.tma import TmaLoad
from ....ir.gpu.wgmma import SWIZZLE_128B, SWIZZLE_128B_ELEMENTS, WGMMA_M, WarpgroupMma, WarpgroupMmaWait
from ....ir.rewrite import free_variables, substitute
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ...problems.gemm import Gemm, Operand
from ...tile.naming import NamingWriter
from ..l2_prefetch import L2Prefetch, ask_for_operands
from ..split_k import Share, add_up, partial_sums
from .mma_mainloop import can_lower

UNROLLED = LoopKind.UNROLLED
WARPGROUP_WARPS = WARPGROUP_THREADS // WARP_LANES


@dataclass(frozen=True, slots=True)
class StreamSetting:
    """``swapped``: whether the tokens take the side of 64 rows, and the weights the other. ``wide``: outputs ``n`` of a
    warp group. ``groups``: warp groups of a block, side by side along ``n``. ``slabs``: times 64 places of ``k`` that
    arrive together. ``stages``: how many such pieces the ring holds. ``split``: blocks of a cluster, which share out
    ``k``. ``resident``: blocks meant for a multiprocessor at once. ``ahead``: how many blocks along ``n``, the first,
    ask for operands ahead of the wait for earlier launches."""

    swapped: bool
    wide: int
    groups: int
    slabs: int
    stages: int
    split: int
    resident: int
    ahead: int = 0

    @property
    def warps(self) -> int:
        return self.groups * WARPGROUP_WARPS + 1

    @property
    def threads(self) -> int:
        return self.warps * WARP_LANES

    @property
    def block_n(self) -> int:
        """Outputs ``n`` of a block."""
        return self.wide * self.groups

    def steps(self, k: int) -> int:
        """Pieces of ``k`` that a block works through."""
        return -(-k // (self.split * self.slabs * SWIZZLE_128B_ELEMENTS))


def lower_streams(p: Gemm, name: str, s: StreamSetting) -> Kernel:
    """The kernel of one setting."""
    return _Program(p, name, s).kernel()


def token_rows(m: int) -> int:
    """Rows of the tokens' tile: their swizzle begins anew every 8."""
    return -(-m // 8) * 8


class _Program:
    def __init__(self, p: Gemm, name: str, s: StreamSetting) -> None:
        assert p.b.load is not None and p.a.load is not None
        self.p, self.s, self.name = p, s, name
        self.b, self.a = p.b.load, p.a.load
        self.dtype = self.b.buffer.dtype
        self.rows = token_rows(p.m.extent)
        self.columns = s.wide if s.swapped else self.rows
        self.along_k = p.b.k == 1
        self.unit = 1 if self.along_k else SWIZZLE_128B_ELEMENTS
        self.steps = s.steps(p.k.extent)
        self.w = NamingWriter(p.names)

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        bounds = [
            ("block", -(-p.n.extent // s.block_n), HardwareAxis.GRID_X),
            ("rank", s.split, HardwareAxis.CLUSTER),
            ("warp", s.warps, HardwareAxis.WARP),
            ("lane", WARP_LANES, HardwareAxis.LANE),
        ]
        if s.split == 1:
            del bounds[1]
        once = (self.b.buffer.name,)
        with w.launch(self.name, bounds, min_blocks=s.resident, evict_first=once) as axes:
            self.block, self.warp, self.lane = axes[0], axes[-2], axes[-1]
            self.rank: Expr = axes[1] if s.split > 1 else index(0)
            self.group = self.warp // WARPGROUP_WARPS
            self.multiplies = self.warp < s.groups * WARPGROUP_WARPS
            self._ask_ahead()
            sums = w.allocate("sums", (self.columns // 2,), float32, MemoryScope.REGISTER)
            with w.scope():
                self._multiply(sums)
            with w.scope():
                self._finish(sums)
        return Kernel(self.name, p.inputs, tuple(r.tensor for r in p.results), (), w.finish())

    def _ask_ahead(self) -> None:
        """The weights that fill the ring, where they lie along ``k``."""
        p, s, reach = self.p, self.s, self.s.slabs * SWIZZLE_128B_ELEMENTS
        if not self.along_k or p.k.extent % (s.split * reach):
            return
        thread, blocks = (self.warp * WARP_LANES + self.lane, s.threads), -(-p.n.extent // s.block_n)
        ask = L2Prefetch(self.w, thread, (self.block, blocks), s.ahead)
        ask_for_operands(ask, p, s.block_n, self.rank * (self.steps * reach), min(s.stages, self.steps) * reach)

    def _rows(self, name: str, count: int) -> Buffer:
        """Rows of 64 places of ``k``."""
        layout = Layout((SWIZZLE_128B_ELEMENTS, 1), SWIZZLE_128B)
        return self.w.allocate(name, (count, SWIZZLE_128B_ELEMENTS), self.dtype, MemoryScope.SHARED, layout)

    def _tiles(self, name: str, count: int) -> Buffer:
        """Tiles of 64 places of ``k`` by 64 of ``n``."""
        layout = Layout((SWIZZLE_128B_ELEMENTS * SWIZZLE_128B_ELEMENTS, SWIZZLE_128B_ELEMENTS, 1), SWIZZLE_128B)
        return self.w.allocate(
            name, (count, SWIZZLE_128B_ELEMENTS, SWIZZLE_128B_ELEMENTS), self.dtype, MemoryScope.SHARED, layout
        )

    def _weights_at(self, stage: Expr, slab: Expr, unit: Expr) -> tuple[Expr, ...]:
        """Where the weights of a slab lie from row or tile ``unit`` of the block on."""
        first = (stage * self.s.slabs + slab) * (self.s.block_n // self.unit) + unit
        return (first, index(0)) if self.along_k else (first, index(0), index(0))

    def _tokens_at(self, stage: Expr, slab: Expr) -> tuple[Expr, ...]:
        return ((stage * self.s.slabs + slab) * self.rows, index(0))

    def _multiply(self, sums: Buffer) -> None:
        s, w = self.s, self.w
        slabs, beyond = s.stages * s.slabs, WGMMA_M - self.rows if s.swapped else 0  # read, but not used
        weights = self._rows if self.along_k else self._tiles
        self.weight_ring = weights("weight_ring", slabs * s.block_n // self.unit)
        self.token_ring = self._rows("token_ring", slabs * self.rows + beyond)
        self.full = w.allocate("full", (s.stages,), INDEX, MemoryScope.SHARED)
        self.free = w.allocate("free", (s.stages,), INDEX, MemoryScope.SHARED)
        first = Compare(CompareOp.EQ, self.lane, index(0))
        copies = Compare(CompareOp.EQ, self.warp, index(s.groups * WARPGROUP_WARPS))
        with w.when(first), w.loop("turn", -(-s.stages // s.warps)) as turn:  # one by one in a warp, whoever does it
            number = turn * s.warps + self.warp
            with w.when(Compare(CompareOp.LT, number, index(s.stages)) if s.stages % s.warps else None):
                w.emit(MbarrierInit(self.full, number, 1))
                w.emit(MbarrierInit(self.free, number, s.groups * WARPGROUP_WARPS))
        w.barrier()
        with w.loop("zero", self.columns // 2, UNROLLED) as e:
            w.store(sums, (e,), const(0.0, float32))
        with w.loop("step", self.steps) as step:
            stage, parity = step % s.stages, (step // s.stages) % 2
            with w.when(logical_and(copies, first)):
                w.emit(MbarrierWait(self.free, stage, index(1) - parity))
                self._copy(step, stage)
            with w.when(self.multiplies):
                w.emit(MbarrierWait(self.full, stage, parity))
                self._products(sums, stage)
                with w.when(first):
                    w.emit(MbarrierArrive(self.free, stage))
        w.barrier()

    def _copy(self, step: Expr, stage: Expr) -> None:
        """Start the copies of one step; what lies outside of the tensors becomes zeros."""
        s, w = self.s, self.w
        rows = s.slabs * (s.block_n + self.rows)
        w.emit(MbarrierArriveExpectTx(self.full, stage, rows * SWIZZLE_128B_ELEMENTS * self.dtype.bytes))
        size = s.block_n if self.along_k else SWIZZLE_128B_ELEMENTS
        with w.loop("slab_copied", s.slabs, UNROLLED) as slab:
            k = ((self.rank * self.steps + step) * s.slabs + slab) * SWIZZLE_128B_ELEMENTS
            with w.loop("box", s.block_n // size, UNROLLED) as box:
                at = {"n": self.block * s.block_n + box * size, "k": k}
                self._box(self.b, at, size, self.weight_ring, self._weights_at(stage, slab, box), stage)
            at = {"m": index(0), "k": k}
            self._box(self.a, at, self.rows, self.token_ring, self._tokens_at(stage, slab), stage)

    def _box(self, load: Load, at: dict[str, Expr], rows: int, ring: Buffer, to: tuple[Expr, ...], stage: Expr) -> None:
        """Copy a box of ``rows`` rows at 64 places of ``k``."""
        extents = tuple(
            SWIZZLE_128B_ELEMENTS if i == Var("k") else rows if free_variables(i) else 1 for i in load.indices
        )
        corner = tuple(substitute(i, at) for i in load.indices)
        self.w.emit(TmaLoad(ring, to, load.buffer, corner, extents, self.full, stage, tx_expected=True))

    def _products(self, sums: Buffer, stage: Expr) -> None:
        s, w, zero = self.s, self.w, index(0)
        with w.loop("slab", s.slabs, UNROLLED) as slab:
            weights = (self.weight_ring, self._weights_at(stage, slab, self.group * (s.wide // self.unit)))
            tokens = (self.token_ring, self._tokens_at(stage, slab))
            operands = (*tokens, *weights) if s.swapped else (*weights, *tokens)
            along_n = not self.along_k
            product = WarpgroupMma(
                sums,
                (zero,),
                *operands,
                self.columns,
                SWIZZLE_128B_ELEMENTS,
                a_transposed=along_n and not s.swapped,
                b_transposed=along_n and s.swapped,
                valid_rows=self.rows if s.swapped else WGMMA_M,
            )
            w.emit(product)
        w.emit(WarpgroupMmaWait(0))

    def _finish(self, sums: Buffer) -> None:
        p, s, w = self.p, self.s, self.w
        partials = partial_sums(w, p, 1, s.block_n, float32)
        with w.when(self.multiplies), w.loop("sum", self.columns // 2, UNROLLED) as e:
            row = (self.warp % WARPGROUP_WARPS) * 16 + self.lane // 4 + ((e // 2) % 2) * 8
            column = (e // 4) * 8 + (self.lane % 4) * 2 + e % 2
            m, n = (row, column) if s.swapped else (column, row)
            extent = WGMMA_M if s.swapped else self.columns
            with w.when(Compare(CompareOp.LT, m, index(p.m.extent)) if p.m.extent < extent else None):
                w.store(partials, (index(0), m, self.group * s.wide + n), Load(sums, (e,)))
        thread = self.warp * WARP_LANES + self.lane
        add_up(w, Share(p, self.block, s.block_n, self.rank, s.split, thread, s.threads), partials, 1)


def can_lower_streams(p: Gemm) -> bool:
    """Whether matrix instructions take the operands, and boxes of both can be copied: every index is one axis or fixed,
    the last is ``k``, or ``n`` of the weights."""
    weights = _in_boxes(p.b, "n", "k") or _in_boxes(p.b, "k", "n")
    return can_lower(p) and weights and _in_boxes(p.a, "m", "k")


def _in_boxes(operand: Operand, outer: str, inner: str) -> bool:
    load = operand.load
    if load is None or not 2 <= len(load.buffer.shape) <= 5 or load.indices[-1] != Var(inner):
        return False
    axes = [i for i in load.indices if free_variables(i)]
    strides = load.buffer.strides[:-1]
    aligned = all(stride * load.buffer.dtype.bytes % 16 == 0 for stride in strides)
    return aligned and len(axes) == 2 and Var(outer) in axes
