"""Matrices are transposed by shuffles of whole registers. Dot products of neighbouring elements are here, too."""

from ...core.errors import CompileError
from ...ir.buffer import Buffer
from ...ir.cpu import DOT_ATOMS, Dot, Transpose
from ...ir.expr import Expr
from ...ir.linear_form import flat_form
from .expressions import evaluate
from .function_context import FunctionContext
from .memory import address
from .values import LlvmValue, storage, vector_type
from .writer import FunctionWriter

_DOTS = {
    "bf16": ("llvm.x86.avx512bf16.dpbf16ps", "bfloat", "float", 2),
    "u8s8": ("llvm.x86.avx512.vpdpbusd", "i8", "i32", 4),
    "s8u8": ("llvm.x86.avx512.vpdpbusd", "i8", "i32", 4),
}
"""This maps an atom to its intrinsic, the types of its factors and accumulators, and the factors per accumulator."""


def emit_transpose(ctx: FunctionContext, stmt: Transpose) -> None:
    """Transpose a matrix in registers. Rows are loaded whole and interleaved pairwise. Every power of two takes as many
    shuffles as there are rows.

        rows a0 a1 a2 a3  b0 b1 b2 b3   interleaved:  a0 b0 a1 b1  a2 b2 a3 b3
    """
    w, bits = ctx.w, stmt.unit * stmt.source.dtype.bits
    element = f"i{bits}"
    start = _pointer(ctx, stmt.source, stmt.source_indices)
    rows = [
        _load(w, start, r * stmt.source_pitch * stmt.source.dtype.bytes, element, stmt.columns, stmt.source.dtype.bytes)
        for r in range(stmt.rows)
    ]
    target = _pointer(ctx, stmt.target, stmt.target_indices)
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


def _interleaved(w: FunctionWriter, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    """Interleave two vectors: a0, b0, a1, b1, and so on."""
    return w.shuffle(a, b, [lane // 2 + (lane % 2) * a.lanes for lane in range(2 * a.lanes)])


def _half(w: FunctionWriter, a: LlvmValue, b: LlvmValue, *, upper: bool) -> LlvmValue:
    """Return one half of ``a`` and ``b`` interleaved."""
    first = a.lanes // 2 if upper else 0
    return w.shuffle(a, b, [first + lane // 2 + (lane % 2) * a.lanes for lane in range(a.lanes)])


def emit_dot(ctx: FunctionContext, stmt: Dot) -> None:
    """Write a dot product. Raises CompileError where the target has no such instruction of that width."""
    w, atom = ctx.w, DOT_ATOMS[stmt.atom]
    width = stmt.lanes * atom.accumulator.bits
    wide = {128: "avx512vl", 256: "avx512vl", 512: "avx512f"}.get(width, "")
    if not {atom.feature, wide} <= w.module.features:
        raise CompileError(f"{stmt.atom} in {stmt.lanes} lanes needs {atom.feature} and {wide or 'another width'}")
    name, factor, total, group = _DOTS[stmt.atom]
    d_at = _pointer(ctx, stmt.d, stmt.d_indices)
    a_at = _pointer(ctx, stmt.a, stmt.a_indices)
    b_at = _pointer(ctx, stmt.b, stmt.b_indices)
    d = _load(w, d_at, 0, total, stmt.lanes, atom.accumulator.bytes)
    pair = w.assign(f"load i32, {a_at.typed}, align {atom.left.bytes}", "i32", 1, stmt.a.name)
    a = _cast(w, w.splat(pair, stmt.lanes), factor, stmt.lanes * group)
    b = _load(w, b_at, 0, factor, stmt.lanes * group, atom.right.bytes)
    w.module.declare(f"declare {d.type} @{name}.{width}({d.type}, {a.type}, {b.type})")
    factors = [b, a] if atom.right.kind == "uint" else [a, b]  # the instruction takes bytes without a sign first
    _store(w, w.call(f"{name}.{width}", [d, *factors], total, stmt.lanes), d_at, 0, atom.accumulator.bytes)


def _cast(w: FunctionWriter, value: LlvmValue, element: str, lanes: int) -> LlvmValue:
    return w.assign(f"bitcast {value.typed} to {vector_type(element, lanes)}", element, lanes)


def _pointer(ctx: FunctionContext, buffer: Buffer, indices: tuple[Expr, ...]) -> LlvmValue:
    flat = flat_form(indices, buffer.strides)
    assert flat.is_strided and storage(buffer.dtype)
    return address(ctx, buffer, flat, evaluate)


def _load(w: FunctionWriter, start: LlvmValue, offset: int, element: str, lanes: int, align: int) -> LlvmValue:
    at = _offset_pointer(w, start, offset)
    return w.assign(f"load {vector_type(element, lanes)}, {at.typed}, align {align}", element, lanes)


def _store(w: FunctionWriter, value: LlvmValue, start: LlvmValue, offset: int, align: int) -> None:
    w.line(f"store {value.typed}, {_offset_pointer(w, start, offset).typed}, align {align}")


def _offset_pointer(w: FunctionWriter, start: LlvmValue, offset: int) -> LlvmValue:
    return w.assign(f"getelementptr i8, {start.typed}, i64 {offset}", "ptr") if offset else start
