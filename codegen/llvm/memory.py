"""Loads and stores: contiguous lanes as vectors, one element for all lanes as a splat, anything else gathered."""

from collections.abc import Callable

from ...core.dtypes import INDEX
from ...ir.buffer import Buffer
from ...ir.expr import Expr, Var
from ...ir.linear_form import LinearForm, flat_form
from .body import Body
from .casts import from_storage, to_storage
from .values import Value, constant, storage, vector_type
from .writer import FunctionWriter

_MOST_WINDOWS = 4
"""Lanes up to this many elements apart are picked from whole vectors; farther ones are gathered."""

_NON_TEMPORAL_BYTES = (16, 32, 64)

Evaluate = Callable[[Body, Expr, Value | None], Value]
"""How an expression is computed under a lane mask (``expressions.evaluate``, passed in: the two need each other)."""


def load(
    body: Body,
    buffer: Buffer,
    indices: tuple[Expr, ...],
    lanes: int,
    mask: Value | None,
    ev: Evaluate,
    *,
    raw: bool = False,
) -> Value:
    """``buffer[indices]``; lanes whose ``mask`` is false are zero and not read. A scalar takes no mask here. ``raw``:
    as it lies in memory."""
    w, element = body.w, storage(buffer.dtype)
    flat = flat_form(indices, buffer.strides)
    if not flat.is_strided:
        found = _gather(body, buffer, _lane_pointers(body, buffer, indices, lanes, ev), mask)
    elif lanes == 1 or (flat.stride == 0 and mask is None):
        pointer = address(body, buffer, flat, ev)
        found = w.assign(f"load {element}, {pointer.typed}, align {buffer.dtype.bytes}", element, 1, buffer.name)
    elif flat.stride == 1 and mask is None:
        pointer = address(body, buffer, flat, ev)
        vector = vector_type(element, lanes)
        found = w.assign(f"load {vector}, {pointer.typed}, align {buffer.dtype.bytes}", element, lanes, buffer.name)
    elif flat.stride == 1 and mask is not None:
        found = _masked_load(body, buffer, address(body, buffer, flat, ev), lanes, mask)
    elif flat.stride == -1 and mask is None:
        first = address(body, buffer, flat + (1 - lanes), ev)
        vector = vector_type(element, lanes)
        ahead = w.assign(f"load {vector}, {first.typed}, align {buffer.dtype.bytes}", element, lanes, buffer.name)
        found = w.shuffle(ahead, ahead, range(lanes - 1, -1, -1))
    elif 2 <= flat.stride <= _MOST_WINDOWS and lanes >= 4 and mask is None:
        found = _every_nth(body, buffer, flat, lanes, ev)
    else:
        found = _gather(body, buffer, _strided_pointers(body, buffer, flat, lanes, ev), mask)
    return w.splat(found if raw else from_storage(w, found, buffer.dtype), lanes)


def _every_nth(body: Body, buffer: Buffer, flat: LinearForm, lanes: int, ev: Evaluate) -> Value:
    """Lanes a few elements apart, picked from whole-vector loads of the span they lie in (never beyond it): the
    windows follow one another, the last one ends with the last lane."""
    w, element, stride = body.w, storage(buffer.dtype), flat.stride
    starts = [n * lanes for n in range(stride - 1)] + [(lanes - 1) * (stride - 1)]
    result: Value | None = None
    for number, start in enumerate(starts):
        pointer = address(body, buffer, flat + start, ev)
        vector = vector_type(element, lanes)
        window = w.assign(f"load {vector}, {pointer.typed}, align {buffer.dtype.bytes}", element, lanes, buffer.name)
        last = number == len(starts) - 1
        mine = [lane for lane in range(lanes) if last or lane * stride < start + lanes]
        if result is None:
            result = w.shuffle(window, window, [lane * stride if lane in mine else 0 for lane in range(lanes)])
            done = set(mine)
            continue
        picks = [lanes + lane * stride - start if lane in mine and lane not in done else lane for lane in range(lanes)]
        result = w.shuffle(result, window, picks)
        done.update(mine)
    assert result is not None
    return result


