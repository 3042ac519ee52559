"""Adds long sums of float32 up in blocks, whose sums are added up in turn. Errors of rounding grow with the number of
additions that follow each other: blocks have few, and there are few of them.

                                         total = acc;  acc = 0
for k in 4096:                           for k_block in 16:
    acc[0] = acc[0] + A[k] * B[k]   ->     for k in 256:
                                               acc[0] = acc[0] + A[k_block*256 + k] * B[k_block*256 + k]
                                           total[0] = total[0] + acc[0];  acc[0] = 0
                                         acc = total + acc

Libraries for processors do the same: their products add a block of k to the result, and their sums are pairwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from ...core.dtypes import float32
from ...ir.buffer import Buffer, MemoryScope
from ...ir.expr import (
    Binary,
    BinaryOp,
    Broadcast,
    Compare,
    CompareOp,
    Expr,
    Load,
    Select,
    Var,
    const,
    index,
    logical_and,
)
from ...ir.lane_offsets import lane_offsets
from ...ir.linear_form import linear_form
from ...ir.provenance import rewrites
from ...ir.rewrite import free_variables, loads_of
from ...ir.simplify import simplify_kernel
from ...ir.stmt import Allocate, For, If, Kernel, LoopKind, Seq, Stmt, Store, seq, substatements, with_statements
from .copies import FreshNames, bound_names, replace_names

BLOCK = 256
"""How many additions to one element follow each other at most, where loops allow it. (The flush of a tile takes about
as long as two additions to each of its elements.)"""
MANY_BLOCKS = 8
"""From so many blocks on, the rounding of each addition to the total is taken off the next block (Kahan, 1965)."""


@dataclass(frozen=True, slots=True)
class _Additions:
    """How often a statement adds to some elements, and under which ``conditions`` it does so each time. Elements need
    not have been written where these do not hold."""

    count: int
    conditions: tuple[Expr, ...] = ()


_Places = Mapping[tuple[Expr, ...], _Additions]
"""The indices of elements of a buffer -> what a statement adds to them."""


def block_sums(kernel: Kernel) -> Kernel:
    """Add up the sums of float32 that the kernel keeps in private buffers in blocks, where they are long."""
    names = FreshNames(bound_names(kernel.body) | {b.name for b in kernel.parameters})
    body = _statement(kernel.body, names)
    return kernel if body is kernel.body else simplify_kernel(replace(kernel, body=body))


@rewrites
def _statement(stmt: Stmt, names: FreshNames) -> Stmt:
    below = list[Stmt]()
    for s in substatements(stmt):
        below.append(_statement(s, names))
    done = with_statements(stmt, below)
    match done:
        case Allocate(buffer=buffer) if buffer.scope in (MemoryScope.REGISTER, MemoryScope.LOCAL):
            return replace(done, body=_blocked(done.body, buffer, names)) if buffer.dtype == float32 else done
    return done


@rewrites
def _blocked(stmt: Stmt, buffer: Buffer, names: FreshNames) -> Stmt:
    """``stmt`` with the outermost loops that add few enough terms to ``buffer`` in each iteration cut into blocks."""
    match stmt:
        case For(extent=extent, kind=kind, body=body):
            places = _additions(body, buffer)
            most = max((a.count for a in places.values()), default=0) if places is not None else 0
            if places and kind is LoopKind.SERIAL and most <= BLOCK and _are_apart(places):
                return _cut(stmt, buffer, places, names) if most * extent >= 2 * BLOCK else stmt
    below = list[Stmt]()
    for s in substatements(stmt):
        below.append(_blocked(s, buffer, names))
    return with_statements(stmt, below)


def _additions(stmt: Stmt, buffer: Buffer) -> _Places | None:
    """Return what ``stmt`` adds to each element of ``buffer``. None where it does anything else with it."""
    match stmt:
        case Store(buffer=written, indices=indices, value=value, mask=mask) if written == buffer:
            match value:
                case Binary(op=BinaryOp.ADD, a=Load(buffer=read, indices=place, mask=None), b=term) if (
                    read == buffer and place == indices and mask is None
                ):
                    return None if _reads(term, buffer) else {indices: _Additions(1)}
            return None
        case For(var=var, extent=extent, body=body):
            inner = _additions(body, buffer)
            if inner is None:
                return None
            return {place: _Additions(a.count * extent, _without(a.conditions, var)) for place, a in inner.items()}
        case If(condition=condition, then=body):
            inner = None if _reads(condition, buffer) else _additions(body, buffer)
            if inner is None or loads_of(condition):  # what is loaded may change
                return inner
            return {place: _Additions(a.count, (condition, *a.conditions)) for place, a in inner.items()}
        case Allocate(body=body):
            return _additions(body, buffer)
        case Seq(statements=statements):
            total: dict[tuple[Expr, ...], _Additions] = {}
            for s in statements:
                found = _additions(s, buffer)
                if found is None:
                    return None
                for place, more in found.items():
                    before = total.get(place, _Additions(0, more.conditions))
                    shared = tuple(c for c in before.conditions if c in more.conditions)
                    total[place] = _Additions(before.count + more.count, shared)
            return total
    return None if _reads(stmt, buffer) else {}


def _without(conditions: tuple[Expr, ...], var: str) -> tuple[Expr, ...]:
    """Return the conditions that a variable has no part in."""
    return tuple(c for c in conditions if var not in free_variables(c))


def _are_apart(places: _Places) -> bool:
    """Return whether the elements of all places are known, and no two places share one."""
    elements: list[tuple[int, ...]] = []
    for place in places:
        numbers = [_numbers(i, max((i.lanes for i in place), default=1)) for i in place]
        if not all(numbers):
            return False
        elements += zip(*numbers, strict=True) if numbers else [()]
    return len(set(elements)) == len(elements)


def _numbers(i: Expr, lanes: int) -> list[int]:
    """Return the values of an index in each of ``lanes`` lanes. Empty where they are not known."""
    found = lane_offsets(linear_form(i).widened(lanes))
    return [found[0].constant + offset for offset in found[1]] if found is not None and found[0].is_constant else []


def _reads(node: Expr | Stmt, buffer: Buffer) -> bool:
    return any(load.buffer == buffer for load in loads_of(node))


def _cut(loop: For, buffer: Buffer, places: _Places, names: FreshNames) -> Stmt:
    length = BLOCK // max(a.count for a in places.values())
    length = next((n for n in range(length, length // 2, -1) if loop.extent % n == 0), length)
    blocks, rest = divmod(loop.extent, length)
    total, lost = (replace(buffer, name=names.fresh(buffer.name)) for _ in range(2))
    block, zero = names.fresh(loop.var), const(0.0, buffer.dtype)
    first: list[Stmt] = []
    added: list[Stmt] = []
    last: list[Stmt] = []
    for conditions, group in groupby(places, lambda place: _without(places[place].conditions, loop.var)):
        begin: list[Stmt] = []
        flush: list[Stmt] = []
        end: list[Stmt] = []
        for place in group:
            here, there, off = (Load(b, place) for b in (buffer, total, lost))
            nothing: Expr = zero if here.lanes == 1 else Broadcast(zero, here.lanes)
            begin += [Store(total, place, here), Store(buffer, place, nothing)]
            if blocks < MANY_BLOCKS:
                flush += [Store(total, place, there + here), Store(buffer, place, nothing)]
            else:  # a total of many blocks is compensated
                begin.append(Store(lost, place, nothing))
                rounding = (there + here) - there - here
                finite = Compare(CompareOp.EQ, rounding, rounding)  # otherwise it is NaN, and totals must stay infinite
                flush += [
                    Store(buffer, place, here - off),
                    Store(lost, place, Select(finite, rounding, nothing)),
                    Store(total, place, there + here),
                    Store(buffer, place, nothing),
                ]
            end.append(Store(buffer, place, there + here))
        for moves, statements in ((begin, first), (flush, added), (end, last)):
            statements.append(If(logical_and(*conditions), seq(*moves)) if conditions else seq(*moves))
    body = replace_names(loop.body, {loop.var: Var(block) * length + Var(loop.var)}, {})
    whole = For(block, blocks, LoopKind.SERIAL, seq(For(loop.var, length, LoopKind.SERIAL, body), *added))
    left: list[Stmt] = []
    if rest:
        copies = {name: names.fresh(name) for name in sorted(bound_names(loop.body))}
        after = names.fresh(loop.var)
        body = replace_names(loop.body, {loop.var: Var(after) + index(blocks * length)}, copies)
        left.append(For(after, rest, LoopKind.SERIAL, body))
    cut = seq(*first, whole, *left, *last)
    return Allocate(total, cut if blocks < MANY_BLOCKS else Allocate(lost, cut))
