"""Which iterations touch the same elements, and so what may be reordered and what may run in parallel."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...ir.bounds import Interval, Ranges, interval_of
from ...ir.buffer import Buffer
from ...ir.expr import Binary, BinaryOp, Const, Expr, Load, Var, walk
from ...ir.linear_form import LinearForm, linear_form, recombined
from ...ir.rewrite import free_variables, loads_of
from ...ir.simplify import simplify
from ...ir.stmt import For, Stmt, Store
from .tree import Access, accesses, ranges_of, stored_outside

REDUCING = (BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX)
"""Operations whose order does not matter, beyond rounding of floats."""

_FEW = 16
"""Keys are counted in a table where it has at most this many entries for each iteration. Else they are sorted."""

MOST_ITERATIONS = 1 << 22
"""Loops of at most this extent are checked iteration by iteration where their index arithmetic is not linear."""


def accumulation(store: Store) -> tuple[BinaryOp, Expr] | None:
    """Return the operation and the addend of ``T[i] = T[i] op addend``, where the addend does not read T; None for
    other stores."""
    value = store.value
    here = Load(store.buffer, store.indices)
    if not isinstance(value, Binary) or value.op not in REDUCING:
        return None
    for own, addend in ((value.a, value.b), (value.b, value.a)):
        if own == here and all(load.buffer.name != store.buffer.name for load in loads_of(addend)):
            return value.op, addend
    return None


def carried_buffer(body: Stmt) -> str | None:
    """Return a buffer that carries a dependence between iterations of the perfect nest around ``body``; None where
    there is none. Accumulating into one element with one operation does not count."""
    for name, here in _accesses_by_buffer(body).items():
        stores = [access for access in here if access.store is not None]
        if len(here) == len(stores) == 1:
            continue
        operations = {a[0] if (a := accumulation(s.store)) else None for s in stores if s.store is not None}
        if len({access.indices for access in here}) > 1 or len(operations) > 1 or None in operations:
            return name
    return None


def shared_buffers(loop: For, around: Sequence[For]) -> tuple[str, ...]:
    """Return the buffers of which two iterations of ``loop`` may touch one element that one of them writes. Buffers
    that are allocated inside the loop are private to an iteration."""
    if loop.extent == 1:
        return ()
    outer = ranges_of(tuple(around))
    by_buffer = _accesses_by_buffer(loop.body)
    return tuple(name for name, found in by_buffer.items() if not _iterations_disjoint(loop, outer, found))


def only_accumulates(loop: For, buffer: str) -> bool:
    """Return whether all that ``loop`` does to ``buffer`` is to accumulate, by one operation, into elements whose
    indices do not depend on the loop's variable."""
    operations = set()
    found = _accesses_by_buffer(loop.body)[buffer]
    stores = [access.store for access in found if access.store is not None]
    for store in stores:
        update = accumulation(store)
        if update is None or any(loop.var in free_variables(i) for i in store.indices):
            return False
        operations.add(update[0])
    return len(operations) == 1 and len(found) == 2 * len(stores)


def _accesses_by_buffer(stmt: Stmt) -> dict[str, list[Access]]:
    """Return the accesses of every buffer that ``stmt`` writes and does not itself allocate."""
    by_buffer: dict[str, list[Access]] = {name: [] for name in sorted(stored_outside(stmt))}
    for access in accesses(stmt):
        if access.buffer.name in by_buffer:
            by_buffer[access.buffer.name].append(access)
    return by_buffer


@dataclass(frozen=True, slots=True)
class _SplitIndex:
    """One index as own(loop variable) + fixed(outer loops) + something from ``low`` to ``high``."""

    own: LinearForm
    fixed: LinearForm
    low: int
    high: int


def _iterations_disjoint(loop: For, outer: Ranges, found: Sequence[Access]) -> bool:
    """Return whether no two iterations touch a common element by the accesses ``found`` of one buffer."""
    buffer = found[0].buffer
    keys: list[NDArray[np.int64]] = []
    for dimension in range(max(1, 2 * len(buffer.shape) - 1)):
        indices = []
        for access in found:
            inner = ranges_of(access.loops)
            ranges = {**outer, **inner, loop.var: Interval(0, loop.extent - 1)}
            form = _form(buffer, access.indices, dimension, ranges)
            indices.append(_split_index(form, loop.var, frozenset(inner), ranges))
        aligned = _aligned(indices)
        if aligned is None:
            continue
        own, spread = aligned
        if set(own.terms) == {Var(loop.var)} and abs(own.coefficient(loop.var)) > spread:
            return True
        key = _key(loop, own, spread)
        if key is not None:
            keys.append(key)
    if not keys:
        return False
    return _distinct_rows(keys) == loop.extent


