"""Tuned kernels against NumPy, PyTorch (eager, torch.compile, its max-autotune mode) and TVM's MetaSchedule on this
machine's CPU, all threads that this process may use (``taskset`` for fewer).

The rows are tuned first, then ours and every peer run interleaved in one process on the same arrays, aligned as PyTorch
aligns them, in memory that is used again and again; outputs are compared. Bars: geometric mean of (best peer / ours) at
least 1.1 and no row under 0.9; matmul 1024^3 at 85 % of the measured float32 peak, in bfloat16 at 45 % of that of tile
registers, where there are any; 8 trials a second on the rows of up to 5 ms; tuned in 83 seconds a row.

Settings, besides those of ``tuned``: ``peers=eager`` leaves compiled peers out; ``rounds=N``; ``constants=1`` takes the
rows of ``PACKED_ROWS`` instead, whose weights stay the same: ours binds them and peers pack them, before anything is
timed. TVM takes part where its package is importable (``cpu_tvm``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from benchmarks import cpu_tvm
from benchmarks.cpu_peers import (
    MODES,
    Call,
    Inputs,
    aligned,
    frozen_calls,
    interleaved,
    middle,
    recycle_memory,
    tensor,
    torch_calls,
)
from benchmarks.odd_rows import CPU_ROWS
from benchmarks.suite import Options, Result, kept_result, printed
from benchmarks.tuned import Tuned, TunedOperator, tune_rows
from tilewright.core.schedule import Schedule
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.module import Module, load_module
from tilewright.te.cost import flops, minimum_bytes
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.workers.peaks_cache import best_peaks

_ROUNDS = 15
TRIALS = 128
_GEOMEAN, _LEAST = 1.1, 0.9
_PEAK_SHARES: Mapping[str, tuple[str, float]] = {
    "matmul-1024": ("peak_float32_flops_per_second", 0.85),
    "matmul-bf16-1024": ("peak_tensor_bfloat16_flops_per_second", 0.45),
}
"""Row -> the peak that it is held to, and the least share of it."""
_QUICK_SECONDS = 0.005
_TRIALS_PER_SECOND = 8.0
_TUNING_SECONDS = 83.0
"""Of a row."""


@dataclass(frozen=True)
class Row(TunedOperator):
    """``peer``: the same in PyTorch. ``autotuned``: whether max-autotune has a choice to make. ``packed``: makes a call
    of the same on weights that oneDNN has packed, where they are constant."""

    peer: Callable[..., object]
    autotuned: bool = False
    packed: Callable[..., Call] | None = None


def _matmul(m: int, n: int, k: int, **parameters: object) -> Row:
    return Row("matmul", {"m": m, "n": n, "k": k, **parameters}, torch.mm, autotuned=True)


def _linear(**parameters: object) -> Row:
    def peer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return functional.gelu(functional.linear(x, w, b))

    def packed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Call:
        copy = torch.ops.mkldnn._reorder_linear_weight(w, x.shape[0])
        return lambda: torch.ops.mkldnn._linear_pointwise(x, copy, b, "gelu", [], "none")

    layer = {"rows": 128, "inputs": 1024, "outputs": 1024, "activation": "gelu_erf"}
    return Row("linear", {**layer, **parameters}, peer, autotuned=True, packed=packed)


def _convolution(channels: int, size: int, filters: int, kernel: int, groups: int = 1, **more: object) -> Row:
    padding = kernel // 2
    parameters: dict[str, object] = {"batch": 1, "channels": channels, "filters": filters, "padding": padding, **more}
    parameters |= {"height": size, "width": size, "kernel_h": kernel, "kernel_w": kernel, "groups": groups}
    shape = (filters, channels // groups, kernel, kernel)

    def peer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x.view(1, channels, size, size), w.view(shape), padding=padding, groups=groups)

    return Row("conv2d", parameters, peer)


def _map(size: int, functions: list[str], peer: Callable[..., object]) -> Row:
    return Row("elementwise", {"shape": [size, size], "functions": functions}, peer)


def _perceptron(x: torch.Tensor, *layers: torch.Tensor) -> torch.Tensor:
    for weight, bias, scale, shift in (layers[n : n + 4] for n in range(0, len(layers), 4)):
        x = functional.linear(x, weight, bias)
        x = functional.silu(functional.layer_norm(x, (x.shape[1],), scale, shift, 1e-5))
    return x


_WIDE = {"rows": 4096, "columns": 1024}

ROWS: dict[str, Row] = {
    "matmul-512": _matmul(512, 512, 512),
    "matmul-1024": _matmul(1024, 1024, 1024),
    "matmul-2048": _matmul(2048, 2048, 2048),
    "matmul-32x4096x4096": _matmul(32, 4096, 4096),
    "matmul-1x4096x4096": _matmul(1, 4096, 4096),
    "batch_matmul-16x128x64x128": Row(
        "batch_matmul", {"batch": 16, "m": 128, "n": 64, "k": 128}, torch.bmm, autotuned=True
    ),
    "conv2d-56": _convolution(64, 56, 64, 3),
    "conv2d-14": _convolution(256, 14, 256, 3),
    "conv2d-1x1-28": _convolution(256, 28, 512, 1),
    "depthwise-56": _convolution(128, 56, 128, 3, groups=128),
    "softmax-4096x1024": Row("softmax", _WIDE, lambda x: torch.softmax(x, 1)),
    "layer_norm-4096x1024": Row("layer_norm", _WIDE, lambda x, g, b: functional.layer_norm(x, (1024,), g, b, 1e-5)),
    "gelu-1024": _map(1024, ["gelu_tanh"], lambda x: functional.gelu(x, approximate="tanh")),
    "chain-4096": _map(4096, ["relu", "mul2", "add1", "sigmoid"], lambda x: torch.sigmoid(torch.relu(x) * 2 + 1)),
    "matmul-bf16-1024": _matmul(1024, 1024, 1024, dtype="bfloat16"),
    "matmul-int8-1024": Row(
        "matmul", {"m": 1024, "n": 1024, "k": 1024, "dtype": "int8"}, torch._int_mm, autotuned=True
    ),
    "linear_gelu-128x1024x1024": _linear(),
    "mlp-3-32x128": Row("mlp", {"rows": 32, "width": 128, "layers": 3}, _perceptron, autotuned=True),
    **{name: Row(odd.operator, odd.parameters, odd.peer) for name, odd in CPU_ROWS.items()},
}

PACKED_ROWS: dict[str, Row] = {
    "packed-linear_gelu-128x1024x1024": _linear(constant_weights=True),
    "packed-linear_gelu-bf16-128x1024x1024": _linear(constant_weights=True, dtype="bfloat16"),
    "packed-conv2d-56": _convolution(64, 56, 64, 3, constant_weights=True),
    "packed-conv2d-14": _convolution(256, 14, 256, 3, constant_weights=True),
}
"""Weights are constant, for both sides."""


def run(options: Options) -> Result:
    """Tune and time every row whose name matches."""
    recycle_memory()
    table_of = PACKED_ROWS if options.extra.get("constants") == "1" else ROWS
    rows = options.chosen(table_of)
    tuned = tune_rows(rows, options, TRIALS, "llvm", "warm")
    device = CpuDevice()
    torch.set_num_threads(device.info.target.threads)
    peaks = best_peaks(tuned.peaks, device.measure_peaks())  # whichever was disturbed less
    about = {"name": device.info.name, **device.info.hardware, **peaks}
    settings = {"rounds": _rounds(options), "trials": options.trials or TRIALS, **options.extra}
    versions = {"torch": torch.__version__, "tvm": cpu_tvm.version(), **tuned.toolchain}

    def judged(table: list[dict[str, object]]) -> Result:
        summary = _summary(table, tuned)
        return Result(tuple(table), summary, not summary["below_bar"], settings, about, versions)

    with torch.inference_mode():
        measured = (_measured(name, row, tuned, peaks, options) for name, row in rows.items())
        return kept_result(printed(measured), judged, options)


def _rounds(options: Options) -> int:
    return int(options.extra.get("rounds", _ROUNDS))


def _measured(name: str, row: Row, tuned: Tuned, peaks: Mapping[str, float], options: Options) -> dict[str, object]:
    """Return one row of the table."""
    about = tuned.about.get(name, {})
    if name not in tuned.schedules:
        return {"row": name, "failed": "no schedule could be timed", **about}
    workload = row.workload
    arrays = random_inputs(workload, options.seed)
    arrays = {name: aligned(array) for name, array in arrays.items()}
    inputs = [arrays[b.name] for b in workload.inputs]
    modes = [m for m in MODES if m == "torch" or options.extra.get("peers") != "eager"]
    modes = [m for m in modes if row.autotuned or "autotune" not in m]
    calls = {
        "ours": _ours(row, tuned.schedules[name], inputs),
        **_numpy(row, arrays),
        **(frozen_calls if workload.constants else torch_calls)(row.peer, inputs, modes),
    }
    if workload.constants and row.packed is not None:
        calls["oneDNN packed"] = row.packed(*map(tensor, inputs))
    missing: dict[str, str] = {}
    if name in cpu_tvm.ROWS:
        trials = int(str(about.get("trials", TRIALS)))
        found = cpu_tvm.call_for(name, trials, options.seed, torch.get_num_threads(), inputs)
        if isinstance(found, str):
            missing["tvm"] = found
        else:
            calls["tvm"] = found
    times = {**interleaved(calls, _rounds(options)), **missing}
    mine = times["ours"]
    if isinstance(mine, str):
        return {"row": name, "failed": mine, **about}
    compared = [n for n in ("numpy", "torch", "tvm", "oneDNN packed") if not isinstance(times.get(n, ""), str)]
    wrong = {n: _difference(calls["ours"](), calls[n]()) for n in compared}
    ours = float(np.median(mine))
    theirs = {n: middle(t) for n, t in times.items() if n != "ours"}
    timed = {n: t for n, t in theirs.items() if t is not None}
    best = min(timed, key=lambda n: timed[n])
    low, high = np.percentile(mine, [25, 75])
    operations, moved = flops(workload), minimum_bytes(workload)
    return {
        "row": name,
        "ours_us": 1e6 * ours,
        "peers_us": {n: times[n] if t is None else 1e6 * t for n, t in theirs.items()},
        "best_peer": best,
        "ratio": timed[best] / ours,
        "gflops": operations / ours / 1e9,
        "gbytes_per_second": moved / ours / 1e9,
        "copy_share": moved / ours / peaks["copy_bytes_per_second"],
        "peak_share": _peak_share(name, operations / ours, peaks),
        "spread": float((high - low) / ours),
        "differences": wrong,
        **about,
        "schedule": tuned.schedules[name].to_json(),
    }


def _numpy(row: Row, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Call]:
    """NumPy's form of an operator; an expression has none."""
    operator = None if row.operator is None else OPERATORS[row.operator]
    return {} if operator is None else {"numpy": lambda: operator.numpy(row.parameters, arrays)}


