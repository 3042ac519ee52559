"""Simplifying expressions and kernels under integer bounds. It never changes what a legal kernel computes."""

from dataclasses import replace

from .bounds import Ranges, loop_range
from .expr import ClusterLoad, Const, Expr, Load
from .gpu.async_copy import CopyAsync
from .index_analysis import IndexAnalysis
from .lanes import truth_value
from .provenance import rewrites
from .rewrite import reads_of
from .simplifier import Simplifier
from .stmt import (
    Allocate,
    For,
    If,
    Kernel,
    Launch,
    Operation,
    Seq,
    Stmt,
    Store,
    expressions,
    seq,
    substatements,
    walk_statements,
)

NOTHING = Seq(())


def simplify(expr: Expr, ranges: Ranges) -> Expr:
    """Return the simplest form found of ``expr`` when its variables lie in ``ranges``.

    Index arithmetic becomes a normal form. Terms are collected: ``(x*8 + y)//8`` becomes ``x`` and ``(x*8 + y)%8``
    becomes ``y`` where 0 <= y < 8. Comparisons are decided where they can be. A vector is written as one Ramp or
    Broadcast. Float arithmetic stays as it is but for steps that give the same bits. Variables missing from ``ranges``
    are taken to lie within ±2^47. Use one ``Simplifier`` for many expressions of one place.
    """
    return Simplifier(IndexAnalysis(ranges)).simplify(expr)


def prove(condition: Expr, ranges: Ranges) -> bool | None:
    """Return True or False where a scalar bool holds for all, or for none, of the values in ``ranges``; else None."""
    result = simplify(condition, ranges)
    return bool(result.value) if isinstance(result, Const) else None


def simplify_kernel(kernel: Kernel) -> Kernel:
    """Return ``kernel`` with every expression simplified under the ranges of its loops and the conditions of its
    guards.

    Guards that always hold disappear. So do statements that can never run, loops without a body or with one iteration,
    stores to local buffers that nothing reads, and unused allocations.
    """
    body = simplify_statement(kernel.body, kernel.ranges)
    return kernel if body is kernel.body else replace(kernel, body=body)


def simplify_statement(stmt: Stmt, ranges: Ranges) -> Stmt:
    """Return ``stmt`` simplified as in ``simplify_kernel``. ``ranges`` are those of the loops around it."""
    known = dict(ranges)
    for loop in walk_statements(stmt):
        if isinstance(loop, For) and loop.extent >= 1:  # names are unique, so all ranges can be known from the start
            known[loop.var] = loop_range(loop.extent)
        elif isinstance(loop, Launch):
            known.update((b.var, loop_range(b.extent)) for b in loop.axes if b.extent >= 1)
    return _statement(stmt, Simplifier(IndexAnalysis(known)))


@rewrites
def _statement(stmt: Stmt, simplifier: Simplifier) -> Stmt:
    match stmt:
        case For(extent=extent, body=body):
            inner = _statement(body, simplifier) if extent > 0 else NOTHING
            if extent == 1 or inner == NOTHING:
                return inner
            return stmt if inner is body else replace(stmt, body=inner)
        case Seq(statements=statements):
            below = [_statement(s, simplifier) for s in statements]
            if all(new is old and not isinstance(new, Seq) for new, old in zip(below, statements, strict=True)):
                return stmt
            return seq(*below)
        case If():
            return _guarded(stmt, simplifier)
        case Allocate():
            return _allocated(stmt, simplifier)
        case Store():
            return _store(stmt, simplifier)
        case Launch(body=body):
            inner = _statement(body, simplifier)
            return stmt if inner is body else replace(stmt, body=inner)
        case CopyAsync(mask=mask) if mask is not None and truth_value(simplifier.simplify(mask)) is True:
            return _statement(replace(stmt, mask=None), simplifier)
        case Operation():
            return stmt.with_expressions([simplifier.simplify(e) for e in stmt.expressions])
    return stmt


def _guarded(stmt: If, simplifier: Simplifier) -> Stmt:
    condition = simplifier.simplify(stmt.condition)
    if isinstance(condition, Const):
        return _statement(stmt.then, simplifier) if condition.value else NOTHING
    facts = simplifier.facts(condition)
    inside = simplifier.assuming(facts) if facts else simplifier
    then = _statement(stmt.then, inside)
    if then == NOTHING:
        return NOTHING
    return stmt if condition is stmt.condition and then is stmt.then else If(condition, then)


def _allocated(stmt: Allocate, simplifier: Simplifier) -> Stmt:
    body = _statement(stmt.body, simplifier)
    name = stmt.buffer.name
    if name not in _read_names(body, simplifier.read_names):
        return _without_stores(body, name)
    return stmt if body is stmt.body else replace(stmt, body=body)


def _read_names(body: Stmt, known: dict[int, tuple[Stmt, frozenset[str]]]) -> frozenset[str]:
    """Return the buffers that anything in ``body``, the body of an allocation, but a plain store needs. ``known`` has
    those of the bodies of allocations before, by id."""
    found = known.get(id(body))
    if found is not None:
        return found[1]
    names: set[str] = set()
    waiting = [body]
    while waiting:
        here = waiting.pop()
        below = known.get(id(here.body)) if isinstance(here, Allocate) else None
        if below is not None:
            names |= below[1]
            continue
        if isinstance(here, Operation):
            names.update(b.name for b in here.buffers)
        for x in expressions(here):
            names.update(e.buffer.name for e in reads_of(x) if isinstance(e, (Load, ClusterLoad)))
        waiting.extend(substatements(here))
    known[id(body)] = body, frozenset(names)  # the statement is kept, so that its id stays its own
    return known[id(body)][1]


@rewrites
def _without_stores(stmt: Stmt, name: str) -> Stmt:
    """Return ``stmt`` without the stores to the buffer ``name``, and without what that leaves empty."""
    match stmt:
        case Store(buffer=buffer):
            return NOTHING if buffer.name == name else stmt
        case For(body=body) | Allocate(body=body):
            inner = _without_stores(body, name)
            return inner if inner == NOTHING else replace(stmt, body=inner)
        case If(then=then):
            inner = _without_stores(then, name)
            return inner if inner == NOTHING else replace(stmt, then=inner)
        case Seq(statements=statements):
            return seq(*(_without_stores(s, name) for s in statements))
    return stmt


def _store(stmt: Store, simplifier: Simplifier) -> Stmt:
    mask = None if stmt.mask is None else simplifier.simplify(stmt.mask)
    if mask is not None:
        known = truth_value(mask)
        if known is False:
            return NOTHING
        mask = None if known else mask
    indices = simplifier.indices(stmt.indices)
    value = simplifier.simplify(stmt.value)
    same = mask is stmt.mask and value is stmt.value
    if same and all(new is old for new, old in zip(indices, stmt.indices, strict=True)):
        return stmt
    return Store(stmt.buffer, indices, value, mask)
