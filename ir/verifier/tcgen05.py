"""The verifier's rules for ``tcgen05``: tensor memory, and matrix instructions that accumulate in it."""

from collections.abc import Callable
from typing import Any

from ...core.dtypes import INDEX, DType, boolean, float8_e4m3fn, float32, int32, uint8
from ..buffer import Buffer, MemoryScope
from ..expr import Const, Expr
from ..gpu.tcgen05 import (
    BLOCK_SCALED_ATOMS,
    CHUNK_BYTES,
    HALF_LANES,
    LEAST_COLUMNS,
    MOST_MMA_N,
    SCALE_COLUMNS,
    SCALE_ROWS,
    SCALES_PER_COLUMN,
    TCGEN05_ATOMS,
    TENSOR_COLUMNS,
    TENSOR_LANES,
    BlockScaledAtom,
    BlockScaledMma,
    Tcgen05Atom,
    TensorMemoryAllocate,
    TensorMemoryCommit,
    TensorMemoryCopy,
    TensorMemoryDeallocate,
    TensorMemoryLoad,
    TensorMemoryMma,
)
from ..gpu.wgmma import LINE_BYTES
from ..linear_form import affine_form
from ..stmt import Allocate, Launch, Operation, walk_statements
from .mbarrier import check_cluster_operand
from .operands import (
    check_aligned,
    check_contiguous,
    check_element,
    check_fragment,
    check_matrix_operand,
    check_mbarrier,
)
from .types import BoundNames, RuleBroken, type_of

ALLOCATIONS = tuple(1 << n for n in range(LEAST_COLUMNS.bit_length() - 1, TENSOR_COLUMNS.bit_length()))
"""How many columns an allocation may have (PTX ISA, "tcgen05.alloc")."""


def check_tensor_memory(launch: Launch) -> None:
    """Raise unless every buffer in tensor memory of a launch has a shape that can be allocated, one statement allocates
    it and one deallocates it, and all of them fit."""
    buffers = [
        s.buffer
        for s in walk_statements(launch.body)
        if isinstance(s, Allocate) and s.buffer.scope is MemoryScope.TENSOR
    ]
    for buffer in buffers:
        _check_buffer(buffer)
        for kind, done in ((TensorMemoryAllocate, "allocated"), (TensorMemoryDeallocate, "deallocated")):
            count = sum(isinstance(s, kind) and s.buffer == buffer for s in walk_statements(launch.body))
            if count != 1:
                raise RuleBroken("tensor memory", f"{buffer.name} is {done} by {count} statements, not by one")
    columns = sum(buffer.shape[-1] for buffer in buffers)
    if columns > TENSOR_COLUMNS:
        raise RuleBroken("tensor memory", f"a block has {columns} columns; a multiprocessor has {TENSOR_COLUMNS}")


def _check_buffer(buffer: Buffer) -> None:
    """Raise unless an allocation of tensor memory has this shape and dtype."""
    if len(buffer.shape) != 2 or buffer.shape[0] != TENSOR_LANES or buffer.shape[1] not in ALLOCATIONS:
        raise RuleBroken(
            "tensor memory",
            f"{buffer.name} has shape {list(buffer.shape)}; {TENSOR_LANES} lanes of "
            f"{', '.join(map(str, ALLOCATIONS))} columns are allowed",
        )
    if buffer.dtype.bits != 32 or buffer.layout is not None:
        raise RuleBroken("tensor memory", f"{buffer.name} has elements of {buffer.dtype}; a column has 32 bits")


def _allocate(stmt: TensorMemoryAllocate, names: BoundNames) -> None:
    _check_bound(stmt.buffer, names)
    address = stmt.address
    if names.buffers.get(address.name) != address:
        raise RuleBroken("scope", f"buffer {address.name} is not bound here")
    if address.scope is not MemoryScope.SHARED or address.dtype != int32 or address.elements != 1 or address.layout:
        raise RuleBroken("operation", f"an address of tensor memory in {address.name}; one shared int32 is needed")


