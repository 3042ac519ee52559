"""Loads and stores of the interpreter: addresses, bounds, what was written, races."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .bounds import interval_of, loop_range
from .expr import Broadcast, Expr, Load, Ramp
from .interpret_scope import ACTIVE, Code, Env, Scope
from .linear_form import LinearForm, affine_form
from .memory import SCALAR_ROUNDING, VECTOR_ROUNDING, Array, Cells, Watch, computed
from .stmt import Store

Compile = Callable[[Expr, Scope], Code]
"""Turns an expression into code; given by ``interpret_expr``, which in turn builds on this module."""


def affine_code(form: LinearForm, scope: Scope) -> Code:
    """An affine form as code, with few calls for the common sizes."""
    c = form.constant
    terms = [(scope.slots[name], k) for name, k in form.coefficients.items()]
    if not terms:
        return lambda env: c
    if len(terms) == 1:
        ((a, ka),) = terms
        if ka == 1 and c == 0:
            return lambda env: env[a]
        return lambda env: env[a] * ka + c
    if len(terms) == 2:
        (a, ka), (b, kb) = terms
        return lambda env: env[a] * ka + env[b] * kb + c
    if len(terms) == 3:
        (a, ka), (b, kb), (d, kd) = terms
        return lambda env: env[a] * ka + env[b] * kb + env[d] * kd + c
    return lambda env: c + sum([env[slot] * k for slot, k in terms])


def _in_bounds(indices: tuple[Expr, ...], cells: Cells, scope: Scope) -> bool:
    """Whether the loop ranges alone keep every lane of an access inside its buffer."""
    pairs = zip(indices, cells.buffer.shape, strict=True)
    return all(interval_of(i, scope.ranges).within(loop_range(extent)) for i, extent in pairs)


def _flat(indices: tuple[Expr, ...], cells: Cells) -> LinearForm | None:
    """The affine form of the element number at scalar ``indices``."""
    total = LinearForm({})
    for i, stride in zip(indices, cells.buffer.strides, strict=True):
        form = affine_form(i)
        if form is None:
            return None
        total = total.plus(form, stride)
    return total


def _address(indices: tuple[Expr, ...], cells: Cells, scope: Scope, compile_: Compile) -> Code:
    """Code that gives the element number, or raises where it is out of bounds."""
    form = _flat(indices, cells)
    if form is not None and _in_bounds(indices, cells, scope):
        return affine_code(form, scope)
    shape, name = cells.buffer.shape, cells.buffer.name
    dimensions = list(zip([compile_(i, scope) for i in indices], shape, cells.buffer.strides, strict=True))

    def address(env: Env) -> int:
        total = 0
        for code, extent, stride in dimensions:
            i = code(env)
            if not 0 <= i < extent:
                given = ", ".join(str(c(env)) for c, _, _ in dimensions)
                raise scope.fault(f"{name}[{given}] is out of bounds {list(shape)}", name, env)
            total += i * stride
        return total

    return address


def _race(cells: Cells, flat: int, watch: Watch, scope: Scope, env: Env) -> Exception:
    what = f"iterations of the parallel loop {watch.loop} race on {cells.place(flat)}"
    return scope.fault(what, cells.buffer.name, env)


def _unwritten(cells: Cells, flat: int, scope: Scope, env: Env) -> Exception:
    return scope.fault(f"{cells.place(flat)} is read before it is written", cells.buffer.name, env)


def scalar_load(expr: Load, scope: Scope, compile_: Compile) -> Code:
    """A load of one element."""
    code = _unmasked_load(expr, scope, compile_)
    if expr.mask is None:
        return code
    mask, zero = compile_(expr.mask, scope), computed(expr.dtype).type(0)
    return lambda env: code(env) if mask(env) else zero


def _unmasked_load(expr: Load, scope: Scope, compile_: Compile) -> Code:
    cells = scope.cells[expr.buffer.name]
    address = _address(expr.indices, cells, scope, compile_)
    data, written, name = cells.data, cells.written, expr.buffer.name
    watches = scope.watches_of(name)
    is_index = expr.dtype.name == "int64"
    if written is None and not is_index:
        return lambda env: data[address(env)]

    def load(env: Env) -> Any:
        flat = address(env)
        if written is not None and not written[flat]:
            raise _unwritten(cells, flat, scope, env)
        for watch in watches:
            if not watch.reads(name, flat):
                raise _race(cells, flat, watch, scope, env)
        return int(data[flat]) if is_index else data[flat]

    return load


def scalar_store(stmt: Store, scope: Scope, compile_: Compile) -> Code:
    """A store of one element."""
    cells = scope.cells[stmt.buffer.name]
    address = _address(stmt.indices, cells, scope, compile_)
    value = compile_(stmt.value, scope)
    data, written, name = cells.data, cells.written, stmt.buffer.name
    assert written is not None
    watches = scope.watches_of(name)
    rounding = SCALAR_ROUNDING.get(stmt.buffer.dtype.name)
    mask = None if stmt.mask is None else compile_(stmt.mask, scope)

    def plain(env: Env) -> None:
        flat = address(env)
        data[flat] = value(env)
        written[flat] = 1

    def store(env: Env) -> None:
        if mask is not None and not mask(env):
            return
        result = value(env)
        flat = address(env)
        for watch in watches:
            if not watch.writes(name, flat):
                raise _race(cells, flat, watch, scope, env)
        data[flat] = result if rounding is None else rounding(result)
        written[flat] = 1

    return plain if mask is None and not watches and rounding is None else store


# Vectors -------------------------------------------------------------------------------------------------------


def _places(
    indices: tuple[Expr, ...], lanes: int, cells: Cells, scope: Scope, compile_: Compile
) -> Callable[[Env, Array | None], Array]:
    """Code that gives the element numbers of all lanes; raises where an active one is out of bounds."""
    fast = _regular(indices, lanes, cells, scope)
    if fast is not None:
        start, offsets = fast
        return lambda env, active: offsets + start(env)
    shape, name = cells.buffer.shape, cells.buffer.name
    dimensions = list(zip([compile_(i, scope) for i in indices], shape, cells.buffer.strides, strict=True))

    def places(env: Env, active: Array | None) -> Array:
        total = np.zeros(lanes, dtype=np.int64)
        for code, extent, stride in dimensions:
            i = code(env)
            wrong = (np.less(i, 0) | np.greater_equal(i, extent)) & np.ones(lanes, dtype=bool)
            if active is not None:
                wrong &= active
            if wrong.any():
                lane = int(wrong.argmax())
                given = ", ".join(str(np.broadcast_to(c(env), lanes)[lane]) for c, _, _ in dimensions)
                raise scope.fault(f"{name}[{given}] in lane {lane} is out of bounds {list(shape)}", name, env)
            total += i * stride
        return total

    return places


def _regular(indices: tuple[Expr, ...], lanes: int, cells: Cells, scope: Scope) -> tuple[Code, Array] | None:
    """(first element number, offsets of the lanes) for an access of ramps that cannot leave its buffer."""
    if not _in_bounds(indices, cells, scope):
        return None
    bases: list[Expr] = []
    step = 0
    for i, stride in zip(indices, cells.buffer.strides, strict=True):
        if isinstance(i, Ramp):
            step += i.stride * stride
            bases.append(i.base)
        else:
            bases.append(i.value if isinstance(i, Broadcast) else i)
    if any(base.lanes > 1 for base in bases):
        return None
    form = _flat(tuple(bases), cells)
    return None if form is None else (affine_code(form, scope), np.arange(lanes, dtype=np.int64) * step)


def _active(mask: Code | None, scope: Scope) -> Callable[[Env], Array | None]:
    """Code that gives the lanes an access touches, None for all of them."""
    if mask is None:
        return (lambda env: env[ACTIVE]) if scope.guarded else (lambda env: None)
    if not scope.guarded:
        return mask
    return lambda env: mask(env) if env[ACTIVE] is None else mask(env) & env[ACTIVE]


def vector_load(expr: Load, scope: Scope, compile_: Compile) -> Code:
    """A load of several lanes; those masked off are zero."""
    cells, lanes = scope.cells[expr.buffer.name], expr.lanes
    places = _places(expr.indices, lanes, cells, scope, compile_)
    active_lanes = _active(None if expr.mask is None else compile_(expr.mask, scope), scope)
    data, name = cells.data, expr.buffer.name
    watches = scope.watches_of(name)

    def load(env: Env) -> Array:
        active = active_lanes(env)
        flat = places(env, active)
        touched = flat if active is None else flat[active]
        if cells.written is not None:
            written = cells.written_view[touched]
            if not written.all():
                raise _unwritten(cells, int(touched[int(written.argmin())]), scope, env)
        for watch in watches:
            for one in touched.tolist():
                if not watch.reads(name, one):
                    raise _race(cells, one, watch, scope, env)
        if active is None:
            return data[flat]
        result = np.zeros(lanes, dtype=data.dtype)
        result[active] = data[touched]
        return result

    return load


def vector_store(stmt: Store, scope: Scope, compile_: Compile) -> Code:
    """A store of several lanes, in the order of the lanes."""
    cells, lanes = scope.cells[stmt.buffer.name], stmt.value.lanes
    places = _places(stmt.indices, lanes, cells, scope, compile_)
    active_lanes = _active(None if stmt.mask is None else compile_(stmt.mask, scope), scope)
    value = compile_(stmt.value, scope)
    data, name = cells.data, stmt.buffer.name
    watches = scope.watches_of(name)
    rounding = VECTOR_ROUNDING.get(stmt.buffer.dtype.name)

    def store(env: Env) -> None:
        active = active_lanes(env)
        result = value(env)
        touched = places(env, active)
        if active is not None:
            touched, result = touched[active], result[active]
        for watch in watches:
            for one in touched.tolist():
                if not watch.writes(name, one):
                    raise _race(cells, one, watch, scope, env)
        data[touched] = result if rounding is None else rounding(result)
        cells.written_view[touched] = 1

    return store
