"""Reductions, norms, products, convolutions and pools of ONNX."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...core.dtypes import DTYPES
from ...graph.graph import Value
from ..aten.products import transposed_convolution
from ..aten.rule import NodeMaker, reshape, transpose
from ..aten.selection import pool_places
from .call import RULES, Call, Rule, axis_of, cast, dims_of, need, rule
from .elementwise import like


def _reduce(op: str, before: str = "", after: str = "") -> Rule:
    def apply(c: Call) -> Value:
        x, dims, noop = c.value(0), c.given_twice("axes", 1), c.get("noop_with_empty_axes", 0)
        keep = bool(c.get("keepdims", 1))
        if x.dtype.is_bool and op in ("max", "min"):
            over = dims_of(dims or None, len(x.shape))
            found = c.node(op, cast(c, x, DTYPES["int32"]), dims=over, keep=keep)
            return cast(c, found, x.dtype)
        if not dims and (noop or not x.shape):
            need(not x.shape or not (before or after), "another way to reduce nothing")
            return c.node("identity", c.node(before, x) if before else x)
        x = c.node(before, x) if before else x
        total = c.node(op, x, dims=dims_of(dims or None, len(x.shape)), keep=keep)
        return c.node(after, total) if after else total

    return apply


RULES.update({
    "ReduceSum": _reduce("sum"), "ReduceMean": _reduce("mean"), "ReduceMax": _reduce("max"),
    "ReduceMin": _reduce("min"), "ReduceProd": _reduce("prod"), "ReduceL1": _reduce("sum", "abs"),
    "ReduceL2": _reduce("sum", "square", "sqrt"), "ReduceSumSquare": _reduce("sum", "square"),
    "ReduceLogSum": _reduce("sum", "", "log"), "ReduceLogSumExp": _reduce("sum", "exp", "log"),
})  # fmt: skip


def _position(op: str) -> Rule:
    def apply(c: Call) -> Value:
        x = c.value(0)
        d, keep = axis_of(c.get("axis", 0), len(x.shape)), bool(c.get("keepdims", 1))
        if not c.get("select_last_index", 0):
            return c.node(op, x, dim=d, keep=keep)
        found = c.node(op, c.node("flip", x, dims=(d,)), dim=d, keep=keep)  # the last is the first from the other end
        return c.node("sub", c.node("full", shape=(), value=x.shape[d] - 1, dtype="int64"), found)

    return apply


RULES.update({"ArgMax": _position("argmax"), "ArgMin": _position("argmin")})


def _softmax(op: str) -> Rule:
    return lambda c: c.node(op, c.value(0), dim=axis_of(c.get("axis", -1), len(c.value(0).shape)))


RULES.update({"Softmax": _softmax("softmax"), "LogSoftmax": _softmax("log_softmax")})


@rule("Hardmax")
def _hardmax(c: Call) -> Value:
    x = c.value(0)
    d = axis_of(c.get("axis", -1), len(x.shape))
    first = c.node("argmax", x, dim=d, keep=True)
    places = c.node("range", count=x.shape[d], dtype="int64")
    column = c.node("reshape", places, shape=tuple(n if e == d else 1 for e, n in enumerate(x.shape)))
    return c.node("cast", c.node("eq", first, column), dtype=x.dtype.name)


@rule("LpNormalization")
def _lp_normalization(c: Call) -> Value:
    x, order = c.value(0), c.get("p", 2)
    need(order in (1, 2), "another norm")
    dims = (axis_of(c.get("axis", -1), len(x.shape)),)
    size = c.node("sum", c.node("abs" if order == 1 else "square", x), dims=dims, keep=True)
    size = size if order == 1 else c.node("sqrt", size)
    zero = like(c, x, 0.0)
    return c.node("where", c.node("eq", size, zero), zero, c.node("div", x, size))


@rule("LpPool")
def _lp_pool(c: Call) -> Value:
    x, kernel, order = c.value(0), tuple(c.get("kernel_shape")), c.get("p", 2)
    window = _borders(c, x.shape[2:], kernel)
    powers = c.node("square", x) if order == 2 else c.node("pow", c.node("abs", x), like(c, x, float(order)))
    mean = c.node("average_pool", powers, kernel=kernel, **window, count_border=True)
    total = c.node("mul", mean, like(c, x, float(math.prod(kernel))))
    return c.node("sqrt", total) if order == 2 else c.node("pow", total, like(c, x, 1.0 / order))


@rule("GlobalLpPool")
def _global_lp_pool(c: Call) -> Value:
    x, order = c.value(0), float(c.get("p", 2))
    powers = c.node("pow", c.node("abs", x), like(c, x, order))
    total = c.node("sum", powers, dims=tuple(range(2, len(x.shape))), keep=True)
    return c.node("pow", total, like(c, x, 1.0 / order))


@rule("LayerNormalization", "RMSNormalization")
def _rows(c: Call) -> Value | Sequence[Value]:
    x, weight = c.value(0), c.value(1)
    count = -c.get("axis", -1) if c.get("axis", -1) < 0 else len(x.shape) - c.get("axis")
    given = [c.node("expand", w, shape=x.shape[-count:]) for w in (weight, *([c.value(2)] if c.has(2) else []))]
    epsilon = c.get("epsilon", 1e-5)
    y = c.node("layer_norm" if c.op == "LayerNormalization" else "rms_norm", x, *given, dims=count, epsilon=epsilon)
    if c.results == 1:
        return y
    dims = tuple(range(len(x.shape) - count, len(x.shape)))
    variance = c.node("variance", x, dims=dims, keep=True, correction=0)
    inverse = c.node("rsqrt", c.node("add", variance, like(c, x, epsilon)))
    return [y, c.node("mean", x, dims=dims, keep=True), inverse]


@rule("InstanceNormalization", "GroupNormalization")
def _groups(c: Call) -> Value:
    x, weight, bias = c.value(0), c.value(1), c.value(2)
    groups = c.get("num_groups", x.shape[1])
    if weight.shape != x.shape[1:2]:  # one weight for each group, in an old opset
        weight, bias = (c.node("repeat", w, dim=0, times=x.shape[1] // groups) for w in (weight, bias))
    return c.node("group_norm", x, weight, bias, groups=groups, epsilon=c.get("epsilon", 1e-5))


@rule("BatchNormalization")
def _batch_norm(c: Call) -> Value:
    need(not c.get("training_mode", 0) and c.results == 1, "training mode")
    return c.node("batch_norm", *(c.value(n) for n in range(5)), epsilon=c.get("epsilon", 1e-5))


@rule("MatMul")
def _matmul(c: Call) -> Value:
    return product_of_matrices(c, c.value(0), c.value(1), lambda a, b: c.node("matmul", a, b))


def product_of_matrices(c: NodeMaker, a: Value, b: Value, product: Callable[[Value, Value], Value]) -> Value:
    """Return the ``product`` of matrices, of which either may be a vector."""
    first, last = len(a.shape) == 1, len(b.shape) == 1
    a = reshape(c, a, (1, *a.shape)) if first else a
    b = reshape(c, b, (*b.shape, 1)) if last else b
    y = product(a, b)
    shape = y.shape[:-2] + (() if first else y.shape[-2:-1]) + (() if last else y.shape[-1:])
    return reshape(c, y, shape)


@rule("Einsum")
def _einsum(c: Call) -> Value:
    """Sums of one operand, and products of several, two at a time in the order with the fewest operations. Every letter
    stands in an operand once."""
    text = c.get("equation").replace(" ", "")
    sides = text.split("->") if "->" in text else [text, ""]
    terms, result = sides[0].split(","), sides[1]
    operands = [c.value(n) for n in range(len(terms))]
    need(all(len(set(t.replace("...", ""))) == len(t.replace("...", "")) for t in terms), text)
    if "..." in text:
        longest = max(len(o.shape) - len(t.replace("...", "")) for o, t in zip(operands, terms, strict=True))
        free = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in text][:longest]
        for n, (o, t) in enumerate(zip(operands, terms, strict=True)):
            own = len(o.shape) - len(t.replace("...", ""))
            terms[n] = t.replace("...", "".join(free[longest - own :]))
        result = result.replace("...", "".join(free))
    if "->" not in text:
        joined = "".join(terms)
        ahead = "".join(free) if "..." in text else ""
        result = ahead + "".join(sorted(t for t in set(joined) if joined.count(t) == 1 and t not in ahead))
    if len(terms) == 1:
        return _summed(c, operands[0], terms[0], result)
    extents: dict[str, int] = {}
    for o, term in zip(operands, terms, strict=True):
        for letter, extent in zip(term, o.shape, strict=True):
            need(extents.setdefault(letter, extent) == extent, "dimensions that are broadcast")
    shapes = [np.broadcast_to(np.int8(0), o.shape) for o in operands]
    _, *path = np.einsum_path(f"{','.join(terms)}->{result}", *shapes, optimize=("optimal", 1 << 62))[0]
    for pair in path:
        need(len(pair) == 2, text)
        (b, second), (a, first) = ((operands.pop(n), terms.pop(n)) for n in sorted(pair, reverse=True))
        wanted = "".join(t for t in dict.fromkeys(first + second) if t in "".join(terms) + result)
        operands.append(_contracted(c, a, first, b, second, wanted if terms else result, extents))
        terms.append(wanted)
    return operands[0]


def _contracted(c: Call, a: Value, first: str, b: Value, second: str, result: str, extents: Mapping[str, int]) -> Value:
    """Return the product of two operands, summed over the letters that ``result`` has not, as one product of
    matrices."""
    kept = [t for t in first if t in second or t in result], [t for t in second if t in first or t in result]
    a, b = _summed(c, a, first, "".join(kept[0])), _summed(c, b, second, "".join(kept[1]))
    shared = [t for t in kept[0] if t in kept[1]]
    batch, inner = [t for t in shared if t in result], [t for t in shared if t not in result]
    rows, columns = ([t for t in k if t not in shared] for k in kept)
    sizes = [math.prod(extents[t] for t in part) for part in (batch, rows, inner, columns)]
    a = reshape(c, _summed(c, a, "".join(kept[0]), "".join(batch + rows + inner)), (sizes[0], sizes[1], sizes[2]))
    b = reshape(c, _summed(c, b, "".join(kept[1]), "".join(batch + inner + columns)), (sizes[0], sizes[2], sizes[3]))
    order = [*batch, *rows, *columns]
    outer = sizes[2] == 1 and a.dtype.is_float  # columns times rows, which are no sum
    y = reshape(c, c.node("mul" if outer else "matmul", a, b), [extents[t] for t in order])
    return _summed(c, y, "".join(order), result)


def _summed(c: Call, x: Value, term: str, result: str) -> Value:
    """``x``, whose dimensions are the letters of ``term``, summed over those that ``result`` has not, in its order."""
    gone = tuple(d for d, letter in enumerate(term) if letter not in result)
    left = [letter for letter in term if letter in result]
    x = c.node("sum", x, dims=gone) if gone else x
    order = tuple(left.index(letter) for letter in result)
    return x if list(order) == sorted(order) else c.node("permute", x, order=order)


@rule("Gemm")
def _gemm(c: Call) -> Value:
    a, b = c.value(0), c.value(1)
    a = transpose(c, a) if c.get("transA", 0) else a
    b = transpose(c, b) if c.get("transB", 0) else b
    y = c.node("matmul", a, b)
    if c.get("alpha", 1.0) != 1.0:
        y = c.node("mul", y, like(c, y, c.get("alpha")))
    if not c.has(2):
        return y
    bias = c.value(2)
    return c.node("add", y, bias if c.get("beta", 1.0) == 1.0 else c.node("mul", bias, like(c, y, c.get("beta"))))


def _borders(c: Call, extents: Sequence[int], kernel: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Strides, dilations and borders of windows, with those that ``auto_pad`` asks for."""
    rank = len(kernel)
    stride, dilation = (tuple(c.get(n) or [1] * rank) for n in ("strides", "dilations"))
    pads, auto = c.get("pads") or [0] * 2 * rank, c.get("auto_pad", "NOTSET")
    before, behind = list(pads[:rank]), list(pads[rank:])
    for d in range(rank):
        span = dilation[d] * (kernel[d] - 1) + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            total = max(0, (-(-extents[d] // stride[d]) - 1) * stride[d] + span - extents[d])
            before[d] = total // 2 if auto == "SAME_UPPER" else total - total // 2
            behind[d] = total - before[d]
        elif c.get("ceil_mode", 0):
            room = extents[d] + before[d] + behind[d] - span
            steps = -(-room // stride[d])
            if steps * stride[d] >= extents[d] + before[d]:  # a window must begin inside
                steps -= 1
            behind[d] += max(0, steps * stride[d] - room)
    return {"stride": stride, "before": tuple(before), "behind": tuple(behind), "dilation": dilation}


@rule("Conv")
def _conv(c: Call) -> Value:
    x, weight = c.value(0), c.value(1)
    return c.node("convolution", x, weight, *([c.value(2)] if c.has(2) else []), **windows_of(c, x, weight))


def windows_of(c: Call, x: Value, weight: Value) -> dict[str, object]:
    """Return what the attributes say of a convolution of these operands."""
    _need_kernel(c, weight)
    return {**_borders(c, x.shape[2:], weight.shape[2:]), "groups": c.get("group", 1)}


def _need_kernel(c: Call, weight: Value) -> None:
    given = c.get("kernel_shape")
    need(given is None or tuple(given) == weight.shape[2:], f"kernel_shape {given} of filters {list(weight.shape)}")


@rule("ConvTranspose")
def _conv_transpose(c: Call) -> Value:
    x, w = c.value(0), c.value(1)
    _need_kernel(c, w)
    rank = len(w.shape) - 2
    stride, dilation, further = (
        tuple(c.get(n) or [d] * rank) for n, d in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    pads, auto = list(c.get("pads") or [0] * 2 * rank), c.get("auto_pad", "NOTSET")
    spans = [dilation[d] * (w.shape[d + 2] - 1) + 1 for d in range(rank)]
    shape = c.get("output_shape")
    if shape is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        shape = [x.shape[d + 2] * stride[d] for d in range(rank)]
    if shape is not None:
        for d in range(rank):
            total = stride[d] * (x.shape[d + 2] - 1) + further[d] + spans[d] - shape[d]
            low = total // 2 if auto == "SAME_UPPER" else total - total // 2
            pads[d], pads[d + rank] = low, total - low
    behind = [further[d] + pads[d] - pads[d + rank] for d in range(rank)]
    bias = c.value(2) if c.has(2) else None
    return transposed_convolution(c, x, w, bias, stride, pads[:rank], dilation, behind, c.get("group", 1))


@rule("AveragePool")
def _average_pool(c: Call) -> Value:
    x, kernel = c.value(0), tuple(c.get("kernel_shape"))
    window = _borders(c, x.shape[2:], kernel)
    if not c.get("count_include_pad", 0):
        return c.node("average_pool", x, kernel=kernel, **window)
    # What the border counts as is written as zeros. What only rounding up has added counts nothing.
    pads, rank = c.get("pads") or [0] * 2 * len(kernel), len(kernel)
    behind = tuple(pads[rank:]) if c.get("auto_pad", "NOTSET") == "NOTSET" else window["behind"]
    x = c.node("pad", x, before=(0, 0, *window["before"]), behind=(0, 0, *behind), value=0.0)
    further = tuple(n - m for n, m in zip(window["behind"], behind, strict=True))
    return c.node("average_pool", x, kernel=kernel, **{**window, "before": (0,) * rank, "behind": further})


@rule("MaxPool")
def _max_pool(c: Call) -> Value | Sequence[Value]:
    """Integers of 8 bits are those of float32."""
    x, kernel = c.value(0), tuple(c.get("kernel_shape"))
    need(x.dtype.is_float or x.dtype.bits == 8, "wide integers")
    window = _borders(c, x.shape[2:], kernel)
    image = x if x.dtype.is_float else cast(c, x, DTYPES["float32"])
    greatest = c.node("max_pool", image, kernel=kernel, **window)
    if c.results == 1:
        return cast(c, greatest, x.dtype)
    need(not c.get("storage_order", 0), "places that count rows first")
    places = pool_places(c, image, greatest, {"kernel": kernel, **window})
    images = c.node("range", count=x.shape[0] * x.shape[1], step=math.prod(x.shape[2:]), dtype="int64")
    images = reshape(c, images, (*x.shape[:2], *[1] * len(kernel)))
    return [cast(c, greatest, x.dtype), c.node("add", places, images)]


@rule("LRN")
def _local_response(c: Call) -> Value:
    """x / (bias + alpha * the mean of the squares of neighbouring channels)^beta"""
    x, size = c.value(0), c.get("size")
    rank, before = len(x.shape) - 1, (size - 1) // 2
    none, ones = (0,) * (rank - 1), (1,) * (rank - 1)
    mean = c.node("average_pool", c.node("square", x), kernel=(size, *ones), stride=(1, *ones), dilation=(1, *ones),
                  before=(before, *none), behind=(size - 1 - before, *none), count_border=True)  # fmt: skip
    line = c.node("mul", mean, like(c, x, c.get("alpha", 1e-4)))
    line = c.node("add", line, like(c, x, c.get("bias", 1.0)))
    return c.node("div", x, c.node("pow", line, like(c, x, c.get("beta", 0.75))))


@rule("GlobalAveragePool", "GlobalMaxPool")
def _global(c: Call) -> Value:
    x = c.value(0)
    op = "mean" if c.op == "GlobalAveragePool" else "max"
    return c.node(op, x, dims=tuple(range(2, len(x.shape))), keep=True)


def _heads(c: Call, x: Value, heads: int) -> Value:
    """[n, s, h * d] as [n, h, s, d]."""
    split = c.node("reshape", x, shape=(*x.shape[:2], heads, x.shape[2] // heads))
    return c.node("permute", split, order=(0, 2, 1, 3))


@rule("Attention")
def _attention(c: Call) -> Value | Sequence[Value]:
    q, k, v = (c.value(n) for n in range(3))
    flat = len(q.shape) == 3
    if flat:
        heads = c.get("q_num_heads"), c.get("kv_num_heads"), c.get("kv_num_heads")
        q, k, v = (_heads(c, x, n) for x, n in zip((q, k, v), heads, strict=True))
    need(not c.has(6) and c.results in (1, 3), "another form of attention")
    past = 0
    if c.has(4):
        past = c.value(4).shape[2]
        k, v = (c.node("concatenate", c.value(n), x, dim=2) for n, x in ((4, k), (5, v)))
    need(c.results == 1 or c.has(4), "a cache without a past")
    present = [k, v] if c.results == 3 else []
    if k.shape[1] != q.shape[1]:
        k, v = (c.node("repeat", x, dim=1, times=q.shape[1] // x.shape[1]) for x in (k, v))
    scale = c.get("scale") or 1.0 / math.sqrt(q.shape[-1])
    scores = c.node("mul", c.node("matmul", q, transpose(c, k)), like(c, q, scale))
    scores = _masked(c, scores, past)
    weights = c.node("softmax", scores, dim=3)
    if c.has(3) or c.get("is_causal", 0):  # a row that sees nothing is 0
        blind = c.node("eq", c.node("max", scores, dims=(3,), keep=True), like(c, scores, -math.inf))
        weights = c.node("where", blind, like(c, scores, 0.0), weights)
    y = c.node("matmul", weights, v)
    if flat:
        y = c.node("permute", y, order=(0, 2, 1, 3))
        y = c.node("reshape", y, shape=(*y.shape[:2], y.shape[2] * y.shape[3]))
    return [y, *present] if present else y


def _masked(c: Call, scores: Value, past: int) -> Value:
    """Return the scores with the soft cap, the mask and the causal mask of an attention."""
    if cap := c.get("softcap", 0.0):
        capped = c.node("tanh", c.node("mul", scores, like(c, scores, 1.0 / cap)))
        scores = c.node("mul", capped, like(c, scores, cap))
    nothing = like(c, scores, -math.inf)
    if c.has(3):
        mask = c.value(3)
        need(mask.shape[-1] == scores.shape[-1], "a mask that is too short")
        if mask.dtype.is_bool:
            scores = c.node("where", mask, scores, nothing)
        else:
            scores = c.node("add", scores, mask)
    if c.get("is_causal", 0):
        rows = c.node("reshape", c.node("range", count=scores.shape[2], start=past, dtype="int64"),
                      shape=(scores.shape[2], 1))  # fmt: skip
        seen = c.node("le", c.node("range", count=scores.shape[3], dtype="int64"), rows)
        scores = c.node("where", seen, scores, nothing)
    return scores
