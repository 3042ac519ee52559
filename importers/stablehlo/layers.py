"""Products, convolutions, reductions and windows of StableHLO."""

import math
from collections.abc import Sequence

from ...core.dtypes import DTYPES, DType
from ...graph.graph import Value
from ..aten.rule import cast, need, slice_
from .call import HloCall, inverse, permuted, reshaped, rule


@rule("dot_general")
def _dot_general(c: HloCall) -> Value:
    """Batches stay dimensions; free and contracted ones become one each. The operand whose contracted dimensions are
    last goes to the left, so that the rows are those of the data and the right operand is read as it is stored."""
    numbers = c.get("dot_dimension_numbers")
    batches = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
    inner = list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)
    operands = [cast(c, x, c.dtype) for x in c.inputs]
    need(c.dtype.bits >= max(x.dtype.bits for x in c.inputs), "a result of fewer bits")
    free = [[d for d in range(len(x.shape)) if d not in (*batches[n], *inner[n])] for n, x in enumerate(operands)]
    last = [sorted(inner[n]) == list(range(len(x.shape)))[-len(inner[n]) :] for n, x in enumerate(operands)]
    swapped = not last[0] and last[1]
    a, b = (1, 0) if swapped else (0, 1)
    pairs = sorted(zip(inner[a], inner[b], strict=True))
    inner[a][:], inner[b][:] = [p for p, _ in pairs], [q for _, q in pairs]
    x, y = operands[a], operands[b]
    batch = [x.shape[d] for d in batches[a]]
    rows, columns = ([operands[n].shape[d] for d in free[n]] for n in (a, b))
    depth = math.prod(x.shape[d] for d in inner[a])
    x = reshaped(c, permuted(c, x, [*batches[a], *free[a], *inner[a]]), (*batch, math.prod(rows), depth))
    y = reshaped(c, permuted(c, y, [*batches[b], *inner[b], *free[b]]), (*batch, depth, math.prod(columns)))
    found = reshaped(c, c.node("matmul", x, y), (*batch, *rows, *columns))
    if not swapped:
        return found
    first, middle = len(batch), len(batch) + len(rows)
    return permuted(c, found, [*range(first), *range(middle, len(found.shape)), *range(first, middle)])


