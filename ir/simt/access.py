"""Loads and stores of the interpreter of launches: what was written, races."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..expr import Expr, Load, Shuffle, walk
from ..memory import VECTOR_ROUNDING, Array, computed
from ..stmt import Store
from .address import Address, Compile, Watched, address_of, is_uniform, watched_flat
from .memory import PrivateMemory, SharedMemory
from .scope import Code, Machine, Scope

# Watched memory ------------------------------------------------------------------------------------------------


def spread(m: Machine, flat: Any, lanes: int, only: Array | None = None) -> tuple[Array, Array]:
    """(element numbers, places of threads) of all who run an access (of ``only`` them), in one dimension."""
    shape = (m.threads,) if lanes == 1 else (lanes, m.threads)
    active = m.running(shape)
    if only is not None:
        only = np.broadcast_to(only, shape)
        active = only if active is None else active & only
    flat, who = np.broadcast_to(flat, shape), np.broadcast_to(m.places, shape)
    return (flat.ravel(), who.ravel()) if active is None else (flat[active], who[active])


def check_read(memory: Watched, m: Machine, scope: Scope, flat: Array, who: Array, *, note: bool = True) -> None:
    """Raise where what is read was not written, is under way, or is not ordered after its write; ``note`` the read."""
    if memory.written is None:
        return
    name = memory.buffer.name
    written = memory.written[flat]
    busy = memory.busy(flat, writing=False)
    if busy is not None and busy.any():
        at = int(busy.argmax())
        what = f"{memory.name(int(flat[at]))} is read while an asynchronous copy to it is under way"
        raise scope.fault(what, m, int(who[at]), name)
    if not written.all():
        at = int(written.argmin())
        raise scope.fault(f"{memory.name(int(flat[at]))} is read before it is written", m, int(who[at]), name)
    touches = memory.touches
    assert touches is not None
    race = touches.written_by(m.order, flat, who)
    if race is not None:
        writer = scope.thread_name(int(touches.writer[flat[race]]), m)
        what = f"race on {memory.name(int(flat[race]))}: read here, written by {writer}, with nothing to order them"
        raise scope.fault(what, m, int(who[race]), name)
    if note:
        touches.note_read(m.order, flat, who)


def check_fenced(memory: SharedMemory, m: Machine, scope: Scope, flat: Array, who: Array) -> None:
    """Raise where the copy engine or the matrix units, told by the threads at the places ``who``, touch what a thread
    wrote and did not fence, or what nothing orders after that fence."""
    touches = memory.touches
    assert touches is not None
    at = np.flatnonzero(touches.writer[flat] >= 0)
    if not len(at):
        return
    flat, who = flat[at], who[at]
    writer = touches.writer[flat]
    fence = m.order.fenced(writer, touches.time[flat])
    bad = fence < 0
    what = "with no async_proxy_fence after that"
    if not bad.any():
        bad, what = m.order.unordered(who, writer, fence), "and nothing orders its async_proxy_fence before this"
    if bad.any():
        first = int(bad.argmax())
        by = scope.thread_name(int(writer[first]), m)
        said = f"{memory.name(int(flat[first]))} is touched asynchronously, was written by {by}, {what}"
        raise scope.fault(said, m, int(who[first]), memory.buffer.name)


def check_write(memory: Watched, m: Machine, scope: Scope, flat: Array, who: Array) -> None:
    """Raise where a write is not ordered after what others did to an element; note the write."""
    touches, name = memory.touches, memory.buffer.name
    assert memory.written is not None and touches is not None
    busy = memory.busy(flat, writing=True)
    if busy is not None and busy.any():
        at = int(busy.argmax())
        name_at, copied = memory.name(int(flat[at])), memory.copied(flat)[at]
        by = "an asynchronous copy of it is under way" if copied else "a product or a store under way reads it"
        what = f"{name_at} is written while {by}"
        raise scope.fault(what, m, int(who[at]), name)
    race = touches.written_by(m.order, flat, who)
    if race is not None:
        writer = scope.thread_name(int(touches.writer[flat[race]]), m)
        what = f"race on {memory.name(int(flat[race]))}: written here and by {writer}, with nothing to order them"
        raise scope.fault(what, m, int(who[race]), name)
    found = touches.read_by(m.order, flat, who)
    if found is not None:
        reader = scope.thread_name(found[1], m)
        what = f"race on {memory.name(int(flat[found[0]]))}: written here, read by {reader}, with nothing to order them"
        raise scope.fault(what, m, int(who[found[0]]), name)
    twice = touches.note_write(m.order, flat, who)
    if twice is not None:
        other = scope.thread_name(int(touches.writer[flat[twice]]), m)
        what = f"race on {memory.name(int(flat[twice]))}: written here and at once by {other}"
        raise scope.fault(what, m, int(who[twice]), name)
    memory.written[flat] = True


# Loads and stores ----------------------------------------------------------------------------------------------


def under(m: Machine, mask: Array) -> bool:
    """Let only those run for whom ``mask`` holds too; whether there are any. The caller puts ``m.active`` back."""
    m.active = mask if m.active is None else mask & m.active
    return bool(m.active.any())


def load_code(expr: Load, scope: Scope, compile_: Compile) -> Code:
    """A load of one element or a vector in every thread; what its mask leaves out is zero."""
    private = scope.private.get(expr.buffer.name)
    if private is not None:
        plain = _private_load(expr, private, scope, compile_)
    else:
        memory = scope.shared[expr.buffer.name]
        plain = watched_load(memory, watched_flat(expr.indices, memory, scope, compile_), expr.lanes, scope)
    if expr.mask is None:
        return plain
    mask_code, zero = compile_(expr.mask, scope), computed(expr.dtype).type(0)

    def masked(m: Machine) -> Any:
        mask = mask_code(m)
        if is_uniform(mask):
            return plain(m) if mask else zero
        outer = m.active
        value = np.where(mask, plain(m), zero) if under(m, mask) else zero
        m.active = outer
        return value

    return masked


def watched_load(memory: Watched, flat_code: Code, lanes: int, scope: Scope) -> Code:
    """A load from global or shared memory."""

    def load(m: Machine) -> Any:
        flat = flat_code(m)
        if memory.written is not None:
            check_read(memory, m, scope, *spread(m, flat, lanes))
        return memory.data[flat]

    return load


def _private_load(expr: Load, memory: PrivateMemory, scope: Scope, compile_: Compile) -> Code:
    address = address_of(expr.indices, memory.buffer, scope, compile_)
    rows_of = _rows(address)

    def load(m: Machine) -> Any:
        rows = rows_of(m)
        if m.products:
            check_awaited(memory, m, scope, address.flat(m) if rows is None else rows)
        if rows is not None:
            if not all(memory.full[rows]):
                active = m.running((m.threads,))
                check_private(memory, m, scope, rows, active)
            return memory.data[rows] if address.steps is not None else memory.data[rows.start]
        flat = address.flat(m)
        written = memory.written[flat, m.places]
        active = m.running(written.shape)
        missing = ~written if active is None else ~written & active
        if missing.any():
            at = np.unravel_index(int(missing.argmax()), missing.shape)
            first = int(np.broadcast_to(flat, missing.shape)[at])
            raise scope.fault(f"{memory.name(first)} is read before it is written", m, int(at[-1]), memory.buffer.name)
        return memory.data[flat, m.places]

    return load


def check_private(memory: PrivateMemory, m: Machine, scope: Scope, rows: slice, active: Array | None) -> None:
    """Raise where somebody of ``active`` reads an element of ``rows`` that this thread has not written."""
    written = memory.written[rows]
    missing = ~written if active is None else ~written & active
    if missing.any():
        row, place = np.unravel_index(int(missing.argmax()), missing.shape)
        name = memory.name(range(memory.buffer.elements)[rows][row])
        raise scope.fault(f"{name} is read before it is written", m, int(place), memory.buffer.name)


def check_awaited(memory: PrivateMemory, m: Machine, scope: Scope, rows: slice | Array, *, sums: bool = False) -> None:
    """Raise where somebody who runs touches what a product under way adds to; ``sums``: other than as a whole."""
    for product in m.products:
        if product.sums is not memory or (sums and product.rows == rows):
            continue
        places = np.arange(memory.buffer.elements)[rows][:, None] if isinstance(rows, slice) else np.asarray(rows)
        inside = np.atleast_2d((places >= product.rows.start) & (places < product.rows.stop))
        wrong = inside.any(axis=0) & product.threads
        active = m.running((m.threads,))
        wrong = wrong if active is None else wrong & active
        if wrong.any():
            what = f"{memory.buffer.name} is touched while a product that adds to it is under way"
            raise scope.fault(what, m, int(wrong.argmax()), memory.buffer.name)


def _rows(address: Address) -> Callable[[Machine], slice | None]:
    """The rows of a private buffer that an access takes, where it is the same in all threads."""
    steps = address.steps
    count = 1 if steps is None else len(steps)
    step = 1 if steps is None or count == 1 else int(steps[1, 0] - steps[0, 0])
    if step < 1:
        return lambda m: None

    def rows(m: Machine) -> slice | None:
        base = address.base(m)
        if not is_uniform(base):
            return None
        address.check(m)
        return slice(int(base), int(base) + (count - 1) * step + 1, step)

    return rows


def store_code(stmt: Store, scope: Scope, compile_: Compile) -> Code:
    """A store of one element or a vector by every thread that runs."""
    lanes = max((i.lanes for i in stmt.indices), default=1)
    first, scope = ([], scope) if stmt.mask is None else _ahead(stmt.value, scope, compile_)
    value_code = compile_(stmt.value, scope)
    rounding = VECTOR_ROUNDING.get(stmt.buffer.dtype.name)
    mask_code = None if stmt.mask is None else compile_(stmt.mask, scope)
    private = scope.private.get(stmt.buffer.name)
    if private is not None:
        put = _private_store(stmt, private, scope, compile_)
    else:
        put = _watched_store(stmt, lanes, scope.shared[stmt.buffer.name], scope, compile_)

    def store(m: Machine) -> None:
        outer = m.active
        for slot, code in first:
            m.env[slot] = code(m)
        if mask_code is not None:
            mask = mask_code(m)
            if is_uniform(mask):
                if not mask:
                    return
            elif not under(m, mask):
                m.active = outer
                return
        value = value_code(m)
        put(m, value if rounding is None else rounding(np.asarray(value)))
        m.active = outer

    return store


def _ahead(value: Expr, scope: Scope, compile_: Compile) -> tuple[list[tuple[int, Code]], Scope]:
    """A masked store's shuffles, which all lanes take part in whatever the mask: (slot, code), and the scope in which
    they are known."""
    found: list[tuple[int, Code]] = []
    ahead = dict(scope.ahead)
    for expr in walk(value):
        if isinstance(expr, Shuffle) and expr not in ahead:
            found.append((scope.slot(), compile_(expr, scope)))
            ahead[expr] = found[-1][0]
    return found, replace(scope, ahead=ahead)


def _watched_store(
    stmt: Store, lanes: int, memory: Watched, scope: Scope, compile_: Compile
) -> Callable[[Machine, Any], None]:
    flat_code = watched_flat(stmt.indices, memory, scope, compile_)

    def put(m: Machine, value: Any) -> None:
        places = flat_code(m)
        flat, who = spread(m, places, lanes)
        check_write(memory, m, scope, flat, who)
        if is_uniform(value):
            memory.data[flat] = value
            return
        shape = (m.threads,) if lanes == 1 else (lanes, m.threads)
        active = m.running(shape)
        wide = np.broadcast_to(value, shape)
        memory.data[flat] = wide.ravel() if active is None else wide[active]

    return put


def _private_store(
    stmt: Store, memory: PrivateMemory, scope: Scope, compile_: Compile
) -> Callable[[Machine, Any], None]:
    address = address_of(stmt.indices, memory.buffer, scope, compile_)
    rows_of = _rows(address)
    vector = address.steps is not None

    def put(m: Machine, value: Any) -> None:
        rows = rows_of(m)
        if m.products:
            check_awaited(memory, m, scope, address.flat(m) if rows is None else rows)
        if rows is not None:
            write_private(memory, m, rows, value if vector or is_uniform(value) else value[None])
            return
        flat = address.flat(m)
        shape = (len(address.steps), m.threads) if address.steps is not None else (m.threads,)
        active = m.running(shape)
        flat, who = np.broadcast_to(flat, shape), np.broadcast_to(m.places, shape)
        wide = np.broadcast_to(value, shape)
        if active is not None:
            flat, who, wide = flat[active], who[active], wide[active]
        memory.data[flat, who] = wide
        memory.written[flat, who] = True

    return put


def write_private(memory: PrivateMemory, m: Machine, rows: slice, value: Any) -> None:
    """Write rows of a private buffer in all threads that run; ``value`` broadcasts to [rows, threads]."""
    target = memory.data[rows]
    active = None if m.active is None else m.running(target.shape)
    if active is None:
        target[...] = value
        if not all(memory.full[rows]):
            memory.written[rows] = True
            memory.full[rows] = [True] * len(target)
    else:
        np.copyto(target, value, where=active)
        memory.written[rows] |= active
