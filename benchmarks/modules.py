"""Single operators, patterns of a few operators and networks in float32, most of them in training mode without
gradients, by ``torch.compile(backend="tilewright")`` against eager and torch.compile on one NVIDIA GPU.

Rows, settings and the way of timing are those of ``models``. Flags of torch are as it starts: convolutions may round to
TF32, products may not. ``share``: which part of the device time our kernels take. Bars: all right, a share of at least
a half in nine of ten rows, and faster than the fastest peer in most.
"""

from collections.abc import Callable
from importlib import import_module

import torch
from torch import nn
from torch.nn import functional

from benchmarks.gpu_table import geometric_mean
from benchmarks.models import Model, measured_row
from benchmarks.suite import Options, Result, kept_result
from benchmarks.torch_peers import peer_options
from tilewright.runtime.devices import open_device

Shape = tuple[int, ...]
_LEAST_SHARE, _SHARES = 0.5, 0.9


class Of(nn.Module):  # type: ignore[misc]
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        return self.function(*x)


class After(nn.Module):  # type: ignore[misc]
    """A module, and a function of what it gives."""

    def __init__(self, module: nn.Module, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.module(x))


def _of(make: Callable[[], nn.Module], *shapes: Shape) -> Model:
    def made() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        return make().cuda(), tuple(torch.randn(shape, device="cuda") for shape in shapes)

    return Model(made)


def _function(function: Callable[..., torch.Tensor], *shapes: Shape) -> Model:
    return _of(lambda: Of(function), *shapes)


def _network(name: str, batch: int) -> Model:
    return _of(lambda: getattr(import_module("torchvision").models, name)(), (batch, 3, 224, 224))


