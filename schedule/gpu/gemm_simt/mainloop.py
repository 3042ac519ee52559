"""Writes the kernel of a product by fused multiply-adds, or of a pairwise reduction by other instructions.

A CTA works on one tile of the result. All its threads copy both operands into a circular buffer of stages in shared
memory by cp.async, some k iterations ahead of the products. Its warps share out the tile, and a thread takes
``thread_m`` by ``thread_n`` results of it, in registers:

    fill all stages but one
    for each k iteration:
        for each place of k:
            at some places: go on filling the stage that the iteration before has left
            load the thread's rows and columns at the next place, 16 bytes at a time (after the last place of a stage:
                wait for the next stage, and a barrier)
            subtract the products of this place from all accumulators (or combine them with other terms)

Multiply-adds are issued one in a cycle, if the register file keeps up. It has two banks, registers with even and with
odd numbers, and each gives one operand in a cycle. A multiply-add has three, of which one at least must still be there
from an instruction before, and the two others must come from different banks. So both operands lie in shared memory as
neighbours along ``m`` and ``n``: neighbouring rows, and neighbouring columns, are then in different banks. With
neighbours along ``k``, all rows of one place would be in the same bank, which took a quarter more cycles. Operands
whose rows lie along ``k`` are therefore turned by copies of single elements.

An accumulator must not be in the same bank as the operand that is new to a multiply-add. Which register it takes would
follow from the vector that it is stored as, so accumulators hold the negative sums. The negation at the end, an
instruction of its own, brings results to the registers that stores want, and leaves the others to the compiler, which
knows the banks (6 to 10 % faster on an H200). Those of other dtypes and of pairwise reductions are not negated.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd

from ....core.dtypes import float32, float64, int32, int64
from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import Broadcast, Expr, Load, Ramp, const, index
from ....ir.gpu.async_copy import CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.barrier import SyncScope
from ....ir.stmt import Kernel
from ...problems.gemm import Gemm, Operand
from ...tile.accumulation import Accumulation
from ...tile.contiguous import contiguous_vector
from ..gemm_mma.operands import copy_width
from ..multistage_gemm import MultistageGemmWriter
from ..split_k import TileSlice, reduce_tile, store_outputs
from ..staged_copies import StagedOperand
from .sizes import LANES_M, LANES_N, GemmSimtSizes, vector_of
from .term import term_of, zeros_are_neutral

DTYPES = {float32, float64, int32, int64}
LANES = {"m": LANES_M, "n": LANES_N}
COPIED_RUN = 8
"""Of an operand whose rows lie along ``k``, lanes copy so many neighbours of a row, and then those of the next row: 32
bytes each, which the padding spreads over all banks."""
COPIES_AT_ONCE = 8
"""A thread makes so many copies, and then goes on with products."""


def lower_gemm_simt(gemm: Gemm, sizes: GemmSimtSizes[int]) -> Kernel:
    """Return the kernel of one setting."""
    return _GemmSimtWriter(gemm, sizes).kernel()


@dataclass(frozen=True, slots=True)
class _Fragments:
    """The rows of A, or the columns of B, of one thread: (place of ``k`` modulo 2, row), and the stages that they come
    from. While those of one place are multiplied, those of the next one are loaded."""

    operand: StagedOperand
    held: Buffer
    axis: str


class _GemmSimtWriter(MultistageGemmWriter):
    def __init__(self, gemm: Gemm, sizes: GemmSimtSizes[int]) -> None:
        super().__init__(gemm, sizes)
        self.s, self.vector, dtype = sizes, vector_of(gemm), gemm.accumulator.dtype
        self.accumulation = Accumulation(gemm.reducer, dtype, dtype)
        self.negated = gemm.term is None and dtype == float32
        """Whether accumulators hold negative sums."""

    def accumulator_shape(self) -> tuple[int, ...]:
        return (self.s.thread_m, self.s.thread_n)

    def _stages(self, name: str, operand: Operand, axis: str, extent: int) -> StagedOperand:
        """Return the stages of an operand: neighbours along ``axis`` are neighbours there, too. Rows along ``k`` are
        turned by copies of single elements, and padding moves what a warp copies at once to different banks."""
        width, along_k = copy_width(self.gemm, operand, axis, self.vector)
        assert operand.load is not None
        s, dtype = self.s, operand.load.dtype
        pitch = extent + (self.vector if along_k else 0)
        stage = s.block_k * pitch + (s.spare if axis == "m" else 0)
        if not along_k:
            layout = Layout((stage, pitch, 1))
            stages = self.w.allocate(name, (s.stages, s.block_k, extent), dtype, MemoryScope.SHARED, layout)
            return StagedOperand(operand.load, stages, "k", axis, width)
        layout = Layout((stage, 1, pitch))
        stages = self.w.allocate(name, (s.stages, extent, s.block_k), dtype, MemoryScope.SHARED, layout)
        return StagedOperand(operand.load, stages, axis, "k", 1, run=COPIED_RUN)

    # --- the main loop

    def mainloop(self, accumulators: Buffer) -> None:
        s, w, gemm = self.s, self.w, self.gemm
        self.warp_at = {"m": self.warp_m, "n": self.warp_n}
        # 8 lanes, which shared memory serves at a time, load 2 rows and 4 columns (RowMajorInterleaved<2>)
        self.lane_at = {"m": self.lane // (2 * LANES_N) * 2 + self.lane % 2, "n": self.lane // 2 % LANES_N}
        sides = (("a", gemm.a, "m", s.tile_m, s.thread_m), ("b", gemm.b, "n", s.tile_n, s.thread_n))
        staged = [self._stages(f"staged_{name}", operand, axis, tile) for name, operand, axis, tile, _ in sides]
        self.a, self.b = (
            _Fragments(stages, w.allocate(name, (2, count), stages.stages.dtype, MemoryScope.REGISTER), axis)
            for stages, (name, _, axis, _, count) in zip(staged, sides, strict=True)
        )
        with w.unrolled("filled", self.distance) as k_iter:
            for operand in staged:
                self.copies.copy(operand, k_iter, k_iter)
            w.emit(CopyAsyncCommit())
        with w.unrolled("row", s.thread_m) as i, w.unrolled("column", s.thread_n) as j:
            w.store(accumulators, (i, j), const(-0.0, float32) if self.negated else self.accumulation.identity[0])
        w.emit(CopyAsyncWait(self.distance - 1))
        w.barrier()
        self._load_fragments(index(0), 0)
        with w.loop("k_iter", s.k_iters) as k_iter:
            self._k_iteration(accumulators, k_iter)
        w.emit(CopyAsyncWait(0))
        if s.split_k > 1:  # its partial sums lie in the place of the stages
            w.barrier()

    def _k_iteration(self, accumulators: Buffer, k_iter: Expr) -> None:
        """The products of a k iteration. The last fragments that it loads are the first ones of the next iteration;
        after the last iteration they are what an earlier one left there, and nobody multiplies them."""
        s, w = self.s, self.w
        long, short = max(s.thread_m, s.thread_n), min(s.thread_m, s.thread_n)
        for place in range(s.block_k):
            if place < s.block_k - 1:
                self._load_fragments(k_iter % s.stages, place + 1)
            elif s.k_iters > 1:
                w.emit(CopyAsyncWait(self.distance - 1))
                w.barrier()
                self._load_fragments((k_iter + 1) % s.stages, 0)
            self._refill(k_iter, place)
            k = (self.k_rank * s.k_iters + k_iter) * s.block_k + place
            with (
                # what arrives from beyond the end of k is zeros
                w.when(None if self.copies.is_whole("k") or zeros_are_neutral(self.gemm) else k < self.gemm.k.extent),
                w.unrolled("line", long) as line,
                w.unrolled("step", short) as step,
            ):
                across, now = _serpentine(line, step, short), index(place % 2)
                i, j = (line, across) if s.thread_m == long else (across, line)
                a, b = Load(self.a.held, (now, i)), Load(self.b.held, (now, j))
                w.store(accumulators, (i, j), self._accumulated(Load(accumulators, (i, j)), a, b, k))

    def _accumulated(self, accumulator: Load, a: Load, b: Load, k: Expr) -> Expr:
        """Return an accumulator with the term of one row and one column."""
        if self.negated:
            return accumulator - a * b
        term = term_of(self.gemm, a, b, {**self.at, "k": k})
        return self.accumulation.accumulate([accumulator], term, index(0))[0]

    def _refill(self, k_iter: Expr, place: int) -> None:
        """Begin to fill the stage that the iteration before has left, some copies at a time, so that loads of fragments
        never wait for many of them. After the last stage that is needed, zeros arrive: a mask leaves addresses to be
        computed once, which a branch around each copy would not."""
        s, following = self.s, k_iter + self.distance
        operands = (self.a.operand, self.b.operand)
        copies = [(o, number) for o in operands for number in range(self.copies.count(o, o.width))]
        groups = min(s.block_k - 1, -(-len(copies) // COPIES_AT_ONCE))
        group, between = divmod(place, (s.block_k - 1) // groups)
        if s.k_iters <= self.distance or between or group >= groups:
            return
        copies = copies[len(copies) * group // groups : len(copies) * (group + 1) // groups]
        for operand in operands:
            numbers = [number for o, number in copies if o is operand]
            if numbers:
                these = range(numbers[0], numbers[-1] + 1)
                self.copies.copy(operand, following, following % s.stages, these, following < s.k_iters)
        if group == groups - 1:
            self.w.emit(CopyAsyncCommit())

    def _load_fragments(self, stage: Expr, place: int) -> None:
        """Load what a thread multiplies at one place of ``k``: vectors of neighbours along ``m``, and along ``n``."""
        for f in (self.a, self.b):
            first = self.warp_at[f.axis] + self.lane_at[f.axis] * self.vector
            with self.w.unrolled("group", f.held.shape[1] // self.vector) as group:
                at = Broadcast(first + group * (LANES[f.axis] * self.vector), self.vector) + Ramp(
                    index(0), 1, self.vector
                )
                of_stage, k = Broadcast(stage, self.vector), Broadcast(index(place), self.vector)
                source = (of_stage, at, k) if f.operand.along_k else (of_stage, k, at)
                to = contiguous_vector((index(place % 2), group * self.vector), self.vector)
                self.w.store(f.held, to, Load(f.operand.stages, source))

    # --- the epilogue

    def epilogue(self, accumulators: Buffer) -> None:
        if self.s.split_k > 1:
            self._split_k_epilogue(accumulators)
        else:
            self._direct_epilogue(accumulators)

    @contextmanager
    def _vectors(self, accumulators: Buffer) -> Iterator[tuple[Expr, Expr, Expr, Expr]]:
        """The groups of neighbouring results, a vector each: (m, n) within the tile, and the indices of the first
        accumulator. Negative sums become positive."""
        s, w = self.s, self.w
        with w.unrolled("row", s.thread_m) as i, w.unrolled("group", s.thread_n // self.vector) as group:
            first = {axis: self.warp_at[axis] + self.lane_at[axis] * self.vector for axis in ("m", "n")}
            m = first["m"] + i // self.vector * (self.vector * LANES_M) + i % self.vector
            at = contiguous_vector((i, group * self.vector), self.vector)
            if self.negated:
                w.store(accumulators, at, -Load(accumulators, at))
            yield m, first["n"] + group * (self.vector * LANES_N), i, group * self.vector

    def _direct_epilogue(self, accumulators: Buffer) -> None:
        """Every thread stores the outputs of its own accumulators."""
        w, gemm, width = self.w, self.gemm, gcd(self.gemm.n.extent, self.vector)
        with (
            self._vectors(accumulators) as (m, n, i, first),
            w.unrolled("column", self.vector // width) as column,
        ):
            at = {**self.at, "m": self.at["m"] + m, "n": self.at["n"] + n + column * width}
            inside = [at[axis] < self.copies.extent(axis) for axis in ("m", "n") if not self.copies.is_whole(axis)]
            with w.when(*inside):
                store_outputs(w, gemm, at, accumulators, width, (i,), first + column * width)

    def _split_k_epilogue(self, accumulators: Buffer) -> None:
        """CTAs that share ``k`` add up their tiles in shared memory."""
        s, w, gemm = self.s, self.w, self.gemm
        layout = Layout((s.tile_n + self.vector, 1))
        shape = (s.tile_m, s.tile_n)
        partials = w.allocate("partials", shape, accumulators.dtype, MemoryScope.SHARED, layout)
        with self._vectors(accumulators) as (m, n, i, first):
            value = Load(accumulators, contiguous_vector((i, first), self.vector))
            w.store(partials, contiguous_vector((m, n), self.vector), value)
        w.barrier(SyncScope.CLUSTER)
        own = TileSlice(gemm, self.at, self.k_rank, s.split_k, self.thread, s.threads)
        reduce_tile(w, own, partials, gcd(gemm.n.extent, self.vector))
        w.barrier(SyncScope.CLUSTER)


def _serpentine(line: Expr, step: Expr, steps: int) -> Expr:
    """Return where a step through a line is: odd lines go backwards. Two multiply-adds in a row then share an operand
    even where the line changes, and the register file has to give less (5 % faster on an H200)."""
    backwards = line % 2
    return step + backwards * (steps - 1) - 2 * backwards * step


def can_use_simt(gemm: Gemm) -> bool:
    """Return whether both operands are plain loads of one of ``DTYPES``, and accumulators have one of them, too."""
    a, b = gemm.a, gemm.b
    if a.load is None or b.load is None or (a.load, b.load) != (a.body, b.body):
        return False
    return a.load.dtype == b.load.dtype and {a.load.dtype, gemm.accumulator.dtype} <= DTYPES