def store(
    body: Body,
    buffer: Buffer,
    indices: tuple[Expr, ...],
    value: Value,
    lanes: int,
    mask: Value | None,
    ev: Evaluate,
    *,
    raw: bool = False,
) -> None:
    """``buffer[indices] = value`` in the lanes whose ``mask`` is true; a scalar takes no mask here. ``raw``: the value
    is as it lies in memory."""
    w = body.w
    data = w.splat(value if raw else to_storage(w, value, buffer.dtype), lanes)
    flat = flat_form(indices, buffer.strides)
    if flat.is_strided and (lanes == 1 or flat.stride == 1):
        pointer = address(body, buffer, flat, ev)
        if mask is None:
            plain = f"store {data.typed}, {pointer.typed}, align"
            if buffer.name in body.non_temporal and lanes * buffer.dtype.bytes in _NON_TEMPORAL_BYTES:
                _store_non_temporal(w, pointer, plain, lanes * buffer.dtype.bytes, buffer.dtype.bytes)
            else:
                w.line(f"{plain} {buffer.dtype.bytes}")
            return
        name = f"llvm.masked.store.{data.suffix}.p0"
        w.module.declare(f"declare void @{name}({data.type}, ptr, {mask.type})")
        w.line(f"call void @{name}({data.typed}, ptr align {buffer.dtype.bytes} {pointer.text}, {mask.typed})")
        return
    if flat.is_strided:
        pointers = _strided_pointers(body, buffer, flat, lanes, ev)
    else:
        pointers = _lane_pointers(body, buffer, indices, lanes, ev)
    where = mask or constant(True, "i1", lanes)
    name = f"llvm.masked.scatter.{data.suffix}.{pointers.suffix}"
    w.module.declare(f"declare void @{name}({data.type}, {pointers.type}, {where.type})")
    aligned = f"{pointers.type} align {buffer.dtype.bytes} {pointers.text}"
    w.line(f"call void @{name}({data.typed}, {aligned}, {where.typed})")


def _store_non_temporal(w: FunctionWriter, pointer: Value, store: str, vector: int, element: int) -> None:
    """Where a vector lies at a multiple of its size: only so can it go past the caches."""
    place = w.convert("ptrtoint", pointer, "i64")
    inside = w.op("and", place, constant(vector - 1, "i64"))
    past, through, after = w.label("past"), w.label("through"), w.label("stored")
    w.branch(w.compare("eq", inside, constant(0, "i64")), past, through)
    w.begin(past)
    w.module.declare("!0 = !{i32 1}")
    w.line(f"{store} {vector}, !nontemporal !0")
    w.jump(after)
    w.begin(through)
    w.line(f"{store} {element}")
    w.jump(after)
    w.begin(after)


def emit_prefetch(body: Body, buffer: Buffer, indices: tuple[Expr, ...], ev: Evaluate) -> None:
    """Asks for the line at ``buffer[indices]``, to be read, in the second level of the caches."""
    flat = flat_form(indices, buffer.strides)
    body.w.module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    body.w.line(f"call void @llvm.prefetch.p0({address(body, buffer, flat, ev).typed}, i32 0, i32 2, i32 1)")


def address(body: Body, buffer: Buffer, flat: LinearForm, ev: Evaluate) -> Value:
    """Pointer to lane 0. Terms are added outermost loop first and shared between accesses, so that what does not
    change in a loop is a value of its own. No ``inbounds``: a masked access may start outside its buffer."""
    w, element = body.w, storage(buffer.dtype)
    base = body.pointer(buffer.name)
    offset = _sum_of_terms(body, flat, ev)
    if offset is not None:
        key = ("pointer", buffer.name, offset.text)
        known = body.known_address(key)
        base = known or w.assign(
            f"getelementptr {element}, {base.typed}, {offset.typed}", "ptr", 1, f"{buffer.name}.at"
        )
        body.addresses[-1].setdefault(key, base)
    if not flat.constant:
        return base
    place = ("pointer", base.text, flat.constant)
    found = body.known_address(place) or w.assign(
        f"getelementptr {element}, {base.typed}, i64 {flat.constant}", "ptr", 1, f"{buffer.name}.at"
    )
    body.addresses[-1].setdefault(place, found)
    return found


