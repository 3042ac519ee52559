"""Rows of attention whose scores are masked by the place, or changed by something besides Q and K, and of attention
over pages of keys, written as tensor expressions. The peer is FlexAttention, and for a bias or a mask the libraries
that take one as well.
"""

from collections.abc import Callable
from functools import cache
from math import inf, sqrt
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu_table import Row
from benchmarks.torch_peers import Tensors

_Mask = Callable[..., Any]
_Score = Callable[..., Any]


def flexible(mask: _Mask | None = None, change: _Score | None = None) -> Callable[..., object]:
    """Return FlexAttention, compiled, with a block mask that is made once. ``mask`` takes a place (batch, head, query,
    key), and ``change`` a score and its place (head, query, key); both take what is given behind Q, K and V too."""
    made: dict[tuple[int, int], Any] = {}

    def blocks(q: torch.Tensor, k: torch.Tensor, rest: Tensors) -> Any:
        shape = (q.shape[2], k.shape[2])
        if mask is not None and shape not in made:
            heads = q.shape[1] if rest else None
            made[shape] = create_block_mask(lambda b, h, i, j: mask(b, h, i, j, *rest), None, heads, *shape)
        return made.get(shape)

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
        grouped, seen = q.shape[1] != k.shape[1], blocks(q, k, rest)
        return compiled()(q, k, v, score_mod=score, block_mask=seen, enable_gqa=grouped)

    return call


def library(
    backend: SDPBackend, causal: bool, for_all: Callable[[torch.Tensor], torch.Tensor] = lambda given: given
) -> Callable[..., object]:
    """Return a library that torch ships; what is given behind Q, K and V is added to the scores, or hides them.
    ``for_all`` makes of it what all heads have."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *given: torch.Tensor) -> object:
        bias = for_all(given[0]) if given else None
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
    for_all: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Row:
    """Return a row in float16. ``score``: of ``h``, ``i`` and ``j``, where ``S`` is the scaled product, as a tensor
    expression. ``mask`` and ``change``: the same for FlexAttention. ``reads``: a further input, as a line of the text.
    ``for_all``: makes of that what libraries add to the scores of all heads, or hide them by, where they can."""
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
    if for_all is not None:
        libraries |= {"cuDNN": library(SDPBackend.CUDNN_ATTENTION, False, for_all)}
        libraries |= {"memory-efficient": library(SDPBackend.EFFICIENT_ATTENTION, False, for_all)}
    return Row(None, {"text": text}, peer, prepare, 0.95, libraries=libraries)


def paged(batch: int, heads: int, queries: int, length: int, depth: int, page: int = 16) -> Row:
    """Return a row in float16: each sequence of a batch has its keys and values in pages that a table names, and a few
    queries for each of their heads. The peer copies the pages, and then takes the fastest library that torch ships."""
    pages = batch * length // page
    of_keys = f"min(max(int64(T[b, j // {page}]), 0), {pages - 1}), j % {page}, g"
    text = f"""Q: float16[{batch}, {heads}, {queries}, {depth}]
K: float16[{pages}, {page}, {heads}, {depth}]
V: float16[{pages}, {page}, {heads}, {depth}]
T: int32[{batch}, {length // page}]
P[b, g, i, j < {length}] = sum over r < {depth} of float32(Q[b, g, i, r]) * float32(K[{of_keys}, r])
S[b, g, i, j] = P[b, g, i, j] * {1 / sqrt(depth):.8f}
M[b, g, i] = max over t < {length} of S[b, g, i, t]
W[b, g, i, j] = exp(S[b, g, i, j] - M[b, g, i])
U[b, g, i] = sum over t < {length} of W[b, g, i, t]
O[b, g, i, e < {depth}] = sum over j < {length} of float32(float16(W[b, g, i, j])) * float32(V[{of_keys}, e])
Y[b, g, i, e] = float16(O[b, g, i, e] / U[b, g, i])"""

    def peer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> object:
        k, v = (x[table].reshape(batch, length, heads, depth).transpose(1, 2) for x in (k, v))
        return scaled_dot_product_attention(q, k, v)

    libraries = {"torch eager": peer, "torch.compile": torch.compile(peer, dynamic=False)}
    return Row(None, {"text": text}, peer, lambda tensors: tensors, 0.95, libraries=libraries)


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
        for_all=lambda bias: bias,
    ),
    "shared_bias-d64-128x1024": scored(
        128,
        1024,
        64,
        "S[h, i, j] + float32(B[h % 16, i, j])",
        change=lambda s, h, i, j, bias: s + bias[h % 16, i, j],
        reads="B: float16[16, 1024, 1024]",
        for_all=lambda bias: bias.repeat(8, 1, 1)[None],
    ),
    "shown-d128-32x2048": scored(
        32,
        2048,
        128,
        "select(B[i, j], S[h, i, j], -inf)",
        change=lambda s, h, i, j, shown: torch.where(shown[i, j], s, -inf),
        reads="B: bool[2048, 2048]",
        for_all=lambda shown: shown,
    ),
    "lengths-d128-32x2048": scored(
        32,
        2048,
        128,
        "select(j < int64(N[h]) % 2048 + 1, S[h, i, j], -inf)",
        mask=lambda b, h, i, j, n: j < n[h] % 2048 + 1,
        reads="N: int32[32]",
    ),
    "paged-d128-16x8x4x4096": paged(16, 8, 4, 4096, 128),
}
