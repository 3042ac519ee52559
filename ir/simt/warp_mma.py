"""Matrix operations of warps of the interpreter of launches."""

from collections.abc import Callable
from functools import cache

import numpy as np

from ..buffer import Buffer
from ..expr import WARP_LANES, Expr
from ..gpu import MMA_ATOMS, LoadMatrix, Mma, StoreMatrix
from ..memory import Array
from .access import check_awaited, check_private, check_read, check_write, write_private
from .address import address_of, is_uniform, shared_flat
from .memory import PrivateMemory, SharedMemory
from .scope import Machine, Scope
from .values import value_code

Action = Callable[[Machine], None]


@cache
def fragment(atom: str, part: str) -> tuple[Array, Array]:
    """(rows, columns) of every element of every lane: int64[lanes, elements]."""
    known = MMA_ATOMS[atom]
    places = [
        [known.fragment(part, lane, element) for element in range(known.elements(part))] for lane in range(known.lanes)
    ]
    both = np.array(places, dtype=np.int64)
    return both[..., 0], both[..., 1]


def fragment_rows(
    buffer: Buffer, indices: tuple[Expr, ...], elements: int, whole: int, scope: Scope, *, sums: bool = False
) -> tuple[PrivateMemory, Callable[[Machine], slice]]:
    """Code that gives the rows of a private buffer that a fragment takes; it lies within a run of ``whole``.
    ``sums``: it may be the very one that products under way add to."""
    memory = scope.private[buffer.name]
    address = address_of(indices, buffer, scope, value_code)

    def rows(m: Machine) -> slice:
        flat = address.flat(m)
        if not is_uniform(flat):
            raise scope.fault(f"a fragment of {buffer.name} begins elsewhere in other threads", m, 0, buffer.name)
        first = int(flat)
        if first % whole + elements > whole:
            raise scope.fault(f"{elements} elements from {memory.name(first)} on are out of bounds", m, 0, buffer.name)
        found = slice(first, first + elements)
        if m.products:
            check_awaited(memory, m, scope, found, sums=sums)
        return found

    return memory, rows


