"""Writes stores. What is only moved is copied as bits, in the widest accesses that both ends allow."""

from ....core.dtypes import INDEX
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import (
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    ClusterLoad,
    Compare,
    CompareOp,
    Expr,
    Load,
    logical_and,
    walk,
)
from ....ir.linear_form import LinearForm, linear_form
from ....ir.rewrite import free_variables
from ....ir.stmt import Store
from ...passes.conditions import conjuncts
from .access import WIDEST_BYTES, divisibility, uniform_mask, vector_accesses, with_shared_divisions
from .arithmetic import to_bits
from .exact_halves import ExactHalves
from .expressions import ExpressionEmitter, interned, use_counts
from .function import EmittedFunction, is_packed
from .memory import address, aligned_type, contiguous, load_bits, offset, offset_of_lane, raw_bits, word_index
from .text import CppText, CppValue
from .types import VECTOR_TYPES, compute_type, half_name, is_half, storage_type

_WORD_BYTES = 4
"""A register holds this many bytes, which are two packed elements."""


def emit_store(fn: EmittedFunction, text: CppText, stmt: Store) -> None:
    """Write ``stmt``. Where its mask is false nothing is computed, read or written."""
    roots = interned(*with_shared_divisions(*stmt.indices, stmt.value, *([] if stmt.mask is None else [stmt.mask])))
    count = len(stmt.indices)
    stmt = Store(stmt.buffer, roots[:count], roots[count], roots[count + 1] if stmt.mask is not None else None)
    emitter = ExpressionEmitter(fn, text, use_counts(*roots))
    scalar = None if stmt.mask is None else uniform_mask(stmt.mask)
    if stmt.mask is not None and scalar is None:
        _store_under_masks(emitter, stmt)
        return
    if scalar is None:
        _store(emitter, stmt)
        return
    emitter.hoist_shuffles(stmt.value)
    test = emitter.value(scalar)
    below = emitter.inner()
    _store(below, stmt)
    with text.block(f"if ({test.text})") as inside:
        inside.append(below.text)


def _lanes(stmt: Store) -> int:
    return max((i.lanes for i in stmt.indices), default=1)


def _store(emitter: ExpressionEmitter, stmt: Store) -> None:
    """Write ``stmt`` without its mask: as a copy of bits, by vector accesses, or lane by lane."""
    lanes = _lanes(stmt)
    if lanes == 1:
        emitter.text.line(_store_element(emitter, stmt.buffer, stmt.indices, stmt.value))
        return
    target = contiguous(stmt.indices, stmt.buffer)
    if target is not None:
        if _copy_bits(emitter, stmt, target.base, lanes):
            return
        widest = max(size for _, size in vector_accesses([(stmt.buffer, target.base)], lanes))
        in_memory = stmt.buffer.scope not in (MemoryScope.REGISTER, MemoryScope.LOCAL)
        if widest > stmt.buffer.dtype.bytes and (in_memory or is_packed(stmt.buffer)):
            if _store_vector(emitter, stmt, target.base, lanes):
                return
    if _reads_other_elements(stmt):
        array = emitter.array(stmt.value)
        loop = emitter.lane_loop()
        assert loop.lane is not None
        value = CppValue(f"{array}[{loop.lane.text}]", compute_type(stmt.value.dtype))
        line = _store_rounded(loop, stmt.buffer, stmt.indices, value, stmt.value)
        emitter.end_lane_loop(loop, lanes, line)
        return
    loop = emitter.lane_loop()
    emitter.end_lane_loop(loop, lanes, _store_element(loop, stmt.buffer, stmt.indices, stmt.value))


def _reads_other_elements(stmt: Store) -> bool:
    """Return whether the value of a vector store reads elements of the same buffer that other lanes may store to."""
    loads = (e for e in walk(stmt.value) if isinstance(e, Load) and e.buffer.name == stmt.buffer.name)
    return any(load.indices != stmt.indices for load in loads)


