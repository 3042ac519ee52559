"""Writes UNROLLED loops out, with one copy of the body for each value of the variable.

for k in unrolled(2):          C[0] = C[0] + A[0] * B[0]
    C[0] = C[0] + A[k] * B[k]  C[0] = C[0] + A[1] * B[1]
"""

from dataclasses import replace

from ...ir.expr import index
from ...ir.provenance import rewrites
from ...ir.stmt import For, Kernel, LoopKind, Stmt, Store, seq, substatements, walk_statements, with_statements
from .copies import FreshNames, bound_names, replace_names

MOST_STATEMENTS = 8192
"""A loop whose copies would have more stores than this becomes a serial loop, since compilers cannot cope with more."""


def unroll(kernel: Kernel) -> Kernel:
    """Write out every UNROLLED loop, innermost first. Loops and buffers in all copies but the first get fresh names."""
    names = FreshNames(bound_names(kernel.body) | {b.name for b in kernel.parameters})
    return replace(kernel, body=_statement(kernel.body, names))


@rewrites
def _statement(stmt: Stmt, names: FreshNames) -> Stmt:
    match stmt:
        case For(var=var, extent=extent, kind=kind, body=body):
            inner = _statement(body, names)
            if kind is not LoopKind.UNROLLED:
                return For(var, extent, kind, inner)
            if extent * stores(inner) > MOST_STATEMENTS:
                return For(var, extent, LoopKind.SERIAL, inner)
            copies = [replace_names(inner, {var: index(0)}, {})]
            bound = sorted(bound_names(inner))
            for value in range(1, extent):
                copies.append(replace_names(inner, {var: index(value)}, {b: names.fresh(b) for b in bound}))
            return seq(*copies)
    below = list[Stmt]()
    for s in substatements(stmt):
        below.append(_statement(s, names))
    return with_statements(stmt, below)


def stores(stmt: Stmt) -> int:
    """Return how many stores ``stmt`` has, each counted once however often it runs."""
    return sum(isinstance(s, Store) for s in walk_statements(stmt))
