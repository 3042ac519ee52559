"""The dtype and the number of lanes of every expression, or the rule of the verifier that it breaks."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.dtypes import INDEX, DType, boolean
from ..buffer import Buffer, MemoryScope
from ..expr import (
    BITWISE,
    FLOAT_ONLY,
    WARP_LANES,
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    ClusterLoad,
    Compare,
    Const,
    Expr,
    Load,
    Logic,
    Ramp,
    ReduceLanes,
    Select,
    Shuffle,
    Unary,
    UnaryOp,
    Var,
)
from ..stmt import HardwareAxis, Launch

ValueType = tuple[DType, int]
"""A dtype and a number of lanes."""

_INTEGERS_ONLY = frozenset({BinaryOp.FLOORDIV, BinaryOp.MOD, *BITWISE})
_FLOATS_ONLY = frozenset({BinaryOp.DIV, BinaryOp.POW})
_LANE_REDUCTIONS = frozenset({BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX})


class RuleBroken(Exception):
    """A rule of the verifier is broken: its name in ``ir.verify.RULES``, and what breaks it."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(detail)
        self.rule = rule
        self.detail = detail


@dataclass(frozen=True)
class BoundNames:
    """The variables and buffers that are bound at one place, and the launch around it. ``known`` remembers the types of
    the expressions that were already found good there, by their ids."""

    variables: frozenset[str]
    buffers: dict[str, Buffer]
    known: dict[int, tuple[Expr, ValueType]] = field(default_factory=dict)
    launch: Launch | None = None

    def with_variable(self, name: str) -> "BoundNames":
        return BoundNames(self.variables | {name}, self.buffers, launch=self.launch)

    def with_buffer(self, buffer: Buffer) -> "BoundNames":
        return BoundNames(self.variables, {**self.buffers, buffer.name: buffer}, launch=self.launch)

    def as_accessed(self, buffer: Buffer) -> "BoundNames":
        """Return the names for a load, store, copy or prefetch. Those of a launch take a global buffer for a single
        dimension, or for one without its dimensions of one element."""
        bound = self.buffers.get(buffer.name)
        if self.launch is None or bound in (None, buffer) or buffer.scope is not MemoryScope.GLOBAL:
            return self
        views = (replace(bound, shape=(bound.elements,)), bound.squeezed)
        return self.with_buffer(buffer) if buffer in views else self

    def inside(self, launch: Launch) -> "BoundNames":
        """Return the names that are bound in the body of ``launch``."""
        return BoundNames(self.variables | {b.var for b in launch.axes}, self.buffers, launch=launch)


def type_of(expr: Expr, names: BoundNames) -> ValueType:
    """Return the type of ``expr``. Raises RuleBroken where it, or something below it, breaks a rule."""
    found = names.known.get(id(expr))
    if found is not None:
        return found[1]
    rule = _TYPES.get(type(expr))
    if rule is None:
        raise RuleBroken("types", f"{type(expr).__name__} is no expression of kernels")
    result = rule(expr, names)
    names.known[id(expr)] = (expr, result)
    return result


def access_lanes(buffer: Buffer, indices: tuple[Expr, ...], mask: Expr | None, names: BoundNames) -> int:
    """Return how many lanes an access has. Raises RuleBroken."""
    bound = names.buffers.get(buffer.name)
    if bound is None:
        raise RuleBroken("scope", f"buffer {buffer.name} is not bound here")
    if bound != buffer:
        raise RuleBroken("scope", f"buffer {buffer.name} is accessed as {buffer} but declared as {bound}")
    if len(indices) != len(buffer.shape):
        raise RuleBroken("indices", f"{len(indices)} indices for {buffer.name} of {len(buffer.shape)} dimensions")
    lanes = 1
    for position, index in enumerate(indices):
        dtype, index_lanes = type_of(index, names)
        if dtype != INDEX:
            raise RuleBroken("indices", f"index {position} of {buffer.name} is {dtype}, not {INDEX}")
        if index_lanes != 1:
            if lanes not in (1, index_lanes):
                raise RuleBroken("lanes", f"indices of {buffer.name} have {lanes} and {index_lanes} lanes")
            lanes = index_lanes
    if mask is not None:
        mask_type = type_of(mask, names)
        if mask_type != (boolean, lanes):
            raise RuleBroken("mask", f"the mask of {buffer.name} is {_named(mask_type)}, the access has {lanes} lanes")
    return lanes


def _named(of: ValueType) -> str:
    return f"{of[0]} in {of[1]} lanes" if of[1] != 1 else str(of[0])


def _same(expr: Expr, a: ValueType, b: ValueType) -> ValueType:
    what = getattr(expr, "op", type(expr).__name__.lower())
    if a[0] != b[0]:
        raise RuleBroken("types", f"{what} of {a[0]} and {b[0]}")
    if a[1] != b[1]:
        raise RuleBroken("lanes", f"{what} of {a[1]} and {b[1]} lanes")
    return a


def _var(expr: Var, names: BoundNames) -> ValueType:
    if expr.name not in names.variables:
        raise RuleBroken("scope", f"variable {expr.name} is not bound here")
    return INDEX, 1