def _store_under_masks(emitter: ExpressionEmitter, stmt: Store) -> None:
    """Write a vector store lane by lane, each under its own condition."""
    emitter.hoist_shuffles(stmt.value)
    loop = emitter.lane_loop()
    assert stmt.mask is not None
    test = loop.value(stmt.mask)
    below = loop.inner()
    below.guarded = True
    below.text.line(_store_element(below, stmt.buffer, stmt.indices, stmt.value))
    with loop.text.block(f"if ({test.text})") as inside:
        inside.append(below.text)
    emitter.end_lane_loop(loop, _lanes(stmt))


# Single elements


def _store_element(emitter: ExpressionEmitter, buffer: Buffer, indices: tuple[Expr, ...], value: Expr) -> str:
    """Return the statement that stores one element, or that of this lane."""
    if is_half(buffer.dtype) or buffer.dtype.is_float8:
        bits = raw_bits(emitter, value)
        if bits is not None:
            return _store_cell(emitter, buffer, indices, bits)
    inner, source = _without_rounding(value)
    return _store_rounded(emitter, buffer, indices, emitter.value(inner), source)


def _without_rounding(value: Expr) -> tuple[Expr, Expr]:
    """Return ``value`` without a cast that a store to 16 bits repeats, and an expression whose dtype that has."""
    if isinstance(value, Broadcast):
        inner, source = _without_rounding(value.value)
        return inner, source
    if is_half(value.dtype) and isinstance(value, Cast) and not is_half(value.value.dtype):
        return value.value, value.value
    return value, value


def _store_rounded(
    emitter: ExpressionEmitter, buffer: Buffer, indices: tuple[Expr, ...], value: CppValue, source: Expr
) -> str:
    """Return the statement that stores ``value``, which has the dtype of ``source``, in the dtype of the buffer."""
    if is_half(buffer.dtype) or buffer.dtype.is_float8:
        value = to_bits(emitter.fn, value, source.dtype, buffer.dtype)
    return _store_cell(emitter, buffer, indices, value)


def _store_cell(emitter: ExpressionEmitter, buffer: Buffer, indices: tuple[Expr, ...], cell: CppValue) -> str:
    """Return the statement that stores ``cell``, which has the storage type of the buffer."""
    fn, name = emitter.fn, emitter.fn.name_of(buffer.name)
    at = offset(emitter, buffer, indices)
    if is_packed(buffer):
        return f"{fn.use('insert_u16')}({name}, {at.text}, {cell.text});"
    if buffer.name in fn.evict_first and buffer.scope is MemoryScope.GLOBAL:
        type = storage_type(buffer.dtype)
        return f"__stcs(&{name}[{at.text}], ({type}){cell.unary});"
    return f"{name}[{at.text}] = {cell.text};"


# Vectors of contiguous elements


def _copy_bits(emitter: ExpressionEmitter, stmt: Store, base: Expr, lanes: int) -> bool:
    """Write a store of a contiguous load of the same dtype as a copy of bits. False where it is no such store."""
    load = stmt.value
    while isinstance(load, Cast) and load.value.dtype == load.dtype:
        load = load.value
    if not isinstance(load, (Load, ClusterLoad)) or load.lanes == 1 or load.buffer.name == stmt.buffer.name:
        return False
    mask = load.mask if isinstance(load, Load) else None
    scalar = None if mask is None else uniform_mask(mask)
    source = contiguous(load.indices, load.buffer)
    if source is None:
        return False
    if mask is not None and scalar is None:
        return isinstance(load, Load) and _copy_first(emitter, stmt.buffer, base, load, source.base)
    if isinstance(load, Load) and _is_unaligned(emitter.fn, load, source.base):
        if _copy_unaligned(emitter, stmt.buffer, base, load, source.base):
            return True
    accesses = vector_accesses([(stmt.buffer, base), (load.buffer, source.base)], lanes)
    least = _WORD_BYTES if is_packed(stmt.buffer) or is_packed(load.buffer) else 1
    if min(size for _, size in accesses) < least or max(size for _, size in accesses) == stmt.buffer.dtype.bytes:
        return False
    test = None if scalar is None else emitter.value(scalar)
    for lane, size in accesses:
        _store_bits(emitter, stmt.buffer, base, lane, size, load_bits(emitter, load, source.base, lane, size, test))
    return True


