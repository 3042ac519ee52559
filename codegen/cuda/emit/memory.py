"""Accesses: one element at a time, or neighbours in single accesses of up to 16 bytes, provably aligned to that."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ....core.dtypes import DType
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Broadcast, Cast, ClusterLoad, Const, Expr, Load, Select, index
from .access import Place, flat_place, one_for_all, parted, pieces, place_of
from .arithmetic import from_bits
from .function import Function, is_packed
from .text import Level, Text, Value, call, infix
from .types import WIDE, bits_of, half_name, is_half, stored


class Writing(Protocol):
    """What accesses need of the place they are written at (``expressions.Code``: the two need each other)."""

    @property
    def fn(self) -> Function: ...
    @property
    def text(self) -> Text: ...
    @property
    def lane(self) -> Value | None: ...
    def value(self, expr: Expr) -> Value: ...


# --- places


def offset(code: Writing, buffer: Buffer, indices: Sequence[Expr]) -> Value:
    """Elements from the start of ``buffer``, for a scalar access or for this lane of a vector's."""
    place = place_of(indices, buffer.strides)
    if place is None:
        return _swizzled(code, buffer, code.value(flat_place(indices, buffer.strides)))
    whole, rest = _parted(buffer, place.base)
    at = code.value(rest)
    if place.step and code.lane is not None:
        step = Value(str(place.step), "int")
        lane = code.lane if place.step == 1 else infix(code.lane, "*", step, "int", Level.PRODUCT)
        at = _sum(at, lane)
    return _sum(code.value(whole), _swizzled(code, buffer, at))


def tile_offset(code: Writing, buffer: Buffer, indices: Sequence[Expr]) -> Value:
    """Elements from the start of ``buffer`` to a place that its swizzle leaves alone: the start of its period."""
    return code.value(flat_place(indices, buffer.strides))


def base_offset(code: Writing, buffer: Buffer, base: Expr, lane: int) -> Value:
    """Elements from the start to lane ``lane`` of a contiguous vector that begins at ``base``."""
    place = place_of([base + lane], [1])
    assert place is not None
    whole, rest = _parted(buffer, place.base if lane else base)
    return _sum(code.value(whole), _swizzled(code, buffer, code.value(rest)))


def _parted(buffer: Buffer, at: Expr) -> tuple[Expr, Expr]:
    """A place as a sum: what is surely a multiple of the period of the swizzle, and is left alone by it (that which
    changes from step to step of a loop, often), and the rest."""
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    if swizzle is None:
        return index(0), at
    return parted(at, 1 << (swizzle.base + swizzle.shift + swizzle.bits))


def _sum(a: Value, b: Value) -> Value:
    if a.text == "0":
        return b
    return a if b.text == "0" else infix(a, "+", b, a.type, Level.SUM)


def _swizzled(code: Writing, buffer: Buffer, at: Value) -> Value:
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    if swizzle is None:
        return at
    if not at.text.isidentifier():
        name = code.fn.fresh("place")
        code.text.line(f"const {at.type} {name} = {at.text};")
        at = Value(name, at.type)
    mask = ((1 << swizzle.bits) - 1) << swizzle.base
    return Value(f"({at.text} ^ (({at.text} >> {swizzle.shift}) & {mask}))", at.type)


def address(code: Writing, buffer: Buffer, at: Value) -> str:
    """``&buffer[at]``."""
    return f"&{code.fn.name_of(buffer.name)}[{at.text}]"


# --- one element


def element(code: Writing, buffer: Buffer, indices: Sequence[Expr]) -> Value:
    """The value of one element, as it is computed with."""
    cell = _cell(code, buffer, indices)
    return _as_computed(code.fn, cell, buffer.dtype)


def _cell(code: Writing, buffer: Buffer, indices: Sequence[Expr]) -> Value:
    """One element as it is stored."""
    at = offset(code, buffer, indices)
    name = code.fn.name_of(buffer.name)
    if is_packed(buffer):
        return call(code.fn.use("bits_at"), "unsigned short", name, at)
    return Value(f"{name}[{at.text}]", stored(buffer.dtype))


