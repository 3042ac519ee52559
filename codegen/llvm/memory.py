"""Loads and stores. Contiguous lanes move as a vector, one element for all lanes is a splat, and anything else is
gathered or scattered."""

from collections.abc import Callable

from ...core.dtypes import INDEX
from ...ir.buffer import Buffer
from ...ir.expr import Expr, Var
from ...ir.linear_form import LinearForm, flat_form
from .casts import from_storage, to_storage
from .function_context import FunctionContext
from .values import LlvmValue, constant, storage, vector_type
from .writer import FunctionWriter

_LARGEST_SHUFFLED_STRIDE = 4
"""Lanes up to this many elements apart are shuffled out of whole vectors; lanes farther apart are gathered."""

_NON_TEMPORAL_BYTES = (16, 32, 64)

Evaluate = Callable[[FunctionContext, Expr, LlvmValue | None], LlvmValue]
"""Computes an expression under a lane mask. It is ``expressions.evaluate``, passed as an argument because the two
files need each other."""


def load(
    ctx: FunctionContext,
    buffer: Buffer,
    indices: tuple[Expr, ...],
    lanes: int,
    mask: LlvmValue | None,
    ev: Evaluate,
    *,
    raw: bool = False,
) -> LlvmValue:
    """Load ``buffer[indices]``. Lanes whose ``mask`` is false are zero and not read. A scalar takes no mask here.
    ``raw`` returns the elements in their type in memory."""
    w, element = ctx.w, storage(buffer.dtype)
    flat = flat_form(indices, buffer.strides)
    if not flat.is_strided:
        found = _gather(ctx, buffer, _lane_pointers(ctx, buffer, indices, lanes, ev), mask)
    elif lanes == 1 or (flat.stride == 0 and mask is None):
        pointer = address(ctx, buffer, flat, ev)
        found = w.assign(f"load {element}, {pointer.typed}, align {buffer.dtype.bytes}", element, 1, buffer.name)
    elif flat.stride == 1 and mask is None:
        pointer = address(ctx, buffer, flat, ev)
        vector = vector_type(element, lanes)
        found = w.assign(f"load {vector}, {pointer.typed}, align {buffer.dtype.bytes}", element, lanes, buffer.name)
    elif flat.stride == 1 and mask is not None:
        found = _masked_load(ctx, buffer, address(ctx, buffer, flat, ev), lanes, mask)
    elif flat.stride == -1 and mask is None:
        first = address(ctx, buffer, flat + (1 - lanes), ev)
        vector = vector_type(element, lanes)
        forward = w.assign(f"load {vector}, {first.typed}, align {buffer.dtype.bytes}", element, lanes, buffer.name)
        found = w.shuffle(forward, forward, range(lanes - 1, -1, -1))
    elif 2 <= flat.stride <= _LARGEST_SHUFFLED_STRIDE and lanes >= 4 and mask is None:
        found = _deinterleaved_load(ctx, buffer, flat, lanes, ev)
    else:
        found = _gather(ctx, buffer, _strided_pointers(ctx, buffer, flat, lanes, ev), mask)
    return w.splat(found if raw else from_storage(w, found, buffer.dtype), lanes)


