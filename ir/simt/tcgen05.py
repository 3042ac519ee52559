"""``tcgen05`` in the interpreter of launches: tensor memory, and products that one thread issues.

A product is computed at once. Until a phase has ended to which its thread committed it, though, nothing may access its
accumulators but further products of that thread, and what it reads must not change. Who has waited for such a phase, or
for a later one of the same thread, knows that the product is done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from ..buffer import Buffer
from ..expr import WARP_LANES, Expr
from ..gpu.tcgen05 import (
    BLOCK_SCALED_ATOMS,
    CHUNK_BYTES,
    HALF_LANES,
    QUARTER_LANES,
    SCALE_COLUMNS,
    SCALE_ROWS,
    SCALES_PER_COLUMN,
    TENSOR_LANES,
    BlockScaledMma,
    TensorMemoryAllocate,
    TensorMemoryCommit,
    TensorMemoryCopy,
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
from .memory import SharedMemory, TensorMemory
from .mma import fragment, fragment_rows
from .race_check import check_fenced, check_read, spread
from .wgmma import WgmmaOperand, matrix_operand, operand_matrix

QUARTERS = 4
MMA = "tcgen05.mma"


@dataclass
class MmaInFlight:
    """A product or a copy to tensor memory of the thread with the position ``thread``. ``flat`` is what it writes.
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
                if isinstance(operand.memory, TensorMemory):
                    continue  # what the thread issues next to tensor memory follows by itself
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


Products = Callable[[LaunchState, Array], tuple[Array, tuple[WgmmaOperand, ...]]]
"""It gives what the threads at some positions multiply, float[threads, rows, columns], and what they read for it."""


def tensor_memory_mma(stmt: TensorMemoryMma, context: LaunchContext) -> LaunchAction:
    matrices = [
        matrix_operand(buffer, indices, (rows, rows), stmt.k, transposed, context, threads=1, instruction=MMA)
        for buffer, indices, rows, transposed in (
            (stmt.a, stmt.a_indices, stmt.m, stmt.a_transposed),
            (stmt.b, stmt.b_indices, stmt.n, stmt.b_transposed),
        )
    ]

    def multiply(state: LaunchState, who: Array) -> tuple[Array, tuple[WgmmaOperand, ...]]:
        a, b = (matrix(state, who) for matrix in matrices)
        product = operand_matrix(a, stmt.k) @ operand_matrix(b, stmt.k).transpose(0, 2, 1)
        return product, (a, b)

    return _accumulation(stmt, stmt.m, multiply, context)


def block_scaled_mma(stmt: BlockScaledMma, context: LaunchContext) -> LaunchAction:
    atom = BLOCK_SCALED_ATOMS[stmt.atom]
    bytes, blocks = stmt.k * atom.bits // 8, stmt.k // atom.block
    sides = [
        (
            rows,
            matrix_operand(buffer, indices, (rows, rows), bytes, False, context, threads=1, instruction=MMA),
            _scales_in_tensor_memory(scales, scales_indices, rows, blocks, context),
        )
        for buffer, indices, scales, scales_indices, rows in (
            (stmt.a, stmt.a_indices, stmt.a_scales, stmt.a_scales_indices, SCALE_ROWS),
            (stmt.b, stmt.b_indices, stmt.b_scales, stmt.b_scales_indices, stmt.n),
        )
    ]

    def multiply(state: LaunchState, who: Array) -> tuple[Array, tuple[WgmmaOperand, ...]]:
        scaled, read = list[Array](), list[WgmmaOperand]()
        for rows, matrix, scales_of in sides:
            operand, (scales, held) = matrix(state, who), scales_of(state, who)
            if atom.bits == 8:
                values = operand_matrix(operand, stmt.k)
            else:
                values = _from_halves(operand.memory.data[operand.flat]).reshape(-1, rows, stmt.k)
            factors = _powers_of_two(scales) if atom.powers_of_two else _unsigned_floats(scales)
            scaled.append(values * np.repeat(factors, atom.block, axis=2))
            read += [operand, held]
        return scaled[0] @ scaled[1].transpose(0, 2, 1), tuple(read)

    return _accumulation(stmt, SCALE_ROWS, multiply, context)