def _is_unaligned(fn: EmittedFunction, load: Load, first: Expr) -> bool:
    """Return whether a load without a mask takes pairs of 16-bit elements from read-only global memory, at an offset
    that may be odd."""
    buffer = load.buffer
    readable = buffer.scope is MemoryScope.GLOBAL and buffer.name in fn.read_only
    is_pairs = is_half(buffer.dtype) and load.lanes % 2 == 0 and load.mask is None
    return readable and is_pairs and divisibility(first) % 2 == 1


def _copy_unaligned(emitter: ExpressionEmitter, target: Buffer, base: Expr, load: Load, first: Expr) -> bool:
    """Copy from an unaligned offset to registers, or to an aligned vector of global memory. False for other targets."""
    fn, lanes, chunk = emitter.fn, load.lanes, WIDEST_BYTES // load.buffer.dtype.bytes
    name, whole = fn.name_of(load.buffer.name), load.buffer.elements // chunk * chunk
    in_whole_chunks = fn.ranges.of(first).high + lanes <= whole
    aligned = all(size == WIDEST_BYTES for _, size in vector_accesses([(target, base)], lanes))
    if aligned and (in_whole_chunks if is_packed(target) else target.scope is MemoryScope.GLOBAL and lanes == chunk):
        for lane in range(0, lanes, chunk):
            at = offset_of_lane(emitter, load.buffer, first, lane).text
            bits = f"{fn.use('load_unaligned_x8')}({name}, {at})"
            if not in_whole_chunks:
                bits = f"{fn.use('load_unaligned_x8_before')}({name}, {at}, {whole})"
            _store_bits(emitter, target, base, lane, WIDEST_BYTES, bits)
        return True
    if is_packed(target):
        words = f"{fn.name_of(target.name)} + {word_index(offset_of_lane(emitter, target, base, 0))}"
        source = f"{name}, {offset_of_lane(emitter, load.buffer, first, 0).text}"
        emitter.text.line(f"{fn.use('load_unaligned')}<{lanes // 2}>({words}, {source});")
        return True
    return False


def _copy_first(emitter: ExpressionEmitter, target: Buffer, base: Expr, load: Load, first: Expr) -> bool:
    """Copy the first elements of a vector, as many as its mask says, from any offset to registers; the others become
    zeros. False for other targets, and where the mask may keep elements of the last chunk of the buffer, which may not
    be whole."""
    fn, chunk = emitter.fn, WIDEST_BYTES // load.buffer.dtype.bytes
    readable = load.buffer.scope is MemoryScope.GLOBAL and load.buffer.name in fn.read_only
    unaligned = load.lanes == chunk and divisibility(first) % chunk != 0
    if not is_packed(target) or not readable or not unaligned or load.mask is None:
        return False
    if [size for _, size in vector_accesses([(target, base)], chunk)] != [WIDEST_BYTES]:
        return False
    tests, counts, offset_form = list[Expr](), list[Expr](), linear_form(first)
    elements = load.buffer.elements
    whole = elements if elements % chunk == 0 else None
    for term in conjuncts(load.mask):
        uniform, found = uniform_mask(term), _counted(term)
        if uniform is not None:
            tests.append(uniform)
        elif found is None:
            return False
        elif (end := found + offset_form).is_constant and end.constant % chunk == 0:
            whole = end.constant if whole is None else min(whole, end.constant)
        else:
            counts.append(found.to_expr())
    if whole is None or whole > elements or len(counts) != 1:
        return False
    test = emitter.value(logical_and(*tests)).text if tests else "true"
    step, rest = _known_chunks(fn, offset_form, chunk)
    at = f"{emitter.value(rest).text}, {emitter.value(step).text}"
    given = f"{fn.name_of(load.buffer.name)}, {at}, {test}, {emitter.value(counts[0]).text}, {whole}"
    bits = f"{fn.use('load_unaligned_x8_first')}({given})"
    _store_bits(emitter, target, base, 0, WIDEST_BYTES, bits)
    return True


