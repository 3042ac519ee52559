"""Matrix operations of the interpreter of launches."""

from collections.abc import Callable
from functools import cache

import numpy as np

from ..buffer import Buffer
from ..expr import WARP_LANES, Expr
from ..gpu import ATOMS, GROUP_LANES, GROUP_ROWS, GROUP_RUN, GROUP_SWIZZLE, GroupMma, LoadMatrix, Mma
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


def _fragment_rows(
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
        part: _fragment_rows(buffer, indices, atom.elements(part), buffer.shape[-1], scope)
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


def group_mma(stmt: GroupMma, scope: Scope) -> Action:
    sums, rows_of = _fragment_rows(stmt.d, stmt.d_indices, stmt.columns // 2, stmt.d.shape[-1], scope)
    a = _group_operand(stmt.a, stmt.a_indices, GROUP_ROWS, stmt.depth, scope)
    b = _group_operand(stmt.b, stmt.b_indices, stmt.columns, stmt.depth, scope)
    rows, columns = _fragment("m16n8k16_f16", "d")  # of every warp's 16 rows and every 8 columns
    tiles = stmt.columns // 8

    def run(m: Machine) -> None:
        who = m.running((m.threads,))
        leaders = _groups(m, scope)
        warp_level = len(m.order.sizes) - 1
        m.order.meet(warp_level, who)
        products = a(m, leaders) @ b(m, leaders).transpose(0, 2, 1)  # [groups, 64, columns]
        m.order.meet(warp_level, who)
        place = rows_of(m)
        if not all(sums.full[place]):
            check_private(sums, m, scope, place, m.running((m.threads,)))
        by_tile = products.reshape(-1, 16, tiles, 8)[:, rows, :, columns]  # [32, 4, warps, tiles]
        value = sums.data[place].reshape(-1, m.threads)
        value[:, _lanes(leaders).ravel()] += by_tile.transpose(3, 1, 2, 0).reshape(stmt.columns // 2, -1)
        write_private(sums, m, place, value)

    return run


def _groups(m: Machine, scope: Scope) -> Array:
    """int64[groups]: the first threads of the warpgroups that run; raises KernelFault where part of one is missing."""
    active = m.running((m.threads,))
    per_block = m.launch.threads
    blocks = (np.ones(m.threads, dtype=np.bool_) if active is None else active).reshape(-1, per_block)
    whole = per_block // GROUP_LANES * GROUP_LANES
    count = blocks[:, :whole].reshape(len(blocks), -1, GROUP_LANES).sum(axis=2)
    torn = ((count != 0) & (count != GROUP_LANES)).any(axis=1) | blocks[:, whole:].any(axis=1)
    if torn.any():
        at = int(torn.argmax()) * per_block
        raise scope.fault(f"a product of a warpgroup is not reached by whole groups of {GROUP_LANES} threads", m, at)
    block, group = np.nonzero(count)
    leaders: Array = block * per_block + group * GROUP_LANES
    return leaders


def _lanes(leaders: Array) -> Array:
    """int64[groups, 128]: all threads of groups."""
    threads: Array = leaders[:, None] + np.arange(GROUP_LANES)
    return threads


def _group_operand(
    buffer: Buffer, indices: tuple[Expr, ...], count: int, depth: int, scope: Scope
) -> Callable[[Machine, Array], Array]:
    """Code that reads an operand of the warpgroups with some first threads: [groups, count, depth]."""
    memory = scope.shared[buffer.name]
    assert isinstance(memory, SharedMemory)
    address = shared_flat(indices, memory, scope, value_code)
    run = np.arange(count, dtype=np.int64)[:, None] * GROUP_RUN + np.arange(depth, dtype=np.int64)
    mask = (1 << GROUP_SWIZZLE.bits) - 1

    def read(m: Machine, leaders: Array) -> Array:
        begin = np.broadcast_to(address(m), (m.threads,))[_lanes(leaders)]
        first = begin[:, 0]
        inside = first % memory.span
        wrong = (begin != first[:, None]).any(axis=1) | (inside // GROUP_RUN % 8 != 0) | (inside % 16 != 0)
        wrong |= (inside % GROUP_RUN + depth > GROUP_RUN) | (inside + (count - 1) * GROUP_RUN + depth > memory.span)
        if wrong.any():
            at = int(wrong.argmax())
            what = f"an operand of a warpgroup at {memory.name(int(first[at]))}, place {int(inside[at])}"
            raise scope.fault(
                f"{what}: not aligned, not the same in its threads, or too near the end", m, int(leaders[at])
            )
        logical = inside[:, None, None] + run
        place = logical ^ (((logical >> (GROUP_SWIZZLE.base + GROUP_SWIZZLE.shift)) & mask) << GROUP_SWIZZLE.base)
        flat = (first - inside)[:, None, None] + place
        for warp in range(0, GROUP_LANES, WARP_LANES):  # read by the first lane of each warp
            check_read(memory, m, scope, flat.ravel(), np.repeat(leaders + warp, count * depth))
        values: Array = memory.data[flat].astype(np.float32)
        return values

    return read


def load_matrix(stmt: LoadMatrix, scope: Scope) -> Action:
    source = scope.shared[stmt.source.name]
    assert isinstance(source, SharedMemory)
    address = shared_flat(stmt.source_indices, source, scope, value_code)
    whole = stmt.target.elements
    target, rows_of = _fragment_rows(stmt.target, stmt.target_indices, 2 * stmt.count, whole, scope)
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
