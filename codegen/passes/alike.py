"""Statements that differ in names alone, as the layers of a network do: they are worked on once."""

from collections.abc import Mapping, Sequence

from ...ir.expr import Expr, Load, Var, walk
from ...ir.stmt import Allocate, For, Operation, Stmt, Store, expressions, walk_statements
from .copies import Names, bound_names, replace_names


def renaming(first: Stmt, second: Stmt) -> dict[str, str] | None:
    """The names of variables and buffers of ``first`` -> those in their places in ``second``, where the two are alike
    in everything else; None where they are not."""
    if type(first) is not type(second) or (isinstance(first, For) and first.extent != getattr(second, "extent", None)):
        return None
    mine, theirs = _names(first), _names(second)
    if len(mine) != len(theirs):
        return None
    names = dict(zip(mine, theirs, strict=True))
    return names if replace_names(first, {}, names) == second else None


def copies_among(statements: Sequence[Stmt]) -> dict[int, tuple[int, Mapping[str, str]]]:
    """Position of each statement that is alike to an earlier one -> the position of the first such, and its
    ``renaming``."""
    found: dict[int, tuple[int, Mapping[str, str]]] = {}
    for n, stmt in enumerate(statements):
        for m in range(n):
            names = None if m in found else renaming(statements[m], stmt)
            if names is not None:
                found[n] = m, names
                break
    return found


def renamed(stmt: Stmt, names: Mapping[str, str], taken: Names) -> Stmt:
    """``stmt`` under other names; what it binds that has none in ``names`` gets a fresh one."""
    fresh = {name: taken.fresh(name) for name in sorted(bound_names(stmt) - names.keys())}
    return replace_names(stmt, {}, {**names, **fresh})


def _names(stmt: Stmt) -> tuple[str, ...]:
    """Every variable and buffer, in the order in which they first appear."""
    names: dict[str, None] = {}
    seen: set[int] = set()  # by identity: every expression here outlives the walk

    def note(expr: Expr) -> None:
        for e in walk(expr):
            if isinstance(e, Var):
                names.setdefault(e.name)
            elif isinstance(e, Load):
                names.setdefault(e.buffer.name)

    for below in walk_statements(stmt):
        match below:
            case For(var=var):
                names.setdefault(var)
            case Allocate(buffer=buffer) | Store(buffer=buffer):
                names.setdefault(buffer.name)
            case Operation():
                names.update(dict.fromkeys(b.name for b in below.buffers))
        for expr in expressions(below):
            if id(expr) not in seen:
                seen.add(id(expr))
                note(expr)
    return tuple(names)
