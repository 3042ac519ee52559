"""The rules of the simplifier, one for each class of node, in a table.

A ``Simplifier`` holds what is known at one place of a kernel and remembers what it has simplified there. Index
expressions become linear forms and are written again from them. Other arithmetic is only changed where the result is
the same bit for bit.
"""

from collections.abc import Callable, Iterable
from typing import Any

from ..core.dtypes import INDEX, DType, int32
from .bounds import compare_interval, dtype_interval, interval_of
from .expr import (
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    ClusterLoad,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Logic,
    LogicOp,
    Ramp,
    ReduceLanes,
    Select,
    Shuffle,
    Unary,
    UnaryOp,
    Var,
    const,
    index,
    rebuild,
)
from .fold import fold_binary, fold_cast, fold_compare, fold_unary, is_constant
from .index_analysis import IndexAnalysis
from .lanes import scalar_of, truth, truth_value, varies
from .linear_form import LANE, LinearForm, linear_form
from .rewrite import loads_of
from .stmt import Stmt

_NEGATED = {
    CompareOp.LT: CompareOp.GE,
    CompareOp.GE: CompareOp.LT,
    CompareOp.GT: CompareOp.LE,
    CompareOp.LE: CompareOp.GT,
    CompareOp.EQ: CompareOp.NE,
    CompareOp.NE: CompareOp.EQ,
}


def _is_index(dtype: DType) -> bool:
    return dtype.name == "int64"


