"""Vectors of 16-bit elements that begin anywhere in memory.

A thread loads the one or two aligned vectors that they lie in and shifts them by funnel shifts. The last elements of a
tensor that are no whole vector are loaded one by one: the vector of one more would end beyond it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ...ir.buffer import Buffer
from ...ir.build import Writer
from ...ir.expr import Broadcast, Expr, Load, Ramp, index, logical_and

VECTOR_BYTES = 16


def flat_view(tensor: Buffer) -> Buffer:
    """Return a tensor that lies row after row as one dimension."""
    return Buffer(tensor.name, (tensor.elements,), tensor.dtype, tensor.scope)


def flat_index(tensor: Buffer, indices: Iterable[Expr]) -> Expr:
    """Return where an element of such a tensor lies in ``flat_view``."""
    return sum((i * stride for i, stride in zip(indices, tensor.strides, strict=True)), index(0))


def vector_elements(tensor: Buffer) -> int:
    """Return how many elements a vector has."""
    return VECTOR_BYTES // tensor.dtype.bytes


def whole_vectors(tensor: Buffer) -> int:
    """Return how many elements of a tensor are in whole vectors."""
    return tensor.elements // vector_elements(tensor) * vector_elements(tensor)


@dataclass(frozen=True, slots=True)
class UnalignedVector:
    """A vector of ``tensor``, of one dimension, from the element ``begin`` on. It is at ``place`` of a row that ends
    before the place ``end``."""

    tensor: Buffer
    begin: Expr
    place: Expr
    end: Expr

    def load(self, *tests: Expr) -> Load:
        """Return the load of the vector where all ``tests`` hold. Elements behind the row, and those that are in no
        whole vector of the tensor, are zeros."""
        width, whole = vector_elements(self.tensor), whole_vectors(self.tensor)
        flat = Ramp(self.begin, 1, width)
        there: list[Expr] = [Broadcast(test, width) for test in tests]
        there.append(Ramp(self.place, 1, width) < Broadcast(self.end, width))
        there.append(flat < Broadcast(index(whole), width))
        return Load(self.tensor, (flat,), logical_and(*there))

    def load_rest(self, w: Writer, target: Buffer, to: tuple[Expr, ...]) -> None:
        """Store the elements that are in no whole vector of the tensor to ``target[to]``, each at its place of the last
        dimension."""
        width, whole = vector_elements(self.tensor), whole_vectors(self.tensor)
        if whole == self.tensor.elements:
            return
        with w.when(self.begin + width > whole), w.unrolled("element", width) as e:
            with w.when(self.begin + e >= whole, self.place + e < self.end):
                w.store(target, (*to, e), Load(self.tensor, (self.begin + e,)))
