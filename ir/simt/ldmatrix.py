"""``ldmatrix`` and ``stmatrix`` in the interpreter of launches."""

from collections.abc import Callable

import numpy as np

from ..expr import WARP_LANES, Expr
from ..gpu.ldmatrix import LoadMatrix, StoreMatrix
from ..interpreter.memory import Array
from .access import check_private, write_private
from .address import shared_flat
from .context import LaunchAction, LaunchContext, LaunchState
from .expressions import value_closure
from .memory import SharedMemory
from .mma import fragment_rows
from .race_check import check_read, check_write


def load_matrix(stmt: LoadMatrix, context: LaunchContext) -> LaunchAction:
    source = context.shared[stmt.source.name]
    assert isinstance(source, SharedMemory)
    rows_at = _matrix_rows(source, stmt.source_indices, stmt.count, context)
    target, held_at = fragment_rows(stmt.target, stmt.target_indices, 2 * stmt.count, stmt.target.elements, context)

    def run(state: LaunchState) -> None:
        who = state.converged(WARP_LANES, "a matrix load", context)
        state.order.synchronise(state.order.warp_level, who)
        flat, givers = rows_at(state, who)
        check_read(source, state, context, flat[givers].ravel(), np.repeat(state.positions[givers], 8))
        state.order.synchronise(state.order.warp_level, who)
        matrices = source.data[_by_matrix(flat, stmt.count)]  # [warps, count, 8, 8]
        first, second = _pairs(stmt.transposed)
        pairs = np.stack([matrices[:, :, *first], matrices[:, :, *second]], axis=2)  # [warps, count, 2, 32]
        write_private(target, state, held_at(state), pairs.transpose(1, 2, 0, 3).reshape(2 * stmt.count, state.threads))

    return run


def store_matrix(stmt: StoreMatrix, context: LaunchContext) -> LaunchAction:
    target = context.shared[stmt.target.name]
    assert isinstance(target, SharedMemory)
    rows_at = _matrix_rows(target, stmt.target_indices, stmt.count, context)
    source, held_at = fragment_rows(stmt.source, stmt.source_indices, 2 * stmt.count, stmt.source.elements, context)

    def run(state: LaunchState) -> None:
        who = state.converged(WARP_LANES, "a matrix store", context)
        held = held_at(state)
        if not all(source.full[held]):
            check_private(source, state, context, held, state.running((state.threads,)))
        flat, givers = rows_at(state, who)
        check_write(target, state, context, flat[givers].ravel(), np.repeat(state.positions[givers], 8))
        pairs = source.data[held].reshape(stmt.count, 2, -1, WARP_LANES).transpose(2, 0, 1, 3)
        matrices = np.zeros((len(pairs), stmt.count, 8, 8), dtype=target.data.dtype)
        for half, at in enumerate(_pairs(stmt.transposed)):
            matrices[:, :, *at] = pairs[:, :, half]
        warps = np.ones(len(pairs), dtype=np.bool_) if who is None else who.reshape(-1, WARP_LANES)[:, 0]
        target.data[_by_matrix(flat, stmt.count)[warps]] = matrices[warps]

    return run


def _pairs(transposed: bool) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return (rows, columns) of the first and of the second element that every lane holds of a matrix of 8x8."""
    lane = np.arange(WARP_LANES)
    row, column = lane // 4, 2 * (lane % 4)
    return ((column, row), (column + 1, row)) if transposed else ((row, column), (row, column + 1))


def _by_matrix(flat: Array, count: int) -> Array:
    """Return the offsets [threads, 8] that lanes give, as [warps, count, 8, 8]."""
    found: Array = flat.reshape(-1, WARP_LANES, 8)[:, : 8 * count].reshape(-1, count, 8, 8)
    return found


def _matrix_rows(
    memory: SharedMemory, indices: tuple[Expr, ...], count: int, context: LaunchContext
) -> Callable[[LaunchState, Array | None], tuple[Array, Array]]:
    """Return a closure that gives the offsets of the rows that lanes give, int64[threads, 8], and whose rows count
    (bool[threads])."""
    address = shared_flat(indices, memory, context, value_closure)
    steps = np.arange(8, dtype=np.int64)

    def rows(state: LaunchState, who: Array | None) -> tuple[Array, Array]:
        gives = state.thread % WARP_LANES < 8 * count
        outer, state.active = state.active, gives if who is None else gives & who
        begin = np.broadcast_to(address(state), (state.threads,))
        givers, state.active = state.active, outer
        offset = begin % memory.span
        wrong = givers & ((offset % 8 != 0) | (offset + 8 > memory.span))
        if wrong.any():
            at = int(wrong.argmax())
            what = f"a matrix row at {memory.name(int(begin[at]))}, offset {int(offset[at])}"
            what = f"{what}: not aligned to 8, or too near the end"
            raise context.fault(what, state, at, memory.buffer.name)
        return np.minimum(begin[:, None] + steps, len(memory.data) - 1), givers

    return rows
