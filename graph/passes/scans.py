"""Long scans as short ones in blocks, which kernels take as windows that end at each element."""

from ..graph import Graph, Node, Value
from ..operators import OPERATORS
from ..operators.gathers import SHORT_SCAN
from .rewrite import Rewriter, rewrite

_REDUCTION = {"running_sum": ("sum", "add", 0.0), "running_product": ("prod", "mul", 1.0)}
"""A scan -> what it does with a block, what it does with two elements, and the element that changes none."""


def split_scans(graph: Graph) -> Graph:
    """Write each scan of more than ``SHORT_SCAN`` elements in blocks of so many:

    x' = x in blocks [b, 16];  t[b] = sum of block b of x';  a[b] = sum of t before b, likewise
    y = scan of each block of x' + a
    """

    def replaced(rewriter: Rewriter, node: Node) -> Value | None:
        if node.op not in _REDUCTION:
            return None
        d = OPERATORS[node.op].values(node.attributes).integer("dim")
        x = rewriter.values[node.operands[0]]
        return _scan(rewriter, node.op, x, d) if x.shape[d] > SHORT_SCAN else None

    return rewrite(graph, replaced)


def _scan(b: Rewriter, op: str, x: Value, d: int) -> Value:
    extent = x.shape[d]
    if extent <= SHORT_SCAN:
        return b.node(op, x, dim=d)
    reduce, combine, neutral = _REDUCTION[op]
    count = -(-extent // SHORT_SCAN)
    split = b.node(
        "reshape", _padded(b, x, d, 0, count * SHORT_SCAN - extent, neutral),
        shape=(*x.shape[:d], count, SHORT_SCAN, *x.shape[d + 1 :]),
    )  # fmt: skip
    of_blocks = _scan(b, op, b.node(reduce, split, dims=(d + 1,)), d)
    ahead = _padded(b, b.node("slice", of_blocks, dim=d, start=0, stop=count - 1), d, 1, 0, neutral)
    ahead = b.node("reshape", ahead, shape=(*x.shape[:d], count, 1, *x.shape[d + 1 :]))
    whole = b.node(combine, b.node(op, split, dim=d + 1), ahead)
    y = b.node("reshape", whole, shape=(*x.shape[:d], count * SHORT_SCAN, *x.shape[d + 1 :]))
    return y if y.shape == x.shape else b.node("slice", y, dim=d, start=0, stop=extent)


def _padded(b: Rewriter, x: Value, d: int, before: int, behind: int, value: float) -> Value:
    if not before and not behind:
        return x
    widths = [tuple(n if e == d else 0 for e in range(len(x.shape))) for n in (before, behind)]
    given = value if x.dtype.is_float else int(value)
    return b.node("pad", x, before=widths[0], behind=widths[1], value=given)
