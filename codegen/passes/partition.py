"""Loops are cut where their guards become certain, so that the bulk of the work runs free of conditions.

    for i in range(4):                      for i in range(3):
        for t in unrolled(8):                   for t in unrolled(8):
            if i*8 + t < 30:        ->              C[i*8 + t] = ..
                C[i*8 + t] = ..             for t in unrolled(8):
                                                if 24 + t < 30:  (certain once written out)
                                                    C[24 + t] = ..

Conditions of ``if`` and of ``select`` count alike. A parallel loop stays one loop: its body is written twice, under
``if``. Where a guard depends on several outer loops at once, the body of the innermost of them is written twice,
once under the condition that the guard cannot fail.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...core.dtypes import INDEX
from ...ir.expr import (
    Compare,
    CompareOp,
    Expr,
    Load,
    Logic,
    LogicOp,
    Select,
    Unary,
    UnaryOp,
    Var,
    index,
    logical_and,
    walk,
)
from ...ir.linear_form import LinearForm, linear_form
from ...ir.rewrite import map_expr, map_expressions, map_statements
from ...ir.stmt import Allocate, For, If, Kernel, LoopKind, Seq, Stmt, expressions, seq, walk_statements
from .copies import Names, bound_names, replace_names
from .limits import limits, variables

MOST_STORES = 1024
"""No cut is made that would let the unrolled kernel grow past this many stores."""


def partition(kernel: Kernel) -> Kernel:
    """``kernel`` with its serial and parallel loops cut (see the module); guards that became certain are gone."""
    extents = {s.var: s.extent for s in walk_statements(kernel.body) if isinstance(s, For)}
    names = Names(bound_names(kernel.body) | {b.name for b in kernel.parameters})
    return replace(kernel, body=_Cutter(extents, names, weight(kernel.body)).statement(kernel.body))


def weight(stmt: Stmt) -> int:
    """Stores of ``stmt`` once its unrolled loops are written out."""
    match stmt:
        case For(extent=extent, kind=LoopKind.UNROLLED, body=body):
            return extent * weight(body)
        case For(body=body) | Allocate(body=body):
            return weight(body)
        case If(then=then):
            return weight(then)
        case Seq(statements=statements):
            return sum(weight(s) for s in statements)
    return 1


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition inside a loop, and the linear form that is >= 0 exactly when it holds whatever the loops
    inside do: ``surely >= 0`` implies ``condition``."""

    condition: Compare
    surely: LinearForm