def _deinterleaved_load(ctx: FunctionContext, buffer: Buffer, flat: LinearForm, lanes: int, ev: Evaluate) -> LlvmValue:
    """Load lanes that lie a few elements apart: load the span in whole vectors, never beyond it, and shuffle the
    lanes out. The vectors follow one another, and the last one ends with the last lane."""
    w, element, stride = ctx.w, storage(buffer.dtype), flat.stride
    starts = [n * lanes for n in range(stride - 1)] + [(lanes - 1) * (stride - 1)]
    result: LlvmValue | None = None
    for number, start in enumerate(starts):
        pointer = address(ctx, buffer, flat + start, ev)
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
    ctx: FunctionContext,
    buffer: Buffer,
    indices: tuple[Expr, ...],
    value: LlvmValue,
    lanes: int,
    mask: LlvmValue | None,
    ev: Evaluate,
    *,
    raw: bool = False,
) -> None:
    """Store ``buffer[indices] = value`` in the lanes whose ``mask`` is true. A scalar takes no mask here. ``raw``
    says that the value has its type in memory already."""
    w = ctx.w
    data = w.splat(value if raw else to_storage(w, value, buffer.dtype), lanes)
    flat = flat_form(indices, buffer.strides)
    if flat.is_strided and (lanes == 1 or flat.stride == 1):
        pointer = address(ctx, buffer, flat, ev)
        if mask is None:
            plain = f"store {data.typed}, {pointer.typed}, align"
            if buffer.name in ctx.non_temporal and lanes * buffer.dtype.bytes in _NON_TEMPORAL_BYTES:
                _store_non_temporal(w, pointer, plain, lanes * buffer.dtype.bytes, buffer.dtype.bytes)
            else:
                w.line(f"{plain} {buffer.dtype.bytes}")
            return
        name = f"llvm.masked.store.{data.suffix}.p0"
        w.module.declare(f"declare void @{name}({data.type}, ptr, {mask.type})")
        w.line(f"call void @{name}({data.typed}, ptr align {buffer.dtype.bytes} {pointer.text}, {mask.typed})")
        return
    if not flat.is_strided:
        pointers = _lane_pointers(ctx, buffer, indices, lanes, ev)
    else:
        pointers = _strided_pointers(ctx, buffer, flat, lanes, ev)
    where = mask or constant(True, "i1", lanes)
    name = f"llvm.masked.scatter.{data.suffix}.{pointers.suffix}"
    w.module.declare(f"declare void @{name}({data.type}, {pointers.type}, {where.type})")
    aligned = f"{pointers.type} align {buffer.dtype.bytes} {pointers.text}"
    w.line(f"call void @{name}({data.typed}, {aligned}, {where.typed})")


def _store_non_temporal(w: FunctionWriter, pointer: LlvmValue, store: str, vector: int, element: int) -> None:
    """Store past the caches where the address is a multiple of the vector's size, and normally elsewhere.
    Non-temporal stores need that alignment."""
    address_bits = w.convert("ptrtoint", pointer, "i64")
    inside = w.op("and", address_bits, constant(vector - 1, "i64"))
    past, through, after = w.label("past"), w.label("through"), w.label("stored")
    w.branch(w.compare("eq", inside, constant(0, "i64")), past, through)
    w.begin_block(past)
    w.module.declare("!0 = !{i32 1}")
    w.line(f"{store} {vector}, !nontemporal !0")
    w.jump(after)
    w.begin_block(through)
    w.line(f"{store} {element}")
    w.jump(after)
    w.begin_block(after)


def emit_prefetch(ctx: FunctionContext, buffer: Buffer, indices: tuple[Expr, ...], ev: Evaluate) -> None:
    """Prefetch the cache line of ``buffer[indices]``, for reading, into the second level of the caches."""
    flat = flat_form(indices, buffer.strides)
    assert flat.is_strided
    ctx.w.module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    ctx.w.line(f"call void @llvm.prefetch.p0({address(ctx, buffer, flat, ev).typed}, i32 0, i32 2, i32 1)")


def address(ctx: FunctionContext, buffer: Buffer, flat: LinearForm, ev: Evaluate) -> LlvmValue:
    """Return a pointer to lane 0. Terms are added from the outermost loop inwards and shared between accesses, so
    that the part that does not change in a loop is a value of its own. There is no ``inbounds``, because a masked
    access may start outside its buffer."""
    w, element = ctx.w, storage(buffer.dtype)
    base = ctx.pointer(buffer.name)
    offset = _sum_of_terms(ctx, flat, ev)
    if offset is not None:
        key = ("pointer", buffer.name, offset.text)
        known = ctx.known_address(key)
        base = known or w.assign(
            f"getelementptr {element}, {base.typed}, {offset.typed}", "ptr", 1, f"{buffer.name}.at"
        )
        ctx.known_addresses[-1].setdefault(key, base)
    if not flat.constant:
        return base
    shifted_key = ("pointer", base.text, flat.constant)
    found = ctx.known_address(shifted_key) or w.assign(
        f"getelementptr {element}, {base.typed}, i64 {flat.constant}", "ptr", 1, f"{buffer.name}.at"
    )
    ctx.known_addresses[-1].setdefault(shifted_key, found)
    return found


