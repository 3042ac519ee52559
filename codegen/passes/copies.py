"""Copies statements. Names that a statement binds are unique in a kernel, so each copy binds names of its own."""

from collections.abc import Mapping
from dataclasses import replace

from ...ir.buffer import Buffer
from ...ir.expr import ClusterLoad, Expr, Load, Var, rebuild
from ...ir.provenance import rewrites
from ...ir.stmt import Allocate, For, If, Launch, Operation, Seq, Stmt, Store, walk_statements


def bound_names(stmt: Stmt) -> set[str]:
    """Return the variables and buffers that ``stmt`` binds."""
    names: set[str] = set()
    for below in walk_statements(stmt):
        if isinstance(below, For):
            names.add(below.var)
        elif isinstance(below, Allocate):
            names.add(below.buffer.name)
        elif isinstance(below, Launch):
            names.update(b.var for b in below.axes)
    return names


class FreshNames:
    """Gives names that one kernel does not have yet."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """Return ``base`` with the lowest free suffix ``_c<number>``, and take that name."""
        stem, mark, digits = base.rpartition("_c")
        if mark and digits.isdigit():
            base = stem
        number = self._last.get(base, 0) + 1
        while f"{base}_c{number}" in self._taken:
            number += 1
        self._last[base] = number
        name = f"{base}_c{number}"
        self._taken.add(name)
        return name


def replace_names(stmt: Stmt, values: Mapping[str, Expr], names: Mapping[str, str]) -> Stmt:
    """Replace the variables in ``values``, and rename the loops and buffers in ``names``. Variables of launches keep
    their names."""
    memo: dict[int, Expr] = {}  # keyed by identity, since every expression here outlives the walk

    def buffer_of(buffer: Buffer) -> Buffer:
        name = names.get(buffer.name)
        return buffer if name is None else replace(buffer, name=name)

    def expr(e: Expr) -> Expr:
        known = memo.get(id(e))
        if known is not None:
            return known
        if isinstance(e, Var):
            new: Expr = values[e.name] if e.name in values else Var(names[e.name]) if e.name in names else e
        else:
            new = rebuild(e, [expr(c) for c in e.children]) if e.children else e
            if isinstance(new, (Load, ClusterLoad)) and new.buffer.name in names:
                new = replace(new, buffer=buffer_of(new.buffer))
        memo[id(e)] = new
        return new

    @rewrites
    def statement(s: Stmt) -> Stmt:
        match s:
            case For(var=var, extent=extent, kind=kind, body=body):
                return For(names.get(var, var), extent, kind, statement(body))
            case Store(buffer=buffer, indices=indices, value=value, mask=mask):
                return Store(
                    buffer_of(buffer),
                    tuple(expr(i) for i in indices),
                    expr(value),
                    None if mask is None else expr(mask),
                )
            case If(condition=condition, then=then):
                return If(expr(condition), statement(then))
            case Seq(statements=statements):
                return Seq(tuple(statement(x) for x in statements))
            case Allocate(buffer=buffer, body=body):
                return Allocate(buffer_of(buffer), statement(body))
            case Launch(body=body):
                return replace(s, body=statement(body))
            case Operation():
                moved = s.with_expressions([expr(e) for e in s.expressions])
                return moved.with_buffers([buffer_of(b) for b in s.buffers])
        return s

    return statement(stmt)