def _distinct_rows(keys: Sequence[NDArray[np.int64]]) -> int:
    """Return how many different rows the columns ``keys`` have, which hold numbers from 0 on."""
    span = math.prod(int(key.max()) + 1 for key in keys)
    if span >= 1 << 62:
        return len(np.unique(np.stack(keys), axis=1).T)
    number = np.zeros_like(keys[0])
    for key in keys:  # one number in a mixed radix, which is sorted far faster than rows
        number = number * (int(key.max()) + 1) + key
    if span <= _FEW * len(number):
        return int(np.count_nonzero(np.bincount(number)))
    return len(np.unique(number))


def _form(buffer: Buffer, indices: tuple[Expr, ...], dimension: int, ranges: Ranges) -> LinearForm:
    """Return the index of one dimension. ``dimension`` goes on behind the last one, with the indices of the first two,
    three, … as one number: whatever guards leave of the dimensions after them, different numbers are different
    elements."""
    if dimension < len(indices):
        return linear_form(simplify(indices[dimension], ranges))
    first = list(zip(indices, buffer.shape, strict=True))[: dimension - len(indices) + 2]

    def number(of: Callable[[Expr], Expr]) -> LinearForm:
        form = LinearForm({})
        for i, extent in first:
            form = form.scaled(extent) + linear_form(of(i))
        return recombined(form)

    whole = number(lambda i: i)  # simplified digits of a number may no longer look like that
    return whole if all(isinstance(term, Var) for term in whole.terms) else number(lambda i: simplify(i, ranges))


def _split_index(form: LinearForm, own: str, inner: frozenset[str], ranges: Ranges) -> _SplitIndex | None:
    """``form`` split into its terms; None where a term mixes the loop variable with others."""
    own_terms, fixed = [], []
    low = high = 0
    for term, coefficient in form.terms.items():
        names = free_variables(term)
        if names == {own}:
            own_terms.append(term)
        elif own in names:
            return None
        elif names & inner:
            span = interval_of(term, ranges).scaled(coefficient)
            low, high = low + span.low, high + span.high
        else:
            fixed.append(term)
    return _SplitIndex(form.only(own_terms), form.only(fixed), form.constant + low, form.constant + high)


def _aligned(indices: Sequence[_SplitIndex | None]) -> tuple[LinearForm, int] | None:
    """Return what depends on the loop variable, where that is the same in all accesses, and how far the rest spreads;
    None where the indices of this dimension tell nothing."""
    known = [i for i in indices if i is not None]
    if not known or len(known) < len(indices) or not known[0].own.terms:
        return None
    if any(i.own != known[0].own or i.fixed != known[0].fixed for i in known):
        return None
    return known[0].own, max(i.high for i in known) - min(i.low for i in known)


def _key(loop: For, own: LinearForm, spread: int) -> NDArray[np.int64] | None:
    """Return one number for each iteration. Iterations with different numbers touch different elements."""
    known = all(
        isinstance(e, (Var, Const)) or (isinstance(e, Binary) and e.op in _NUMPY)
        for term in own.terms
        for e in walk(term)
    )
    if loop.extent > MOST_ITERATIONS or not known:
        return None
    at = {loop.var: np.arange(loop.extent, dtype=np.int64)}
    values = sum((_values(term, at) * c for term, c in own.terms.items()), np.zeros(loop.extent, np.int64))
    values = values - values.min()
    step = int(np.gcd.reduce(values)) or 1
    return values // step if step > spread else None


def _values(expr: Expr, at: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the values of an index expression of one variable, int64[n], for all values of that variable."""
    match expr:
        case Var(name=name):
            return at[name]
        case Binary(op=op, a=a, b=b):
            return _NUMPY[op](_values(a, at), _values(b, at))
        case Const(value=value):
            return np.full_like(next(iter(at.values())), int(value))
    raise AssertionError(f"{type(expr).__name__} is no index arithmetic")


_NUMPY = {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.FLOORDIV: np.floor_divide,
    BinaryOp.MOD: np.mod,
    BinaryOp.MIN: np.minimum,
    BinaryOp.MAX: np.maximum,
}