def _scales_in_tensor_memory(
    buffer: Buffer, indices: tuple[Expr, ...], rows: int, blocks: int, context: LaunchContext
) -> Callable[[LaunchState, Array], tuple[Array, WgmmaOperand]]:
    """Return a closure that gives the scales of ``rows`` rows, uint8[threads, rows, blocks], and the elements that hold
    them."""
    memory = _tensor_memory(buffer.name, context)
    first_of = shared_flat(indices, memory, context, value_closure)
    columns, groups = -(-rows // SCALE_ROWS) * SCALE_COLUMNS, -(-blocks // SCALES_PER_COLUMN)
    row, group = np.arange(rows)[:, None], np.arange(groups)
    steps = row % QUARTER_LANES * buffer.shape[-1] + row // QUARTER_LANES + group * columns  # [rows, groups]

    def scales(state: LaunchState, who: Array) -> tuple[Array, WgmmaOperand]:
        _check_allocated(memory, state, context, who)
        flat = np.broadcast_to(first_of(state), state.threads)[who][:, None, None] + steps
        assert memory.written is not None
        for elements, thread in zip(flat, who.tolist(), strict=True):
            missing = ~memory.written[elements]
            if missing.any():
                what = f"{memory.name(int(elements[missing][0]))} is read before it is written"
                raise context.fault(what, state, thread, buffer.name)
            others = elements[memory.issuer[elements] != state.order.ids[thread]]
            check_read(memory, state, context, others, np.full(len(others), thread), record=False)
        found = np.ascontiguousarray(memory.data[flat]).view(np.uint8)[..., :blocks]
        return found, WgmmaOperand(memory, flat.reshape(len(who), -1))

    return scales


def _from_halves(packed: Array) -> Array:
    """Return the e2m1 numbers in bytes, float32[..., 2 * n], the one in the lower half of each byte first."""
    halves = np.stack([packed & 15, packed >> 4], axis=-1)
    numbers: Array = halves.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    return numbers


def _powers_of_two(scales: Array) -> Array:
    """Return the numbers that ue8m0 stands for."""
    return np.where(scales == 255, np.nan, np.ldexp(np.float32(1), scales.astype(np.int32) - 127)).astype(np.float32)


def _unsigned_floats(scales: Array) -> Array:
    """Return the numbers that ue4m3 stands for: those of e4m3 without their sign."""
    numbers: Array = (scales & 127).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return numbers


def _accumulation(
    stmt: TensorMemoryMma | BlockScaledMma, m: int, multiply: Products, context: LaunchContext
) -> LaunchAction:
    """Return the action of a product of ``m`` rows."""
    memory = _tensor_memory(stmt.d.name, context)
    first_of = shared_flat(stmt.d_indices, memory, context, value_closure)
    accumulates = value_closure(stmt.accumulates, context) if isinstance(stmt.accumulates, Expr) else None
    row = np.arange(m)
    lanes = row if m == QUARTERS * QUARTER_LANES else row // HALF_LANES * QUARTER_LANES + row % HALF_LANES
    steps = lanes[:, None] * stmt.d.shape[-1] + np.arange(stmt.n)

    def run(state: LaunchState) -> None:
        first, who = spread(state, first_of(state), 1)
        _check_allocated(memory, state, context, who)
        adds = np.broadcast_to(
            np.asarray(stmt.accumulates if accumulates is None else accumulates(state)), state.threads
        )
        product, read = multiply(state, who)
        for n, thread in enumerate(who.tolist()):
            flat = (first[n] + steps).ravel()
            _begin(memory, state, context, flat, thread, bool(adds[thread]))
            value = product[n].ravel().astype(memory.data.dtype)
            memory.data[flat] = memory.data[flat] + value if adds[thread] else value
            _issue(memory, state, flat, thread, [WgmmaOperand(x.memory, x.flat[n]) for x in read])

    return run


def tensor_memory_copy(stmt: TensorMemoryCopy, context: LaunchContext) -> LaunchAction:
    memory, source = _tensor_memory(stmt.target.name, context), context.shared[stmt.source.name]
    assert isinstance(source, SharedMemory)
    first_of = shared_flat(stmt.target_indices, memory, context, value_closure)
    begin_of = shared_flat(stmt.source_indices, source, context, value_closure)
    lane, column = np.arange(TENSOR_LANES)[:, None], np.arange(stmt.chunks * SCALE_COLUMNS)
    steps = lane * stmt.target.shape[-1] + column
    chunk = column // SCALE_COLUMNS * CHUNK_BYTES + column % SCALE_COLUMNS * SCALES_PER_COLUMN
    first_bytes = lane % QUARTER_LANES * (SCALE_COLUMNS * SCALES_PER_COLUMN) + chunk
    bytes = first_bytes[..., None] + np.arange(SCALES_PER_COLUMN)  # [lanes, columns, 4]

    def run(state: LaunchState) -> None:
        first, who = spread(state, first_of(state), 1)
        begin, _ = spread(state, begin_of(state), 1)
        _check_allocated(memory, state, context, who)
        for n, thread in enumerate(who.tolist()):
            if begin[n] % source.span + stmt.chunks * CHUNK_BYTES > source.span:
                what = f"{stmt.chunks} chunks of scales from {source.name(int(begin[n]))} on are out of bounds"
                raise context.fault(what, state, thread, stmt.source.name)
            read = np.arange(begin[n], begin[n] + stmt.chunks * CHUNK_BYTES)
            readers = np.full(len(read), thread)
            check_read(source, state, context, read, readers, record=False)
            check_fenced(source, state, context, read, readers)
            flat = (first[n] + steps).ravel()
            _begin(memory, state, context, flat, thread, False)
            values = np.ascontiguousarray(source.data[begin[n] + bytes].astype(stmt.source.dtype.numpy))
            memory.data[flat] = values.view(np.int32).ravel()
            _issue(memory, state, flat, thread, [WgmmaOperand(source, read)])

    return run


def _issue(
    memory: TensorMemory, state: LaunchState, flat: Array, thread: int, operands: Sequence[WgmmaOperand]
) -> None:
    """What a thread has issued to ``flat`` is in flight from now on, and so is what it reads."""
    for operand in operands:
        operand.memory.count_reads(operand.flat, 1)
    memory.count_writes(flat, 1)
    issued = state.tcgen05.setdefault(thread, IssuedMmas())
    issued.in_flight.append(MmaInFlight(thread, memory, flat, tuple(operands)))


def _begin(
    memory: TensorMemory, state: LaunchState, context: LaunchContext, flat: Array, thread: int, adds: bool
) -> None:
    """A product of a thread begins to accumulate in ``flat``. Raises where another thread's product is in flight there,
    and where nothing orders it after what others did; what the thread itself issued before needs no order."""
    assert memory.written is not None and memory.history is not None
    history, order, who, name = memory.history, state.order, np.full(len(flat), thread), memory.buffer.name
    number = order.ids[thread]
    others = flat[memory.issuer[flat] != number]
    busy = others[(memory.writes_in_flight[others] > 0) | (memory.reads_in_flight[others] > 0)]
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
