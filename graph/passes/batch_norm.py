"""Batch norm with fixed statistics becomes part of the convolution before it, or a multiplication and an addition."""

from ...core.dtypes import DType, float64
from ..graph import Graph, Node, Value
from .rewrite import Rewriter, attributes_of, rewrite


def fold_batch_norm(graph: Graph) -> Graph:
    """Replace each ``batch_norm`` whose weights are constants.

    scale = weight / sqrt(variance + epsilon), shift = bias - mean * scale, both computed in float64

    Behind a convolution with constant filters that nothing else reads, the filters are multiplied by ``scale``, and
    ``shift`` becomes its bias. Elsewhere x becomes x * scale + shift.
    """

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op != "batch_norm" or not all(name in graph.fixed for name in node.operands[1:]):
            return None
        scale, shift = _scale_and_shift(rewriter, node)
        before = graph.producers.get(node.operands[0])
        alone = before is not None and len(graph.readers[before.name]) == 1 and before.name not in graph.kept
        if alone and before is not None and before.op == "convolution":
            if all(name in graph.fixed for name in before.operands[1:]):
                return _folded(rewriter, before, scale, shift)
        x, rank = rewriter.values[node.operands[0]], len(node.result.shape)
        scale, shift = (_column(rewriter, _cast(rewriter, v, node.result.dtype), rank) for v in (scale, shift))
        return rewriter.node("add", rewriter.node("mul", x, scale), shift)

    return rewrite(graph, replaced)


def _scale_and_shift(rewriter: Rewriter, node: Node) -> tuple[Value, Value]:
    """Return the two in float64."""
    weight, bias, mean, variance = (_cast(rewriter, rewriter.values[n], float64) for n in node.operands[1:])
    epsilon = attributes_of(node)["epsilon"]
    assert isinstance(epsilon, int | float)
    small = rewriter.node("full", shape=(), value=float(epsilon), dtype="float64")
    scale = rewriter.node("mul", weight, rewriter.node("rsqrt", rewriter.node("add", variance, small)))
    return scale, rewriter.node("sub", bias, rewriter.node("mul", mean, scale))


def _folded(rewriter: Rewriter, before: Node, scale: Value, shift: Value) -> Value:
    x, filters, *bias = (rewriter.values[name] for name in before.operands)
    wide = rewriter.node("mul", _cast(rewriter, filters, float64), _column(rewriter, scale, len(filters.shape) + 1))
    if bias:
        shift = rewriter.node("add", shift, rewriter.node("mul", _cast(rewriter, bias[0], float64), scale))
    dtype = filters.dtype
    return rewriter.node(
        "convolution", x, _cast(rewriter, wide, dtype), _cast(rewriter, shift, dtype), **before.attributes
    )


def _cast(rewriter: Rewriter, value: Value, dtype: DType) -> Value:
    return value if value.dtype == dtype else rewriter.node("cast", value, dtype=dtype.name)


def _column(rewriter: Rewriter, value: Value, rank: int) -> Value:
    """``value``, one element for each channel, in a shape that broadcasts along the channels of ``rank`` dimensions."""
    return rewriter.node("reshape", value, shape=(value.elements, *[1] * (rank - 2)))
