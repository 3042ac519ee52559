"""Gathers that read a matrix between them become whole loads and a transpose in registers.

    C[0, ramp(0, 4)] = A[ramp(0, 1, 4), 0]          transpose(T[0, 0], A[0, 0])      rows of A are loaded whole
    C[1, ramp(0, 4)] = A[ramp(0, 1, 4), 1]    ->    C[0, ramp(0, 4)] = T[0, ramp(0, 4)]
    C[2, ramp(0, 4)] = A[ramp(0, 1, 4), 2]          C[1, ramp(0, 4)] = T[1, ramp(0, 4)]
    C[3, ramp(0, 4)] = A[ramp(0, 1, 4), 3]          ..

A gather takes about as long as a load of each lane. A transpose takes a load for each row and a shuffle for each power
of two of the rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...ir.buffer import Buffer, MemoryScope
from ...ir.cpu import LEAST_TRANSPOSED, Transpose
from ...ir.expr import Broadcast, Expr, Load, Ramp, Select, index, walk
from ...ir.linear_form import LinearForm, flat_form
from ...ir.provenance import rewrites
from ...ir.rewrite import map_expr
from ...ir.stmt import Allocate, Kernel, Seq, Stmt, Store, seq, substatements, with_statements
from .copies import FreshNames, bound_names

LEAST_STRIDE = 5
"""Lanes that are less far apart are shuffled out of whole vectors anyhow."""


def transpose_gathers(kernel: Kernel) -> Kernel:
    """Rewrite the gathers of ``kernel`` from its inputs, which nothing stores to. Those that depend on a condition
    stay."""
    names = FreshNames(bound_names(kernel.body) | {b.name for b in kernel.parameters})
    inputs = frozenset(b.name for b in kernel.inputs)

    @rewrites
    def statement(stmt: Stmt) -> Stmt:
        below = list[Stmt]()
        for s in substatements(stmt):
            below.append(statement(s))
        return _with_transposes(below, inputs, names) if isinstance(stmt, Seq) else with_statements(stmt, below)

    return replace(kernel, body=statement(kernel.body))


def _with_transposes(statements: Sequence[Stmt], inputs: frozenset[str], names: FreshNames) -> Stmt:
    """Return the statements in order, with the transposes that their gathers need before them."""
    transposes: list[Transpose] = []
    known: dict[Expr, Expr] = {}
    for block in _blocks(statements, inputs):
        source, indices = block[0].buffer, block[0].indices
        lanes, columns = block[0].lanes, len(block)
        target = Buffer(names.fresh(f"{source.name}_t"), (columns, lanes), source.dtype, MemoryScope.REGISTER)
        pitch = flat_form(indices, source.strides).stride
        for first in range(0, lanes, columns):
            at = tuple(_lane(i, first) for i in indices)
            transposes.append(Transpose(target, (index(0), index(first)), lanes, source, at, pitch, columns, columns))
        known |= {load: Load(target, (index(c), Ramp(index(0), 1, lanes))) for c, load in enumerate(block)}
    if not transposes:
        return seq(*statements)
    body = seq(*transposes, *(_replaced(s, known) for s in statements))
    for target in dict.fromkeys(t.target for t in transposes):
        body = Allocate(target, body)
    return body


@rewrites
def _replaced(stmt: Stmt, known: Mapping[Expr, Expr]) -> Stmt:
    if not isinstance(stmt, Store) or not any(e in known for e in walk(stmt.value)):
        return stmt
    return replace(stmt, value=map_expr(stmt.value, lambda e: known.get(e, e)))


def _blocks(statements: Sequence[Stmt], inputs: frozenset[str]) -> Iterator[list[Load]]:
    """Gathers that are the columns of a matrix in memory: a power of two of them, at most as many as they have
    lanes."""
    found: dict[tuple[str, LinearForm], dict[int, Load]] = {}
    for stmt in statements:
        for load in _certain_loads(stmt.value) if isinstance(stmt, Store) else ():
            if load.buffer.name in inputs and (form := _gather(load)) is not None:
                found.setdefault((load.buffer.name, form - form.constant), {})[form.constant] = load
    for (_, form), loads in found.items():
        left = sorted(loads)
        while left:
            columns = form.lanes
            while not all(left[0] + c in loads for c in range(columns)):
                columns //= 2
            if columns >= LEAST_TRANSPOSED:
                yield [loads[left[0] + c] for c in range(columns)]
            left = left[columns:]


def _certain_loads(expr: Expr) -> Iterator[Load]:
    """Yield the loads of an expression that do not depend on a condition: others may lie outside of their buffer."""
    if isinstance(expr, Load):
        yield expr
    for child in (expr.condition,) if isinstance(expr, Select) else expr.children:
        yield from _certain_loads(child)


def _gather(load: Load) -> LinearForm | None:
    """Return the flat form of a load without a mask that is a gather of evenly spaced lanes; None for others."""
    lanes = load.lanes
    if lanes < LEAST_TRANSPOSED or lanes & (lanes - 1) or load.mask is not None:
        return None
    if not all(i.lanes == 1 or isinstance(i, Ramp | Broadcast) for i in load.indices):
        return None
    form = flat_form(load.indices, load.buffer.strides)
    return form if form.is_strided and form.stride >= max(LEAST_STRIDE, lanes) else None


def _lane(i: Expr, lane: int) -> Expr:
    """Return one lane of an index."""
    match i:
        case Ramp(base=base, stride=stride):
            return base + lane * stride if lane else base
        case Broadcast(value=value):
            return value
    return i