def _known_chunks(fn: EmittedFunction, form: LinearForm, chunk: int) -> tuple[Expr, Expr]:
    """Split an offset into a multiple of ``chunk`` that is known once loops are unrolled, and the rest. The rest alone
    takes registers."""
    known = form.only({t for t, c in form.terms.items() if c % chunk == 0 and free_variables(t) <= fn.unrolled})
    known = known + form.constant // chunk * chunk
    return known.to_expr(), (form - known).to_expr()


def _counted(term: Expr) -> LinearForm | None:
    """Return how many lanes come first of which ``term`` holds, where it is ``begin + lane < end``; None for any other
    condition. The number may be negative, or more than there are."""
    if not isinstance(term, Compare) or term.op is not CompareOp.LT or term.a.dtype != INDEX:
        return None
    form = linear_form(term.b) - linear_form(term.a)
    return form.base if form.is_strided and form.stride == -1 else None


def _store_bits(emitter: ExpressionEmitter, buffer: Buffer, base: Expr, lane: int, size: int, bits: str) -> None:
    """Write one access: ``size`` bytes from lane ``lane`` on of a vector whose first lane is at offset ``base``."""
    at = offset_of_lane(emitter, buffer, base, lane)
    where = address(emitter, buffer, at)
    if is_packed(buffer):
        where = f"&{emitter.fn.name_of(buffer.name)}[{word_index(at)}]"
    pointer = f"{emitter.fn.use('recast')}<{VECTOR_TYPES[size]}>({where})"
    if buffer.name in emitter.fn.evict_first and buffer.scope is MemoryScope.GLOBAL and size >= _WORD_BYTES:
        emitter.text.line(f"__stcs({pointer}, {bits});")
    else:
        emitter.text.line(f"*{pointer} = {bits};")


def _store_vector(emitter: ExpressionEmitter, stmt: Store, base: Expr, lanes: int) -> bool:
    """Compute contiguous elements into an array and store it by vector accesses. False where that is not possible."""
    fn, buffer = emitter.fn, stmt.buffer
    accesses = vector_accesses([(buffer, base)], lanes)
    if not is_half(buffer.dtype):
        array = _storage_array(emitter, stmt.value)
        for lane, size in accesses:
            bits = f"*{fn.use('recast')}<{VECTOR_TYPES[size]}>(&{array}[{lane}])"
            _store_bits(emitter, buffer, base, lane, size, bits)
        return True
    if min(size for _, size in accesses) < _WORD_BYTES:
        return False
    if is_packed(buffer):
        words = fn.name_of(buffer.name)
        if _store_pairs(emitter, stmt, base, lanes) or _store_exact(emitter, stmt, base, lanes):
            return True
        _pack(emitter, stmt.value, lanes, buffer, f"{words} + {word_index(offset_of_lane(emitter, buffer, base, 0))}")
        return True
    words = fn.fresh(f"{fn.name_of(buffer.name)}_words")
    emitter.text.line(f"{aligned_type('unsigned', lanes * 2)} {words}[{lanes // 2}];")
    _pack(emitter, stmt.value, lanes, buffer, words)
    for lane, size in accesses:
        bits = f"*{fn.use('recast')}<{VECTOR_TYPES[size]}>(&{words}[{lane // 2}])"
        _store_bits(emitter, buffer, base, lane, size, bits)
    return True


