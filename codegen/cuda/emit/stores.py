"""Stores: what is only moved goes as bits, in the widest accesses that both ends allow."""

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Broadcast, Cast, ClusterLoad, Expr, Load, walk
from ....ir.stmt import Store
from .access import WIDEST_BYTES, multiple_of, one_for_all, pieces
from .arithmetic import to_bits
from .expressions import Code, interned, uses_of
from .function import Function, is_packed
from .memory import address, aligned, base_offset, contiguous, half_of, offset, raw, read_piece
from .text import Text, Value
from .types import WIDE, computed, half_name, is_half, stored


def emit_store(fn: Function, text: Text, stmt: Store) -> None:
    """Write ``stmt``; where its mask is false nothing is computed, read or written."""
    roots = interned(*stmt.indices, stmt.value, *([] if stmt.mask is None else [stmt.mask]))
    count = len(stmt.indices)
    stmt = Store(stmt.buffer, roots[:count], roots[count], roots[count + 1] if stmt.mask is not None else None)
    code = Code(fn, text, uses_of(*roots))
    shared = None if stmt.mask is None else one_for_all(stmt.mask)
    if stmt.mask is not None and shared is None:
        _store_lane_by_lane(code, stmt)
        return
    if shared is None:
        _store(code, stmt)
        return
    code.ahead(stmt.value)
    test = code.value(shared)
    below = code.inner()
    _store(below, stmt)
    with text.block(f"if ({test.text})") as inside:
        inside.append(below.text)


def _lanes(stmt: Store) -> int:
    return max((i.lanes for i in stmt.indices), default=1)


def _store(code: Code, stmt: Store) -> None:
    lanes = _lanes(stmt)
    if lanes == 1:
        code.text.line(_assignment(code, stmt.buffer, stmt.indices, stmt.value))
        return
    place = contiguous(stmt.indices, stmt.buffer)
    if place is not None:
        if _move(code, stmt, place.base, lanes):
            return
        wide = max(size for _, size in pieces([(stmt.buffer, place.base)], lanes)) > stmt.buffer.dtype.bytes
        in_memory = stmt.buffer.scope not in (MemoryScope.REGISTER, MemoryScope.LOCAL)
        if wide and (in_memory or is_packed(stmt.buffer)) and _store_wide(code, stmt, place.base, lanes):
            return
    if _reads_elsewhere(stmt):
        array = code.array(stmt.value)
        loop = code.lanes()
        assert loop.lane is not None
        value = Value(f"{array}[{loop.lane.text}]", computed(stmt.value.dtype))
        line = _assigned(loop, stmt.buffer, stmt.indices, value, stmt.value)
        code.close(loop, lanes, line)
        return
    loop = code.lanes()
    code.close(loop, lanes, _assignment(loop, stmt.buffer, stmt.indices, stmt.value))


def _reads_elsewhere(stmt: Store) -> bool:
    """Whether a vector store's value reads its own buffer at other places than those stored to."""
    loads = (e for e in walk(stmt.value) if isinstance(e, Load) and e.buffer.name == stmt.buffer.name)
    return any(load.indices != stmt.indices for load in loads)


def _store_lane_by_lane(code: Code, stmt: Store) -> None:
    """Each lane under its own condition."""
    code.ahead(stmt.value)
    loop = code.lanes()
    assert stmt.mask is not None
    test = loop.value(stmt.mask)
    below = loop.inner()
    below.lazy = True
    below.text.line(_assignment(below, stmt.buffer, stmt.indices, stmt.value))
    with loop.text.block(f"if ({test.text})") as inside:
        inside.append(below.text)
    code.close(loop, _lanes(stmt))


def _assignment(code: Code, buffer: Buffer, indices: tuple[Expr, ...], value: Expr) -> str:
    """The statement that stores one element, or that of this lane."""
    if is_half(buffer.dtype):
        bits = raw(code, value)
        if bits is not None:
            return _set(code, buffer, indices, bits)
    inner, source = _unrounded(value)
    return _assigned(code, buffer, indices, code.value(inner), source)


def _unrounded(value: Expr) -> tuple[Expr, Expr]:
    """What a store to 16 bits rounds anyway: (the expression, one whose dtype it has)."""
    if isinstance(value, Broadcast):
        inner, source = _unrounded(value.value)
        return inner, source
    if is_half(value.dtype) and isinstance(value, Cast) and not is_half(value.value.dtype):
        return value.value, value.value
    return value, value


def _assigned(code: Code, buffer: Buffer, indices: tuple[Expr, ...], value: Value, source: Expr) -> str:
    if is_half(buffer.dtype):
        value = to_bits(code.fn, value, source.dtype, buffer.dtype)
    return _set(code, buffer, indices, value)


def _set(code: Code, buffer: Buffer, indices: tuple[Expr, ...], cell: Value) -> str:
    fn, name = code.fn, code.fn.name_of(buffer.name)
    at = offset(code, buffer, indices)
    if is_packed(buffer):
        return f"{fn.use('set_bits')}({name}, {at.text}, {cell.text});"
    if buffer.name in fn.evict_first and buffer.scope is MemoryScope.GLOBAL:
        type = stored(buffer.dtype)
        return f"__stcs(&{name}[{at.text}], ({type}){cell.unary});"
    return f"{name}[{at.text}] = {cell.text};"


