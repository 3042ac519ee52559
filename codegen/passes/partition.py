"""Partitions loops: splits them where their guards become certain, so that most iterations run without conditions.

    for i in range(4):                      for i in range(3):
        for t in unrolled(8):                   for t in unrolled(8):
            if i*8 + t < 30:        ->              C[i*8 + t] = ..
                C[i*8 + t] = ..             for t in unrolled(8):
                                                if 24 + t < 30:  (certain once written out)
                                                    C[24 + t] = ..

Conditions of ``if`` and of ``select`` are treated alike, and so are indices of vectors that are kept within bounds,
such as ``min(i + 1, 63)``. Where the second arm of a ``select`` has loads, iterations that are certain to take it lose
the condition, too. A parallel loop stays one loop, whose body is written twice, under
``if``. Where a guard depends on several outer loops at once, the innermost of them gets two versions of its body,
one of them under the condition that the guard cannot fail (loop versioning).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...core.dtypes import INDEX
from ...ir.expr import (
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    UnaryOp,
    Var,
    index,
    logical_and,
    walk,
)
from ...ir.linear_form import LinearForm, linear_form
from ...ir.provenance import rewrites
from ...ir.rewrite import free_variables, map_expr, map_expressions, map_statements
from ...ir.stmt import (
    Allocate,
    For,
    If,
    Kernel,
    LoopKind,
    Seq,
    Stmt,
    expressions,
    seq,
    substatements,
    walk_statements,
    with_statements,
)
from .conditions import conjuncts
from .copies import FreshNames, bound_names, replace_names
from .index_bounds import index_bounds

MOST_STORES = 1024
"""No loop is split where the unrolled kernel would then have more stores than this."""


def partition(kernel: Kernel) -> Kernel:
    """Partition the serial and parallel loops of ``kernel``, and remove the guards that became certain."""
    extents = {s.var: s.extent for s in walk_statements(kernel.body) if isinstance(s, For)}
    names = FreshNames(bound_names(kernel.body) | {b.name for b in kernel.parameters})
    return replace(kernel, body=_LoopPartitioner(extents, names, unrolled_stores(kernel.body)).statement(kernel.body))


def unrolled_stores(stmt: Stmt) -> int:
    """Return how many stores ``stmt`` has once its unrolled loops are written out."""
    match stmt:
        case For(extent=extent, kind=LoopKind.UNROLLED, body=body):
            return extent * unrolled_stores(body)
        case For(body=body) | Allocate(body=body):
            return unrolled_stores(body)
        case If(then=then):
            return unrolled_stores(then)
        case Seq(statements=statements):
            return sum(unrolled_stores(s) for s in statements)
    return 1


@dataclass(frozen=True, slots=True)
class LoopGuard:
    """This is a condition inside a loop. ``sufficient`` is a linear form without the variables of inner loops: it is >=
    0 exactly when ``condition`` holds in all iterations of these."""

    condition: Compare
    sufficient: LinearForm


@dataclass(slots=True)
class _LoopPartitioner:
    """Partitions the loops of one kernel. ``extents`` grows with the loops that are made, and ``total`` is how many
    stores the unrolled kernel has so far."""

    extents: dict[str, int]
    names: FreshNames
    total: int

    @rewrites
    def statement(self, stmt: Stmt) -> Stmt:
        match stmt:
            case For(kind=LoopKind.SERIAL | LoopKind.PARALLEL):
                return self.loop(stmt)
        below = list[Stmt]()
        for s in substatements(stmt):
            below.append(self.statement(s))
        return with_statements(stmt, below)

    @rewrites
    def loop(self, loop: For, done: frozenset[Expr] = frozenset()) -> Stmt:
        """Partition by the first atom of the loop's guards that gives a range; else make two versions if that helps.

        ``done`` holds the atoms that enclosing conditions bound already.
        """
        guards = list(self.guards(loop))
        cost = unrolled_stores(loop.body)
        single = [next(iter(g.sufficient.terms)) for g in guards if len(g.sufficient.terms) == 1]
        for atom in dict.fromkeys(a for a in single if a not in done):
            bounds = index_bounds(atom, self.extents)
            if bounds is None:
                continue
            low, high, certain = _certain_range(atom, bounds, guards)
            copies = (low > bounds[0]) + (high < bounds[1])
            if not certain or self.total + copies * cost > MOST_STORES:
                continue
            if not copies:
                return self.loop(For(loop.var, loop.extent, loop.kind, _assume(loop.body, certain)), done | {atom})
            self.total += copies * cost
            if loop.kind is LoopKind.SERIAL and atom == Var(loop.var):
                return self.split_range(loop, low, high, certain)
            return self.branch(loop, atom, bounds, (low, high), certain, done | {atom})
        mixed = [g for g in guards if len(g.sufficient.terms) > 1 and self.is_deepest(g, loop)]
        if mixed and self.total + cost <= MOST_STORES:
            self.total += cost
            return For(loop.var, loop.extent, loop.kind, self.versions(loop.body, mixed))
        return For(loop.var, loop.extent, loop.kind, self.statement(loop.body))

    def guards(self, loop: For) -> Iterator[LoopGuard]:
        """Find the conditions below ``loop`` that its variable and outer ones can make certain.

        A condition directly in the body of a parallel loop costs nothing and is left alone.
        """
        inner = bound_names(loop.body)
        seen: set[Expr] = set()
        for condition in _conditions(loop.body):
            if condition in seen:
                continue
            seen.add(condition)
            form = _positive_form(condition)
            sufficient = None if form is None else self.least(form, inner)
            if sufficient is None or not any(loop.var in free_variables(e) for e in sufficient.terms):
                continue
            if sufficient == form and (loop.kind is LoopKind.PARALLEL or len(form.terms) > 1):
                if any(condition in conjuncts(s.condition) for s in _outside_loops(loop.body) if isinstance(s, If)):
                    continue
            yield LoopGuard(condition, sufficient)

    def least(self, form: LinearForm, inner: set[str]) -> LinearForm | None:
        """Return the least value of ``form`` over the variables of inner loops; None where it is not known."""
        result = form
        for atom, coefficient in form.terms.items():
            if not free_variables(atom) & inner:
                continue
            bounds = index_bounds(atom, self.extents)
            if bounds is None:
                return None
            result = result.without((atom,)) + coefficient * (bounds[0] if coefficient > 0 else bounds[1])
        return result

    def is_deepest(self, guard: LoopGuard, loop: For) -> bool:
        """Return whether no serial loop inside ``loop`` takes part in the guard, so that this is the place to test
        it."""
        used = free_variables(guard.condition)
        return not any(
            isinstance(s, For) and s.var in used and s.kind is LoopKind.SERIAL for s in walk_statements(loop.body)
        )

    def split_range(self, loop: For, low: int, high: int, certain: Sequence[LoopGuard]) -> Stmt:
        """Split a serial loop into up to three: before the range that is free of guards, the range, and after it."""
        ranges: list[Stmt] = []
        for first, last in ((0, low - 1), (low, high), (high + 1, loop.extent - 1)):
            if first > last:
                continue
            body = _assume(loop.body, certain) if first == low else self.copy(loop.body)
            if first == last:
                ranges.append(self.statement(replace_names(body, {loop.var: index(first)}, {})))
                continue
            var = loop.var if first == low else self.names.fresh(loop.var)
            self.extents[var] = last - first + 1
            shifted = Var(var) if first == 0 else Var(var) + first
            inner = For(var, last - first + 1, LoopKind.SERIAL, replace_names(body, {loop.var: shifted}, {}))
            ranges.append(self.loop(inner))
        return seq(*ranges)

    def branch(
        self,
        loop: For,
        atom: Expr,
        bounds: tuple[int, int],
        main: tuple[int, int],
        certain: Sequence[LoopGuard],
        done: frozenset[Expr],
    ) -> Stmt:
        """Write the body under an ``if`` for each range of ``atom``. A range of one value makes the atom a constant."""
        branches: list[Stmt] = []
        for first, last in ((bounds[0], main[0] - 1), main, (main[1] + 1, bounds[1])):
            if first > last:
                continue
            body = _assume(loop.body, certain) if first == main[0] else self.copy(loop.body)
            if first == last:
                body = _substitute(body, atom, first)
            tests: list[Expr] = []
            if first > bounds[0]:
                tests.append(Compare(CompareOp.GE, atom, index(first)))
            if last < bounds[1]:
                tests.append(Compare(CompareOp.LE, atom, index(last)))
            if loop.kind is LoopKind.PARALLEL:
                inner = self.loop(For(loop.var, loop.extent, loop.kind, body), done)
                body = inner.body if isinstance(inner, For) else inner
            else:
                body = self.statement(body)
            branches.append(If(logical_and(*tests), body) if tests else body)
        return For(loop.var, loop.extent, loop.kind, seq(*branches))

    def versions(self, body: Stmt, mixed: Sequence[LoopGuard]) -> Stmt:
        """Write the body twice: where no guard can fail, and where one can. Of a guard and its opposite the first one
        counts, and the other in a third version."""
        conditions = [g.condition for g in mixed]
        opposite = [g for n, g in enumerate(mixed) if _negated(g.condition) in conditions[:n]]
        first = [g for g in mixed if g not in opposite]
        refuted = [_negated(g.condition) for g in opposite]
        second = [*opposite, *(g for g in first if g.condition not in refuted)] if opposite else []
        result = self.statement(self.copy(body))
        for certain in (second, first):
            if certain:
                safe = logical_and(*(Compare(CompareOp.GE, g.sufficient.to_expr(), index(0)) for g in certain))
                fast = _assume(body, certain)
                fast = self.statement(fast if certain is first else self.copy(fast))
                result = seq(If(safe, fast), If(Unary(UnaryOp.NOT, safe), result))
        return result

    def copy(self, stmt: Stmt) -> Stmt:
        """Copy ``stmt`` under fresh names, and note the extents of its loops."""
        fresh = {name: self.names.fresh(name) for name in sorted(bound_names(stmt))}
        copied = replace_names(stmt, {}, fresh)
        self.extents.update({s.var: s.extent for s in walk_statements(copied) if isinstance(s, For)})
        return copied


def _certain_range(
    atom: Expr, bounds: tuple[int, int], guards: Sequence[LoopGuard]
) -> tuple[int, int, list[LoopGuard]]:
    """Return the range of ``atom`` in which guards on it alone are certain, and those guards.

    A guard that would leave an empty range is skipped.
    """
    low, high = bounds
    certain: list[LoopGuard] = []
    for guard in guards:
        if set(guard.sufficient.terms) != {atom}:
            continue
        slope, constant = guard.sufficient.terms[atom], guard.sufficient.constant
        first = max(low, -(constant // slope)) if slope > 0 else low
        last = min(high, constant // -slope) if slope < 0 else high
        if first <= last:
            low, high = first, last
            certain.append(guard)
    return low, high, certain


def _positive_form(condition: Compare) -> LinearForm | None:
    """Return the linear form that is >= 0 exactly when a comparison of indices holds; None for other comparisons."""
    form = _compared(condition)
    if form is None or len(form.terms) != 1:
        return form
    ((atom, coefficient),) = form.terms.items()
    if not isinstance(atom, Binary) or atom.op is not BinaryOp.FLOORDIV or not isinstance(atom.b, Const):
        return form
    divisor = int(atom.b.value)
    if divisor <= 0:
        return form
    if coefficient > 0:  # a // d >= least
        return linear_form(atom.a) - -(form.constant // coefficient) * divisor
    return linear_form(atom.a).scaled(-1) + (form.constant // -coefficient * divisor + divisor - 1)


def _compared(condition: Compare) -> LinearForm | None:
    """Return the difference that is >= 0 exactly when a comparison of indices holds; None for other comparisons."""
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


def _conditions(stmt: Stmt) -> Iterator[Compare]:
    """Return the comparisons in the conditions of ``if`` and ``select`` below ``stmt``, and those of indices of vectors
    with their bounds. That of a ``select`` whose second arm has loads comes with its opposite."""
    lanes = {s.var for s in walk_statements(stmt) if isinstance(s, For) and s.kind is LoopKind.VECTORIZED}
    for below in walk_statements(stmt):
        for clamp in (_clamp(e) for root in expressions(below) for e in walk(root)):
            if clamp is not None and lanes & free_variables(clamp):
                yield clamp
        if isinstance(below, If):
            yield from (term for term in conjuncts(below.condition) if isinstance(term, Compare))
        for select in (e for root in expressions(below) for e in walk(root) if isinstance(e, Select)):
            yield from (term for term in conjuncts(select.condition) if isinstance(term, Compare))
            opposite = _negated(select.condition)
            if opposite is not None and any(isinstance(e, Load) for e in walk(select.otherwise)):
                yield opposite


def _clamp(e: Expr) -> Compare | None:
    """Return the comparison that holds exactly where the lesser or the greater of an index, on the left, and a constant
    is the index; None for other expressions."""
    if not isinstance(e, Binary) or e.op not in (BinaryOp.MIN, BinaryOp.MAX) or e.dtype != INDEX:
        return None
    a, b = (e.b, e.a) if isinstance(e.a, Const) else (e.a, e.b)
    return Compare(CompareOp.LE if e.op is BinaryOp.MIN else CompareOp.GE, a, b) if isinstance(b, Const) else None


_OPPOSITES = {
    CompareOp.LT: CompareOp.GE,
    CompareOp.LE: CompareOp.GT,
    CompareOp.GT: CompareOp.LE,
    CompareOp.GE: CompareOp.LT,
}


def _negated(condition: Expr) -> Compare | None:
    """Return the comparison that holds exactly when one of indices does not; None for other conditions."""
    if isinstance(condition, Compare) and condition.op in _OPPOSITES and condition.a.dtype == INDEX:
        return replace(condition, op=_OPPOSITES[condition.op])
    return None


def _outside_loops(stmt: Stmt) -> Iterator[Stmt]:
    """Return ``stmt`` and all below it that is in no loop."""
    yield stmt
    for below in () if isinstance(stmt, For) else substatements(stmt):
        yield from _outside_loops(below)


def _assume(stmt: Stmt, certain: Sequence[LoopGuard]) -> Stmt:
    """Remove the conditions that are known to hold, or not to hold."""
    known: set[Expr | None] = {g.condition for g in certain}

    def rest(condition: Expr) -> Expr | None:
        terms = conjuncts(condition)
        kept = [t for t in terms if t not in known]
        if len(kept) == len(terms):
            return condition
        return logical_and(*kept) if kept else None

    def select(e: Expr) -> Expr:
        if (clamp := _clamp(e)) is not None and clamp in known:
            return clamp.a
        if isinstance(e, Select) and _negated(e.condition) in known:
            return e.otherwise
        if isinstance(e, Select) and (condition := rest(e.condition)) is not e.condition:
            return e.then if condition is None else Select(condition, e.then, e.otherwise)
        return e

    def guard(s: Stmt) -> Stmt:
        if isinstance(s, If) and (condition := rest(s.condition)) is not s.condition:
            return s.then if condition is None else If(condition, s.then)
        return s

    return map_statements(map_expressions(stmt, lambda e: map_expr(e, select)), guard)


def _substitute(stmt: Stmt, atom: Expr, value: int) -> Stmt:
    """Replace ``atom`` by its one ``value``."""
    return map_expressions(stmt, lambda e: map_expr(e, lambda x: index(value) if x == atom else x))
