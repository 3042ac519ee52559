"""Tuned products of other types than 16-bit floats against what torch has on one NVIDIA GPU: short replays of a rested
chip with cold caches, and long ones.

Groups of rows, the same twelve shapes for each (cubes, and 64 and 4096 rows of layers of language models):

    fp8        e4m3, accumulators promoted; torch._scaled_mm without fast accumulation
    fp8fast    e4m3, accumulators not promoted; torch._scaled_mm with fast accumulation
    fp8block   e4m3 with scales for 1 x 128 of A and 128 x 128 of B; the better of torch._scaled_mm with the same scales
               (cuBLAS 12.9 or later, on Hopper) and with one scale for each operand
    tf32       torch.matmul in TF32
    tf32nn     the same where the rows of B lie along n, as torch.matmul itself has it
    int8       torch._int_mm
    bf16x6     float32 in six products of bfloat16; torch.matmul in float32
    tf32x3     float32 in three products of TF32; the same

Bars, short: the least geometric mean of (peer / ours) in a group, and the least ratio of its 4096^3; see ``BARS``. The
root mean square error of every row on normal inputs, against float64 on the device, is at most twice the peer's where
float32 is split, and is given for all. Settings: those of ``gpu_table``, and ``sustained=0``. A group takes under eight
minutes with ``--rows 'fp8-*' --trials 60 --set seconds=25``; ``parts`` joins the groups.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_table import Row, Table, against_summary, geometric_mean, measured, ours, reaches_against_bar
from benchmarks.suite import Options, Result
from benchmarks.torch_peers import Tensors
from tilewright.core.schedule import Schedule

_TRIALS = 100
_SHAPES = (
    *((n, n, n) for n in (1024, 2048, 4096, 8192)),
    *((m, n, k) for m in (64, 4096) for n, k in ((24576, 1536), (7168, 16384), (4096, 7168), (2112, 7168))),
)
"""m, n, k: C[m, n] = A[m, k] B[n, k], in ``tf32nn`` A[m, k] B[k, n]."""
_SQUARE = "4096x4096x4096"
BARS: Mapping[str, tuple[float, float]] = {
    "fp8": (1.05, 1.0),
    "fp8fast": (1.05, 1.0),
    "fp8block": (0.9, 0.9),
    "tf32": (1.05, 1.0),
    "tf32nn": (1.05, 1.0),
    "int8": (1.3, 1.35),
    "bf16x6": (1.8, 2.0),
    "tf32x3": (1.8, 2.0),
}
"""Group -> least geometric mean, least ratio of the cube of 4096."""
_LARGEST_RMS_RATIO = 2.0
_SPLIT = ("bf16x6", "tf32x3")


def _scaled(fast: bool) -> Callable[..., object]:
    """With one scale for each operand, the first of those that there are."""

    def call(a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> object:
        one = (scale[(slice(1),) * scale.ndim] for scale in (a_scale, b_scale))
        return torch._scaled_mm(a, b.t(), *one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return call


def _block_scaled(a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> object:
    """torch tells the kinds of scales apart by their shapes and strides: (m, k/128) with m innermost, and the transpose
    of (n/128, k/128)."""
    return torch._scaled_mm(a, b.t(), a_scale, b_scale.t(), out_dtype=torch.bfloat16)


def _by_blocks(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor, *, wide: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return the same by the product of the numbers that are meant, in ``wide``."""
    a_scale, b_scale = (scale.to(wide).repeat_interleave(128, 1) for scale in (a_scale, b_scale))
    a_scale, b_scale = a_scale[:, : a.shape[1]], b_scale.repeat_interleave(128, 0)[: b.shape[0], : b.shape[1]]
    return (a.to(wide) * a_scale) @ (b.to(wide) * b_scale).t()


def _rows_innermost(tensors: Tensors) -> Tensors:
    """Return the inputs with the scales of A as ``_block_scaled`` wants them."""
    a, b, a_scale, b_scale = tensors
    return a, b, a_scale.t().contiguous().t(), b_scale


def _single(tf32: bool, *, along_n: bool = False) -> Callable[..., object]:
    def call(a: torch.Tensor, b: torch.Tensor) -> object:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            return a @ (b if along_n else b.t())
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    return call


def _int8(a: torch.Tensor, b: torch.Tensor) -> object:
    return torch._int_mm(a, b.t())


_PEERS: Mapping[str, Mapping[str, Callable[..., object]]] = {
    "fp8": {"_scaled_mm": _scaled(False)},
    "fp8fast": {"_scaled_mm, fast": _scaled(True)},
    "fp8block": {"_scaled_mm, blocks": _block_scaled, "_scaled_mm, one scale": _scaled(False)},
    "tf32": {"cuBLAS TF32": _single(True)},
    "tf32nn": {"cuBLAS TF32": _single(True, along_n=True)},
    "int8": {"_int_mm": _int8},
    **{group: {"cuBLAS float32": _single(False)} for group in _SPLIT},
}
"""Group -> its peers by name. Outputs are compared with those of the first one, but for ``fp8block``."""


