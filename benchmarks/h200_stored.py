"""Tuned products and attention whose weights, keys or values are stored in fewer bits, against what PyTorch makes of
them on one NVIDIA GPU: short replays of a rested chip with cold caches, and long ones.

    weights    Y[i, j] = sum over k of A[i, k] * (W[j, k] - Z) * S[j, k / group]      of a few rows, as in decoding
    attention  one query of each head against 4,096 stored keys, with scales of tokens or heads, or in pages

Rows: weights of int4 (bfloat16 rows against PyTorch's own kernel for it, ``_weight_int4pack_mm``), int8, fp8 and NF4;
keys and values of int8 and fp8; and attention to latent rows that are keys and values. Bar, short and sustained: no
row under 1.0. Settings: those of ``gpu_table``, and ``sustained=0``.
"""

from collections.abc import Callable

import torch
from torch.nn import functional

from benchmarks.gpu_table import Row, Table, geometric_mean, measured
from benchmarks.h200_bars import MOST_TRIALS, Bars, bars_summary, reaches_bars
from benchmarks.suite import Options, Result
from benchmarks.torch_peers import Tensors

_ROW_BAR = 1.0
_BARS: Bars = {"weights": ("ifn", _ROW_BAR, _ROW_BAR), "attention": ("kl", _ROW_BAR, _ROW_BAR)}
_OUTPUTS = 4096
_FOUR_BITS = "float32(bitand(shr(int32(W[j, k // 2]), int32(4 * (k % 2))), 15))"
_BATCH, _HEADS, _GROUP, _KEYS, _DEPTH, _PAGE = 16, 8, 4, 4096, 128, 16
_SCALE = 0.0884
_NF4_GROUP, _INT_GROUP = 64, 128


def _text(text: str, peer: Callable[..., object], **more: object) -> Row:
    return Row(None, {"text": text}, peer, bar=_ROW_BAR, reads=True, **more)  # type: ignore[arg-type]


def _unpacked(w: torch.Tensor) -> torch.Tensor:
    """(n, k / 2) bytes as (n, k) numbers below 16; the lower half of a byte is the first."""
    return torch.stack([w & 15, w >> 4], -1).reshape(w.shape[0], -1)


def _int4_prepared(tensors: Tensors) -> Tensors:
    """The rows; the weights as PyTorch's kernel wants them; scales and zeros, (groups, n, 2)."""
    a, w, s = tensors
    packed = torch.ops.aten._convert_weight_to_int4pack((w >> 4) | (w << 4), 8)
    scales = s.t().contiguous()
    return a, packed, torch.stack([scales, torch.zeros_like(scales)], -1)


