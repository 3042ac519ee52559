"""Operators of graphs by functions of torch: what replaces a kernel that has failed, and what it is compared with."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional

from ..core.dtypes import DTYPES
from ..graph.graph import Graph, Node
from ..graph.operators import OPERATORS
from ..graph.operators.attributes import real
from ..graph.operators.scans import neutral
from ..graph.partition import KernelCall
from ..te.operators.parameter import Values
from .tensors import torch_dtype

_Function = Callable[[Sequence[Any], Values], Any]


def _plain(function: Callable[..., Any]) -> _Function:
    return lambda o, v: function(*o)


def _float(kind: Any, wide: bool) -> Any:
    """Return the dtype to compute in: float64 in the place of any float where ``wide``."""
    dtype = torch_dtype(DTYPES[kind])
    return torch.float64 if wide and dtype.is_floating_point else dtype


def _slice(o: Sequence[Any], v: Values) -> Any:
    at = [slice(None)] * o[0].dim()
    at[v.integer("dim")] = slice(v.integer("start"), v.integer("stop"), v.integer("step"))
    return o[0][tuple(at)]


def _variance(o: Sequence[Any], v: Values) -> Any:
    return torch.var(o[0], v.integers("dims"), correction=v.integer("correction"), keepdim=v.flag("keep"))


def _prod(o: Sequence[Any], v: Values) -> Any:
    x = o[0]
    for d in sorted(v.integers("dims"), reverse=True):
        x = x.prod(d, keepdim=v.flag("keep"))
    return x


def _running(name: str, function: Callable[[Any, int], Any]) -> _Function:
    def run(o: Sequence[Any], v: Values) -> Any:
        x, d = o[0], v.integer("dim")
        y = function(x.flip(d) if v.flag("reverse") else x, d)
        if v.flag("exclusive"):
            first = torch.full_like(y.narrow(d, 0, 1), neutral(name, DTYPES[str(x.dtype).removeprefix("torch.")]))
            y = torch.cat([first, y.narrow(d, 0, y.shape[d] - 1)], d)
        return y.flip(d) if v.flag("reverse") else y

    return run


def _norm(o: Sequence[Any], v: Values, function: Callable[..., Any]) -> Any:
    x, *weights = o
    shape = x.shape[x.dim() - v.integer("dims") :]
    y = function(x, shape, *weights[:1], eps=v.number("epsilon"))
    return y + weights[1] if len(weights) > 1 else y


def _layer_norm(o: Sequence[Any], v: Values) -> Any:
    return _norm(o, v, functional.layer_norm)


def _rms_norm(o: Sequence[Any], v: Values) -> Any:
    return _norm(o, v, functional.rms_norm)


def _group_norm(o: Sequence[Any], v: Values) -> Any:
    x, *weights = o
    y = functional.group_norm(x, v.integer("groups"), eps=v.number("epsilon"))
    for n, weight in enumerate(weights):
        column = weight.reshape(-1, *[1] * (x.dim() - 2))
        y = y + column if n else y * column
    return y


def _batch_norm(o: Sequence[Any], v: Values) -> Any:
    x, weight, bias, mean, variance = o
    return functional.batch_norm(x, mean, variance, weight, bias, False, 0.0, v.number("epsilon"))


def _spread(o: Sequence[Any], v: Values) -> Any:
    x, d, step = o[0], v.integer("dim"), v.integer("step")
    shape = list(x.shape)
    shape[d] = (shape[d] - 1) * step + 1
    result = x.new_zeros(shape)
    result[(*[slice(None)] * d, slice(None, None, step))] = x
    return result


def _scatter(o: Sequence[Any], v: Values) -> Any:
    """Terms at other places go to one more, which is left out."""
    places, x = o
    d, count, how = v.integer("dim"), v.integer("count"), v.text("how")
    shape = (*x.shape[:d], count + 1, *x.shape[d + 1 :])
    nothing, reduce = {"sum": (0, "sum"), "max": (-torch.inf, "amax"), "min": (torch.inf, "amin")}[how]
    places = torch.where(places < 0, places + count, places) if v.flag("from_end") else places
    there = torch.where((places >= 0) & (places < count), places, count).long()
    return x.new_full(shape, nothing).scatter_reduce(d, there, x, reduce).narrow(d, 0, count)


def _bordered(x: Any, v: Values, value: float) -> Any:
    pairs = zip(reversed(v.integers("before")), reversed(v.integers("behind")), strict=True)
    return functional.pad(x, [n for pair in pairs for n in pair], value=value)


def _pool(o: Sequence[Any], v: Values, greatest: bool) -> Any:
    x, rank = o[0], len(v.integers("kernel"))
    found = _library_pool(x, v, greatest)
    if found is not None:
        return found
    first = x.dim() - rank

    def windows(t: Any) -> Any:
        sizes = zip(v.integers("kernel"), v.integers("stride"), v.integers("dilation"), strict=True)
        for n, (size, step, apart) in enumerate(sizes):
            t = t.unfold(first + n, apart * (size - 1) + 1, step)[..., ::apart]
        return t.flatten(-rank)

    found = windows(_bordered(x, v, float("-inf") if greatest else 0.0))
    if greatest:
        return found.amax(-1)
    if v.flag("count_border"):
        return found.mean(-1)
    return found.sum(-1) / windows(_bordered(torch.ones_like(x), v, 0.0)).sum(-1)


def _library_pool(x: Any, v: Values, greatest: bool) -> Any:
    """Return the pool by torch's own function, dense; None where that has no such border or windows."""
    kernel, border, dilation = (v.integers(n) for n in ("kernel", "before", "dilation"))
    halves = all(2 * b <= k for b, k in zip(border, kernel, strict=True))
    if border != v.integers("behind") or not halves or x.dim() != len(kernel) + 2 or not x.is_floating_point():
        return None
    if greatest:
        greatest_of = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[len(kernel) - 1]
        return greatest_of(x, kernel, v.integers("stride"), border, dilation).contiguous()
    if any(d != 1 for d in dilation):
        return None
    average_of = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[len(kernel) - 1]
    return average_of(x, kernel, v.integers("stride"), border, False, v.flag("count_border")).contiguous()


