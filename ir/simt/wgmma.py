"""Products of warpgroups in the interpreter of launches.

They are worked out at once, but what they add to and what they read is given up until they have been awaited.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..buffer import Buffer
from ..expr import WARP_LANES, Expr
from ..gpu import SWIZZLE_128B, SWIZZLE_128B_ELEMENTS, WARPGROUP_THREADS, WGMMA_M, WarpgroupMma, WarpgroupMmaWait
from ..memory import Array
from .access import check_fenced, check_private, check_read, write_private
from .address import shared_flat
from .memory import PrivateMemory, SharedMemory
from .scope import Machine, Scope
from .values import value_code
from .warp_mma import fragment, fragment_rows

Action = Callable[[Machine], None]
_WHOLE = SWIZZLE_128B_ELEMENTS << SWIZZLE_128B.bits  # elements until the swizzle begins anew


@dataclass(frozen=True)
class _Operand:
    """What groups read of one operand: [groups, elements] places."""

    memory: SharedMemory
    flat: Array

    def note(self, m: Machine, leaders: Array) -> None:
        """The first threads of the groups have awaited it."""
        self.memory.mark_read(self.flat.ravel(), -1)
        assert self.memory.touches is not None
        self.memory.touches.note_products(m.order, self.flat, leaders)


@dataclass(frozen=True)
class _Product:
    """Products of one statement under way. ``leaders``: int64[groups], ``number``: int64[groups], how many their groups
    had started before; ``threads``: bool[threads], all of those groups."""

    leaders: Array
    number: Array
    threads: Array
    sums: PrivateMemory
    rows: slice
    operands: tuple[_Operand, ...]

    def part(self, chosen: Array) -> "_Product":
        operands = tuple(_Operand(o.memory, o.flat[chosen]) for o in self.operands)
        leaders = self.leaders[chosen]
        threads = np.zeros_like(self.threads)
        threads[_lanes(leaders)] = True
        return _Product(leaders, self.number[chosen], threads, self.sums, self.rows, operands)


def warpgroup_mma(stmt: WarpgroupMma, scope: Scope) -> Action:
    sums, rows_of = fragment_rows(stmt.d, stmt.d_indices, stmt.columns // 2, stmt.d.shape[-1], scope, sums=True)
    a = _operand(stmt.a, stmt.a_indices, (stmt.rows, WGMMA_M), stmt.depth, stmt.a_transposed, scope)
    b = _operand(stmt.b, stmt.b_indices, (stmt.columns,) * 2, stmt.depth, stmt.b_transposed, scope)
    accumulates = value_code(stmt.accumulates, scope) if isinstance(stmt.accumulates, Expr) else None
    rows, columns = fragment("m16n8k16_f16", "d")  # of every warp's 16 rows and every 8 columns
    tiles = stmt.columns // 8

    def run(m: Machine) -> None:
        who = m.running((m.threads,))
        leaders = m.warpgroups("a product of a warpgroup", scope)
        lanes = _lanes(leaders)
        m.order.meet(m.order.warp_level, who)
        left, right = a(m, leaders), b(m, leaders)
        products = np.full((len(leaders), WGMMA_M, stmt.columns), np.nan, dtype=np.float32)
        transposed = _matrix(right, stmt.columns, stmt.depth).transpose(0, 2, 1)
        products[:, : stmt.rows] = _matrix(left, stmt.rows, stmt.depth) @ transposed
        place = rows_of(m)
        adds = np.broadcast_to(np.asarray(stmt.accumulates if accumulates is None else accumulates(m)), (m.threads,))
        adds = adds if who is None else adds & who
        if adds.any() and not all(sums.full[place]):
            check_private(sums, m, scope, place, adds)
        by_tile = products.reshape(-1, 16, tiles, 8)[:, rows, :, columns]  # [32, 4, warps, tiles]
        value = np.where(adds, sums.data[place].reshape(-1, m.threads), 0)
        value[:, lanes.ravel()] += by_tile.transpose(3, 1, 2, 0).reshape(stmt.columns // 2, -1)
        write_private(sums, m, place, value)
        for operand in (left, right):
            operand.memory.mark_read(operand.flat.ravel(), 1)
        threads = np.ones(m.threads, dtype=np.bool_) if who is None else who
        m.products.append(_Product(leaders, m.started[leaders], threads, sums, place, (left, right)))
        m.started[leaders] += 1
        m.order.meet(m.order.warp_level, who)

    return run


def warpgroup_mma_wait(stmt: WarpgroupMmaWait, scope: Scope) -> Action:
    def run(m: Machine) -> None:
        who = m.running((m.threads,))
        waiting = np.zeros(m.threads, dtype=np.bool_)
        waiting[m.warpgroups("a wait for products", scope)] = True
        m.order.meet(m.order.warp_level, who)
        under_way: list[_Product] = []
        for product in m.products:
            done = waiting[product.leaders] & (product.number < m.started[product.leaders] - stmt.pending)
            ended = product.part(done)
            for operand in ended.operands:
                operand.note(m, ended.leaders)
            if not done.all():
                under_way.append(product.part(~done))
        m.products[:] = under_way
        m.order.meet(m.order.warp_level, who)

    return run


def _lanes(leaders: Array) -> Array:
    """int64[groups, 128]: all threads of groups."""
    threads: Array = leaders[:, None] + np.arange(WARPGROUP_THREADS)
    return threads


def _matrix(operand: _Operand, rows: int, depth: int) -> Array:
    values: Array = operand.memory.data[operand.flat].astype(np.float32).reshape(-1, rows, depth)
    return values


def _operand(
    buffer: Buffer, indices: tuple[Expr, ...], counts: tuple[int, int], depth: int, transposed: bool, scope: Scope
) -> Callable[[Machine, Array], _Operand]:
    """Code that gives the operand of the warpgroups with some first threads, row by row; ``counts``: of rows that count
    and of rows that must be there."""
    memory = scope.shared[buffer.name]
    assert isinstance(memory, SharedMemory)
    address = shared_flat(indices, memory, scope, value_code)
    row, column = np.arange(counts[1], dtype=np.int64)[:, None], np.arange(depth, dtype=np.int64)
    run = row * SWIZZLE_128B_ELEMENTS + column
    if transposed:
        apart = buffer.strides[-3] if len(buffer.shape) > 2 else 0
        run = row // SWIZZLE_128B_ELEMENTS * apart + row % SWIZZLE_128B_ELEMENTS + column * SWIZZLE_128B_ELEMENTS
    end = int(run.max())
    run = run[: counts[0]]

    def places(m: Machine, leaders: Array) -> _Operand:
        begin = np.broadcast_to(address(m), (m.threads,))[_lanes(leaders)]
        first = begin[:, 0]
        inside = first % memory.span
        wrong = (begin != first[:, None]).any(axis=1) | (inside % _WHOLE >= SWIZZLE_128B_ELEMENTS) | (inside % 16 != 0)
        wrong |= (
            inside % SWIZZLE_128B_ELEMENTS + (SWIZZLE_128B_ELEMENTS if transposed else depth) > SWIZZLE_128B_ELEMENTS
        )
        wrong |= inside + end >= memory.span
        if wrong.any():
            at = int(wrong.argmax())
            what = f"an operand of a warpgroup at {memory.name(int(first[at]))}, place {int(inside[at])}"
            raise scope.fault(
                f"{what}: not aligned, not the same in its threads, or too near the end", m, int(leaders[at])
            )
        logical = inside[:, None, None] + run
        mask = (1 << SWIZZLE_128B.bits) - 1
        place = logical ^ (((logical >> (SWIZZLE_128B.base + SWIZZLE_128B.shift)) & mask) << SWIZZLE_128B.base)
        flat = ((first - inside)[:, None, None] + place).reshape(len(leaders), -1)
        for warp in range(0, WARPGROUP_THREADS, WARP_LANES):  # each warp must know of all of it
            told = np.repeat(leaders + warp, flat.shape[1])
            check_read(memory, m, scope, flat.ravel(), told, note=False)
            check_fenced(memory, m, scope, flat.ravel(), told)
        return _Operand(memory, flat)

    return places
