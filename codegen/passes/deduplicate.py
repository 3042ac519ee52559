"""Finds statements that differ in names alone, such as the layers of a network, so that they are worked on once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...ir.buffer import Buffer
from ...ir.expr import Const, Expr
from ...ir.stmt import For, Stmt
from .copies import FreshNames, bound_names, replace_names


def structural_match(first: Stmt, second: Stmt) -> Mapping[str, str] | None:
    """Return the names of variables and buffers of ``first`` -> those in their place in ``second``, where the two
    statements are equal in everything else; None where they are not."""
    matcher = _StructuralMatcher()
    return matcher.names if matcher.equal(first, second) else None


@dataclass(slots=True)
class _StructuralMatcher:
    """Walks over two trees at once. ``names`` maps names of the first to those of the second, one to one."""

    names: dict[str, str] = field(default_factory=dict)
    _inverse: dict[str, str] = field(default_factory=dict)
    _visited: set[tuple[int, int]] = field(default_factory=set)

    def equal(self, a: Any, b: Any) -> bool:
        kind = type(a)
        if kind is not type(b):
            return False
        if kind is str:  # a plain text in a statement or an expression is always the name of a variable or buffer
            return bool(self.names.setdefault(a, b) == b and self._inverse.setdefault(b, a) == a)
        if kind is not tuple:
            if kind is Const or not isinstance(a, (Expr, Stmt, Buffer)):
                return bool(a == b)
            pair = (id(a), id(b))  # both outlive the walk
            if pair in self._visited:
                return True
            self._visited.add(pair)  # if they differ, the walk ends and nobody asks again
            fields = kind.__match_args__
            a, b = [getattr(a, name) for name in fields], [getattr(b, name) for name in fields]
        return len(a) == len(b) and all(map(self.equal, a, b))


def find_duplicates(statements: Sequence[Stmt]) -> dict[int, tuple[int, Mapping[str, str]]]:
    """Return position of a loop -> (position of the first loop that it matches, their ``structural_match``), for every
    loop that matches an earlier one."""
    found: dict[int, tuple[int, Mapping[str, str]]] = {}
    for n, stmt in enumerate(statements):
        for m in range(n if isinstance(stmt, For) else 0):
            names = None if m in found else structural_match(statements[m], stmt)
            if names is not None:
                found[n] = m, names
                break
    return found


def with_names(stmt: Stmt, names: Mapping[str, str], taken: FreshNames) -> Stmt:
    """Copy ``stmt`` under other names. What it binds that is not in ``names`` gets a fresh name."""
    fresh = {name: taken.fresh(name) for name in sorted(bound_names(stmt) - names.keys())}
    return replace_names(stmt, {}, {**names, **fresh})
