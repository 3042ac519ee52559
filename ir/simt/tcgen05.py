"""``tcgen05`` in the interpreter of launches: tensor memory, and products that one thread issues.

A product is computed at once. Until a phase has ended to which its thread committed it, though, nothing may access its
accumulators but further products of that thread, and what it reads must not change. Who has waited for such a phase, or
for a later one of the same thread, knows that the product is done.
"""

from dataclasses import dataclass, field

import numpy as np

from ..expr import WARP_LANES, Expr
from ..gpu.tcgen05 import (
    HALF_LANES,
    QUARTER_LANES,
    TensorMemoryAllocate,
    TensorMemoryCommit,
    TensorMemoryDeallocate,
    TensorMemoryLoad,
    TensorMemoryMma,
)
from ..interpreter.memory import Array
from .access import write_private
from .address import shared_flat
from .context import LaunchAction, LaunchContext, LaunchState
from .expressions import value_closure
from .happens_before import PhaseCompletion
from .mbarrier import ReleasedClock, check_initialised, completed_by_cluster, mbarrier_offsets, mbarriers_of
from .memory import TensorMemory
from .mma import fragment, fragment_rows
from .race_check import check_read, spread
from .wgmma import WgmmaOperand, matrix_operand, operand_matrix

QUARTERS = 4


@dataclass
class MmaInFlight:
    """A TensorMemoryMma of one thread, the one with the position ``thread``. ``flat`` are its accumulators.
    ``completion`` is the number of that of the first commit after it, -1 before that."""

    thread: int
    memory: TensorMemory
    flat: Array
    operands: tuple[WgmmaOperand, ...]
    completion: int = -1


@dataclass
class IssuedMmas:
    """What one thread has issued: its products in flight, and the completions that its commits have brought or will
    bring, by their numbers."""

    in_flight: list[MmaInFlight] = field(default_factory=list)
    completions: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class CommittedMmas:
    """The products of a thread that a phase waits for: all that are in flight."""

    issued: IssuedMmas
    mmas: tuple[MmaInFlight, ...]

    def complete(self, state: LaunchState, completion: int) -> None:
        """The products are done, unless they were done before."""
        now = state.order.now
        for mma in self.mmas:
            if not any(mma is other for other in self.issued.in_flight):
                continue
            for operand in mma.operands:
                flat, history = operand.flat.ravel(), operand.memory.history
                operand.memory.count_reads(flat, -1)
                assert history is not None
                warp = mma.thread % state.launch.threads // WARP_LANES
                history.record_tcgen05_reads(flat, warp, mma.completion, now)
            history = mma.memory.history
            assert history is not None
            mma.memory.count_writes(mma.flat, -1)
            history.writer[mma.flat], history.time[mma.flat] = -2 - mma.completion, now
        self.issued.in_flight[:] = [m for m in self.issued.in_flight if not any(m is done for done in self.mmas)]


def _tensor_memory(name: str, context: LaunchContext) -> TensorMemory:
    memory = context.shared[name]
    assert isinstance(memory, TensorMemory)
    return memory


def tensor_memory_allocate(stmt: TensorMemoryAllocate, context: LaunchContext) -> LaunchAction:
    memory, name = _tensor_memory(stmt.buffer.name, context), stmt.buffer.name

    def run(state: LaunchState) -> None:
        blocks = _whole_blocks(state, f"the allocation of tensor memory {name}", context)
        if memory.allocated[blocks].any():
            raise context.fault(f"tensor memory {name} is allocated twice", state, _first(state, blocks), name)
        memory.allocated[blocks] = True
        memory.forget(blocks)
        state.order.synchronise(state.order.block_level, state.running((state.threads,)))

    return run


def tensor_memory_deallocate(stmt: TensorMemoryDeallocate, context: LaunchContext) -> LaunchAction:
    memory, name = _tensor_memory(stmt.buffer.name, context), stmt.buffer.name

    def run(state: LaunchState) -> None:
        blocks = _whole_blocks(state, f"the deallocation of tensor memory {name}", context)
        first = _first(state, blocks)
        if not memory.allocated[blocks].all():
            raise context.fault(f"tensor memory {name} is deallocated before it is allocated", state, first, name)
        if (memory.writes_in_flight.reshape(state.blocks, -1)[blocks] > 0).any():
            what = f"tensor memory {name} is deallocated while a tcgen05.mma in flight accumulates in it"
            raise context.fault(what, state, first, name)
        state.order.synchronise(state.order.block_level, state.running((state.threads,)))
        memory.allocated[blocks] = False

    return run


