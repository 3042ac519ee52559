"""Copies of both operands of a product into stages in shared memory by cp.async, which the threads of a CTA share out.

Copies are as wide as the rows of an operand are aligned, 16 bytes at best.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ...ir.buffer import Buffer
from ...ir.build import Writer
from ...ir.expr import Expr, Load, conjunction, index, minimum
from ...ir.gpu.async_copy import CopyAsync
from ...ir.rewrite import substitute
from ..problems.gemm import Gemm


@dataclass(frozen=True, slots=True)
class StagedOperand:
    """One operand in shared memory: ``stages`` is (stage, row, column), with rows along the axis ``outer`` and columns
    along the axis ``inner``. ``width``: elements of one copy. ``registers``: (vector of a thread, element), where it
    goes through registers. ``run``: how many vectors of a row are copied before the next row begins; 0: all."""

    load: Load
    stages: Buffer
    outer: str
    inner: str
    width: int
    registers: Buffer | None = None
    run: int = 0

    @property
    def along_k(self) -> bool:
        return self.inner == "k"


@dataclass(frozen=True, slots=True)
class StagedCopies:
    """What one CTA copies: the operands of the tile of ``tile_m`` by ``tile_n`` results that begins at ``at``, and of
    ``k`` the part number ``k_rank`` of ``split_k``, which has ``k_iters`` iterations of ``block_k`` places. ``thread``:
    which of the ``threads`` threads of the CTA this one is."""

    w: Writer
    gemm: Gemm
    at: Mapping[str, Expr]
    tile_m: int
    tile_n: int
    block_k: int
    k_iters: int
    split_k: int
    k_rank: Expr
    thread: Expr
    threads: int

    def count(self, operand: StagedOperand, width: int) -> int:
        """Return how many vectors of a stage a thread copies."""
        rows, columns = operand.stages.shape[1:]
        return -(-rows * columns // (width * self.threads))

    def copy(
        self,
        operand: StagedOperand,
        k_iter: Expr,
        stage: Expr,
        numbers: range | None = None,
        exists: Expr | None = None,
    ) -> None:
        """Begin to copy a k iteration to a stage: all vectors, or those with ``numbers`` (see ``count``). Beyond the
        end of ``k``, and where the iteration does not exist, zeros arrive. Beyond the end of ``m`` or ``n`` anything
        may arrive, since nobody stores what is made of it."""
        with self.vectors(operand, operand.width, numbers) as (_, row, column):
            at = self.position(operand, k_iter, row, column)
            mask = conjunction(None if self.is_whole("k") else at["k"] < self.gemm.k.extent, exists)
            at[operand.outer] = self.clamped(at, operand.outer, 1)
            at[operand.inner] = self.clamped(at, operand.inner, operand.width)
            source = tuple(substitute(i, at) for i in operand.load.indices)
            to = (stage, row, column)
            self.w.emit(CopyAsync(operand.stages, to, operand.load.buffer, source, operand.width, mask))

    def clamped(self, at: Mapping[str, Expr], axis: str, elements: int) -> Expr:
        """Return the index along ``axis``, moved to where the last vector of so many elements begins; ``k`` stays as it
        is."""
        if axis == "k" or self.is_whole(axis):
            return at[axis]
        return minimum(at[axis], index((self.extent(axis) - 1) // elements * elements))

    @contextmanager
    def vectors(
        self, operand: StagedOperand, width: int, numbers: range | None = None
    ) -> Iterator[tuple[Expr, Expr, Expr]]:
        """The vectors of a stage that this thread copies, or those with ``numbers``: the number of each, its row and
        its column."""
        rows, columns = operand.stages.shape[1:]
        vectors = rows * columns // width
        numbers = range(self.count(operand, width)) if numbers is None else numbers
        with self.w.unrolled("vector", len(numbers)) as step:
            number = step + numbers.start
            vector = number * self.threads + self.thread
            with self.w.when(vector < vectors if vectors % self.threads else None):
                run = operand.run or columns // width
                if run * width == columns:
                    yield number, vector // run, vector % run * width
                else:
                    yield number, vector // run % rows, (vector // (run * rows) * run + vector % run) * width

    def position(self, operand: StagedOperand, k_iter: Expr, row: Expr, column: Expr) -> dict[str, Expr]:
        """Return where a row and a column of a stage lie in the operand: axis -> index."""
        at = {**self.at, "k": (self.k_rank * self.k_iters + k_iter) * self.block_k}
        return {
            **at,
            operand.outer: at[operand.outer] + row,
            operand.inner: at[operand.inner] + column,
        }

    def extent(self, axis: str) -> int:
        return {"m": self.gemm.m, "n": self.gemm.n, "k": self.gemm.k}[axis].extent

    def is_whole(self, axis: str) -> bool:
        """Return whether tiles end where the axis does."""
        return self.extent(axis) % {"m": self.tile_m, "n": self.tile_n, "k": self.split_k * self.block_k}[axis] == 0