def _const(expr: Const, names: BoundNames) -> ValueType:
    value, dtype = expr.value, expr.type
    if dtype.is_bool:
        fits = isinstance(value, bool)
    elif dtype.is_float:
        fits = isinstance(value, float) and value == value
    else:
        low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
        fits = type(value) is int and low <= value < low + (1 << dtype.bits)
    if not fits:
        raise RuleBroken("types", f"{value!r} is no constant of {dtype}")
    return dtype, 1


def _binary(expr: Binary, names: BoundNames) -> ValueType:
    result = _same(expr, type_of(expr.a, names), type_of(expr.b, names))
    dtype = result[0]
    wrong = dtype.is_bool or (expr.op in _INTEGERS_ONLY and dtype.is_float)
    if wrong or (expr.op in _FLOATS_ONLY and not dtype.is_float):
        raise RuleBroken("types", f"{expr.op} of {dtype}")
    return result


def _compare(expr: Compare, names: BoundNames) -> ValueType:
    return boolean, _same(expr, type_of(expr.a, names), type_of(expr.b, names))[1]


def _logic(expr: Logic, names: BoundNames) -> ValueType:
    result = _same(expr, type_of(expr.a, names), type_of(expr.b, names))
    if not result[0].is_bool:
        raise RuleBroken("types", f"{expr.op} of {result[0]}")
    return result


def _unary(expr: Unary, names: BoundNames) -> ValueType:
    result = type_of(expr.value, names)
    dtype = result[0]
    if expr.op is UnaryOp.NOT:
        fits = dtype.is_bool
    else:
        fits = dtype.is_float if expr.op in FLOAT_ONLY else not dtype.is_bool
    if not fits:
        raise RuleBroken("types", f"{expr.op} of {dtype}")
    return result


def _select(expr: Select, names: BoundNames) -> ValueType:
    condition, then = type_of(expr.condition, names), type_of(expr.then, names)
    result = _same(expr, then, type_of(expr.otherwise, names))
    if not condition[0].is_bool:
        raise RuleBroken("types", f"select on {condition[0]}")
    if condition[1] != result[1]:
        raise RuleBroken("lanes", f"select on {condition[1]} lanes between values of {result[1]}")
    return result


def _cast(expr: Cast, names: BoundNames) -> ValueType:
    return expr.type, type_of(expr.value, names)[1]


def _load(expr: Load, names: BoundNames) -> ValueType:
    return expr.buffer.dtype, access_lanes(expr.buffer, expr.indices, expr.mask, names.as_accessed(expr.buffer))


def _ramp(expr: Ramp, names: BoundNames) -> ValueType:
    base = type_of(expr.base, names)
    if base[0] != INDEX:
        raise RuleBroken("types", f"a ramp from {base[0]}")
    if base[1] != 1 or expr.count < 1:
        raise RuleBroken("lanes", f"a ramp of {expr.count} lanes from {base[1]}")
    return INDEX, expr.count


def _broadcast(expr: Broadcast, names: BoundNames) -> ValueType:
    value = type_of(expr.value, names)
    if value[1] != 1 or expr.count < 1:
        raise RuleBroken("lanes", f"a broadcast to {expr.count} lanes from {value[1]}")
    return value[0], expr.count


def _reduce_lanes(expr: ReduceLanes, names: BoundNames) -> ValueType:
    value = type_of(expr.value, names)
    if expr.op not in _LANE_REDUCTIONS or value[0].is_bool:
        raise RuleBroken("types", f"lanes of {value[0]} combined by {expr.op}")
    return value[0], 1


def _shuffle(expr: Shuffle, names: BoundNames) -> ValueType:
    value, lane = type_of(expr.value, names), type_of(expr.lane, names)
    if names.launch is None or names.launch.threads % WARP_LANES:
        raise RuleBroken("warps", "a shuffle where there are no whole warps")
    if lane[0] != INDEX:
        raise RuleBroken("types", f"a shuffle from a lane numbered by {lane[0]}")
    if value[1] != 1 or lane[1] != 1:
        raise RuleBroken("lanes", f"a shuffle of {value[1]} lanes from {lane[1]}")
    if expr.width not in (2, 4, 8, 16, 32):
        raise RuleBroken("types", f"a shuffle within groups of {expr.width}")
    return value[0], 1


def _cluster_load(expr: ClusterLoad, names: BoundNames) -> ValueType:
    lanes = access_lanes(expr.buffer, expr.indices, None, names)
    if names.launch is None or names.launch.extent(HardwareAxis.CLUSTER) == 1:
        raise RuleBroken("launch", f"{expr.buffer.name} of another block is loaded where there are no clusters")
    if expr.buffer.scope is not MemoryScope.SHARED:
        raise RuleBroken("operation", f"{expr.buffer.name} of another block has scope {expr.buffer.scope}, not shared")
    if type_of(expr.block, names) != (INDEX, 1):
        raise RuleBroken("types", "the block of a load is no scalar of the index type")
    return expr.buffer.dtype, lanes


_TYPES: dict[type[Expr], Callable[[Any, BoundNames], ValueType]] = {
    Var: _var,
    Const: _const,
    Binary: _binary,
    Compare: _compare,
    Logic: _logic,
    Unary: _unary,
    Select: _select,
    Cast: _cast,
    Load: _load,
    Ramp: _ramp,
    Broadcast: _broadcast,
    ReduceLanes: _reduce_lanes,
    Shuffle: _shuffle,
    ClusterLoad: _cluster_load,
}
"""The rule for each class of node."""