def _places(o: Sequence[Any], v: Values) -> Any:
    """Places as ``graph.operators.gathers`` takes them."""
    extent, places = o[0].shape[v.integer("dim")], o[1].long()
    return torch.where(places < 0, places + extent, places).clamp(0, extent - 1)


def _gather(o: Sequence[Any], v: Values) -> Any:
    x, d, places = o[0], v.integer("dim"), _places(o, v)
    return x.index_select(d, places.flatten()).reshape(*x.shape[:d], *places.shape, *x.shape[d + 1 :])


def _channels_last_convolution(o: Sequence[Any], v: Values) -> Any:
    """Return the same on images and filters whose channels lie last, with a dimension for groups where there are
    several."""
    x, w, *bias = o
    groups = v.integer("groups")
    if v.flag("filters_first"):
        split = 1 if groups == 1 else 2
        w = w.permute(*range(split, w.dim()), *range(split))
    if groups > 1:
        image, filters = x.flatten(-2), w.movedim((-2, -1, -3), (0, 1, 2)).flatten(0, 1)
    else:
        image, filters = x, w.movedim((-1, -2), (0, 1))
    operands = (image.movedim(-1, 1), filters, *(b.flatten() for b in bias))
    y = _convolution(operands, Values({**v.values, "channels_last": False, "filters_first": False})).movedim(1, -1)
    return y.unflatten(-1, (groups, -1)) if groups > 1 else y


def _convolution(o: Sequence[Any], v: Values) -> Any:
    if v.flag("channels_last"):
        return _channels_last_convolution(o, v)
    x, *rest = o
    if v.text("accumulate") != "auto":
        plain = Values({**v.values, "accumulate": "auto"})
        return _convolution([t.double() for t in o], plain).long().int()
    weight, bias = rest[0], rest[1] if len(rest) > 1 else None
    rank = x.dim() - 2
    border = list(v.integers("before"))
    if border != list(v.integers("behind")):
        x, border = _bordered(x, v, 0.0), [0] * rank
    return torch.convolution(
        x, weight, bias, v.integers("stride"), border, v.integers("dilation"), False, [0] * rank, v.integer("groups")
    )


def _matmul(o: Sequence[Any], v: Values) -> Any:
    """Return a product of matrices. Sums of products of bytes are exact in float64, which every device multiplies."""
    if v.text("accumulate") == "auto":
        return torch.matmul(*o)
    return torch.matmul(*(t.double() for t in o)).long().int()


def _grouped_matmul(o: Sequence[Any], v: Values) -> Any:
    x, weights, ends = o
    if x.dtype == torch.bfloat16:
        rows = torch.arange(len(x), device=x.device)[:, None]
        return torch._grouped_mm(x, weights, offs=ends.int()).where(rows < ends.max(), 0)
    result = x.new_zeros(len(x), weights.shape[2])
    bounds = [0, *ends.long().cummax(0).values.clamp(0, len(x)).tolist()]
    for n, (start, stop) in enumerate(pairwise(bounds)):
        result[start:stop] = x[start:stop] @ weights[n]
    return result


_SAME = (
    "add", "sub", "mul", "div", "pow", "maximum", "minimum", "where", "eq", "ne", "lt", "le", "gt", "ge",
    "logical_and", "logical_or", "logical_not", "neg", "abs", "sign", "square", "reciprocal", "exp", "expm1", "log",
    "exp2", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "floor", "ceil", "trunc", "round", "relu",
    "sigmoid", "tan", "atan", "atan2", "erfc", "erfinv", "lgamma", "digamma",
)  # fmt: skip

