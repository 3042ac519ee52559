"""Tuned grouped products (mixture of experts) against torch._grouped_mm on one NVIDIA GPU: short replays of a rested
chip with cold caches, and long ones.

    C[i, :] = A[i, :] B[g(i)]^T      rows of A in groups, whose ends are an input; B is (experts, n, k), in bfloat16

Rows: eEXPERTS-SIZES-MxNxK, where the sizes of groups are ``zipf`` (in proportion to 1 / rank) or ``even`` (each row
goes to any expert). Bars, short and sustained: a geometric mean of (peer / ours) of at least 1.1, no row under 1.0.
Settings: those of ``gpu_table``, and ``sustained=0``.
"""

from functools import partial

import torch

from benchmarks.gpu_table import Row, Table, against_summary, geometric_mean, measured, reaches_against_bar
from benchmarks.suite import Options, Result

_TRIALS = 100
_MEAN_BAR, _ROW_BAR = 1.1, 1.0
_LAYERS = ((8, 14336, 4096), (8, 4096, 14336), (32, 4096, 7168), (32, 7168, 2048), (128, 1536, 2048), (128, 2048, 768))
"""experts, n, k."""
_ROWS = (4096, 16384)
_SKEWS = {"zipf": 1.0, "even": 0.0}


def _grouped(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> object:
    return torch._grouped_mm(a, b.transpose(1, 2), offs=ends)


def _row(experts: int, sizes: str, m: int, n: int, k: int) -> Row:
    shape = {"groups": experts, "m": m, "n": n, "k": k, "transpose_b": True, "dtype": "bfloat16"}
    parameters = {**shape, "skew": _SKEWS[sizes]}
    return Row("grouped_matmul", parameters, _grouped, bar=_ROW_BAR, libraries={"_grouped_mm": _grouped})


ROWS: dict[str, Row] = {
    f"e{e}-{sizes}-{m}x{n}x{k}": _row(e, sizes, m, n, k)
    for sizes in _SKEWS
    for m in _ROWS
    for e, n, k in _LAYERS
    if sizes == "zipf" or (e, n, k) in _LAYERS[::2]
}


def run(options: Options) -> Result:
    """Tune and time every row whose name matches."""
    sustained = options.extra.get("sustained") != "0"
    return measured(ROWS, options, partial(_judged, sustained), trials=_TRIALS, sustained=sustained)


def _judged(sustained: bool, table: Table) -> Result:
    summary: dict[str, object] = {"rows": len(table.rows)}
    passed = True
    for prefix in ("", "sustained_") if sustained else ("",):
        ratios = [float(str(r.get(f"{prefix}ratio") or 0.0)) for r in table.rows]
        mean = geometric_mean(ratios)
        below = [str(r["row"]) for r, ratio in zip(table.rows, ratios, strict=True) if ratio < _ROW_BAR]
        summary |= {f"{prefix}geomean_ratio": mean, f"{prefix}min_ratio": min(ratios, default=None)}
        summary[f"{prefix}below_bar"] = below
        passed &= not below and (mean is None or mean >= _MEAN_BAR)
    summary |= against_summary(table.rows)
    summary |= {"tuning_s": table.tuned.seconds, "timing_share": table.tuned.timing_share}
    return table.result(summary, passed and reaches_against_bar(summary))
