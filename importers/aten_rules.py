"""How operators of ATen become nodes of a graph: one function for each, by the operator's name.

A rule is given a ``Builder`` and the arguments of a call, in which values stand for tensors, and returns a value, or a
list of them. It raises ``NoRule`` where it does not cover the arguments: the call then stays foreign. Rules do not
import torch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ..core.dtypes import DTYPES, DType
from ..graph.graph import Value
from ..graph.operators.attributes import real_json


class NoRule(Exception):
    """A rule does not cover these arguments."""


class Builder(Protocol):
    """What a rule may do."""

    @property
    def target(self) -> str:
        """The name of the operator, such as ``aten.add.Tensor``."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the (first) result, as torch gives it."""
        ...

    @property
    def dtype(self) -> DType:
        """The dtype of the (first) result, as torch gives it."""
        ...

    def node(self, op: str, *operands: Value, **attributes: object) -> Value:
        """Add a node."""
        ...

    def common(self, *arguments: Any) -> DType:
        """The dtype in which torch computes on these tensors and numbers."""
        ...

    def dtype_of(self, given: Any) -> DType:
        """A dtype of torch. Raises NoRule for one that graphs do not have."""
        ...


Rule = Callable[..., "Value | Sequence[Value]"]
_Rule = TypeVar("_Rule", bound=Rule)

RULES: dict[str, Rule] = {}
"""The name of an operator, such as ``aten.add.Tensor``, and its rule."""


def rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Put a function into the table, under the names of operators of ATen."""

    def add(function: _Rule) -> _Rule:
        RULES.update({f"aten.{name}": function for name in names})
        return function

    return add


# Helpers


def cast(b: Builder, x: Value, dtype: DType) -> Value:
    return x if x.dtype == dtype else b.node("cast", x, dtype=dtype.name)


def number(b: Builder, value: Any, dtype: DType) -> Value:
    """A scalar of ``dtype``. Raises NoRule for a number that it does not hold."""
    if not isinstance(value, int | float) or (isinstance(value, float) and math.isnan(value)):
        raise NoRule(f"the number {value!r}")
    if dtype.is_integer and (value != value or value in (math.inf, -math.inf) or int(value) != value):
        raise NoRule(f"{value} as {dtype}")
    given = bool(value) if dtype.is_bool else int(value) if dtype.is_integer else float(value)
    return b.node("full", shape=(), value=real_json(given), dtype=dtype.name)


def operand(b: Builder, x: Any, dtype: DType) -> Value:
    """A tensor or a number as a value of ``dtype``."""
    return cast(b, x, dtype) if isinstance(x, Value) else number(b, x, dtype)


def need(condition: bool, what: str) -> None:
    if not condition:
        raise NoRule(what)


def dims_of(dims: Any, rank: int) -> tuple[int, ...]:
    """Dimensions as torch gives them, from 0 to ``rank`` - 1 and sorted; all of them for None and for none."""
    given = [dims] if isinstance(dims, int) else list(range(rank) if not dims else dims)
    return tuple(sorted(d % rank for d in given)) if rank else ()


def tuple_of(value: Any, rank: int) -> tuple[int, ...]:
    """One number for each of ``rank`` dimensions, as torch abbreviates them."""
    given = [value] if isinstance(value, int) else list(value)
    return tuple(given * rank if len(given) == 1 else given)


def reshape(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    return x if x.shape == tuple(shape) else b.node("reshape", x, shape=tuple(shape))


def transpose(b: Builder, x: Value, i: int = -2, j: int = -1) -> Value:
    order = list(range(len(x.shape)))
    order[i], order[j] = order[j], order[i]
    return b.node("permute", x, order=tuple(order))


def slice_(b: Builder, x: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
    return b.node("slice", x, dim=dim % len(x.shape), start=start, stop=stop, step=step)


# Views


@rule("view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default", "squeeze.default",
      "squeeze.dim", "squeeze.dims", "_reshape_alias.default")  # fmt: skip
def _reshape(b: Builder, x: Value, *rest: Any) -> Value:
    return reshape(b, x, b.shape)


@rule("clone.default", "detach.default", "alias.default", "contiguous.default", "lift_fresh_copy.default")
def _identity(b: Builder, x: Value, **keywords: Any) -> Value:
    return b.node("identity", x)


@rule("permute.default")
def _permute(b: Builder, x: Value, order: Sequence[int]) -> Value:
    return b.node("permute", x, order=tuple(d % len(x.shape) for d in order))


@rule("transpose.int")
def _transpose(b: Builder, x: Value, i: int, j: int) -> Value:
    return transpose(b, x, i, j) if x.shape else x


@rule("t.default")
def _t(b: Builder, x: Value) -> Value:
    return transpose(b, x, 0, -1) if len(x.shape) == 2 else b.node("identity", x)


@rule("expand.default")
def _expand(b: Builder, x: Value, *rest: Any, **keywords: Any) -> Value:
    return b.node("expand", x, shape=b.shape)


@rule("slice.Tensor")
def _slice(b: Builder, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    extent = x.shape[dim]
    low, high, _ = slice(start, end).indices(extent)
    return slice_(b, x, dim, low, max(low, high), step)


@rule("select.int")
def _select(b: Builder, x: Value, dim: int, place: int) -> Value:
    at = place % x.shape[dim]
    return reshape(b, slice_(b, x, dim, at, at + 1), b.shape)


@rule("split_with_sizes.default")
def _split_sizes(b: Builder, x: Value, sizes: Sequence[int], dim: int = 0) -> Sequence[Value]:
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [slice_(b, x, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


@rule("split.Tensor")
def _split(b: Builder, x: Value, size: int, dim: int = 0) -> Sequence[Value]:
    extent = x.shape[dim]
    return [slice_(b, x, dim, n, min(n + size, extent)) for n in range(0, extent, size)]


@rule("unbind.int")
def _unbind(b: Builder, x: Value, dim: int = 0) -> Sequence[Value]:
    shape = list(x.shape)
    count = shape.pop(dim)
    return [reshape(b, slice_(b, x, dim, n, n + 1), shape) for n in range(count)]


@rule("cat.default")
def _cat(b: Builder, parts: Sequence[Value], dim: int = 0) -> Value:
    kept = [cast(b, p, b.dtype) for p in parts if p.elements or len(p.shape) > 1]
    need(bool(kept) and len(kept) <= 64, "so many parts")
    return b.node("concatenate", *kept, dim=dim % len(b.shape))


@rule("stack.default")
def _stack(b: Builder, parts: Sequence[Value], dim: int = 0) -> Value:
    d = dim % len(b.shape)
    shape = tuple(1 if n == d else e for n, e in enumerate(b.shape))
    return b.node("concatenate", *(reshape(b, cast(b, p, b.dtype), shape) for p in parts), dim=d)


@rule("flip.default")
def _flip(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    return b.node("flip", x, dims=dims_of(dims, len(x.shape))) if dims else b.node("identity", x)


@rule("repeat.default")
def _repeat(b: Builder, x: Value, times: Sequence[int]) -> Value:
    shape = (*[1] * (len(times) - len(x.shape)), *x.shape)
    apart = [e for pair in zip([1] * len(shape), shape, strict=True) for e in pair]
    wide = [e for pair in zip(times, shape, strict=True) for e in pair]
    need(len(wide) <= 8, "so many dimensions")
    return reshape(b, b.node("expand", reshape(b, x, apart), shape=tuple(wide)), b.shape)


@rule("constant_pad_nd.default")
def _pad(b: Builder, x: Value, widths: Sequence[int], value: Any = 0) -> Value:
    before, behind = [0] * len(x.shape), [0] * len(x.shape)
    for n in range(len(widths) // 2):
        before[-1 - n], behind[-1 - n] = widths[2 * n], widths[2 * n + 1]
    for d, extent in enumerate(x.shape):  # negative widths cut off
        low, high = max(0, -before[d]), extent - max(0, -behind[d])
        x = x if (low, high) == (0, extent) else slice_(b, x, d, low, high)
    need(isinstance(value, int | float) and value == value, "a border of NaN")
    before, behind = [max(0, n) for n in before], [max(0, n) for n in behind]
    return b.node("pad", x, before=tuple(before), behind=tuple(behind), value=real_json(value))


@rule("upsample_nearest2d.vec", "upsample_nearest2d.default", "upsample_nearest1d.vec", "upsample_nearest1d.default",
      "upsample_nearest3d.vec", "upsample_nearest3d.default")  # fmt: skip
def _upsample(b: Builder, x: Value, *rest: Any, **keywords: Any) -> Value:
    for d in range(2, len(x.shape)):
        need(b.shape[d] % x.shape[d] == 0, "a factor that is not whole")
        if b.shape[d] != x.shape[d]:
            x = b.node("repeat", x, dim=d, times=b.shape[d] // x.shape[d])
    return b.node("identity", x)


# Constants


@rule("full.default", "full_like.default", "scalar_tensor.default", "zeros.default", "ones.default",
      "zeros_like.default", "ones_like.default", "new_full.default", "new_zeros.default", "new_ones.default",
      "empty.memory_format", "empty_like.default", "new_empty.default")  # fmt: skip
def _full(b: Builder, *arguments: Any, **keywords: Any) -> Value:
    values = [a for a in arguments if isinstance(a, int | float)]
    value = values[-1] if values else ("ones" in b.target)
    scalar = number(b, value, b.dtype)
    return b.node("expand", scalar, shape=b.shape) if b.shape else scalar


@rule("fill.Scalar")
def _fill(b: Builder, x: Value, value: Any) -> Value:
    scalar = number(b, value, b.dtype)
    return b.node("expand", scalar, shape=b.shape) if b.shape else scalar


@rule("arange.start_step", "arange.default", "arange.start")
def _arange(b: Builder, *arguments: Any, **keywords: Any) -> Value:
    need(all(isinstance(a, int) for a in arguments), "steps that are not whole")
    start, step = (arguments[0] if len(arguments) > 1 else 0), (arguments[2] if len(arguments) > 2 else 1)
    return b.node("range", count=b.shape[0], start=start, step=step, dtype=b.dtype.name)


# Pointwise

_UNARY = {
    "neg": "neg", "abs": "abs", "sign": "sign", "reciprocal": "reciprocal", "exp": "exp", "expm1": "expm1",
    "log": "log", "log2": "log2", "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin", "cos": "cos",
    "tanh": "tanh", "erf": "erf", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "round",
    "relu": "relu", "sigmoid": "sigmoid", "silu": "silu", "hardsigmoid": "hardsigmoid", "hardswish": "hardswish",
    "mish": "mish",
}  # fmt: skip
_BINARY = {
    "add.Tensor": "add", "add.Scalar": "add", "sub.Tensor": "sub", "sub.Scalar": "sub", "mul.Tensor": "mul",
    "mul.Scalar": "mul", "div.Tensor": "div", "div.Scalar": "div", "maximum.default": "maximum",
    "minimum.default": "minimum",
}  # fmt: skip
_COMPARE = {f"{name}.{kind}": name for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")}


def _unary(op: str) -> Rule:
    return lambda b, x: b.node(op, cast(b, x, b.dtype))


def _binary(op: str) -> Rule:
    def apply(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Value:
        need(not b.dtype.is_bool, "arithmetic on bools")
        second = operand(b, y, b.dtype)
        if alpha != 1:
            second = b.node("mul", second, number(b, alpha, b.dtype))
        return b.node(op, operand(b, x, b.dtype), second)

    return apply


def _compare(op: str) -> Rule:
    def apply(b: Builder, x: Any, y: Any) -> Value:
        dtype = b.common(x, y)
        if dtype.is_bool and op not in ("eq", "ne"):
            dtype = DTYPES["int32"]
        return b.node(op, operand(b, x, dtype), operand(b, y, dtype))

    return apply


RULES.update({f"aten.{name}.default": _unary(op) for name, op in _UNARY.items()})
RULES.update({f"aten.{name}": _binary(op) for name, op in _BINARY.items()})
RULES.update({f"aten.{name}": _compare(op) for name, op in _COMPARE.items()})


@rule("rsub.Scalar", "rsub.Tensor")
def _rsub(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Value:
    result = _binary("sub")(b, y, x, alpha)
    assert isinstance(result, Value)
    return result


@rule("gelu.default")
def _gelu(b: Builder, x: Value, approximate: str = "none") -> Value:
    return b.node("gelu_tanh" if approximate == "tanh" else "gelu", x)


@rule("leaky_relu.default")
def _leaky_relu(b: Builder, x: Value, slope: float = 0.01) -> Value:
    return b.node("leaky_relu", x, slope=slope)


@rule("elu.default")
def _elu(b: Builder, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    return b.node("elu", x, alpha=alpha, scale=scale, input_scale=input_scale)


@rule("softplus.default")
def _softplus(b: Builder, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    return b.node("softplus", x, beta=beta, threshold=threshold)


@rule("hardtanh.default", "clamp.default", "clamp.Tensor")
def _clamp(b: Builder, x: Value, low: Any = None, high: Any = None, **keywords: Any) -> Value:
    if low is None and high is None and "min" not in keywords and "max" not in keywords:
        need(b.target == "aten.hardtanh.default", "no bounds")
        low, high = -1.0, 1.0
    low, high = keywords.get("min", low), keywords.get("max", high)
    x = cast(b, x, b.dtype)
    x = x if low is None else b.node("maximum", x, operand(b, low, b.dtype))
    return x if high is None else b.node("minimum", x, operand(b, high, b.dtype))


@rule("clamp_min.default", "clamp_min.Tensor")
def _clamp_min(b: Builder, x: Value, low: Any) -> Value:
    return b.node("maximum", cast(b, x, b.dtype), operand(b, low, b.dtype))


@rule("clamp_max.default", "clamp_max.Tensor")
def _clamp_max(b: Builder, x: Value, high: Any) -> Value:
    return b.node("minimum", cast(b, x, b.dtype), operand(b, high, b.dtype))


@rule("pow.Tensor_Scalar", "pow.Tensor_Tensor")
def _pow(b: Builder, x: Value, exponent: Any) -> Value:
    x = cast(b, x, b.dtype)
    if isinstance(exponent, Value):
        need(b.dtype.is_float, "powers of integers")
        return b.node("pow", x, cast(b, exponent, b.dtype))
    match exponent:
        case 1:
            return b.node("identity", x)
        case 2:
            return b.node("square", x)
        case 3:
            return b.node("mul", b.node("square", x), x)
        case 4:
            return b.node("square", b.node("square", x))
    need(b.dtype.is_float, "powers of integers")
    names = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    return b.node(names[exponent], x) if exponent in names else b.node("pow", x, number(b, exponent, b.dtype))


@rule("_to_copy.default")
def _to_copy(b: Builder, x: Value, **keywords: Any) -> Value:
    return b.node("cast", x, dtype=b.dtype.name) if x.dtype != b.dtype else b.node("identity", x)


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(b: Builder, condition: Value, x: Any, y: Any) -> Value:
    return b.node("where", condition, operand(b, x, b.dtype), operand(b, y, b.dtype))


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(b: Builder, x: Value, mask: Value, value: Any) -> Value:
    return b.node("where", mask, operand(b, value, b.dtype), cast(b, x, b.dtype))


def _truth(b: Builder, x: Value) -> Value:
    return cast(b, x, DTYPES["bool"])


@rule("logical_not.default", "bitwise_not.default")
def _not(b: Builder, x: Value) -> Value:
    need(x.dtype.is_bool or b.target == "aten.logical_not.default", "bits")
    return b.node("logical_not", _truth(b, x))


def _logic(op: str) -> Rule:
    def apply(b: Builder, x: Value, y: Value) -> Value:
        need(isinstance(y, Value) and ("logical" in b.target or (x.dtype.is_bool and y.dtype.is_bool)), "bits")
        return b.node(op, _truth(b, x), _truth(b, y))

    return apply


for _kind, _op in (("and", "logical_and"), ("or", "logical_or"), ("xor", "ne")):
    RULES[f"aten.logical_{_kind}.default"] = RULES[f"aten.bitwise_{_kind}.Tensor"] = _logic(_op)


@rule("isnan.default")
def _isnan(b: Builder, x: Value) -> Value:
    return b.node("ne", x, x)


@rule("isinf.default")
def _isinf(b: Builder, x: Value) -> Value:
    need(x.dtype.is_float, "integers")
    return b.node("eq", b.node("abs", x), number(b, math.inf, x.dtype))


# Reductions


def _reduce(op: str) -> Rule:
    def apply(b: Builder, x: Value, dims: Any = None, keep: bool = False, *, dtype: Any = None, keepdim: bool = False,
              dim: Any = None) -> Value:  # fmt: skip
        x = cast(b, x, b.dtype)
        if not x.shape:
            return b.node("identity", x)
        return b.node(op, x, dims=dims_of(dims if dim is None else dim, len(x.shape)), keep=keep or keepdim)

    return apply


RULES.update(
    {f"aten.{name}": _reduce(op) for name, op in (
        ("sum.dim_IntList", "sum"), ("sum.default", "sum"), ("mean.dim", "mean"), ("mean.default", "mean"),
        ("amax.default", "max"), ("amin.default", "min"), ("prod.dim_int", "prod"), ("prod.default", "prod"),
        ("max.default", "max"), ("min.default", "min"))}
)  # fmt: skip


def _any(op: str) -> Rule:
    def apply(b: Builder, x: Value, dims: Any = None, keep: bool = False) -> Value:
        x = _truth(b, x)
        if not x.shape:
            return b.node("identity", x)
        found = b.node(op, cast(b, x, DTYPES["int32"]), dims=dims_of(dims, len(x.shape)), keep=keep)
        return _truth(b, found)

    return apply


for _kind in ("default", "dim", "dims"):
    RULES[f"aten.any.{_kind}"], RULES[f"aten.all.{_kind}"] = _any("max"), _any("min")


def _position(op: str) -> Rule:
    def apply(b: Builder, x: Value, dim: Any = None, keep: bool = False) -> Value:
        if dim is None or not x.shape:
            return reshape(b, b.node(op, reshape(b, x, (x.elements,)), dim=0, keep=False), b.shape)
        return b.node(op, x, dim=dim % len(x.shape), keep=keep)

    return apply


RULES["aten.argmax.default"], RULES["aten.argmin.default"] = _position("argmax"), _position("argmin")


@rule("max.dim", "min.dim")
def _extreme(b: Builder, x: Value, dim: int, keep: bool = False) -> Sequence[Value]:
    d, name = dim % len(x.shape), "max" if "max" in b.target else "min"
    return [b.node(name, x, dims=(d,), keep=keep), b.node(f"arg{name}", x, dim=d, keep=keep)]


@rule("var.correction", "var.dim")
def _var(b: Builder, x: Value, dims: Any = None, *rest: Any, correction: Any = 1, keepdim: bool = False) -> Value:
    need(not rest and correction in (0, 1, None) and bool(x.shape), "another form of var")
    correction = 1 if correction is None else int(correction)
    return b.node("variance", x, dims=dims_of(dims, len(x.shape)), keep=keepdim, correction=correction)


@rule("var_mean.correction")
def _var_mean(b: Builder, x: Value, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Sequence[Value]:
    variance = _var(b, x, dims, correction=correction, keepdim=keepdim)
    return [variance, b.node("mean", x, dims=dims_of(dims, len(x.shape)), keep=keepdim)]


@rule("linalg_vector_norm.default")
def _vector_norm(b: Builder, x: Value, order: Any = 2, dims: Any = None, keep: bool = False, **keywords: Any) -> Value:
    need(order in (1, 2) and bool(x.shape) and not keywords.get("dtype"), "another norm")
    powers = b.node("square" if order == 2 else "abs", x)
    total = b.node("sum", powers, dims=dims_of(dims, len(x.shape)), keep=keep)
    return b.node("sqrt", total) if order == 2 else total


@rule("logsumexp.default")
def _logsumexp(b: Builder, x: Value, dims: Any, keep: bool = False) -> Value:
    over = dims_of(dims, len(x.shape))
    x = cast(b, x, b.dtype)
    top = b.node("max", x, dims=over, keep=True)
    top = b.node("where", _isinf(b, top), number(b, 0.0, x.dtype), top)
    total = b.node("sum", b.node("exp", b.node("sub", x, top)), dims=over, keep=True)
    return reshape(b, b.node("add", b.node("log", total), top), b.shape)


@rule("_softmax.default", "softmax.int")
def _softmax(b: Builder, x: Value, dim: int, *rest: Any, **keywords: Any) -> Value:
    return b.node("softmax", cast(b, x, b.dtype), dim=dim % len(x.shape)) if x.shape else number(b, 1.0, b.dtype)


@rule("_log_softmax.default", "log_softmax.int")
def _log_softmax(b: Builder, x: Value, dim: int, *rest: Any, **keywords: Any) -> Value:
    return b.node("log_softmax", cast(b, x, b.dtype), dim=dim % len(x.shape)) if x.shape else number(b, 0.0, b.dtype)


def _scaled(b: Builder, y: Value, weight: Value | None, bias: Value | None) -> Value:
    y = y if weight is None else b.node("mul", y, weight)
    return y if bias is None else b.node("add", y, bias)


@rule("native_layer_norm.default")
def _layer_norm(b: Builder, x: Value, shape: Sequence[int], weight: Any, bias: Any, epsilon: float) -> Value:
    given = [cast(b, w, x.dtype) for w in (weight, bias) if w is not None]
    if weight is None and bias is not None:
        return _scaled(b, b.node("layer_norm", x, dims=len(shape), epsilon=epsilon), None, given[0])
    return b.node("layer_norm", x, *given, dims=len(shape), epsilon=epsilon)


@rule("_fused_rms_norm.default", "rms_norm.default")
def _rms_norm(b: Builder, x: Value, shape: Sequence[int], weight: Any = None, epsilon: Any = None) -> Value:
    need(epsilon is not None, "no epsilon")
    given = [] if weight is None else [cast(b, weight, x.dtype)]
    return b.node("rms_norm", x, *given, dims=len(shape), epsilon=epsilon)


@rule("native_group_norm.default")
def _group_norm(b: Builder, x: Value, weight: Any, bias: Any, n: int, c: int, hw: int, groups: int,
                epsilon: float) -> Value:  # fmt: skip
    given = [cast(b, w, x.dtype) for w in (weight, bias) if w is not None]
    need(len(given) != 1, "weights without a bias")
    return b.node("group_norm", x, *given, groups=groups, epsilon=epsilon)


@rule("_native_batch_norm_legit_no_training.default")
def _batch_norm(b: Builder, x: Value, weight: Any, bias: Any, mean: Value, variance: Value, momentum: float,
                epsilon: float) -> Value:  # fmt: skip
    def vector(given: Any, value: float) -> Value:
        if given is not None:
            return cast(b, given, x.dtype)
        return b.node("expand", number(b, value, x.dtype), shape=mean.shape)

    given = [vector(weight, 1.0), vector(bias, 0.0), cast(b, mean, x.dtype), cast(b, variance, x.dtype)]
    return b.node("batch_norm", x, *given, epsilon=epsilon)


@rule("_native_batch_norm_legit.no_stats")
def _batch_norm_of_batch(b: Builder, x: Value, weight: Any, bias: Any, training: bool, momentum: float,
                         epsilon: float) -> Value:  # fmt: skip
    mean, variance = _statistics(b, x)
    return _batch_norm(b, x, weight, bias, mean, variance, momentum, epsilon)


@rule("_native_batch_norm_legit_functional.default")
def _batch_norm_training(b: Builder, x: Value, weight: Any, bias: Any, mean: Value, variance: Value, training: bool,
                         momentum: float, epsilon: float) -> Sequence[Value]:  # fmt: skip
    need(training and mean.dtype == x.dtype, "another form of batch norm")
    own, spread = _statistics(b, x)
    count = x.elements // x.shape[1]
    need(count > 1, "one element a channel")

    def moved(old: Value, new: Value, factor: float) -> Value:
        kept = b.node("mul", old, number(b, 1.0 - momentum, old.dtype))
        return b.node("add", kept, b.node("mul", new, number(b, momentum * factor, old.dtype)))

    result = _batch_norm(b, x, weight, bias, own, spread, momentum, epsilon)
    inverse = b.node("rsqrt", b.node("add", spread, number(b, epsilon, x.dtype)))
    return [result, own, inverse, moved(mean, own, 1.0), moved(variance, spread, count / (count - 1))]


def _statistics(b: Builder, x: Value) -> tuple[Value, Value]:
    """The mean and the variance of each channel."""
    dims = (0, *range(2, len(x.shape)))
    return b.node("mean", x, dims=dims), b.node("variance", x, dims=dims, correction=0)


# Products


@rule("mm.default", "bmm.default", "matmul.default")
def _mm(b: Builder, x: Value, y: Value) -> Value:
    need(len(x.shape) > 1 and len(y.shape) > 1, "a product of vectors")
    return b.node("matmul", x, y)


@rule("mv.default")
def _mv(b: Builder, x: Value, y: Value) -> Value:
    return reshape(b, b.node("matmul", x, reshape(b, y, (*y.shape, 1))), b.shape)


@rule("dot.default")
def _dot(b: Builder, x: Value, y: Value) -> Value:
    return b.node("sum", b.node("mul", x, y), dims=(0,))


@rule("addmm.default", "baddbmm.default")
def _addmm(b: Builder, bias: Value, x: Value, y: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    total = b.node("matmul", x, y)
    total = total if alpha == 1 else b.node("mul", total, number(b, alpha, b.dtype))
    if beta == 0:
        return total
    return b.node("add", total, bias if beta == 1 else b.node("mul", bias, number(b, beta, b.dtype)))


@rule("linear.default")
def _linear(b: Builder, x: Value, weight: Value, bias: Any = None) -> Value:
    rows = reshape(b, x, (math.prod(x.shape[:-1]), x.shape[-1]))
    total = b.node("matmul", rows, transpose(b, weight))
    return reshape(b, total if bias is None else b.node("add", total, bias), b.shape)


@rule("convolution.default")
def _convolution(b: Builder, x: Value, w: Value, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
                 output_padding: Any, groups: int) -> Value:  # fmt: skip
    need(len(x.shape) == len(w.shape), "an image without a batch")
    rank = len(x.shape) - 2
    border = tuple_of(padding, rank)
    if transposed:
        steps, apart, further = (tuple_of(n, rank) for n in (stride, dilation, output_padding))
        return _transposed(b, x, w, bias, steps, border, apart, further, groups)
    operands = [x, w] if bias is None else [x, w, bias]
    return b.node("convolution", *operands, stride=tuple_of(stride, rank), before=border, behind=border,
                  dilation=tuple_of(dilation, rank), groups=groups)  # fmt: skip


def _transposed(b: Builder, x: Value, w: Value, bias: Any, stride: Sequence[int], padding: Sequence[int],
                dilation: Sequence[int], further: Sequence[int], groups: int) -> Value:  # fmt: skip
    """A transposed convolution as a convolution: zeros between the pixels, filters turned around and transposed."""
    rank, depth, filters = len(stride), w.shape[0] // groups, w.shape[1]
    before, behind = [], []
    for d in range(rank):
        x = b.node("spread", x, dim=d + 2, step=stride[d])
        reach = dilation[d] * (w.shape[d + 2] - 1) - padding[d]
        low, high = max(0, -reach), max(0, -(reach + further[d]))
        if low or high:
            x = slice_(b, x, d + 2, low, x.shape[d + 2] - high)
        before.append(max(0, reach))
        behind.append(max(0, reach + further[d]))
    kernel = w.shape[2:]
    need(rank + 3 <= 8, "so many dimensions")
    w = b.node("flip", reshape(b, w, (groups, depth, filters, *kernel)), dims=tuple(range(3, 3 + rank)))
    w = reshape(b, transpose(b, w, 1, 2), (groups * filters, depth, *kernel))
    operands = [x, w] if bias is None else [x, w, bias]
    return b.node("convolution", *operands, stride=(1,) * rank, before=tuple(before), behind=tuple(behind),
                  dilation=tuple(dilation), groups=groups)  # fmt: skip


def attention(b: Builder, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float | None) -> Value:
    """softmax(q kᵀ * scale + mask) v, over the last two dimensions."""
    if k.shape[-3:-2] != q.shape[-3:-2]:
        need(len(q.shape) == 4 and q.shape[1] % k.shape[1] == 0, "heads that do not match")
        k, v = (b.node("repeat", t, dim=1, times=q.shape[1] // k.shape[1]) for t in (k, v))
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = b.node("mul", b.node("matmul", q, transpose(b, k)), number(b, factor, q.dtype))
    if causal:
        rows = b.node("range", count=q.shape[-2], dtype="int64")
        columns = b.node("range", count=k.shape[-2], dtype="int64")
        seen = b.node("le", columns, reshape(b, rows, (q.shape[-2], 1)))
        scores = b.node("where", seen, scores, number(b, -math.inf, q.dtype))
    if mask is not None:
        if mask.dtype.is_bool:
            scores = b.node("where", mask, scores, number(b, -math.inf, q.dtype))
        else:
            scores = b.node("add", scores, cast(b, mask, q.dtype))
    return b.node("matmul", b.node("softmax", scores, dim=len(scores.shape) - 1), v)


@rule("_scaled_dot_product_flash_attention_for_cpu.default")
def _flash_cpu(b: Builder, q: Value, k: Value, v: Value, dropout: float = 0.0, causal: bool = False, *,
               attn_mask: Any = None, scale: Any = None) -> Value:  # fmt: skip
    need(dropout == 0, "dropout")
    return attention(b, q, k, v, attn_mask, causal, scale)


@rule("_scaled_dot_product_flash_attention.default")
def _flash(b: Builder, q: Value, k: Value, v: Value, *rest: Any, scale: Any = None) -> Value:
    dropout, causal = (*rest, 0.0, False)[:2]
    need(dropout == 0, "dropout")
    return attention(b, q, k, v, None, bool(causal), scale)


@rule("_scaled_dot_product_efficient_attention.default", "_scaled_dot_product_cudnn_attention.default")
def _efficient(b: Builder, q: Value, k: Value, v: Value, mask: Any, log: bool, dropout: float = 0.0,
               causal: bool = False, *, scale: Any = None) -> Value:  # fmt: skip
    need(dropout == 0, "dropout")
    return attention(b, q, k, v, mask, causal, scale)


@rule("scaled_dot_product_attention.default", "_scaled_dot_product_attention_math.default")
def _attention(b: Builder, q: Value, k: Value, v: Value, attn_mask: Any = None, dropout_p: float = 0.0,
               is_causal: bool = False, *rest: Any, scale: Any = None, enable_gqa: bool = False) -> Value:  # fmt: skip
    need(dropout_p == 0 and not rest, "dropout")
    return attention(b, q, k, v, attn_mask, is_causal, scale)


# Pools


def _window(b: Builder, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Mapping[str, object]:
    rank = len(tuple_of(kernel, 0)) if not isinstance(kernel, int) else 1
    rank = max(rank, len(b.shape) - 2 if len(x.shape) > 2 else 1)
    size, border = tuple_of(kernel, rank), tuple_of(padding, rank)
    step = tuple_of(stride, rank) if stride not in ((), [], None) else size
    apart = tuple_of(dilation, rank)
    behind = []
    for d in range(rank):  # as much as the windows that torch has need, which may be more where it rounds up
        reach = (b.shape[d - rank] - 1) * step[d] + apart[d] * (size[d] - 1) + 1
        behind.append(max(border[d], reach - border[d] - x.shape[d - rank]))
    return {"kernel": size, "stride": step, "before": border, "behind": tuple(behind), "dilation": apart}


@rule("max_pool2d_with_indices.default", "max_pool3d_with_indices.default", "max_pool2d.default", "max_pool1d.default")
def _max_pool(b: Builder, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
              ceil: bool = False) -> Value:  # fmt: skip
    return b.node("max_pool", x, **_window(b, x, kernel, stride, padding, dilation))


@rule("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _average_pool(b: Builder, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
                  count_border: bool = True, divisor: Any = None) -> Value:  # fmt: skip
    window = _window(b, x, kernel, stride, padding)
    count_border = count_border and any(tuple_of(padding, 1))  # what windows reach beyond the border never counts
    need(divisor is None and (not count_border or window["before"] == window["behind"]), "another divisor")
    return b.node("average_pool", x, **window, count_border=count_border)


@rule("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default", "adaptive_avg_pool1d.default")
def _adaptive(b: Builder, x: Value, size: Any) -> Value:
    rank = len(list(size))
    extents, counts = x.shape[-rank:], b.shape[-rank:]
    if all(c == 1 for c in counts):
        return b.node("mean", x, dims=tuple(range(len(x.shape) - rank, len(x.shape))), keep=True)
    need(all(e % c == 0 for e, c in zip(extents, counts, strict=True)), "windows of unequal sizes")
    kernel = tuple(e // c for e, c in zip(extents, counts, strict=True))
    return b.node("average_pool", x, **_window(b, x, kernel, kernel, 0))
