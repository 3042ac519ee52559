"""Rows of attention whose scores are masked by the place, or changed by something besides Q and K, written as tensor
expressions. The peer is FlexAttention, and for a bias the libraries that take one as well.
"""

from collections.abc import Callable
from functools import cache
from math import sqrt
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu_table import Row
from benchmarks.torch_peers import Tensors

_Mask = Callable[[Any, Any, Any, Any], Any]
_Score = Callable[..., Any]


def flexible(mask: _Mask | None = None, change: _Score | None = None) -> Callable[..., object]:
    """Return FlexAttention, compiled, with a block mask that is made once. ``change`` takes a score, its place (head,
    query, key), and what is given behind Q, K and V."""

    @cache
    def blocks(queries: int, keys: int) -> Any:
        return None if mask is None else create_block_mask(mask, None, None, queries, keys)

    @cache
    def compiled() -> Callable[..., object]:
        torch._dynamo.reset()
        function: Callable[..., object] = torch.compile(flex_attention, dynamic=False)
        return function

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> object:
        def changed(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            assert change is not None
            return change(s, h, i, j, *rest)

        score = None if change is None else changed
        grouped, seen = q.shape[1] != k.shape[1], blocks(q.shape[2], k.shape[2])
        return compiled()(q, k, v, score_mod=score, block_mask=seen, enable_gqa=grouped)

    return call


def library(backend: SDPBackend, causal: bool) -> Callable[..., object]:
    """Return a library that torch ships; what is given behind Q, K and V is added to the scores."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None) -> object:
        with sdpa_kernel(backend):
            grouped = q.shape[1] != k.shape[1]
            return scaled_dot_product_attention(q, k, v, bias, is_causal=causal, enable_gqa=grouped)

    return call


def scored(
    heads: int,
    length: int,
    depth: int,
    score: str,
    *,
    mask: _Mask | None = None,
    change: _Score | None = None,
    reads: str = "",
    added: bool = False,
) -> Row:
    """Return a row in float16. ``score``: of ``h``, ``i`` and ``j``, where ``S`` is the scaled product, as a tensor
    expression. ``mask`` and ``change``: the same for FlexAttention. ``reads``: a further input, as a line of the text.
    ``added``: whether that is added to the scores, which the libraries do too that take a mask."""
    text = f"""Q: float16[{heads}, {length}, {depth}]
K: float16[{heads}, {length}, {depth}]
V: float16[{heads}, {length}, {depth}]
{reads}
P[h, i, j] = sum over r < {depth} of float32(Q[h, i, r]) * float32(K[h, j, r])
S[h, i, j] = P[h, i, j] * {1 / sqrt(depth):.8f}
L[h, i, j] = {score}
T[h, i] = max over t < {length} of L[h, i, t]
W[h, i, j] = exp(L[h, i, j] - T[h, i])
U[h, i] = sum over t < {length} of W[h, i, t]
O[h, i, e] = sum over t < {length} of float32(float16(W[h, i, t])) * float32(V[h, t, e])
Y[h, i, e] = float16(O[h, i, e] / U[h, i])"""

    peer = flexible(mask, change)

    def prepare(tensors: Tensors) -> Tensors:
        q, k, v, *rest = tensors
        return q[None], k[None], v[None], *rest

    libraries = {"FlexAttention": peer}
    if added:
        libraries |= {"cuDNN": library(SDPBackend.CUDNN_ATTENTION, False)}
        libraries |= {"memory-efficient": library(SDPBackend.EFFICIENT_ATTENTION, False)}
    return Row(None, {"text": text}, peer, prepare, 0.95, libraries=libraries)


def no_later(b: Any, h: Any, i: Any, j: Any) -> Any:
    """A query sees no key behind it."""
    return j <= i


ROWS: dict[str, Row] = {
    "window1024-d128-16x8192": scored(
        16,
        8192,
        128,
        "select(j <= i and i - j < 1024, S[h, i, j], -inf)",
        mask=lambda b, h, i, j: (j <= i) & (i - j < 1024),
    ),
    "prefix512-d128-16x4096": scored(
        16, 4096, 128, "select(j <= i or j < 512, S[h, i, j], -inf)", mask=lambda b, h, i, j: (j <= i) | (j < 512)
    ),
    "alibi-d64-16x4096": scored(
        16,
        4096,
        64,
        "select(j <= i, S[h, i, j] - A[h] * float32(i - j), -inf)",
        mask=no_later,
        change=lambda s, h, i, j, a: s - a[h] * (i - j),
        reads="A: float32[16]",
    ),
    "softcap-d256-16x4096": scored(
        16,
        4096,
        256,
        "select(j <= i, tanh(S[h, i, j] / 50) * 50, -inf)",
        mask=no_later,
        change=lambda s, h, i, j: torch.tanh(s / 50) * 50,
    ),
    "bias-d64-32x1024": scored(
        32,
        1024,
        64,
        "S[h, i, j] + float32(B[h, i, j])",
        change=lambda s, h, i, j, bias: s + bias[h, i, j],
        reads="B: float16[32, 1024, 1024]",
        added=True,
    ),
}
