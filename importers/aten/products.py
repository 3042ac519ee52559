"""Products, convolutions and attention of ATen."""

import math
from collections.abc import Sequence
from typing import Any

from ...core.dtypes import DTYPES, float32
from ...core.precision import IEEE
from ...graph.graph import Value
from .rule import Emitter, NodeMaker, cast, need, number, reshape, rule, slice_, transpose, tuple_of


def matmul(b: Emitter, x: Value, y: Value) -> Value:
    """Return a product with the roundings that torch allows itself. One of columns and rows is no sum."""
    if x.shape[-1] == 1 and x.dtype.is_float:
        return b.node("mul", x, y)
    return b.node("matmul", x, y, **_rounding(x, b.precision))


def _rounding(x: Value, precision: str) -> dict[str, str]:
    """Return the attribute of a product of ``x`` where torch may round factors; nothing for any other dtype than
    float32."""
    return {} if x.dtype != float32 or precision == IEEE else {"precision": precision}


@rule("mm.default", "bmm.default", "matmul.default")
def _mm(b: Emitter, x: Value, y: Value) -> Value:
    need(len(x.shape) > 1 and len(y.shape) > 1, "a product of vectors")
    return matmul(b, x, y)


@rule("mv.default")
def _mv(b: Emitter, x: Value, y: Value) -> Value:
    return reshape(b, matmul(b, x, reshape(b, y, (*y.shape, 1))), b.shape)


