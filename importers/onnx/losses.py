"""Losses of ONNX: the class that a target names is picked by comparing all classes with it."""

from collections.abc import Sequence

from ...graph.graph import Value
from .call import Call, need, rule
from .elementwise import like


def _picked(c: Call, x: Value, target: Value) -> Value:
    """``x[n, target[n, …], …]`` of ``x[n, class, …]``; 0 where the target names no class."""
    rank = len(x.shape)
    classes = c.node("range", count=x.shape[1], dtype=target.dtype.name)
    column = c.node("reshape", classes, shape=(x.shape[1], *[1] * (rank - 2)))
    wanted = c.node("reshape", target, shape=(target.shape[0], 1, *target.shape[1:]))
    chosen = c.node("where", c.node("eq", column, wanted), x, like(c, x, 0.0))
    return c.node("sum", chosen, dims=(1,))


def _loss(c: Call, logarithms: Value) -> Value:
    target = c.value(1)
    need(target.shape == (logarithms.shape[0], *logarithms.shape[2:]), "a target of another shape")
    loss = c.node("neg", _picked(c, logarithms, target))
    rank, weight = len(logarithms.shape), None
    if c.has(2):
        column = c.node("reshape", c.value(2), shape=(logarithms.shape[1], *[1] * (rank - 2)))
        weight = _picked(c, c.node("expand", column, shape=logarithms.shape), target)
    ignored = c.get("ignore_index")
    if ignored is not None:
        number = c.node("full", shape=(), value=ignored, dtype=target.dtype.name)
        one = like(c, loss, 1.0) if weight is None else weight
        weight = c.node("where", c.node("eq", target, number), like(c, loss, 0.0), one)
    loss = loss if weight is None else c.node("mul", loss, weight)
    dims, reduction = tuple(range(len(loss.shape))), c.get("reduction", "mean")
    if reduction == "none":
        return loss
    if reduction == "sum" or weight is None:
        return c.node(reduction, loss, dims=dims)
    return c.node("div", c.node("sum", loss, dims=dims), c.node("sum", weight, dims=dims))


@rule("NegativeLogLikelihoodLoss")
def _nll(c: Call) -> Value:
    return _loss(c, c.value(0))


@rule("SoftmaxCrossEntropyLoss")
def _cross_entropy(c: Call) -> Value | Sequence[Value]:
    logarithms = c.node("log_softmax", c.value(0), dim=1)
    loss = _loss(c, logarithms)
    return [loss, logarithms] if c.results > 1 else loss
