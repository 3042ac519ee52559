"""Recurrent layers as one operator each. Torch would write them out step by step when a graph is traced, in the first
call of a model; ``importers.aten.recurrent`` does so while the model runs."""

from typing import Any

import torch

from ..importers.fx import dense_order, inverse

_KINDS = {getattr(torch, name): name for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}


def _recurrent(
    x: torch.Tensor,
    states: list[torch.Tensor],
    weights: list[torch.Tensor],
    kind: str,
    biases: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
    order: list[int],
) -> list[torch.Tensor]:
    """Return what all layers give by torch, and the last states. ``order``: the order of dimensions in which the former
    is dense."""
    first = states if kind == "lstm" else states[0]
    y, *last = getattr(torch, kind)(x, first, weights, biases, layers, 0.0, False, bidirectional, batch_first)
    dense = y.permute(order).clone(memory_format=torch.contiguous_format)
    return [dense.permute(inverse(order)), *(s.contiguous() for s in last)]


recurrent = torch.library.custom_op("tilewright::recurrent", _recurrent, mutates_args=())


def _fake(x: Any, states: Any, weights: Any, kind: str, biases: bool, layers: int, bidirectional: bool,
          batch_first: bool, order: list[int]) -> Any:  # fmt: skip
    shape = (x.shape[0], x.shape[1], states[0].shape[2] * (2 if bidirectional else 1))
    y = x.new_empty([shape[d] for d in order]).permute(inverse(order))
    return [y, *(s.new_empty(s.shape) for s in states)]


recurrent.register_fake(_fake)


def keep_recurrent(module: Any, device: torch.device) -> None:
    """Have a graph of dynamo call ``recurrent`` for layers without dropout and projections. LSTMs on processors stay
    torch's: oneDNN has them."""
    for node in list(module.graph.nodes):
        kind = _KINDS.get(node.target) if node.op == "call_function" else None
        if kind is None or (kind == "lstm" and device.type == "cpu") or len(node.args) != 9:
            continue
        x, first, weights, biases, layers, dropout, train, bidirectional, batch_first = node.args
        states = list(first) if isinstance(first, list | tuple) else [first]
        results = node.meta.get("example_value")
        given = [a.meta.get("example_value") for a in (x, *states) if isinstance(a, torch.fx.Node)]
        concrete = results is not None and all(
            isinstance(t, torch.Tensor) and t.dim() == 3 and all(type(n) is int for n in t.shape)
            for t in (*results, *given)
        )
        if not concrete or len(given) != 1 + len(states) or len({t.shape for t in given[1:]}) != 1:
            continue
        order = dense_order(results[0])
        if isinstance(weights, torch.fx.Node) or order is None or (train and dropout and layers > 1):
            continue
        arguments = (x, states, list(weights), kind, biases, layers, bidirectional, batch_first, list(order))
        with module.graph.inserting_before(node):
            found = module.graph.call_function(torch.ops.tilewright.recurrent.default, arguments)
        found.meta = {**node.meta, "example_value": list(results)}
        node.replace_all_uses_with(found)
        module.graph.erase_node(node)
    module.recompile()