def mma(stmt: Mma, scope: Scope) -> Action:
    atom = MMA_ATOMS[stmt.atom]
    operands = {"d": (stmt.d, stmt.d_indices), "a": (stmt.a, stmt.a_indices), "b": (stmt.b, stmt.b_indices)}
    parts = {
        part: fragment_rows(buffer, indices, atom.elements(part), buffer.shape[-1], scope)
        for part, (buffer, indices) in operands.items()
    }
    shapes = {"d": (atom.m, atom.n), "a": (atom.m, atom.k), "b": (atom.k, atom.n)}

    def matrix(m: Machine, part: str) -> Array:
        memory, rows_of = parts[part]
        rows = rows_of(m)
        if not all(memory.full[rows]):
            check_private(memory, m, scope, rows, m.running((m.threads,)))
        lanes = memory.data[rows].reshape(atom.elements(part), -1, atom.lanes).transpose(1, 2, 0)
        whole = np.zeros((m.threads // atom.lanes, *shapes[part]), dtype=memory.data.dtype)
        whole[:, *fragment(stmt.atom, part)] = lanes
        return whole

    def run(m: Machine) -> None:
        if m.order.groups.block % atom.lanes:
            raise scope.fault(f"a matrix operation of {atom.lanes} lanes in blocks that are no multiple of it", m, 0)
        who = m.divided(atom.lanes, "a matrix operation", scope)
        if atom.lanes == WARP_LANES:
            m.order.meet(m.order.warp_level, who)
        total = matrix(m, "d") + matrix(m, "a") @ matrix(m, "b")
        lanes = total[:, *fragment(stmt.atom, "d")]  # [warps, lanes, elements]
        memory, rows_of = parts["d"]
        write_private(memory, m, rows_of(m), lanes.transpose(2, 0, 1).reshape(-1, m.threads))

    return run


def load_matrix(stmt: LoadMatrix, scope: Scope) -> Action:
    source = scope.shared[stmt.source.name]
    assert isinstance(source, SharedMemory)
    rows_at = _matrix_rows(source, stmt.source_indices, stmt.count, scope)
    target, held_at = fragment_rows(stmt.target, stmt.target_indices, 2 * stmt.count, stmt.target.elements, scope)

    def run(m: Machine) -> None:
        who = m.divided(WARP_LANES, "a matrix load", scope)
        m.order.meet(m.order.warp_level, who)
        flat, givers = rows_at(m, who)
        check_read(source, m, scope, flat[givers].ravel(), np.repeat(m.places[givers], 8))
        m.order.meet(m.order.warp_level, who)
        matrices = source.data[_by_matrix(flat, stmt.count)]  # [warps, count, 8, 8]
        first, second = _pairs(stmt.transposed)
        pairs = np.stack([matrices[:, :, *first], matrices[:, :, *second]], axis=2)  # [warps, count, 2, 32]
        write_private(target, m, held_at(m), pairs.transpose(1, 2, 0, 3).reshape(2 * stmt.count, m.threads))

    return run


def store_matrix(stmt: StoreMatrix, scope: Scope) -> Action:
    target = scope.shared[stmt.target.name]
    assert isinstance(target, SharedMemory)
    rows_at = _matrix_rows(target, stmt.target_indices, stmt.count, scope)
    source, held_at = fragment_rows(stmt.source, stmt.source_indices, 2 * stmt.count, stmt.source.elements, scope)

    def run(m: Machine) -> None:
        who = m.divided(WARP_LANES, "a matrix store", scope)
        held = held_at(m)
        if not all(source.full[held]):
            check_private(source, m, scope, held, m.running((m.threads,)))
        flat, givers = rows_at(m, who)
        check_write(target, m, scope, flat[givers].ravel(), np.repeat(m.places[givers], 8))
        pairs = source.data[held].reshape(stmt.count, 2, -1, WARP_LANES).transpose(2, 0, 1, 3)
        matrices = np.zeros((len(pairs), stmt.count, 8, 8), dtype=target.data.dtype)
        for half, at in enumerate(_pairs(stmt.transposed)):
            matrices[:, :, *at] = pairs[:, :, half]
        warps = np.ones(len(pairs), dtype=np.bool_) if who is None else who.reshape(-1, WARP_LANES)[:, 0]
        target.data[_by_matrix(flat, stmt.count)[warps]] = matrices[warps]

    return run


def _pairs(transposed: bool) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """(rows, columns) of the first and of the second element that every lane holds of a matrix of 8x8."""
    lane = np.arange(WARP_LANES)
    row, column = lane // 4, 2 * (lane % 4)
    return ((column, row), (column + 1, row)) if transposed else ((row, column), (row, column + 1))


def _by_matrix(flat: Array, count: int) -> Array:
    """[warps, count, 8, 8] of the places [threads, 8] that lanes say."""
    found: Array = flat.reshape(-1, WARP_LANES, 8)[:, : 8 * count].reshape(-1, count, 8, 8)
    return found


def _matrix_rows(
    memory: SharedMemory, indices: tuple[Expr, ...], count: int, scope: Scope
) -> Callable[[Machine, Array | None], tuple[Array, Array]]:
    """Code that gives the places of the rows that lanes say, int64[threads, 8], and whose count (bool[threads])."""
    address = shared_flat(indices, memory, scope, value_code)
    steps = np.arange(8, dtype=np.int64)

    def rows(m: Machine, who: Array | None) -> tuple[Array, Array]:
        gives = m.thread % WARP_LANES < 8 * count
        outer, m.active = m.active, gives if who is None else gives & who
        begin = np.broadcast_to(address(m), (m.threads,))
        givers, m.active = m.active, outer
        place = begin % memory.span
        wrong = givers & ((place % 8 != 0) | (place + 8 > memory.span))
        if wrong.any():
            at = int(wrong.argmax())
            what = f"a matrix row at {memory.name(int(begin[at]))}, place {int(place[at])}"
            raise scope.fault(f"{what}: not aligned to 8, or too near the end", m, at, memory.buffer.name)
        return np.minimum(begin[:, None] + steps, len(memory.data) - 1), givers

    return rows
