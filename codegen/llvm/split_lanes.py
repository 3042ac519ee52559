"""Vectors whose number of lanes is no power of two are split into chunks whose number is.

LLVM legalises 48 lanes by padding them to 64 and moving them through memory, which costs more than all the arithmetic.
So ``T[ramp(b, 1, 48)] = v`` becomes a statement of 32 lanes and one of 16.
"""

from functools import reduce

from ...ir.expr import Binary, Broadcast, Expr, Ramp, ReduceLanes, rebuild
from ...ir.rewrite import loads_of
from ...ir.stmt import Store


def power_of_two_chunks(lanes: int) -> tuple[tuple[int, int], ...]:
    """Return (first lane, lanes) of each chunk, the widest first: 44 lanes become 32, 8 and 4."""
    chunks, start = [], 0
    while start < lanes:
        size = 1 << ((lanes - start).bit_length() - 1)
        chunks.append((start, size))
        start += size
    return tuple(chunks)


def split_store(stmt: Store) -> tuple[Store, ...]:
    """Split ``stmt`` into one store for each chunk of its lanes, where that cannot change what is stored."""
    lanes = max((i.lanes for i in stmt.indices), default=1)
    if lanes & (lanes - 1) == 0:
        return (stmt,)
    # A lane must not read what an earlier chunk has written. So loads of the same buffer may only read their own lane.
    if any(load.indices != stmt.indices for load in loads_of(stmt) if load.buffer.name == stmt.buffer.name):
        return (stmt,)
    return tuple(_store_of_lanes(stmt, start, count) for start, count in power_of_two_chunks(lanes))


def split_reduction(expr: ReduceLanes) -> Expr:
    """Rewrite ``expr`` so that its lanes are combined chunk by chunk."""
    lanes = expr.value.lanes
    if lanes & (lanes - 1) == 0:
        return expr
    chunks = []
    for start, count in power_of_two_chunks(lanes):
        chunk = _slice(expr.value, start, count)
        chunks.append(ReduceLanes(expr.op, chunk) if count > 1 else chunk)
    return reduce(lambda a, b: Binary(expr.op, a, b), chunks)


def _store_of_lanes(stmt: Store, start: int, count: int) -> Store:
    return Store(
        stmt.buffer,
        tuple(_slice(i, start, count) for i in stmt.indices),
        _slice(stmt.value, start, count),
        None if stmt.mask is None else _slice(stmt.mask, start, count),
    )


def _slice(expr: Expr, start: int, count: int) -> Expr:
    """Return the lanes ``start`` to ``start + count`` of a vector; a scalar stands for every lane."""
    match expr:
        case Ramp(base=base, stride=stride):
            first = base + start * stride if start else base
            return Ramp(first, stride, count) if count > 1 else first
        case Broadcast(value=value):
            return Broadcast(value, count) if count > 1 else value
    if expr.lanes == 1:
        return expr
    return rebuild(expr, [_slice(child, start, count) for child in expr.children])