def _deallocate(stmt: TensorMemoryDeallocate, names: BoundNames) -> None:
    _check_bound(stmt.buffer, names)


def _check_bound(buffer: Buffer, names: BoundNames) -> None:
    if names.buffers.get(buffer.name) != buffer:
        raise RuleBroken("scope", f"buffer {buffer.name} is not bound here")
    if buffer.scope is not MemoryScope.TENSOR:
        raise RuleBroken("operation", f"{buffer.name} has scope {buffer.scope}, not {MemoryScope.TENSOR}")


def _mma(stmt: TensorMemoryMma, names: BoundNames) -> None:
    atom = TCGEN05_ATOMS.get((stmt.a.dtype.name, stmt.b.dtype.name))
    if atom is None:
        raise RuleBroken("operation", f"a tcgen05.mma of {stmt.a.dtype} and {stmt.b.dtype}, which have none")
    if not atom.takes(stmt.m, stmt.n):
        raise RuleBroken(
            "operation",
            f"a tcgen05.mma of {stmt.m} rows and {stmt.n} columns; 64 rows with up to 256 columns in steps of 8 (of "
            "integers, beyond 32, of 16), and 128 rows in steps of 16 are allowed",
        )
    _check_product(stmt, atom, atom.accumulator, names)
    for name, buffer, indices, rows, transposed in (
        ("a", stmt.a, stmt.a_indices, stmt.m, stmt.a_transposed),
        ("b", stmt.b, stmt.b_indices, stmt.n, stmt.b_transposed),
    ):
        if transposed and not atom.transposes:
            raise RuleBroken("operation", f"{name} of a tcgen05.mma is transposed, and has no 16-bit elements")
        what = f"{name} of a tcgen05.mma"
        check_matrix_operand(what, buffer, indices, rows, stmt.k, atom.line, transposed, names)


def _check_product(
    stmt: TensorMemoryMma | BlockScaledMma, atom: Tcgen05Atom | BlockScaledAtom, accumulator: DType, names: BoundNames
) -> None:
    """Check the places of k of a product, whether it accumulates, and its accumulators."""
    if stmt.k % atom.k or not atom.k <= stmt.k <= atom.line:
        raise RuleBroken(
            "operation", f"a tcgen05.mma of {stmt.k} places of k; up to {atom.line} in steps of {atom.k} are allowed"
        )
    if isinstance(stmt.accumulates, Expr) and type_of(stmt.accumulates, names) != (boolean, 1):
        raise RuleBroken("operation", "whether a tcgen05.mma accumulates is no scalar bool")
    check_element(stmt.d, stmt.d_indices, names, MemoryScope.TENSOR)
    if stmt.d.dtype != accumulator:
        raise RuleBroken("operation", f"d of a tcgen05.mma is {stmt.d.dtype}, not {accumulator}")
    _check_columns(stmt.d, stmt.d_indices, stmt.n, (0,))


