"""Writes the kernel of a product by mma.sync, which all architectures from sm_80 on have.

A CTA works on one tile of the result. All its threads copy both operands into a circular buffer of stages in shared
memory by cp.async, some k iterations ahead of the products. Its warps share out the tile. Each loads the fragments of
the next 16 places of ``k`` by ldmatrix, or those of the next 8 of float64 and TF32 one by one, while it multiplies the
last ones, also from one k iteration to the next:

    fill all stages but one
    for each k iteration:
        for each k atom:
            load the fragments of the next k atom (of the next stage after the last one: wait for it, and a barrier)
            at the first k atom: begin to fill the stage that the iteration before has left
            multiply the fragments of this k atom

Copies are as wide as the rows of an operand are aligned, 16 bytes at best. Rows that begin at odd elements go through
registers: they are loaded one k iteration before they are stored to a stage.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import gcd

from ....core.dtypes import float64
from ....core.target import Target
from ....ir.buffer import Buffer, Layout, MemoryScope, Swizzle
from ....ir.expr import Broadcast, Expr, Load, Ramp, conjunction, const, index, logical_and
from ....ir.gpu.async_copy import CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.ldmatrix import LoadMatrix
from ....ir.gpu.mma import Mma
from ....ir.rewrite import substitute
from ....ir.stmt import Kernel
from ....te.functions import cast, negated
from ...problems.gemm import Gemm, Operand
from ...tile.stage_body import vector_at
from ..multistage_gemm import MultistageGemmWriter
from ..split_k import TileSlice, reduce_tile, store_outputs
from ..staged_copies import StagedOperand
from .operands import (
    ATOM_M,
    LEAST_COPY_BYTES,
    SCALARS,
    atom_of,
    copy_elements,
    copy_width,
    find_mma_atom,
    has_ldmatrix,
    row_padding,
)
from .sizes import PARTIAL_PADDING, GemmMmaSizes

STORED_BYTES = 32
"""A thread stores the outputs of accumulators of so many bytes at a time."""


def lower_gemm_mma(gemm: Gemm, sizes: GemmMmaSizes[int]) -> Kernel:
    """Return the kernel of one setting."""
    return _GemmMmaWriter(gemm, sizes).kernel()


class _GemmMmaWriter(MultistageGemmWriter):
    def __init__(self, gemm: Gemm, sizes: GemmMmaSizes[int]) -> None:
        super().__init__(gemm, sizes)
        self.s = sizes
        self.atom = atom_of(gemm)
        assert gemm.a.load is not None
        self.dtype = gemm.a.load.dtype

    def accumulator_shape(self) -> tuple[int, ...]:
        return (self.s.atoms_m, 2 * self.s.atoms_n, 4)

    # --- operands in shared memory

    def _allocate(self, name: str, operand: Operand, axis: str, extent: int) -> StagedOperand:
        """Return the stages of an operand. Eight rows at one column lie in different banks: by a swizzle, or by 16
        bytes of padding where the length of a row is no power of two. Rows of float64 and float32 are padded."""
        s = self.s
        width, along_k = copy_width(self.gemm, operand, axis, copy_elements(self.gemm))
        assert operand.load is not None
        rows, columns = (extent, s.block_k) if along_k else (s.block_k, extent)
        pitch = columns + int(row_padding(self.atom, columns))
        bits = columns.bit_length() - 1
        swizzle = Swizzle(min(bits - 3, 3), 3, max(bits, 6) - 3) if pitch == columns else None
        layout = Layout((rows * pitch, pitch, 1), swizzle)
        stages = self.w.allocate(name, (s.stages, rows, columns), self.dtype, MemoryScope.SHARED, layout)
        registers = None
        if width * self.dtype.bytes < LEAST_COPY_BYTES:
            vectors = -(-rows * columns // (SCALARS * s.threads))
            registers = self.w.allocate(f"{name}_loaded", (vectors, SCALARS), self.dtype, MemoryScope.REGISTER)
        outer, inner = (axis, "k") if along_k else ("k", axis)
        return StagedOperand(operand.load, stages, outer, inner, width, registers)

    def _load_to_registers(self, operand: StagedOperand, registers: Buffer, k_iter: Expr) -> None:
        """Load this thread's vectors of a k iteration, zeros where they lie beyond the end."""
        w, buffer = self.w, operand.load.buffer
        end = self.copies.position(operand, k_iter, *(index(n) for n in operand.stages.shape[1:]))
        ragged = [axis for axis in dict.fromkeys(("k", operand.inner)) if not self.copies.is_whole(axis)]
        whole = conjunction(*(end[axis] <= self.copies.extent(axis) for axis in ragged))
        with w.when(whole), self.copies.vectors(operand, SCALARS) as (vector, row, column):
            at = self.copies.position(operand, k_iter, row, column)
            at[operand.outer] = self.copies.clamped(at, operand.outer, 1)
            source = tuple(vector_at(i, at, operand.inner, SCALARS) for i in operand.load.indices)
            w.store(registers, (Broadcast(vector, SCALARS), Ramp(index(0), 1, SCALARS)), Load(buffer, source))
        if whole is None:
            return
        with w.when(negated(whole)), self.copies.vectors(operand, SCALARS) as (vector, row, column):
            at = self.copies.position(operand, k_iter, row, column)
            at[operand.outer] = self.copies.clamped(at, operand.outer, 1)
            with w.unrolled("element", SCALARS) as e:
                here = {**at, operand.inner: at[operand.inner] + e}
                inside = logical_and(*(here[axis] < self.copies.extent(axis) for axis in ragged))
                source = tuple(substitute(i, here) for i in operand.load.indices)
                w.store(registers, (vector, e), Load(buffer, source, inside))

    def _store_to_stage(self, operand: StagedOperand, registers: Buffer, stage: Expr) -> None:
        with self.copies.vectors(operand, SCALARS) as (vector, row, column):
            to = (Broadcast(stage, SCALARS), Broadcast(row, SCALARS), Ramp(column, 1, SCALARS))
            value = Load(registers, (Broadcast(vector, SCALARS), Ramp(index(0), 1, SCALARS)))
            self.w.store(operand.stages, to, value)

    # --- the main loop

    def mainloop(self, accumulators: Buffer) -> None:
        s, w = self.s, self.w
        self.staged_a = self._allocate("staged_a", self.gemm.a, "m", s.tile_m)
        self.staged_b = self._allocate("staged_b", self.gemm.b, "n", s.tile_n)
        # fragments of two k atoms: one is loaded while the other one is multiplied
        elements = self.atom.elements("a")
        self.a = w.allocate("a", (2, s.atoms_m, elements), self.atom.operand, MemoryScope.REGISTER)
        self.b = w.allocate("b", (2, s.atoms_n, elements), self.atom.operand, MemoryScope.REGISTER)
        with w.unrolled("filled", self.distance) as k_iter:
            for operand in (self.staged_a, self.staged_b):
                self._fill(operand, k_iter, k_iter)
            w.emit(CopyAsyncCommit())
        with (
            w.unrolled("atom_m", s.atoms_m) as i,
            w.unrolled("atom_n", 2 * s.atoms_n) as j,
            w.unrolled("element", 4) as e,
        ):
            w.store(accumulators, (i, j, e), const(0.0, accumulators.dtype))
        if s.k_iters > self.distance:
            self._load_next(index(self.distance))
        w.emit(CopyAsyncWait(self.distance - 1))
        w.barrier()
        self._load_fragments(index(0), 0)
        with w.loop("k_iter", s.k_iters) as k_iter:
            self._k_iteration(accumulators, k_iter)
        if s.staged_epilogue:  # its tile lies in the place of the stages
            w.emit(CopyAsyncWait(0))
            w.barrier()

    def _k_iteration(self, accumulators: Buffer, k_iter: Expr) -> None:
        """The products of a k iteration. The last fragments that it loads are the first ones of the next iteration;
        after the last iteration they are what an earlier one left there, and nobody multiplies them."""
        s, w = self.s, self.w
        k_atoms, elements = s.block_k // self.atom.k, self.atom.elements("b")
        for k_atom in range(k_atoms):
            if k_atom < k_atoms - 1:
                self._load_fragments(k_iter % s.stages, k_atom + 1)
            elif s.k_iters > 1:
                w.emit(CopyAsyncWait(self.distance - 1))
                w.barrier()
                self._load_fragments((k_iter + 1) % s.stages, 0)
            if k_atom == 0:
                self._refill(k_iter)
            with (
                w.unrolled("atom_m", s.atoms_m) as i,
                w.unrolled("atom_n", s.atoms_n) as j,
                w.unrolled("half", 2) as h,
            ):
                now, zero = index(k_atom % 2), index(0)
                to = (i, j * 2 + h, zero)
                b = (now, j, h * elements)
                w.emit(Mma(self.atom.name, accumulators, to, self.a, (now, i, zero), self.b, b))

    def _refill(self, k_iter: Expr) -> None:
        """Begin to fill the stage that the iteration before has left."""
        s = self.s
        if s.k_iters <= self.distance:
            return
        following = k_iter + self.distance
        with self.w.when(following < s.k_iters):
            for operand in (self.staged_a, self.staged_b):
                if operand.registers is None:
                    self.copies.copy(operand, following, following % s.stages)
                else:
                    self._store_to_stage(operand, operand.registers, following % s.stages)
            self._load_next(following + 1)
        self.w.emit(CopyAsyncCommit())

    def _fill(self, operand: StagedOperand, k_iter: Expr, stage: Expr) -> None:
        if operand.registers is None:
            self.copies.copy(operand, k_iter, stage)
        else:
            self._load_to_registers(operand, operand.registers, k_iter)
            self._store_to_stage(operand, operand.registers, stage)

    def _load_next(self, k_iter: Expr) -> None:
        """Load what goes through registers, for the next refill."""
        for operand in (self.staged_a, self.staged_b):
            if operand.registers is not None:
                with self.w.when(k_iter < self.s.k_iters):
                    self._load_to_registers(operand, operand.registers, k_iter)

    def _load_fragments(self, stage: Expr, k_atom: int) -> None:
        """Load a warp's fragments of a k atom: four matrices, which have 8 places of ``m`` or ``n`` and a half of those
        of ``k``. The second one follows the first along ``m`` in A, and along ``k`` in B. Where there is ldmatrix it
        loads all four; otherwise a lane loads its element of each."""
        s, w, now, k = self.s, self.w, index(k_atom % 2), index(k_atom * self.atom.k)
        sides = ((self.staged_a, self.a, s.atoms_m, self.warp_m), (self.staged_b, self.b, s.atoms_n, self.warp_n))
        for operand, fragments, atoms, first in sides:
            with w.unrolled("fragment", atoms) as i:
                at = first + i * ATOM_M
                if has_ldmatrix(self.atom):
                    row, zero = self.lane % 8, index(0)
                    at, begin = (at + row, k) if operand.along_k else (at, k + row)
                    source = self._in_matrix(operand, stage, self.lane // 8, at, begin)
                    w.emit(LoadMatrix(fragments, (now, i, zero), operand.stages, source, 4, not operand.along_k))
                    continue
                with w.unrolled("matrix", 4) as matrix:
                    source = self._in_matrix(operand, stage, matrix, at + self.lane // 4, k + self.lane % 4)
                    w.store(fragments, (now, i, matrix), cast(Load(operand.stages, source), self.atom.operand))

    def _in_matrix(self, operand: StagedOperand, stage: Expr, matrix: Expr, at: Expr, k: Expr) -> tuple[Expr, ...]:
        """Return where one of the four matrices has what the first one has at the place ``at`` of ``m`` or ``n``, and
        ``k``."""
        high, low = matrix // 2, matrix % 2
        of_axis, of_k = (low, high) if operand is self.staged_a else (high, low)
        at, k = at + of_axis * 8, k + of_k * (self.atom.k // 2)
        return (stage, at, k) if operand.along_k else (stage, k, at)

    # --- the epilogue

    def epilogue(self, accumulators: Buffer) -> None:
        if self.s.staged_epilogue:
            self._staged_epilogue(accumulators)
        else:
            self._direct_epilogue(accumulators)

    @contextmanager
    def _pairs(self) -> Iterator[tuple[Expr, Expr, tuple[Expr, Expr], Expr]]:
        """Pairs of a lane's accumulators that are neighbours along ``n``: (m, n) within the tile, the indices of the
        atom that holds them, and the first of them there."""
        s, w = self.s, self.w
        with (
            w.unrolled("atom_m", s.atoms_m) as i,
            w.unrolled("atom_n", 2 * s.atoms_n) as j,
            w.unrolled("half", 2) as half,
        ):
            m = self.warp_m + i * ATOM_M + half * 8 + self.lane // 4
            n = self.warp_n + j * 8 + self.lane % 4 * 2
            yield m, n, (i, j), half * 2

    def _direct_epilogue(self, accumulators: Buffer) -> None:
        """Every thread stores the outputs of its own accumulators."""
        w, gemm = self.w, self.gemm
        width = 2 if gemm.n.extent % 2 == 0 else 1
        with self._pairs() as (m, n, atom, first), w.unrolled("column", 2 // width) as column:
            at = {**self.at, "m": self.at["m"] + m, "n": self.at["n"] + n + column}
            inside = [at[axis] < self.copies.extent(axis) for axis in ("m", "n") if not self.copies.is_whole(axis)]
            with w.when(*inside):
                store_outputs(w, gemm, at, accumulators, width, atom, first + column)

    def _staged_epilogue(self, accumulators: Buffer) -> None:
        """The tile goes through shared memory, so that whole rows are stored. CTAs that share ``k`` add up there."""
        s, w, gemm = self.s, self.w, self.gemm
        layout = Layout((s.tile_n + PARTIAL_PADDING, 1))
        partials = w.allocate("partials", (s.tile_m, s.tile_n), accumulators.dtype, MemoryScope.SHARED, layout)
        with self._pairs() as (m, n, (i, j), first):
            value = Load(accumulators, (Broadcast(i, 2), Broadcast(j, 2), Ramp(first, 1, 2)))
            w.store(partials, (Broadcast(m, 2), Ramp(n, 1, 2)), value)
        w.barrier(SyncScope.CLUSTER if s.split_k > 1 else SyncScope.BLOCK)
        own = TileSlice(gemm, self.at, self.k_rank, s.split_k, self.thread, s.threads)
        reduce_tile(w, own, partials, gcd(gemm.n.extent, s.tile_n, STORED_BYTES // accumulators.dtype.bytes))
        if s.split_k > 1:
            w.barrier(SyncScope.CLUSTER)


def can_use_mma(gemm: Gemm, target: Target) -> bool:
    """Return whether both operands are plain loads of one type that mma.sync takes. That of float64 is faster than
    multiply-adds on Hopper alone."""
    atom = find_mma_atom(gemm)
    return atom is not None and (atom.operand != float64 or target.arch == "sm_90a")
