"""Tuned kernels against PyTorch on one NVIDIA GPU: what is bound by memory, cold caches, random data.

Bars: geometric mean of (best peer / ours) at least 1.2 and no row under 0.97; rows that move 64 MB or more at 90 % of
the measured copy bandwidth (of the read bandwidth where hardly anything is written); products of a 4096x4096 matrix
with 4 to 32 rows at least 1.35, with one row 1.05 and with 64 rows 1.10; the table tuned in under 20 seconds a row, of
which the device is timing 60 %. Expressions of odd shapes (``odd_rows``) are to reach 85 % of a bandwidth, and are no
part of the mean. ``--rows 'odd-*'`` and ``--rows '[!o]*'`` are the parts of the table, which ``parts`` joins.
Settings: those of ``gpu_table``.
"""

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from benchmarks.gpu_table import Row, Table, against_summary, geometric_mean, measured, reaches_against_bar
from benchmarks.odd_rows import GPU_ROWS
from benchmarks.suite import Options, Result
from benchmarks.torch_peers import Tensors
from benchmarks.tuned import Tuned

TRIALS = 64
_LARGE_BYTES = 64_000_000
_SHARE, _ODD_SHARE = 0.9, 0.85
"""Of a bandwidth that rows of so many bytes are to reach, and odd ones."""
_TUNING_SECONDS = 20.0
"""Of a row."""


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x * x * x)))


def _chain(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(torch.relu(x) * 2 + 1)


def _log_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x, 1)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, 1)


def _layer_norm(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, (x.shape[1],), g, b, 1e-5)


def _rms_norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[1],), g, 1e-5)


def _add_rms_norm(x: torch.Tensor, y: torch.Tensor, g: torch.Tensor) -> Tensors:
    s = x + y
    return s, functional.rms_norm(s, (s.shape[1],), g, 1e-5)


