"""Writes operations on tensor memory (``tcgen05``)."""

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr
from ....ir.gpu.tcgen05 import (
    BLOCK_SCALED_ATOMS,
    SCALE_COLUMNS,
    SCALE_ROWS,
    TCGEN05_ATOMS,
    BlockScaledMma,
    TensorMemoryAllocate,
    TensorMemoryCommit,
    TensorMemoryCopy,
    TensorMemoryDeallocate,
    TensorMemoryLoad,
    TensorMemoryMma,
)
from ....ir.gpu.wgmma import LINE_BYTES
from ..prelude.tcgen05 import LOADED_COLUMNS, block_scaled_name, load_name, mma_name
from ..tcgen05_descriptors import block_scaled_descriptor, instruction_descriptor, matrix_descriptor, scales_descriptor
from .expressions import ExpressionEmitter
from .memory import address, mbarrier_address, unswizzled_offset
from .mma import ONE_ROW_LEADING_BYTES, flag, fragment_pointer

_LANE_SHIFT = 16
"""An address in tensor memory has its lane in the upper half of 32 bits, and its column in the lower half."""


def emit_tcgen05(
    emitter: ExpressionEmitter,
    stmt: TensorMemoryAllocate | TensorMemoryDeallocate | TensorMemoryMma | TensorMemoryCommit,
) -> str:
    """Return the C++ statement of ``stmt``. Raises CompileError where there is no tensor memory."""
    fn = emitter.fn
    match stmt:
        case TensorMemoryAllocate(buffer=buffer):
            allocate = fn.use_sm_100a("tensor_memory_allocate")
            return f"{fn.name_of(buffer.name)} = {allocate}<{buffer.shape[-1]}>({fn.name_of(stmt.address.name)});"
        case TensorMemoryDeallocate(buffer=buffer):
            deallocate = fn.use_sm_100a("tensor_memory_deallocate")
            return f"{deallocate}<{buffer.shape[-1]}>({fn.name_of(buffer.name)});"
        case TensorMemoryCommit(multicast=multicast):
            barrier = mbarrier_address(emitter, stmt.barriers, stmt.index)
            if multicast is None:
                return f"{fn.use_sm_100a('tcgen05_commit')}({barrier});"
            return f"{fn.use_sm_100a('tcgen05_commit_multicast')}({barrier}, {emitter.value(multicast).text});"
        case TensorMemoryMma():
            return _mma(emitter, stmt)


def emit_load(emitter: ExpressionEmitter, stmt: TensorMemoryLoad) -> str:
    """Return the C++ statements of a load, one for each power of two of columns."""
    fn, done, text = emitter.fn, 0, list[str]()
    target, source = (
        fragment_pointer(emitter, stmt.target, stmt.target_indices, 1),
        _address(emitter, stmt.source, stmt.source_indices),
    )
    for columns in reversed(LOADED_COLUMNS):
        while stmt.columns - done >= columns:
            load = fn.use_sm_100a(load_name(columns, stmt.target.dtype.is_float))
            text.append(f"{load}({_plus(target, done // 2)}, {_plus(source, done)});")
            done += columns
    return " ".join(text)


def _mma(emitter: ExpressionEmitter, stmt: TensorMemoryMma) -> str:
    atom = TCGEN05_ATOMS[stmt.a.dtype.name, stmt.b.dtype.name]
    function = emitter.fn.use_sm_100a(mma_name(atom.kind))
    instruction = instruction_descriptor(atom, stmt.m, stmt.n, stmt.a_transposed, stmt.b_transposed)
    given = ", ".join(
        [
            _address(emitter, stmt.d, stmt.d_indices),
            _descriptor(emitter, stmt.a, stmt.a_indices, stmt.a_transposed),
            _descriptor(emitter, stmt.b, stmt.b_indices, stmt.b_transposed),
            f"0x{instruction:08x}",
        ]
    )
    flags = f"{stmt.k}, {flag(stmt.a_transposed)}, {flag(stmt.b_transposed)}"
    match stmt.accumulates:
        case Expr() as expr:
            return f"{function}<{flags}>({given}, {emitter.value(expr).text});"
        case True:
            return f"{function}<{flags}>({given});"
    return f"{function}<{flags}>({given}, false);"


def emit_copy(emitter: ExpressionEmitter, stmt: TensorMemoryCopy) -> str:
    """Return the C++ statement of a copy of scales."""
    fn, target = emitter.fn, _address(emitter, stmt.target, stmt.target_indices)
    source = address(emitter, stmt.source, unswizzled_offset(emitter, stmt.source, stmt.source_indices))
    descriptor = f"{fn.use('tcgen05_descriptor')}({source}, 0x{scales_descriptor():016x})"
    return f"{fn.use_sm_100a('tcgen05_cp')}<{stmt.chunks}>({target}, {descriptor});"


def emit_block_scaled(emitter: ExpressionEmitter, stmt: BlockScaledMma) -> str:
    """Return the C++ statement of a block-scaled product."""
    atom = BLOCK_SCALED_ATOMS[stmt.atom]
    function = emitter.fn.use_sm_100a(block_scaled_name(atom.kind))
    instruction = block_scaled_descriptor(atom, stmt.n, stmt.a.dtype, stmt.b.dtype)
    given = [
        _address(emitter, stmt.d, stmt.d_indices),
        _descriptor(emitter, stmt.a, stmt.a_indices, False),
        _descriptor(emitter, stmt.b, stmt.b_indices, False),
        f"0x{instruction:08x}",
        _address(emitter, stmt.a_scales, stmt.a_scales_indices),
        _address(emitter, stmt.b_scales, stmt.b_scales_indices),
    ]
    if stmt.accumulates is not True:
        given.append(emitter.value(stmt.accumulates).text if isinstance(stmt.accumulates, Expr) else "false")
    columns = (SCALE_COLUMNS, -(-stmt.n // SCALE_ROWS) * SCALE_COLUMNS)
    return f"{function}<{stmt.k}, {columns[0]}, {columns[1]}>({', '.join(given)});"


def _descriptor(emitter: ExpressionEmitter, buffer: Buffer, indices: tuple[Expr, ...], mn_major: bool) -> str:
    """Return the shared-memory descriptor of an operand, whose first line has a number that 8 divides."""
    leading = ONE_ROW_LEADING_BYTES
    if mn_major and len(buffer.shape) > 2:
        leading = buffer.strides[-3] * buffer.dtype.bytes
    layout = matrix_descriptor(leading, 8 * LINE_BYTES)
    tile = address(emitter, buffer, unswizzled_offset(emitter, buffer, indices))
    return f"{emitter.fn.use('tcgen05_descriptor')}({tile}, 0x{layout:016x})"


def _address(emitter: ExpressionEmitter, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
    """Return the address of an element of tensor memory."""
    assert buffer.scope is MemoryScope.TENSOR
    lane, column = (emitter.value(i).text for i in indices)
    name = emitter.fn.name_of(buffer.name)
    return _plus(_plus(name, int(lane) << _LANE_SHIFT), column)


def _plus(text: str, more: int | str) -> str:
    return text if str(more) == "0" else f"{text} + {more}"
