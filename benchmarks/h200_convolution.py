"""Tuned convolutions against cuDNN (torch eager, cudnn.benchmark on, channels_last) and torch.compile on an NVIDIA GPU:
short replays of a rested chip with cold caches, and long ones, in which it settles at the clock that its power allows.

Groups of rows, float16 with channels last but for ``t32``: ``r32`` and ``r1`` the 23 distinct layers of torchvision's
ResNet-50 for 32 images and for one, ``m32`` the depthwise and pointwise layers of MobileNetV2 for 32, ``x`` others,
``f`` with bias, residual and ReLU fused, ``t32`` layers of ResNet-50 for 32 images and of a U-Net in float32, where
both sides may round factors to TF32 and filters are K-major; ``n`` layers with channels first, which cuDNN takes as
they are, too; ``w`` gradients of layers towards their filters. Bars, short and sustained: ``r32`` to ``x`` together a
geometric mean of (best peer / ours) of at least 1.3 and no row under 1.0; ``f`` 1.3 and no row under 1.05; ``t32``
1.1 and no row under 1.0; ``n`` 1.3 and no row under 1.0; ``w`` 1.1 and no row under 1.0. Every row is found with 100
candidates in three minutes. Settings: those of ``gpu_table``, and ``sustained=0``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu_table import Row, Table, geometric_mean, measured
from benchmarks.h200_bars import MOST_TRIALS, Bars, bars_summary, reaches_bars
from benchmarks.suite import Options, Result
from benchmarks.torch_peers import Tensors
from benchmarks.weight_gradients import weight_gradient

_BARS: Bars = {
    "plain": ("rmx", 1.3, 1.0),
    "fused": ("f", 1.3, 1.05),
    "tf32": ("t", 1.1, 1.0),
    "channels_first": ("n", 1.3, 1.0),
    "weight_gradient": ("w", 1.1, 1.0),
}

_RESNET50 = (
    (224, 3, 64, 7, 2),
    *((56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (56, 256, 64, 1, 1)),
    *((56, 256, 128, 1, 1), (56, 128, 128, 3, 2), (28, 128, 512, 1, 1), (56, 256, 512, 1, 2), (28, 512, 128, 1, 1)),
    *((28, 128, 128, 3, 1), (28, 512, 256, 1, 1), (28, 256, 256, 3, 2), (14, 256, 1024, 1, 1), (28, 512, 1024, 1, 2)),
    *((14, 1024, 256, 1, 1), (14, 256, 256, 3, 1), (14, 1024, 512, 1, 1), (14, 512, 512, 3, 2), (7, 512, 2048, 1, 1)),
    *((14, 1024, 2048, 1, 2), (7, 2048, 512, 1, 1), (7, 512, 512, 3, 1)),
)
"""Pixels along a side of X, channels, filters, pixels along a side of the kernel, stride."""
_POINTWISE = (
    *((112, 32, 16), (112, 16, 96), (56, 96, 24), (56, 24, 144), (56, 144, 24), (28, 144, 32), (28, 32, 192)),
    *((28, 192, 32), (14, 192, 64), (14, 64, 384), (14, 384, 64), (14, 384, 96), (14, 96, 576), (14, 576, 96)),
    *((7, 576, 160), (7, 160, 960), (7, 960, 160), (7, 960, 320), (7, 320, 1280)),
)
"""Pixels along a side, channels, filters."""
_DEPTHWISE = (
    *((112, 32, 1), (112, 96, 2), (56, 144, 1), (56, 144, 2), (28, 192, 1), (28, 192, 2), (14, 384, 1)),
    *((14, 576, 1), (14, 576, 2), (7, 960, 1)),
)
"""Pixels along a side, channels, stride."""
_TF32 = tuple(_RESNET50[n] for n in (0, 2, 6, 7, 10, 12, 16, 18, 22))
_GRADIENTS = ((28, 128, 256, 3, 1), (56, 64, 64, 3, 1), (14, 256, 256, 3, 1), (56, 128, 128, 3, 2))
_FUSED = tuple(_RESNET50[n] for n in (2, 3, 7, 10, 12, 13, 14, 16, 19, 22))


def _image(x: torch.Tensor, dims: int) -> torch.Tensor:
    return x.reshape(*x.shape[: dims + 1], -1).movedim(-1, 1)


def _filters(w: torch.Tensor, dims: int, grouped: bool) -> torch.Tensor:
    flat = w.reshape(*w.shape[: dims + 1], -1) if grouped else w
    formats = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}
    return flat.movedim((-1, -2), (0, 1)).contiguous(memory_format=formats[dims])


def _peer(dims: int, **how: int) -> Callable[..., torch.Tensor]:
    function = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[dims]

    def convolution(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return function(x, w, None, **how).movedim(1, -1)

    return convolution


def _row(batch: int, side: int, channels: int, filters: int, kernel: int, stride: int, groups: int = 1) -> Row:
    padding = kernel // 2
    parameters = {
        **{"batch": batch, "channels": channels, "height": side, "width": side, "filters": filters, "groups": groups},
        **{"kernel_h": kernel, "kernel_w": kernel, "stride": stride, "padding": padding},
        **{"layout": "NHWC", "dtype": "float16"},
    }
    return Row("conv2d", parameters, _peer(2, stride=stride, padding=padding, groups=groups), _prepared(2, groups))


def _prepared(dims: int, groups: int) -> Callable[[Tensors], Tensors]:
    def prepare(tensors: Tensors) -> Tensors:
        x, w, *others = tensors
        rest = (t.flatten() if t.dim() < dims + 2 else _image(t, dims) for t in others)
        return (_image(x, dims), _filters(w, dims, groups > 1), *rest)

    return prepare


def _tf32(batch: int, side: int, channels: int, filters: int, kernel: int, stride: int, groups: int = 1) -> Row:
    plain = _row(batch, side, channels, filters, kernel, stride, groups)

    def prepare(tensors: Tensors) -> Tensors:
        x, w = tensors
        return _image(x, 2), (w.flatten(0, 1) if groups > 1 else w).permute(0, 3, 1, 2)

    parameters = {**plain.parameters, "dtype": "float32", "precision": "tf32", "filters_first": True}
    return Row("conv2d", parameters, plain.peer, prepare)


def _fused(side: int, channels: int, filters: int, kernel: int, stride: int) -> Row:
    plain = _row(32, side, channels, filters, kernel, stride)

    def peer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        y = functional.conv2d(x, w, b, stride=stride, padding=kernel // 2)
        return functional.relu(y + r).movedim(1, -1)

    parameters = {**plain.parameters, "bias": True, "residual": True, "activation": "relu"}
    return Row("conv2d", parameters, peer, plain.prepare)


def _volume(batch: int, depth: int, side: int, channels: int, filters: int, stride: int = 1) -> Row:
    """Return a layer of a network on volumes of ``depth`` slices."""
    parameters: dict[str, Any] = {"batch": batch, "channels": channels, "depth": depth, "filters": filters}
    parameters |= {"height": side, "width": side, "stride": stride}
    parameters |= {"kernel_d": 3, "kernel_h": 3, "kernel_w": 3, "padding": 1, "layout": "NDHWC", "dtype": "float16"}
    return Row("conv3d", parameters, _peer(3, stride=stride, padding=1), _prepared(3, 1))


def _transposed(batch: int, side: int, channels: int, filters: int, kernel: int, stride: int, padding: int = 1) -> Row:
    """Return a layer that multiplies height and width by the stride, about."""
    parameters: dict[str, Any] = {"batch": batch, "channels": channels, "height": side, "width": side}
    parameters |= {"filters": filters, "kernel_h": kernel, "kernel_w": kernel, "stride": stride, "padding": padding}
    parameters |= {"layout": "NHWC", "dtype": "float16"}

    def peer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.conv_transpose2d(x, w, stride=stride, padding=padding).movedim(1, -1)

    def prepare(tensors: Tensors) -> Tensors:
        x, w = tensors
        return _image(x, 2), w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)

    return Row("conv2d_transpose", parameters, peer, prepare)


def _few_filters() -> Row:
    """Return the last layer of a decoder of images."""
    return _row(1, 512, 128, 3, 3, 1)


def _audio() -> Row:
    """Return the first layer of a network on audio."""
    parameters: dict[str, Any] = {"batch": 8, "channels": 1, "length": 80_000, "filters": 512}
    parameters |= {"kernel": 10, "stride": 5, "layout": "NWC", "dtype": "float16"}
    return Row("conv1d", parameters, _peer(1, stride=5), _prepared(1, 1))


_EXTENTS = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
_KERNELS = {1: ("kernel",), 2: ("kernel_h", "kernel_w"), 3: ("kernel_d", "kernel_h", "kernel_w")}


def _channels_first(
    batch: int, image: tuple[int, ...], channels: int, filters: int, kernel: int, stride: int, **more: object
) -> Row:
    """``image``: its extents. ``more``: further parameters of the operator."""
    rank, transposed, padding = len(image), "transposed" in more, kernel // 2 if kernel % 2 else 0
    padding, groups = 1 if transposed else padding, int(str(more.get("groups", 1)))
    parameters: dict[str, Any] = {"batch": batch, "channels": channels, "filters": filters, "padding": padding}
    parameters |= dict(zip(_EXTENTS[rank], image, strict=True)) | dict.fromkeys(_KERNELS[rank], kernel)
    parameters |= {"stride": stride, "dtype": "float16", **{k: v for k, v in more.items() if k != "transposed"}}
    function = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[rank]
    if transposed:
        function = functional.conv_transpose2d
    fused = "residual" in more

    def peer(x: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        y = function(x, w, rest[0] if fused else None, stride=stride, padding=padding, groups=groups)
        return functional.relu(y + rest[1]) if fused else y

    def prepare(tensors: Tensors) -> Tensors:
        x, w, *rest = tensors
        sides = (channels, filters) if transposed else (filters, channels // groups)
        return x.reshape(batch, channels, *image), w.reshape(*sides, *(kernel,) * rank), *rest

    return Row("conv2d_transpose" if transposed else f"conv{rank}d", parameters, peer, prepare)


_TF32_FIRST = {"dtype": "float32", "precision": "tf32"}
_RESIDUAL = {"bias": True, "residual": True, "activation": "relu"}


def _name(side: int, channels: int, filters: int, kernel: int, stride: int) -> str:
    return f"{kernel}x{kernel}s{stride}-{side}x{side}-{channels}-{filters}"


ROWS: dict[str, Row] = {
    **{f"r{batch}-{_name(*layer)}": _row(batch, *layer) for batch in (32, 1) for layer in _RESNET50},
    **{f"m32-{_name(s, c, f, 1, 1)}": _row(32, s, c, f, 1, 1) for s, c, f in _POINTWISE},
    **{f"m32-depthwise-{_name(s, c, c, 3, stride)}": _row(32, s, c, c, 3, stride, c) for s, c, stride in _DEPTHWISE},
    "x-unet-3x3s1-64x64-320-320": _row(2, 64, 320, 320, 3, 1),
    "x-grouped32-3x3s1-28x28-512-512": _row(32, 28, 512, 512, 3, 1, 32),
    "x-3x3x3-16x56x56-64-64": _volume(2, 16, 56, 64, 64),
    "x-3x3x3-16x112x112-3-64": _volume(8, 16, 112, 3, 64),
    "x-3x3x3-64x64x64-32-32": _volume(1, 64, 64, 32, 32),
    "x-3x3s2-640x640-3-32": _row(16, 640, 3, 32, 3, 2),
    "x-transposed-4x4s2-14x14-256-128": _transposed(32, 14, 256, 128, 4, 2),
    "x-transposed-3x3s1-28x28-480-40": _transposed(16, 28, 480, 40, 3, 1),
    "x-transposed-3x3s2-32x32-512-256": _transposed(16, 32, 512, 256, 3, 2),
    "x-transposed-4x4s4-32x32-640-256": _transposed(1, 32, 640, 256, 4, 4, 0),
    "x-decoder-3x3s1-512x512-128-3": _few_filters(),
    "x-audio-10s5-80000-1-512": _audio(),
    "x-inception-5x5s1-35x35-48-64": _row(32, 35, 48, 64, 5, 1),
    "x-inception-3x3s1-35x35-96-96": _row(32, 35, 96, 96, 3, 1),
    "x-detection-3x3s1-75x75-256-64": _row(8, 75, 256, 64, 3, 1),
    "x-detection-3x3s1-124x124-256-80": _row(8, 124, 256, 80, 3, 1),
    "x-strided-3x3s2-128x128-32-64": _row(64, 128, 32, 64, 3, 2),
    "x-strided-3x3s2-112x112-24-96": _row(16, 112, 24, 96, 3, 2),
    "x-strided-3x3x3s2-64x64x64-32-64": _volume(4, 64, 64, 32, 64, 2),
    "x-regnet-3x3s1-28x28-288-288": _row(32, 28, 288, 288, 3, 1, 18),
    "x-regnet-3x3s1-14x14-208-208": _row(32, 14, 208, 208, 3, 1, 26),
    **{f"f-{_name(*layer)}": _fused(*layer) for layer in _FUSED},
    **{f"t32-{_name(*layer)}": _tf32(32, *layer) for layer in _TF32},
    "t32-unet-3x3s1-64x64-320-320": _tf32(2, 64, 320, 320, 3, 1),
    "t32-unet-3x3s1-256x256-64-64": _tf32(4, 256, 64, 64, 3, 1),
    "t32-grouped32-3x3s1-28x28-512-512": _tf32(32, 28, 512, 512, 3, 1, 32),
    "n16-3x3s1-56x56-128-128": _channels_first(16, (56, 56), 128, 128, 3, 1),
    "n16-3x3s1-56x56-128-128-residual": _channels_first(16, (56, 56), 128, 128, 3, 1, **_RESIDUAL),
    "n16-3x3s1-56x56-128-128-tf32": _channels_first(16, (56, 56), 128, 128, 3, 1, **_TF32_FIRST),
    "n32-7x7s2-224x224-3-64": _channels_first(32, (224, 224), 3, 64, 7, 2),
    "n32-3x3s1-14x14-512-512": _channels_first(32, (14, 14), 512, 512, 3, 1),
    "n32-1x1s2-56x56-256-512": _channels_first(32, (56, 56), 256, 512, 1, 2),
    "n32-16x16s16-224x224-3-768": _channels_first(32, (224, 224), 3, 768, 16, 16),
    "n1-3x3s1-64x64-320-320": _channels_first(1, (64, 64), 320, 320, 3, 1),
    "n8-3s1-4000-512-512": _channels_first(8, (4000,), 512, 512, 3, 1),
    "n2-3x3x3s1-16x56x56-64-64": _channels_first(2, (16, 56, 56), 64, 64, 3, 1),
    "n32-transposed-4x4s2-14x14-256-128": _channels_first(32, (14, 14), 256, 128, 4, 2, transposed=True),
    "n32-transposed-3x3s2-32x32-64-64": _channels_first(32, (32, 32), 64, 64, 3, 2, transposed=True),
    "n16-depthwise-7x7s1-56x56-96-96": _channels_first(16, (56, 56), 96, 96, 7, 1, groups=96),
    "n32-depthwise-3x3s1-56x56-144-144": _channels_first(32, (56, 56), 144, 144, 3, 1, groups=144),
    "n32-depthwise-3x3s2-112x112-96-96": _channels_first(32, (112, 112), 96, 96, 3, 2, groups=96),
    "n32-depthwise-3x3s1-14x14-512-512": _channels_first(32, (14, 14), 512, 512, 3, 1, groups=512),
    "n8-depthwise-31s1-4000-512-512": _channels_first(8, (4000,), 512, 512, 31, 1, groups=512),
    **{f"w32-{_name(*layer)}": weight_gradient(32, *layer) for layer in _GRADIENTS},
    "w32-channels-first-3x3s1-28x28-128-256": weight_gradient(32, *_GRADIENTS[0], channels_first=True),
    "w32-depthwise-3x3s1-56x56-128-128": weight_gradient(32, 56, 128, 128, 3, 1, depthwise=True),
    "w32-depthwise-channels-first-3x3s1-56x56-128-128": weight_gradient(
        32, 56, 128, 128, 3, 1, depthwise=True, channels_first=True
    ),
}


def run(options: Options) -> Result:
    """Tune and time every row whose name matches."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True  # for the rows of float32
    sustained = options.extra.get("sustained", "1") == "1"
    return measured(ROWS, options, _judged, trials=MOST_TRIALS, sustained=sustained)


def _judged(table: Table) -> Result:
    shorts = [float(str(r.get("ratio") or 0.0)) for r in table.rows]
    summary = {
        "geomean_ratio": geometric_mean(shorts),
        "min_ratio": min(shorts, default=None),
        **bars_summary(table.rows, _BARS),
        "tuning_s": table.tuned.seconds,
        "timing_share": table.tuned.timing_share,
    }
    return table.result(summary, reaches_bars(summary, _BARS))
