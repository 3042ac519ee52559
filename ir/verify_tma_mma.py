"""The verifier's rules for tensor copies and stores, arrivals, and the products of warps and warpgroups."""

from collections.abc import Callable
from math import prod
from typing import Any

from ..core.dtypes import INDEX, boolean, float32
from .buffer import Buffer, Scope
from .expr import Expr
from .gpu import (
    MMA_ATOMS,
    SWIZZLE_128B,
    SWIZZLE_128B_ELEMENTS,
    SWIZZLE_ROW_BYTES,
    WARP_MMA_ATOMS,
    WARPGROUP_THREADS,
    WGMMA_M,
    LoadMatrix,
    MbarrierArrive,
    MbarrierArriveExpectTx,
    Mma,
    SetMaxRegisters,
    StoreMatrix,
    TmaLoad,
    TmaPrefetch,
    TmaStore,
    TmaStoreWait,
    WarpgroupMma,
    WarpgroupMmaWait,
    tma_swizzle,
)
from .linear_form import affine_form
from .stmt import HardwareAxis, Operation
from .typing_rules import Broken, Names, type_of
from .verify_operands import aligned, barrier_place, fits, place, run

PIECE_BYTES = 16
LARGEST_BOX = 256
MOST_BOX_DIMENSIONS = 5
MOST_BYTES = (1 << 20) - 1
"""That a phase of an arrival barrier can wait for."""
MOST_GROUPS_PENDING = 7
REGISTERS = range(24, 241, 8)


# Boxes ---------------------------------------------------------------------------------------------------------


def _box(
    box: tuple[int, ...], tensor: Buffer, corner: tuple[Expr, ...], tile: Buffer, tile_indices: tuple[Expr, ...]
) -> None:
    """Whether a box of ``tensor`` can begin at ``corner``, and lie in shared ``tile``."""
    if tensor.dtype != tile.dtype:
        raise Broken("operation", f"{tensor.name} holds {tensor.dtype}, {tile.name} {tile.dtype}")
    _box_of(box, tensor, corner)
    if prod(box) > tile.elements:
        raise Broken("operation", f"a box of {list(box)} for {tile.name} {list(tile.shape)}")
    row, swizzle = box[-1] * tensor.dtype.bytes, None if tile.layout is None else tile.layout.swizzle
    if swizzle is None:
        aligned(tile, tile_indices, SWIZZLE_ROW_BYTES)
    elif swizzle != tma_swizzle(tile.dtype) or row != SWIZZLE_ROW_BYTES:
        raise Broken("operation", f"{tile.name} with {swizzle} takes rows of {row} bytes; {SWIZZLE_ROW_BYTES} only")


def _box_of(box: tuple[int, ...], tensor: Buffer, corner: tuple[Expr, ...]) -> None:
    """Whether ``tensor`` has such boxes, and one can begin at ``corner``."""
    if not 1 <= len(tensor.shape) <= MOST_BOX_DIMENSIONS or len(box) != len(tensor.shape):
        raise Broken(
            "operation", f"a box of {len(box)} dimensions of {tensor.name} {list(tensor.shape)}, 1 to 5 allowed"
        )
    if any(not 1 <= extent <= LARGEST_BOX for extent in box):
        raise Broken("operation", f"a box of {list(box)} of {tensor.name}, 256 a dimension at most")
    row, size = box[-1] * tensor.dtype.bytes, tensor.dtype.bytes
    if row % PIECE_BYTES or any(stride * size % PIECE_BYTES for stride in tensor.strides[:-1]):
        raise Broken("operation", f"rows of {tensor.name} or of its box {list(box)} are no multiples of 16 bytes")
    first = affine_form(corner[-1])
    if first is not None and first.constant * size % PIECE_BYTES:
        if all(c * size % PIECE_BYTES == 0 for c in first.terms.values()):
            raise Broken("operation", f"a box of {tensor.name} begins between multiples of 16 bytes of a row")


def _tma_load(stmt: TmaLoad, names: Names) -> None:
    place(stmt.target, stmt.target_indices, names, Scope.SHARED)
    place(stmt.source, stmt.source_indices, names, Scope.GLOBAL)
    barrier_place(stmt.barriers, stmt.index, names)
    _box(stmt.box, stmt.source, stmt.source_indices, stmt.target, stmt.target_indices)
    if stmt.multicast is not None:
        _in_cluster("blocks of a multicast", stmt.multicast, names)
        if not stmt.tx_expected:
            raise Broken("operation", f"a multicast of {stmt.source.name} that is not tx_expected")


