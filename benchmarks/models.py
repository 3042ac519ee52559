"""Whole models by ``torch.compile(backend="tilewright")`` against eager and torch.compile on one NVIDIA GPU, float16.

All sides run by graph replay, interleaved, on the same inputs, cuDNN with its fastest algorithms. Beside it stands the
wall time of a call with Python.
``trials``: how many trials tune a model, dealt out by a service in this process; 0 measures default schedules. Every
model is compared with eager in float64 terms. The time of our kernels, by class and generic, and of what torch computes
is taken from a profile. Bars: the geometric mean of (best peer / ours) of all but ``mlp`` and ``llama-decode`` at least
1.15 and none under 0.95; ``llama-decode`` 1.1, ``mlp`` 2.0.

Settings: ``peers=eager`` leaves compiled peers out, ``peers=default`` max-autotune, which takes minutes a model.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.compiled_models import about, compile_model, tune
from benchmarks.gpu_table import geometric_mean
from benchmarks.suite import Options, Result, kept_result
from benchmarks.torch_peers import Call, interleaved, middle, peer_options
from tilewright.runtime.cuda.kernel import CudaKernel
from tilewright.runtime.devices import open_device
from tilewright.torch_backend.compiled import CompiledShape

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
    rows = (measured_row(name, model, options) for name, model in options.chosen(MODELS).items())
    return kept_result(rows, _judged, options)


def _judged(rows: list[dict[str, object]]) -> Result:
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
        ours, shapes = compile_model(module, inputs)
        row["compiled_s"] = time.perf_counter() - began
        if options.trials:
            row |= tune(shapes, options, open_device("cuda").info.target)
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


def _about(shapes: list[CompiledShape], ours: Any, inputs: tuple[torch.Tensor, ...]) -> dict[str, object]:
    """Return what became of the model: kernels, foreign calls, reports, and the share of time in ours."""
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
        **about(shapes),
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
