"""Fragments of float32 operands that are split into planes in registers, and the block sums of their products.

A warp loads its fragment of an atom of ``k`` from lines in shared memory, which lie along ``k`` or along the rows of
the operand. Each number becomes one part for each plane:
the number rounded to TF32 or bfloat16, what that leaves over, rounded again, and so on, as ``gemm.pack`` does. All
products of an atom are added up in block sums, which are then added to the accumulators in float32, since matrix units
truncate what they accumulate.
"""

from ....core.dtypes import float32
from ....core.precision import Precision
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Broadcast, Cast, Expr, Load, Ramp, index
from ....ir.gpu.wgmma import WgmmaAtom
from ...tile.contiguous import contiguous_vector
from ...tile.names import FreshNameWriter
from ..permuted_rows import permuted_row


class SplitFragments:
    """The left operand of ``atom`` in registers. ``lines`` are float32 lines of 128 bytes in shared memory: (row, place
    of k), or where they lie along the rows (line of rows, place of k, row). ``columns`` is the N of the instruction."""

    def __init__(self, w: FreshNameWriter, atom: WgmmaAtom, precision: Precision, lines: Buffer, columns: int) -> None:
        assert atom.fragment is not None
        self.w, self.lines, self.columns, self.fragment = w, lines, columns, atom.fragment
        elements = atom.line // atom.k * self.fragment.elements("a")
        self.planes = w.allocate("planes", (precision.planes, elements), atom.a, MemoryScope.REGISTER)
        self.rest = w.allocate("rest", (2, self.fragment.register_elements), float32, MemoryScope.REGISTER)
        self.block_sums = w.allocate("block_sums", (columns // 2,), float32, MemoryScope.REGISTER)

    def plane(self, number: int) -> tuple[Buffer, tuple[Expr, ...]]:
        """Return where a plane lies."""
        return self.planes, (index(number), index(0))

    def load(self, first: Expr, thread: tuple[Expr, Expr], line: int) -> None:
        """Load and split one of the lines of an atom. ``first``: the line of the warpgroup's first row. ``thread``: the
        number of the warp in its warpgroup, and the lane."""
        w, fragment, (warp, lane) = self.w, self.fragment, thread
        line_elements, together = self.lines.shape[-1], fragment.register_elements
        steps, held = line_elements // fragment.k, fragment.elements("a")
        row = first + warp * fragment.m + lane // 4
        column = lane % 4 * together
        with (
            w.unrolled("step", steps) as step,
            w.unrolled("register", held // together) as register,
        ):
            at = (row + register % 2 * 8, step * fragment.k + register // 2 * (fragment.k // 2) + column)
            w.store(self.rest, self._rest(index(0)), Load(self.lines, contiguous_vector(at, together)))
            self._split(index(0), (line * steps + step) * held + register * together)

    def load_along_rows(self, first: Expr, thread: tuple[Expr, Expr]) -> None:
        """As ``load``, of an atom whose lines lie along the rows, from the line ``first`` on. A lane loads pairs of
        rows (``permuted_rows``)."""
        w, fragment, (warp, lane) = self.w, self.fragment, thread
        line_elements, together, held = self.lines.shape[-1], fragment.register_elements, fragment.elements("a")
        row = permuted_row(warp, lane, index(0), together)
        with (
            w.unrolled("step", self.lines.shape[-2] // fragment.k) as step,
            w.unrolled("k_half", 2) as k_half,
        ):
            k = step * fragment.k + k_half * (fragment.k // 2) + lane % 4 * together
            with w.unrolled("place", together) as place:
                pair = Load(
                    self.lines, contiguous_vector((first + row // line_elements, k + place, row % line_elements), 2)
                )
                w.store(self.rest, (Ramp(index(0), 1, 2), Broadcast(place, 2)), pair)
            with w.unrolled("half", 2) as half:
                self._split(half, step * held + (k_half * 2 + half) * together)

    def _rest(self, half: Expr) -> tuple[Expr, ...]:
        return contiguous_vector((half, index(0)), self.fragment.register_elements)

    def _split(self, half: Expr, to: Expr) -> None:
        """Store the planes of what was loaded for a register, from the element ``to`` of each of them on."""
        w, rest = self.w, self._rest(half)
        for plane in range(self.planes.shape[0]):
            there = contiguous_vector((index(plane), to), self.fragment.register_elements)
            w.store(self.planes, there, Cast(Load(self.rest, rest), self.planes.dtype))
            if plane + 1 < self.planes.shape[0]:
                w.store(self.rest, rest, Load(self.rest, rest) - Cast(Load(self.planes, there), float32))

    def promote(self, accumulators: Buffer) -> None:
        """Add the block sums, which have been awaited, to the accumulators."""
        w = self.w
        with w.unrolled("promoted", self.columns // 4) as pair:
            at = (Ramp(pair * 2, 1, 2),)
            w.store(accumulators, at, Load(accumulators, at) + Load(self.block_sums, at))
