"""The kernel of a float32 product by fused multiply-adds.

A CTA works on one tile of the result. All its threads copy both operands into a circular buffer of stages in shared
memory by cp.async, some k iterations ahead of the products. Its warps share out the tile, and a thread takes
``thread_m`` by ``thread_n`` results of it, in registers:

    fill all stages but one
    for each k iteration:
        wait for its stage, and a barrier
        begin to fill the stage that the iteration before has left
        for every 4 places of k:
            load these places of the thread's rows and columns, 16 bytes at a time
            add the products of these places to all results, in the order of k

An operand whose rows lie along ``k`` keeps them in shared memory: one load gives 4 places of a row. Other operands lie
along ``m`` or ``n``: one load gives 4 neighbours at one place. Either way a thread has groups of 4 neighbouring rows
and columns, so that it stores 16 bytes at a time. Rows along ``k`` are permuted and padded, so that the lanes of a
warp load neighbouring ones, from different banks, at addresses that differ from those of the first load by constants.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd

from ....core.dtypes import float32
from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import WARP_LANES, Expr, Load, const, index, logical_and
from ....ir.gpu.async_copy import CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.barrier import SyncScope
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ...problems.gemm import Gemm, Operand
from ...tile.contiguous import contiguous_vector
from ...tile.names import FreshNameWriter
from ..gemm.tile_scheduler import TileScheduler
from ..gemm_mma.operands import copy_width
from ..split_k import TileSlice, reduce_tile, store_outputs
from ..staged_copies import StagedCopies, StagedOperand
from .sizes import LANES_M, LANES_N, PADDING, VECTOR, GemmSimtSizes

UNROLLED = LoopKind.UNROLLED
LANES = {"m": LANES_M, "n": LANES_N}
GROUP_M = 8
"""Tiles along m that are scheduled before the next along n."""


def lower_gemm_simt(gemm: Gemm, name: str, sizes: GemmSimtSizes[int]) -> Kernel:
    """The kernel of one setting."""
    return _GemmSimtWriter(gemm, name, sizes).kernel()


@dataclass(frozen=True, slots=True)
class _Fragments:
    """The ``count`` rows of A, or columns of B, of one thread, which shares out a warp's with ``lanes`` others.
    ``first``: where the first one is in the stages. ``held``: 4 places of k of them, (row, place) where
    ``operand`` lies along ``k``, otherwise (place, row)."""

    operand: StagedOperand
    first: Expr
    lanes: int
    count: int
    held: Buffer

    def value(self, row: Expr, place: Expr) -> Expr:
        return Load(self.held, (row, place) if self.operand.along_k else (place, row))


class _GemmSimtWriter:
    def __init__(self, gemm: Gemm, name: str, sizes: GemmSimtSizes[int]) -> None:
        self.gemm, self.s, self.name = gemm, sizes, name
        self.distance = max(sizes.stages - 1, 1)
        """How many k iterations ahead stages are filled."""
        self.w = FreshNameWriter(gemm.names)

    def kernel(self) -> Kernel:
        s, w, gemm = self.s, self.w, self.gemm
        scheduler = TileScheduler(gemm, s.tile_m, s.tile_n, GROUP_M)
        axes = [
            ("tile", scheduler.cluster_tiles, HardwareAxis.GRID_X),
            ("cta", s.split_k, HardwareAxis.CLUSTER),
            ("warp", s.warps_m * s.warps_n, HardwareAxis.WARP),
            ("lane", WARP_LANES, HardwareAxis.LANE),
        ]
        if s.split_k == 1:
            del axes[1]
        with w.launch(self.name, axes, min_blocks=s.ctas_per_sm) as numbers:
            warp, lane = numbers[-2], numbers[-1]
            self.k_rank: Expr = numbers[1] if s.split_k > 1 else index(0)
            self.thread = warp * WARP_LANES + lane
            self.at = scheduler.origin(numbers[0], index(0))
            shape = (s.tile_m, s.tile_n, s.block_k, s.k_iters, s.split_k)
            self.copies = StagedCopies(w, gemm, self.at, *shape, self.k_rank, self.thread, s.threads)
            warp_m = warp // s.warps_n * (s.thread_m * LANES_M) if s.warps_m > 1 else index(0)
            warp_n = warp % s.warps_n * (s.thread_n * LANES_N) if s.warps_n > 1 else index(0)
            self.warp_at = {"m": warp_m, "n": warp_n}
            # 8 lanes, which shared memory serves at a time, load 2 rows and 4 columns (RowMajorInterleaved<2>)
            self.lane_at = {"m": lane // (2 * LANES_N) * 2 + lane % 2, "n": lane // 2 % LANES_N}
            accumulators = w.allocate("accumulators", (s.thread_m, s.thread_n), float32, MemoryScope.REGISTER)
            with w.scope():
                self._mainloop(accumulators)
            with w.scope():
                if s.split_k > 1:
                    self._split_k_epilogue(accumulators)
                else:
                    self._direct_epilogue(accumulators)
        return Kernel(self.name, gemm.inputs, tuple(r.tensor for r in gemm.results), (), w.finish())

    def _stages(self, name: str, operand: Operand, axis: str, extent: int) -> StagedOperand:
        """The stages of an operand. Padding moves neighbouring rows along ``k`` to different banks."""
        width, along_k = copy_width(self.gemm, operand, axis, VECTOR)
        assert operand.load is not None
        block_k = self.s.block_k
        rows, columns = (extent, block_k) if along_k else (block_k, extent)
        pitch = columns + (PADDING if along_k else 0)
        layout = Layout((rows * pitch, pitch, 1))
        stages = self.w.allocate(name, (self.s.stages, rows, columns), float32, MemoryScope.SHARED, layout)
        outer, inner = (axis, "k") if along_k else ("k", axis)
        lanes = LANES[axis] if along_k else 1
        return StagedOperand(operand.load, stages, outer, inner, width, lanes=lanes)

    # --- the main loop

    def _mainloop(self, accumulators: Buffer) -> None:
        s, w, gemm = self.s, self.w, self.gemm
        staged = (
            self._stages("staged_a", gemm.a, "m", s.tile_m),
            self._stages("staged_b", gemm.b, "n", s.tile_n),
        )
        with w.loop("filled", self.distance, UNROLLED) as k_iter:
            for operand in staged:
                self.copies.copy(operand, k_iter, k_iter)
            w.emit(CopyAsyncCommit())
        with w.loop("row", s.thread_m, UNROLLED) as i, w.loop("column", s.thread_n, UNROLLED) as j:
            w.store(accumulators, (i, j), const(0.0, float32))
        with w.loop("k_iter", s.k_iters) as k_iter:
            w.emit(CopyAsyncWait(self.distance - 1))
            w.barrier()
            if s.k_iters > self.distance:
                following = k_iter + self.distance
                with w.when(following < s.k_iters):
                    for operand in staged:
                        self.copies.copy(operand, following, following % s.stages)
                w.emit(CopyAsyncCommit())
            with w.loop("quad", s.block_k // VECTOR, UNROLLED) as quad:
                self._products(accumulators, staged, k_iter % s.stages, quad * VECTOR)
        if s.split_k > 1:  # its partial sums lie in the place of the stages
            w.emit(CopyAsyncWait(0))
            w.barrier()

    def _products(
        self, accumulators: Buffer, staged: tuple[StagedOperand, StagedOperand], stage: Expr, k: Expr
    ) -> None:
        """Add the products of 4 places of ``k``. Only what is needed next is loaded, to save registers."""
        s, w = self.s, self.w
        a = self._fragments("a", staged[0], "m", s.thread_m)
        b = self._fragments("b", staged[1], "n", s.thread_n)
        if a.operand.along_k and b.operand.along_k:
            with self._rows(b) as (group, row):
                self._load_row(b, stage, group, row, k)
            with self._rows(a) as (group, row):
                self._load_row(a, stage, group, row, k)
                with w.loop("place", VECTOR, UNROLLED) as place, w.loop("column", s.thread_n, UNROLLED) as j:
                    self._add_product(accumulators, a, b, group * VECTOR + row, j, place)
            return
        for held in (a, b):
            if held.operand.along_k:
                with self._rows(held) as (group, row):
                    self._load_row(held, stage, group, row, k)
        with w.loop("place", VECTOR, UNROLLED) as place:
            for held in (a, b):
                if not held.operand.along_k:
                    with w.loop("group", held.count // VECTOR, UNROLLED) as group:
                        source = (stage, k + place, held.first + group * (held.lanes * VECTOR))
                        value = Load(held.operand.stages, contiguous_vector(source, VECTOR))
                        w.store(held.held, contiguous_vector((place, group * VECTOR), VECTOR), value)
            with w.loop("row", s.thread_m, UNROLLED) as i, w.loop("step", s.thread_n, UNROLLED) as step:
                self._add_product(accumulators, a, b, i, _serpentine(i, step, s.thread_n), place)

    def _fragments(self, name: str, operand: StagedOperand, axis: str, count: int) -> _Fragments:
        shape = (count, VECTOR) if operand.along_k else (VECTOR, count)
        held = self.w.allocate(name, shape, float32, MemoryScope.REGISTER)
        first = self.warp_at[axis] + self.lane_at[axis] * (1 if operand.along_k else VECTOR)
        return _Fragments(operand, first, LANES[axis], count, held)

    @contextmanager
    def _rows(self, fragments: _Fragments) -> Iterator[tuple[Expr, Expr]]:
        """The number of each group, and that of each row within it."""
        w = self.w
        with w.loop("group", fragments.count // VECTOR, UNROLLED) as group, w.loop("row", VECTOR, UNROLLED) as row:
            yield group, row

    def _load_row(self, f: _Fragments, stage: Expr, group: Expr, row: Expr, k: Expr) -> None:
        """Load 4 places of a row that lies along ``k``."""
        source = (stage, f.first + (group * VECTOR + row) * f.lanes, k)
        value = Load(f.operand.stages, contiguous_vector(source, VECTOR))
        self.w.store(f.held, contiguous_vector((group * VECTOR + row, index(0)), VECTOR), value)

    def _add_product(self, accumulators: Buffer, a: _Fragments, b: _Fragments, i: Expr, j: Expr, place: Expr) -> None:
        total = Load(accumulators, (i, j)) + a.value(i, place) * b.value(j, place)
        self.w.store(accumulators, (i, j), total)

    # --- the epilogue

    @contextmanager
    def _vectors(self) -> Iterator[tuple[Expr, Expr, Expr, Expr]]:
        """The groups of 4 neighbouring results: (m, n) within the tile, and the indices of the first accumulator."""
        s, w = self.s, self.w
        with w.loop("row", s.thread_m, UNROLLED) as i, w.loop("group", s.thread_n // VECTOR, UNROLLED) as group:
            first = {axis: self.warp_at[axis] + self.lane_at[axis] * VECTOR for axis in ("m", "n")}
            m = first["m"] + i // VECTOR * (VECTOR * LANES_M) + i % VECTOR
            yield m, first["n"] + group * (VECTOR * LANES_N), i, group * VECTOR

    def _direct_epilogue(self, accumulators: Buffer) -> None:
        """Every thread stores the outputs of its own accumulators."""
        w, gemm, width = self.w, self.gemm, gcd(self.gemm.n.extent, VECTOR)
        with self._vectors() as (m, n, i, first), w.loop("column", VECTOR // width, UNROLLED) as column:
            at = {**self.at, "m": self.at["m"] + m, "n": self.at["n"] + n + column * width}
            inside = [at[axis] < self.copies.extent(axis) for axis in ("m", "n") if not self.copies.is_whole(axis)]
            with w.when(logical_and(*inside) if inside else None):
                store_outputs(w, gemm, at, accumulators, width, (i,), first + column * width)

    def _split_k_epilogue(self, accumulators: Buffer) -> None:
        """CTAs that share ``k`` add up their tiles in shared memory."""
        s, w, gemm = self.s, self.w, self.gemm
        layout = Layout((s.tile_n + PADDING, 1))
        partials = w.allocate("partials", (s.tile_m, s.tile_n), float32, MemoryScope.SHARED, layout)
        with self._vectors() as (m, n, i, first):
            value = Load(accumulators, contiguous_vector((i, first), VECTOR))
            w.store(partials, contiguous_vector((m, n), VECTOR), value)
        w.barrier(SyncScope.CLUSTER)
        own = TileSlice(gemm, self.at, self.k_rank, s.split_k, self.thread, s.threads)
        reduce_tile(w, own, partials, gcd(gemm.n.extent, VECTOR))
        w.barrier(SyncScope.CLUSTER)


def _serpentine(row: Expr, step: Expr, columns: int) -> Expr:
    """The column of a step through a row: odd rows go backwards. Two multiply-adds in a row then share an operand even
    where the row changes, and the register file has to give less (5 % faster on an H200)."""
    backwards = row % 2
    return step + backwards * (columns - 1) - 2 * backwards * step


def can_use_simt(gemm: Gemm) -> bool:
    """Whether both operands are plain loads of float32, which the accumulator is too."""
    loads = (gemm.a.load, gemm.b.load)
    return gemm.accumulator.dtype == float32 and all(load and load.buffer.dtype == float32 for load in loads)