def _tensor_prefetch(stmt: TmaPrefetch, names: Names) -> None:
    place(stmt.source, stmt.source_indices, names, Scope.GLOBAL)
    _box_of(stmt.box, stmt.source, stmt.source_indices)


def _tensor_store(stmt: TmaStore, names: Names) -> None:
    place(stmt.source, stmt.source_indices, names, Scope.SHARED)
    place(stmt.target, stmt.target_indices, names, Scope.GLOBAL)
    _box(stmt.box, stmt.target, stmt.target_indices, stmt.source, stmt.source_indices)


def _in_cluster(what: str, expr: Expr, names: Names) -> None:
    if type_of(expr, names) != (INDEX, 1):
        raise Broken("operation", f"the {what} are no scalar of the index type")
    if names.launch is None or names.launch.extent(HardwareAxis.CLUSTER) == 1:
        raise Broken("launch", f"the {what} where there are no clusters")


def _await_stores(stmt: TmaStoreWait, names: Names) -> None:
    if stmt.pending < 0:
        raise Broken("operation", f"a wait for all but {stmt.pending} groups of stores")


# Arrivals ------------------------------------------------------------------------------------------------------


def _arrive(stmt: MbarrierArrive, names: Names) -> None:
    barrier_place(stmt.barriers, stmt.index, names)
    if stmt.rank is not None:
        _in_cluster("block of an arrival", stmt.rank, names)


def _arrive_expecting(stmt: MbarrierArriveExpectTx, names: Names) -> None:
    barrier_place(stmt.barriers, stmt.index, names)
    if not 0 < stmt.bytes <= MOST_BYTES or stmt.bytes % PIECE_BYTES:
        raise Broken("operation", f"{stmt.bytes} bytes are tx_expected; a multiple of 16 up to {MOST_BYTES} is allowed")


# Products ------------------------------------------------------------------------------------------------------


def _mma(stmt: Mma, names: Names) -> None:
    atom = MMA_ATOMS.get(stmt.atom)
    if atom is None:
        raise Broken("operation", f"no matrix instruction {stmt.atom}; known: {', '.join(MMA_ATOMS)}")
    parts = (
        ("d", stmt.d, stmt.d_indices, atom.accumulator),
        ("a", stmt.a, stmt.a_indices, atom.operand),
        ("b", stmt.b, stmt.b_indices, atom.operand),
    )
    for part, buffer, indices, dtype in parts:
        place(buffer, indices, names, Scope.REGISTER)
        if buffer.dtype != dtype:
            raise Broken("operation", f"{part} of {stmt.atom} is {buffer.dtype}, not {dtype}")
        fits(buffer, indices, atom.elements(part))


def _load_matrix(stmt: LoadMatrix, names: Names) -> None:
    place(stmt.target, stmt.target_indices, names, Scope.REGISTER)
    place(stmt.source, stmt.source_indices, names, Scope.SHARED)
    _matrices(stmt.count, stmt.target, stmt.source, stmt.source_indices)


def _store_matrix(stmt: StoreMatrix, names: Names) -> None:
    place(stmt.target, stmt.target_indices, names, Scope.SHARED)
    place(stmt.source, stmt.source_indices, names, Scope.REGISTER)
    _matrices(stmt.count, stmt.source, stmt.target, stmt.target_indices)


def _matrices(count: int, held: Buffer, shared: Buffer, rows: tuple[Expr, ...]) -> None:
    if count not in (1, 2, 4):
        raise Broken("operation", f"{count} matrices are moved at once, not 1, 2 or 4")
    if held.dtype != shared.dtype or held.dtype.bytes != 2:
        raise Broken("operation", f"matrices of {shared.dtype} as {held.dtype} in registers; 16 bits only")
    if 2 * count > held.elements:
        raise Broken("operation", f"{2 * count} elements do not fit {held.name} {list(held.shape)}")
    run(shared, 8)
    aligned(shared, rows, 16)


