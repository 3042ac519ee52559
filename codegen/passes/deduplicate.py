"""Statements that differ in names alone, as the layers of a network do: they are worked on once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...ir.buffer import Buffer
from ...ir.expr import Const, Expr
from ...ir.stmt import For, Stmt
from .copies import Names, bound_names, replace_names


def renaming(first: Stmt, second: Stmt) -> Mapping[str, str] | None:
    """The names of variables and buffers of ``first`` -> those in their places in ``second``, where the two are alike
    in everything else; None where they are not."""
    pair = _Pair()
    return pair.names if pair.alike(first, second) else None


@dataclass(slots=True)
class _Pair:
    """Two trees on a walk side by side. ``names``: of the first -> of the second; no two become one."""

    names: dict[str, str] = field(default_factory=dict)
    _back: dict[str, str] = field(default_factory=dict)
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def alike(self, a: Any, b: Any) -> bool:
        kind = type(a)
        if kind is not type(b):
            return False
        if kind is str:  # in statements and expressions all plain texts are names of variables or buffers
            return bool(self.names.setdefault(a, b) == b and self._back.setdefault(b, a) == a)
        if kind is not tuple:
            if kind is Const or not isinstance(a, (Expr, Stmt, Buffer)):
                return bool(a == b)
            place = (id(a), id(b))  # both outlive the walk
            if place in self._seen:
                return True
            self._seen.add(place)  # should they differ, nobody asks again
            names = kind.__match_args__
            a, b = [getattr(a, name) for name in names], [getattr(b, name) for name in names]
        return len(a) == len(b) and all(map(self.alike, a, b))


def copies_among(statements: Sequence[Stmt]) -> dict[int, tuple[int, Mapping[str, str]]]:
    """Position of each loop that is alike to an earlier one -> the position of the first such, and its ``renaming``."""
    found: dict[int, tuple[int, Mapping[str, str]]] = {}
    for n, stmt in enumerate(statements):
        for m in range(n if isinstance(stmt, For) else 0):
            names = None if m in found else renaming(statements[m], stmt)
            if names is not None:
                found[n] = m, names
                break
    return found


def renamed(stmt: Stmt, names: Mapping[str, str], taken: Names) -> Stmt:
    """``stmt`` under other names; what it binds that has none in ``names`` gets a fresh one."""
    fresh = {name: taken.fresh(name) for name in sorted(bound_names(stmt) - names.keys())}
    return replace_names(stmt, {}, {**names, **fresh})