def _ours(row: Row, schedule: Schedule, inputs: Inputs) -> Call:
    """Return the tuned kernel as users call it, into one set of outputs; constant inputs are bound."""
    module, workload = load_module(row.workload, schedule), row.workload
    assert isinstance(module, Module)
    if workload.constants:
        named = {b.name: array for b, array in zip(workload.inputs, inputs, strict=True)}
        module = module.bind(**{name: named.pop(name) for name in workload.constants})
        inputs = list(named.values())
    out = module(*inputs)
    return lambda: module(*inputs, out=out)


def raced(
    row: Row, schedules: Mapping[str, Schedule], seed: int, rounds: int
) -> tuple[dict[str, list[float] | str], float]:
    """Return the seconds of schedules of one row, each of which runs in turn in every round; and by how much their
    outputs differ at most from those of the first."""
    arrays = random_inputs(row.workload, seed)
    inputs = [aligned(arrays[b.name]) for b in row.workload.inputs]
    calls = {name: _ours(row, schedule, inputs) for name, schedule in schedules.items()}
    outputs = [call() for call in calls.values()]
    apart = max((_difference(other, outputs[0]) for other in outputs[1:]), default=0.0)
    return interleaved(calls, rounds), apart


def _peak_share(name: str, rate: float, peaks: Mapping[str, float]) -> float | None:
    """Of the peak that a row is held to; None where it is held to none, or this machine does not have it."""
    peak = peaks.get(_PEAK_SHARES[name][0]) if name in _PEAK_SHARES else None
    return None if peak is None else rate / peak