def _int4_library(a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._weight_int4pack_mm(a, packed, _INT_GROUP, scales)


def _int4(rows: int, inputs: int, dtype: str = "float16") -> Row:
    """Numbers of 4 bits less 8, with a scale for 128 of them."""
    text = (
        f"A: {dtype}[{rows}, {inputs}]\nW: uint8[{_OUTPUTS}, {inputs // 2}]\n"
        f"S: {dtype}[{_OUTPUTS}, {inputs // _INT_GROUP}]\n"
        f"C[i < {rows}, j < {_OUTPUTS}] = sum over k < {inputs} of float32(A[i, k]) * "
        f"float32({dtype}(({_FOUR_BITS} - 8) * float32(S[j, k // {_INT_GROUP}])))\nY[i, j] = {dtype}(C[i, j])"
    )

    def peer(a: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        numbers = _unpacked(w).to(a.dtype).view(_OUTPUTS, -1, _INT_GROUP) - 8
        return a @ (numbers * s[:, :, None]).view(_OUTPUTS, -1).t()

    if dtype == "float16":
        return _text(text, peer)
    return _text(text, _int4_library, prepare=_int4_prepared, libraries={"_weight_int4pack_mm": _int4_library})


def _eight_bits(rows: int, inputs: int, dtype: str) -> Row:
    """Numbers of 8 bits with a scale for each output."""
    text = (
        f"A: float16[{rows}, {inputs}]\nW: {dtype}[{_OUTPUTS}, {inputs}]\nS: float32[{_OUTPUTS}]\n"
        f"C[i < {rows}, j < {_OUTPUTS}] = sum over k < {inputs} of float32(A[i, k]) * float32(W[j, k])\n"
        "Y[i, j] = float16(C[i, j] * S[j])"
    )
    return _text(text, lambda a, w, s: ((a @ w.half().t()).float() * s).half())


def _nf4(rows: int, inputs: int) -> Row:
    """Places of 16 numbers, with a scale for 64 of them."""
    text = (
        f"A: float16[{rows}, {inputs}]\nW: uint8[{_OUTPUTS}, {inputs // 2}]\nN: float32[16]\n"
        f"S: float16[{_OUTPUTS}, {inputs // _NF4_GROUP}]\n"
        f"C[i < {rows}, j < {_OUTPUTS}] = sum over k < {inputs} of float32(A[i, k]) * "
        f"float32(float16(N[min(max(int64({_FOUR_BITS[8:-1]}), 0), 15)] * float32(S[j, k // {_NF4_GROUP}])))\n"
        "Y[i, j] = float16(C[i, j])"
    )

    def peer(a: torch.Tensor, w: torch.Tensor, n: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        numbers = n[_unpacked(w).long()].view(_OUTPUTS, -1, _NF4_GROUP)
        return a @ (numbers * s.float()[:, :, None]).half().view(_OUTPUTS, -1).t()

    return _text(text, peer)


def _attention(inputs: str, key: str, value: str, score: str = "", weight: str = "") -> str:
    """Decoding in te: ``key`` and ``value`` read the stored numbers, ``score`` and ``weight`` are factors of tokens."""
    axes = "b, g, q"
    return (
        f"Q: float16[{_BATCH}, {_HEADS}, {_GROUP}, {_DEPTH}]\n{inputs}"
        f"S[{axes}, k < {_KEYS}] = sum over c < {_DEPTH} of float32(Q[{axes}, c]) * float32({key})\n"
        f"T[{axes}, k] = S[{axes}, k]{score} * {_SCALE}\nM[{axes}] = max over k < {_KEYS} of T[{axes}, k]\n"
        f"E[{axes}, k] = exp(T[{axes}, k] - M[{axes}])\nZ[{axes}] = sum over k < {_KEYS} of E[{axes}, k]\n"
        f"Y[{axes}, d < {_DEPTH}] = sum over k < {_KEYS} of float32(float16(E[{axes}, k]{weight})) * float32({value})\n"
        f"O[{axes}, d] = float16(Y[{axes}, d] / Z[{axes}])"
    )


def _scaled_keys(dtype: str) -> Row:
    """Keys and values with a scale for each token."""
    shape = f"[{_BATCH}, {_HEADS}, {_KEYS}"
    inputs = f"K: {dtype}{shape}, {_DEPTH}]\nV: {dtype}{shape}, {_DEPTH}]\nA: float16{shape}]\nB: float16{shape}]\n"
    scales = (" * float32(A[b, g, k])", " * float32(B[b, g, k])")
    text = _attention(inputs, "K[b, g, k, c]", "V[b, g, k, d]", *scales)

    def peer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        keys, values = k.half() * a[..., None], v.half() * b[..., None]
        return functional.scaled_dot_product_attention(q, keys, values, scale=_SCALE)

    return _text(text, peer)


def _paged_keys(dtype: str) -> Row:
    """Keys and values in pages of 16 tokens, which a table names."""
    pages = _BATCH * _KEYS // _PAGE
    stored = f"{dtype}[{pages}, {_PAGE}, {_HEADS}, {_DEPTH}]"
    place = f"min(max(int64(P[b, k // {_PAGE}]), 0), {pages - 1}), k % {_PAGE}, g"
    inputs = f"K: {stored}\nV: {stored}\nP: int32[{_BATCH}, {_KEYS // _PAGE}]\n"
    text = _attention(inputs, f"K[{place}, c]", f"V[{place}, d]")

    def peer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        chosen = table.long().clamp(0, pages - 1)
        keys, values = (x.half()[chosen].reshape(_BATCH, _KEYS, _HEADS, _DEPTH).transpose(1, 2) for x in (k, v))
        return functional.scaled_dot_product_attention(q, keys, values, scale=_SCALE)

    return _text(text, peer)


def _latent(heads: int) -> Row:
    """Multi-head latent attention: rows of 576 numbers are keys of all heads, and the first 512 of each are values."""
    text = (
        f"Q: float16[{_BATCH}, {heads}, 576]\nC: float16[{_BATCH}, {_KEYS}, 576]\n"
        f"S[b, h, k < {_KEYS}] = sum over c < 576 of float32(Q[b, h, c]) * float32(C[b, k, c])\n"
        f"T[b, h, k] = S[b, h, k] * 0.0416667\nM[b, h] = max over k < {_KEYS} of T[b, h, k]\n"
        f"E[b, h, k] = exp(T[b, h, k] - M[b, h])\nZ[b, h] = sum over k < {_KEYS} of E[b, h, k]\n"
        f"A[b, h, d < 512] = sum over k < {_KEYS} of float32(float16(E[b, h, k])) * float32(C[b, k, d])\n"
        "O[b, h, d] = float16(A[b, h, d] / Z[b, h])"
    )

    def peer(q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return functional.softmax((q @ c.mT).float() * 0.0416667, -1).half() @ c[..., :512]

    return _text(text, peer)


ROWS: dict[str, Row] = {
    **{f"int4-{m}x{k}": _int4(m, k) for m, k in ((1, 4096), (8, 4096), (32, 4096), (8, 14336))},
    **{f"int4-bfloat16-{m}x4096": _int4(m, 4096, "bfloat16") for m in (1, 8, 32)},
    **{f"fp8-{m}x4096": _eight_bits(m, 4096, "float8_e4m3fn") for m in (1, 8, 32)},
    "int8-16x4096": _eight_bits(16, 4096, "int8"),
    "nf4-8x4096": _nf4(8, 4096),
    "keys-int8": _scaled_keys("int8"),
    "keys-fp8": _scaled_keys("float8_e4m3fn"),
    "keys-fp8-pages": _paged_keys("float8_e4m3fn"),
    "latent-64": _latent(64),
    "latent-128": _latent(128),
}


def run(options: Options) -> Result:
    """Tune and time every row whose name matches."""
    sustained = options.extra.get("sustained", "1") == "1"
    return measured(ROWS, options, _judged, trials=MOST_TRIALS, sustained=sustained)


def _judged(table: Table) -> Result:
    ratios = [float(str(r.get("ratio") or 0.0)) for r in table.rows]
    summary = {
        "geomean_ratio": geometric_mean(ratios),
        "min_ratio": min(ratios, default=None),
        **bars_summary(table.rows, _BARS),
        "tuning_s": table.tuned.seconds,
        "timing_share": table.tuned.timing_share,
    }
    return table.result(summary, reaches_bars(summary, _BARS))