def _move(code: Code, stmt: Store, base: Expr, lanes: int) -> bool:
    """A store of a load of the same dtype, both of neighbours: moved as bits. False where it is no such store."""
    load = stmt.value
    while isinstance(load, Cast) and load.value.dtype == load.dtype:
        load = load.value
    if not isinstance(load, (Load, ClusterLoad)) or load.lanes == 1 or load.buffer.name == stmt.buffer.name:
        return False
    mask = load.mask if isinstance(load, Load) else None
    shared = None if mask is None else one_for_all(mask)
    source = contiguous(load.indices, load.buffer)
    if source is None or (mask is not None and shared is None):
        return False
    parts = pieces([(stmt.buffer, base), (load.buffer, source.base)], lanes)
    if mask is None and is_packed(stmt.buffer) and isinstance(load, Load) and _is_run(code.fn, load, source.base):
        target = f"{code.fn.name_of(stmt.buffer.name)} + {half_of(base_offset(code, stmt.buffer, base, 0))}"
        run = f"{code.fn.name_of(load.buffer.name)}, {base_offset(code, load.buffer, source.base, 0).text}"
        code.text.line(f"{code.fn.use('load_run')}<{lanes // 2}>({target}, {run});")
        return True
    if mask is None and isinstance(load, Load) and _is_run(code.fn, load, source.base):
        if stmt.buffer.scope is MemoryScope.GLOBAL and pieces([(stmt.buffer, base)], lanes) == [(0, WIDEST_BYTES)]:
            at, piece = base_offset(code, load.buffer, source.base, 0), WIDEST_BYTES // load.buffer.dtype.bytes
            wide = f"{code.fn.name_of(load.buffer.name)}, {at.text}, {load.buffer.elements // piece * piece}"
            _write_piece(code, stmt.buffer, base, 0, WIDEST_BYTES, f"{code.fn.use('load_run_wide')}({wide})")
            return True
    least = 4 if is_packed(stmt.buffer) or is_packed(load.buffer) else 1
    if min(size for _, size in parts) < least or max(size for _, size in parts) == stmt.buffer.dtype.bytes:
        return False
    test = None if shared is None else code.value(shared)
    for lane, size in parts:
        read = read_piece(code, load, source.base, lane, size, test)
        _write_piece(code, stmt.buffer, base, lane, size, read)
    return True


def _is_run(fn: Function, load: Load, first: Expr) -> bool:
    """Whether neighbours of 16 bits, whole words of them, begin in global memory at any of them."""
    buffer = load.buffer
    readable = buffer.scope is MemoryScope.GLOBAL and buffer.name in fn.read_only and buffer.name not in fn.evict_first
    return readable and is_half(buffer.dtype) and load.lanes % 2 == 0 and multiple_of(first) % 2 == 1


def _write_piece(code: Code, buffer: Buffer, base: Expr, lane: int, size: int, bits: str) -> None:
    at = base_offset(code, buffer, base, lane)
    where = address(code, buffer, at)
    if is_packed(buffer):
        where = f"&{code.fn.name_of(buffer.name)}[{half_of(at)}]"
    pointer = f"{code.fn.use('as')}<{WIDE[size]}>({where})"
    if buffer.name in code.fn.evict_first and buffer.scope is MemoryScope.GLOBAL and size >= 4:
        code.text.line(f"__stcs({pointer}, {bits});")
    else:
        code.text.line(f"*{pointer} = {bits};")


def _store_wide(code: Code, stmt: Store, base: Expr, lanes: int) -> bool:
    """Neighbours computed into an array and stored in wide accesses. False where that is not possible."""
    fn, buffer = code.fn, stmt.buffer
    parts = pieces([(buffer, base)], lanes)
    if not is_half(buffer.dtype):
        array = _stored_array(code, stmt.value)
        for lane, size in parts:
            cell = f"*{code.fn.use('as')}<{WIDE[size]}>(&{array}[{lane}])"
            _write_piece(code, buffer, base, lane, size, cell)
        return True
    if min(size for _, size in parts) < 4:
        return False
    words = fn.name_of(buffer.name) if is_packed(buffer) else fn.fresh(f"{fn.name_of(buffer.name)}_words")
    target = f"{words} + {half_of(base_offset(code, buffer, base, 0))}" if is_packed(buffer) else words
    if not is_packed(buffer):
        code.text.line(f"{aligned('unsigned', lanes * 2)} {words}[{lanes // 2}];")
    loop = code.lanes()
    bits = raw(loop, stmt.value)
    if bits is not None:
        assert loop.lane is not None
        code.close(loop, lanes, f"{fn.use('set_bits')}({target}, {loop.lane.text}, {bits.text});")
    else:
        value, source = _unrounded(stmt.value)
        if source.dtype.is_float and source.dtype.bits <= 32:
            array = code.array(value if value.lanes > 1 else Broadcast(value, lanes))
            code.text.line(f"{fn.use(f'pack_{half_name(buffer.dtype)}')}<{lanes}>({array}, {target});")
        else:
            loop = code.lanes()
            assert loop.lane is not None
            bits = to_bits(fn, loop.value(value), source.dtype, buffer.dtype)
            code.close(loop, lanes, f"{fn.use('set_bits')}({target}, {loop.lane.text}, {bits.text});")
    if not is_packed(buffer):
        for lane, size in parts:
            cell = f"*{code.fn.use('as')}<{WIDE[size]}>(&{words}[{lane // 2}])"
            _write_piece(code, buffer, base, lane, size, cell)
    return True


def _stored_array(code: Code, value: Expr) -> str:
    """The lanes of a vector as they are stored, in an array that can be read in wide accesses."""
    loop = code.lanes()
    result = loop.value(value)
    assert loop.lane is not None
    array = code.fn.fresh("r")
    size = value.lanes * value.dtype.bytes
    code.text.line(f"{aligned(stored(value.dtype), size)} {array}[{value.lanes}];")
    code.close(loop, value.lanes, f"{array}[{loop.lane.text}] = {result.text};")
    return array
