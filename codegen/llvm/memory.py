"""Loads and stores. Contiguous lanes move as a vector, one element for all lanes is a splat, lanes that lie close
together are shuffled out of whole vectors, and anything else is gathered or scattered."""

from collections.abc import Sequence

from ...core.dtypes import INDEX, DType
from ...ir.bounds import Interval
from ...ir.buffer import Buffer, MemoryScope
from ...ir.expr import Expr, Var
from ...ir.lane_offsets import MOST_WINDOWS, LaneOffsets, lane_offsets, windows
from ...ir.linear_form import LANE, LinearForm, flat_form
from .casts import from_storage, to_storage
from .function_context import FunctionContext
from .narrow_lanes import Evaluate, narrow_lanes
from .values import LlvmValue, constant, storage, vector_type
from .writer import FunctionWriter

_LARGEST_SHUFFLED_STRIDE = 4
"""Lanes up to this many elements apart are shuffled out of whole vectors; lanes farther apart are gathered."""

_NON_TEMPORAL_BYTES = (16, 32, 64)


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
        offsets = lane_offsets(flat)
        if offsets is not None and is_in_bounds(ctx, buffer, indices):
            mask = None
        if offsets is not None and mask is None and len(windows(offsets[1], lanes)) <= MOST_WINDOWS:
            found = _shuffled_load(ctx, buffer, *offsets, ev)
        else:
            pointers = _pointers(ctx, buffer, indices, offsets, lanes, ev)
            found = _gather(ctx, buffer, pointers, mask)
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
    elif 2 <= flat.stride <= _LARGEST_SHUFFLED_STRIDE and lanes >= 4 and (mask is None or _has_masks(w, buffer.dtype)):
        found = _deinterleaved_load(ctx, buffer, flat, lanes, mask, ev)
    else:
        found = _gather(ctx, buffer, _pointers(ctx, buffer, indices, lane_offsets(flat), lanes, ev), mask)
    return w.splat(found if raw else from_storage(w, found, buffer.dtype), lanes)


def _has_masks(w: FunctionWriter, dtype: DType) -> bool:
    """Return whether the machine has masked loads of vectors, and shuffles their masks."""
    features = w.module.features
    return {"avx512bw", "avx512vl"} <= features or ("avx2" in features and dtype.bits >= 32)


