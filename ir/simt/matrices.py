"""Matrix operations of the interpreter of launches."""

from collections.abc import Callable
from functools import cache

import numpy as np

from ..buffer import Buffer
from ..expr import WARP_LANES, Expr
from ..gpu import ATOMS, LoadMatrix, Mma
from ..memory import Array
from .access import check_private, check_read, write_private
from .address import address_of, is_uniform, shared_flat
from .memory import PrivateMemory, SharedMemory
from .scope import Machine, Scope
from .values import value_code

Action = Callable[[Machine], None]


@cache
def _fragment(atom: str, part: str) -> tuple[Array, Array]:
    """(rows, columns) of every element of every lane: int64[32, elements]."""
    known = ATOMS[atom]
    places = [
        [known.fragment(part, lane, element) for element in range(known.elements(part))] for lane in range(WARP_LANES)
    ]
    both = np.array(places, dtype=np.int64)
    return both[..., 0], both[..., 1]


def fragment_rows(
    buffer: Buffer, indices: tuple[Expr, ...], elements: int, whole: int, scope: Scope
) -> tuple[PrivateMemory, Callable[[Machine], slice]]:
    """Code that gives the rows of a private buffer that a fragment takes; it lies within a run of ``whole``."""
    memory = scope.private[buffer.name]
    address = address_of(indices, buffer, scope, value_code)

    def rows(m: Machine) -> slice:
        flat = address.flat(m)
        if not is_uniform(flat):
            raise scope.fault(f"a fragment of {buffer.name} begins elsewhere in other threads", m, 0, buffer.name)
        first = int(flat)
        if first % whole + elements > whole:
            raise scope.fault(f"{elements} elements from {memory.name(first)} on are out of bounds", m, 0, buffer.name)
        return slice(first, first + elements)

    return memory, rows


def mma(stmt: Mma, scope: Scope) -> Action:
    atom = ATOMS[stmt.atom]
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
        lanes = memory.data[rows].reshape(atom.elements(part), -1, WARP_LANES).transpose(1, 2, 0)
        whole = np.zeros((m.threads // WARP_LANES, *shapes[part]), dtype=memory.data.dtype)
        whole[:, *_fragment(stmt.atom, part)] = lanes
        return whole

    def run(m: Machine) -> None:
        m.order.meet(len(m.order.sizes) - 1, m.divided(WARP_LANES, "a matrix operation", scope))
        total = matrix(m, "d") + matrix(m, "a") @ matrix(m, "b")
        lanes = total[:, *_fragment(stmt.atom, "d")]  # [warps, 32, elements]
        memory, rows_of = parts["d"]
        write_private(memory, m, rows_of(m), lanes.transpose(2, 0, 1).reshape(-1, m.threads))

    return run


def load_matrix(stmt: LoadMatrix, scope: Scope) -> Action:
    source = scope.shared[stmt.source.name]
    assert isinstance(source, SharedMemory)
    address = shared_flat(stmt.source_indices, source, scope, value_code)
    whole = stmt.target.elements
    target, rows_of = fragment_rows(stmt.target, stmt.target_indices, 2 * stmt.count, whole, scope)
    count, givers = stmt.count, 8 * stmt.count
    lane = np.arange(WARP_LANES)
    row, column = lane // 4, 2 * (lane % 4)
    steps = np.arange(8, dtype=np.int64)

    def run(m: Machine) -> None:
        who = m.divided(WARP_LANES, "a matrix load", scope)
        warp_level = len(m.order.sizes) - 1
        m.order.meet(warp_level, who)
        gives = m.thread % WARP_LANES < givers
        outer, m.active = m.active, gives if who is None else gives & who
        begin = np.broadcast_to(address(m), (m.threads,))
        _check_rows(begin, source, m, scope)
        flat = (begin[:, None] + steps)[m.active]
        check_read(source, m, scope, flat.ravel(), np.repeat(m.places[m.active], 8))
        m.active = outer
        m.order.meet(warp_level, who)
        starts = begin.reshape(-1, WARP_LANES)[:, :givers].reshape(-1, count, 8)
        matrices = source.data[np.minimum(starts[..., None] + steps, len(source.data) - 1)]  # [warps, count, 8, 8]
        first, second = ((column, row), (column + 1, row)) if stmt.transposed else ((row, column), (row, column + 1))
        pairs = np.stack([matrices[:, :, *first], matrices[:, :, *second]], axis=2)  # [warps, count, 2, 32]
        write_private(target, m, rows_of(m), pairs.transpose(1, 2, 0, 3).reshape(2 * count, m.threads))

    return run


def _check_rows(begin: Array, source: SharedMemory, m: Machine, scope: Scope) -> None:
    """Raise where the 8 elements of a row are not aligned, or leave their buffer."""
    place = begin % source.span
    wrong = (place % 8 != 0) | (place + 8 > source.span)
    if m.active is not None:
        wrong = wrong & m.active
    if wrong.any():
        at = int(wrong.argmax())
        what = f"a matrix row at {source.name(int(begin[at]))}, place {int(place[at])}"
        raise scope.fault(f"{what}: not aligned to 8, or too near the end", m, at, source.buffer.name)