def _whole_blocks(state: LaunchState, what: str, context: LaunchContext) -> Array:
    """Return which blocks run: bool[blocks]."""
    who = state.converged(state.launch.threads, what, context)
    return np.ones(state.blocks, dtype=np.bool_) if who is None else who.reshape(state.blocks, -1)[:, 0]


def _first(state: LaunchState, blocks: Array) -> int:
    return int(blocks.argmax()) * state.launch.threads


def _check_allocated(memory: TensorMemory, state: LaunchState, context: LaunchContext, who: Array) -> None:
    there = memory.allocated[state.block[who]]
    if not there.all():
        name = memory.buffer.name
        what = f"tensor memory {name} is accessed while it is not allocated"
        raise context.fault(what, state, int(who[there.argmin()]), name)


def tensor_memory_mma(stmt: TensorMemoryMma, context: LaunchContext) -> LaunchAction:
    memory = _tensor_memory(stmt.d.name, context)
    first_of = shared_flat(stmt.d_indices, memory, context, value_closure)
    matrices = [
        matrix_operand(buffer, indices, (rows, rows), stmt.k, transposed, context, threads=1, instruction="tcgen05.mma")
        for buffer, indices, rows, transposed in (
            (stmt.a, stmt.a_indices, stmt.m, stmt.a_transposed),
            (stmt.b, stmt.b_indices, stmt.n, stmt.b_transposed),
        )
    ]
    accumulates = value_closure(stmt.accumulates, context) if isinstance(stmt.accumulates, Expr) else None
    row = np.arange(stmt.m)
    lanes = row if stmt.m == QUARTERS * QUARTER_LANES else row // HALF_LANES * QUARTER_LANES + row % HALF_LANES
    steps = lanes[:, None] * stmt.d.shape[-1] + np.arange(stmt.n)

    def run(state: LaunchState) -> None:
        first, who = spread(state, first_of(state), 1)
        _check_allocated(memory, state, context, who)
        adds = np.broadcast_to(
            np.asarray(stmt.accumulates if accumulates is None else accumulates(state)), state.threads
        )
        a, b = (matrix(state, who) for matrix in matrices)
        product = operand_matrix(a, stmt.m, stmt.k) @ operand_matrix(b, stmt.n, stmt.k).transpose(0, 2, 1)
        for n, thread in enumerate(who.tolist()):
            flat = (first[n] + steps).ravel()
            _begin(memory, state, context, flat, thread, bool(adds[thread]))
            value = product[n].ravel().astype(memory.data.dtype)
            memory.data[flat] = memory.data[flat] + value if adds[thread] else value
            operands = tuple(WgmmaOperand(operand.memory, operand.flat[n]) for operand in (a, b))
            for operand in operands:
                operand.memory.count_reads(operand.flat, 1)
            memory.count_writes(flat, 1)
            state.tcgen05.setdefault(thread, IssuedMmas()).in_flight.append(MmaInFlight(thread, memory, flat, operands))

    return run


def _begin(
    memory: TensorMemory, state: LaunchState, context: LaunchContext, flat: Array, thread: int, adds: bool
) -> None:
    """A product of a thread begins to accumulate in ``flat``. Raises where another thread's product is in flight there,
    and where nothing orders it after what others did; what the thread itself issued before needs no order."""
    assert memory.written is not None and memory.history is not None
    history, order, who, name = memory.history, state.order, np.full(len(flat), thread), memory.buffer.name
    number = order.ids[thread]
    others = flat[memory.issuer[flat] != number]
    busy = others[memory.writes_in_flight[others] > 0]
    if len(busy):
        what = f"{memory.name(int(busy[0]))} is accumulated in while a tcgen05.mma of another thread does so"
        raise context.fault(what, state, thread, name)
    if adds:
        written = memory.written[flat]
        if not written.all():
            what = f"{memory.name(int(flat[written.argmin()]))} is read before it is written"
            raise context.fault(what, state, thread, name)
    race = history.racing_writer(order, others, who[: len(others)])
    if race is not None:
        what = f"race on {memory.name(int(others[race]))}: accumulated in here and by another thread, with nothing to"
        raise context.fault(f"{what} order them", state, thread, name)
    found = history.racing_reader(order, flat, who)
    if found is not None:
        reader = context.thread_name(found[1], state)
        what = f"race on {memory.name(int(flat[found[0]]))}: accumulated in here, read by {reader}"
        raise context.fault(f"{what}, with nothing to order them", state, thread, name)
    history.record_write(order, flat, who)
    memory.written[flat] = True
    memory.issuer[flat] = number