def _sum_of_terms(ctx: FunctionContext, flat: LinearForm, ev: Evaluate) -> LlvmValue | None:
    """Add up the scalar terms times their coefficients; return None when there are none."""
    w = ctx.w
    depth = {name: position for position, name in enumerate(ctx.variables)}
    ordered = sorted(
        flat.base.terms.items(), key=lambda t: depth.get(t[0].name, len(depth)) if isinstance(t[0], Var) else len(depth)
    )
    total: LlvmValue | None = None
    so_far: tuple[tuple[Expr, int], ...] = ()
    for term, coefficient in ordered:
        so_far = (*so_far, (term, coefficient))
        known = ctx.known_address(so_far)
        if known is None:
            value = ev(ctx, term, None)
            if coefficient != 1:
                value = w.op("mul", value, constant(coefficient, "i64"), "nsw")
            known = value if total is None else w.op("add", total, value, "nsw", "at")
            ctx.known_addresses[-1][so_far] = known
        total = known
    return total


def _strided_pointers(ctx: FunctionContext, buffer: Buffer, flat: LinearForm, lanes: int, ev: Evaluate) -> LlvmValue:
    w = ctx.w
    base = address(ctx, buffer, flat, ev)
    steps = ", ".join(f"i64 {lane * flat.stride}" for lane in range(lanes))
    return w.assign(f"getelementptr {storage(buffer.dtype)}, {base.typed}, <{lanes} x i64> <{steps}>", "ptr", lanes)


def _lane_pointers(
    ctx: FunctionContext, buffer: Buffer, indices: tuple[Expr, ...], lanes: int, ev: Evaluate
) -> LlvmValue:
    """Return one pointer per lane, for indices that are not evenly spaced."""
    w = ctx.w
    total: LlvmValue | None = None
    for index, stride in zip(indices, buffer.strides, strict=True):
        value = w.splat(ev(ctx, index, None), lanes)
        offset = w.op("mul", value, constant(stride, "i64", lanes), "nsw") if stride != 1 else value
        total = offset if total is None else w.op("add", total, offset, "nsw")
    assert total is not None and INDEX.bits == 64
    base = ctx.pointer(buffer.name)
    return w.assign(f"getelementptr {storage(buffer.dtype)}, {base.typed}, {total.typed}", "ptr", lanes)


def _gather(ctx: FunctionContext, buffer: Buffer, pointers: LlvmValue, mask: LlvmValue | None) -> LlvmValue:
    w, element, lanes = ctx.w, storage(buffer.dtype), pointers.lanes
    where = mask or constant(True, "i1", lanes)
    result = LlvmValue("zeroinitializer", element, lanes)
    name = f"llvm.masked.gather.{result.suffix}.{pointers.suffix}"
    w.module.declare(f"declare {result.type} @{name}({pointers.type}, {where.type}, {result.type})")
    aligned = f"{pointers.type} align {buffer.dtype.bytes} {pointers.text}"
    return w.assign(
        f"call {result.type} @{name}({aligned}, {where.typed}, {result.typed})", element, lanes, buffer.name
    )


def _masked_load(ctx: FunctionContext, buffer: Buffer, pointer: LlvmValue, lanes: int, mask: LlvmValue) -> LlvmValue:
    w, element = ctx.w, storage(buffer.dtype)
    result = LlvmValue("zeroinitializer", element, lanes)
    name = f"llvm.masked.load.{result.suffix}.p0"
    w.module.declare(f"declare {result.type} @{name}(ptr, {mask.type}, {result.type})")
    aligned = f"ptr align {buffer.dtype.bytes} {pointer.text}"
    return w.assign(f"call {result.type} @{name}({aligned}, {mask.typed}, {result.typed})", element, lanes, buffer.name)