def _log_sum_exp(y: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(functional.mish(y) * 2, 1, keepdim=True)


def _exclusive_sum(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((torch.zeros_like(x[:, :1]), torch.cumsum(x, 1)[:, :-1]), 1)


MODULES: dict[str, Model] = {
    "matmul": _function(torch.matmul, (2048, 2048), (2048, 2048)),
    "matmul-tall": _function(torch.matmul, (32768, 32), (32, 512)),
    "bmm": _function(torch.matmul, (64, 256, 512), (64, 512, 128)),
    "bmm-few-rows": _function(torch.matmul, (2048, 4, 64), (2048, 64, 512)),
    "bmm-outer": _function(torch.matmul, (64, 512, 1), (64, 1, 1024)),
    "matmul-large-k": _function(torch.matmul, (256, 131072), (131072, 256)),
    "matmul-transposed": _function(lambda a, b: torch.matmul(a.T, b.T), (4096, 1024), (2048, 4096)),
    "matmul-symmetric": _function(lambda a: torch.matmul(a, a.T), (4096, 4096)),
    "matmul-triangular": _function(
        lambda a, b: torch.tril(torch.matmul(a.tril(), b.tril())), (4096, 4096), (4096, 4096)
    ),
    "matmul-diagonal": _function(lambda d, b: torch.diag(d) @ b, (4096,), (4096, 4096)),
    "einsum-four": _function(lambda a, b: torch.einsum("bijl,lk->bijk", a, b), (8, 256, 512, 256), (256, 768)),
    "matvec": _function(torch.matmul, (2048, 65536), (65536, 1)),
    "softmax": _of(lambda: nn.Softmax(dim=1), (1024, 16384)),
    "gelu": _of(nn.GELU, (4096, 8192)),
    "log_softmax": _of(lambda: nn.LogSoftmax(dim=1), (4096, 16384)),
    "hardswish": _of(nn.Hardswish, (4096, 16384)),
    "rms_norm": _function(lambda x: x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt(), (32, 64, 256, 256)),
    "norm-frobenius": _function(lambda x: x / torch.norm(x, p="fro"), (32, 64, 256, 256)),
    "norm-rows": _function(lambda x: x / x.abs().mean(1, keepdim=True), (8192, 32768)),
    "mean": _function(lambda x: x.mean(1), (128, 2048, 1023)),
    "product": _function(lambda x: x.prod(1), (64, 2048, 1024)),
    "amax": _function(lambda x: x.amax(2), (64, 2048, 1024)),
    "cumsum": _function(lambda x: torch.cumsum(x, 1), (4096, 4096)),
    "cumsum-columns": _function(lambda x: torch.cumsum(x, 0), (4096, 4096)),
    "cumprod": _function(lambda x: torch.cumprod(x, 1), (4096, 4096)),
    "cumsum-masked": _function(lambda x, m: torch.cumsum(x * (m > 0), 1), (4096, 4096), (4096, 4096)),
    "cumsum-exclusive": _function(_exclusive_sum, (4096, 4096)),
    "cumsum-reverse": _function(lambda x: x.flip(1).cumsum(1).flip(1), (4096, 4096)),
    "argmax": _function(lambda x: torch.argmax(x, 1), (64, 512, 1024)),
    "argmin-middle": _function(lambda x: torch.argmin(x, 1), (61, 509, 1021)),
    "softmax-first": _function(lambda x: torch.softmax(x, 0), (4099, 1031)),
    "batch_norm": _of(lambda: nn.BatchNorm2d(64), (16, 64, 256, 256)),
    "instance_norm": _of(lambda: nn.InstanceNorm2d(64), (16, 64, 256, 256)),
    "layer_norm": _of(lambda: nn.LayerNorm((64, 128, 128)), (16, 64, 128, 128)),
    "group_norm": _of(lambda: nn.GroupNorm(8, 64), (16, 64, 128, 128)),
    "max_pool": _of(lambda: nn.MaxPool2d(4, 1, 1), (16, 32, 256, 256)),
    "avg_pool_3d": _of(lambda: nn.AvgPool3d(3, 2, 1), (8, 32, 64, 64, 64)),
    "triplet": _function(functional.triplet_margin_loss, (32768, 4096), (32768, 4096), (32768, 4096)),
    "kl_div": _function(
        lambda x, y: functional.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
        (8192, 8192),
        (8192, 8192),
    ),
    "mse": _function(functional.mse_loss, (16384, 8192), (16384, 8192)),
    "cosine": _function(lambda x, y: (1 - functional.cosine_similarity(x, y)).mean(), (16384, 4096), (16384, 4096)),
    "cross_entropy": _function(lambda x, y: functional.cross_entropy(x, y.argmax(1)), (16384, 1024), (16384, 16)),
    "smooth_l1": _function(functional.smooth_l1_loss, (4096, 2048), (4096, 2048)),
    "conv2d": _of(lambda: nn.Conv2d(64, 128, 3, padding=1), (16, 64, 128, 128)),
    "conv2d-5x7": _of(lambda: nn.Conv2d(32, 64, (5, 7)), (8, 32, 128, 128)),
    "conv3d": _of(lambda: nn.Conv3d(16, 64, 3), (8, 16, 32, 64, 64)),
    "conv1d-dilated": _of(lambda: nn.Conv1d(64, 128, 3, stride=3, dilation=4), (32, 64, 65536)),
    "conv_transpose_1d": _of(lambda: nn.ConvTranspose1d(32, 64, 5, dilation=3), (16, 32, 32768)),
    "avg_pool_1d": _of(lambda: nn.AvgPool1d(8, 1, 4), (32, 64, 32768)),
    "max_pool_3d": _of(lambda: nn.MaxPool3d(3, 2, 1, dilation=3), (8, 32, 64, 64, 64)),
    "conv2d-asymmetric": _of(lambda: nn.Conv2d(32, 64, (5, 9), stride=(1, 2), padding=(2, 4)), (8, 32, 256, 128)),
    "conv2d-depthwise": _of(lambda: nn.Conv2d(128, 128, 3, padding=1, groups=128), (16, 128, 128, 128)),
    "conv2d-pointwise": _of(lambda: nn.Conv2d(64, 128, 1), (16, 64, 256, 256)),
    "conv2d-odd-groups": _of(lambda: nn.Conv2d(33, 66, 3, padding=1, groups=11), (16, 33, 127, 131)),
    "conv_transpose_3d": _of(
        lambda: nn.ConvTranspose3d(24, 40, (3, 5, 7), (1, 2, 3), (1, 2, 3), (0, 1, 2)), (4, 24, 13, 29, 31)
    ),
    "conv_transpose-dilated": _of(
        lambda: nn.ConvTranspose2d(32, 64, 3, stride=5, padding=1, dilation=2), (16, 32, 61, 127)
    ),
    "conv_transpose-clamp": _of(
        lambda: After(
            nn.ConvTranspose2d(64, 128, 3, stride=2, padding=1, output_padding=1),
            lambda y: torch.clamp(y * 2.0, 0, 1) / 2.0,
        ),
        (32, 64, 32, 32),
    ),
    "conv-batch_norm-relu": _of(
        lambda: nn.Sequential(nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU()), (32, 32, 128, 128)
    ),
    "conv_transpose_3d-norm-pool": _of(
        lambda: nn.Sequential(
            nn.ConvTranspose3d(16, 32, 3, stride=2, padding=1), nn.BatchNorm3d(32), nn.AvgPool3d(2), nn.AvgPool3d(2)
        ),
        (16, 16, 16, 32, 32),
    ),
    "conv3d-group_norm-mean": _of(
        lambda: After(nn.Sequential(nn.Conv3d(3, 24, 3), nn.GroupNorm(8, 24)), lambda y: y.mean((1, 2, 3, 4))),
        (16, 3, 24, 32, 32),
    ),
    "conv-instance_norm-divide": _of(
        lambda: After(nn.Sequential(nn.Conv2d(64, 128, 3), nn.InstanceNorm2d(128)), lambda y: y / 2.0),
        (16, 64, 128, 128),
    ),
    "conv-min-tanh-tanh": _of(
        lambda: After(nn.Conv2d(16, 64, 3), lambda y: torch.tanh(torch.tanh(y.amin(1, keepdim=True)))),
        (32, 16, 256, 256),
    ),
    "linear-swish-add-norm": _of(
        lambda: After(nn.Linear(1024, 4096), lambda y: functional.group_norm(torch.sigmoid(y) * y + 1.0, 64)),
        (8192, 1024),
    ),
    "linear-max_pool-sum": _of(
        lambda: After(nn.Linear(8192, 8192), lambda y: functional.max_pool1d(y[:, None], 2)[:, 0].sum(1) * 0.5),
        (512, 8192),
    ),
    "linear-logsumexp": _of(lambda: After(nn.Linear(1024, 1024), _log_sum_exp), (1024, 1024)),
    "linear-group_norm-hardtanh": _of(
        lambda: nn.Sequential(nn.Linear(1024, 2048), nn.GroupNorm(32, 2048), nn.Hardtanh(-2, 2)), (1024, 1024)
    ),
    "conv3d-least-softmax": _of(
        lambda: After(nn.Conv3d(3, 24, 3), lambda y: torch.softmax(torch.amin(y, 2), 1)), (16, 3, 24, 32, 32)
    ),
    "mlp": _of(
        lambda: nn.Sequential(
            nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1024)
        ),
        (128, 1024),
    ),
    "encoder_layer": _of(lambda: nn.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True), (8, 256, 512)),
    "lstm": _of(lambda: After(nn.LSTM(256, 256, 2, batch_first=True), lambda y: y[0][:, -1]), (16, 64, 256)),
    "resnet18": _network("resnet18", 8),
    "vgg16": _network("vgg16", 4),
    "densenet121": _network("densenet121", 4),
    "mobilenet_v2": _network("mobilenet_v2", 8),
    "squeezenet1_1": _network("squeezenet1_1", 8),
    "efficientnet_b0": _network("efficientnet_b0", 8),
    "vit_b_32": _network("vit_b_32", 4),
}