class Simplifier:
    """Simplifies expressions under one ``IndexAnalysis``. Each node is simplified once, however often it is shared."""

    def __init__(self, analysis: IndexAnalysis) -> None:
        self.analysis = analysis
        self._simple: dict[int, tuple[Expr, Expr]] = {}  # by id; the node is kept, so that its id stays its own
        self._forms: dict[int, tuple[Expr, LinearForm]] = {}
        self._sides: dict[Expr, tuple[LinearForm, LinearForm]] = {}  # the forms compared by a comparison made here
        self.read_names: dict[int, tuple[Stmt, frozenset[str]]] = {}  # of buffers, by the id of an allocation's body

    def assuming(self, facts: Iterable[LinearForm]) -> "Simplifier":
        """Return a simplifier for where ``facts`` hold, too."""
        inside = Simplifier(self.analysis.assuming(facts))
        inside.read_names = self.read_names
        return inside

    def simplify(self, expr: Expr) -> Expr:
        """Return the simplest expression found that has the value of ``expr`` wherever the analysis holds."""
        found = self._simple.get(id(expr))
        if found is not None:
            return found[1]
        result = _RULES[type(expr)](self, expr)
        self._simple[id(expr)] = (expr, result)
        if result is not expr:
            self._simple[id(result)] = (result, result)
        return result

    def form(self, expr: Expr) -> LinearForm:
        """Return the linear form of an index expression, its numbers within 64 bits."""
        found = self._forms.get(id(expr))
        if found is not None:
            return found[1]
        result = _FORMS[type(expr)](self, expr).wrapped()
        self._forms[id(expr)] = (expr, result)
        return result

    def _form_of_simple(self, expr: Expr) -> LinearForm:
        """Return the form of a simplified expression, which may be of a class without a rule for forms."""
        if isinstance(expr, (Select, Load, ReduceLanes, Cast, Shuffle, ClusterLoad)):
            return LinearForm({expr: 1}, 0, expr.lanes)
        return self.form(expr)

    def facts(self, condition: Expr) -> tuple[LinearForm, ...]:
        """Return linear forms that are known to be >= 0 where the (simplified) ``condition`` holds."""
        if isinstance(condition, Logic) and condition.op is LogicOp.AND:
            return self.facts(condition.a) + self.facts(condition.b)
        if isinstance(condition, Compare) and _is_index(condition.a.dtype):
            sides = self._sides.get(condition)
            if sides is None:
                sides = self._sides[condition] = (self.form(condition.a), self.form(condition.b))
            return self.analysis.facts_of(condition, *sides)
        return ()

    def implies(self, known: Expr, condition: Expr) -> bool:
        """Return whether a comparison of indices must hold (lane by lane) where another one does. Each part of a
        conjunction must: its facts may be those of some parts alone."""
        if isinstance(condition, Logic) and condition.op is LogicOp.AND:
            return self.implies(known, condition.a) and self.implies(known, condition.b)
        wanted, given = self.facts(condition), self.facts(known)
        return bool(wanted and given) and all(
            any(self.analysis.interval(w - g).low >= 0 for g in given) for w in wanted
        )

    # Index arithmetic ------------------------------------------------------------------------------------------

    def _form_var(self, expr: Var) -> LinearForm:
        known = self.analysis.ranges.get(expr.name)
        return LinearForm({}, known.low) if known is not None and known.is_point else LinearForm({expr: 1})

    def _form_binary(self, expr: Binary) -> LinearForm:
        a, b = self.form(expr.a), self.form(expr.b)
        lanes = max(a.lanes, b.lanes)
        match expr.op:
            case BinaryOp.ADD:
                return self.analysis.recombined(a + b)
            case BinaryOp.SUB:
                return self.analysis.recombined(a - b)
            case BinaryOp.MUL:
                if not b.terms:
                    return a.scaled(b.constant).widened(lanes)
                if not a.terms:
                    return b.scaled(a.constant).widened(lanes)
            case BinaryOp.FLOORDIV | BinaryOp.MOD if not b.terms and b.constant > 0:
                divide = self.analysis.floordiv if expr.op is BinaryOp.FLOORDIV else self.analysis.mod
                result = divide(a.widened(lanes), b.constant)
                if result is not None:
                    return self.analysis.recombined(result.widened(lanes))
            case BinaryOp.MIN | BinaryOp.MAX:
                smaller = self.analysis.smaller(a, b)
                if smaller is not None:
                    if expr.op is BinaryOp.MIN:
                        return smaller
                    return a + b - smaller  # the other one: max(a, b) = a + b - min(a, b)
        if not (a.varies or b.varies):
            a, b = a.uniform(), b.uniform()
        width = max(a.lanes, b.lanes)
        atom = Binary(expr.op, a.widened(width).to_expr(), b.widened(width).to_expr())
        folded = fold_binary(atom)
        if folded is not None:
            return LinearForm({}, int(folded.value), lanes)
        return _narrow_clamp(atom) or LinearForm({atom: 1}, 0, lanes)

    def _form_unary(self, expr: Unary) -> LinearForm:
        value = self.form(expr.value)
        if expr.op is UnaryOp.NEG:
            return value.scaled(-1)
        if self.analysis.fits(value):
            if self.analysis.not_negative(value):
                return value
            if self.analysis.not_negative(value.scaled(-1)):
                return value.scaled(-1)
        inner = value if value.varies else value.uniform()
        return LinearForm({Unary(expr.op, inner.to_expr()): 1}, 0, value.lanes)

    def _form_cast(self, expr: Cast) -> LinearForm:
        if _is_index(expr.value.dtype):
            return self.form(expr.value)
        return self._form_of_simple(self._cast(expr))

    def _form_ramp(self, expr: Ramp) -> LinearForm:
        base = self.form(expr.base).widened(expr.count)
        return base if expr.count == 1 else base.plus(LinearForm({LANE: 1}, 0, expr.count), expr.stride)

    def _form_other(self, expr: Expr) -> LinearForm:
        return self._form_of_simple(self.simplify(expr))

    # Everything else -------------------------------------------------------------------------------------------

    def _var(self, expr: Var) -> Expr:
        known = self.analysis.ranges.get(expr.name)
        return index(known.low) if known is not None and known.is_point else expr

    def _binary(self, expr: Binary) -> Expr:
        if _is_index(expr.dtype):
            simple = self.form(expr).to_expr()
            return expr if simple == expr else simple  # a node knows what it reads, and its copy has to find it again
        a, b = self.simplify(expr.a), self.simplify(expr.b)  # directly: every frame counts in deep expressions
        return self._arithmetic(expr if a is expr.a and b is expr.b else Binary(expr.op, a, b))

    def _arithmetic(self, expr: Binary) -> Expr:
        """Simplify a binary operation on simplified operands that are no indices."""
        a, b, op = expr.a, expr.b, expr.op
        if isinstance(a, Broadcast) and isinstance(b, Broadcast):
            return Broadcast(self._arithmetic(Binary(op, a.value, b.value)), a.count)
        folded = fold_binary(expr)
        if folded is not None:
            return folded
        left, right = scalar_of(a), scalar_of(b)
        if expr.dtype.is_integer:
            return self._integer_identity(expr, left, right)
        if op is BinaryOp.MUL or op is BinaryOp.DIV:
            if is_constant(right, 1):
                return a
            if op is BinaryOp.MUL and is_constant(left, 1):
                return b
        elif op is BinaryOp.SUB and is_constant(right, 0.0):  # x + 0.0 is not x where x is -0.0
            return a
        return expr

    def _integer_identity(self, expr: Binary, left: Expr, right: Expr) -> Expr:
        a, b, op = expr.a, expr.b, expr.op
        if is_constant(right, 0):
            if op in (BinaryOp.ADD, BinaryOp.SUB):
                return a
            if op is BinaryOp.MUL:
                return b
        if is_constant(left, 0) and op in (BinaryOp.ADD, BinaryOp.MUL):
            return b if op is BinaryOp.ADD else a
        if is_constant(right, 1) and op in (BinaryOp.MUL, BinaryOp.FLOORDIV):
            return a
        if is_constant(left, 1) and op is BinaryOp.MUL:
            return b
        if op in (BinaryOp.MIN, BinaryOp.MAX):
            known = compare_interval(
                CompareOp.LE, interval_of(a, self.analysis.ranges), interval_of(b, self.analysis.ranges)
            )
            if known.is_point:
                return a if (known.low == 1) is (op is BinaryOp.MIN) else b
        return expr

    def _compare(self, expr: Compare) -> Expr:
        if _is_index(expr.a.dtype):
            a, b = self.form(expr.a), self.form(expr.b)
            return self.analysis.compared(expr.op, a, b)
        return self._comparison(Compare(expr.op, self.simplify(expr.a), self.simplify(expr.b)))

    def _comparison(self, expr: Compare) -> Expr:
        """Simplify a comparison of simplified operands that are no indices."""
        a, b = expr.a, expr.b
        if isinstance(a, Broadcast) and isinstance(b, Broadcast):
            return Broadcast(self._comparison(Compare(expr.op, a.value, b.value)), a.count)
        known = fold_compare(expr)
        if known is None and not a.dtype.is_float:
            ranges = self.analysis.ranges
            interval = compare_interval(expr.op, interval_of(a, ranges), interval_of(b, ranges))
            known = bool(interval.low) if interval.is_point else None
        return expr if known is None else truth(known, expr.lanes)

    def _logic(self, expr: Logic) -> Expr:
        terms: list[Expr] = []
        absorbing = expr.op is LogicOp.OR  # the value of one term that decides the whole
        for term in self._terms(expr, expr.op):
            value = truth_value(term)
            if value is absorbing:
                return truth(absorbing, expr.lanes)
            if value is None and not self._redundant(expr.op, terms, term):
                terms = [t for t in terms if not self._redundant(expr.op, [term], t)]
                terms.append(term)
        if not terms:
            return truth(not absorbing, expr.lanes)
        result = terms[0]
        for term in terms[1:]:
            result = _combined(expr.op, result, term)
        return result

    def _terms(self, expr: Expr, op: LogicOp) -> list[Expr]:
        """Return the simplified operands of a tree of one logical operation."""
        if isinstance(expr, Logic) and expr.op is op:
            return self._terms(expr.a, op) + self._terms(expr.b, op)
        simple = self.simplify(expr)
        if isinstance(simple, Logic) and simple.op is op and simple is not expr:
            return self._terms(simple, op)
        return [simple]

    def _redundant(self, op: LogicOp, terms: list[Expr], term: Expr) -> bool:
        """Return whether ``term`` adds nothing to ``terms``."""
        if op is LogicOp.AND:
            return any(t == term or self.implies(t, term) for t in terms)
        return any(t == term or self.implies(term, t) for t in terms)

    def _unary(self, expr: Unary) -> Expr:
        if _is_index(expr.dtype):
            return self.form(expr).to_expr()
        return self._function(expr.op, self.simplify(expr.value), expr)

    def _function(self, op: UnaryOp, value: Expr, old: Unary | None = None) -> Expr:
        if isinstance(value, Broadcast):
            return Broadcast(self._function(op, value.value), value.count)
        result = old if old is not None and value is old.value else Unary(op, value)
        if op is UnaryOp.NOT:
            if isinstance(value, Unary) and value.op is UnaryOp.NOT:
                return value.value
            if isinstance(value, Compare) and not value.a.dtype.is_float:  # with NaN both directions are false
                return self.simplify(Compare(_NEGATED[value.op], value.a, value.b))
        return fold_unary(result) or result

    def _select(self, expr: Select) -> Expr:
        condition = self.simplify(expr.condition)
        known = truth_value(condition)
        if known is not None:
            return self.simplify(expr.then if known else expr.otherwise)
        then, otherwise = self.simplify(expr.then), self.simplify(expr.otherwise)
        if then is otherwise or then == otherwise:
            return then
        whole = truth_value(then), truth_value(otherwise)
        if whole == (True, False):
            return condition
        if isinstance(condition, Broadcast) and isinstance(then, Broadcast) and isinstance(otherwise, Broadcast):
            return Broadcast(Select(condition.value, then.value, otherwise.value), then.count)
        return rebuild(expr, (condition, then, otherwise))

    def _cast(self, expr: Cast) -> Expr:
        return self._converted(self.simplify(expr.value), expr.type, expr)

    def _converted(self, value: Expr, dtype: DType, old: Cast | None = None) -> Expr:
        # A 16-bit float in a register may be wider than its type, and casting it to its own type rounds it.
        exact = not dtype.is_float or dtype.bits > 16 or isinstance(value, (Load, Const, Cast))
        if value.dtype == dtype and exact:
            return value
        if isinstance(value, Broadcast):
            return Broadcast(self._converted(value.value, dtype), value.count)
        result = old if old is not None and value is old.value else Cast(value, dtype)
        return fold_cast(result) or result

    def _load(self, expr: Load) -> Expr:
        lanes = expr.lanes
        indices = self.indices(expr.indices)
        mask = None if expr.mask is None else self.simplify(expr.mask)
        if mask is not None:
            known = truth_value(mask)
            if known is False:
                zero = Const(False if expr.dtype.is_bool else 0 if expr.dtype.is_integer else 0.0, expr.dtype)
                return zero if lanes == 1 else Broadcast(zero, lanes)
            mask = None if known else mask
        if lanes > 1 and (mask is None or isinstance(mask, Broadcast)) and not any(varies(i) for i in indices):
            scalar = tuple(scalar_of(i) for i in indices)
            return Broadcast(Load(expr.buffer, scalar, None if mask is None else scalar_of(mask)), lanes)
        if mask is expr.mask and all(new is old for new, old in zip(indices, expr.indices, strict=True)):
            return expr
        return Load(expr.buffer, indices, mask)

    def indices(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the simplified indices of one access. Where one of them varies over the lanes, uniform ones become
        scalars."""
        simple = tuple(self.simplify(i) for i in indices)
        if any(varies(i) for i in simple):
            return tuple(scalar_of(i) for i in simple)
        return simple

    def _ramp(self, expr: Ramp) -> Expr:
        if _is_index(expr.dtype):
            return self.form(expr).to_expr()
        base = self.simplify(expr.base)
        if expr.count == 1:
            return base
        return Broadcast(base, expr.count) if expr.stride == 0 else rebuild(expr, (base,))

    def _broadcast(self, expr: Broadcast) -> Expr:
        value = self.simplify(expr.value)
        return value if expr.count == 1 else rebuild(expr, (value,))

    def _reduce_lanes(self, expr: ReduceLanes) -> Expr:
        value = self.simplify(expr.value)
        if value.lanes == 1:
            return value
        if isinstance(value, Broadcast) and expr.op in (BinaryOp.MIN, BinaryOp.MAX):
            return value.value
        return rebuild(expr, (value,))

    def _shuffle(self, expr: Shuffle) -> Expr:
        value, lane = self.simplify(expr.value), self.simplify(expr.lane)
        return value if isinstance(value, Const) else rebuild(expr, (value, lane))

    def _cluster_load(self, expr: ClusterLoad) -> Expr:
        return rebuild(expr, (*self.indices(expr.indices), self.simplify(expr.block)))


def _narrow_clamp(e: Binary) -> LinearForm | None:
    """Return ``e`` with 32 bits where it is a place between two bounds, found by floats; None for anything else.

    min(max(int64(x) + c, low), high)  is  int64(min(max(int32(x), low - c), high - c)) + c

    Conversions saturate, so that what is beyond 32 bits ends at the same bound. A place that is loaded may be so large
    that adding to it wraps; one that is computed of axes alone is not.
    """
    match e:
        case Binary(op=op, a=Binary(op=inner, a=place, b=Const(value=first)), b=Const(value=second)):
            form = linear_form(place)
            converted = next(iter(form.terms), None)
            if {op, inner} != {BinaryOp.MIN, BinaryOp.MAX} or list(form.terms.values()) != [1]:
                return None
            if isinstance(converted, Cast) and converted.value.dtype.is_float:
                if form.constant and loads_of(converted):
                    return None
                bounds = [int(bound) - form.constant for bound in (first, second)]
                if all(bound in dtype_interval(int32) for bound in bounds):
                    narrow: Expr = Cast(converted.value, int32)
                    for order, bound in zip((inner, op), bounds, strict=True):
                        narrow = Binary(order, narrow, const(bound, int32))
                    return LinearForm({Cast(narrow, INDEX): 1}, form.constant)
    return None


def _combined(op: LogicOp, a: Expr, b: Expr) -> Expr:
    if isinstance(a, Broadcast) and isinstance(b, Broadcast):
        return Broadcast(Logic(op, a.value, b.value), a.count)
    return Logic(op, a, b)


_Rule = Callable[[Simplifier, Any], Expr]
_RULES: dict[type[Expr], _Rule] = {
    Var: Simplifier._var,
    Const: lambda s, e: e,
    Binary: Simplifier._binary,
    Compare: Simplifier._compare,
    Logic: Simplifier._logic,
    Unary: Simplifier._unary,
    Select: Simplifier._select,
    Cast: Simplifier._cast,
    Load: Simplifier._load,
    Ramp: Simplifier._ramp,
    Broadcast: Simplifier._broadcast,
    ReduceLanes: Simplifier._reduce_lanes,
    Shuffle: Simplifier._shuffle,
    ClusterLoad: Simplifier._cluster_load,
}
"""The rule for each class of node."""

_FORMS: dict[type[Expr], Callable[[Simplifier, Any], LinearForm]] = {
    Var: Simplifier._form_var,
    Const: lambda s, e: LinearForm({}, int(e.value)),
    Binary: Simplifier._form_binary,
    Unary: Simplifier._form_unary,
    Cast: Simplifier._form_cast,
    Ramp: Simplifier._form_ramp,
    Broadcast: lambda s, e: s.form(e.value).widened(e.count),
    Select: Simplifier._form_other,
    Load: Simplifier._form_other,
    ReduceLanes: Simplifier._form_other,
    Shuffle: Simplifier._form_other,
    ClusterLoad: Simplifier._form_other,
}
"""The linear form of each class of index expression."""