def _deinterleaved_load(
    ctx: FunctionContext, buffer: Buffer, flat: LinearForm, lanes: int, mask: LlvmValue | None, ev: Evaluate
) -> LlvmValue:
    """Load lanes that lie a few elements apart: load the span in whole vectors, never beyond it, and shuffle the
    lanes out. The vectors follow one another, and the last one ends with the last lane. With a mask, elements are
    loaded that an enabled lane has."""
    w, element, stride = ctx.w, storage(buffer.dtype), flat.stride
    starts = [n * lanes for n in range(stride - 1)] + [(lanes - 1) * (stride - 1)]
    result: LlvmValue | None = None
    for number, start in enumerate(starts):
        pointer = address(ctx, buffer, flat + start, ev)
        if mask is None:
            loaded = f"load {vector_type(element, lanes)}, {pointer.typed}, align {buffer.dtype.bytes}"
            window = w.assign(loaded, element, lanes, buffer.name)
        else:
            own = [lanes if (start + n) % stride else (start + n) // stride for n in range(lanes)]
            enabled = w.shuffle(mask, constant(False, "i1", lanes), own)
            window = _masked_load(ctx, buffer, pointer, lanes, enabled)
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


def _shuffled_load(
    ctx: FunctionContext, buffer: Buffer, scalar: LinearForm, offsets: Sequence[int], ev: Evaluate
) -> LlvmValue:
    """Load lanes that lie in a few vectors: load these, never beyond the buffer, and shuffle the lanes out."""
    w, element, lanes = ctx.w, storage(buffer.dtype), len(offsets)
    reach = ctx.interval(scalar.to_expr())
    result: LlvmValue | None = None
    for low, extent in windows(offsets, lanes):
        for first, count in _power_of_two_windows(low, extent, Interval(-reach.low, buffer.elements - 1 - reach.high)):
            pointer = address(ctx, buffer, scalar + first, ev)
            vector = vector_type(element, count)
            found = w.assign(f"load {vector}, {pointer.typed}, align {buffer.dtype.bytes}", element, count, buffer.name)
            window = found if count > 1 else w.splat(found, lanes)
            mine = [first <= o < first + count for o in offsets]
            own = w.shuffle(window, window, [o - first if m else 0 for o, m in zip(offsets, mine, strict=True)])
            result = own if result is None else w.shuffle(result, own, [n + lanes * m for n, m in enumerate(mine)])
    assert result is not None
    return result


def _power_of_two_windows(first: int, count: int, inside: Interval) -> list[tuple[int, int]]:
    """Return (first offset, elements) of vectors of powers of two that cover ``count`` elements: one that is wider
    where that stays ``inside``, else two that overlap. LLVM takes vectors of other lengths apart."""
    wide = 1 << (count - 1).bit_length()
    for start in (first, first + count - wide):
        if wide == count or Interval(start, start + wide - 1).within(inside):
            return [(start, wide)]
    return [(first, wide // 2), (first + count - wide // 2, wide // 2)]


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
        if mask is not None and _is_private(ctx, buffer, flat, lanes):
            data, mask = _blended(ctx, buffer, pointer, data, mask), None
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
    pointers = _pointers(ctx, buffer, indices, lane_offsets(flat), lanes, ev)
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


def is_in_bounds(ctx: FunctionContext, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
    """Return whether indices stay in their buffer at every iteration of the loops around them, guarded or not."""
    return all(ctx.interval(i).within(Interval(0, extent - 1)) for i, extent in zip(indices, buffer.shape, strict=True))


def _pointers(
    ctx: FunctionContext,
    buffer: Buffer,
    indices: tuple[Expr, ...],
    offsets: LaneOffsets | None,
    lanes: int,
    ev: Evaluate,
) -> LlvmValue:
    """Return one pointer for each lane: one pointer plus known numbers, or where ``offsets`` is None those of indices
    that are computed lane by lane."""
    if offsets is None:
        return _lane_pointers(ctx, buffer, indices, lanes, ev)
    base = address(ctx, buffer, offsets[0], ev)
    steps = ", ".join(f"i64 {offset}" for offset in offsets[1])
    return ctx.w.assign(f"getelementptr {storage(buffer.dtype)}, {base.typed}, <{lanes} x i64> <{steps}>", "ptr", lanes)


def _lane_pointers(
    ctx: FunctionContext, buffer: Buffer, indices: tuple[Expr, ...], lanes: int, ev: Evaluate
) -> LlvmValue:
    """Return one pointer per lane, for indices that are not evenly spaced."""
    w = ctx.w
    flat = flat_form(indices, buffer.strides).to_expr()
    narrow = narrow_lanes(ctx, flat, ev)
    if narrow is not None:
        base = ctx.pointer(buffer.name)
        return w.assign(f"getelementptr {storage(buffer.dtype)}, {base.typed}, {narrow.typed}", "ptr", lanes)
    total: LlvmValue | None = None
    for index, stride in zip(indices, buffer.strides, strict=True):
        value = w.splat(ev(ctx, index, None), lanes)
        offset = w.op("mul", value, constant(stride, "i64", lanes), "nsw") if stride != 1 else value
        total = offset if total is None else w.op("add", total, offset, "nsw")
    assert total is not None and INDEX.bits == 64
    base = ctx.pointer(buffer.name)
    return w.assign(f"getelementptr {storage(buffer.dtype)}, {base.typed}, {total.typed}", "ptr", lanes)


def _is_private(ctx: FunctionContext, buffer: Buffer, flat: LinearForm, lanes: int) -> bool:
    """Return whether a vector lies within registers, all of which may be written."""
    reach = ctx.interval(flat.without([LANE]).to_expr())
    return buffer.scope is MemoryScope.REGISTER and reach.within(Interval(0, buffer.elements - lanes))


def _blended(ctx: FunctionContext, buffer: Buffer, pointer: LlvmValue, data: LlvmValue, mask: LlvmValue) -> LlvmValue:
    """Return ``data`` where ``mask`` is true, and what is there elsewhere. A load that follows a masked store waits for
    memory, since such a store forwards nothing, and LLVM keeps no register for what is stored so."""
    w = ctx.w
    there = w.assign(f"load {data.type}, {pointer.typed}, align {buffer.dtype.bytes}", data.element, data.lanes)
    return w.assign(f"select {mask.typed}, {data.typed}, {there.typed}", data.element, data.lanes)


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
