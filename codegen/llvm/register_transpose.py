"""Blocks turned by shuffles of whole registers, and dot products of neighbours."""

from ...core.errors import CompileError
from ...ir.buffer import Buffer
from ...ir.cpu import DOT_ATOMS, Dot, Transpose
from ...ir.expr import Expr
from ...ir.linear_form import flat_form
from .body import Body
from .expressions import evaluate
from .memory import address
from .values import Value, vector_type
from .writer import FunctionWriter

_DOTS = {
    "bf16": ("llvm.x86.avx512bf16.dpbf16ps", "bfloat", "float", 2),
    "u8s8": ("llvm.x86.avx512.vpdpbusd", "i8", "i32", 4),
}
"""Atom -> intrinsic, its factors and sums, how many factors a sum takes."""


def emit_transpose(body: Body, stmt: Transpose) -> None:
    """Rows are loaded whole and shuffled pairwise; as many shuffles as there are rows, for each power of two."""
    w, bits = body.w, stmt.unit * stmt.source.dtype.bits
    element = f"i{bits}"
    start = _pointer(body, stmt.source, stmt.source_indices)
    rows = [
        _load(w, start, r * stmt.source_pitch * stmt.source.dtype.bytes, element, stmt.columns, stmt.source.dtype.bytes)
        for r in range(stmt.rows)
    ]
    target = _pointer(body, stmt.target, stmt.target_indices)
    size = stmt.target.dtype.bytes
    if stmt.rows != stmt.columns:
        while len(rows) > 1:
            half = len(rows) // 2
            rows = [_interleaved(w, a, b) for a, b in zip(rows[:half], rows[half:], strict=True)]
        _store(w, rows[0], target, 0, size)
        return
    for _ in range(stmt.rows.bit_length() - 1):
        half = stmt.rows // 2
        pairs = list(zip(rows[:half], rows[half:], strict=True))
        rows = [x for a, b in pairs for x in (_half(w, a, b, upper=False), _half(w, a, b, upper=True))]
    for c, row in enumerate(rows):
        _store(w, row, target, c * stmt.target_pitch * size, size)


def _interleaved(w: FunctionWriter, a: Value, b: Value) -> Value:
    """a0, b0, a1, b1, ..."""
    return w.shuffle(a, b, [lane // 2 + (lane % 2) * a.lanes for lane in range(2 * a.lanes)])


def _half(w: FunctionWriter, a: Value, b: Value, *, upper: bool) -> Value:
    """One half of ``a`` and ``b`` interleaved."""
    first = a.lanes // 2 if upper else 0
    return w.shuffle(a, b, [first + lane // 2 + (lane % 2) * a.lanes for lane in range(a.lanes)])


def emit_dot(body: Body, stmt: Dot) -> None:
    """Raises CompileError where the target has no such instruction of that width."""
    w, atom = body.w, DOT_ATOMS[stmt.atom]
    width = stmt.lanes * atom.accumulator.bits
    wide = {128: "avx512vl", 256: "avx512vl", 512: "avx512f"}.get(width, "")
    if not {atom.feature, wide} <= w.module.features:
        raise CompileError(f"{stmt.atom} in {stmt.lanes} lanes needs {atom.feature} and {wide or 'another width'}")
    name, factor, total, group = _DOTS[stmt.atom]
    d_at = _pointer(body, stmt.d, stmt.d_indices)
    a_at = _pointer(body, stmt.a, stmt.a_indices)
    b_at = _pointer(body, stmt.b, stmt.b_indices)
    d = _load(w, d_at, 0, total, stmt.lanes, atom.accumulator.bytes)
    pair = w.assign(f"load i32, {a_at.typed}, align {atom.left.bytes}", "i32", 1, stmt.a.name)
    a = _cast(w, w.splat(pair, stmt.lanes), factor, stmt.lanes * group)
    b = _load(w, b_at, 0, factor, stmt.lanes * group, atom.right.bytes)
    w.module.declare(f"declare {d.type} @{name}.{width}({d.type}, {a.type}, {b.type})")
    _store(w, w.call(f"{name}.{width}", [d, a, b], total, stmt.lanes), d_at, 0, atom.accumulator.bytes)


def _cast(w: FunctionWriter, value: Value, element: str, lanes: int) -> Value:
    return w.assign(f"bitcast {value.typed} to {vector_type(element, lanes)}", element, lanes)


def _pointer(body: Body, buffer: Buffer, indices: tuple[Expr, ...]) -> Value:
    return address(body, buffer, flat_form(indices, buffer.strides), evaluate)


def _load(w: FunctionWriter, start: Value, offset: int, element: str, lanes: int, align: int) -> Value:
    at = _behind(w, start, offset)
    return w.assign(f"load {vector_type(element, lanes)}, {at.typed}, align {align}", element, lanes)


def _store(w: FunctionWriter, value: Value, start: Value, offset: int, align: int) -> None:
    w.line(f"store {value.typed}, {_behind(w, start, offset).typed}, align {align}")


def _behind(w: FunctionWriter, start: Value, offset: int) -> Value:
    return w.assign(f"getelementptr i8, {start.typed}, i64 {offset}", "ptr") if offset else start
