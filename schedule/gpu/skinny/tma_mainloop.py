"""Writes the kernel of ``cuda_skinny_tma``: products with at most 64 rows on wgmma, fed by TMA with warp
specialisation.

    producer warp                              consumer warpgroups, each with its own outputs n
    for each tile of k:                        for each tile of k:
        wait until its stage is empty              wait until its stage is full
        TMA loads of B and A into it               wgmma of A and B
                                                   arrive at the stage's "empty" mbarrier
                                               accumulators to shared memory; epilogue

No warp waits for another but at the mbarriers of the stages. The blocks of a cluster divide ``k`` among them (split-K).
With swap_ab, B is the left operand of wgmma, whose 64 rows are outputs ``n`` then, and the rows of A, rounded up to a
multiple of 8, are its N. Without it, A is the left operand, and those of the 64 rows that A does not have are computed
from whatever lies behind A, and dropped.

Operands of float32 that are split into planes have swap_ab. A first launch packs the planes of A, which is small. B is
read once, as it lies in memory: consumers load it from shared memory into registers, split it there
(``split_fragments``), and promote the sums of each atom of ``k``.
"""

from collections.abc import Mapping
from dataclasses import replace

from ....core.dtypes import INDEX, DType, float32
from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import WARP_LANES, Expr, Load, Var, const, index
from ....ir.gpu.barrier import WARPGROUP_THREADS
from ....ir.gpu.mbarrier import MbarrierArrive, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ....ir.gpu.tma import TmaLoad, tma_swizzle
from ....ir.gpu.wgmma import LINE_BYTES, SWIZZLE_128B_ELEMENTS, WGMMA_M, WarpgroupMma, WarpgroupMmaWait
from ....ir.rewrite import free_variables, substitute
from ....ir.stmt import Kernel
from ....te.functions import equal
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm
from ...tile.names import FreshNameWriter
from ..gemm.mma_atom import PLANES, find_atom, splitting, wgmma_atom
from ..gemm.pack import pack_operand
from ..l2_prefetch import L2Prefetch, prefetch_operands
from ..launch_axes import warp_axes
from ..permuted_rows import permuted_row
from ..split_k import ColumnSlice, allocate_partials, reduce_columns
from ..tma_view import ending_at
from .mma_mainloop import can_lower_skinny_mma
from .split_fragments import SplitFragments
from .tma_sizes import SkinnyTmaSizes

WARPGROUP_WARPS = WARPGROUP_THREADS // WARP_LANES


def lower_skinny_tma(p: Gemm, s: SkinnyTmaSizes[int]) -> Kernel:
    """Return the kernel of one setting."""
    return _SkinnyTmaWriter(p, s).kernel()


