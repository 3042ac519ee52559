"""Fragments of float32 operands that are split into planes in registers, and the block sums of their products.

A warp loads its fragment of an atom of ``k`` from lines in shared memory. Each number becomes one part for each plane:
the number rounded to TF32 or bfloat16, what that leaves over, rounded again, and so on, as ``gemm.pack`` does. All
products of an atom are added up in block sums, which are then added to the accumulators in float32, since matrix units
truncate what they accumulate.
"""

from ....core.dtypes import float32
from ....core.precision import Precision
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Cast, Expr, Load, Ramp, index
from ....ir.gpu.wgmma import WgmmaAtom
from ...tile.contiguous import contiguous_vector
from ...tile.names import FreshNameWriter


class SplitFragments:
    """The left operand of ``atom`` in registers. ``lines`` are float32 lines of 128 bytes in shared memory. ``columns``
    is the N of the instruction."""

    def __init__(self, w: FreshNameWriter, atom: WgmmaAtom, precision: Precision, lines: Buffer, columns: int) -> None:
        assert atom.fragment is not None
        self.w, self.lines, self.columns, self.fragment = w, lines, columns, atom.fragment
        elements = atom.line // atom.k * self.fragment.elements("a")
        self.planes = w.allocate("planes", (precision.planes, elements), atom.a, MemoryScope.REGISTER)
        self.rest = w.allocate("rest", (self.fragment.register_elements,), float32, MemoryScope.REGISTER)
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
            to = (line * steps + step) * held + register * together
            w.store(
                self.rest, contiguous_vector((index(0),), together), Load(self.lines, contiguous_vector(at, together))
            )
            for plane in range(self.planes.shape[0]):
                there, rest = contiguous_vector((index(plane), to), together), contiguous_vector((index(0),), together)
                w.store(self.planes, there, Cast(Load(self.rest, rest), self.planes.dtype))
                if plane + 1 < self.planes.shape[0]:
                    w.store(self.rest, rest, Load(self.rest, rest) - Cast(Load(self.planes, there), float32))

    def promote(self, accumulators: Buffer) -> None:
        """Add the block sums, which have been awaited, to the accumulators."""
        w = self.w
        with w.unrolled("promoted", self.columns // 4) as pair:
            at = (Ramp(pair * 2, 1, 2),)
            w.store(accumulators, at, Load(accumulators, at) + Load(self.block_sums, at))