def _as_computed(fn: Function, cell: Value, dtype: DType) -> Value:
    if is_half(dtype):
        return from_bits(fn, cell, dtype)
    if dtype.is_bool:
        return infix(cell, "!=", Value("0", "int"), "bool", Level.EQUALITY)
    return cell


def peer_element(code: Writing, expr: ClusterLoad) -> Value:
    """The value of one element in another block's shared memory."""
    fn, buffer = code.fn, expr.buffer
    cell = fn.fresh(f"peer_{fn.name_of(buffer.name)}")
    code.text.line(f"{stored(buffer.dtype)} {cell};")
    wide = WIDE[buffer.dtype.bytes]
    source = address(code, buffer, offset(code, buffer, expr.indices))
    block = code.value(expr.block)
    read = f"{fn.use('cluster_load')}({fn.use('as')}<{wide}>({source}), {block.text})"
    code.text.line(f"*{fn.use('as')}<{wide}>(&{cell}) = {read};")
    return _as_computed(fn, Value(cell, stored(buffer.dtype)), buffer.dtype)


def raw(code: Writing, expr: Expr) -> Value | None:
    """The bits of a 16-bit value (of this lane of a vector) that take no arithmetic; None where there is some."""
    dtype = expr.dtype
    match expr:
        case Const(value=value):
            return Value(f"0x{bits_of(float(value), dtype):04x}", "unsigned short")
        case Broadcast(value=value):
            return raw(code, value)
        case Cast(value=value) if value.dtype == dtype:
            return raw(code, value)
        case Load(mask=None) if not _is_wide(expr):
            return _cell(code, expr.buffer, expr.indices)
        case Load(buffer=buffer, mask=mask) if mask is not None and not _is_wide(expr) and _is_plain(buffer):
            test, cell = code.value(mask), _cell(code, buffer, expr.indices)
            return Value(f"{test.within(Level.OR)} ? {cell.text} : 0", "unsigned short", Level.CHOICE)
        case Select(condition=condition, then=then, otherwise=otherwise):
            if not (_is_bits(then) and _is_bits(otherwise)):
                return None
            test, first, second = code.value(condition), raw(code, then), raw(code, otherwise)
            if first is None or second is None:
                return None
            text = f"{test.within(Level.OR)} ? {first.within(Level.OR)} : {second.within(Level.OR)}"
            return Value(text, "unsigned short", Level.CHOICE)
    return None


def _is_bits(expr: Expr) -> bool:
    """Whether ``raw`` gives the bits of a branch without a statement ahead of it."""
    match expr:
        case Const():
            return True
        case Broadcast(value=value):
            return _is_bits(value)
        case Load(buffer=buffer, mask=None):
            return _is_plain(buffer) and not _is_wide(expr)
    return False


def _is_plain(buffer: Buffer) -> bool:
    return buffer.layout is None or buffer.layout.swizzle is None


# --- neighbours


def contiguous(indices: Sequence[Expr], buffer: Buffer) -> Place | None:
    """The place of a vector whose lanes are neighbours."""
    place = place_of(indices, buffer.strides)
    return place if place is not None and place.step == 1 else None


def _is_wide(expr: Load | ClusterLoad) -> bool:
    """Whether a vector load is worth an array: it has accesses of several elements at once."""
    if expr.lanes == 1:
        return False
    place = contiguous(expr.indices, expr.buffer)
    mask = expr.mask if isinstance(expr, Load) else None
    if place is None or (mask is not None and one_for_all(mask) is None):
        return False
    if expr.buffer.scope in (MemoryScope.REGISTER, MemoryScope.LOCAL) and not is_packed(expr.buffer):
        return False
    sizes = [piece for _, piece in pieces([(expr.buffer, place.base)], expr.lanes)]
    if is_half(expr.buffer.dtype):
        return min(sizes) >= 4
    return max(sizes) > expr.buffer.dtype.bytes


