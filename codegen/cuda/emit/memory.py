"""Writes loads and addresses: of single elements, or of contiguous ones in vector accesses of up to 16 bytes."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ....core.dtypes import DType
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Broadcast, Cast, ClusterLoad, Const, Expr, Load, Select, Unary, UnaryOp, index
from ....ir.linear_form import LinearForm, linear_form
from ....ir.rewrite import free_variables
from .access import (
    WIDEST_BYTES,
    StridedOffset,
    lane_offsets,
    split_multiples,
    strided_offset,
    uniform_mask,
    vector_accesses,
)
from .arithmetic import from_bits
from .function import EmittedFunction, is_packed
from .text import CppText, CppValue, Precedence, call, conditional, infix
from .types import VECTOR_TYPES, bits_of, half_name, is_half, storage_type


class AccessEmitter(Protocol):
    """Accesses need this much of an ``expressions.ExpressionEmitter``, which in turn needs them."""

    @property
    def fn(self) -> EmittedFunction: ...
    @property
    def text(self) -> CppText: ...
    @property
    def lane(self) -> CppValue | None: ...
    def value(self, expr: Expr) -> CppValue: ...


# Offsets and addresses


def offset(emitter: AccessEmitter, buffer: Buffer, indices: Sequence[Expr]) -> CppValue:
    """Return the offset in ``buffer``, in elements, of a scalar access, or of this lane of a vector access."""
    found = strided_offset(indices, buffer.strides)
    if found is None:
        return _swizzled(emitter, buffer, emitter.value(lane_offsets(indices, buffer.strides)))
    whole, rest = _split_at_period(buffer, found.base)
    at = emitter.value(rest)
    if found.stride and emitter.lane is not None:
        lane = emitter.lane
        if found.stride != 1:
            lane = infix(lane, "*", CppValue(str(found.stride), "int"), "int", Precedence.MULTIPLICATIVE)
        at = _sum(at, lane)
    return _sum(emitter.value(whole), _swizzled(emitter, buffer, at))


def unswizzled_offset(emitter: AccessEmitter, buffer: Buffer, indices: Sequence[Expr]) -> CppValue:
    """Return the offset in elements of an element that the swizzle does not move: the first of one of its periods."""
    return emitter.value(lane_offsets(indices, buffer.strides))


def offset_of_lane(emitter: AccessEmitter, buffer: Buffer, base: Expr, lane: int) -> CppValue:
    """Return the offset in elements of lane ``lane`` of a contiguous vector whose first lane is at offset ``base``."""
    found = strided_offset([base + lane], [1])
    assert found is not None
    whole, rest = _split_at_period(buffer, found.base if lane else base)
    return _sum(emitter.value(whole), _swizzled(emitter, buffer, emitter.value(rest)))


def _split_at_period(buffer: Buffer, at: Expr) -> tuple[Expr, Expr]:
    """Split an offset into a provable multiple of the swizzle's period, which the swizzle does not change, and the
    rest. The first often holds all that changes from step to step of a loop."""
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    if swizzle is None:
        return index(0), at
    return split_multiples(at, 1 << (swizzle.base + swizzle.shift + swizzle.bits))


def _sum(a: CppValue, b: CppValue) -> CppValue:
    if a.text == "0":
        return b
    return a if b.text == "0" else infix(a, "+", b, a.type, Precedence.ADDITIVE)


def _swizzled(emitter: AccessEmitter, buffer: Buffer, at: CppValue) -> CppValue:
    """Return the offset that the swizzle of ``buffer`` moves offset ``at`` to."""
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    if swizzle is None:
        return at
    if not at.text.isidentifier():
        name = emitter.fn.fresh("offset")
        emitter.text.line(f"const {at.type} {name} = {at.text};")
        at = CppValue(name, at.type)
    mask = ((1 << swizzle.bits) - 1) << swizzle.base
    return CppValue(f"({at.text} ^ (({at.text} >> {swizzle.shift}) & {mask}))", at.type)


def address(emitter: AccessEmitter, buffer: Buffer, at: CppValue) -> str:
    """Return ``&buffer[at]``."""
    return f"&{emitter.fn.name_of(buffer.name)}[{at.text}]"


def folded_address(emitter: AccessEmitter, buffer: Buffer, at: Expr) -> str:
    """Return ``&buffer[at]`` of a buffer without a swizzle. Constants, which variables of unrolled loops become, are
    added to the pointer: they are then part of the instruction that accesses memory, while each further index takes
    instructions to be an address."""
    form = linear_form(at)
    constants = {term for term in form.terms if free_variables(term) <= emitter.fn.unrolled}
    constant = form.only(constants) + form.constant
    varying = emitter.value((form.without(constants) - form.constant).to_expr())
    if constant == LinearForm({}):
        return address(emitter, buffer, varying)
    if buffer.scope is MemoryScope.SHARED and varying.type == "int":  # NVRTC 13.0 would merge what has no common bits
        varying = call(emitter.fn.use("opaque"), "int", varying)
    return f"{address(emitter, buffer, varying)} + {emitter.value(constant.to_expr()).within(Precedence.ADDITIVE)}"


def mbarrier_address(emitter: AccessEmitter, barriers: Buffer, at: Expr) -> str:
    """Return the address of mbarrier ``at`` of a buffer of them."""
    return address(emitter, barriers, emitter.value(at))


# Single elements


def element(emitter: AccessEmitter, buffer: Buffer, indices: Sequence[Expr]) -> CppValue:
    """Return the value of one element, in the type that it is computed in."""
    cell = _cell(emitter, buffer, indices)
    return _to_compute_type(emitter.fn, cell, buffer.dtype)


def _cell(emitter: AccessEmitter, buffer: Buffer, indices: Sequence[Expr]) -> CppValue:
    """Return one element, in the type that it is stored in."""
    fn, type = emitter.fn, storage_type(buffer.dtype)
    if brings_lines(fn, buffer) and type in _LINE_TYPES:
        found = strided_offset(indices, buffer.strides) if emitter.lane is None else None
        if found is not None:
            return call(fn.use("ld_global_line"), type, folded_address(emitter, buffer, found.base))
        return call(fn.use("ld_global_line"), type, address(emitter, buffer, offset(emitter, buffer, indices)))
    at = offset(emitter, buffer, indices)
    if is_packed(buffer):
        return call(fn.use("extract_u16"), "unsigned short", fn.name_of(buffer.name), at)
    return CppValue(f"{fn.name_of(buffer.name)}[{at.text}]", type)


_LINE_TYPES = ("float", "int", "unsigned short")
"""The types of single elements that ``ld_global_line`` loads."""


def brings_lines(fn: EmittedFunction, buffer: Buffer) -> bool:
    """Return whether asynchronous copies of ``buffer``, and loads of it that are shorter than 16 bytes, bring whole
    cache lines into L2."""
    return buffer.scope is MemoryScope.GLOBAL and buffer.name in fn.prefetch_lines and buffer.name in fn.read_only


def _to_compute_type(fn: EmittedFunction, cell: CppValue, dtype: DType) -> CppValue:
    if is_half(dtype) or dtype.is_float8:
        return from_bits(fn, cell, dtype)
    if dtype.is_bool:
        return infix(cell, "!=", CppValue("0", "int"), "bool", Precedence.EQUALITY)
    return cell


def cluster_element(emitter: AccessEmitter, expr: ClusterLoad) -> CppValue:
    """Return the value of one element in the shared memory of another CTA of the cluster."""
    fn, buffer = emitter.fn, expr.buffer
    cell = fn.fresh(f"remote_{fn.name_of(buffer.name)}")
    emitter.text.line(f"{storage_type(buffer.dtype)} {cell};")
    type = VECTOR_TYPES[buffer.dtype.bytes]
    source = address(emitter, buffer, offset(emitter, buffer, expr.indices))
    cta = emitter.value(expr.block)
    read = f"{fn.use('ld_shared_cluster')}({fn.use('recast')}<{type}>({source}), {cta.text})"
    emitter.text.line(f"*{fn.use('recast')}<{type}>(&{cell}) = {read};")
    return _to_compute_type(fn, CppValue(cell, storage_type(buffer.dtype)), buffer.dtype)


def raw_bits(emitter: AccessEmitter, expr: Expr) -> CppValue | None:
    """Return the bits of a 16-bit or 8-bit float, or of this lane of a vector, that is only moved; None where it is
    computed. One of 8 bits may lose its sign."""
    dtype = expr.dtype
    match expr:
        case Const(value=value):
            return CppValue(f"0x{bits_of(float(value), dtype):0{dtype.bits // 4}x}", storage_type(dtype))
        case Broadcast(value=value):
            return raw_bits(emitter, value)
        case Cast(value=value) if value.dtype == dtype:
            return raw_bits(emitter, value)
        case Load(mask=None) if not _is_vectorised(expr):
            return _cell(emitter, expr.buffer, expr.indices)
        case Load(buffer=buffer, mask=mask) if mask is not None and not _is_vectorised(expr) and is_linear(buffer):
            test, cell = emitter.value(mask), _cell(emitter, buffer, expr.indices)
            return conditional(test, cell, CppValue("0", "int"), storage_type(dtype))
        case Unary(op=UnaryOp.ABS, value=value) if dtype.is_float8:
            bits = raw_bits(emitter, value)
            return bits and infix(bits, "&", CppValue("0x7f", "int"), "int", Precedence.BITWISE)
        case Select(condition=condition, then=then, otherwise=otherwise):
            if not (_is_one_expression(then) and _is_one_expression(otherwise)):
                return None
            test, first, second = emitter.value(condition), raw_bits(emitter, then), raw_bits(emitter, otherwise)
            return None if first is None or second is None else conditional(test, first, second, storage_type(dtype))
    return None


def _is_one_expression(expr: Expr) -> bool:
    """Return whether ``raw_bits`` gives the bits of one arm of a select without a statement ahead of it."""
    match expr:
        case Const():
            return True
        case Broadcast(value=value):
            return _is_one_expression(value)
        case Load(buffer=buffer, mask=None):
            return is_linear(buffer) and not _is_vectorised(expr)
    return False


def is_linear(buffer: Buffer) -> bool:
    """Return whether no swizzle moves the elements of a buffer."""
    return buffer.layout is None or buffer.layout.swizzle is None


# Vectors of contiguous elements


def contiguous(indices: Sequence[Expr], buffer: Buffer) -> StridedOffset | None:
    """Return the offset of a vector whose lanes are contiguous; None for any other."""
    found = strided_offset(indices, buffer.strides)
    return found if found is not None and found.stride == 1 else None


def _is_vectorised(expr: Load | ClusterLoad) -> bool:
    """Return whether a vector load has accesses of several elements, so that it is worth an array."""
    if expr.lanes == 1:
        return False
    found = contiguous(expr.indices, expr.buffer)
    mask = expr.mask if isinstance(expr, Load) else None
    if found is None or (mask is not None and uniform_mask(mask) is None):
        return False
    if expr.buffer.scope in (MemoryScope.REGISTER, MemoryScope.LOCAL) and not is_packed(expr.buffer):
        return False
    sizes = [size for _, size in vector_accesses([(expr.buffer, found.base)], expr.lanes)]
    if is_half(expr.buffer.dtype):
        return min(sizes) >= 4
    return max(sizes) > expr.buffer.dtype.bytes


def vector_load(emitter: AccessEmitter, expr: Load | ClusterLoad) -> CppValue | None:
    """Fill an array with a vector by vector accesses, with floats of 16 bits converted to float32, and return it.
    Returns None where no access has several elements."""
    if not _is_vectorised(expr):
        return None
    fn, buffer, lanes = emitter.fn, expr.buffer, expr.lanes
    found = contiguous(expr.indices, buffer)
    assert found is not None
    name = fn.fresh(f"{fn.name_of(buffer.name)}_v")
    if not is_half(buffer.dtype):
        type = aligned_type(storage_type(buffer.dtype), lanes * buffer.dtype.bytes)
        emitter.text.line(f"{type} {name}[{lanes}];")
        _fill(emitter, expr, found.base, lambda lane: f"{name}[{lane}]")
        return CppValue(name, storage_type(buffer.dtype))
    if is_packed(buffer):
        words = f"{fn.name_of(buffer.name)} + {word_index(offset_of_lane(emitter, buffer, found.base, 0))}"
    else:
        words = fn.fresh(f"{name}_words")
        emitter.text.line(f"{aligned_type('unsigned', lanes * 2)} {words}[{lanes // 2}];")
        _fill(emitter, expr, found.base, lambda lane: f"{words}[{lane // 2}]")
    emitter.text.line(f"float {name}[{lanes}];")
    emitter.text.line(f"{fn.use(f'unpack_{half_name(buffer.dtype)}')}<{lanes}>({words}, {name});")
    return CppValue(name, "float")


def _fill(emitter: AccessEmitter, expr: Load | ClusterLoad, base: Expr, cell: Callable[[int], str]) -> None:
    """Load ``expr`` by vector accesses into an array; ``cell`` gives the element of the array for a lane."""
    mask = expr.mask if isinstance(expr, Load) else None
    scalar = None if mask is None else uniform_mask(mask)
    test = None if scalar is None else emitter.value(scalar)
    for lane, size in vector_accesses([(expr.buffer, base)], expr.lanes):
        read = load_bits(emitter, expr, base, lane, size, test)
        emitter.text.line(f"*{emitter.fn.use('recast')}<{VECTOR_TYPES[size]}>(&{cell(lane)}) = {read};")


def load_bits(
    emitter: AccessEmitter, expr: Load | ClusterLoad, base: Expr, lane: int, size: int, test: CppValue | None
) -> str:
    """Return ``size`` bytes of a contiguous load, from lane ``lane`` on, in one access; zeros where ``test`` is
    false."""
    fn, buffer = emitter.fn, expr.buffer
    if buffer.scope is MemoryScope.SHARED and is_linear(buffer):
        pointer = folded_address(emitter, buffer, base + lane)
    else:
        at = offset_of_lane(emitter, buffer, base, lane)
        pointer = f"&{fn.name_of(buffer.name)}[{word_index(at)}]" if is_packed(buffer) else address(emitter, buffer, at)
    source = f"{fn.use('recast')}<{VECTOR_TYPES[size]}>({pointer})"
    if isinstance(expr, ClusterLoad):
        return f"{fn.use('ld_shared_cluster')}({source}, {emitter.value(expr.block).text})"
    read_only = buffer.scope is MemoryScope.GLOBAL and buffer.name in fn.read_only
    hints = "_no_allocate" if buffer.name in fn.evict_first else ""
    hints += "_line" if size < WIDEST_BYTES and brings_lines(fn, buffer) else ""
    if test is not None:
        if read_only and size >= 4:
            return f"{fn.use(f'ld_global{hints}_if')}({source}, {test.text})"
        zero = f"{VECTOR_TYPES[size]}{{}}" if size > 4 else f"({VECTOR_TYPES[size]})0"
        return f"{test.within(Precedence.LOGICAL_OR)} ? *{source} : {zero}"
    if read_only and size >= 4 and hints:
        return f"{fn.use(f'ld_global{hints}')}({source})"
    return f"*{source}"


def array_lane(emitter: AccessEmitter, array: CppValue, dtype: DType, lane: CppValue | None) -> CppValue:
    """Return one lane of an array that ``vector_load`` filled."""
    assert lane is not None
    cell = CppValue(f"{array.text}[{lane.text}]", array.type)
    return cell if is_half(dtype) else _to_compute_type(emitter.fn, cell, dtype)


def word_index(at: CppValue) -> str:
    """Return the index of the 32-bit word that begins with packed element ``at``, an even one."""
    if at.text.isdigit():
        return str(int(at.text) // 2)
    return f"{at.within(Precedence.MULTIPLICATIVE)} / 2"


def aligned_type(type: str, size: int) -> str:
    """Return the type in the declaration of an array, aligned for accesses as wide as its ``size`` in bytes allows."""
    for bytes in (16, 8, 4):
        if size >= bytes:
            return f"__align__({bytes}) {type}"
    return type
