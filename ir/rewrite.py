"""Rewriting expressions and statements: mapping, substituting, renaming, and asking what is free.

Every function is pure, and gives back the very same object where nothing changed. Within one call a shared node is
rewritten once.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import overload

from .buffer import Buffer
from .expr import ClusterLoad, Expr, Load, Shuffle, Var, rebuild, walk
from .provenance import rewrites
from .stmt import (
    Allocate,
    For,
    If,
    Launch,
    Operation,
    Seq,
    Stmt,
    Store,
    expressions,
    substatements,
    walk_statements,
    with_statements,
)


def map_expr(expr: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """Return ``expr`` rewritten bottom-up: ``f`` is given every node after its children were rewritten."""
    return _ExprMapper(f).visit(expr)


class _ExprMapper:
    """One bottom-up rewriting. It remembers shared nodes by their ids while it lives."""

    def __init__(self, f: Callable[[Expr], Expr]) -> None:
        self.f = f
        self.done: dict[int, tuple[Expr, Expr]] = {}  # by id; the node is kept, so that its id stays its own

    def visit(self, expr: Expr) -> Expr:
        found = self.done.get(id(expr))
        if found is not None:
            return found[1]
        children = expr.children
        result = self.f(rebuild(expr, [self.visit(child) for child in children]) if children else expr)
        self.done[id(expr)] = (expr, result)
        return result


@rewrites
def map_statements(stmt: Stmt, f: Callable[[Stmt], Stmt]) -> Stmt:
    """Return ``stmt`` rewritten bottom-up: ``f`` is given every statement after those below it were rewritten.

    Sequences are flattened, and statements that ``f`` makes empty disappear from them.
    """
    below = list[Stmt]()
    for s in substatements(stmt):
        below.append(map_statements(s, f))
    return f(with_statements(stmt, below) if below else stmt)


def map_expressions(stmt: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    """Return ``stmt`` with every whole expression (indices, values, masks, conditions) replaced by ``f`` of it."""

    def at(s: Stmt) -> Stmt:
        match s:
            case Store(buffer=buffer, indices=indices, value=value, mask=mask):
                new = (tuple(f(i) for i in indices), f(value), None if mask is None else f(mask))
                changed = new[1] is not value or new[2] is not mask or any(map(_differ, new[0], indices))
                return Store(buffer, *new) if changed else s
            case If(condition=condition, then=then):
                changed_condition = f(condition)
                return s if changed_condition is condition else If(changed_condition, then)
            case Operation():
                return s.with_expressions([f(e) for e in s.expressions])
        return s

    return map_statements(stmt, at)


def _differ(a: Expr, b: Expr) -> bool:
    return a is not b


@overload
def map_loads(node: Expr, f: Callable[[Load], Expr]) -> Expr: ...
@overload
def map_loads(node: Stmt, f: Callable[[Load], Expr]) -> Stmt: ...
def map_loads(node: Expr | Stmt, f: Callable[[Load], Expr]) -> Expr | Stmt:
    """Return ``node`` with every load replaced by ``f`` of it. The indices of the load are rewritten already."""
    mapper = _ExprMapper(lambda e: f(e) if isinstance(e, Load) else e)
    if isinstance(node, Expr):
        return mapper.visit(node)
    return map_expressions(node, mapper.visit)


@overload
def substitute(node: Expr, values: Mapping[str, Expr]) -> Expr: ...
@overload
def substitute(node: Stmt, values: Mapping[str, Expr]) -> Stmt: ...
def substitute(node: Expr | Stmt, values: Mapping[str, Expr]) -> Expr | Stmt:
    """Return ``node`` with every variable named in ``values`` replaced by its expression.

    Below a loop that binds one of the names, that name is left alone. The values are scalars: replacing a variable by a
    vector needs its surroundings widened too.
    """
    if not values:
        return node
    mapper = _ExprMapper(lambda e: values.get(e.name, e) if isinstance(e, Var) else e)
    if isinstance(node, Expr):
        return mapper.visit(node)
    return _substitute_statement(node, values, mapper)


@rewrites
def _substitute_statement(stmt: Stmt, values: Mapping[str, Expr], mapper: _ExprMapper) -> Stmt:
    match stmt:
        case For(var=var, body=body):
            if var in values:
                return replace(stmt, body=substitute(body, {k: v for k, v in values.items() if k != var}))
            new = _substitute_statement(body, values, mapper)
            return stmt if new is body else replace(stmt, body=new)
        case Launch(axes=axes, body=body) if any(a.var in values for a in axes):
            bound = {a.var for a in axes}
            return replace(stmt, body=substitute(body, {k: v for k, v in values.items() if k not in bound}))
        case Allocate(body=body) | Launch(body=body):
            new = _substitute_statement(body, values, mapper)
            return stmt if new is body else replace(stmt, body=new)
        case If(condition=condition, then=then):
            new = _substitute_statement(then, values, mapper)
            test = mapper.visit(condition)
            return stmt if new is then and test is condition else If(test, new)
        case Seq(statements=statements):
            below = tuple(_substitute_statement(s, values, mapper) for s in statements)
            return stmt if all(n is o for n, o in zip(below, statements, strict=True)) else Seq(below)
    return map_expressions(stmt, mapper.visit)


def rename(stmt: Stmt, names: Mapping[str, str]) -> Stmt:
    """Return ``stmt`` with variables renamed, where they are bound and where they are used."""
    if not names:
        return stmt
    mapper = _ExprMapper(lambda e: Var(names.get(e.name, e.name)) if isinstance(e, Var) else e)

    def binder(s: Stmt) -> Stmt:
        if isinstance(s, Launch):
            return replace(s, axes=tuple(replace(a, var=names.get(a.var, a.var)) for a in s.axes))
        return replace(s, var=names[s.var]) if isinstance(s, For) and s.var in names else s

    return map_statements(map_expressions(stmt, mapper.visit), binder)


@overload
def replace_buffers(node: Expr, buffers: Mapping[str, Buffer]) -> Expr: ...
@overload
def replace_buffers(node: Stmt, buffers: Mapping[str, Buffer]) -> Stmt: ...
def replace_buffers(node: Expr | Stmt, buffers: Mapping[str, Buffer]) -> Expr | Stmt:
    """Return ``node`` with loads, stores and allocations of the named buffers turned to other buffers, with the indices
    that they had."""
    return _map_buffers(node, lambda b: buffers.get(b.name, b))


def rename_buffers(stmt: Stmt, names: Mapping[str, str]) -> Stmt:
    """Return ``stmt`` with buffers renamed, where they are allocated and where they are accessed. Each access keeps the
    shape in which it sees its buffer."""
    return _map_buffers(stmt, lambda b: replace(b, name=names[b.name]) if names.get(b.name, b.name) != b.name else b)


@overload
def _map_buffers(node: Expr, f: Callable[[Buffer], Buffer]) -> Expr: ...
@overload
def _map_buffers(node: Stmt, f: Callable[[Buffer], Buffer]) -> Stmt: ...
def _map_buffers(node: Expr | Stmt, f: Callable[[Buffer], Buffer]) -> Expr | Stmt:
    def load(e: Expr) -> Expr:
        if isinstance(e, (Load, ClusterLoad)) and (new := f(e.buffer)) is not e.buffer:
            return replace(e, buffer=new)
        return e

    def holder(s: Stmt) -> Stmt:
        if isinstance(s, (Store, Allocate)) and (new := f(s.buffer)) is not s.buffer:
            return replace(s, buffer=new)
        if isinstance(s, Operation) and any(f(b) is not b for b in s.buffers):
            return s.with_buffers([f(b) for b in s.buffers])
        return s

    mapper = _ExprMapper(load)
    if isinstance(node, Expr):
        return mapper.visit(node)
    return map_statements(map_expressions(node, mapper.visit), holder)


def free_variables(node: Expr | Stmt) -> frozenset[str]:
    """Return the names of the variables that ``node`` uses and does not bind."""
    if isinstance(node, Expr):
        return variables_of(node)
    match node:
        case For(var=var, body=body):
            return free_variables(body) - {var}
        case Launch(axes=axes, body=body):
            return free_variables(body) - {a.var for a in axes}
    below: list[Expr | Stmt] = [*expressions(node), *substatements(node)]
    return frozenset().union(*map(free_variables, below))


def reads_of(expr: Expr) -> tuple[Load | ClusterLoad | Shuffle, ...]:
    """Return all nodes at and below ``expr`` that read memory or another lane, in the order of ``walk``. A node
    remembers those below it: passes and rules ask again and again."""
    if isinstance(expr, (Load, ClusterLoad, Shuffle)):  # which would hold itself
        return (expr, *(read for child in expr.children for read in reads_of(child)))
    try:
        return expr._reads
    except AttributeError:
        found = tuple(e for e in walk(expr) if isinstance(e, (Load, ClusterLoad, Shuffle)))
        object.__setattr__(expr, "_reads", found)
        return found


def variables_of(expr: Expr) -> frozenset[str]:
    """Return the names of all variables of ``expr``, which it remembers."""
    try:
        return expr._variables
    except AttributeError:
        found = frozenset(e.name for e in walk(expr) if isinstance(e, Var))
        object.__setattr__(expr, "_variables", found)
        return found


def loop_names(stmt: Stmt) -> tuple[str, ...]:
    """Return the variables of all loops in ``stmt``, in program order."""
    return tuple(s.var for s in walk_statements(stmt) if isinstance(s, For))


def loads_of(node: Expr | Stmt) -> tuple[Load, ...]:
    """Return every load in an expression or a statement, in program order."""
    if isinstance(node, Expr):
        return tuple(e for e in reads_of(node) if isinstance(e, Load))
    return tuple(load for s in walk_statements(node) for e in expressions(s) for load in loads_of(e))


def is_pure(expr: Expr) -> bool:
    """Return whether the variables of ``expr`` alone decide its value: it reads no memory and no other lane."""
    return not reads_of(expr)


def stores_of(stmt: Stmt) -> tuple[Store, ...]:
    """Return every store in ``stmt``, in program order."""
    return tuple(s for s in walk_statements(stmt) if isinstance(s, Store))


def fresh_name(base: str, taken: Collection[str]) -> str:
    """Return the first of ``base``, ``base_2``, ``base_3``, … that is not taken."""
    if base not in taken:
        return base
    number = 2
    while f"{base}_{number}" in taken:
        number += 1
    return f"{base}_{number}"
