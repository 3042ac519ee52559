"""Whole models by ``torch.compile(backend="tilewright")`` against eager and torch.compile on one NVIDIA GPU, float16.

All sides run by graph replay, interleaved, on the same inputs, cuDNN with its fastest algorithms. Beside it stands the
wall time of a call with Python.
``trials``: how many trials tune a model, dealt out by a service in this process; 0 measures default schedules. Every
model is compared with eager in float64 terms. The time of our kernels, by class and generic, and of what torch computes
is taken from a profile. Bars: the geometric mean of (best peer / ours) of all but ``mlp`` and ``llama-decode`` at least
1.15 and none under 0.95; ``llama-decode`` 1.1, ``mlp`` 2.0.

Settings: ``peers=eager`` leaves compiled peers out, ``peers=default`` max-autotune, which takes minutes a model.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.gpu_table import geometric_mean
from benchmarks.suite import Options, Result
from benchmarks.torch_peers import Call, interleaved, middle, peer_options
from tilewright.core.budget import Budget
from tilewright.core.schedule import Schedule
from tilewright.graph.program import Program
from tilewright.runtime.cuda.kernel import CudaKernel
from tilewright.runtime.devices import open_device
from tilewright.schedule.defaults import has_class
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.views import JobSpec, TaskSpec
from tilewright.torch_backend import backend
from tilewright.torch_backend.compiled import CompiledShape
from tilewright.torch_backend.options import Options as BackendOptions

ROUNDS = 11
REPLAY_SECONDS = 0.02
WALL_CALLS = 50
_LEAST_MEAN, _LEAST = 1.15, 0.95
_APART: Mapping[str, float] = {"mlp": 2.0, "llama-decode": 1.1}
_EAGER, _AUTOTUNE = "torch eager", "torch.compile max-autotune"


@dataclass(frozen=True)
class Model:
    """``make`` gives a module on the GPU and its inputs."""

    make: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]


def _images(batch: int, side: int = 224, channels: int = 3) -> tuple[torch.Tensor, ...]:
    image = torch.randn(batch, channels, side, side, device="cuda", dtype=torch.float16)
    return (image.contiguous(memory_format=torch.channels_last),)


def _vision(name: str, batch: int) -> Model:
    def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        model = getattr(import_module("torchvision").models, name)(weights=None)
        return _halved(model, channels_last=True), _images(batch)

    return Model(make)


def _halved(model: nn.Module, channels_last: bool = False) -> nn.Module:
    ready = model.eval().cuda().half()
    return ready.to(memory_format=torch.channels_last) if channels_last else ready


def _bert() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    transformers = import_module("transformers")
    model = transformers.BertModel(transformers.BertConfig(return_dict=False), add_pooling_layer=False)
    return _halved(model), (torch.randint(0, 30_000, (8, 128), device="cuda"),)


class ResidualBlock(nn.Module):  # type: ignore[misc]
    """A block of a U-Net: group norm, SiLU and a convolution, twice."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            y = convolution(functional.silu(norm(y)))
        return x + y


