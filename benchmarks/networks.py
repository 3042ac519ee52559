"""Networks as they were published, in plain torch, with random weights.

ResNet-50 with the stride in its 3x3 convolutions ("v1.5"), MobileNetV2 of width 1 (Sandler et al. 2018), ViT-B/16
(Dosovitskiy et al. 2020), the encoder of BERT-base (Devlin et al. 2018), and DLRM with the layers of MLPerf (Naumov et
al. 2019). Their weights are scaled so that data neither vanish nor grow from layer to layer.
"""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

Tensors = tuple[torch.Tensor, ...]


class Bottleneck(nn.Module):  # type: ignore[misc]  # torch has no types here
    """1x1, 3x3 and 1x1 convolutions with a residual, which has a convolution of its own where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *_convolution(inputs, width, 1, activation=nn.ReLU),
            *_convolution(width, width, 3, stride, activation=nn.ReLU),
            *_convolution(width, outputs, 1),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    """Images [b, 3, 224, 224] to logits [b, 1000]."""
    layers: list[nn.Module] = [*_convolution(3, 64, 7, 2, activation=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for n in range(blocks):
            layers.append(Bottleneck(channels, width, stride if n == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class InvertedResidual(nn.Module):  # type: ignore[misc]
    """A 1x1 convolution to more channels, a depthwise one, and a 1x1 convolution back, with a residual."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        layers = [] if expansion == 1 else _convolution(inputs, width, 1, activation=nn.ReLU6)
        layers += _convolution(width, width, 3, stride, groups=width, activation=nn.ReLU6)
        self.body = nn.Sequential(*layers, *_convolution(width, outputs, 1))
        self.has_residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return x + y if self.has_residual else y


def mobilenet_v2() -> nn.Module:
    """Images [b, 3, 224, 224] to logits [b, 1000]."""
    layers: list[nn.Module] = _convolution(3, 32, 3, 2, activation=nn.ReLU6)
    channels = 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, outputs, blocks, stride in stages:
        for n in range(blocks):
            layers.append(InvertedResidual(channels, outputs, stride if n == 0 else 1, expansion))
            channels = outputs
    layers += _convolution(channels, 1280, 1, activation=nn.ReLU6)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, activation: type[nn.Module] | None = None
) -> list[nn.Module]:
    """Return a convolution with batch norm, and an activation if there is one."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_in", nonlinearity="relu")
    return [convolution, nn.BatchNorm2d(outputs), *([] if activation is None else [activation()])]


class Attention(nn.Module):  # type: ignore[misc]
    """Attention of ``heads`` heads, with one projection for queries, keys and values, or one for each."""

    def __init__(self, width: int, heads: int, joined: bool) -> None:
        super().__init__()
        self.heads = heads
        self.projections = nn.ModuleList([nn.Linear(width, n * width) for n in ((3,) if joined else (1, 1, 1))])
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [part for f in self.projections for part in f(x).split(x.shape[-1], -1)]
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in found)
        return self.output(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Encoder(nn.Module):  # type: ignore[misc]
    """Attention and two layers, each with a residual and a layer norm: before it (``norm_first``) or behind it."""

    def __init__(self, width: int, heads: int, hidden: int, epsilon: float, norm_first: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, joined=norm_first)
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width, epsilon) for _ in range(2))
        self.norm_first = norm_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part, norm in zip((self.attention, self.layers), self.norms, strict=True):
            x = x + part(norm(x)) if self.norm_first else norm(x + part(x))
        return x


class VisionTransformer(nn.Module):  # type: ignore[misc]
    """ViT-B/16: images [b, 3, 224, 224] to logits [b, 1000]."""

    def __init__(self, width: int = 768, layers: int = 12, heads: int = 12, hidden: int = 3072) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.encoders = nn.Sequential(*(Encoder(width, heads, hidden, 1e-6, norm_first=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width, 1e-6), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.first.expand(len(y), -1, -1), y], 1) + self.positions
        return self.head(self.norm(self.encoders(y))[:, 0])


class Bert(nn.Module):  # type: ignore[misc]
    """BERT-base without its pooler: tokens int64[b, s] to float[b, s, 768]."""

    def __init__(self, layers: int, width: int = 768, heads: int = 12, hidden: int = 3072) -> None:
        super().__init__()
        self.words = nn.Embedding(30_522, width)
        self.positions, self.kinds = nn.Embedding(512, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.encoders = nn.Sequential(*(Encoder(width, heads, hidden, 1e-12, norm_first=False) for _ in range(layers)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(places) + self.kinds(torch.zeros_like(tokens))
        return self.encoders(self.norm(x))


class RecommendationModel(nn.Module):  # type: ignore[misc]
    """DLRM: 13 numbers [b, 13] and a row of each of 26 tables, int64[b, 26], to a probability [b, 1].

    ``rows``: of each table. Published tables have up to 40 million, of which a request reads one.
    """

    def __init__(self, rows: int = 10_000, width: int = 128, tables: int = 26) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = _layers(13, 512, 256, width)
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs[0] * (tables + 1) + pairs[1])
        self.top = _layers(width + pairs.shape[1], 1024, 1024, 512, 256)
        self.last = nn.Linear(256, 1)

    def forward(self, numbers: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        x = self.bottom(numbers)
        vectors = torch.stack([x, *(table(chosen[:, n]) for n, table in enumerate(self.tables))], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.last(self.top(torch.cat([x, products.index_select(1, self.pairs)], 1))))


def _layers(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(f for a, b in pairwise(widths) for f in (nn.Linear(a, b), nn.ReLU())))
