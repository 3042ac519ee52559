"""Rows of gradients of convolutions towards their filters: the expression, and cuDNN by torch as the peer."""

from typing import Any

import torch

from benchmarks.gpu_table import Row
from benchmarks.torch_peers import Tensors


def weight_gradient(
    batch: int,
    side: int,
    channels: int,
    filters: int,
    kernel: int,
    stride: int,
    *,
    channels_first: bool = False,
    depthwise: bool = False,
) -> Row:
    """Of square images in float16 with a border of half a kernel: D are the gradients of the outputs, X the images.
    Channels lie last unless they are first, in the filters as well. If ``depthwise``, each channel has a filter of its
    own, and these lie (channel, row, column)."""
    border = kernel // 2
    size = (side + 2 * border - kernel) // stride + 1
    inside = " and ".join(
        f"{at} * {stride} + {tap} >= {border} and {at} * {stride} + {tap} < {side + border}" for at, tap in ("yr", "xs")
    )
    place = ", ".join(f"{at} * {stride} + {tap} - {border}" for at, tap in ("yr", "xs"))
    if channels_first:
        d, image = f"{batch}, {filters}, {size}, {size}", f"{batch}, {channels}, {side}, {side}"
        at_d, at_x, to = "n, k, y, x", f"n, c, {place}", "k, c, r, s"
        axes = f"k < {filters}, c < {channels}, r < {kernel}, s < {kernel}"
    else:
        d, image = f"{batch}, {size}, {size}, {filters}", f"{batch}, {side}, {side}, {channels}"
        at_d, at_x, to = "n, y, x, k", f"n, {place}, c", "k, r, s, c"
        axes = f"k < {filters}, r < {kernel}, s < {kernel}, c < {channels}"
    if depthwise:
        at_d, to, axes = at_d.replace("k", "c"), "c, r, s", f"c < {channels}, r < {kernel}, s < {kernel}"
    text = f"D: float16[{d}]\nX: float16[{image}]\nG[{axes}] = sum over n < {batch}, y < {size}, x < {size} of "
    text += f"float32(D[{at_d}]) * select({inside}, float32(X[{at_x}]), 0.0)\nW[{to}] = float16(G[{to}])"
    memory: Any = torch.contiguous_format if channels_first else torch.channels_last

    def peer(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        shape, groups = (filters, 1 if depthwise else channels, kernel, kernel), channels if depthwise else 1
        filter_like = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=memory)
        strides, borders = [stride, stride], [border, border]
        options = (None, strides, borders, [1, 1], False, [0, 0], groups, [False, True, False])
        found: torch.Tensor = torch.ops.aten.convolution_backward(gradient, x, filter_like, *options)[1]
        if depthwise:
            return found[:, 0]
        return found if channels_first else found.movedim(1, -1)

    def prepare(tensors: Tensors) -> Tensors:
        return tensors if channels_first else tuple(t.movedim(-1, 1) for t in tensors)

    return Row(None, {"text": text}, peer, prepare)
