"""Products of warp groups in the interpreter of launches. They end as late as they can: when their group awaits them.

Until then their operands are held (a write to them is a fault) and their sums count as not written. Row ``r`` of A is
read by warp ``r // 16`` of the group, B by all four, each warp standing for its first lane.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..buffer import Buffer
from ..expr import WARP_LANES, Expr
from ..gpu import GROUP_DEPTH, GROUP_ROWS, GROUP_THREADS, TILE_ROW_BYTES, AwaitWgmma, Wgmma, group_place
from ..memory import Array
from .access import check_read
from .address import address_of
from .matrices import fragment_rows
from .memory import PrivateMemory, SharedMemory
from .scope import Machine, Scope
from .values import value_code

Action = Callable[[Machine], None]
_PERIOD_ROWS = 8


@dataclass(frozen=True)
class Held:
    """Operands being read: places[groups, elements], and the places of the threads that read them, likewise."""

    memory: SharedMemory
    places: Array
    readers: Array

    def part(self, chosen: Array) -> "Held":
        return Held(self.memory, self.places[chosen], self.readers[chosen])


@dataclass(frozen=True)
class Started:
    """Products of one statement under way. ``leaders``: int64[groups], the first threads of the groups; ``number``: how
    many each group had started before; ``value``: float32[groups, elements of a thread, 128]."""

    sums: PrivateMemory
    rows: slice
    leaders: Array
    number: Array
    value: Array
    held: tuple[Held, ...]

    def part(self, chosen: Array) -> "Started":
        held = tuple(h.part(chosen) for h in self.held)
        return Started(self.sums, self.rows, self.leaders[chosen], self.number[chosen], self.value[chosen], held)

    @property
    def threads(self) -> Array:
        """int64[groups, 128]: places of all threads."""
        found: Array = self.leaders[:, None] + np.arange(GROUP_THREADS)
        return found


@cache
def _places(columns: int) -> tuple[Array, Array]:
    """(rows, columns) of the sums of a group: int64[elements of a thread, 128]."""
    found = [[group_place(t, e) for t in range(GROUP_THREADS)] for e in range(columns // 2)]
    both = np.array(found, dtype=np.int64)
    return both[..., 0], both[..., 1]


def _leaders(m: Machine, what: str, scope: Scope) -> Array:
    """int64[groups]: the first threads of the groups that run; raises KernelFault where a part of one is missing."""
    active = m.running((m.threads,))
    running = np.ones(m.threads, dtype=np.bool_) if active is None else active
    per_block = m.launch.threads
    whole = per_block // GROUP_THREADS * GROUP_THREADS
    blocks = running.reshape(-1, per_block)
    groups = blocks[:, :whole].reshape(len(blocks), -1, GROUP_THREADS)
    count = groups.sum(axis=2)
    torn = ((count != 0) & (count != GROUP_THREADS)).any(axis=1) | blocks[:, whole:].any(axis=1)
    if torn.any():
        at = int(torn.argmax()) * per_block
        raise scope.fault(f"{what} is not reached by whole groups of {GROUP_THREADS} threads", m, at)
    block, group = np.nonzero(count)
    leaders: Array = block * per_block + group * GROUP_THREADS
    return leaders


def _operand(
    buffer: Buffer, indices: tuple[Expr, ...], rows: int, depth: int, scope: Scope
) -> Callable[[Machine, Array], tuple[SharedMemory, Array]]:
    """Code that gives the places of an operand of some groups: int64[groups, rows, depth]."""
    memory = scope.shared[buffer.name]
    assert isinstance(memory, SharedMemory)
    address = address_of(indices, buffer, scope, value_code)
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    assert swizzle is not None
    wide = TILE_ROW_BYTES // buffer.dtype.bytes
    steps = np.arange(rows, dtype=np.int64)[:, None] * wide + np.arange(depth, dtype=np.int64)

    def places(m: Machine, leaders: Array) -> tuple[SharedMemory, Array]:
        every = np.broadcast_to(address.flat(m), (m.threads,))[leaders[:, None] + np.arange(GROUP_THREADS)]
        start = every[:, 0]
        row, column = start // wide % buffer.shape[-2], start % wide
        wrong = (every != start[:, None]).any(axis=1) | (row % _PERIOD_ROWS != 0) | (row + rows > buffer.shape[-2])
        wrong |= (column % GROUP_DEPTH != 0) | (column + depth > wide)
        if wrong.any():
            at = int(wrong.argmax())
            what = (
                f"an operand of {rows} rows by {depth} at row {int(row[at])}, column {int(column[at])} of {buffer.name}"
            )
            raise scope.fault(f"{what}: not one place, not aligned, or too large", m, int(leaders[at]), buffer.name)
        flat = start[:, None, None] + steps
        flat ^= ((flat >> (swizzle.base + swizzle.shift)) & ((1 << swizzle.bits) - 1)) << swizzle.base
        return memory, flat + (m.block[leaders] * memory.span)[:, None, None]

    return places


def _hold(memory: SharedMemory, places: Array, leaders: Array, warps: Array, m: Machine, scope: Scope) -> Held:
    """The reading of places[groups, rows, depth] begins; ``warps``: [rows, readers], which warps read a row."""
    shape = (*places.shape, warps.shape[1])
    flat = np.broadcast_to(places[..., None], shape).reshape(len(leaders), -1)
    who = np.broadcast_to(leaders[:, None, None, None] + warps[:, None, :] * WARP_LANES, shape)
    readers = who.reshape(len(leaders), -1)
    check_read(memory, m, scope, flat.ravel(), readers.ravel())
    memory.hold(flat.ravel(), 1)
    return Held(memory, flat, readers)


def wgmma(stmt: Wgmma, scope: Scope) -> Action:
    columns, elements = stmt.columns, stmt.columns // 2
    left = _operand(stmt.a, stmt.a_indices, GROUP_ROWS, stmt.depth, scope)
    right = _operand(stmt.b, stmt.b_indices, columns, stmt.depth, scope)
    sums, rows_of = fragment_rows(stmt.d, stmt.d_indices, elements, stmt.d.shape[-1], scope)
    own = (np.arange(GROUP_ROWS) // 16)[:, None]
    every = np.broadcast_to(np.arange(4), (columns, 4))
    row, column = _places(columns)
    what = "a product of a warp group"

    def run(m: Machine) -> None:
        leaders = _leaders(m, what, scope)
        m.order.meet(len(m.order.sizes) - 1, m.running((m.threads,)))
        (a_memory, a), (b_memory, b) = left(m, leaders), right(m, leaders)
        held = (_hold(a_memory, a, leaders, own, m, scope), _hold(b_memory, b, leaders, every, m, scope))
        rows = rows_of(m)
        threads = leaders[:, None] + np.arange(GROUP_THREADS)
        value = sums.data[rows][:, threads].transpose(1, 0, 2)  # [groups, elements, 128]
        fresh = np.ones(len(leaders), dtype=np.bool_)
        for earlier in m.products:
            if earlier.sums is sums and earlier.rows == rows:
                mine, at = np.nonzero(leaders[:, None] == earlier.leaders)
                value[mine], fresh[mine] = earlier.value[at], False
        missing = fresh & ~sums.written[rows][:, threads].all(axis=(0, 2))
        if missing.any():
            said = f"{sums.name(rows.start)} and the sums after it are read before they are written"
            raise scope.fault(said, m, int(leaders[missing][0]), stmt.d.name)
        products = a_memory.data[a] @ b_memory.data[b].transpose(0, 2, 1)
        value = value + products[:, row, column]
        sums.written[rows.start : rows.stop, threads] = False
        sums.full[rows] = [False] * elements
        m.products.append(Started(sums, rows, leaders, m.started[leaders], value, held))
        m.started[threads.ravel()] += 1

    return run


def await_wgmma(stmt: AwaitWgmma, scope: Scope) -> Action:
    def run(m: Machine) -> None:
        leaders = _leaders(m, "a wait of a warp group", scope)
        m.order.meet(len(m.order.sizes) - 1, m.running((m.threads,)))
        under_way: list[Started] = []
        ended: list[Started] = []
        for started in m.products:
            ready = (started.number < m.started[started.leaders] - stmt.pending) & np.isin(started.leaders, leaders)
            ended.append(started.part(ready))
            if not ready.all():
                under_way.append(started.part(~ready))
        m.products[:] = under_way
        for number, started in enumerate(ended):
            later = [s for s in (*ended[number + 1 :], *under_way) if s.sums is started.sums and s.rows == started.rows]
            _end(started, later, m, scope)

    return run


def _end(started: Started, later: list[Started], m: Machine, scope: Scope) -> None:
    """The operands are free; the sums are there, unless ``later`` products go on with them."""
    for held in started.held:
        held.memory.hold(held.places.ravel(), -1)
        assert held.memory.touches is not None
        held.memory.touches.note_read(m.order, held.places.ravel(), held.readers.ravel())
    last = np.ones(len(started.leaders), dtype=np.bool_)
    for other in later:
        last &= ~np.isin(started.leaders, other.leaders)
    final = started.part(last)
    sums, rows, threads = final.sums, final.rows, final.threads
    touched = sums.written[rows][:, threads].any(axis=(0, 2))
    if touched.any():
        said = f"{sums.name(rows.start)} or a sum after it is written while a product into them is under way"
        raise scope.fault(said, m, int(final.leaders[touched][0]), sums.buffer.name)
    sums.data[rows.start : rows.stop, threads] = final.value.transpose(1, 0, 2)
    sums.written[rows.start : rows.stop, threads] = True