@rule("convolution")
def _convolution(c: HloCall) -> Value:
    x, w, numbers = c.inputs[0], c.inputs[1], c.get("dimension_numbers")
    rank = len(x.shape) - 2
    need(c.get("batch_group_count", 1) == 1, "groups of the batch")
    x, w = cast(c, x, c.dtype), cast(c, w, c.dtype)
    x = permuted(c, x, [numbers.input_batch_dimension, numbers.input_feature_dimension,
                        *numbers.input_spatial_dimensions])  # fmt: skip
    w = permuted(c, w, [numbers.kernel_output_feature_dimension, numbers.kernel_input_feature_dimension,
                        *numbers.kernel_spatial_dimensions])  # fmt: skip
    stride, apart, dilation = (
        tuple(c.get(n) or [1] * rank) for n in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    turned = tuple(d + 2 for d, flag in enumerate(c.get("window_reversal") or []) if flag)
    w = c.node("flip", w, dims=turned) if turned else w
    padding = c.get("padding")
    widths = [(0, 0)] * rank if padding is None else [(int(low), int(high)) for low, high in padding]
    for d, (low, high) in enumerate(widths, 2):
        x = c.node("spread", x, dim=d, step=apart[d - 2]) if apart[d - 2] > 1 else x
        if min(low, high) < 0:
            x = slice_(c, x, d, max(0, -low), x.shape[d] - max(0, -high))
    before, behind = (tuple(max(0, width[side]) for width in widths) for side in (0, 1))
    found = c.node("convolution", x, w, stride=stride, before=before, behind=behind, dilation=dilation,
                   groups=c.get("feature_group_count", 1))  # fmt: skip
    order = [numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions]
    return permuted(c, found, inverse(order))


_REDUCTIONS = {"add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod", "and": "min", "or": "max"}
_PAIR = (
    "%0=compare.{}(0,2);%1=compare.NE(0,0);%2=or(%0,%1);%3=compare.EQ(0,2);%4=compare.LT(1,3);%5=and(%3,%4);"
    "%6=or(%2,%5);%7=select(%2,0,2);%8=select(%6,1,3);return(%7,%8)"
)
"""What keeps the greater (GT) or lesser (LT) of two elements, NaN before all, and of equal ones the first place."""


def _combined(c: HloCall) -> str:
    """Return the operation that combines two elements. Raises NoRule for another body."""
    name, _, rest = c.body.partition("=")[2].partition("(")
    need(name in _REDUCTIONS and rest in ("0,1);return(%0)", "1,0);return(%0)"), f"the body {c.body[:80]}")
    return name


def _neutral(name: str, dtype: DType) -> float:
    if name in ("maximum", "minimum"):
        low, high = (-math.inf, math.inf) if dtype.is_float else dtype.integer_range
        return low if name == "maximum" else high
    return 1.0 if name in ("multiply", "and") else 0.0


@rule("reduce")
def _reduce(c: HloCall) -> Value | Sequence[Value]:
    dims = tuple(sorted(c.get("dimensions")))
    if len(c.inputs) == 4:
        return _position(c, dims)
    need(len(c.inputs) == 2, "several operands")
    x, first = c.inputs
    name = _combined(c)
    if not dims:
        found = x
    elif x.dtype.is_bool:
        need(name in ("and", "or"), "a reduction of bools")
        found = c.node(_REDUCTIONS[name], cast(c, x, DTYPES["int32"]), dims=dims)
        found = c.node("ne", found, c.scalar(0, found.dtype))
    else:
        need(name not in ("and", "or"), "bits of integers")
        found = c.node(_REDUCTIONS[name], x, dims=dims)
    if c.number(first) == _neutral(name, x.dtype):
        return found
    joined = {"add": "add", "multiply": "mul", "and": "logical_and", "or": "logical_or"}.get(name, name)
    return c.node(joined, found, first)


def _position(c: HloCall, dims: tuple[int, ...]) -> Sequence[Value]:
    """Return the greatest or least element along a dimension, and its place."""
    x, places = c.inputs[:2]
    need(len(dims) == 1, "places along several dimensions")
    direction = next((d for d in ("GT", "LT") if c.body == _PAIR.format(d)), "")
    expanded = c.made(places, "expand")
    column = places if expanded is None else c.source(expanded)
    shape = tuple(n if d == dims[0] else 1 for d, n in enumerate(x.shape))
    reshaped = c.made(column, "reshape")
    line = column if reshaped is None else c.source(reshaped)
    counted = c.made(line, "range")
    need(bool(direction) and counted is not None and column.shape in (shape, x.shape), "another kind of places")
    assert counted is not None
    need((counted.attributes.get("start", 0), counted.attributes.get("step", 1)) == (0, 1), "another count")
    name = "max" if direction == "GT" else "min"
    found = c.node(f"arg{name}", x, dim=dims[0])
    return [c.node(name, x, dims=dims), cast(c, found, places.dtype)]


@rule("reduce_window")
def _reduce_window(c: HloCall) -> Value:
    need(len(c.inputs) == 2, "several operands")
    x, first = c.inputs
    name, rank = _combined(c), len(x.shape)
    kernel, stride = list(c.get("window_dimensions")), list(c.get("window_strides") or [1] * rank)
    apart = list(c.get("window_dilations") or [1] * rank)
    need(max(c.get("base_dilations") or [1]) == 1 and x.dtype.is_float, "another kind of windows")
    padding = c.get("padding")
    widths = [(0, 0)] * rank if padding is None else [(int(low), int(high)) for low, high in padding]
    need(min(min(w) for w in widths) >= 0 and c.number(first) == _neutral(name, x.dtype), "another border")
    moved = [d for d in range(rank) if (kernel[d], stride[d], *widths[d]) != (1, 1, 0, 0)]
    if len(moved) == 1 and kernel[moved[0]] == x.shape[moved[0]] and name in ("add", "multiply"):
        (d,) = moved
        whole = (kernel[d] - 1, 0)
        if stride[d] == 1 and apart[d] == 1 and widths[d] in (whole, whole[::-1]):
            scan = "running_sum" if name == "add" else "running_product"
            return c.node(scan, x, dim=d, reverse=widths[d] != whole)
    need(name in ("add", "maximum"), "another pool")
    order = [*(d for d in range(rank) if d not in moved), *moved]
    if not moved:
        return x
    window = {
        "kernel": tuple(kernel[d] for d in moved), "stride": tuple(stride[d] for d in moved),
        "dilation": tuple(apart[d] for d in moved), "before": tuple(widths[d][0] for d in moved),
        "behind": tuple(widths[d][1] for d in moved),
    }  # fmt: skip
    image = permuted(c, x, order)
    if name == "maximum":
        return permuted(c, c.node("max_pool", image, **window), inverse(order))
    mean = permuted(c, c.node("average_pool", image, **window, count_border=True), inverse(order))
    return c.node("mul", mean, c.scalar(float(math.prod(window["kernel"])), x.dtype))


@rule("batch_norm_inference")
def _batch_norm(c: HloCall) -> Value:
    x, d = c.inputs[0], c.get("feature_index")
    first, *rest = (e for e in range(len(x.shape)) if e != d)
    order = [first, d, *rest]
    found = c.node("batch_norm", permuted(c, x, order), *c.inputs[1:], epsilon=c.get("epsilon"))
    return permuted(c, found, inverse(order))
