"""Tuned kernels against PyTorch on one NVIDIA GPU: what is bound by memory, cold caches, random data.

The table is tuned first, as a job of the service. Then ours and every peer run interleaved in one process on the same
rotating buffers, all by graph replay, outputs compared. Bars: geometric mean of (best peer / ours) at least 1.2 and no
row under 0.97; rows that move 64 MB or more at 90 % of the measured copy bandwidth (of the read bandwidth where hardly
anything is written); products of 4096x4096 with up to 64 rows at least 1.35; the table tuned in under ten minutes, of
which the device is timing 60 %.

Settings: ``folder`` keeps the database there; ``tuned=FILE`` takes the schedules from an earlier result instead of
tuning; ``against=FILE`` also times the schedules of another result and says whether they are equally fast;
``tune_only=1`` stops after tuning; ``peers=eager`` leaves compiled peers out, ``peers=none`` all.
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.suite import Options, Result
from benchmarks.torch_peers import Call, Tensors, interleaved, peers
from tilewright.core.budget import Budget
from tilewright.core.schedule import Schedule
from tilewright.runtime.devices import open_device
from tilewright.runtime.module import load_module
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.targets import Place, measured_on
from tilewright.service.views import JobSpec, TaskSpec
from tilewright.te.cost import minimum_bytes
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

_TRIALS = 64
_ROUNDS = 11
_REPLAY_SECONDS = 0.005
_COLD_BYTES = 130_000_000
_LARGE_BYTES = 64_000_000
_SAME = 0.02
"""Two kernels this close, beyond the spread of their times, are equally fast."""


@dataclass(frozen=True)
class Row:
    """``peer``: the same in PyTorch. ``prepare``: our inputs as PyTorch likes them best, outside of what is timed.
    ``bar``: least (best peer / ours). ``reads``: hardly anything is written."""

    operator: str
    parameters: Mapping[str, Any]
    peer: Callable[..., object]
    prepare: Callable[[Tensors], Tensors] = lambda tensors: tensors
    bar: float = 0.97
    reads: bool = False


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


def _product_rows() -> dict[str, Row]:
    """Few rows times the transposed weights of a linear layer."""
    found = {}
    for dtype in ("float16", "bfloat16"):
        for rows, outputs in (*((m, 4096) for m in (1, 4, 16, 32, 64)), *((m, 28672) for m in (1, 16, 64))):
            parameters = {"rows": rows, "inputs": 4096, "outputs": outputs, "bias": False, "dtype": dtype}
            bar = 1.35 if outputs == 4096 else 0.97
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


def run(options: Options) -> Result:
    """Tune and time every row whose name matches."""
    rows = {name: row for name, row in ROWS.items() if fnmatch(name, options.rows)}
    with ExitStack() as stack:
        folder = options.extra.get("folder") or stack.enter_context(tempfile.TemporaryDirectory())
        tuned = _tuned(rows, options, Path(folder))
    device = open_device("cuda")
    peaks = tuned.peaks or device.measure_peaks()
    others = _schedules(options.extra["against"]) if "against" in options.extra else {}
    table: list[dict[str, object]] = []
    if options.extra.get("tune_only") != "1":
        for name, row in rows.items():
            began = time.perf_counter()
            table.append(_row(name, row, tuned, others.get(name), peaks, options))
            print(f"{name}: {table[-1].get('ratio', table[-1].get('failed'))} in {time.perf_counter() - began:.1f} s")
    summary = _summary(table, tuned)
    about = {"name": device.info.name, **device.info.hardware, **peaks}
    versions = {"torch": torch.__version__, "cuda": str(torch.version.cuda), **tuned.toolchain}
    settings = {"rounds": _ROUNDS, "replay_seconds": _REPLAY_SECONDS, "cold_bytes": _COLD_BYTES, **options.extra}
    rows_out = table or [{"row": n, "schedule": s.to_json(), **tuned.about[n]} for n, s in tuned.schedules.items()]
    return Result(tuple(rows_out), summary, _passed(summary), settings, about, versions)


@dataclass(frozen=True)
class Tuned:
    """Winners by row, with what is known of their tuning. ``timing_share``: of the wall time, on the device."""

    schedules: Mapping[str, Schedule]
    about: Mapping[str, Mapping[str, object]]
    seconds: float
    timing_share: float
    peaks: Mapping[str, float]
    toolchain: Mapping[str, str]


def _tuned(rows: Mapping[str, Row], options: Options, folder: Path) -> Tuned:
    """Tune the rows as one job of a service of its own, or take what an earlier result has."""
    if "tuned" in options.extra:
        schedules = _schedules(options.extra["tuned"])
        document = json.loads(Path(options.extra["tuned"]).read_text())
        about = {r["row"]: {k: r[k] for k in ("trials", "tuning_s", "found_us") if k in r} for r in document["rows"]}
        summary = document["summary"]
        return Tuned(schedules, about, summary["tuning_s"], summary["timing_share"], {}, {})
    folder.mkdir(parents=True, exist_ok=True)
    tasks = tuple(TaskSpec(_workload(r), r.operator, r.parameters) for r in rows.values())
    spec = JobSpec(tasks, Budget(options.trials or _TRIALS), seed=options.seed, target="cuda", cache="cold")
    began = time.perf_counter()
    with Service.open(Settings(database_url=f"sqlite:///{folder / 'tuned.sqlite3'}")) as service:
        job, _ = service.submit(spec)
        after = 0
        while not (view := service.job(job.id)).state.is_final:
            for event in service.events(job.id, after=after, timeout_seconds=5.0):
                after = event.id
        seconds = time.perf_counter() - began
        if view.error is not None:
            print("the job says:", view.error)
        timing = sum(task.timing_seconds or 0.0 for task in view.tasks)
        device = next(d for d in service.devices() if d.info.key == view.device_key)
    best = {name: task.best for name, task in zip(rows, view.tasks, strict=True)}
    spent = {name: task for name, task in zip(rows, view.tasks, strict=True)}
    about = {
        name: {"trials": spent[name].trials, "found_us": 1e6 * b.seconds, "failures": dict(spent[name].failures)}
        for name, b in best.items()
        if b is not None
    }
    toolchain = dict(measured_on(Place("cuda")).toolchain.components)
    schedules = {name: b.schedule for name, b in best.items() if b is not None}
    return Tuned(schedules, about, seconds, timing / seconds, dict(device.info.measured), toolchain)


def _schedules(path: str) -> dict[str, Schedule]:
    rows = json.loads(Path(path).read_text())["rows"]
    return {r["row"]: Schedule.from_json(r["schedule"]) for r in rows if "schedule" in r}


def _workload(row: Row) -> Workload:
    return OPERATORS[row.operator].workload(row.parameters)


def _row(
    name: str,
    row: Row,
    tuned: Tuned,
    other: Schedule | None,
    peaks: Mapping[str, float],
    options: Options,
) -> dict[str, object]:
    if name not in tuned.schedules:
        return {"row": name, "failed": "no schedule could be timed"}
    workload = _workload(row)
    total = minimum_bytes(workload)
    sets = _sets(workload, total, options.seed)
    prepared = {id(s): row.prepare(s) for s in sets}
    calls: dict[str, Call] = {"ours": _ours(workload, tuned.schedules[name])}
    if other is not None:
        calls["twin"] = _ours(workload, other)
    theirs: dict[str, Call] = {}
    for peer, call in peers(row.peer).items():
        if options.extra.get("peers") != "eager" or peer == "torch eager":
            theirs[peer] = lambda s, c=call: c(prepared[id(s)])  # type: ignore[misc]
    wrong = _difference(calls["ours"](sets[0]), theirs["torch eager"](sets[0]))
    if options.extra.get("peers") != "none":
        calls |= theirs
    times = interleaved(calls, sets, rounds=_ROUNDS, seconds=_REPLAY_SECONDS)
    figures = _figures(row, total, times, peaks, wrong)
    return {"row": name, **figures, **tuned.about[name], "schedule": tuned.schedules[name].to_json()}


def _figures(
    row: Row, total: int, times: Mapping[str, list[float] | str], peaks: Mapping[str, float], wrong: float
) -> dict[str, object]:
    mine = times["ours"]
    if isinstance(mine, str):
        return {"failed": mine}
    others = {n: t for n, t in times.items() if n not in ("ours", "twin")}
    timed = {n: median(t) for n, t in others.items() if not isinstance(t, str)}
    best = min(timed, key=lambda n: timed[n], default=None)
    peak = peaks["read_bytes_per_second"] if row.reads else peaks["copy_bytes_per_second"]
    figures: dict[str, object] = {
        "ours_us": 1e6 * median(mine),
        "peers_us": {n: 1e6 * median(t) if not isinstance(t, str) else t for n, t in others.items()},
        "best_peer": best,
        "ratio": None if best is None else timed[best] / median(mine),
        "bar": row.bar,
        "limit_us": 1e6 * total / peak,
        "limit_by": "bytes",
        "bytes": total,
        "fraction_of_limit": total / peak / median(mine),
        "spread": _spread(mine),
        "difference": wrong,
    }
    again = times.get("twin", "")
    if not isinstance(again, str):
        twin = median(again)
        band = _SAME + max(_spread(mine), _spread(again))
        figures |= {"twin_us": 1e6 * twin, "twin_ratio": twin / median(mine), "band": band}
        figures["same"] = abs(twin / median(mine) - 1) <= band
    return figures


def _spread(times: list[float]) -> float:
    """Relative distance between the quartiles."""
    low, high = np.percentile(np.asarray(times, dtype=np.float64), [25, 75])
    return float((high - low) / np.median(np.asarray(times, dtype=np.float64)))


def _sets(workload: Workload, total: int, seed: int) -> list[Tensors]:
    """So many sets of the inputs that one round of launches goes through twice the last-level cache."""
    arrays = random_inputs(workload, seed)
    first = tuple(_tensor(arrays[b.name]) for b in workload.inputs)
    count = max(2, -(-_COLD_BYTES // total))
    return [first, *(tuple(t.clone() for t in first) for _ in range(count - 1))]


def _tensor(array: Any) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def _ours(workload: Workload, schedule: Schedule) -> Call:
    module = load_module(workload, schedule, open_device("cuda").info.target)
    return lambda inputs: module(*inputs)


def _difference(ours: Any, theirs: Any) -> float:
    """The largest difference of any output element, relative to the largest element of that output."""
    pairs = zip(
        ours if isinstance(ours, tuple) else (ours,), theirs if isinstance(theirs, tuple) else (theirs,), strict=True
    )
    worst = 0.0
    for a, b in pairs:
        x, y = a.double().reshape(-1), b.contiguous().double().reshape(-1)
        worst = max(worst, float((x - y).abs().max() / y.abs().max().clamp(min=1e-30)))
    return worst


def _summary(table: list[dict[str, object]], tuned: Tuned) -> dict[str, object]:
    """Rows that failed count as ratio 0; rows timed without peers have none."""
    ratios = {str(r["row"]): float(str(r.get("ratio", 0.0))) for r in table if r.get("ratio", 0.0) is not None}
    bars = {str(r["row"]): float(str(r.get("bar", 0.97))) for r in table}
    large = [r for r in table if "bytes" in r and int(str(r["bytes"])) >= _LARGE_BYTES]
    slow = [str(r["row"]) for r in large if float(str(r["fraction_of_limit"])) < 0.9]
    positive = [max(v, 1e-9) for v in ratios.values()]
    return {
        "geomean_ratio": float(np.exp(np.mean(np.log(positive)))) if positive else None,
        "min_ratio": min(ratios.values(), default=None),
        "rows": len(table),
        "below_one": [n for n, v in ratios.items() if v < 1.0],
        "below_bar": [n for n, v in ratios.items() if v < bars[n]],
        "large_rows_under_90_percent": slow,
        "twins_apart": [str(r["row"]) for r in table if r.get("same") is False],
        "tuning_s": tuned.seconds,
        "timing_share": tuned.timing_share,
    }


def _passed(summary: Mapping[str, object]) -> bool:
    geomean = summary["geomean_ratio"]
    tuned = float(str(summary["tuning_s"])) < 600 and float(str(summary["timing_share"])) >= 0.6
    lists = ("below_bar", "large_rows_under_90_percent", "twins_apart")
    return tuned and (geomean is None or (float(str(geomean)) >= 1.2 and not any(summary[name] for name in lists)))
