"""Products of quantised numbers that a model writes in floats: as products of 8-bit integers.

matmul((x - p) * s, (w - q) * t)    ->    cast(sum of (x - p) (w - q)) * s * t

Such models have what exporters call QDQ form: each factor is dequantised before its product. The sums are exact where
floats would round them. What is left are the roundings of a sum to float32 and of two multiplications.
"""

from dataclasses import dataclass
from math import prod

from ...core.dtypes import DType, float32, float64, int32
from ..graph import Graph, Node, Value
from ..integer_products import QuantisedFactor, integer_convolution, integer_matmul, is_quantised
from .rewrite import Rewriter, attributes_of, integers_of, rewrite

_MOST_TERMS = 1 << 15
"""Sums of so many products of bytes less zero points that are bytes fit int32."""


@dataclass(frozen=True, slots=True)
class _Dequantised:
    """(values - zero) * scale, where the zero point and the scale have one element, or as many dimensions as
    ``values``."""

    values: Value
    zero: Value | None
    scale: Value

    @property
    def factor(self) -> QuantisedFactor:
        return QuantisedFactor(self.values, self.zero)

    def varies_along(self, d: int) -> bool:
        """Return whether the scale or the zero point differs along dimension ``d``."""
        return any(v is not None and v.elements > 1 and v.shape[d] > 1 for v in (self.scale, self.zero))


def multiply_quantised(graph: Graph) -> Graph:
    """Multiply bytes where both factors of a product are dequantised bytes, and the right one is constant."""

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op not in ("matmul", "convolution") or not node.result.dtype.is_float:
            return None
        x, w = (_dequantised(rewriter, rewriter.values[name]) for name in node.operands[:2])
        if x is None or w is None or node.operands[1] not in graph.fixed:
            return None
        total = (_matmul if node.op == "matmul" else _convolution)(rewriter, node, x, w)
        if total is None:
            return None
        dtype = float64 if node.result.dtype == float64 else float32
        y = _cast(rewriter, total, dtype)
        rank, columns = len(y.shape), 1 if node.op == "convolution" else len(y.shape) - 1
        for scale in (x.scale, w.scale):
            if scale.elements > 1 and node.op == "convolution":
                scale = _along(rewriter, scale, rank, columns)
            y = rewriter.node("mul", y, _cast(rewriter, scale, dtype))
        for name in node.operands[2:]:
            y = rewriter.node("add", y, _cast(rewriter, _along(rewriter, rewriter.values[name], rank, columns), dtype))
        return _cast(rewriter, y, node.result.dtype)

    return rewrite(graph, replaced)


def _matmul(rewriter: Rewriter, node: Node, x: _Dequantised, w: _Dequantised) -> Value | None:
    if x.values.shape[-1] > _MOST_TERMS or x.varies_along(-1) or w.varies_along(-2):
        return None
    return integer_matmul(rewriter, x.factor, w.factor)


def _convolution(rewriter: Rewriter, node: Node, x: _Dequantised, w: _Dequantised) -> Value | None:
    shape, given = w.values.shape, dict(attributes_of(node))
    varies = any(x.varies_along(d) or (d and w.varies_along(d)) for d in range(len(shape)))
    if varies or given["channels_last"] or prod(shape[1:]) > _MOST_TERMS:
        return None
    filters = w.factor
    if w.zero is not None and w.zero.elements > 1:
        filters = QuantisedFactor(w.values, _along(rewriter, w.zero, len(shape) - 1, 0))
    del given["accumulate"], given["precision"]
    return integer_convolution(rewriter, x.factor, filters, **given)


def _dequantised(rewriter: Rewriter, value: Value) -> _Dequantised | None:
    """Return what ``value`` is made of, through permutations and reshapes; None where it is anything else."""
    made = rewriter.made.get(value.name)
    if made is None or made.is_foreign:
        return None
    if made.op in ("permute", "reshape"):
        found = _dequantised(rewriter, rewriter.value(made.operands[0]))
        return None if found is None else _moved(rewriter, made, found)
    if made.op != "mul":
        return None
    a, b = (rewriter.value(name) for name in made.operands)
    for whole, scale in ((a, b), (b, a)):
        found = _scaled(rewriter, whole, scale)
        if found is not None and found.values.shape == value.shape:
            return found
    return None


def _scaled(rewriter: Rewriter, whole: Value, scale: Value) -> _Dequantised | None:
    """Return bytes less a zero point, times ``scale``; None where ``whole`` is anything else."""
    made, zero = rewriter.made.get(whole.name), None
    if made is not None and made.op == "sub":
        zero = _integer(rewriter, rewriter.value(made.operands[1]))
        made = None if zero is None else rewriter.made.get(made.operands[0])
    if made is None or made.op != "cast":
        return None
    values = rewriter.value(made.operands[0])
    if not is_quantised(values.dtype) or not made.result.dtype.is_float:
        return None
    rank = len(values.shape)
    zero = None if zero is None else _of_rank(rewriter, zero, rank)
    return _Dequantised(values, zero, _of_rank(rewriter, scale, rank))


def _integer(rewriter: Rewriter, value: Value) -> Value | None:
    """Return the integers that floats are, zero points of bytes; None where they are anything else."""
    made = rewriter.made.get(value.name)
    if made is not None and made.op in ("cast", "reshape"):
        before = rewriter.value(made.operands[0])
        found = before if before.dtype.is_integer else _integer(rewriter, before)
        return found if found is None or made.op == "cast" else rewriter.node("reshape", found, shape=value.shape)
    if made is not None and made.op == "full":
        number = attributes_of(made)["value"]
        if isinstance(number, int | float) and number in range(-128, 256):
            return rewriter.node("full", shape=value.shape, value=int(number), dtype=int32.name)
    return None


def _moved(rewriter: Rewriter, made: Node, found: _Dequantised) -> _Dequantised | None:
    """``found`` behind a permutation or a reshape; None where its scales or zero points do not go through that."""
    parts = [v for v in (found.zero, found.scale) if v is not None and v.elements > 1]
    if made.op == "reshape" and parts:
        return None

    def moved(value: Value) -> Value:
        return value if value.elements == 1 else rewriter.node("permute", value, order=integers_of(made, "order"))

    values = rewriter.node(made.op, found.values, **made.attributes)
    return _Dequantised(values, None if found.zero is None else moved(found.zero), moved(found.scale))


def _of_rank(rewriter: Rewriter, value: Value, rank: int) -> Value:
    """``value`` with no dimension where it is a number, else with ``rank`` dimensions."""
    shape = () if value.elements == 1 else (*[1] * (rank - len(value.shape)), *value.shape)
    return value if shape == value.shape else rewriter.node("reshape", value, shape=shape)


def _along(rewriter: Rewriter, value: Value, rank: int, dim: int) -> Value:
    """``value``, whose elements are those along ``dim``, with ``rank`` dimensions."""
    shape = tuple(value.elements if d == dim else 1 for d in range(rank))
    return value if shape == value.shape else rewriter.node("reshape", value, shape=shape)


def _cast(rewriter: Rewriter, value: Value, dtype: DType) -> Value:
    return value if value.dtype == dtype else rewriter.node("cast", value, dtype=dtype.name)
