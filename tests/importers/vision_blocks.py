"""Blocks of image networks, small enough to trace in no time."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def normed(channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution without a bias, and a batch norm."""
    convolution = nn.Conv2d(channels, filters, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(filters))


class Bottleneck(nn.Module):  # type: ignore[misc]
    """A block of ResNet-50."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [normed(channels, width, 1), normed(width, width, 3, stride), normed(width, 4 * width, 1)]
        )
        self.skip = normed(channels, 4 * width, 1, stride)

    def forward(self, x: Any) -> Any:
        first, second, third = self.convolutions
        return functional.relu(third(functional.relu(second(functional.relu(first(x))))) + self.skip(x))


class ResNet(nn.Module):  # type: ignore[misc]
    """The stem, a block and the head of ResNet-50."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = normed(3, 64, 7, 2), Bottleneck(64, 64, 2), nn.Linear(256, 1000)

    def forward(self, x: Any) -> Any:
        x = self.block(functional.max_pool2d(functional.relu(self.stem(x)), 3, 2, 1))
        return self.head(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


class InvertedResidual(nn.Module):  # type: ignore[misc]
    """A block of MobileNetV2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 6 * channels
        self.body = nn.Sequential(
            normed(channels, wide, 1), nn.ReLU6(), normed(wide, wide, 3, groups=wide), nn.ReLU6(),
            normed(wide, channels, 1),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


class ResidualBlock(nn.Module):  # type: ignore[misc]
    """A residual block of the U-Net of a diffusion model."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(32, channels), nn.GroupNorm(32, filters)])
        self.first, self.second = (nn.Conv2d(n, filters, 3, padding=1) for n in (channels, filters))
        self.skip, self.time = nn.Conv2d(channels, filters, 1), nn.Linear(128, filters)

    def forward(self, x: Any, time: Any) -> Any:
        h = self.first(functional.silu(self.norms[0](x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(functional.silu(self.norms[1](h)))


class ConvNeXtBlock(nn.Module):  # type: ignore[misc]
    """A block of ConvNeXt."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.gamma = nn.LayerNorm(channels), nn.Parameter(torch.ones(channels))
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class Decoder(nn.Module):  # type: ignore[misc]
    """A step up of a U-Net: what a transposed convolution makes beside what was there, and squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.convolution = nn.ConvTranspose2d(64, 32, 2, 2), nn.Conv2d(64, 64, 3, padding=1, groups=4)
        self.squeeze, self.excite = nn.Conv2d(64, 16, 1), nn.Conv2d(16, 64, 1)

    def forward(self, x: Any, skip: Any) -> Any:
        y = functional.relu(self.convolution(torch.cat([self.up(x), skip], 1)))
        pooled = functional.adaptive_avg_pool2d(y, 1)
        return y * torch.sigmoid(self.excite(functional.relu(self.squeeze(pooled))))


class Heads(nn.Module):  # type: ignore[misc]
    """What decoders end with: colours, those of an image of twice the size, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.colours = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 3, 3, padding=1)
        self.up, self.mask = nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Conv2d(64, 1, 3, padding=1)

    def forward(self, x: Any) -> Any:
        y = functional.silu(self.plain(x))
        return self.colours(y), torch.tanh(self.up(y)), torch.sigmoid(self.mask(y))


class Convolutions(nn.Module):  # type: ignore[misc]
    """A transposed convolution, one with a bias and a residual, groups of 4 channels, and one that is dilated."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.plain = nn.ConvTranspose2d(32, 64, 4, 2, 1), nn.Conv2d(64, 64, 3, padding=1)
        self.grouped = nn.Conv2d(64, 64, 3, 2, 1, groups=16)
        self.dilated = nn.Conv2d(64, 64, 3, padding=2, dilation=2)

    def forward(self, x: Any, residual: Any) -> Any:
        y = functional.relu(self.plain(self.grouped(functional.relu(self.up(x)))) + residual)
        return self.dilated(y)
