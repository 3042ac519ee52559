"""Which training graphs run on our kernels.

AOTAutograd cuts a model that trains into a forward and a backward graph, with an autograd function around both. That
costs about half a millisecond a step beyond eager, and wins where kernels take what is before and behind products.
"""

import math
from typing import Any

import torch

TRAINING = ("auto", "always", "never")
LEAST_FLOPS = 1e8
"""Operations of a forward graph's products from which on kernels are expected to win more than AOTAutograd costs."""
_PRODUCTS = {"mm", "addmm"}
_LEFT = ("conv", "batch_norm", "lstm", "gru")
"""Parts of names of operators whose gradients only ATen has: models of these gain nothing."""
_SLOW = ("bmm", "dropout", "bernoulli", "rand")
"""Parts of names of traced operators behind which kernels without a class come, which lose what others win."""
_POINTWISE = (
    "elu_backward", "gelu_backward", "hardsigmoid_backward", "hardswish_backward", "hardtanh_backward",
    "leaky_relu_backward", "mish_backward", "sigmoid_backward", "silu_backward", "softplus_backward",
    "tanh_backward", "threshold_backward",
)  # fmt: skip
"""Gradients that are written out, because kernels of products take them. Others stay what ATen has."""


class BetterAsAten(Exception):
    """A training graph that runs as eager runs it."""


def check_module(module: Any, device: torch.device) -> None:
    """Raises BetterAsAten for a captured module that need not be traced to see that it gains nothing."""
    names = [str(getattr(n.target, "__name__", n.target)) for n in module.graph.nodes if n.op.startswith("call_")]
    if device.type != "cpu" or any(part in name for name in names for part in _LEFT):
        raise BetterAsAten


def check_forward(traced: Any) -> None:
    """Raises BetterAsAten for a forward graph whose products are small, or of another type than float32, and for one
    with dropout or products in batches, as attention with dropout has them."""
    total = 0.0
    for node in traced.graph.nodes:
        name = str(node.target).removeprefix("aten.").split(".")[0]
        if any(part in name for part in (*_LEFT, *_SLOW)):
            raise BetterAsAten
        if name not in _PRODUCTS:
            continue
        left, result = node.args[-2].meta["val"], node.meta["val"]
        if result.dtype != torch.float32:
            raise BetterAsAten
        total += 2.0 * math.prod(_extent(n) for n in result.shape) * _extent(left.shape[-1])
    if total < LEAST_FLOPS:
        raise BetterAsAten


def is_written_out(name: str) -> bool:
    """Return whether an operator of ATen that may be decomposed is, in a training graph."""
    return not name.endswith("_backward") or name in _POINTWISE


def _extent(n: Any) -> int:
    """Return an extent, or that of the example which a symbolic one was traced for."""
    return n if isinstance(n, int) else int(n.node.hint or 1)