FUNCTIONS: dict[str, _Function] = {
    **{name: _plain(getattr(torch, name)) for name in _SAME},
    "bitwise_and": _plain(torch.bitwise_and),
    "bitwise_or": _plain(torch.bitwise_or),
    "bitwise_xor": _plain(torch.bitwise_xor),
    "shift_left": _plain(torch.bitwise_left_shift),
    "shift_right": _plain(torch.bitwise_right_shift),
    **{n: _plain(getattr(functional, n)) for n in ("silu", "gelu", "hardsigmoid", "hardswish", "mish")},
    **{n: _plain(getattr(torch.special, n)) for n in ("erfcx", "i0e", "i1e")},
    "identity": lambda o, v: o[0],
    "reshape": lambda o, v: o[0].reshape(v.integers("shape")),
    "permute": lambda o, v: o[0].permute(v.integers("order")),
    "expand": lambda o, v: o[0].expand(v.integers("shape")),
    "slice": _slice,
    "flip": lambda o, v: o[0].flip(v.integers("dims")),
    "repeat": lambda o, v: o[0].repeat_interleave(v.integer("times"), v.integer("dim")),
    "concatenate": lambda o, v: torch.cat(list(o), v.integer("dim")),
    "pad": lambda o, v: _bordered(o[0], v, real(v, "value")),
    "spread": _spread,
    "floor_divide": lambda o, v: torch.div(o[0], v.integer("divisor"), rounding_mode="floor"),
    "modulo": lambda o, v: torch.remainder(o[0], v.integer("divisor")),
    "gelu_tanh": lambda o, v: functional.gelu(o[0], approximate="tanh"),
    "leaky_relu": lambda o, v: functional.leaky_relu(o[0], real(v, "slope")),
    "softplus": lambda o, v: functional.softplus(o[0], real(v, "beta"), real(v, "threshold")),
    "elu": lambda o, v: torch.ops.aten.elu(o[0], real(v, "alpha"), real(v, "scale"), real(v, "input_scale")),
    "sum": lambda o, v: o[0].sum(v.integers("dims"), v.flag("keep"), dtype=o[0].dtype),
    "prod": _prod,
    "max": lambda o, v: o[0].amax(v.integers("dims"), v.flag("keep")),
    "min": lambda o, v: o[0].amin(v.integers("dims"), v.flag("keep")),
    "mean": lambda o, v: o[0].mean(v.integers("dims"), v.flag("keep")),
    "variance": _variance,
    "argmax": lambda o, v: o[0].argmax(v.integer("dim"), v.flag("keep")),
    "argmin": lambda o, v: o[0].argmin(v.integer("dim"), v.flag("keep")),
    "gather": _gather,
    "gather_elements": lambda o, v: o[0].gather(v.integer("dim"), _places(o, v)),
    "scatter": _scatter,
    "running_sum": _running("running_sum", lambda x, d: torch.cumsum(x, d, dtype=x.dtype)),
    "running_product": _running("running_product", lambda x, d: torch.cumprod(x, d, dtype=x.dtype)),
    "running_max": _running("running_max", lambda x, d: torch.cummax(x, d).values),
    "running_min": _running("running_min", lambda x, d: torch.cummin(x, d).values),
    "softmax": lambda o, v: torch.softmax(o[0], v.integer("dim")),
    "log_softmax": lambda o, v: torch.log_softmax(o[0], v.integer("dim")),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "max_pool": lambda o, v: _pool(o, v, True),
    "average_pool": lambda o, v: _pool(o, v, False),
    "matmul": _matmul,
    "convolution": _convolution,
    "grouped_matmul": _grouped_matmul,
}
"""Each operator with operands; ``full``, ``range`` and ``cast``, which name a dtype, are below."""


def evaluate(node: Node, operands: Sequence[Any], *, wide: bool = False, device: Any = None) -> Any:
    """Return the result of a node by torch. ``wide``: floats are float64, whatever dtype the graph says. ``device``:
    where what has no operands is made."""
    v = OPERATORS[node.op].values(node.attributes)
    if node.op == "cast":
        return operands[0].to(_float(v.text("dtype"), wide))
    if node.op == "full":
        return torch.full(v.integers("shape"), real(v, "value"), dtype=_float(v.text("dtype"), wide), device=device)
    if node.op == "range":
        numbers = torch.arange(v.integer("count"), dtype=torch.int64, device=device)
        numbers = numbers * v.integer("step") + v.integer("start")
        return numbers.to(_float(v.text("dtype"), wide))
    return FUNCTIONS[node.op](operands, v)


def call_by_torch(
    graph: Graph, call: KernelCall, *, wide: bool = False, device: Any = None
) -> Callable[[Sequence[Any]], list[Any]]:
    """Return what the kernel of ``call`` computes, as a function of the tensors on ``device`` that it reads, in their
    order."""

    def run(reads: Sequence[Any]) -> list[Any]:
        known: dict[str, Any] = {}
        for name, tensor in zip(call.reads, reads, strict=True):
            known[name] = tensor.double() if wide and tensor.is_floating_point() else tensor
        return [_value(graph, name, known, wide, device) for name in call.writes]

    return run


def _value(graph: Graph, name: str, known: dict[str, Any], wide: bool, device: Any) -> Any:
    todo: list[str] = [name]
    while todo:  # iterative: chains of nodes may be long
        node = graph.producers[todo[-1]]
        missing = [n for n in node.operands if n not in known]
        todo.extend(missing)
        if not missing:
            known[node.name] = evaluate(node, [known[n] for n in node.operands], wide=wide, device=device)
            todo = [n for n in todo if n not in known]
    return known[name]