def _sum_of_terms(body: Body, flat: LinearForm, ev: Evaluate) -> Value | None:
    """The scalar terms times their coefficients, added up; None when there are none."""
    w = body.w
    depth = {name: position for position, name in enumerate(body.variables)}
    ordered = sorted(
        flat.base.terms.items(), key=lambda t: depth.get(t[0].name, len(depth)) if isinstance(t[0], Var) else len(depth)
    )
    total: Value | None = None
    so_far: tuple[tuple[Expr, int], ...] = ()
    for atom, coefficient in ordered:
        so_far = (*so_far, (atom, coefficient))
        known = body.known_address(so_far)
        if known is None:
            value = ev(body, atom, None)
            if coefficient != 1:
                value = w.op("mul", value, constant(coefficient, "i64"), "nsw")
            known = value if total is None else w.op("add", total, value, "nsw", "at")
            body.addresses[-1][so_far] = known
        total = known
    return total


def _strided_pointers(body: Body, buffer: Buffer, flat: LinearForm, lanes: int, ev: Evaluate) -> Value:
    w = body.w
    base = address(body, buffer, flat, ev)
    steps = ", ".join(f"i64 {lane * flat.stride}" for lane in range(lanes))
    return w.assign(f"getelementptr {storage(buffer.dtype)}, {base.typed}, <{lanes} x i64> <{steps}>", "ptr", lanes)


def _lane_pointers(body: Body, buffer: Buffer, indices: tuple[Expr, ...], lanes: int, ev: Evaluate) -> Value:
    """One pointer per lane, for indices that are not evenly spaced."""
    w = body.w
    total: Value | None = None
    for index, stride in zip(indices, buffer.strides, strict=True):
        value = w.splat(ev(body, index, None), lanes)
        part = w.op("mul", value, constant(stride, "i64", lanes), "nsw") if stride != 1 else value
        total = part if total is None else w.op("add", total, part, "nsw")
    assert total is not None and INDEX.bits == 64
    base = body.pointer(buffer.name)
    return w.assign(f"getelementptr {storage(buffer.dtype)}, {base.typed}, {total.typed}", "ptr", lanes)


def _gather(body: Body, buffer: Buffer, pointers: Value, mask: Value | None) -> Value:
    w, element, lanes = body.w, storage(buffer.dtype), pointers.lanes
    where = mask or constant(True, "i1", lanes)
    result = Value("zeroinitializer", element, lanes)
    name = f"llvm.masked.gather.{result.suffix}.{pointers.suffix}"
    w.module.declare(f"declare {result.type} @{name}({pointers.type}, {where.type}, {result.type})")
    aligned = f"{pointers.type} align {buffer.dtype.bytes} {pointers.text}"
    return w.assign(
        f"call {result.type} @{name}({aligned}, {where.typed}, {result.typed})", element, lanes, buffer.name
    )


def _masked_load(body: Body, buffer: Buffer, pointer: Value, lanes: int, mask: Value) -> Value:
    w, element = body.w, storage(buffer.dtype)
    result = Value("zeroinitializer", element, lanes)
    name = f"llvm.masked.load.{result.suffix}.p0"
    w.module.declare(f"declare {result.type} @{name}(ptr, {mask.type}, {result.type})")
    aligned = f"ptr align {buffer.dtype.bytes} {pointer.text}"
    return w.assign(f"call {result.type} @{name}({aligned}, {mask.typed}, {result.typed})", element, lanes, buffer.name)
