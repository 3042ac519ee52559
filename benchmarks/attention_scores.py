"""Rows of attention whose scores are masked by the place, or changed by something besides Q and K, written as tensor
expressions. The peer is FlexAttention, compiled, with a block mask that is made once."""

from collections.abc import Callable
from functools import cache
from math import sqrt
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.gpu_table import Row
from benchmarks.torch_peers import Tensors

_Mask = Callable[[Any, Any, Any, Any], Any]
_Score = Callable[..., Any]


def scored(
    heads: int,
    length: int,
    depth: int,
    score: str,
    *,
    mask: _Mask | None = None,
    change: _Score | None = None,
    reads: str = "",
) -> Row:
    """Return a row in float16. ``score``: of ``h``, ``i`` and ``j``, where ``S`` is the scaled product, as a tensor
    expression. ``mask`` and ``change``: the same for the peer. ``reads``: a further input, as a line of the text."""
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

    @cache
    def blocks() -> Any:
        return None if mask is None else create_block_mask(mask, None, None, length, length)

    @cache
    def compiled() -> Callable[..., object]:
        torch._dynamo.reset()
        function: Callable[..., object] = torch.compile(flex_attention, dynamic=False)
        return function

    def peer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> object:
        def changed(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            assert change is not None
            return change(s, h, i, j, *rest)

        return compiled()(q, k, v, score_mod=None if change is None else changed, block_mask=blocks())

    def prepare(tensors: Tensors) -> Tensors:
        q, k, v, *rest = tensors
        return q[None], k[None], v[None], *rest

    return Row(None, {"text": text}, peer, prepare, 0.95, libraries={"FlexAttention": peer})


def _causal(b: Any, h: Any, i: Any, j: Any) -> Any:
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
        mask=_causal,
        change=lambda s, h, i, j, a: s - a[h] * (i - j),
        reads="A: float32[16]",
    ),
    "softcap-d256-16x4096": scored(
        16,
        4096,
        256,
        "select(j <= i, tanh(S[h, i, j] / 50) * 50, -inf)",
        mask=_causal,
        change=lambda s, h, i, j: torch.tanh(s / 50) * 50,
    ),
    "bias-d64-32x1024": scored(
        32,
        1024,
        64,
        "S[h, i, j] + float32(B[h, i, j])",
        change=lambda s, h, i, j, bias: s + bias[h, i, j],
        reads="B: float16[32, 1024, 1024]",
    ),
}