class LlamaBlock(nn.Module):  # type: ignore[misc]
    """A decoder layer of 32 heads of 128 with eight groups of keys; ``cached`` keys are given for decoding."""

    def __init__(self, width: int = 4096, heads: int = 32, groups: int = 8, hidden: int = 14_336) -> None:
        super().__init__()
        self.heads, self.groups, self.depth = heads, groups, width // heads
        self.before, self.behind = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        kept = groups * self.depth
        self.q, self.k, self.v = (nn.Linear(width, n, bias=False) for n in (width, kept, kept))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: torch.Tensor | None = None,
        values: torch.Tensor | None = None,
    ) -> torch.Tensor:
        rows = x.shape[1]
        y = self.before(x)
        q, k, v = (
            f(y).view(1, rows, h, self.depth).transpose(1, 2)
            for f, h in ((self.q, self.heads), (self.k, self.groups), (self.v, self.groups))
        )
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        if keys is not None and values is not None:
            k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=keys is None, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).reshape(1, rows, -1))
        y = self.behind(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def _llama(rows: int, cached: int) -> Model:
    def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        def data(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device="cuda", dtype=torch.float16)

        inputs = (data(1, rows, 4096), data(rows, 128), data(rows, 128))
        kept = (data(1, 8, cached, 128), data(1, 8, cached, 128)) if cached else ()
        return _halved(LlamaBlock()), (*inputs, *kept)

    return Model(make)


def _layers(widths: tuple[int, ...], rows: int) -> Model:
    def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        layers: list[nn.Module] = []
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        inputs = torch.randn(rows, widths[0], device="cuda", dtype=torch.float16)
        return _halved(nn.Sequential(*layers)), (inputs,)

    return Model(make)


MODELS: Mapping[str, Model] = {
    "resnet50-1": _vision("resnet50", 1),
    "resnet50-32": _vision("resnet50", 32),
    "mobilenet_v2-32": _vision("mobilenet_v2", 32),
    "vit_b_16-8": _vision("vit_b_16", 8),
    "bert-8x128": Model(_bert),
    "convnext_tiny-32": _vision("convnext_tiny", 32),
    "unet-2x320x64x64": Model(lambda: (_halved(ResidualBlock(320), channels_last=True), _images(2, 64, 320))),
    "llama-2048": _llama(2048, 0),
    "llama-decode": _llama(1, 2048),
    "mlp": _layers((128, 128, 128, 128), 32),
    "dlrm": _layers((512, 1024, 1024, 512, 256), 2048),
}


def run(options: Options) -> Result:
    """Compile, compare and time every model whose name matches."""
    torch.backends.cudnn.benchmark = True
    rows = [measured_row(name, model, options) for name, model in MODELS.items() if fnmatch(name, options.rows)]
    ratios = {str(r["row"]): float(str(r.get("ratio") or 0.0)) for r in rows}
    whole = [v for name, v in ratios.items() if name not in _APART]
    below = [n for n, v in ratios.items() if v < _APART.get(n, _LEAST)]
    summary = {"geomean_ratio": geometric_mean(whole), "min_ratio": min(whole, default=None), "below_bar": below}
    mean = geometric_mean(whole)
    passed = not below and (mean is None or mean >= _LEAST_MEAN)
    device = open_device("cuda").info
    return Result(tuple(rows), summary, passed, {"peers": peer_options()}, {"name": device.name, **device.hardware})


def measured_row(name: str, model: Model, options: Options) -> dict[str, object]:
    """Compile one model, compare it with eager, and time it beside its peers."""
    torch.manual_seed(options.seed)
    torch._dynamo.reset()
    row: dict[str, object] = {"row": name}
    try:
        module, inputs = model.make()
        began = time.perf_counter()
        ours, shapes = _compiled(module, inputs)
        row["compiled_s"] = time.perf_counter() - began
        if options.trials:
            row |= _tune(shapes, options)
        row |= _about(shapes, ours, inputs)
        calls: dict[str, Call] = {"ours": lambda x: ours(*x), _EAGER: lambda x: module(*x)}
        kinds = options.extra.get("peers", "all")
        for peer, settings in peer_options().items():
            if peer == _EAGER or kinds == "eager" or (peer == _AUTOTUNE and kinds == "default"):
                continue
            compiled = torch.compile(module, options=dict(settings), dynamic=False)
            calls[peer] = lambda x, f=compiled: f(*x)  # type: ignore[misc]
        taken = interleaved(calls, [inputs], rounds=ROUNDS, seconds=REPLAY_SECONDS, rest_seconds=0.02)
        times = {peer: middle(t) for peer, t in taken.items()}
        row["us"] = {peer: t if isinstance(t, str) else 1e6 * median(t) for peer, t in taken.items()}
        others = [t for peer, t in times.items() if peer != "ours" and t is not None]
        if times["ours"] is not None and others:
            row["ratio"] = min(others) / times["ours"]
        row["wall_us"] = {peer: _wall(call, inputs) for peer, call in calls.items()}
    except Exception as error:  # one model must not cost the others
        row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    print(row, flush=True)
    return row


def _compiled(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[Any, list[CompiledShape]]:
    """The module by our back end, compiled and compared with eager, and its programs."""
    before = set(backend._graphs)
    chosen = BackendOptions(wait=True)
    compiled = torch.compile(module, backend=lambda m, x: backend.compile_with(m, x, chosen), dynamic=False)
    with torch.no_grad():
        for _ in range(3):
            compiled(*inputs)
    return compiled, [shape for graph in set(backend._graphs) - before for shape in graph.shapes()]


def _programs(shapes: list[CompiledShape]) -> Iterator[Program]:
    return (shape._bound.program for shape in shapes if shape._bound is not None)


def _tune(shapes: list[CompiledShape], options: Options) -> dict[str, object]:
    """Tune the workloads of class kernels, and exchange the kernels."""
    target = open_device("cuda").info.target
    tasks = {key: task for program in _programs(shapes) for key, task in program.tasks.items()}
    tasks = {key: task for key, task in tasks.items() if has_class(task.workload, target)}
    weighted = tuple(TaskSpec(task.workload, weight=task.count) for task in tasks.values())
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        with Service.open(Settings(database_url=f"sqlite:///{Path(folder) / 'models.sqlite3'}")) as service:
            spec = JobSpec(weighted, Budget(max(1, (options.trials or 0) // max(len(tasks), 1))), target="cuda")
            job, _ = service.submit(spec)
            after = 0
            while not (view := service.job(job.id)).state.is_final:
                for event in service.events(job.id, after=after, timeout_seconds=5.0):
                    after = event.id
    found: dict[str, Schedule] = {
        key: task.best.schedule for key, task in zip(tasks, view.tasks, strict=True) if task.best is not None
    }
    for shape in shapes:
        shape.swap(found)
    return {"tasks": len(tasks), "tuned": len(found), "tuning_s": time.perf_counter() - began}


def _about(shapes: list[CompiledShape], ours: Any, inputs: tuple[torch.Tensor, ...]) -> dict[str, object]:
    """What became of the model: kernels, foreign calls, reports, and the share of time in ours."""
    with torch.no_grad():
        ours(*inputs)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            ours(*inputs)
            torch.cuda.synchronize()
    kernels = [k for shape in shapes for k in shape._kernels.values() if isinstance(k, CudaKernel)]
    own = {name for kernel in kernels for name in kernel.functions}
    by_name: dict[bool, float] = {True: 0.0, False: 0.0}
    others: dict[str, float] = {}
    for event in profile.events():
        by_name[event.name in own] += event.device_time
        if event.name not in own:
            others[event.name[:60]] = others.get(event.name[:60], 0.0) + event.device_time
    return {
        "states": [shape.status.state for shape in shapes],
        "reasons": [shape.status.reason for shape in shapes if shape.status.reason],
        "kernels": sum(shape.status.kernels for shape in shapes),
        "class_kernels": sum(shape.status.class_kernels for shape in shapes),
        "by_torch": sum(len(shape._bound._replaced) for shape in shapes if shape._bound is not None),
        "foreign": sorted({name for shape in shapes for name in shape.status.foreign}),
        "wrong": [(r.operators, r.error, r.allowed) for shape in shapes for r in shape.status.reports],
        "own_us": by_name[True],
        "torch_us": by_name[False],
        "torch_kernels": dict(sorted(others.items(), key=lambda item: -item[1])[:6]),
    }


def _wall(call: Call, inputs: tuple[torch.Tensor, ...]) -> float:
    """Microseconds of a call, Python included."""
    with torch.no_grad():
        for _ in range(5):
            call(inputs)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(WALL_CALLS):
            call(inputs)
        torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - began) / WALL_CALLS