def _parameters(group: str, m: int, n: int, k: int) -> tuple[str, Mapping[str, Any]]:
    shape = {"m": m, "n": n, "k": k}
    if group.startswith("fp8"):
        scales = "block" if group == "fp8block" else "tensor"
        return "scaled_matmul", {
            **shape,
            "scales": scales,
            "precision": "fast_accumulation" if group == "fp8fast" else "ieee",
        }
    if group == "int8":
        return "matmul", {**shape, "transpose_b": True, "dtype": "int8"}
    if group == "tf32nn":
        return "matmul", {**shape, "precision": "tf32"}
    return "matmul", {**shape, "transpose_b": True, "precision": group}


def _row(group: str, m: int, n: int, k: int) -> Row:
    (operator, parameters), libraries = _parameters(group, m, n, k), _PEERS[group]
    _, square = BARS[group]
    bar = square if f"{m}x{n}x{k}" == _SQUARE else 0.0
    if group == "fp8block":  # cuBLAS may refuse blocks
        return Row(operator, parameters, _by_blocks, _rows_innermost, bar=bar, libraries=libraries)
    return Row(operator, parameters, next(iter(libraries.values())), bar=bar, libraries=libraries)


ROWS: dict[str, Row] = {f"{g}-{m}x{n}x{k}": _row(g, m, n, k) for g in BARS for m, n, k in _SHAPES}


def run(options: Options) -> Result:
    """Tune and time every row whose name matches, and measure its error."""
    sustained = options.extra.get("sustained") != "0"
    return measured(ROWS, options, partial(_judged, sustained, options.seed), trials=_TRIALS, sustained=sustained)


def _judged(sustained: bool, seed: int, table: Table) -> Result:
    for row in table.rows:
        if "ours_us" in row and "rms_error" not in row:
            row |= _errors(str(row["row"]), row["schedule"], seed)
    summary: dict[str, object] = {"rows": len(table.rows)}
    for prefix in ("", "sustained_") if sustained else ("",):
        ratios = [float(str(r.get(f"{prefix}ratio") or 0.0)) for r in table.rows]
        summary |= {f"{prefix}geomean_ratio": geometric_mean(ratios), f"{prefix}min_ratio": min(ratios, default=None)}
        for group in BARS:
            own = [v for r, v in zip(table.rows, ratios, strict=True) if str(r["row"]).startswith(f"{group}-")]
            summary |= {f"{prefix}{group}_geomean": geometric_mean(own), f"{prefix}{group}_min": min(own, default=None)}
    below = [str(r["row"]) for r in table.rows if float(str(r.get("ratio") or 0.0)) < ROWS[str(r["row"])].bar]
    split = [r for r in table.rows if str(r["row"]).split("-")[0] in _SPLIT]
    inexact = [str(r["row"]) for r in split if float(str(r.get("rms_ratio", 0.0))) > _LARGEST_RMS_RATIO]
    summary |= {"below_bar": below, "inexact": inexact, **against_summary(table.rows)}
    summary |= {"tuning_s": table.tuned.seconds, "timing_share": table.tuned.timing_share}
    means = all(summary[f"{g}_geomean"] is None or float(str(summary[f"{g}_geomean"])) >= BARS[g][0] for g in BARS)
    return table.result(summary, means and not below and not inexact and reaches_against_bar(summary))


def _errors(name: str, schedule: Any, seed: int) -> dict[str, object]:
    """Return the root mean square errors of ours and of the peer on normal inputs, relative to the root mean square of
    the product in float64. Those of types that round the inputs first begin with rounded ones."""
    row, group = ROWS[name], name.split("-")[0]
    workload = row.workload
    draw = torch.Generator("cuda").manual_seed(seed)
    inputs = []
    for tensor in workload.inputs:
        normal = torch.randn(tensor.shape, generator=draw, device="cuda")
        normal = (normal * 32).round().clamp(-128, 127) if tensor.dtype.is_integer else normal
        inputs.append(normal.to(getattr(torch, tensor.dtype.name)))
    if group == "fp8block":
        exact = _by_blocks(*inputs, wide=torch.float64)
    else:
        b = inputs[1].double()
        exact = inputs[0].double() @ (b if group == "tf32nn" else b.t())
    if group in ("fp8", "fp8fast"):
        exact *= inputs[2].double() * inputs[3].double()
    size = exact.square().mean().sqrt()
    found: dict[str, object] = {}
    with torch.no_grad():
        outputs: Any = ours(workload, Schedule.from_json(schedule))(tuple(inputs))
        results = {"": outputs[0], "peer_": row.peer(*inputs)}
    for who, result in results.items():
        assert isinstance(result, torch.Tensor)
        found[f"{who}rms_error"] = float((result.double() - exact).square().mean().sqrt() / size)
    if found.get("peer_rms_error"):
        found["rms_ratio"] = float(str(found["rms_error"])) / float(str(found["peer_rms_error"]))
    return found