def _block_scaled(stmt: BlockScaledMma, names: BoundNames) -> None:
    atom = BLOCK_SCALED_ATOMS.get(stmt.atom)
    if atom is None:
        known = ", ".join(BLOCK_SCALED_ATOMS)
        raise RuleBroken("operation", f"a tcgen05.mma of {stmt.atom!r}; {known} are allowed")
    if stmt.n not in range(8, MOST_MMA_N + 1, 8):
        raise RuleBroken("operation", f"a block-scaled tcgen05.mma of {stmt.n} columns; 8 to 256 in steps of 8")
    _check_product(stmt, atom, float32, names)
    for name, buffer, indices, rows in (
        ("a", stmt.a, stmt.a_indices, SCALE_ROWS),
        ("b", stmt.b, stmt.b_indices, stmt.n),
    ):
        if not (buffer.dtype.is_float8 if atom.bits == 8 else buffer.dtype == uint8):
            wanted = "8-bit floats" if atom.bits == 8 else "uint8, two elements each"
            raise RuleBroken("operation", f"{name} of {stmt.atom} is {buffer.dtype}, not {wanted}")
        what, k = f"{name} of a tcgen05.mma", stmt.k * atom.bits // 8
        check_matrix_operand(what, buffer, indices, rows, k, LINE_BYTES, False, names)
    groups = -(-(stmt.k // atom.block) // SCALES_PER_COLUMN)
    for scales, indices, rows in (
        (stmt.a_scales, stmt.a_scales_indices, SCALE_ROWS),
        (stmt.b_scales, stmt.b_scales_indices, stmt.n),
    ):
        check_element(scales, indices, names, MemoryScope.TENSOR)
        _check_scales(scales, indices, groups * -(-rows // SCALE_ROWS))


def _copy(stmt: TensorMemoryCopy, names: BoundNames) -> None:
    check_element(stmt.target, stmt.target_indices, names, MemoryScope.TENSOR)
    check_element(stmt.source, stmt.source_indices, names, MemoryScope.SHARED)
    dtypes = (uint8, float8_e4m3fn)
    if stmt.source.dtype not in dtypes or (stmt.source.layout is not None and stmt.source.layout.swizzle is not None):
        allowed = " or ".join(map(str, dtypes))
        raise RuleBroken("operation", f"scales in {stmt.source.name} of {stmt.source.dtype}; plain {allowed} is needed")
    check_contiguous(stmt.source, CHUNK_BYTES)
    check_aligned(stmt.source, stmt.source_indices, SCALE_ROWS)
    _check_scales(stmt.target, stmt.target_indices, stmt.chunks)


def _check_scales(buffer: Buffer, indices: tuple[Expr, ...], chunks: int) -> None:
    if buffer.dtype != int32:
        raise RuleBroken("operation", f"scales in tensor memory {buffer.name} of {buffer.dtype}, not {int32}")
    _check_columns(buffer, indices, chunks * SCALE_COLUMNS, (0,))


def _commit(stmt: TensorMemoryCommit, names: BoundNames) -> None:
    check_mbarrier(stmt.barriers, stmt.index, names)
    if stmt.multicast is not None:
        check_cluster_operand("the mask of a commit", stmt.multicast, names)


def _load(stmt: TensorMemoryLoad, names: BoundNames) -> None:
    if stmt.columns < 8 or stmt.columns % 8:
        raise RuleBroken("operation", f"a load of {stmt.columns} columns of tensor memory; multiples of 8 are allowed")
    check_element(stmt.source, stmt.source_indices, names, MemoryScope.TENSOR)
    check_element(stmt.target, stmt.target_indices, names, MemoryScope.REGISTER)
    if stmt.target.dtype != stmt.source.dtype:
        raise RuleBroken("operation", f"{stmt.source.dtype} of tensor memory is loaded as {stmt.target.dtype}")
    check_fragment(stmt.target, stmt.target_indices, stmt.columns // 2)
    _check_columns(stmt.source, stmt.source_indices, stmt.columns, (0, HALF_LANES))


def _check_columns(buffer: Buffer, indices: tuple[Expr, ...], columns: int, lanes: tuple[int, ...]) -> None:
    """Raise unless an access begins at a lane of ``lanes``, and where its columns surely do not fit."""
    lane, column = indices
    if not isinstance(lane, Const) or lane.dtype != INDEX or lane.value not in lanes:
        allowed = " or ".join(map(str, lanes))
        raise RuleBroken("operation", f"an access of {buffer.name} begins at another lane than {allowed}")
    form = affine_form(column)
    first = form.constant if form is not None and form.is_constant else 0
    if first + columns > buffer.shape[-1]:
        raise RuleBroken("operation", f"{columns} columns do not fit {buffer.name} {list(buffer.shape)}")


TCGEN05_RULES: dict[type[Operation], Callable[[Any, BoundNames], None]] = {
    TensorMemoryAllocate: _allocate,
    TensorMemoryDeallocate: _deallocate,
    TensorMemoryMma: _mma,
    BlockScaledMma: _block_scaled,
    TensorMemoryCopy: _copy,
    TensorMemoryCommit: _commit,
    TensorMemoryLoad: _load,
}
"""What each operation on tensor memory takes."""
