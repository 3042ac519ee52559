"""Tuned matrix products against cuBLAS (torch eager) and torch.compile on one NVIDIA GPU: short replays of a rested
chip with cold caches, and long ones, in which it settles at the clock that its power allows.

Groups of rows: ``a`` large, ``b`` small and skinny, ``c`` odd, ``d`` layouts, ``e`` batches, ``f`` with what follows
fused, ``i`` float32 in IEEE arithmetic, which torch keeps to as well, ``g`` few elements with long sums (Gram
matrices), ``h`` weights of 8 bits, ``j`` float64, and sums of pairs that are no products, ``k`` products whose rows
are reduced, ``l`` contractions as ``torch.einsum`` takes them, whose axes stand in any order, with results in the order
that is written, ``m`` few rows whose operands have rows of odd lengths. Bars, short and sustained:
``a`` a geometric mean of (best peer / ours) of at least 1.0 and no row under 0.97, and 4096^3 at 90 % of the best rate
of any kernel in the run; ``b`` to ``e`` together 1.15 and no row under 1.0; ``f`` 1.15 and no row under 1.03; ``i`` 1.0
and no row under 0.9; ``g``, ``h`` and ``j`` to ``m`` 1.1 and no row under 1.0, but 0.97 in ``j``. Every row is found
with 100 candidates in three minutes. Settings: those of ``gpu_table``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu_table import Row, Table, measured
from benchmarks.h200_bars import MOST_TRIALS, Bars, bars_summary, reaches_bars
from benchmarks.suite import Options, Result

_SQUARE = "a-4096x4096x4096-float16"
_SHARE = 0.9
"""Of the best rate of any kernel in the run, what ``_SQUARE`` must reach."""
_BARS: Bars = {
    "large": ("a", 1.0, 0.97),
    "others": ("bcde", 1.15, 1.0),
    "fused": ("f", 1.15, 1.03),
    "ieee": ("i", 1.0, 0.9),
    "long_sums": ("g", 1.1, 1.0),
    "narrow_weights": ("h", 1.1, 1.0),
    "pairs": ("j", 1.1, 0.97),
    "reduced_rows": ("k", 1.1, 1.0),
    "contractions": ("l", 1.1, 1.0),
    "few_odd_rows": ("m", 1.1, 1.0),
}


def _linear(m: int, n: int, k: int, dtype: str = "float16") -> Row:
    parameters = {"rows": m, "inputs": k, "outputs": n, "bias": False, "dtype": dtype}
    return Row("linear", parameters, functional.linear)


def _layout(m: int, n: int, k: int, a_transposed: bool, b_transposed: bool) -> Row:
    parameters = {"m": m, "n": n, "k": k, "transpose_a": a_transposed, "transpose_b": b_transposed, "dtype": "float16"}

    def peer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.t() if a_transposed else a) @ (b.t() if b_transposed else b)

    return Row("matmul", parameters, peer)


def _batch(batch: int, m: int, n: int, k: int) -> Row:
    parameters = {"batch": batch, "m": m, "n": n, "k": k, "transpose_b": True, "dtype": "float16"}
    return Row("batch_matmul", parameters, lambda a, b: torch.bmm(a, b.transpose(1, 2)))


def _ieee(m: int, n: int, k: int) -> Row:
    return Row("matmul", {"m": m, "n": n, "k": k, "transpose_b": True}, lambda a, b: a @ b.t())


def _long_sum(m: int, n: int, k: int, dtype: str) -> Row:
    parameters = {"m": m, "n": n, "k": k, "transpose_a": True, "dtype": dtype}
    return Row("matmul", parameters, lambda a, b: a.t() @ b)


def _narrow_weights(m: int, n: int, k: int) -> Row:
    """Weights of 8 bits with a scale for each output."""
    text = f"X: float16[{m}, {k}]\nW: int8[{n}, {k}]\nS: float16[{n}]\n"
    text += f"T[i, j < {n}] = sum over k < {k} of float32(X[i, k]) * float32(W[j, k])\n"
    text += "Y[i, j] = float16(T[i, j] * float32(S[j]))"
    return Row(None, {"text": text}, lambda x, w, s: (x @ w.t().half()) * s)


def _double(m: int, n: int, k: int) -> Row:
    return Row("matmul", {"m": m, "n": n, "k": k, "dtype": "float64"}, torch.matmul)


def _manhattan(m: int, n: int, k: int) -> Row:
    """Distances of all pairs of rows: sums of absolute differences. The peer is that expression, which a compiler
    fuses. (``torch.cdist`` takes 5.5 ms.)"""
    text = f"A: float32[{m}, {k}]\nB: float32[{n}, {k}]\n"
    text += f"C[i, j] = sum over k < {k} of abs(A[i, k] - B[j, k])"
    return Row(None, {"text": text}, lambda a, b: (a[:, None] - b[None]).abs().sum(2))


def _min_plus(m: int, n: int, k: int) -> Row:
    """The least sums of a step of shortest paths."""
    text = f"A: float32[{m}, {k}]\nB: float32[{k}, {n}]\nC[i, j] = min over k < {k} of A[i, k] + B[k, j]"
    return Row(None, {"text": text}, lambda a, b: (a[:, :, None] + b[None]).amin(1))


def _nearest(m: int, n: int, k: int, reducer: str, peer: Callable[[torch.Tensor], torch.Tensor]) -> Row:
    """The nearest of ``n`` vectors to each of ``m`` others, whose squared norms are known: nearest neighbours, k-means,
    code words. Positions of nearly equal distances may differ."""
    text = f"A: float16[{m}, {k}]\nB: float16[{n}, {k}]\nN: float32[{n}]\n"
    text += f"D[i, j] = sum over k < {k} of float32(A[i, k]) * float32(B[j, k])\n"
    text += f"M[i] = {reducer} over j < {n} of N[j] - 2 * D[i, j]"
    return Row(None, {"text": text}, lambda a, b, norms: peer(norms - 2 * (a @ b.t())))


def _log_sum_exp(m: int, n: int, k: int) -> Row:
    """What a cross entropy needs of the logits of a linear layer."""
    text = f"X: float16[{m}, {k}]\nW: float16[{n}, {k}]\n"
    text += f"L[i, j] = sum over k < {k} of float32(X[i, k]) * float32(W[j, k])\n"
    text += (
        f"M[i] = max over j < {n} of L[i, j]\nS[i] = sum over j < {n} of exp(L[i, j] - M[i])\nY[i] = log(S[i]) + M[i]"
    )
    return Row(None, {"text": text}, lambda x, w: functional.linear(x, w).float().logsumexp(1))


def _einsum(equation: str, **extents: int) -> Row:
    """A contraction of float16 tensors."""
    factors, out = equation.split("->")
    tensors = dict(zip("XYZ", factors.split(","), strict=False))
    reduced = ", ".join(f"{axis} < {extent}" for axis, extent in extents.items() if axis not in out)
    text = "".join(f"{name}: float16{[extents[a] for a in axes]}\n" for name, axes in tensors.items())
    text += f"S[{', '.join(f'{a} < {extents[a]}' for a in out)}] = sum over {reduced} of "
    text += " * ".join(f"float32({name}[{', '.join(axes)}])" for name, axes in tensors.items())
    text += f"\nO[{', '.join(out)}] = float16(S[{', '.join(out)}])"
    return Row(None, {"text": text}, lambda *given: torch.einsum(equation, *given).contiguous())


def _gelu_linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.linear(x, w, b), approximate="tanh")


def _residual_linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, w, b) + r


def _swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(functional.linear(x, gate)) * functional.linear(x, up)


def _perceptron(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for layer in range(0, len(weights), 4):
        w, b, scale, shift = weights[layer : layer + 4]
        y = functional.linear(x, w, b)
        x = functional.silu(functional.layer_norm(y, (y.shape[1],), scale, shift, 1e-5))
    return x


def _fused(operator: str, parameters: Mapping[str, Any], peer: Callable[..., object]) -> Row:
    return Row(operator, {**parameters, "dtype": "float16"}, peer)


_LARGE = (
    (4096, 4096, 4096, "float16"),
    (4096, 4096, 4096, "bfloat16"),
    (8192, 8192, 8192, "bfloat16"),
    (2048, 6144, 4096, "float16"),
    (2048, 28672, 4096, "float16"),
    (2048, 4096, 14336, "float16"),
    (6144, 6144, 6144, "float16"),
)
"""Rows (tokens), outputs, inputs: Y[m, n] = X[m, k] W[n, k]."""
_SMALL = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (128, 4096, 14336),
    (256, 4096, 4096),
    (64, 28672, 4096),
)
_ODD = ((1000, 1111, 777), (4095, 4097, 4093), (3, 5000, 129), (2048, 50257, 768))
_FEW_ODD = (
    *((9, 2168, 5774, "bfloat16"), (16, 4096, 4097, "float16"), (33, 3001, 3001, "bfloat16")),
    *((64, 8191, 2050, "float16"), (16, 50257, 769, "float16"), (4, 1000, 10001, "float16")),
)
_LAYOUTS = {"nn": (False, False), "tn": (True, False), "tt": (True, True)}
_IEEE = ((2048, 2048, 2048), (4096, 4096, 4096), (1024, 4096, 1024), (32768, 32, 512))
_LONG = (
    *((64, 64, 100_000, "float16"), (256, 512, 65_536, "float16"), (128, 128, 200_000, "bfloat16")),
    *((64, 64, 100_000, "float32"), (16, 16, 1_000_000, "float32")),
)
_BATCHES = ((64, 512, 512, 64), (32, 128, 128, 4096), (512, 64, 64, 64))

ROWS: dict[str, Row] = {
    **{f"a-{m}x{n}x{k}-{dtype}": _linear(m, n, k, dtype) for m, n, k, dtype in _LARGE},
    **{f"b-{m}x{n}x{k}": _linear(m, n, k) for m, n, k in _SMALL},
    **{f"c-{m}x{n}x{k}": _linear(m, n, k) for m, n, k in _ODD},
    **{f"d-{name}-4096x4096x2048": _layout(4096, 4096, 2048, *flags) for name, flags in _LAYOUTS.items()},
    **{f"e-{b}x{m}x{n}x{k}": _batch(b, m, n, k) for b, m, n, k in _BATCHES},
    "f-bias_gelu-4096x4096x4096": _fused(
        "linear", {"rows": 4096, "inputs": 4096, "outputs": 4096, "activation": "gelu_tanh"}, _gelu_linear
    ),
    "f-bias_residual-2048x4096x4096": _fused(
        "linear", {"rows": 2048, "inputs": 4096, "outputs": 4096, "residual": True}, _residual_linear
    ),
    "f-swiglu-2048x14336x4096": _fused("gated_linear", {"rows": 2048, "inputs": 4096, "outputs": 14336}, _swiglu),
    "f-layer_norm_silu-32x128x128": _fused("mlp", {"rows": 32, "width": 128}, _perceptron),
    "f-layer_norm_silu-three-32x128x128": _fused("mlp", {"rows": 32, "width": 128, "layers": 3}, _perceptron),
    **{f"i-{m}x{n}x{k}": _ieee(m, n, k) for m, n, k in _IEEE},
    **{f"g-{m}x{n}x{k}-{dtype}": _long_sum(m, n, k, dtype) for m, n, k, dtype in _LONG},
    "h-512x4096x4096": _narrow_weights(512, 4096, 4096),
    "h-4096x4096x4096": _narrow_weights(4096, 4096, 4096),
    "j-float64-2048x2048x2048": _double(2048, 2048, 2048),
    "j-float64-1000x777x1500": _double(1000, 777, 1500),
    "j-manhattan-2048x2048x128": _manhattan(2048, 2048, 128),
    "j-min_plus-1024x1024x1024": _min_plus(1024, 1024, 1024),
    "k-nearest-4096x65536x128": _nearest(4096, 65536, 128, "min", lambda d: d.amin(1)),
    "k-nearest_code-32768x8192x64": _nearest(32768, 8192, 64, "argmin", lambda d: d.argmin(1)),
    "k-log_sum_exp-4096x32000x1024": _log_sum_exp(4096, 32000, 1024),
    "l-order-of-sums": _einsum("abcd,dcef->abef", a=32, b=64, c=32, d=64, e=32, f=64),
    "l-batch-last": _einsum("ijb,jkb->ikb", i=256, j=256, k=256, b=64),
    "l-heads-last": _einsum("bnhd,bmhd->nmbh", b=4, n=512, m=512, h=8, d=64),
    "l-rows-apart": _einsum("acbd,de->abce", a=32, b=64, c=48, d=128, e=256),
    "l-outer-axes": _einsum("cbf,adef->baecd", a=1, b=16, c=400, d=320, e=36, f=256),
    "l-sampled": _einsum("ik,jk,ij->ij", i=4096, j=4096, k=512),
    "l-values-of-heads": _einsum("bhk,bkhd->bhd", b=32, h=16, k=4096, d=128),
    "l-one-row-of-each": _einsum("bk,bnk->bn", b=24, k=2000, n=2000),
    **{f"m-{m}x{n}x{k}": _linear(m, n, k, dtype) for m, n, k, dtype in _FEW_ODD},
    **{f"m-nn-{m}x4097x4096": _layout(m, 4097, 4096, a_transposed=False, b_transposed=False) for m in (5, 16, 64)},
    **{
        f"m-t{'t' if b_transposed else 'n'}-{m}x{n}x{k}": _layout(m, n, k, a_transposed=True, b_transposed=b_transposed)
        for m, n, k, b_transposed in ((16, 3001, 4001, False), (16, 1178, 8327, True), (58, 1608, 5182, True))
    },
    "i-nn-4096x4096x4096": Row("matmul", {"m": 4096, "n": 4096, "k": 4096}, torch.matmul),
    "i-64x256x512x128": Row("batch_matmul", {"batch": 64, "m": 256, "n": 512, "k": 128}, torch.bmm),
    "i-bias_gelu-1024x1024x4096": Row(
        "linear", {"rows": 1024, "inputs": 4096, "outputs": 1024, "activation": "gelu_tanh"}, _gelu_linear
    ),
}


def run(options: Options) -> Result:
    """Tune and time every row whose name matches."""
    torch.backends.cuda.matmul.allow_tf32 = False  # for the rows of float32
    return measured(ROWS, options, _judged, trials=MOST_TRIALS, sustained=True)


def _judged(table: Table) -> Result:
    summary = {
        **bars_summary(table.rows, _BARS),
        "best_tflops": max((_best_rate(r) for r in table.rows), default=0.0),
        "square_share": (share := _square_share(table.rows)),
        "tuning_s": table.tuned.seconds,
        "timing_share": table.tuned.timing_share,
    }
    return table.result(summary, reaches_bars(summary, _BARS) and (share is None or share >= _SHARE))


def _best_rate(row: Mapping[str, object]) -> float:
    """TFLOP/s of the fastest kernel of a row, ours or a peer's."""
    if "ours_us" not in row or row.get("tflops") is None:
        return 0.0
    ratio = row.get("ratio")
    return float(str(row["tflops"])) * max(1.0, 1.0 / float(str(ratio)) if ratio else 1.0)


def _square_share(table: list[dict[str, object]]) -> float | None:
    """Return our rate at ``_SQUARE``, of the best of any kernel."""
    best = max((_best_rate(r) for r in table), default=0.0)
    own = [float(str(r["tflops"])) for r in table if r["row"] == _SQUARE and r.get("tflops") is not None]
    return own[0] / best if own and best else None
