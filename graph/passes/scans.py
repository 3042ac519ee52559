"""Gives scans the form that kernel classes take.

A scan from the end, or one that leaves an element out of its own result, becomes one node. Those beyond the limits of
``te`` are done in blocks, and on a processor long ones that are alone: kernels of GPUs share long lines themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

from ...te.limits import MAX_POINTS
from ..graph import Graph, Node, Value
from ..operators import OPERATORS
from ..operators.attributes import real, real_json
from ..operators.scans import SCAN_NAMES, neutral
from .rewrite import Rewriter, integers_of, rewrite

_REDUCTION = {
    "running_sum": ("sum", "add"),
    "running_product": ("prod", "mul"),
    "running_max": ("max", "maximum"),
    "running_min": ("min", "minimum"),
}
"""A scan -> what it does with a block, and what it does with two elements."""
_MOVING = ("pad", "concatenate")
LONG = 8192
"""A processor splits a scan that is alone and has more elements."""
BLOCK = 2048
"""How many elements a block of a long scan has, roughly."""


def find_scans(graph: Graph) -> Graph:
    """Write scans from the end, and exclusive ones, as one node each:

    flip(scan(flip(x)))            ->    scan(x, reverse)
    0, scan(x) without its last    ->    scan(x, exclusive)
    scan(0, x without its last)    ->    scan(x, exclusive)
    """

    def replaced(b: Rewriter, node: Node) -> Value | None:
        if node.op == "flip":
            return _turned(b, node)
        if node.op in _MOVING:
            return _moved_scan(b, node)
        return _scan_of_moved(b, node) if node.op in SCAN_NAMES else None

    return rewrite(graph, replaced)


def split_scans(graph: Graph, *, gpu: bool = False) -> Graph:
    """Write scans beyond the limits of ``te`` in blocks, and without ``gpu`` long ones that are alone:

    x' = x in blocks [b, r];  t[b] = sum of block b;  a[b] = sum of t before b;  y = scan of each block of x' + a
    """

    def replaced(b: Rewriter, node: Node) -> Value | None:
        if node.op not in SCAN_NAMES:
            return None
        x, scan = b.values[node.operands[0]], _ScanKind.of(node)
        return _in_blocks(b, scan, x, gpu=gpu) if _is_long(x, scan.dim, gpu=gpu) else None

    return rewrite(graph, replaced)


@dataclass(frozen=True, slots=True)
class _ScanKind:
    """A scan without its operand."""

    op: str
    dim: int
    reverse: bool
    exclusive: bool

    @classmethod
    def of(cls, node: Node) -> Self:
        v = OPERATORS[node.op].values(node.attributes)
        return cls(node.op, v.integer("dim"), v.flag("reverse"), v.flag("exclusive"))

    def node(self, b: Rewriter, x: Value) -> Value:
        return b.node(self.op, x, dim=self.dim, reverse=self.reverse, exclusive=self.exclusive)


@dataclass(frozen=True, slots=True)
class _Moved:
    """``whole``, moved by one element along ``dim``: forwards, or backwards. The first place then holds ``number``."""

    whole: Value
    dim: int
    backwards: bool
    number: float

    def is_neutral_for(self, scan: _ScanKind) -> bool:
        """Return whether the scan goes the same way, and what came in changes no result of it."""
        same = (self.dim, self.backwards) == (scan.dim, scan.reverse) and not scan.exclusive
        return same and self.number == neutral(scan.op, self.whole.dtype)


def _turned(b: Rewriter, node: Node) -> Value | None:
    """Return a flipped scan of what is flipped."""
    made = b.made.get(b.values[node.operands[0]].name)
    flip = None if made is None or made.op not in SCAN_NAMES else b.made.get(made.operands[0])
    if made is None or flip is None or flip.op != "flip":
        return None
    over, scan = set(integers_of(node, "dims")), _ScanKind.of(made)
    if over != set(integers_of(flip, "dims")) or scan.dim not in over:
        return None
    return replace(scan, reverse=not scan.reverse).node(b, b.value(flip.operands[0]))


def _moved_scan(b: Rewriter, node: Node) -> Value | None:
    """Return a scan whose results are moved by one element."""
    moved = _moved(b, node, [b.values[name] for name in node.operands])
    made = None if moved is None else b.made.get(moved.whole.name)
    if moved is None or made is None or made.op not in SCAN_NAMES or not moved.is_neutral_for(_ScanKind.of(made)):
        return None
    return replace(_ScanKind.of(made), exclusive=True).node(b, b.value(made.operands[0]))


def _scan_of_moved(b: Rewriter, node: Node) -> Value | None:
    """Return a scan of what is moved by one element."""
    made, scan = b.made.get(b.values[node.operands[0]].name), _ScanKind.of(node)
    if made is None or made.op not in _MOVING:
        return None
    moved = _moved(b, made, [b.value(name) for name in made.operands])
    if moved is None or not moved.is_neutral_for(scan):
        return None
    return replace(scan, exclusive=True).node(b, moved.whole)


def _moved(b: Rewriter, node: Node, operands: Sequence[Value]) -> _Moved | None:
    """Return what a pad or a concatenation moves by one element; None where it does something else."""
    v = OPERATORS[node.op].values(node.attributes)
    if node.op == "pad":
        before, behind = v.integers("before"), v.integers("behind")
        sides = [(d, n, m) for d, (n, m) in enumerate(zip(before, behind, strict=True)) if n or m]
        if len(sides) != 1 or sides[0][1:] not in ((1, 0), (0, 1)):
            return None
        (d, _, last), part, number = sides[0], operands[0], real(v, "value")
    else:
        d, last = v.integer("dim"), int(_number(b, operands[0]) is None)
        found = _number(b, operands[-last]) if len(operands) == 2 else None
        if found is None or operands[-last].shape[d] != 1:
            return None
        part, number = operands[1 - last], found
    whole = _whole(b, part, d, backwards=bool(last))
    return None if whole is None else _Moved(whole, d, bool(last), number)


def _whole(b: Rewriter, part: Value, d: int, *, backwards: bool) -> Value | None:
    """Return the value that ``part`` is but for the last element along ``d``, or for the first one (``backwards``)."""
    made = b.made.get(part.name)
    if made is None or made.op != "slice":
        return None
    v, whole = OPERATORS["slice"].values(made.attributes), b.value(made.operands[0])
    extent = whole.shape[d]
    wanted = (d, 1, extent, 1) if backwards else (d, 0, extent - 1, 1)
    return whole if tuple(v.integer(name) for name in ("dim", "start", "stop", "step")) == wanted else None


def _number(b: Rewriter, value: Value) -> float | None:
    """Return the number that all elements of a value are; None where they are no constant number."""
    made = b.made.get(value.name)
    while made is not None and made.op in ("expand", "reshape", "identity", "slice"):
        made = b.made.get(made.operands[0])
    return None if made is None or made.op != "full" else real(OPERATORS["full"].values(made.attributes), "value")


def _is_long(x: Value, d: int, *, gpu: bool) -> bool:
    """Return whether a scan leaves a processor idle, or scans are beyond the limits of ``te``, where one of n elements
    has n² points."""
    extent = x.shape[d]
    alone = x.elements == extent and not gpu
    return (alone and extent > LONG) or (extent > BLOCK and x.elements * extent >= MAX_POINTS)


def _in_blocks(b: Rewriter, scan: _ScanKind, x: Value, *, gpu: bool) -> Value:
    """Return a scan in blocks, and where there are very many of these, that of their sums in blocks as well."""
    (reduce, combine), d = _REDUCTION[scan.op], scan.dim
    outer, extent, inner = prod(x.shape[:d]), x.shape[d], x.shape[d + 1 :]
    behind = (prod(inner),) if prod(inner) > 1 else ()
    size = next((n for n in range(2 * BLOCK, BLOCK // 2, -1) if extent % n == 0 and n % 8 == 0), BLOCK)
    count = -(-extent // size)
    lines = b.node("reshape", x, shape=(outer, extent, *behind))
    if count * size > extent:
        value, none = real_json(neutral(scan.op, x.dtype)), (0,) * (2 + len(behind))
        lines = b.node("pad", lines, before=none, behind=(0, count * size - extent, *none[2:]), value=value)
    blocks = b.node("reshape", lines, shape=(outer, count, size, *behind))
    totals, of_totals = b.node(reduce, blocks, dims=(2,)), replace(scan, dim=1, exclusive=True)
    long = _is_long(totals, 1, gpu=gpu)
    ahead = _in_blocks(b, of_totals, totals, gpu=gpu) if long else of_totals.node(b, totals)
    own = replace(scan, dim=2).node(b, blocks)
    whole = b.node(combine, own, b.node("reshape", ahead, shape=(outer, count, 1, *behind)))
    y = b.node("reshape", whole, shape=(outer, count * size, *behind))
    y = y if count * size == extent else b.node("slice", y, dim=1, start=0, stop=extent)
    return b.node("reshape", y, shape=x.shape)
