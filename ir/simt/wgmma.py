"""``wgmma`` in the interpreter of launches.

A product is computed at once. Until it has been awaited, though, nothing may access its accumulators but another wgmma
on the very same ones, and what it reads must not change.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from ..buffer import Buffer, MemoryScope
from ..expr import WARP_LANES, Expr
from ..gpu.barrier import WARPGROUP_THREADS
from ..gpu.mma import MmaAtom
from ..gpu.tma import tma_swizzle
from ..gpu.wgmma import LINE_BYTES, STEP_BYTES, WGMMA_ATOMS, WGMMA_M, WarpgroupMma, WarpgroupMmaWait
from ..interpreter.memory import Array
from .access import check_private, write_private
from .address import shared_flat
from .context import LaunchAction, LaunchContext, LaunchState
from .expressions import value_closure
from .happens_before import run_starts
from .memory import PrivateMemory, SharedMemory
from .mma import fragment, fragment_rows
from .race_check import check_fenced, check_read


@dataclass(frozen=True)
class WgmmaOperand:
    """What warpgroups read of one operand: int64[warpgroups, elements] offsets. ``counts``: how many rows count for
    each of them, where that is not all."""

    memory: SharedMemory
    flat: Array
    counts: Array | None = None

    def awaited(self, state: LaunchState, leaders: Array) -> None:
        """The warpgroups whose first threads are at the positions ``leaders`` have awaited the wgmma."""
        self.memory.count_reads(self.flat.ravel(), -1)
        assert self.memory.history is not None
        self.memory.history.record_wgmma_reads(state.order, self.flat, leaders)


@dataclass(frozen=True)
class WgmmaInFlight:
    """A WarpgroupMma in flight, for all warpgroups that started it.

    ``leaders`` is int64[warpgroups]: the positions of their first threads. ``number`` is int64[warpgroups]: how many
    wgmmas each had started before. ``threads`` is bool[threads]: all threads of those warpgroups. ``rows`` are those of
    the private buffer ``accumulators``, and ``fragment_rows`` those of operand ``a`` in ``fragments``, where that is in
    registers.
    """

    leaders: Array
    number: Array
    threads: Array
    accumulators: PrivateMemory
    rows: slice
    operands: tuple[WgmmaOperand, ...]
    fragments: PrivateMemory | None
    fragment_rows: slice | None

    def subset(self, chosen: Array) -> "WgmmaInFlight":
        if chosen.all():
            return self
        operands = tuple(replace(o, flat=o.flat[chosen]) for o in self.operands)
        leaders = self.leaders[chosen]
        threads = np.zeros_like(self.threads)
        threads[_warpgroup_threads(leaders)] = True
        return replace(self, leaders=leaders, number=self.number[chosen], threads=threads, operands=operands)


@dataclass(frozen=True)
class _OperandA:
    """Operand ``a`` as warpgroups read it: ``matrix`` is float32[warpgroups, rows, k]. It lies in shared memory, as
    ``operands`` says, or in ``rows`` of the private buffer ``fragments``."""

    matrix: Array
    operands: tuple[WgmmaOperand, ...]
    fragments: PrivateMemory | None = None
    rows: slice | None = None


def warpgroup_mma(stmt: WarpgroupMma, context: LaunchContext) -> LaunchAction:
    d, rows_of = fragment_rows(stmt.d, stmt.d_indices, stmt.n // 2, stmt.d.shape[-1], context, accumulators=True)
    a_of = _operand_a(stmt, context)
    columns_count = stmt.n if stmt.valid_columns is None else stmt.valid_columns
    sides = (columns_count, stmt.n)
    leading = stmt.b_leading_lines
    b_of = matrix_operand(stmt.b, stmt.b_indices, sides, stmt.k, stmt.b_transposed, context, leading_lines=leading)
    accumulates = value_closure(stmt.accumulates, context) if isinstance(stmt.accumulates, Expr) else None
    rows, columns = fragment("m16n8k16_f16", "d")  # of every warp's 16 rows and every 8 columns

    def run(state: LaunchState) -> None:
        who = state.running((state.threads,))
        leaders = state.warpgroups("a wgmma", context)
        lanes = _warpgroup_threads(leaders)
        state.order.synchronise(state.order.warp_level, who)
        a, b = a_of(state, leaders), b_of(state, leaders)
        product = np.full((len(leaders), WGMMA_M, stmt.n), np.nan, dtype=np.float32)
        factor = operand_matrix(b, stmt.k).transpose(0, 2, 1)
        product[:, : a.matrix.shape[1], : factor.shape[2]] = a.matrix @ factor
        if not stmt.d.dtype.is_float:  # sums of a line of products of 8-bit integers are exact in float32
            product = np.nan_to_num(product).astype(d.data.dtype)
        at = rows_of(state)
        scale_d = stmt.accumulates if accumulates is None else accumulates(state)
        adds = np.broadcast_to(np.asarray(scale_d), (state.threads,))
        adds = adds if who is None else adds & who
        if adds.any() and not all(d.full[at]):
            check_private(d, state, context, at, adds)
        by_tile = product.reshape(-1, 16, stmt.n // 8, 8)[:, rows, :, columns]  # [32, 4, warps, n // 8]
        value = np.where(adds, d.data[at].reshape(-1, state.threads), 0)
        value[:, lanes.ravel()] += by_tile.transpose(3, 1, 2, 0).reshape(stmt.n // 2, -1)
        write_private(d, state, at, value)
        read = (*a.operands, b)
        for operand in read:
            operand.memory.count_reads(operand.flat.ravel(), 1)
        threads = np.ones(state.threads, dtype=np.bool_) if who is None else who
        number = state.started_wgmmas[leaders]
        state.wgmmas.append(WgmmaInFlight(leaders, number, threads, d, at, read, a.fragments, a.rows))
        state.started_wgmmas[leaders] += 1
        state.order.synchronise(state.order.warp_level, who)

    return run


def _operand_a(stmt: WarpgroupMma, context: LaunchContext) -> Callable[[LaunchState, Array], _OperandA]:
    """Return a closure that gives operand ``a`` of the warpgroups with some first threads."""
    if stmt.a.scope is not MemoryScope.REGISTER:
        sides, any_line = (stmt.valid_rows, WGMMA_M), not stmt.a_transposed
        shared = matrix_operand(stmt.a, stmt.a_indices, sides, stmt.k, stmt.a_transposed, context, any_line=any_line)

        def from_shared(state: LaunchState, leaders: Array) -> _OperandA:
            operand = shared(state, leaders)
            return _OperandA(operand_matrix(operand, stmt.k), (operand,))

        return from_shared
    memory, rows_of = fragment_rows(stmt.a, stmt.a_indices, stmt.k // 2, stmt.a.shape[-1], context, reads_only=True)
    atom = WGMMA_ATOMS[stmt.a.dtype.name, stmt.b.dtype.name].fragment
    assert atom is not None

    def from_registers(state: LaunchState, leaders: Array) -> _OperandA:
        rows = rows_of(state)
        if not all(memory.full[rows]):
            check_private(memory, state, context, rows, state.running((state.threads,)))
        return _OperandA(_from_fragments(atom, memory.data[rows], _warpgroup_threads(leaders)), (), memory, rows)

    return from_registers


def warpgroup_mma_wait(stmt: WarpgroupMmaWait, context: LaunchContext) -> LaunchAction:
    after = None if stmt.after is None else value_closure(stmt.after, context)

    def run(state: LaunchState) -> None:
        if after is not None:
            after(state)
        who = state.running((state.threads,))
        waiting = np.zeros(state.threads, dtype=np.bool_)
        waiting[state.warpgroups("a wait for wgmmas", context)] = True
        state.order.synchronise(state.order.warp_level, who)
        left: list[WgmmaInFlight] = []
        for wgmma in state.wgmmas:
            done = waiting[wgmma.leaders] & (wgmma.number < state.started_wgmmas[wgmma.leaders] - stmt.pending)
            if done.any():
                ended = wgmma.subset(done)
                for operand in ended.operands:
                    operand.awaited(state, ended.leaders)
            if not done.all():
                left.append(wgmma.subset(~done))
        state.wgmmas[:] = left
        state.order.synchronise(state.order.warp_level, who)

    return run


def _warpgroup_threads(leaders: Array) -> Array:
    """Return the positions of all threads of warpgroups: int64[warpgroups, 128]."""
    threads: Array = leaders[:, None] + np.arange(WARPGROUP_THREADS)
    return threads


def _from_fragments(atom: MmaAtom, held: Array, lanes: Array) -> Array:
    """Return operand ``a`` of warpgroups, float32[warpgroups, 64, k], from what all threads hold of it: [k / 2,
    threads]. ``lanes`` is int64[warpgroups, 128]."""
    rows, columns = fragment(atom.name, "a")
    elements = atom.elements("a")
    warpgroups, steps = len(lanes), len(held) // elements
    by_warp = held.reshape(steps, elements, -1)[:, :, lanes].reshape(steps, elements, warpgroups, 4, WARP_LANES)
    whole = np.zeros((warpgroups, 4, steps, atom.m, atom.k), dtype=np.float32)
    whole[..., rows, columns] = by_warp.transpose(2, 3, 0, 4, 1)
    matrix: Array = whole.transpose(0, 1, 3, 2, 4).reshape(warpgroups, WGMMA_M, steps * atom.k)
    return matrix


def operand_matrix(operand: WgmmaOperand, k: int) -> Array:
    """float32[warpgroups, rows, k]. Rows that do not count are NaN."""
    shape = (len(operand.flat), operand.flat.shape[1] // k, k)
    values: Array = operand.memory.data[operand.flat].astype(np.float32).reshape(shape)
    if operand.counts is not None:
        values[np.arange(shape[1]) >= operand.counts[:, None]] = np.nan
    return values


def matrix_operand(
    buffer: Buffer,
    indices: tuple[Expr, ...],
    rows: tuple[int | Expr, int],
    k: int,
    transposed: bool,
    context: LaunchContext,
    *,
    threads: int = WARPGROUP_THREADS,
    instruction: str = "wgmma",
    leading_lines: int | None = None,
    any_line: bool = False,
) -> Callable[[LaunchState, Array], WgmmaOperand]:
    """Return a closure that gives the operand of the groups of ``threads`` threads with some first threads, row by row:
    warpgroups that reach a wgmma, or single threads that issue another ``instruction``. ``rows`` are how many rows
    count, and how many must be there. ``leading_lines``: as ``b_leading_lines`` of a WarpgroupMma. ``any_line``:
    whether the first line may have a number that 8 does not divide."""
    memory = context.shared[buffer.name]
    assert isinstance(memory, SharedMemory)
    address = shared_flat(indices, memory, context, value_closure)
    row, column = np.arange(rows[1], dtype=np.int64)[:, None], np.arange(k, dtype=np.int64)
    line, swizzle = LINE_BYTES // buffer.dtype.bytes, tma_swizzle(buffer.dtype)
    period = line << swizzle.bits  # elements until the swizzle begins anew
    steps = row * line + column  # [rows, k], before the swizzle
    if transposed:
        stride = buffer.strides[-3] if len(buffer.shape) > 2 else 0
        stride = stride if leading_lines is None else leading_lines * line
        steps = row // line * stride + row % line + column * line
    end = int(steps.max())
    count_of = value_closure(rows[0], context) if isinstance(rows[0], Expr) else None
    steps = steps[: rows[1] if isinstance(rows[0], Expr) else rows[0]].ravel()
    mask = (1 << swizzle.bits) - 1

    def swizzle_of(linear: Array) -> Array:
        found: Array = linear ^ (((linear >> (swizzle.base + swizzle.shift)) & mask) << swizzle.base)
        return found

    @cache
    def swizzled(in_period: int) -> Array:
        """Return the offsets of the elements from the beginning of a period, where the first lies at ``in_period``."""
        return swizzle_of(in_period + steps)

    def operand(state: LaunchState, leaders: Array) -> WgmmaOperand:
        begin = np.broadcast_to(address(state), (state.threads,))[leaders[:, None] + np.arange(threads)]
        first = begin[:, 0]
        offset = swizzle_of(first % memory.span)  # where it lies before the swizzle, which is its own inverse
        in_line, in_period = offset % line, offset % period
        wrong = (begin != first[:, None]).any(axis=1) | (offset % (STEP_BYTES // buffer.dtype.bytes) != 0)
        wrong |= (in_period >= line) & (not any_line)
        wrong |= (in_line != 0) & (in_line + (rows[1] if transposed else k) > line)
        wrong |= offset + end >= memory.span
        if wrong.any():
            at = int(wrong.argmax())
            what = f"an operand of a {instruction} at {memory.name(int(first[at]))}, offset {int(offset[at])}"
            what = f"{what}: not aligned, not the same in its threads, or too near the end"
            raise context.fault(what, state, int(leaders[at]))
        begin_of_period = first - first % memory.span + offset - in_period
        flat = begin_of_period[:, None] + np.stack([swizzled(at) for at in in_period.tolist()])
        read, who = flat.ravel(), np.repeat(leaders, flat.shape[1])
        counts = None
        if count_of is not None:
            counts = np.broadcast_to(count_of(state), (state.threads,))[leaders]
            counted = np.repeat(np.arange(rows[1]) < counts[:, None], k, axis=1).ravel()
            read, who = read[counted], who[counted]
        check_read(memory, state, context, read, who, record=False)
        assert memory.history is not None
        first_of_run = run_starts(memory.history.writer[read], memory.history.time[read], who)
        read, who = read[first_of_run], who[first_of_run]
        check_fenced(memory, state, context, read, who)
        for warp in range(WARP_LANES, threads, WARP_LANES):  # all of it must be ordered before each warp
            check_read(memory, state, context, read, who + warp, record=False)
            check_fenced(memory, state, context, read, who + warp)
        return WgmmaOperand(memory, flat, counts)

    return operand