def _broadcast(x: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    return x * row + column[:, None]


def _channels_last(tensors: Tensors) -> Tensors:
    """NHWC images and weights of a depthwise convolution, the same memory in PyTorch's channels_last format."""
    x = tensors[0].reshape(tensors[0].shape[:4]).permute(0, 3, 1, 2)
    return (x, *(w.reshape(3, 3, 1, -1).permute(3, 2, 0, 1).contiguous() for w in tensors[1:]))


def _depthwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(x, w, padding=1, groups=x.shape[1]).permute(0, 2, 3, 1)


def _pool(x: torch.Tensor) -> torch.Tensor:
    return functional.avg_pool2d(x, 3, 1, 1).permute(0, 2, 3, 1)


def _norm_rows() -> dict[str, Row]:
    """Softmax and layer norm on the same three shapes."""
    found = {}
    for rows, columns in ((8192, 1024), (8192, 8192), (1024, 65536)):
        shape = {"rows": rows, "columns": columns, "dtype": "float16"}
        found[f"softmax-{rows}x{columns}"] = Row("softmax", shape, _softmax)
        found[f"layer_norm-{rows}x{columns}"] = Row("layer_norm", shape, _layer_norm)
    return found


_PRODUCT_BARS: Mapping[int, float] = {1: 1.05, 4: 1.35, 16: 1.35, 32: 1.35, 64: 1.10}
"""Rows of a product with a 4096x4096 matrix -> least (best peer / ours). The peers of 1 and of 64 rows run so close to
the memory's speed that more is impossible."""


def _product_rows() -> dict[str, Row]:
    """Few rows times the transposed weights of a linear layer."""
    found = {}
    for dtype in ("float16", "bfloat16"):
        for rows, outputs in (*((m, 4096) for m in (1, 4, 16, 32, 64)), *((m, 28672) for m in (1, 16, 64))):
            parameters = {"rows": rows, "inputs": 4096, "outputs": outputs, "bias": False, "dtype": dtype}
            bar = _PRODUCT_BARS[rows] if outputs == 4096 else 0.97
            name = f"product-{rows}x{outputs}x4096-{dtype}"
            found[name] = Row("linear", parameters, functional.linear, bar=bar, reads=True)
    return found


def _reduce_row(shape: list[int], axes: list[int], kind: str, dtype: str, peer: Callable[..., object]) -> Row:
    parameters = {"shape": shape, "axes": axes, "kind": kind, "dtype": dtype}
    return Row("reduce", parameters, peer, reads=True)


def _map_row(shape: list[int], functions: list[str], dtype: str, peer: Callable[..., object]) -> Row:
    return Row("elementwise", {"shape": shape, "functions": functions, "dtype": dtype}, peer)


_IMAGES = {"batch": 32, "channels": 128, "height": 56, "width": 56, "kernel_h": 3, "kernel_w": 3, "padding": 1}
_WIDE = {"rows": 8192, "columns": 4096, "dtype": "float16"}

ROWS: dict[str, Row] = {
    "gelu-1024x1024-f32": _map_row([1024, 1024], ["gelu_tanh"], "float32", _gelu),
    "gelu-8192x8192": _map_row([8192, 8192], ["gelu_tanh"], "float16", _gelu),
    "chain-4096x4096-f32": _map_row([4096, 4096], ["relu", "mul2", "add1", "sigmoid"], "float32", _chain),
    "broadcast-8192x8192": Row("broadcast_affine", {"rows": 8192, "columns": 8192, "dtype": "float16"}, _broadcast),
    **_norm_rows(),
    "log_softmax-4096x50257": Row("log_softmax", {"rows": 4096, "columns": 50257, "dtype": "float16"}, _log_softmax),
    "rms_norm-8192x4096": Row("rms_norm", _WIDE, _rms_norm),
    "rms_norm-16x8192": Row("rms_norm", {"rows": 16, "columns": 8192, "dtype": "float16"}, _rms_norm),
    "add_rms_norm-8192x4096": Row("add_rms_norm", _WIDE, _add_rms_norm),
    "row_sum-8192x8192-f32": _reduce_row([8192, 8192], [1], "sum", "float32", lambda x: x.sum(1)),
    "row_max-8192x8192-f32": _reduce_row([8192, 8192], [1], "max", "float32", lambda x: x.amax(1)),
    "row_argmax-8192x8192-f32": _reduce_row([8192, 8192], [1], "argmax", "float32", lambda x: x.argmax(1)),
    "column_sum-8192x8192-f32": _reduce_row([8192, 8192], [0], "sum", "float32", lambda x: x.sum(0)),
    "mean_nhw-32x56x56x256": _reduce_row([32, 56, 56, 256], [0, 1, 2], "mean", "float16", lambda x: x.mean((0, 1, 2))),
    "transpose-8192x8192": Row(
        "transpose", {"shape": [8192, 8192], "axes": [1, 0], "dtype": "float16"}, lambda x: x.t().contiguous()
    ),
    "permute_0231-32x256x56x56": Row(
        "transpose",
        {"shape": [32, 256, 56, 56], "axes": [0, 2, 3, 1], "dtype": "float16"},
        lambda x: x.permute(0, 2, 3, 1).contiguous(),
    ),
    **_product_rows(),
    "depthwise-32x56x56x128": Row(
        "conv2d",
        {**_IMAGES, "filters": 128, "groups": 128, "layout": "NHWC", "dtype": "float16"},
        _depthwise,
        _channels_last,
    ),
    "average_pool-32x56x56x128": Row(
        "pool2d", {**_IMAGES, "kind": "average", "layout": "NHWC", "dtype": "float16"}, _pool, _channels_last
    ),
}


ODD_ROWS: dict[str, Row] = {n: Row(r.operator, r.parameters, r.peer, reads=r.reads) for n, r in GPU_ROWS.items()}


def run(options: Options) -> Result:
    """Tune and time every row whose name matches."""
    return measured({**ROWS, **ODD_ROWS}, options, _judged, trials=TRIALS)


def _judged(table: Table) -> Result:
    summary = _summary(table.rows, table.tuned)
    return table.result(summary, _passed(summary))


def _summary(table: list[dict[str, object]], tuned: Tuned) -> dict[str, object]:
    """Rows that failed count as ratio 0; rows timed without peers have none."""
    ratios = {str(r["row"]): float(str(r.get("ratio", 0.0))) for r in table if r.get("ratio", 0.0) is not None}
    bars = {str(r["row"]): float(str(r.get("bar", 0.97))) for r in table}
    large = [r for r in table if "bytes" in r and int(str(r["bytes"])) >= _LARGE_BYTES]
    shares = {str(r["row"]): float(str(r["fraction_of_limit"])) for r in large}
    slow = [n for n, share in shares.items() if share < (_ODD_SHARE if n in ODD_ROWS else _SHARE)]
    return {
        "geomean_ratio": geometric_mean([v for n, v in ratios.items() if n not in ODD_ROWS]),
        "odd_geomean_ratio": geometric_mean([v for n, v in ratios.items() if n in ODD_ROWS]),
        "min_ratio": min(ratios.values(), default=None),
        "rows": len(table),
        "below_one": [n for n, v in ratios.items() if v < 1.0],
        "below_bar": [n for n, v in ratios.items() if v < bars[n]],
        "large_rows_under_their_share": slow,
        **against_summary(table),
        "tuning_s": tuned.seconds,
        "timing_share": tuned.timing_share,
    }


def _passed(summary: Mapping[str, object]) -> bool:
    geomean = summary["geomean_ratio"]
    seconds = _TUNING_SECONDS * int(str(summary["rows"]))
    tuned = float(str(summary["tuning_s"])) < seconds and float(str(summary["timing_share"])) >= 0.6
    tuned &= reaches_against_bar(summary)
    lists = ("below_bar", "large_rows_under_their_share")
    return tuned and (geomean is None or (float(str(geomean)) >= 1.2 and not any(summary[name] for name in lists)))