def tensor_memory_commit(stmt: TensorMemoryCommit, context: LaunchContext) -> LaunchAction:
    memory, offset_of = mbarrier_offsets(stmt.barriers, stmt.index, context)
    mask_of = None if stmt.multicast is None else value_closure(stmt.multicast, context)

    def run(state: LaunchState) -> None:
        offsets, who = spread(state, offset_of(state), 1)
        order, mbarriers, size = state.order, mbarriers_of(state, memory), state.order.groups.cluster
        masks = None if mask_of is None else spread(state, mask_of(state), 1)[0]
        completed, span = completed_by_cluster(state), memory.span * state.cluster
        order.now += 1
        for n, thread in enumerate(who.tolist()):
            rank, targets = int(state.block[thread]) % state.cluster, [0]
            if masks is not None:
                if not 0 < masks[n] < 1 << state.cluster:
                    what = f"a commit to blocks {bin(int(masks[n]))} of a cluster of {state.cluster}"
                    raise context.fault(what, state, thread)
                targets = [block - rank for block in range(state.cluster) if int(masks[n]) >> block & 1]
                state.cluster_uses[thread] = order.now
            issued = state.tcgen05.setdefault(thread, IssuedMmas())
            order.completions.append(PhaseCompletion(np.zeros(state.threads, np.bool_), int(state.block[thread])))
            number = len(order.completions) - 1
            issued.completions.append(number)
            # the data that the products read has arrived, as this thread has found
            known = completed.get(int(offsets[n]) // span, ())
            brought = {*issued.completions, *(c for c in known if order.completions[c].waited[thread])}
            for started in issued.in_flight:
                started.completion = number if started.completion < 0 else started.completion
            committed = CommittedMmas(issued, tuple(issued.in_flight))
            for distance in targets:
                offset = int(offsets[n]) + distance * memory.span
                check_initialised(memory, state, context, np.array([offset]), np.array([thread]))
                mbarriers.arrive(offset, thread, state, context)
                mbarriers.copies.setdefault(offset, []).append(committed)
                nothing = ReleasedClock(np.full((order.kinds, size), -1, dtype=np.int64))
                mbarriers.releasing.setdefault(offset, nothing).completions.update(brought)

    return run


def tensor_memory_load(stmt: TensorMemoryLoad, context: LaunchContext) -> LaunchAction:
    memory, count = _tensor_memory(stmt.source.name, context), stmt.columns // 2
    first_of = shared_flat(stmt.source_indices, memory, context, value_closure)
    target, rows_of = fragment_rows(stmt.target, stmt.target_indices, count, stmt.target.shape[-1], context)
    rows, columns = fragment("m16n8k16_f16", "d")  # int64[lanes, 4], of every 8 columns
    width = stmt.source.shape[-1]
    steps = rows[:, None] * width + columns[:, None] + np.arange(stmt.columns // 8)[:, None] * 8
    by_lane = steps.reshape(WARP_LANES, count).T  # [columns / 2, lanes]

    def run(state: LaunchState) -> None:
        active = state.converged(WARP_LANES, "a load from tensor memory", context)
        state.order.synchronise(state.order.warp_level, active)
        quarter = state.thread // WARP_LANES % QUARTERS
        first = np.broadcast_to(first_of(state), (state.threads,)) + quarter * (QUARTER_LANES * width)
        flat = first + by_lane[:, state.thread % WARP_LANES]
        who = np.broadcast_to(state.positions, flat.shape)
        if active is not None:
            flat, who = np.where(active, flat, 0), who[:, active]
        read = (flat if active is None else flat[:, active]).ravel()
        _check_allocated(memory, state, context, who[0])
        check_read(memory, state, context, read, who.ravel())
        write_private(target, state, rows_of(state), memory.data[flat])

    return run
