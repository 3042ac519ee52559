"""Writes expressions in C++. A load that its ``select`` or its mask rules out is never performed.

A scalar becomes one C++ expression; what is used more than once gets a name first. A vector becomes a short loop over
its lanes, which the compiler unrolls:

    #pragma unroll
    for (int l = 0; l < 8; ++l) r[l] = x[l] * scale;

What all lanes share, and vectors that wide accesses can load, are computed ahead of that loop.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields

from ....core.dtypes import float32
from ....core.errors import CompileError
from ....ir.buffer import MemoryScope
from ....ir.expr import (
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
    ShuffleMode,
    Unary,
    Var,
    distinct_nodes,
    rebuild,
)
from . import memory
from .access import uniform_mask
from .arithmetic import binary, cast, combine, compare, logic, result_type, unary, unclamped
from .function import EmittedFunction, is_packed
from .text import CppText, CppValue, Precedence, call, conditional, converted, infix
from .types import compute_type, literal

_SHUFFLES = {
    ShuffleMode.XOR: "__shfl_xor_sync",
    ShuffleMode.DOWN: "__shfl_down_sync",
    ShuffleMode.INDEX: "__shfl_sync",
}


@dataclass(slots=True)
class ExpressionEmitter:
    """Writes expressions at one insertion point, and remembers what has been computed there.

    fn, text: They are the function, and the lines at the insertion point.
    uses: How often each expression is used (``use_counts``).
    lane: In a loop over lanes, it is the loop's variable.
    outer: In a loop over lanes, it is the emitter ahead of the loop, which computes what all lanes share.
    guarded: Whether these lines run only under a condition on the lane.
    hoist_to: For one arm of a ``?:``, it is the emitter ahead of it, which computes what is used more than once and
        reads no memory.
    known: Which expressions, by identity, have been computed, and what their values are.
    """

    fn: EmittedFunction
    text: CppText
    uses: dict[int, int]
    lane: CppValue | None = None
    outer: "ExpressionEmitter | None" = None
    guarded: bool = False
    hoist_to: "ExpressionEmitter | None" = None
    known: dict[int, tuple[Expr, CppValue]] = field(default_factory=dict)

    def value(self, expr: Expr) -> CppValue:
        """Return the value of a scalar, or, in a loop over lanes, of this lane of a vector."""
        if expr.lanes == 1 and self.outer is not None and not (self.guarded and self.fn.reads_memory(expr)):
            return self.outer.value(expr)
        found = self._find(expr)
        if found is not None:
            return found
        if self.hoist_to is not None and self.uses.get(id(expr), 0) > 1 and not self.fn.reads_memory(expr):
            return self.hoist_to.value(expr)
        value = self._compute(expr)
        if self.uses.get(id(expr), 0) > 1 and not self._is_free(expr) and not value.text.isidentifier():
            value = self.named(value)
        self.known[id(expr)] = (expr, value)
        return value

    @staticmethod
    def _is_free(expr: Expr) -> bool:
        """Return whether computing ``expr`` anew costs nothing."""
        if isinstance(expr, Load):
            return expr.mask is None and expr.buffer.scope is MemoryScope.REGISTER and not is_packed(expr.buffer)
        return isinstance(expr, (Const, Var, Broadcast, Ramp))

    def _find(self, expr: Expr) -> CppValue | None:
        found = self.known.get(id(expr))
        return None if found is None else found[1]

    def named(self, value: CppValue, name: str = "t") -> CppValue:
        """Declare a constant that holds ``value``."""
        name = self.fn.fresh(name)
        self.text.line(f"const {value.type} {name} = {value.text};")
        return CppValue(name, value.type)

    def inner(self) -> "ExpressionEmitter":
        """Return an emitter for a nested block, which knows what is known here."""
        known = dict(self.known)
        return ExpressionEmitter(self.fn, CppText(), self.uses, self.lane, self.outer, self.guarded, known=known)

    def _compute(self, expr: Expr) -> CppValue:
        fn = self.fn
        match expr:
            case Var(name=name):
                bounds = fn.ranges.of(expr)
                narrow = -(1 << 31) <= bounds.low and bounds.high < 1 << 31
                return CppValue(fn.name_of(name), "int" if narrow else "long long")
            case Const(value=value, type=dtype):
                return literal(value, dtype)
            case Binary(a=a, b=b):
                return binary(fn, expr, self.value(a), self.value(b))
            case Compare(op=comparison, a=a, b=b):
                return compare(comparison, self.value(a), self.value(b))
            case Logic(op=connective, a=a, b=b):
                return logic(connective, self.value(a), self.value(b))
            case Unary(value=operand):
                return unary(fn, expr, self.value(operand))
            case Cast(value=operand, type=dtype) if dtype == float32 and _is_small(operand):
                return call(fn.use("small_to_float"), "float", self.value(operand))
            case Cast(value=operand, type=dtype):
                operand = unclamped(operand, dtype)
                return cast(fn, self.value(operand), operand.dtype, dtype)
            case Select(condition=condition, then=then, otherwise=otherwise):
                return self._select(expr, condition, then, otherwise)
            case Load():
                return self._load(expr)
            case ClusterLoad():
                return self._cluster_load(expr)
            case Shuffle(mode=mode, value=operand, lane=lane, width=width):
                moved = self.value(operand)
                moved_as = "int" if operand.dtype.bits < 32 and not operand.dtype.is_float else moved.type
                arguments: list[CppValue | str] = ["0xffffffffu", converted(moved, moved_as), self.value(lane)]
                result = call(_SHUFFLES[mode], moved_as, *arguments, *([str(width)] if width != 32 else []))
                return self.named(converted(result, moved.type))
            case Broadcast(value=operand):
                return self.value(operand)
            case Ramp(base=base, stride=stride):
                return self._ramp(expr, base, stride)
            case ReduceLanes():
                return self._reduce(expr)
        raise CompileError(f"{type(expr).__name__} cannot be expressed in CUDA C++")

    def _ramp(self, expr: Ramp, base: Expr, stride: int) -> CppValue:
        start = self.value(base)
        if self.lane is None:
            return start
        type = result_type(self.fn, expr, start)
        step = self.lane
        if stride != 1:
            step = infix(step, "*", CppValue(str(stride), "int"), "int", Precedence.MULTIPLICATIVE)
        if type == "long long":
            start = converted(start, type)
        return infix(start, "+", step, type, Precedence.ADDITIVE)

    # Select

    def _select(self, expr: Select, condition: Expr, then: Expr, otherwise: Expr) -> CppValue:
        self.hoist_shuffles(then)
        self.hoist_shuffles(otherwise)
        reads = self.fn.reads_memory(then) or self.fn.reads_memory(otherwise)
        if self.outer is not None and not self.guarded and reads:
            scalar = uniform_mask(condition)
            if scalar is not None:
                return self.outer.select_vector(expr, scalar, self.lane)
        test = self.value(condition)
        (then_lines, first), (otherwise_lines, second) = self._arm(then), self._arm(otherwise)
        type = first.type
        if type != second.type:  # integers of two widths, which C++ converts to one
            type = "long long" if "long long" in (type, second.type) else "int"
        if not then_lines.lines and not otherwise_lines.lines:
            return conditional(test, first, second, type)
        name = self.fn.fresh("selected")
        self.text.line(f"{type} {name};")
        for header, lines, value in ((f"if ({test.text})", then_lines, first), ("else", otherwise_lines, second)):
            with self.text.block(header) as inside:
                inside.append(lines)
                inside.line(f"{name} = {value.text};")
        return CppValue(name, type)

    def select_vector(self, expr: Select, condition: Expr, lane: CppValue | None) -> CppValue:
        """Return one lane of one of two vectors, selected by one condition for all lanes. One of two loops fills an
        array."""
        assert lane is not None
        array = self.fn.fresh("selected")
        type = compute_type(expr.dtype)
        self.text.line(f"{type} {array}[{expr.lanes}];")
        for header, arm in ((f"if ({self.value(condition).text})", expr.then), ("else", expr.otherwise)):
            below = self.inner()
            loop = below.lane_loop()
            value = loop.value(arm)
            assert loop.lane is not None
            below.end_lane_loop(loop, expr.lanes, f"{array}[{loop.lane.text}] = {value.text};")
            with self.text.block(header) as inside:
                inside.append(below.text)
        return CppValue(f"{array}[{lane.text}]", type)

    def hoist_shuffles(self, expr: Expr) -> None:
        """Compute the shuffles in ``expr`` now: all lanes of a warp must take part, also where few want the result."""
        for below in distinct_nodes(expr):
            if isinstance(below, Shuffle):
                self.value(below)

    def _arm(self, expr: Expr) -> tuple[CppText, CppValue]:
        """Return the statements that one arm of a select needs, and its value."""
        below = self.inner()
        below.guarded, below.hoist_to = self.guarded or self.lane is not None, self
        value = below.value(expr)
        return below.text, value

    # Loads

    def _load(self, expr: Load) -> CppValue:
        buffer = expr.buffer
        if expr.lanes > 1 and self.lane is not None and not self.guarded and self.outer is not None:
            array = self.outer.vector_load(expr)
            if array is not None:
                return array(self.lane)
        if expr.mask is None:
            return memory.element(self, buffer, expr.indices)
        mask = self.value(expr.mask)
        below = self.inner()
        below.guarded, below.hoist_to = True, self
        value = memory.element(below, buffer, expr.indices)
        if below.text.lines:
            return self._guarded_load(mask, below.text, value)
        return conditional(mask, value, literal(0, buffer.dtype), value.type)

    def _guarded_load(self, mask: CppValue, lines: CppText, value: CppValue) -> CppValue:
        """Write a load with the statements that it needs under ``if (mask)``. Its value is 0 where the mask is
        false."""
        name = self.fn.fresh("loaded")
        self.text.line(f"{value.type} {name} = 0;")
        with self.text.block(f"if ({mask.text})") as inside:
            inside.append(lines)
            inside.line(f"{name} = {value.text};")
        return CppValue(name, value.type)

    def _cluster_load(self, expr: ClusterLoad) -> CppValue:
        if expr.lanes > 1 and self.outer is not None and not self.guarded:
            array = self.outer.vector_load(expr)
            if array is not None:
                return array(self.lane)
        return self.named(memory.cluster_element(self, expr), expr.buffer.name)

    def vector_load(self, expr: Load | ClusterLoad) -> "Callable[[CppValue | None], CppValue] | None":
        """Fill an array with a vector by wide accesses, and return a function from a lane to its value; None where
        ``expr`` has no wide accesses."""
        key = id(expr)
        found = self.known.get(key)
        if found is None:
            made = memory.vector_load(self, expr)
            if made is None:
                return None
            self.known[key] = found = (expr, made)
        array = found[1]
        return lambda lane: memory.array_lane(self, array, expr.dtype, lane)

    # Lanes

    def lane_loop(self) -> "ExpressionEmitter":
        """Return an emitter for the body of a loop over lanes; ``end_lane_loop`` writes the loop itself."""
        return ExpressionEmitter(self.fn, CppText(), self.uses, CppValue(self.fn.fresh("l"), "int"), self)

    def end_lane_loop(self, loop: "ExpressionEmitter", count: int, *lines: str) -> None:
        """Write the loop over ``count`` lanes: what ``loop`` computed, then ``lines``."""
        assert loop.lane is not None
        lane = loop.lane.text
        self.text.line("#pragma unroll")
        with self.text.block(f"for (int {lane} = 0; {lane} < {count}; ++{lane})") as inside:
            inside.append(loop.text)
            for line in lines:
                inside.line(line)

    def array(self, expr: Expr, name: str = "r") -> str:
        """Fill an array with the lanes of a vector, in the type that they are computed in, and return its name."""
        loop = self.lane_loop()
        value = loop.value(expr)
        array = self.fn.fresh(name)
        self.text.line(f"{compute_type(expr.dtype)} {array}[{expr.lanes}];")
        assert loop.lane is not None
        self.end_lane_loop(loop, expr.lanes, f"{array}[{loop.lane.text}] = {value.text};")
        return array

    def _reduce(self, expr: ReduceLanes) -> CppValue:
        if expr.value.lanes == 1:
            return self.value(expr.value)
        dtype = expr.dtype
        known = self.known if self.lane is None else {}
        count = expr.value.lanes
        array = ExpressionEmitter(self.fn, self.text, self.uses, known=known).array(expr.value, "partial")
        type = compute_type(dtype)
        if count & (count - 1) == 0:
            return self._reduce_tree(expr, array)
        total = self.fn.fresh("reduced")
        self.text.line(f"{type} {total} = {array}[0];")
        lane = self.fn.fresh("l")
        step = combine(self.fn, expr.op, dtype, CppValue(total, type), CppValue(f"{array}[{lane}]", type))
        self.text.line("#pragma unroll")
        with self.text.block(f"for (int {lane} = 1; {lane} < {count}; ++{lane})") as inside:
            inside.line(f"{total} = {step.text};")
        return CppValue(total, type)

    def _reduce_tree(self, expr: ReduceLanes, array: str) -> CppValue:
        """Combine the halves of an array until one element is left, so that the steps of one level are independent."""
        type = compute_type(expr.dtype)
        stride, lane = self.fn.fresh("stride"), self.fn.fresh("l")
        cells = (CppValue(f"{array}[{at}]", type) for at in (lane, f"{lane} + {stride}"))
        step = combine(self.fn, expr.op, expr.dtype, *cells)
        self.text.line("#pragma unroll")
        with self.text.block(f"for (int {stride} = {expr.value.lanes // 2}; {stride} > 0; {stride} /= 2)") as outer:
            outer.line("#pragma unroll")
            with outer.block(f"for (int {lane} = 0; {lane} < {stride}; ++{lane})") as inside:
                inside.line(f"{array}[{lane}] = {step.text};")
        return CppValue(f"{array}[0]", type)


def interned(*roots: Expr) -> tuple[Expr, ...]:
    """Return the same expressions with equal parts made one object (hash consing), so that they are computed once."""
    done: dict[int, Expr] = {}
    unique: dict[tuple[object, ...], Expr] = {}

    def visit(expr: Expr) -> Expr:
        found = done.get(id(expr))
        if found is None:
            below = [visit(child) for child in expr.children]
            whole = rebuild(expr, below) if below else expr
            own = tuple(
                value
                for f in fields(whole)  # type: ignore[arg-type]
                if not isinstance(value := getattr(whole, f.name), (Expr, tuple))
            )
            key = (type(whole), *own, *map(id, below), *([expr] if not below else []))
            found = done[id(expr)] = unique.setdefault(key, whole)
        return found

    return tuple(visit(root) for root in roots)


def use_counts(*roots: Expr) -> dict[int, int]:
    """Return expression (by identity) -> how often it is an operand below ``roots``, or one of them."""
    counts: dict[int, int] = {}
    pending = list(roots)
    while pending:
        expr = pending.pop()
        counts[id(expr)] = counts.get(id(expr), 0) + 1
        if counts[id(expr)] == 1:
            pending.extend(expr.children)
    return counts


_EXACT_BITS = 23
"""A whole number of so many bits may be the last bits of a float32 as it is."""


def _is_small(e: Expr) -> bool:
    """Return whether ``e`` is a few bits of a word, which are a whole number without a sign."""
    if not isinstance(e, Binary) or e.op is not BinaryOp.BIT_AND or e.dtype.bits > 32:
        return False
    masks = [c.value if isinstance(c, Broadcast) else c for c in e.children]
    return any(isinstance(c, Const) and 0 <= c.value < 1 << _EXACT_BITS for c in masks)