def wide_load(code: Writing, expr: Load | ClusterLoad) -> Value | None:
    """A vector load as an array filled by wide accesses (16-bit floats already as float32); None where it is none."""
    if not _is_wide(expr):
        return None
    fn, buffer, lanes = code.fn, expr.buffer, expr.lanes
    place = contiguous(expr.indices, buffer)
    assert place is not None
    name = fn.fresh(f"{fn.name_of(buffer.name)}_v")
    if not is_half(buffer.dtype):
        code.text.line(f"{aligned(stored(buffer.dtype), lanes * buffer.dtype.bytes)} {name}[{lanes}];")
        _fill(code, expr, place.base, lambda lane: f"{name}[{lane}]")
        return Value(name, stored(buffer.dtype))
    words = name_of_words = fn.name_of(buffer.name)
    if is_packed(buffer):
        at = base_offset(code, buffer, place.base, 0)
        words = f"{name_of_words} + {half_of(at)}"
    else:
        words = fn.fresh(f"{name}_words")
        code.text.line(f"{aligned('unsigned', lanes * 2)} {words}[{lanes // 2}];")
        _fill(code, expr, place.base, lambda lane: f"{words}[{lane // 2}]")
    code.text.line(f"float {name}[{lanes}];")
    code.text.line(f"{fn.use(f'unpack_{half_name(buffer.dtype)}')}<{lanes}>({words}, {name});")
    return Value(name, "float")


def _fill(code: Writing, expr: Load | ClusterLoad, base: Expr, cell: Callable[[int], str]) -> None:
    """Read ``expr`` piece by piece into local memory; ``cell``: what lies at a lane."""
    mask = expr.mask if isinstance(expr, Load) else None
    scalar = None if mask is None else one_for_all(mask)
    test = None if scalar is None else code.value(scalar)
    for lane, size in pieces([(expr.buffer, base)], expr.lanes):
        read = read_piece(code, expr, base, lane, size, test)
        code.text.line(f"*{code.fn.use('as')}<{WIDE[size]}>(&{cell(lane)}) = {read};")


def read_piece(code: Writing, expr: Load | ClusterLoad, base: Expr, lane: int, size: int, test: Value | None) -> str:
    """The bits of ``size`` bytes from lane ``lane`` of a contiguous load on; zeros where ``test`` is false."""
    fn, buffer = code.fn, expr.buffer
    at = base_offset(code, buffer, base, lane)
    if is_packed(buffer):
        source = f"{code.fn.use('as')}<{WIDE[size]}>(&{fn.name_of(buffer.name)}[{half_of(at)}])"
    else:
        source = f"{code.fn.use('as')}<{WIDE[size]}>({address(code, buffer, at)})"
    if isinstance(expr, ClusterLoad):
        return f"{fn.use('cluster_load')}({source}, {code.value(expr.block).text})"
    read_only = buffer.scope is MemoryScope.GLOBAL and buffer.name in fn.read_only
    once = "_once" if buffer.name in fn.evict_first else ""
    if test is not None:
        if read_only and size >= 4:
            return f"{fn.use(f'load{once}_if')}({source}, {test.text})"
        return f"{test.within(Level.OR)} ? *{source} : {WIDE[size]}{'{}' if size > 4 else '(0)'}"
    if read_only and size >= 4 and once:
        return f"{fn.use('load_once')}({source})"
    return f"*{source}"


def of_array(code: Writing, array: Value, dtype: DType, lane: Value | None) -> Value:
    """One lane of an array that ``wide_load`` filled."""
    assert lane is not None
    cell = Value(f"{array.text}[{lane.text}]", array.type)
    return cell if is_half(dtype) else _as_computed(code.fn, cell, dtype)


def half_of(at: Value) -> str:
    """The word that an even element of packed ones begins."""
    if at.text.isdigit():
        return str(int(at.text) // 2)
    return f"{at.within(Level.PRODUCT)} / 2"


def aligned(type: str, size: int) -> str:
    """The declaration of an array's type, aligned for accesses as wide as its ``size`` in bytes allows."""
    for bytes in (16, 8, 4):
        if size >= bytes:
            return f"__align__({bytes}) {type}"
    return type