@rule("addmv.default")
def _addmv(b: Emitter, bias: Value, x: Value, y: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    total = _mv(b, x, y)
    total = total if alpha == 1 else b.node("mul", total, number(b, alpha, b.dtype))
    if beta == 0:
        return total
    return b.node("add", total, bias if beta == 1 else b.node("mul", bias, number(b, beta, b.dtype)))


@rule("dot.default")
def _dot(b: Emitter, x: Value, y: Value) -> Value:
    return b.node("sum", b.node("mul", x, y), dims=(0,))


@rule("addmm.default", "baddbmm.default")
def _addmm(b: Emitter, bias: Value, x: Value, y: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    total = matmul(b, x, y)
    total = total if alpha == 1 else b.node("mul", total, number(b, alpha, b.dtype))
    if beta == 0:
        return total
    return b.node("add", total, bias if beta == 1 else b.node("mul", bias, number(b, beta, b.dtype)))


@rule("linear.default")
def _linear(b: Emitter, x: Value, weight: Value, bias: Any = None) -> Value:
    rows = reshape(b, x, (math.prod(x.shape[:-1]), x.shape[-1]))
    total = matmul(b, rows, transpose(b, weight))
    shape = (*x.shape[:-1], weight.shape[0])
    return reshape(b, total if bias is None else b.node("add", total, bias), shape)


@rule("_grouped_mm.default")
def _grouped_mm(b: Emitter, x: Value, y: Value, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Value:
    need(len(x.shape) == 2 and len(y.shape) == 3 and offs is not None, "groups other than of rows")
    need(bias is None and x.dtype == b.dtype, "a bias, or a result of another type")
    return b.node("grouped_matmul", x, y, offs)


@rule("convolution.default")
def _convolution(b: Emitter, x: Value, w: Value, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
                 output_padding: Any, groups: int) -> Value:  # fmt: skip
    need(len(x.shape) == len(w.shape), "an image without a batch")
    rank = len(x.shape) - 2
    border = tuple_of(padding, rank)
    if transposed:
        steps, apart, further = (tuple_of(n, rank) for n in (stride, dilation, output_padding))
        return transposed_convolution(b, x, w, bias, steps, border, apart, further, groups, b.convolution_precision)
    operands = [x, w] if bias is None else [x, w, bias]
    return b.node("convolution", *operands, stride=tuple_of(stride, rank), before=border, behind=border,
                  dilation=tuple_of(dilation, rank), groups=groups,
                  **_rounding(x, b.convolution_precision))  # fmt: skip


def transposed_convolution(b: NodeMaker, x: Value, w: Value, bias: Any, stride: Sequence[int], padding: Sequence[int],
                           dilation: Sequence[int], further: Sequence[int], groups: int,
                           precision: str = IEEE) -> Value:  # fmt: skip
    """Return a transposed convolution as a convolution: zeros between the pixels, filters turned around and
    transposed."""
    rank, depth, filters = len(stride), w.shape[0] // groups, w.shape[1]
    before, behind = [], []
    for d in range(rank):
        x = b.node("spread", x, dim=d + 2, step=stride[d])
        reach = dilation[d] * (w.shape[d + 2] - 1) - padding[d]
        low, high = max(0, -reach), max(0, -(reach + further[d]))
        if low or high:
            x = slice_(b, x, d + 2, low, x.shape[d + 2] - high)
        before.append(max(0, reach))
        behind.append(max(0, reach + further[d]))
    kernel = w.shape[2:]
    need(rank + 3 <= 8, "so many dimensions")
    w = b.node("flip", reshape(b, w, (groups, depth, filters, *kernel)), dims=tuple(range(3, 3 + rank)))
    w = reshape(b, transpose(b, w, 1, 2), (groups * filters, depth, *kernel))
    operands = [x, w] if bias is None else [x, w, bias]
    return b.node("convolution", *operands, stride=(1,) * rank, before=tuple(before), behind=tuple(behind),
                  dilation=tuple(dilation), groups=groups, **_rounding(x, precision))  # fmt: skip


def attention(b: Emitter, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float | None) -> Value:
    """softmax(q kᵀ * scale + mask) v, over the last two dimensions. A query whose keys are all hidden gives zeros."""
    result = softmax_attention(b, q, k, v, mask, causal, scale)
    if mask is None:
        return result
    seen = mask if mask.dtype.is_bool else b.node("ne", mask, number(b, -math.inf, mask.dtype))
    if causal:
        seen = b.node("logical_and", seen, _causal(b, q.shape[-2], k.shape[-2]))
    known = b.known(seen)
    if known is not None and known.any(-1).all():
        return result
    some = b.node("max", cast(b, seen, DTYPES["int32"]), dims=(len(seen.shape) - 1,), keep=True)
    return b.node("where", cast(b, some, seen.dtype), result, number(b, 0.0, result.dtype))


def _causal(b: Emitter, queries: int, keys: int) -> Value:
    """Return which keys each query sees: those that are no later."""
    rows = reshape(b, b.node("range", count=queries, dtype="int64"), (queries, 1))
    return b.node("le", b.node("range", count=keys, dtype="int64"), rows)


def softmax_attention(
    b: Emitter, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float | None
) -> Value:
    """Return attention by its definition: a query whose keys are all hidden gives NaN."""
    if k.shape[-3:-2] != q.shape[-3:-2]:
        need(len(q.shape) == 4 and q.shape[1] % k.shape[1] == 0, "heads that do not match")
        k, v = (b.node("repeat", t, dim=1, times=q.shape[1] // k.shape[1]) for t in (k, v))
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = b.node("mul", matmul(b, q, transpose(b, k)), number(b, factor, q.dtype))
    if causal:
        scores = b.node("where", _causal(b, q.shape[-2], k.shape[-2]), scores, number(b, -math.inf, q.dtype))
    if mask is not None:
        if mask.dtype.is_bool:
            scores = b.node("where", mask, scores, number(b, -math.inf, q.dtype))
        else:
            scores = b.node("add", scores, cast(b, mask, q.dtype))
    return matmul(b, b.node("softmax", scores, dim=len(scores.shape) - 1), v)


@rule("_scaled_dot_product_flash_attention_for_cpu.default")
def _flash_cpu(b: Emitter, q: Value, k: Value, v: Value, dropout: float = 0.0, causal: bool = False, *,
               attn_mask: Any = None, scale: Any = None) -> Value:  # fmt: skip
    need(dropout == 0, "dropout")
    return attention(b, q, k, v, attn_mask, causal, scale)


@rule("_scaled_dot_product_flash_attention.default")
def _flash(b: Emitter, q: Value, k: Value, v: Value, *rest: Any, scale: Any = None) -> Value:
    dropout, causal = (*rest, 0.0, False)[:2]
    need(dropout == 0, "dropout")
    return attention(b, q, k, v, None, bool(causal), scale)


@rule("_scaled_dot_product_efficient_attention.default", "_scaled_dot_product_cudnn_attention.default")
def _efficient(b: Emitter, q: Value, k: Value, v: Value, mask: Any, log: bool, dropout: float = 0.0,
               causal: bool = False, *, scale: Any = None) -> Value:  # fmt: skip
    need(dropout == 0, "dropout")
    return attention(b, q, k, v, mask, causal, scale)


@rule("scaled_dot_product_attention.default", "_scaled_dot_product_attention_math.default")
def _attention(b: Emitter, q: Value, k: Value, v: Value, attn_mask: Any = None, dropout_p: float = 0.0,
               is_causal: bool = False, *rest: Any, scale: Any = None, enable_gqa: bool = False) -> Value:  # fmt: skip
    need(dropout_p == 0 and not rest, "dropout")
    return attention(b, q, k, v, attn_mask, is_causal, scale)


@rule("tilewright.attention.default")
def _own_attention(b: Emitter, q: Value, k: Value, v: Value, mask: Any, causal: bool, scale: Any,
                   grouped: bool, order: Any) -> Value:  # fmt: skip
    return attention(b, q, k, v, mask, causal, scale)


def _self_attention(b: Emitter, x: Value, heads: int, qkv: Sequence[Value], projection: Sequence[Value],
                    seen: Value | None = None) -> Value:  # fmt: skip
    """Attention of x[batch, length, width] to itself, in ``heads``. Weights and biases are pairs. ``seen``: which
    weights are not zero."""
    batch, length, width = x.shape
    joined = reshape(b, _linear(b, x, *qkv), (batch, length, 3, heads, width // heads))
    parts = (reshape(b, slice_(b, joined, 2, n, n + 1), (batch, length, heads, width // heads)) for n in range(3))
    q, k, v = (transpose(b, part, 1, 2) for part in parts)
    found = transpose(b, softmax_attention(b, q, k, v, seen, False, None), 1, 2)
    return _linear(b, reshape(b, found, x.shape), *projection)


def _seen(b: Emitter, mask: Value | None, kind: int | None) -> Value | None:
    """Return which weights of attention a mask of torch's fused layers leaves, in a shape that broadcasts to [batch,
    heads, queries, keys]. Whatever is not zero masks, infinities too. ``kind``: whether the mask is of queries and keys
    (0), of the keys of each batch (1), or of all dimensions (2)."""
    if mask is None:
        return None
    need(kind in (0, 1, 2) and len(mask.shape) == (2, 2, 4)[kind], "another kind of mask")
    mask = reshape(b, mask, (mask.shape[0], 1, 1, mask.shape[1])) if kind == 1 else mask
    return b.node("eq", mask, number(b, 0, mask.dtype))


@rule("_transformer_encoder_layer_fwd.default")
def _transformer_encoder_layer(b: Emitter, x: Value, width: int, heads: int, qkv_weight: Value, qkv_bias: Value,
                               out_weight: Value, out_bias: Value, gelu: bool, norm_first: bool, epsilon: float,
                               *rest: Any) -> Value:  # fmt: skip
    """Return what ``nn.TransformerEncoderLayer`` calls where it does not train."""
    *weights, mask, kind = (*rest, None, None)[:10]
    need(len(x.shape) == 3, "sequences of several lengths")
    seen = _seen(b, mask, kind)
    (norm_1, norm_2), (first, second) = (weights[:2], weights[2:4]), (weights[4:6], weights[6:8])

    def normed(y: Value, norm: Sequence[Value]) -> Value:
        return b.node("layer_norm", y, *norm, dims=1, epsilon=epsilon)

    def attended(y: Value) -> Value:
        return _self_attention(b, y, heads, (qkv_weight, qkv_bias), (out_weight, out_bias), seen)

    def fed_forward(y: Value) -> Value:
        return _linear(b, b.node("gelu" if gelu else "relu", _linear(b, y, *first)), *second)

    if norm_first:
        x = b.node("add", x, attended(normed(x, norm_1)))
        return b.node("add", x, fed_forward(normed(x, norm_2)))
    x = normed(b.node("add", x, attended(x)), norm_1)
    return normed(b.node("add", x, fed_forward(x)), norm_2)


@rule("_native_multi_head_attention.default")
def _multi_head_attention(b: Emitter, q: Value, k: Value, v: Value, width: int, heads: int, qkv_weight: Value,
                          qkv_bias: Value, out_weight: Value, out_bias: Value, mask: Any = None,
                          need_weights: bool = True, averaged: bool = True,
                          kind: Any = None) -> Sequence[Value]:  # fmt: skip
    """Return what ``nn.MultiheadAttention`` calls where it does not train, of one tensor to itself."""
    need(q == k == v and not need_weights and len(q.shape) == 3, "another form of attention")
    return [_self_attention(b, q, heads, (qkv_weight, qkv_bias), (out_weight, out_bias), _seen(b, mask, kind))]


@rule("_trilinear.default")
def _trilinear(b: Emitter, x: Value, w: Value, y: Value, *expanded: object, **keywords: object) -> Value:
    """Return what ``nn.Bilinear`` is: sum over i and j of x[n, i] w[o, i, j] y[n, j]. Both orders have as many
    operations; the one is taken whose intermediate is smaller."""
    need(list(expanded[:4]) == [[1, 3], [0], [1, 2], [2, 3]], "another trilinear form")
    outputs, first, second = w.shape
    if first <= second:
        folded = transpose(b, reshape(b, w, (outputs * first, second)))
        half, other = reshape(b, matmul(b, y, folded), (y.shape[0], outputs, first)), x
    else:
        folded = reshape(b, b.node("permute", w, order=(1, 0, 2)), (first, outputs * second))
        half, other = reshape(b, matmul(b, x, folded), (x.shape[0], outputs, second)), y
    row = reshape(b, other, (other.shape[0], 1, other.shape[1]))
    return b.node("sum", b.node("mul", half, row), dims=(2,))


@rule("addbmm.default")
def _addbmm(b: Emitter, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    count, n, k = x.shape
    rows = reshape(b, b.node("permute", x, order=(1, 0, 2)), (n, count * k))
    total = matmul(b, rows, reshape(b, y, (count * k, y.shape[2])))
    total = total if alpha == 1 else b.node("mul", total, number(b, alpha, b.dtype))
    return (
        total
        if beta == 0
        else b.node("add", total, bias if beta == 1 else b.node("mul", bias, number(b, beta, b.dtype)))
    )
