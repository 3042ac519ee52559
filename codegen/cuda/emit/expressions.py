"""Expressions to C++. A load that its ``select`` or mask rules out is never performed.

A scalar becomes one C++ expression; what is used more than once gets a name first. A vector is computed lane by lane,
in a short loop that the compiler writes out: ``#pragma unroll for (int l …) r[l] = …``. What all lanes share, and
vectors that can be loaded in wide accesses, are computed ahead of that loop.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields

from ....core.errors import CompileError
from ....ir.buffer import MemoryScope
from ....ir.expr import (
    Binary,
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
    rebuild,
)
from . import memory
from .access import one_for_all
from .arithmetic import binary, cast, compare, logic, plain, result_type, unary
from .function import Function, is_packed
from .text import Level, Text, Value, call, converted, infix
from .types import computed, literal

_SHUFFLES = {
    ShuffleMode.XOR: "__shfl_xor_sync",
    ShuffleMode.DOWN: "__shfl_down_sync",
    ShuffleMode.INDEX: "__shfl_sync",
}


@dataclass(slots=True)
class Code:
    """One place where statements are being written, and what has been computed there.

    ``lane``: the number of the lane in a loop over lanes, whose scalars belong to ``outer``. ``lazy``: the lines
    written here run only under a condition on the lane. ``above``: for one branch of a choice, where the choice stands;
    what is used more than once and reads nothing is computed there.
    """

    fn: Function
    text: Text
    uses: dict[int, int]
    lane: Value | None = None
    outer: "Code | None" = None
    lazy: bool = False
    above: "Code | None" = None
    known: dict[int, tuple[Expr, Value]] = field(default_factory=dict)

    # --- values

    def value(self, expr: Expr) -> Value:
        """The value of a scalar; in a loop over lanes, also that of this lane of a vector."""
        if expr.lanes == 1 and self.outer is not None and not (self.lazy and self.fn.reads(expr)):
            return self.outer.value(expr)
        found = self._find(expr)
        if found is not None:
            return found
        if self.above is not None and self.uses.get(id(expr), 0) > 1 and not self.fn.reads(expr):
            return self.above.value(expr)
        value = self._compute(expr)
        if self.uses.get(id(expr), 0) > 1 and not self._is_plain(expr) and not value.text.isidentifier():
            value = self.named(value)
        self.known[id(expr)] = (expr, value)
        return value

    @staticmethod
    def _is_plain(expr: Expr) -> bool:
        """Whether computing ``expr`` anew costs nothing."""
        if isinstance(expr, Load):
            return expr.mask is None and expr.buffer.scope is MemoryScope.REGISTER and not is_packed(expr.buffer)
        return isinstance(expr, (Const, Var, Broadcast, Ramp))

    def _find(self, expr: Expr) -> Value | None:
        found = self.known.get(id(expr))
        return None if found is None else found[1]

    def named(self, value: Value, name: str = "t") -> Value:
        """A constant that holds ``value``."""
        name = self.fn.fresh(name)
        self.text.line(f"const {value.type} {name} = {value.text};")
        return Value(name, value.type)

    def inner(self) -> "Code":
        """A place below, that knows what is known here."""
        return Code(self.fn, Text(), self.uses, self.lane, self.outer, self.lazy, known=dict(self.known))

    def _compute(self, expr: Expr) -> Value:
        fn = self.fn
        match expr:
            case Var(name=name):
                bounds = fn.ranges.of(expr)
                narrow = -(1 << 31) <= bounds.low and bounds.high < 1 << 31
                return Value(fn.name_of(name), "int" if narrow else "long long")
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
            case Cast(value=operand, type=dtype):
                return cast(fn, self.value(operand), operand.dtype, dtype)
            case Select(condition=condition, then=then, otherwise=otherwise):
                return self._select(expr, condition, then, otherwise)
            case Load():
                return self._load(expr)
            case ClusterLoad():
                return self._peer_load(expr)
            case Shuffle(mode=mode, value=operand, lane=lane, width=width):
                moved = self.value(operand)
                moved_as = "int" if operand.dtype.bits < 32 and not operand.dtype.is_float else moved.type
                arguments: list[Value | str] = ["0xffffffffu", converted(moved, moved_as), self.value(lane)]
                result = call(_SHUFFLES[mode], moved_as, *arguments, *([str(width)] if width != 32 else []))
                return self.named(converted(result, moved.type))
            case Broadcast(value=operand):
                return self.value(operand)
            case Ramp(base=base, stride=stride):
                return self._ramp(expr, base, stride)
            case ReduceLanes():
                return self._reduce(expr)
        raise CompileError(f"{type(expr).__name__} cannot be expressed in CUDA C++")

    def _ramp(self, expr: Ramp, base: Expr, stride: int) -> Value:
        start = self.value(base)
        if self.lane is None:
            return start
        type = result_type(self.fn, expr, start)
        step = self.lane if stride == 1 else infix(self.lane, "*", Value(str(stride), "int"), "int", Level.PRODUCT)
        if type == "long long":
            start = converted(start, type)
        return infix(start, "+", step, type, Level.SUM)

    # --- choices

    def _select(self, expr: Select, condition: Expr, then: Expr, otherwise: Expr) -> Value:
        self.ahead(then)
        self.ahead(otherwise)
        if self.outer is not None and not self.lazy and (self.fn.reads(then) or self.fn.reads(otherwise)):
            shared = one_for_all(condition)
            if shared is not None:
                return self.outer.chosen(expr, shared, self.lane)
        test = self.value(condition)
        yes, no = self._branch(then), self._branch(otherwise)
        first, second = yes[1], no[1]
        type = first.type
        if type != second.type:  # whole numbers of two widths: as C++ makes them one
            type = "long long" if "long long" in (type, second.type) else "int"
        if not yes[0].lines and not no[0].lines:
            text = f"{test.within(Level.OR)} ? {first.within(Level.OR)} : {second.within(Level.OR)}"
            return Value(text, type, Level.CHOICE)
        name = self.fn.fresh("chosen")
        self.text.line(f"{type} {name};")
        for header, (lines, value) in ((f"if ({test.text})", yes), ("else", no)):
            with self.text.block(header) as inside:
                inside.append(lines)
                inside.line(f"{name} = {value.text};")
        return Value(name, type)

    def chosen(self, expr: Select, condition: Expr, lane: Value | None) -> Value:
        """One of two vectors, chosen for all lanes at once: an array that one of two loops over lanes fills."""
        assert lane is not None
        array = self.fn.fresh("chosen")
        type = computed(expr.dtype)
        self.text.line(f"{type} {array}[{expr.lanes}];")
        for header, branch in ((f"if ({self.value(condition).text})", expr.then), ("else", expr.otherwise)):
            below = self.inner()
            loop = below.lanes()
            value = loop.value(branch)
            assert loop.lane is not None
            below.close(loop, expr.lanes, f"{array}[{loop.lane.text}] = {value.text};")
            with self.text.block(header) as inside:
                inside.append(below.text)
        return Value(f"{array}[{lane.text}]", type)

    def ahead(self, expr: Expr) -> None:
        """Compute now what all lanes of a warp take part in, also where only some want it."""
        seen: set[int] = set()
        pending = [expr]
        while pending:
            below = pending.pop()
            if id(below) not in seen:
                seen.add(id(below))
                pending.extend(below.children)
                if isinstance(below, Shuffle):
                    self.value(below)

    def _branch(self, expr: Expr) -> tuple[Text, Value]:
        below = self.inner()
        below.lazy, below.above = self.lazy or self.lane is not None, self
        value = below.value(expr)
        return below.text, value

    # --- memory

    def _load(self, expr: Load) -> Value:
        buffer = expr.buffer
        if expr.lanes > 1 and self.lane is not None and not self.lazy and self.outer is not None:
            array = self.outer.loaded(expr)
            if array is not None:
                return array(self.lane)
        if expr.mask is None:
            return memory.element(self, buffer, expr.indices)
        mask = self.value(expr.mask)
        below = self.inner()
        below.lazy, below.above = True, self
        value = memory.element(below, buffer, expr.indices)
        if below.text.lines:
            return self._guarded(mask, below.text, value)
        zero = literal(0, buffer.dtype)
        return Value(f"{mask.within(Level.OR)} ? {value.within(Level.OR)} : {zero.text}", value.type, Level.CHOICE)

    def _guarded(self, mask: Value, lines: Text, value: Value) -> Value:
        name = self.fn.fresh("loaded")
        self.text.line(f"{value.type} {name} = 0;")
        with self.text.block(f"if ({mask.text})") as inside:
            inside.append(lines)
            inside.line(f"{name} = {value.text};")
        return Value(name, value.type)

    def _peer_load(self, expr: ClusterLoad) -> Value:
        if expr.lanes > 1 and self.outer is not None and not self.lazy:
            array = self.outer.loaded(expr)
            if array is not None:
                return array(self.lane)
        return self.named(memory.peer_element(self, expr), expr.buffer.name)

    def loaded(self, expr: Load | ClusterLoad) -> "Callable[[Value | None], Value] | None":
        """A vector load as an array that is filled here, by wide accesses; None where it has no such form."""
        key = id(expr)
        found = self.known.get(key)
        if found is None:
            made = memory.wide_load(self, expr)
            if made is None:
                return None
            self.known[key] = found = (expr, made)
        array = found[1]
        return lambda lane: memory.of_array(self, array, expr.dtype, lane)

    # --- lanes

    def lanes(self, name: str = "l") -> "Code":
        """The body of a loop over lanes, to be written after what it needs from here."""
        return Code(self.fn, Text(), self.uses, Value(self.fn.fresh(name), "int"), self, False)

    def close(self, loop: "Code", count: int, *lines: str) -> None:
        """Write the loop over lanes, with ``lines`` after what was computed in it."""
        assert loop.lane is not None
        lane = loop.lane.text
        self.text.line("#pragma unroll")
        with self.text.block(f"for (int {lane} = 0; {lane} < {count}; ++{lane})") as inside:
            inside.append(loop.text)
            for line in lines:
                inside.line(line)

    def array(self, expr: Expr, name: str = "r") -> str:
        """The lanes of a vector in an array of the computed type."""
        loop = self.lanes()
        value = loop.value(expr)
        array = self.fn.fresh(name)
        self.text.line(f"{computed(expr.dtype)} {array}[{expr.lanes}];")
        assert loop.lane is not None
        self.close(loop, expr.lanes, f"{array}[{loop.lane.text}] = {value.text};")
        return array

    def _reduce(self, expr: ReduceLanes) -> Value:
        if expr.value.lanes == 1:
            return self.value(expr.value)
        dtype = expr.dtype
        known = self.known if self.lane is None else {}
        count = expr.value.lanes
        array = Code(self.fn, self.text, self.uses, known=known).array(expr.value, "part")
        type = computed(dtype)
        if count & (count - 1) == 0:
            return self._reduce_in_halves(expr, array)
        total = self.fn.fresh("total")
        self.text.line(f"{type} {total} = {array}[0];")
        lane = self.fn.fresh("l")
        step = plain(self.fn, expr.op, dtype, Value(total, type), Value(f"{array}[{lane}]", type))
        self.text.line("#pragma unroll")
        with self.text.block(f"for (int {lane} = 1; {lane} < {count}; ++{lane})") as inside:
            inside.line(f"{total} = {step.text};")
        return Value(total, type)

    def _reduce_in_halves(self, expr: ReduceLanes, array: str) -> Value:
        """As a tree: the steps of one level do not wait for one another."""
        type = computed(expr.dtype)
        half, lane = self.fn.fresh("half"), self.fn.fresh("l")
        cells = (Value(f"{array}[{at}]", type) for at in (lane, f"{lane} + {half}"))
        step = plain(self.fn, expr.op, expr.dtype, *cells)
        self.text.line("#pragma unroll")
        with self.text.block(f"for (int {half} = {expr.value.lanes // 2}; {half} > 0; {half} /= 2)") as outer:
            outer.line("#pragma unroll")
            with outer.block(f"for (int {lane} = 0; {lane} < {half}; ++{lane})") as inside:
                inside.line(f"{array}[{lane}] = {step.text};")
        return Value(f"{array}[0]", type)


def interned(*roots: Expr) -> tuple[Expr, ...]:
    """The same expressions, with those that are equal made one object: what is equal is computed once."""
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


def uses_of(*roots: Expr) -> dict[int, int]:
    """How often each expression (by identity) is an operand below ``roots``."""
    counts: dict[int, int] = {}
    pending = list(roots)
    while pending:
        expr = pending.pop()
        counts[id(expr)] = counts.get(id(expr), 0) + 1
        if counts[id(expr)] == 1:
            pending.extend(expr.children)
    return counts