@dataclass(slots=True)
class _Cutter:
    """``extents`` grows with the loops that cutting makes; ``total`` is the weight of the kernel so far."""

    extents: dict[str, int]
    names: Names
    total: int

    def statement(self, stmt: Stmt) -> Stmt:
        match stmt:
            case For(kind=LoopKind.SERIAL | LoopKind.PARALLEL):
                return self.loop(stmt)
            case For(var=var, extent=extent, kind=kind, body=body):
                return For(var, extent, kind, self.statement(body))
            case If(condition=condition, then=then):
                return If(condition, self.statement(then))
            case Seq(statements=statements):
                return seq(*(self.statement(s) for s in statements))
            case Allocate(buffer=buffer, body=body):
                return Allocate(buffer, self.statement(body))
        return stmt

    def loop(self, loop: For, done: frozenset[Expr] = frozenset()) -> Stmt:
        """Cut at the first atom of the loop's guards that gives a range; else write the body twice if that helps.

        ``done``: atoms that enclosing conditions already narrowed.
        """
        guards = list(self.guards(loop))
        cost = weight(loop.body)
        single = [next(iter(g.surely.terms)) for g in guards if len(g.surely.terms) == 1]
        for atom in dict.fromkeys(a for a in single if a not in done):
            span = limits(atom, self.extents)
            if span is None:
                continue
            low, high, certain = _range(atom, span, guards)
            copies = (low > span[0]) + (high < span[1])
            if not certain or self.total + copies * cost > MOST_STORES:
                continue
            if not copies:
                return self.loop(For(loop.var, loop.extent, loop.kind, _assume(loop.body, certain)), done | {atom})
            self.total += copies * cost
            if loop.kind is LoopKind.SERIAL and atom == Var(loop.var):
                return self.cut(loop, low, high, certain)
            return self.branch(loop, atom, span, (low, high), certain, done | {atom})
        mixed = [g for g in guards if len(g.surely.terms) > 1 and self.is_deepest(g, loop)]
        if mixed and self.total + cost <= MOST_STORES:
            self.total += cost
            return self.versions(loop, mixed)
        return For(loop.var, loop.extent, loop.kind, self.statement(loop.body))

    def guards(self, loop: For) -> Iterator[Guard]:
        """The conditions below ``loop`` that can be made certain by a choice of its variable and outer ones.

        A condition directly in the body of a parallel loop costs nothing and is left.
        """
        inner = bound_names(loop.body)
        seen: set[Expr] = set()
        for condition in _conditions(loop.body):
            if condition in seen:
                continue
            seen.add(condition)
            form = _positive_form(condition)
            surely = None if form is None else self.least(form, inner)
            if surely is None or not any(loop.var in variables(e) for e in surely.terms):
                continue
            if surely == form and (loop.kind is LoopKind.PARALLEL or len(form.terms) > 1):
                if any(condition in _conjunction(s.condition) for s in _direct(loop.body) if isinstance(s, If)):
                    continue
            yield Guard(condition, surely)

    def least(self, form: LinearForm, inner: set[str]) -> LinearForm | None:
        """``form`` with the variables of inner loops at their worst; None when that is not known."""
        result = form
        for atom, coefficient in form.terms.items():
            if not variables(atom) & inner:
                continue
            span = limits(atom, self.extents)
            if span is None:
                return None
            result = result.without((atom,)) + coefficient * (span[0] if coefficient > 0 else span[1])
        return result

    def is_deepest(self, guard: Guard, loop: For) -> bool:
        """Whether no serial loop inside ``loop`` takes part in the guard: the best place to test it."""
        used = variables(guard.condition)
        return not any(
            isinstance(s, For) and s.var in used and s.kind is LoopKind.SERIAL for s in walk_statements(loop.body)
        )

    def cut(self, loop: For, low: int, high: int, certain: Sequence[Guard]) -> Stmt:
        """A serial loop in up to three: before, the range free of the guards, after."""
        parts: list[Stmt] = []
        for first, last in ((0, low - 1), (low, high), (high + 1, loop.extent - 1)):
            if first > last:
                continue
            body = _assume(loop.body, certain) if first == low else self.copy(loop.body)
            if first == last:
                parts.append(self.statement(replace_names(body, {loop.var: index(first)}, {})))
                continue
            var = loop.var if first == low else self.names.fresh(loop.var)
            self.extents[var] = last - first + 1
            shifted = Var(var) if first == 0 else Var(var) + first
            part = For(var, last - first + 1, LoopKind.SERIAL, replace_names(body, {loop.var: shifted}, {}))
            parts.append(self.loop(part))
        return seq(*parts)

    def branch(
        self,
        loop: For,
        atom: Expr,
        span: tuple[int, int],
        main: tuple[int, int],
        certain: Sequence[Guard],
        done: frozenset[Expr],
    ) -> Stmt:
        """The body under ``if`` for each range of ``atom``; a range of one value makes the atom a constant."""
        parts: list[Stmt] = []
        for first, last in ((span[0], main[0] - 1), main, (main[1] + 1, span[1])):
            if first > last:
                continue
            body = _assume(loop.body, certain) if first == main[0] else self.copy(loop.body)
            if first == last:
                body = _fix(body, atom, first)
            tests: list[Expr] = []
            if first > span[0]:
                tests.append(Compare(CompareOp.GE, atom, index(first)))
            if last < span[1]:
                tests.append(Compare(CompareOp.LE, atom, index(last)))
            if loop.kind is LoopKind.PARALLEL:
                inner = self.loop(For(loop.var, loop.extent, loop.kind, body), done)
                body = inner.body if isinstance(inner, For) else inner
            else:
                body = self.statement(body)
            parts.append(If(logical_and(*tests), body) if tests else body)
        return For(loop.var, loop.extent, loop.kind, seq(*parts))

    def versions(self, loop: For, mixed: Sequence[Guard]) -> Stmt:
        """The body twice: where no guard can fail, and everywhere else."""
        safe = logical_and(*(Compare(CompareOp.GE, g.surely.to_expr(), index(0)) for g in mixed))
        fast = self.statement(_assume(loop.body, mixed))
        slow = self.statement(self.copy(loop.body))
        return For(loop.var, loop.extent, loop.kind, seq(If(safe, fast), If(Unary(UnaryOp.NOT, safe), slow)))

    def copy(self, stmt: Stmt) -> Stmt:
        """A copy with fresh names, whose loops have the extents of the originals."""
        fresh = {name: self.names.fresh(name) for name in sorted(bound_names(stmt))}
        copied = replace_names(stmt, {}, fresh)
        self.extents.update({s.var: s.extent for s in walk_statements(copied) if isinstance(s, For)})
        return copied