def _difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference of any output element, relative to the largest element."""
    x, y = (np.asarray(_array(a), np.float64).reshape(-1) for a in (ours, theirs))
    return float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30))


def _array(value: Any) -> Any:
    first = value[0] if isinstance(value, tuple) else value
    if isinstance(first, np.ndarray):
        return first
    return first.float().numpy() if getattr(first, "dtype", None) == torch.bfloat16 else first.numpy()


def _summary(table: list[dict[str, object]], tuned: Tuned) -> dict[str, object]:
    """Return the figures of the bars, and which bars were missed; a row that failed counts as nearly 0."""
    ratios = {str(r["row"]): float(str(r.get("ratio", 1e-9))) for r in table}
    geomean = float(np.exp(np.mean(np.log(list(ratios.values()))))) if ratios else 0.0
    shares = {str(r["row"]): float(str(r["peak_share"])) for r in table if r.get("peak_share") is not None}
    speeds = {
        str(r["row"]): float(str(r["trials"])) / float(str(r["tuning_s"]))
        for r in table
        if float(str(r.get("ours_us", np.inf))) <= 1e6 * _QUICK_SECONDS and r.get("tuning_s")
    }
    below = [row for row, ratio in ratios.items() if ratio < _LEAST]
    below += ["geomean"] if geomean < _GEOMEAN else []
    below += [f"{row} of its peak" for row, share in shares.items() if share < _PEAK_SHARES[row][1]]
    below += [f"{row} trials per second" for row, speed in speeds.items() if speed < _TRIALS_PER_SECOND]
    below += ["tuning"] if tuned.seconds > _TUNING_SECONDS * len(table) else []
    return {
        "rows": len(table),
        "geomean_ratio": geomean,
        "min_ratio": min(ratios.values(), default=0.0),
        "peak_shares": {row: shares.get(row, "not applicable") for row in _PEAK_SHARES if row in ratios},
        "least_trials_per_second": min(speeds.values(), default=None),
        "trials_per_second": speeds,
        "tuning_s": tuned.seconds,
        "timing_share": tuned.timing_share,
        "below_bar": below,
    }
