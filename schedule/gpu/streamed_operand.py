"""Operands of matrix instructions that are computed in registers from what memory holds, such as weights of 4 bits and
keys of 8 bits with scales.

    float16((float32(W[n, k // 2] >> 4 * (k % 2) & 15) - 8) * float32(S[n, k // 128]))

The tensor with the most bytes is streamed: a lane loads a vector of neighbours of it along one axis, up to 16 bytes.
Tensors that have one element for all places of such a vector, such as scales of groups, are loaded once for it. All
others are loaded where they are used, such as a table that is indexed by the weights themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...ir.expr import Binary, BinaryOp, Const, Expr, Load, Var, index, rebuild
from ...ir.rewrite import free_variables, loads_of, substitute
from ..tile.load_analysis import flat_offset
from ..tile.stage_body import vector_at

VECTOR_BYTES = 16
"""How many bytes a lane loads at once, at most."""
_LEAST_VECTOR_BYTES = 4
_PLACE = "place#"
"""The variable that counts the places of a vector; no variable of a kernel has this name."""
_FIRST = "first#"
"""The variable for the first place of a vector along the axis."""


@dataclass(frozen=True, slots=True)
class StreamedOperand:
    """``value`` is the operand in the dtype of the instruction, whose neighbours along ``axis`` are streamed. ``load``:
    what is streamed, with elements for ``places`` places of the axis each, ``elements`` at once. ``once``: the loads
    that are the same for all places of a vector."""

    value: Expr
    axis: str
    load: Load
    places: int
    elements: int
    once: tuple[Load, ...]

    @property
    def vector(self) -> int:
        """How many places a vector has."""
        return self.elements * self.places

    @property
    def vector_bytes(self) -> int:
        """How many bytes a vector has."""
        return self.elements * self.load.dtype.bytes

    def bytes_of(self, extent: int) -> int:
        """Return how many bytes so many places of the axis have."""
        return extent // self.places * self.load.dtype.bytes

    def first_element(self, at: Mapping[str, Expr], vector: Expr) -> tuple[Expr, ...]:
        """Return where a vector begins, by its number along the axis and the place ``at`` along the others."""
        *outer, _ = self.load.indices
        return (*(substitute(i, at) for i in outer), vector * self.elements)

    def once_at(self, load: Load, at: Mapping[str, Expr], first: Expr) -> Load:
        """Return one of ``once`` of the vector that begins at ``first``."""
        here = {**at, self.axis: first}
        return Load(load.buffer, tuple(substitute(i, here) for i in load.indices))

    def along_vector(self, at: Mapping[str, Expr], first: Expr, place: Expr, raw: Load, once: Sequence[Load]) -> Expr:
        """Return the operand at two neighbouring places of the vector that begins at ``first``, from its place
        ``place`` on. ``raw``: its first element in registers; ``once``: what the loads of that name gave."""
        return vector_at(self._held(raw, once), {**at, _FIRST: first, _PLACE: place}, _PLACE, 2)

    def across_vectors(
        self, at: Mapping[str, Expr], first: Expr, place: Expr, across: str, raw: Load, once: Sequence[Load]
    ) -> Expr:
        """Return the operand at a place of two vectors, which are neighbours along the variable ``across`` from ``at``
        on. That is in the indices of ``raw`` and ``once``, which are as above."""
        return vector_at(self._held(raw, once), {**at, _FIRST: first, _PLACE: place}, across, 2)

    def _held(self, raw: Load, once: Sequence[Load]) -> Expr:
        """Return the operand on the first place of a vector and a place of it, with what was loaded of it."""
        held = dict(zip(self.once, once, strict=True))
        place = Var(_PLACE)

        def taken(e: Expr) -> Expr:
            if isinstance(e, Load):
                if e == self.load:
                    own = place if self.places == 1 else Binary(BinaryOp.FLOORDIV, place, index(self.places))
                    return Load(raw.buffer, (*raw.indices[:-1], raw.indices[-1] + own))
                if e in held:
                    return held[e]
            divisor = _divisor(e, self.axis)
            if divisor is not None and isinstance(e, Binary):
                if e.op is BinaryOp.MOD and self.vector % divisor == 0:
                    return Binary(BinaryOp.MOD, place, index(divisor))
                if e.op is BinaryOp.FLOORDIV and divisor % self.vector == 0:
                    return Binary(BinaryOp.FLOORDIV, Var(_FIRST), index(divisor))
            if e == Var(self.axis):
                return Var(_FIRST) + place
            return rebuild(e, [taken(c) for c in e.children]) if e.children else e

        return taken(self.value)


def streamed_operand(
    value: Expr, axis: str, extent: int, lanes: int, row: str, most_bytes: int = VECTOR_BYTES
) -> StreamedOperand | None:
    """Return ``value`` as an operand that is streamed along ``axis``, which has ``extent`` places; None where nothing
    in it is contiguous along that. ``lanes``: vectors of so many lanes cover the axis a whole number of times, 1 where
    they need not. ``row``: another axis, along which the streamed tensor has other elements. ``most_bytes``: how
    many bytes a vector has at most."""
    loads = dict.fromkeys(loads_of(value))
    streamed = {load: places for load in loads if (places := _places(load, axis, row)) is not None}
    if not streamed:
        return None
    load = max(streamed, key=lambda e: e.buffer.bytes)
    widest = most_bytes // load.dtype.bytes
    while load.dtype.bytes * widest >= _LEAST_VECTOR_BYTES:
        vector = widest * streamed[load]
        if extent % (vector * lanes) == 0 and vector % 2 == 0 and _begins_at(load, widest):
            once = tuple(e for e in loads if e != load and e.mask is None and is_same(e, axis, vector))
            return StreamedOperand(value, axis, load, streamed[load], widest, once)
        widest //= 2
    return None


def _begins_at(load: Load, elements: int) -> bool:
    """Return whether all rows begin at a multiple of so many elements."""
    strides = zip(load.indices[:-1], load.buffer.strides[:-1], strict=True)
    if all(stride % elements == 0 for _, stride in strides):
        return True
    start = flat_offset(Load(load.buffer, (*load.indices[:-1], index(0))))
    return start is not None and not any(number % elements for number in (start.constant, *start.terms.values()))


def _places(load: Load, axis: str, row: str) -> int | None:
    """Return for how many neighbouring places of the axis a load has one element; None where its last index is anything
    else, or where other indices depend on the axis."""
    if not load.indices or load.mask is not None:
        return None
    *outer, last = load.indices
    variables = {name for i in outer for name in free_variables(i)}
    if axis in variables or row not in variables:
        return None
    if last == Var(axis):
        return 1
    return _divisor(last, axis) if isinstance(last, Binary) and last.op is BinaryOp.FLOORDIV else None


def is_same(e: Expr, axis: str, places: int) -> bool:
    """Return whether ``e`` is the same for all of so many places of the axis, from each multiple of that on."""

    def without(e: Expr) -> Expr:
        divisor = _divisor(e, axis)
        if divisor is not None and isinstance(e, Binary) and e.op is BinaryOp.FLOORDIV and divisor % places == 0:
            return index(0)
        return rebuild(e, [without(c) for c in e.children]) if e.children else e

    return axis not in free_variables(without(e))


def _divisor(e: Expr, axis: str) -> int | None:
    """Return the divisor of a quotient or remainder of the axis."""
    if isinstance(e, Binary) and e.op in (BinaryOp.FLOORDIV, BinaryOp.MOD) and e.a == Var(axis):
        return int(e.b.value) if isinstance(e.b, Const) else None
    return None
