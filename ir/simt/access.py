"""Loads and stores of the interpreter of launches, from and to shared, global and private memory."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..expr import Expr, Load, Shuffle, walk
from ..interpreter.memory import VECTOR_ROUNDING, Array, computed
from ..stmt import Store
from .address import Address, CheckedMemory, CompileExpr, address_of, checked_flat, is_uniform
from .context import LaunchClosure, LaunchContext, LaunchState, spread_to
from .memory import GlobalMemory, PrivateMemory
from .race_check import check_read, check_write, spread


def under(state: LaunchState, mask: Array) -> bool:
    """Let only those run for whom ``mask`` holds too, and say whether there are any. The caller restores
    ``state.active``."""
    state.active = mask if state.active is None else mask & state.active
    return bool(np.count_nonzero(state.active))


def load_closure(expr: Load, context: LaunchContext, compile_: CompileExpr) -> LaunchClosure:
    """Return the closure of a load of one element or a vector by every thread. What its mask leaves out is zero."""
    private = context.private.get(expr.buffer.name)
    if private is not None:
        plain = _private_load(expr, private, context, compile_)
    else:
        memory = context.shared[expr.buffer.name]
        plain = checked_load(memory, _flat(expr, memory, context, compile_), expr.lanes, context)
    if expr.mask is None:
        return plain
    mask_closure, zero = compile_(expr.mask, context), computed(expr.dtype).type(0)

    def masked(state: LaunchState) -> Any:
        mask = mask_closure(state)
        if is_uniform(mask):
            return plain(state) if mask else zero
        outer = state.active
        value = np.where(mask, plain(state), zero) if under(state, mask) else zero
        state.active = outer
        return value

    return masked


def _flat(access: Load | Store, memory: CheckedMemory, context: LaunchContext, compile_: CompileExpr) -> LaunchClosure:
    """Return a closure that gives the elements of an access to global or shared memory."""
    if isinstance(memory, GlobalMemory):  # it may be accessed as a single dimension
        return address_of(access.indices, access.buffer, context, compile_).flat
    return checked_flat(access.indices, memory, context, compile_)


def checked_load(
    memory: CheckedMemory, flat_closure: LaunchClosure, lanes: int, context: LaunchContext
) -> LaunchClosure:
    """Return the closure of a load from global or shared memory."""

    def load(state: LaunchState) -> Any:
        flat = flat_closure(state)
        if memory.written is not None:
            check_read(memory, state, context, *spread(state, flat, lanes))
        return memory.data[flat]

    return load


def _private_load(expr: Load, memory: PrivateMemory, context: LaunchContext, compile_: CompileExpr) -> LaunchClosure:
    address = address_of(expr.indices, memory.buffer, context, compile_)
    rows_of = _rows(expr.indices, address, context)

    def load(state: LaunchState) -> Any:
        rows = rows_of(state)
        if state.wgmmas:
            check_awaited(memory, state, context, address.flat(state) if rows is None else rows)
        if rows is not None:
            if not all(memory.full[rows]):
                active = state.running((state.threads,))
                check_private(memory, state, context, rows, active)
            return memory.data[rows] if address.steps is not None else memory.data[rows.start]
        flat = address.flat(state)
        written = memory.written[flat, state.positions]
        active = state.running(written.shape)
        missing = ~written if active is None else ~written & active
        if np.count_nonzero(missing):
            at = np.unravel_index(int(missing.argmax()), missing.shape)
            first = int(np.broadcast_to(flat, missing.shape)[at])
            raise context.fault(
                f"{memory.name(first)} is read before it is written", state, int(at[-1]), memory.buffer.name
            )
        return memory.data[flat, state.positions]

    return load


def check_private(
    memory: PrivateMemory, state: LaunchState, context: LaunchContext, rows: slice, active: Array | None
) -> None:
    """Raise where a thread of ``active`` reads an element of ``rows`` that it has not written."""
    written = memory.written[rows]
    missing = ~written if active is None else ~written & active
    if missing.any():
        row, position = np.unravel_index(int(missing.argmax()), missing.shape)
        name = memory.name(range(memory.buffer.elements)[rows][row])
        raise context.fault(f"{name} is read before it is written", state, int(position), memory.buffer.name)


def check_awaited(
    memory: PrivateMemory,
    state: LaunchState,
    context: LaunchContext,
    rows: slice | Array,
    *,
    whole: bool = False,
    reads_only: bool = False,
) -> None:
    """Raise where a thread that runs accesses registers of a wgmma in flight. ``whole`` says that the access is by
    another wgmma, which may use the very same accumulators, and ``reads_only`` that it is by one that reads them."""
    for wgmma in state.wgmmas:
        if wgmma.accumulators is memory and not (whole and wgmma.rows == rows):
            held, use = wgmma.rows, "accumulates in"
        elif wgmma.fragments is memory and not reads_only:
            held, use = wgmma.fragment_rows, "reads"
        else:
            continue
        flat = np.arange(memory.buffer.elements)[rows][:, None] if isinstance(rows, slice) else np.asarray(rows)
        inside = np.atleast_2d((flat >= held.start) & (flat < held.stop))
        wrong = inside.any(axis=0) & wgmma.threads
        active = state.running((state.threads,))
        wrong = wrong if active is None else wrong & active
        if wrong.any():
            what = f"{memory.buffer.name} is accessed while a wgmma that {use} it is in flight"
            raise context.fault(what, state, int(wrong.argmax()), memory.buffer.name)


def _rows(indices: tuple[Expr, ...], address: Address, context: LaunchContext) -> Callable[[LaunchState], slice | None]:
    """Return a closure that gives the rows of a private buffer that an access takes, where they are the same in all
    threads; else None."""
    steps = address.steps
    count = 1 if steps is None else len(steps)
    step = 1 if steps is None or count == 1 else int(steps[1, 0] - steps[0, 0])
    if step < 1:
        return lambda state: None

    def rows(state: LaunchState) -> slice | None:
        base = address.base(state)
        if not is_uniform(base):
            return None
        address.check(state)
        return slice(int(base), int(base) + (count - 1) * step + 1, step)

    def inside(state: LaunchState) -> slice | None:
        """Give the rows where they are within bounds whoever runs."""
        if address.check(state) is not None:
            return None
        base = int(address.base(state))
        return slice(base, base + (count - 1) * step + 1, step)

    if not context.depends_on_loops(*indices):
        return rows
    known = context.remembered(inside, *indices)
    return lambda state: known(state) or rows(state)


def store_closure(stmt: Store, context: LaunchContext, compile_: CompileExpr) -> LaunchClosure:
    """Return the closure of a store of one element or a vector by every thread that runs."""
    lanes = max((i.lanes for i in stmt.indices), default=1)
    first, context = ([], context) if stmt.mask is None else _precomputed_shuffles(stmt.value, context, compile_)
    value_closure = compile_(stmt.value, context)
    rounding = VECTOR_ROUNDING.get(stmt.buffer.dtype.name)
    mask_closure = None if stmt.mask is None else compile_(stmt.mask, context)
    private = context.private.get(stmt.buffer.name)
    if private is not None:
        put = _private_store(stmt, private, context, compile_)
    else:
        put = _checked_store(stmt, lanes, context.shared[stmt.buffer.name], context, compile_)

    def store(state: LaunchState) -> None:
        outer = state.active
        for slot, closure in first:
            state.env[slot] = closure(state)
        if mask_closure is not None:
            mask = mask_closure(state)
            if is_uniform(mask):
                if not mask:
                    return
            elif not under(state, mask):
                state.active = outer
                return
        value = value_closure(state)
        put(state, value if rounding is None else rounding(np.asarray(value)))
        state.active = outer

    return store


def _precomputed_shuffles(
    value: Expr, context: LaunchContext, compile_: CompileExpr
) -> tuple[list[tuple[int, LaunchClosure]], LaunchContext]:
    """Return the shuffles of a masked store, in which all lanes take part whatever the mask is: (slot, closure), and
    the context in which they are known."""
    found: list[tuple[int, LaunchClosure]] = []
    known = dict(context.precomputed)
    for expr in walk(value):
        if isinstance(expr, Shuffle) and expr not in known:
            found.append((context.slot(), compile_(expr, context)))
            known[expr] = found[-1][0]
    return found, replace(context, precomputed=known)


def _checked_store(
    stmt: Store, lanes: int, memory: CheckedMemory, context: LaunchContext, compile_: CompileExpr
) -> Callable[[LaunchState, Any], None]:
    flat_closure = _flat(stmt, memory, context, compile_)

    def put(state: LaunchState, value: Any) -> None:
        flat, who = spread(state, flat_closure(state), lanes)
        check_write(memory, state, context, flat, who)
        if is_uniform(value):
            memory.data[flat] = value
            return
        shape = (state.threads,) if lanes == 1 else (lanes, state.threads)
        active = state.running(shape)
        wide = spread_to(value, shape)
        memory.data[flat] = wide.ravel() if active is None else wide[active]

    return put


def _private_store(
    stmt: Store, memory: PrivateMemory, context: LaunchContext, compile_: CompileExpr
) -> Callable[[LaunchState, Any], None]:
    address = address_of(stmt.indices, memory.buffer, context, compile_)
    rows_of = _rows(stmt.indices, address, context)
    vector = address.steps is not None

    def put(state: LaunchState, value: Any) -> None:
        rows = rows_of(state)
        if state.wgmmas:
            check_awaited(memory, state, context, address.flat(state) if rows is None else rows)
        if rows is not None:
            write_private(memory, state, rows, value if vector or is_uniform(value) else value[None])
            return
        flat = address.flat(state)
        shape = (len(address.steps), state.threads) if address.steps is not None else (state.threads,)
        active = state.running(shape)
        flat, who, wide = spread_to(flat, shape), spread_to(state.positions, shape), spread_to(value, shape)
        if active is not None:
            flat, who, wide = flat[active], who[active], wide[active]
        memory.data[flat, who] = wide
        memory.written[flat, who] = True

    return put


def write_private(memory: PrivateMemory, state: LaunchState, rows: slice, value: Any) -> None:
    """Write rows of a private buffer in all threads that run. ``value`` broadcasts to [rows, threads]."""
    target = memory.data[rows]
    active = None if state.active is None else state.running(target.shape)
    if active is None:
        target[...] = value
        if not all(memory.full[rows]):
            memory.written[rows] = True
            memory.full[rows] = [True] * len(target)
    else:
        np.copyto(target, value, where=active)
        memory.written[rows] |= active
