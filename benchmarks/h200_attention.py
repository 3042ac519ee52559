"""Tuned attention against what torch ships (cuDNN, FlashAttention, FlexAttention) on one NVIDIA GPU: short replays of a
rested chip with cold caches, and long ones.

Rows: (batch x heads, sequence) at depth 128 full and causal, at depths 64 and 256 causal; four in bfloat16, and four
with groups of 8 heads; and decoding, 1 or 8 queries against all keys, with and without groups; one whose rows of V are
shorter than those of K; and scores under other masks, with ALiBi, a soft cap or a bias, against FlexAttention, and for
the bias cuDNN (``attention_scores``). Bars, short and sustained: a geometric mean of (best peer / ours) of at least
1.1, no row under 0.95, and none of decoding under 1.0. Every row is found with 100 candidates in three minutes.
Settings: those of ``gpu_table``, and ``sustained=0``.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch.nn.attention import SDPBackend

from benchmarks import attention_scores
from benchmarks.attention_scores import flexible, library, no_later
from benchmarks.gpu_table import Row, Table, against_summary, geometric_mean, measured, reaches_against_bar
from benchmarks.suite import Options, Result
from benchmarks.torch_peers import Tensors

_TRIALS = 100
_MEAN_BAR, _ROW_BAR = 1.1, 0.95
_SHAPES = ((16, 512), (64, 512), (32, 2048), (32, 4096), (64, 4096), (16, 16384))
_FEW = ((64, 512), (32, 2048), (32, 4096), (16, 16384))
_KINDS = ((128, False), (128, True), (64, True), (256, True))
_GROUP = 8
_DECODED = ((1, 2048), (1, 8192), (1, 32768), (8, 2048), (8, 8192), (8, 32768))
_DECODING_HEADS, _DECODING_BAR = 32, 1.0


def _batched(tensors: Tensors) -> Tensors:
    """Ours, (heads, group, rows, depth) and (heads, rows, depth), as (1, heads, rows, depth)."""
    q, k, v = tensors
    return q.reshape(1, -1, *q.shape[-2:]), k[None], v[None]


def _row(
    heads: int,
    length: int,
    depth: int,
    causal: bool,
    dtype: str = "float16",
    group: int = 1,
    queries: int = 0,
    bar: float = _ROW_BAR,
    value_depth: int = 0,
) -> Row:
    parameters: Mapping[str, Any] = {
        "heads": heads // group,
        "queries_per_key": group,
        "queries": queries or length,
        "keys": length,
        "depth": depth,
        "causal": causal,
        "value_depth": value_depth,
        "dtype": dtype,
    }
    libraries = {
        "cuDNN": library(SDPBackend.CUDNN_ATTENTION, causal),
        "FlashAttention": library(SDPBackend.FLASH_ATTENTION, causal),
        "FlexAttention": flexible(no_later if causal else None),
    }
    return Row("attention", parameters, libraries["cuDNN"], _batched, bar, libraries=libraries)


def _name(depth: int, causal: bool, heads: int, length: int) -> str:
    return f"{'causal' if causal else 'full'}-d{depth}-{heads}x{length}"


ROWS: dict[str, Row] = {
    **{_name(d, causal, h, n): _row(h, n, d, causal) for d, causal in _KINDS for h, n in _SHAPES},
    **{f"bfloat16-{_name(128, True, h, n)}": _row(h, n, 128, True, "bfloat16") for h, n in _FEW},
    **{f"grouped-{_name(128, True, h, n)}": _row(h, n, 128, True, group=_GROUP) for h, n in _FEW},
    **{
        f"decode{'-grouped' * (group > 1)}-{m}x{n}": _row(
            _DECODING_HEADS, n, 128, False, group=group, queries=m, bar=_DECODING_BAR
        )
        for group in (1, _GROUP)
        for m, n in _DECODED
    },
    "causal-d192_128-16x4096": _row(16, 4096, 192, True, value_depth=128),
    **attention_scores.ROWS,
}


def run(options: Options) -> Result:
    """Tune and time every row whose name matches."""
    sustained = options.extra.get("sustained") != "0"
    return measured(ROWS, options, partial(_judged, sustained), trials=_TRIALS, sustained=sustained)


def _judged(sustained: bool, table: Table) -> Result:
    for row in table.rows:
        if "ours_us" in row and ROWS[str(row["row"])].operator:
            row["tflops"] = _operations(str(row["row"])) / float(str(row["ours_us"])) / 1e6
    summary: dict[str, object] = {"rows": len(table.rows)}
    passed = True
    for prefix in ("", "sustained_") if sustained else ("",):
        ratios = [float(str(r.get(f"{prefix}ratio") or 0.0)) for r in table.rows]
        mean, least = geometric_mean(ratios), min(ratios, default=None)
        summary |= {f"{prefix}geomean_ratio": mean, f"{prefix}min_ratio": least}
        below = [str(r["row"]) for r, ratio in zip(table.rows, ratios, strict=True) if ratio < ROWS[str(r["row"])].bar]
        summary[f"{prefix}below_bar"] = below
        passed &= not below and (mean is None or mean >= _MEAN_BAR)
    summary |= against_summary(table.rows)
    summary |= {"tuning_s": table.tuned.seconds, "timing_share": table.tuned.timing_share}
    return table.result(summary, passed and reaches_against_bar(summary))


def _operations(name: str) -> float:
    """Floating point operations of the two products of a row; of a causal one half of them, as is usual."""
    parameters = ROWS[name].parameters
    heads, pairs = int(parameters["heads"] * parameters["queries_per_key"]), parameters["queries"] * parameters["keys"]
    depths = int(parameters["depth"]) + int(parameters["value_depth"] or parameters["depth"])
    return 2.0 * heads * int(pairs) * depths / (2 if parameters["causal"] else 1)