def run(options: Options) -> Result:
    """Compile, compare and time every module whose name matches."""
    torch.backends.cudnn.benchmark = True
    rows = (measured_row(name, model, options) for name, model in options.chosen(MODULES).items())
    return kept_result(rows, _judged, options)


def _judged(rows: list[dict[str, object]]) -> Result:
    ratios = [float(str(r.get("ratio") or 0.0)) for r in rows]
    shares = [_share(r) for r in rows]
    right = [not r.get("wrong") and "error" not in r for r in rows]
    summary = {
        "geomean_ratio": geometric_mean([ratio for ratio in ratios if ratio]),
        "min_ratio": min(ratios, default=None),
        "faster": sum(ratio > 1.0 for ratio in ratios),
        "mostly_ours": sum(share >= _LEAST_SHARE for share in shares),
        "right": sum(right),
        "rows": len(rows),
    }
    passed = all(right) and sum(s >= _LEAST_SHARE for s in shares) >= _SHARES * len(rows)
    passed = passed and 2 * sum(ratio > 1.0 for ratio in ratios) > len(rows)
    device = open_device("cuda").info
    return Result(tuple(rows), summary, passed, {"peers": peer_options()}, {"name": device.name, **device.hardware})


def _share(row: dict[str, object]) -> float:
    """Return the part of the device time of a row that our kernels take."""
    ours, others = (float(str(row.get(name) or 0.0)) for name in ("own_us", "torch_us"))
    return ours / (ours + others) if ours else 0.0