def _group_mma(stmt: WarpgroupMma, names: Names) -> None:
    if stmt.columns % 8 or not 8 <= stmt.columns <= 256:
        raise Broken("operation", f"a warpgroup's product of {stmt.columns} columns; 8 to 256 in steps of 8")
    if stmt.depth % 16 or not 16 <= stmt.depth <= SWIZZLE_128B_ELEMENTS:
        raise Broken(
            "operation", f"a warpgroup's product of depth {stmt.depth}; 16 to {SWIZZLE_128B_ELEMENTS} in steps of 16"
        )
    if not 1 <= stmt.rows <= WGMMA_M:
        raise Broken("operation", f"a warpgroup's product of which {stmt.rows} rows count; 1 to {WGMMA_M} do")
    place(stmt.d, stmt.d_indices, names, Scope.REGISTER)
    if stmt.d.dtype != float32:
        raise Broken("operation", f"d of a warpgroup's product is {stmt.d.dtype}, not float32")
    fits(stmt.d, stmt.d_indices, stmt.columns // 2)
    if isinstance(stmt.accumulates, Expr) and type_of(stmt.accumulates, names) != (boolean, 1):
        raise Broken("operation", "whether a warpgroup's product accumulates is no scalar bool")
    operands = (
        ("a", stmt.a, stmt.a_indices, WGMMA_M, stmt.a_transposed),
        ("b", stmt.b, stmt.b_indices, stmt.columns, stmt.b_transposed),
    )
    for part, buffer, indices, rows, transposed in operands:
        place(buffer, indices, names, Scope.SHARED)
        if buffer.dtype not in {a.operand for a in WARP_MMA_ATOMS.values()} or buffer.dtype != stmt.a.dtype:
            raise Broken("operation", f"{part} of a warpgroup's product is {buffer.dtype}")
        if (
            buffer.layout is None
            or buffer.layout.swizzle != SWIZZLE_128B
            or buffer.strides[-2:] != (SWIZZLE_128B_ELEMENTS, 1)
        ):
            raise Broken(
                "operation", f"{part} of a warpgroup's product does not lie as {SWIZZLE_128B} in 128 bytes a row"
            )
        (_transposed if transposed else _rows)(buffer, rows, stmt.depth)


def _rows(buffer: Buffer, rows: int, depth: int) -> None:
    if buffer.shape[-2] < rows or not depth <= buffer.shape[-1] <= SWIZZLE_128B_ELEMENTS:
        raise Broken("operation", f"{rows} rows of {depth} do not fit {buffer.name} {list(buffer.shape)}")


def _transposed(buffer: Buffer, rows: int, depth: int) -> None:
    tiles = -(-rows // SWIZZLE_128B_ELEMENTS)
    there = buffer.shape[-3] if len(buffer.shape) > 2 else 1
    if there < tiles or buffer.shape[-2] < depth or buffer.shape[-1] != SWIZZLE_128B_ELEMENTS:
        raise Broken(
            "operation",
            f"{depth} runs of {rows} rows do not fit {buffer.name} {list(buffer.shape)}: "
            f"{tiles} times {depth} of {SWIZZLE_128B_ELEMENTS} are needed",
        )
    if tiles > 1 and buffer.strides[-3] % (8 * SWIZZLE_128B_ELEMENTS):
        raise Broken("operation", f"the {SWIZZLE_128B_ELEMENTS} next rows of {buffer.name} begin amid 8 runs")


def _await_group_mma(stmt: WarpgroupMmaWait, names: Names) -> None:
    if not 0 <= stmt.pending <= MOST_GROUPS_PENDING:
        raise Broken("operation", f"a wait for all but {stmt.pending} products; 0 to {MOST_GROUPS_PENDING} are allowed")


def _set_registers(stmt: SetMaxRegisters, names: Names) -> None:
    if stmt.count not in REGISTERS:
        raise Broken("operation", f"{stmt.count} registers; 24 to 240 in steps of 8 are allowed")
    if names.launch is not None and names.launch.threads % WARPGROUP_THREADS:
        raise Broken(
            "warps", f"a change of registers in blocks of {names.launch.threads} threads, not whole warpgroups"
        )


TENSOR_RULES: dict[type[Operation], Callable[[Any, Names], None]] = {
    TmaLoad: _tma_load,
    TmaPrefetch: _tensor_prefetch,
    TmaStore: _tensor_store,
    TmaStoreWait: _await_stores,
    MbarrierArrive: _arrive,
    MbarrierArriveExpectTx: _arrive_expecting,
    Mma: _mma,
    LoadMatrix: _load_matrix,
    StoreMatrix: _store_matrix,
    WarpgroupMma: _group_mma,
    WarpgroupMmaWait: _await_group_mma,
    SetMaxRegisters: _set_registers,
}
"""What each of these operations takes."""
