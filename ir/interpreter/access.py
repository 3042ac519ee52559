"""Loads and stores of the interpreter. They check bounds, that what is read was written, and races."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..bounds import interval_of, loop_range
from ..expr import Broadcast, Expr, Load, Ramp
from ..linear_form import LinearForm, affine_form
from ..stmt import Store
from .context import ACTIVE, Closure, Env, InterpreterContext
from .memory import SCALAR_ROUNDING, VECTOR_ROUNDING, Array, BufferContents, LoopRaceDetector, computed

CompileExpr = Callable[[Expr, InterpreterContext], Closure]
"""Turns an expression into a closure. ``expressions`` passes it in, because it builds on this module."""


def affine_closure(form: LinearForm, context: InterpreterContext) -> Closure:
    """Return the closure of an affine form, with few calls for the common sizes."""
    c = form.constant
    terms = [(context.slots[name], k) for name, k in form.coefficients.items()]
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


def _in_bounds(indices: tuple[Expr, ...], contents: BufferContents, context: InterpreterContext) -> bool:
    """Return whether the ranges of the loops alone keep every lane of an access inside its buffer."""
    pairs = zip(indices, contents.buffer.shape, strict=True)
    return all(interval_of(i, context.ranges).within(loop_range(extent)) for i, extent in pairs)


def _flat(indices: tuple[Expr, ...], contents: BufferContents) -> LinearForm | None:
    """Return the number of the element at scalar ``indices`` as an affine form; None where it is none."""
    total = LinearForm({})
    for i, stride in zip(indices, contents.buffer.strides, strict=True):
        form = affine_form(i)
        if form is None:
            return None
        total = total.plus(form, stride)
    return total


def _address(
    indices: tuple[Expr, ...], contents: BufferContents, context: InterpreterContext, compile_: CompileExpr
) -> Closure:
    """Return a closure that gives the number of the element, or raises where it is out of bounds."""
    form = _flat(indices, contents)
    if form is not None and _in_bounds(indices, contents, context):
        return affine_closure(form, context)
    shape, name = contents.buffer.shape, contents.buffer.name
    dimensions = list(zip([compile_(i, context) for i in indices], shape, contents.buffer.strides, strict=True))

    def address(env: Env) -> int:
        total = 0
        for closure, extent, stride in dimensions:
            i = closure(env)
            if not 0 <= i < extent:
                given = ", ".join(str(c(env)) for c, _, _ in dimensions)
                raise context.fault(f"{name}[{given}] is out of bounds {list(shape)}", name, env)
            total += i * stride
        return total

    return address


def _race(
    contents: BufferContents, flat: int, detector: LoopRaceDetector, context: InterpreterContext, env: Env
) -> Exception:
    what = f"iterations of the parallel loop {detector.loop} race on {contents.element_name(flat)}"
    return context.fault(what, contents.buffer.name, env)


def _unwritten(contents: BufferContents, flat: int, context: InterpreterContext, env: Env) -> Exception:
    return context.fault(f"{contents.element_name(flat)} is read before it is written", contents.buffer.name, env)


def scalar_load(expr: Load, context: InterpreterContext, compile_: CompileExpr) -> Closure:
    """Return the closure of a load of one element."""
    closure = _unmasked_load(expr, context, compile_)
    if expr.mask is None:
        return closure
    mask, zero = compile_(expr.mask, context), computed(expr.dtype).type(0)
    return lambda env: closure(env) if mask(env) else zero


def _unmasked_load(expr: Load, context: InterpreterContext, compile_: CompileExpr) -> Closure:
    contents = context.contents[expr.buffer.name]
    address = _address(expr.indices, contents, context, compile_)
    data, written, name = contents.data, contents.written, expr.buffer.name
    detectors = context.detectors_of(name)
    is_index = expr.dtype.name == "int64"
    if written is None and not is_index:
        return lambda env: data[address(env)]

    def load(env: Env) -> Any:
        flat = address(env)
        if written is not None and not written[flat]:
            raise _unwritten(contents, flat, context, env)
        for detector in detectors:
            if not detector.note_read(name, flat):
                raise _race(contents, flat, detector, context, env)
        return int(data[flat]) if is_index else data[flat]

    return load


def scalar_store(stmt: Store, context: InterpreterContext, compile_: CompileExpr) -> Closure:
    """Return the closure of a store of one element."""
    contents = context.contents[stmt.buffer.name]
    address = _address(stmt.indices, contents, context, compile_)
    value = compile_(stmt.value, context)
    data, written, name = contents.data, contents.written, stmt.buffer.name
    assert written is not None
    detectors = context.detectors_of(name)
    rounding = SCALAR_ROUNDING.get(stmt.buffer.dtype.name)
    mask = None if stmt.mask is None else compile_(stmt.mask, context)

    def plain(env: Env) -> None:
        flat = address(env)
        data[flat] = value(env)
        written[flat] = 1

    def store(env: Env) -> None:
        if mask is not None and not mask(env):
            return
        result = value(env)
        flat = address(env)
        for detector in detectors:
            if not detector.note_write(name, flat):
                raise _race(contents, flat, detector, context, env)
        data[flat] = result if rounding is None else rounding(result)
        written[flat] = 1

    return plain if mask is None and not detectors and rounding is None else store


# Vectors -------------------------------------------------------------------------------------------------------


def _lane_elements(
    indices: tuple[Expr, ...],
    lanes: int,
    contents: BufferContents,
    context: InterpreterContext,
    compile_: CompileExpr,
    ramps: "_Strided | None",
) -> Callable[[Env, Array | None], Array]:
    """Return a closure that gives the element numbers of all lanes, or raises where an active one is out of bounds."""
    shape, name = contents.buffer.shape, contents.buffer.name
    dimensions = list(zip([compile_(i, context) for i in indices], shape, contents.buffer.strides, strict=True))

    def elements(env: Env, active: Array | None) -> Array:
        total = np.zeros(lanes, dtype=np.int64)
        for closure, extent, stride in dimensions:
            i = closure(env)
            wrong = np.less(i, 0) | np.greater_equal(i, extent)
            if active is not None:
                wrong = wrong & active
            if wrong.any():
                wrong = np.broadcast_to(wrong, lanes)
                lane = int(wrong.argmax())
                given = ", ".join(str(np.broadcast_to(c(env), lanes)[lane]) for c, _, _ in dimensions)
                raise context.fault(f"{name}[{given}] in lane {lane} is out of bounds {list(shape)}", name, env)
            total += i * stride
        return total

    if ramps is None:
        return elements
    start, offsets = ramps

    def ramp_elements(env: Env, active: Array | None) -> Array:
        first = start(env)
        return elements(env, active) if first < 0 else offsets + first

    return ramp_elements


def _ramps(
    indices: tuple[Expr, ...],
    lanes: int,
    contents: BufferContents,
    context: InterpreterContext,
    compile_: CompileExpr,
) -> "_Strided | None":
    """Return where the lanes of an access by ramps are; None for any other. The first element number is negative where
    a lane is out of bounds."""
    strided = _strided(indices, lanes, contents, context)
    if strided is not None:
        return strided
    bases = _bases(indices)
    if bases is None:
        return None
    shape, strides = contents.buffer.shape, contents.buffer.strides
    ramps = [  # the base, from where to where no lane is out of bounds, and the stride
        (compile_(base, context), max(0, -step * (lanes - 1)), extent - max(0, step * (lanes - 1)), stride)
        for (base, step), extent, stride in zip(bases, shape, strides, strict=True)
    ]

    def start(env: Env) -> int:
        first = 0
        for base, low, high, stride in ramps:
            i = base(env)
            if not low <= i < high:
                return -1
            first += i * stride
        return first

    step = sum(growth * stride for (_, growth), stride in zip(bases, strides, strict=True))
    return start, np.arange(lanes, dtype=np.int64) * step


def _bases(indices: tuple[Expr, ...]) -> list[tuple[Expr, int]] | None:
    """Return what each index is in the first lane, and by how much it grows from lane to lane; None where it is not
    that simple."""
    found = [
        (i.base, i.stride) if isinstance(i, Ramp) else (i.value if isinstance(i, Broadcast) else i, 0) for i in indices
    ]
    return None if any(base.lanes > 1 for base, _ in found) else found


_Strided = tuple[Closure, Array]
"""The closure of the first element number, and the offsets of the lanes from it."""


def _strided(
    indices: tuple[Expr, ...], lanes: int, contents: BufferContents, context: InterpreterContext
) -> _Strided | None:
    """Return where the lanes of an access by ramps are that cannot leave its buffer; None for any other."""
    if not _in_bounds(indices, contents, context):
        return None
    bases = _bases(indices)
    if bases is None:
        return None
    step = sum(growth * stride for (_, growth), stride in zip(bases, contents.buffer.strides, strict=True))
    form = _flat(tuple(base for base, _ in bases), contents)
    return None if form is None else (affine_closure(form, context), np.arange(lanes, dtype=np.int64) * step)


def _slice(ramps: _Strided | None) -> tuple[Closure, int, int] | None:
    """Return (closure of the first element number, elements from the first to past the last lane, step) where the
    ramps of an access rise; else None."""
    if ramps is None:
        return None
    start, offsets = ramps
    step = int(offsets[1])
    return (start, int(offsets[-1]) + 1, step) if step > 0 else None


def _active(mask: Closure | None, context: InterpreterContext) -> Callable[[Env], Array | None]:
    """Return a closure that gives the lanes that take part in an access; None for all of them."""
    if mask is None:
        return (lambda env: env[ACTIVE]) if context.guarded else (lambda env: None)
    if not context.guarded:
        return mask
    return lambda env: mask(env) if env[ACTIVE] is None else mask(env) & env[ACTIVE]


def vector_load(expr: Load, context: InterpreterContext, compile_: CompileExpr) -> Closure:
    """Return the closure of a load of several lanes. Those that are masked off are zero."""
    contents, lanes = context.contents[expr.buffer.name], expr.lanes
    ramps = _ramps(expr.indices, lanes, contents, context, compile_)
    elements = _lane_elements(expr.indices, lanes, contents, context, compile_, ramps)
    active_lanes = _active(None if expr.mask is None else compile_(expr.mask, context), context)
    data, name = contents.data, expr.buffer.name
    detectors = context.detectors_of(name)

    def load(env: Env) -> Array:
        active = active_lanes(env)
        flat = elements(env, active)
        accessed = flat if active is None else flat[active]
        if contents.written is not None:
            written = contents.written_view[accessed]
            if not written.all():
                raise _unwritten(contents, int(accessed[int(written.argmin())]), context, env)
        for detector in detectors:
            for one in accessed.tolist():
                if not detector.note_read(name, one):
                    raise _race(contents, one, detector, context, env)
        if active is None:
            return data[flat]
        result = np.zeros(lanes, dtype=data.dtype)
        result[active] = data[accessed]
        return result

    rising = _slice(ramps) if expr.mask is None and not detectors else None
    if rising is None:
        return load
    begin, length, step = rising
    guarded, flags = context.guarded, contents.written

    def load_slice(env: Env) -> Array:
        if guarded and env[ACTIVE] is not None:
            return load(env)
        first = begin(env)
        if first < 0:
            return load(env)
        if flags is not None:
            missing = flags[first : first + length : step].find(0)
            if missing >= 0:
                raise _unwritten(contents, first + missing * step, context, env)
        return data[first : first + length : step]  # used before anything is stored

    return load_slice


def vector_store(stmt: Store, context: InterpreterContext, compile_: CompileExpr) -> Closure:
    """Return the closure of a store of several lanes, which writes in the order of the lanes."""
    contents, lanes = context.contents[stmt.buffer.name], stmt.value.lanes
    ramps = _ramps(stmt.indices, lanes, contents, context, compile_)
    elements = _lane_elements(stmt.indices, lanes, contents, context, compile_, ramps)
    active_lanes = _active(None if stmt.mask is None else compile_(stmt.mask, context), context)
    value = compile_(stmt.value, context)
    data, name = contents.data, stmt.buffer.name
    detectors = context.detectors_of(name)
    rounding = VECTOR_ROUNDING.get(stmt.buffer.dtype.name)

    def store(env: Env) -> None:
        active = active_lanes(env)
        result = value(env)
        accessed = elements(env, active)
        if active is not None:
            accessed, result = accessed[active], result[active]
        for detector in detectors:
            for one in accessed.tolist():
                if not detector.note_write(name, one):
                    raise _race(contents, one, detector, context, env)
        data[accessed] = result if rounding is None else rounding(result)
        contents.written_view[accessed] = 1

    rising = _slice(ramps) if stmt.mask is None and not detectors and not context.guarded else None
    if rising is None:
        return store
    begin, length, step = rising
    flags, ones = contents.written, b"\1" * lanes
    assert flags is not None

    def store_slice(env: Env) -> None:
        result = value(env)
        first = begin(env)
        if first < 0:
            store(env)  # which says what is out of bounds
            return
        data[first : first + length : step] = result if rounding is None else rounding(result)
        flags[first : first + length : step] = ones

    return store_slice
