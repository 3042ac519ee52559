"""Weights that are stored in fewer bits than they are multiplied in: what a lane loads of them, and how it computes
them from that.

    float16((float32(W[n, k // 2] >> 4 * (k % 2) & 15) - 8) * float32(S[n, k // 128]))

The tensor with the most bytes is streamed: a lane loads 16 bytes of a row of it at once. Tensors that have one element
for all places of such a vector, such as scales of groups, are loaded once for it. All others are loaded where they are
used, such as a table that is indexed by the weights themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ....core.dtypes import DType
from ....ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load, Var, index, rebuild
from ....ir.rewrite import free_variables, loads_of, substitute
from ....te.narrow_floats import cast_outside
from ...problems.gemm import Gemm
from ...tile.load_analysis import flat_offset
from ...tile.stage_body import vector_at

VECTOR_BYTES = 16
"""How many bytes of a row a lane loads at once."""
_LOCAL = "place#"
"""The variable that counts the places of a vector; no variable of a kernel has this name."""
_FIRST = "first#"
"""The variable for the first place of ``k`` of a vector."""


@dataclass(frozen=True, slots=True)
class StreamedWeights:
    """``value`` is B in the dtype of A, on ``n`` and ``k``. ``load``: what is streamed, with elements for
    ``places`` places of ``k`` each. ``once``: the loads that are the same for all places of a vector."""

    value: Expr
    load: Load
    places: int
    once: tuple[Load, ...]

    @property
    def vector(self) -> int:
        """How many places of ``k`` a vector has."""
        return self.elements * self.places

    @property
    def elements(self) -> int:
        """How many elements a vector has."""
        return VECTOR_BYTES // self.load.dtype.bytes

    def first_element(self, n: Expr, vector: Expr) -> tuple[Expr, ...]:
        """Return where a vector begins, by its number along a row."""
        *outer, _ = self.load.indices
        return (*(substitute(i, {"n": n}) for i in outer), vector * self.elements)

    def pair(self, n: Expr, first: Expr, place: Expr, raw: Load, once: Sequence[Load]) -> Expr:
        """Return B at two neighbouring places of the vector that begins at ``first``, from its place ``place`` on.
        ``raw``: its first element in registers; ``once``: what the loads of that name gave."""
        held = dict(zip(self.once, once, strict=True))
        local = Var(_LOCAL)

        def localised(e: Expr) -> Expr:
            if isinstance(e, Load):
                if e == self.load:
                    own = local if self.places == 1 else Binary(BinaryOp.FLOORDIV, local, index(self.places))
                    return Load(raw.buffer, (*raw.indices[:-1], raw.indices[-1] + own))
                if e in held:
                    return held[e]
            divisor = _divisor(e)
            if divisor is not None and isinstance(e, Binary):
                if e.op is BinaryOp.MOD and self.vector % divisor == 0:
                    return Binary(BinaryOp.MOD, local, index(divisor))
                if e.op is BinaryOp.FLOORDIV and divisor % self.vector == 0:
                    return Binary(BinaryOp.FLOORDIV, Var(_FIRST), index(divisor))
            if e == Var("k"):
                return Var(_FIRST) + local
            return rebuild(e, [localised(c) for c in e.children]) if e.children else e

        return vector_at(localised(self.value), {"n": n, _FIRST: first, _LOCAL: place}, _LOCAL, 2)

    def once_at(self, load: Load, n: Expr, first: Expr) -> Load:
        """Return one of ``once`` of the vector that begins at ``first``."""
        return Load(load.buffer, tuple(substitute(i, {"n": n, "k": first}) for i in load.indices))


def streamed_weights(p: Gemm, dtype: DType) -> StreamedWeights | None:
    """Return B as weights that are streamed and multiplied in ``dtype``; None where they are anything else: where their
    values are not of that dtype, or where the rows of what is streamed are no whole vectors."""
    value = _narrow(p.b.body, dtype)
    if value is None:
        return None
    streamed = [load for load in dict.fromkeys(loads_of(value)) if _places(load) is not None]
    if not streamed:
        return None
    load = max(streamed, key=lambda e: e.buffer.bytes)
    places = _places(load)
    assert places is not None  # as asked above
    found = StreamedWeights(value, load, places, ())
    start = flat_offset(Load(load.buffer, (*load.indices[:-1], index(0))))
    aligned = start is not None and not any(
        number % found.elements for number in (start.constant, *start.terms.values())
    )
    if not aligned or p.k.extent % found.vector:
        return None
    once = tuple(e for e in dict.fromkeys(loads_of(value)) if e != load and _is_same(e, found.vector))
    return StreamedWeights(value, load, places, once)


def _narrow(body: Expr, dtype: DType) -> Expr | None:
    """Return what ``body`` is in ``dtype``, which holds all of its values; None where that is not known."""
    outside = cast_outside(body)
    if not isinstance(outside, Cast):
        return None
    value = outside.value
    if value.dtype == dtype:
        return value
    return Cast(value, dtype) if value.dtype.bits == 8 else None


def _places(load: Load) -> int | None:
    """Return for how many neighbouring places of ``k`` a load has one element; None where its last index is anything
    else, or where other indices depend on ``k``."""
    if not load.indices or load.mask is not None or len(loads_of(load)) > 1:
        return None
    *outer, last = load.indices
    variables = {name for i in outer for name in free_variables(i)}
    if variables != {"n"}:
        return None
    if last == Var("k"):
        return 1
    divisor = _divisor(last)
    return divisor if isinstance(last, Binary) and last.op is BinaryOp.FLOORDIV else None


def _is_same(load: Load, vector: int) -> bool:
    """Return whether a load is the same for all places of each vector."""

    def without(e: Expr) -> Expr:
        divisor = _divisor(e)
        if divisor is not None and isinstance(e, Binary) and e.op is BinaryOp.FLOORDIV and divisor % vector == 0:
            return index(0)
        return rebuild(e, [without(c) for c in e.children]) if e.children else e

    if load.mask is not None or len(loads_of(load)) > 1:
        return False
    return "k" not in {name for i in load.indices for name in free_variables(without(i))}


def _divisor(e: Expr) -> int | None:
    """Return the divisor of a quotient or remainder of ``k``."""
    if isinstance(e, Binary) and e.op in (BinaryOp.FLOORDIV, BinaryOp.MOD) and e.a == Var("k"):
        return int(e.b.value) if isinstance(e.b, Const) else None
    return None