class _SkinnyTmaWriter:
    """``b_unit`` is how many outputs ``n`` one entry of the outermost dimension of the stages of B holds: a row where B
    is K-major, a line of 128 bytes along ``n``, for each ``k`` of an atom, where it is N-major. ``b_lines`` is how many
    lines of 128 bytes a row of B takes in an atom where B is K-major, otherwise 1."""

    def __init__(self, p: Gemm, s: SkinnyTmaSizes[int]) -> None:
        assert p.b.load is not None and p.a.load is not None
        self.p, self.s = p, s
        self.b, self.a = (ending_at(load, {"k": p.k.extent}) for load in (p.b.load, _with_rows(p)))
        self.atom, self.precision = wgmma_atom(p), splitting(p)
        self.planes = max(self.precision.planes, 1)
        self.b_is_k_major = p.b.k == 1
        self.b_unit = 1 if self.b_is_k_major else LINE_BYTES // self.b.buffer.dtype.bytes
        self.b_lines = s.b_lines if self.b_is_k_major else 1
        self.w = FreshNameWriter(p.names)

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        bounds = warp_axes(s.blocks_n, s.warps, s.split_k)
        read_once = (self.b.buffer.name,)
        workspace: tuple[Buffer, ...] = ()
        if self.planes > 1:
            self.a = pack_operand(w, p, p.a, "m", self.atom.b)
            workspace = (self.a.buffer,)
        with w.launch(KERNEL_NAME, bounds, min_blocks=s.ctas_per_sm, evict_first=read_once) as axes:
            self.block, self.warp, self.lane = axes[0], axes[-2], axes[-1]
            self.rank: Expr = axes[1] if s.split_k > 1 else index(0)
            self.warpgroup = self.warp // WARPGROUP_WARPS
            self.is_consumer = self.warp < s.consumer_warpgroups * WARPGROUP_WARPS
            self._prefetch()
            accumulators = w.allocate("accumulators", (s.wgmma_n // 2,), float32, MemoryScope.REGISTER)
            with w.scope():
                self._mainloop(accumulators)
            with w.scope():
                self._epilogue(accumulators)
        return Kernel(KERNEL_NAME, p.inputs, tuple(r.tensor for r in p.results), workspace, w.finish())

    def _prefetch(self) -> None:
        """L2 prefetch of the B that fills all stages, where B is K-major."""
        p, s, tile_k = self.p, self.s, self.s.k_atoms * self.atom.line
        if not self.b_is_k_major or p.k.extent % (s.split_k * tile_k):
            return
        thread = (self.warp * WARP_LANES + self.lane, s.threads)
        prefetch = L2Prefetch(self.w, thread, (self.block, s.blocks_n), s.prefetching_ctas)
        prefetch_operands(prefetch, p, s.block_n, self.rank * (s.k_tiles * tile_k), min(s.stages, s.k_tiles) * tile_k)

    # --- the stages in shared memory

    def _rows(self, name: str, count: int, dtype: DType) -> Buffer:
        """Lines of 128 bytes along ``k``."""
        line = LINE_BYTES // dtype.bytes
        return self.w.allocate(name, (count, line), dtype, MemoryScope.SHARED, Layout((line, 1), tma_swizzle(dtype)))

    def _tiles(self, name: str, count: int) -> Buffer:
        """Lines of 128 bytes along ``n`` for each ``k`` of an atom."""
        dtype, lines, line = self.b.buffer.dtype, self.atom.line, self.b_unit
        layout = Layout((lines * line, line, 1), tma_swizzle(dtype))
        return self.w.allocate(name, (count, lines, line), dtype, MemoryScope.SHARED, layout)

    def _b_at(self, stage: Expr, atom: Expr, unit: Expr, line: int = 0) -> tuple[Expr, ...]:
        """Return the indices of the B of one atom of ``k`` from row or tile ``unit`` of the block on. ``line``: which
        of the lines of that atom."""
        lines = (stage * self.s.k_atoms + atom) * self.b_lines + line
        first = lines * (self.s.block_n // self.b_unit) + unit
        return (first, index(0)) if self.b_is_k_major else (first, index(0), index(0))

    def _a_at(self, stage: Expr, atom: Expr, plane: int = 0) -> tuple[Expr, ...]:
        """Return the indices of one plane of the A of one atom of ``k``."""
        return (((stage * self.s.k_atoms + atom) * self.planes + plane) * self.s.a_rows, index(0))

    def _mainloop(self, accumulators: Buffer) -> None:
        s, w = self.s, self.w
        atoms = s.stages * s.k_atoms
        if self.b_is_k_major:
            self.b_stages = self._rows("b_stages", atoms * self.b_lines * s.block_n, self.b.buffer.dtype)
        else:
            self.b_stages = self._tiles("b_stages", atoms * s.block_n // self.b_unit)
        self.a_stages = self._rows("a_stages", atoms * self.planes * s.a_rows + s.a_spare_rows, self.a.buffer.dtype)
        multiply = self._multiply
        if self.planes > 1:
            self.fragments = SplitFragments(w, self.atom, self.precision, self.b_stages, s.wgmma_n)
            multiply = self._multiply_planes
        self.full = w.allocate("full", (s.stages,), INDEX, MemoryScope.SHARED)
        self.empty = w.allocate("empty", (s.stages,), INDEX, MemoryScope.SHARED)
        elected = equal(self.lane, 0)
        is_producer = equal(self.warp, s.consumer_warpgroups * WARPGROUP_WARPS)
        self._initialise_barriers(elected)
        with w.unrolled("zero", s.wgmma_n // 2) as e:
            w.store(accumulators, (e,), const(0.0, float32))
        with w.loop("k_tile", s.k_tiles) as k_tile:
            stage, phase = k_tile % s.stages, (k_tile // s.stages) % 2
            with w.when(is_producer, elected):
                w.emit(MbarrierWait(self.empty, stage, index(1) - phase))
                self._load(k_tile, stage)
            with w.when(self.is_consumer):
                w.emit(MbarrierWait(self.full, stage, phase))
                multiply(accumulators, stage)
                with w.when(elected):
                    w.emit(MbarrierArrive(self.empty, stage))
        w.barrier()

    def _initialise_barriers(self, elected: Expr) -> None:
        """The first lanes of all warps initialise the mbarriers of the stages, which they divide among them."""
        s, w = self.s, self.w
        with w.when(elected), w.loop("turn", -(-s.stages // s.warps)) as turn:
            stage = turn * s.warps + self.warp
            with w.when(stage < s.stages if s.stages % s.warps else None):
                w.emit(MbarrierInit(self.full, stage, 1))
                w.emit(MbarrierInit(self.empty, stage, s.consumer_warpgroups * WARPGROUP_WARPS))
        w.barrier()

    def _load(self, k_tile: Expr, stage: Expr) -> None:
        """Start the TMA loads of one tile of ``k``. What lies outside of the tensors becomes zeros."""
        s, w = self.s, self.w
        w.emit(MbarrierArriveExpectTx(self.full, stage, s.k_atoms * s.atom_bytes))
        box_n = s.block_n if self.b_is_k_major else self.b_unit
        with w.unrolled("loaded_atom", s.k_atoms) as atom:
            k = ((self.rank * s.k_tiles + k_tile) * s.k_atoms + atom) * self.atom.line
            b_k = self.b_stages.shape[-1 if self.b_is_k_major else -2]
            for line in range(self.b_lines):
                with w.unrolled("box", s.block_n // box_n) as box:
                    corner = {"n": self.block * s.block_n + box * box_n, "k": k + line * b_k}
                    to = (self.b_stages, self._b_at(stage, atom, box, line))
                    self._load_box(self.b, corner, {"n": box_n, "k": b_k}, *to, stage)
            for plane in range(self.planes):
                corner = {"m": index(0), "k": k, PLANES["m"]: index(plane)}
                to = (self.a_stages, self._a_at(stage, atom, plane))
                self._load_box(self.a, corner, {"m": s.a_rows, "k": self.a_stages.shape[-1]}, *to, stage)

    def _load_box(
        self,
        load: Load,
        corner: dict[str, Expr],
        extents: Mapping[str, int],
        stages: Buffer,
        to: tuple[Expr, ...],
        stage: Expr,
    ) -> None:
        """Start the TMA load of a box of ``extents`` (axis -> places)."""
        box = tuple(extents.get(i.name, 1) if isinstance(i, Var) else 1 for i in load.indices)
        first = tuple(substitute(i, corner) for i in load.indices)
        self.w.emit(TmaLoad(stages, to, load.buffer, first, box, self.full, stage, tx_expected=True))

    def _multiply(self, accumulators: Buffer, stage: Expr) -> None:
        """The products of one stage, all atoms of ``k`` before the wait for wgmma."""
        s, w, zero = self.s, self.w, index(0)
        swap_ab, b_is_n_major = s.swap_ab == 1, not self.b_is_k_major
        with w.unrolled("k_atom", s.k_atoms) as atom:
            b = (self.b_stages, self._b_at(stage, atom, self.warpgroup * (s.mma_n // self.b_unit)))
            a = (self.a_stages, self._a_at(stage, atom))
            operands = (*b, *a) if swap_ab else (*a, *b)
            product = WarpgroupMma(
                accumulators,
                (zero,),
                *operands,
                s.wgmma_n,
                SWIZZLE_128B_ELEMENTS,
                a_transposed=b_is_n_major and swap_ab,
                b_transposed=b_is_n_major and not swap_ab,
                valid_rows=WGMMA_M if swap_ab else s.a_rows,
            )
            w.emit(product)
        w.emit(WarpgroupMmaWait(0))

    def _multiply_planes(self, accumulators: Buffer, stage: Expr) -> None:
        """The products of one stage, where operands are split. The sums of each atom are promoted."""
        s, w, zero = self.s, self.w, index(0)
        with w.unrolled("k_atom", s.k_atoms) as atom:
            thread = (self.warp % WARPGROUP_WARPS, self.lane)
            for line in range(self.b_lines):
                first, *_ = self._b_at(stage, atom, self.warpgroup * (s.mma_n // self.b_unit), line)
                if self.b_is_k_major:
                    self.fragments.load(first, thread, line)
                else:
                    self.fragments.load_along_rows(first, thread)
            for number, (of_a, of_b) in enumerate(self.precision.pairs):
                w.emit(
                    WarpgroupMma(
                        self.fragments.block_sums,
                        (zero,),
                        *self.fragments.plane(of_b),
                        self.a_stages,
                        self._a_at(stage, atom, of_a),
                        s.wgmma_n,
                        self.atom.line,
                        accumulates=number > 0,
                    )
                )
            w.emit(WarpgroupMmaWait(0))
            self.fragments.promote(accumulators)

    def _epilogue(self, accumulators: Buffer) -> None:
        """The consumers write their accumulators to shared memory, where all threads of the cluster add them up."""
        p, s, w = self.p, self.s, self.w
        partials = allocate_partials(w, p, 1, s.block_n, float32)
        with w.when(self.is_consumer), w.unrolled("out", s.wgmma_n // 2) as e:
            row = self._row((e // 2) % 2)
            column = (e // 4) * 8 + (self.lane % 4) * 2 + e % 2
            m, n = (column, row) if s.swap_ab else (row, column)
            computed = s.wgmma_n if s.swap_ab else WGMMA_M
            with w.when(m < p.m.extent if p.m.extent < computed else None):
                w.store(partials, (index(0), m, self.warpgroup * s.mma_n + n), Load(accumulators, (e,)))
        thread = self.warp * WARP_LANES + self.lane
        reduce_columns(w, ColumnSlice(p, self.block, s.block_n, self.rank, s.split_k, thread, s.threads), partials)

    def _row(self, half: Expr) -> Expr:
        """Return which of the 64 rows of wgmma a lane has in one half of its accumulators."""
        warp = self.warp % WARPGROUP_WARPS
        if self.planes > 1 and not self.b_is_k_major:
            assert self.atom.fragment is not None
            return permuted_row(warp, self.lane, half, self.atom.fragment.register_elements)
        return warp * 16 + self.lane // 4 + half * 8


def can_lower_skinny_tma(p: Gemm) -> bool:
    """Return whether matrix instructions take the operands, and TMA loads boxes of both: every index is one axis or
    constant, and the last one is ``k``, or ``n`` for B."""
    return (
        can_lower_skinny_mma(p)
        and (_fits_tma(p.b.load, "n", "k") or _fits_tma(p.b.load, "k", "n"))
        and _fits_tma(_with_rows(p), "m", "k")
    )


def can_split(p: Gemm) -> bool:
    """Return whether both operands are float32 that is split into planes, and TMA loads boxes of B."""
    a, b = p.a.load, p.b.load
    if a is None or b is None or p.accumulator.dtype != float32 or not {a.buffer.dtype, b.buffer.dtype} == {float32}:
        return False
    boxes = _fits_tma(p.b.load, "n", "k") or _fits_tma(p.b.load, "k", "n")
    return splitting(p).planes > 1 and find_atom(p) is not None and boxes


def _with_rows(p: Gemm) -> Load:
    """Return the load of A. Where it has a single row, the index 0 of that is written as ``m``, which is 0 then."""
    assert p.a.load is not None
    outer, *inner = p.a.load.indices
    return replace(p.a.load, indices=(Var("m"), *inner)) if p.m.extent == 1 and outer == index(0) else p.a.load


def _fits_tma(load: Load | None, outer: str, inner: str) -> bool:
    if load is None or not 2 <= len(load.buffer.shape) <= 5 or load.indices[-1] != Var(inner):
        return False
    axes = [i for i in load.indices if free_variables(i)]
    strides = load.buffer.strides[:-1]
    aligned = all(stride * load.buffer.dtype.bytes % 16 == 0 for stride in strides)
    return aligned and len(axes) == 2 and Var(outer) in axes