def _range(atom: Expr, span: tuple[int, int], guards: Sequence[Guard]) -> tuple[int, int, list[Guard]]:
    """The values of ``atom`` for which guards on it alone are certain, and those guards.

    A guard that would leave no value is passed over.
    """
    low, high = span
    certain: list[Guard] = []
    for guard in guards:
        if set(guard.surely.terms) != {atom}:
            continue
        slope, constant = guard.surely.terms[atom], guard.surely.constant
        first = max(low, -(constant // slope)) if slope > 0 else low
        last = min(high, constant // -slope) if slope < 0 else high
        if first <= last:
            low, high = first, last
            certain.append(guard)
    return low, high, certain


def _positive_form(condition: Compare) -> LinearForm | None:
    """The linear form that is >= 0 exactly when an order between indices holds; None for anything else."""
    if condition.a.dtype != INDEX or condition.lanes > 1 or any(isinstance(e, Load) for e in walk(condition)):
        return None
    a, b = linear_form(condition.a), linear_form(condition.b)
    match condition.op:
        case CompareOp.LT:
            return b - a - 1
        case CompareOp.LE:
            return b - a
        case CompareOp.GT:
            return a - b - 1
        case CompareOp.GE:
            return a - b
    return None


def _conjunction(condition: Expr) -> list[Expr]:
    if isinstance(condition, Logic) and condition.op is LogicOp.AND:
        return _conjunction(condition.a) + _conjunction(condition.b)
    return [condition]


def _conditions(stmt: Stmt) -> Iterator[Compare]:
    """The comparisons that ``if`` and ``select`` below ``stmt`` require."""
    for below in walk_statements(stmt):
        tests = [below.condition] if isinstance(below, If) else []
        tests += [e.condition for root in expressions(below) for e in walk(root) if isinstance(e, Select)]
        for test in tests:
            yield from (term for term in _conjunction(test) if isinstance(term, Compare))


def _direct(stmt: Stmt) -> Iterator[Stmt]:
    """``stmt`` and what is below it outside of any loop."""
    yield stmt
    match stmt:
        case If(then=below) | Allocate(body=below):
            yield from _direct(below)
        case Seq(statements=statements):
            for s in statements:
                yield from _direct(s)


def _assume(stmt: Stmt, certain: Sequence[Guard]) -> Stmt:
    """``stmt`` without the conditions that are known to hold."""
    known: set[Expr] = {g.condition for g in certain}

    def rest(condition: Expr) -> Expr | None:
        terms = _conjunction(condition)
        kept = [t for t in terms if t not in known]
        if len(kept) == len(terms):
            return condition
        return logical_and(*kept) if kept else None

    def select(e: Expr) -> Expr:
        if isinstance(e, Select) and (condition := rest(e.condition)) is not e.condition:
            return e.then if condition is None else Select(condition, e.then, e.otherwise)
        return e

    def guard(s: Stmt) -> Stmt:
        if isinstance(s, If) and (condition := rest(s.condition)) is not s.condition:
            return s.then if condition is None else If(condition, s.then)
        return s

    return map_statements(map_expressions(stmt, lambda e: map_expr(e, select)), guard)


def _fix(stmt: Stmt, atom: Expr, value: int) -> Stmt:
    """``stmt`` with ``atom`` known to be ``value``."""
    return map_expressions(stmt, lambda e: map_expr(e, lambda x: index(value) if x == atom else x))