def _store_pairs(emitter: ExpressionEmitter, stmt: Store, base: Expr, lanes: int) -> bool:
    """Write the minimum or maximum of packed registers, two elements at a time. False for any other value, and where
    there is no such instruction."""
    value, fn = stmt.value, emitter.fn
    if not isinstance(value, Binary) or value.op not in (BinaryOp.MIN, BinaryOp.MAX) or fn.capability < 80:
        return False
    starts = [(stmt.buffer, base)]
    for load in (value.a, value.b):
        if not isinstance(load, Load) or not is_packed(load.buffer) or load.buffer.dtype != stmt.buffer.dtype:
            return False
        source = contiguous(load.indices, load.buffer)
        if source is None or load.mask is not None or load.lanes != lanes:
            return False
        starts.append((load.buffer, source.base))
    if any(size < _WORD_BYTES for _, size in vector_accesses(starts, lanes)):
        return False
    function = fn.use(f"{value.op.value}_nan_{half_name(stmt.buffer.dtype)}2")
    for lane in range(0, lanes, 2):
        words = (word_index(offset_of_lane(emitter, buffer, first, lane)) for buffer, first in starts)
        target, *sources = (f"{fn.name_of(b.name)}[{word}]" for (b, _), word in zip(starts, words, strict=True))
        emitter.text.line(f"{target} = {function}({', '.join(sources)});")
    return True


def _store_exact(emitter: ExpressionEmitter, stmt: Store, base: Expr, lanes: int) -> bool:
    """Write arithmetic on floats of 16 bits that gives what is computed in float32 and rounded, two elements at a time.
    False where it would be another value."""
    if not is_half(stmt.buffer.dtype) or lanes % 2:
        return False
    below = emitter.inner()
    for lane in range(0, lanes, 2):
        word = ExactHalves(below, lane, stmt.buffer.dtype).rounded(stmt.value)
        if word is None:
            return False
        at = word_index(offset_of_lane(below, stmt.buffer, base, lane))
        below.text.line(f"{emitter.fn.name_of(stmt.buffer.name)}[{at}] = {word};")
    emitter.text.append(below.text)
    return True


def _pack(emitter: ExpressionEmitter, value: Expr, lanes: int, buffer: Buffer, words: str) -> None:
    """Write the lanes of ``value``, as 16-bit elements of ``buffer``, into ``words``, two in each."""
    fn = emitter.fn
    loop = emitter.lane_loop()
    bits = raw_bits(loop, value)
    if bits is None:
        inner, source = _without_rounding(value)
        if source.dtype.is_float and source.dtype.bits <= 32:
            array = emitter.array(inner if inner.lanes > 1 else Broadcast(inner, lanes))
            emitter.text.line(f"{fn.use(f'pack_{half_name(buffer.dtype)}')}<{lanes}>({array}, {words});")
            return
        loop = emitter.lane_loop()
        bits = to_bits(fn, loop.value(inner), source.dtype, buffer.dtype)
    assert loop.lane is not None
    emitter.end_lane_loop(loop, lanes, f"{fn.use('insert_u16')}({words}, {loop.lane.text}, {bits.text});")


def _storage_array(emitter: ExpressionEmitter, value: Expr) -> str:
    """Fill an array with the lanes of a vector, aligned for vector accesses, and return its name."""
    loop = emitter.lane_loop()
    result = raw_bits(loop, value) if value.dtype.is_float8 else None
    result = loop.value(value) if result is None else result
    assert loop.lane is not None
    array = emitter.fn.fresh("r")
    type = aligned_type(storage_type(value.dtype), value.lanes * value.dtype.bytes)
    emitter.text.line(f"{type} {array}[{value.lanes}];")
    emitter.end_lane_loop(loop, value.lanes, f"{array}[{loop.lane.text}] = {result.text};")
    return array
