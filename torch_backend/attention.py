"""Attention as one operator. Torch decides for a device and a mask which of its kernels computes attention, and
decomposes what none of them takes into products of float32, which nobody would recognise."""

from typing import Any

import torch
from torch.nn import functional

from ..importers.fx import dense_order, inverse

_SDPA = functional.scaled_dot_product_attention


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
    grouped: bool,
    order: list[int],
) -> torch.Tensor:
    """softmax(q kᵀ * scale + mask) v by torch. ``grouped``: several heads of q share one of k and v. ``order``: the
    order of dimensions in which the result is dense."""
    found = _SDPA(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=grouped)
    return found.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse(order))


attention = torch.library.custom_op("tilewright::attention", _attention, mutates_args=())


def _fake(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None, grouped: bool, order: list[int]) -> Any:
    batch = q.shape[:-2] if grouped else torch.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    shape = (*batch, q.shape[-2], v.shape[-1])
    return q.new_empty([shape[d] for d in order]).permute(inverse(order))


attention.register_fake(_fake)


def _cast(graph: Any, operand: Any, dtype: torch.dtype) -> Any:
    """Return an operand as autocast gives it to torch's attention: floats in the dtype of the result."""
    value = operand.meta.get("example_value") if isinstance(operand, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype is dtype:
        return operand
    return graph.call_method("to", (operand, dtype))


def keep_attention(module: Any) -> None:
    """Have a graph of dynamo call ``attention`` for attention without dropout."""
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target is not _SDPA:
            continue
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
        given |= dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        result = node.meta.get("example_value")
        concrete = isinstance(result, torch.Tensor) and all(type(n) is int for n in result.shape)
        order = dense_order(result) if concrete else None
        if given["dropout_p"] != 0.0 or isinstance(given["is_causal"], torch.fx.Node) or order is None:
            continue
        with module.graph.inserting_before(node):
            tensors = [_cast(module.graph, given[n], result.dtype) for n in ("query", "key", "value", "attn_mask")]
            arguments = [*tensors, *(given[n] for n in ("is_causal", "scale", "enable_gqa"))]
            found = module.graph.call_function(torch.ops.tilewright.attention.default, (*arguments, list(order)))
        found.meta = dict(node.meta)
        node.replace_all_uses_with(found)
        module.graph.erase_node(node)
    module.recompile()
