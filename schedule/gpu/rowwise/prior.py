"""Estimates the time of a kernel that works on rows.

The CTAs that run at once are a wave. A wave takes about as long as the slowest of three things: moving the bytes of its
rows between memory and the multiprocessors, their arithmetic, and the chain of loads and barriers of one row.

A row has to be loaded before any of it is written, so that these three overlap only with those of other CTAs. The CTAs
of the first wave start together, and expose a part of all three the more, the fewer of them a multiprocessor has. Later
the CTAs are apart; then one that has a multiprocessor for itself exposes some of it still. A cluster of 16 CTAs begins
when all CTAs of another one have ended, and exposes all where none is beside it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ....ir.expr import WARP_LANES, Binary, Expr, Load, Unary, UnaryOp, Var, index, walk
from ....ir.rewrite import loads_of, map_loads
from ...problems.row_axes import column_axis, has_column_axis
from ...problems.rowwise import RowwiseProblem
from ...space.columns import Floats, Ints
from ...tile.reciprocals import with_reciprocals
from ..memory_prior import BLOCK_CYCLES
from ..occupancy import GpuLimits
from ..peaks import GpuPeaks
from ..reduction_prior import (
    CLUSTER_BARRIER_CYCLES,
    CLUSTERED_SHARE,
    CTA_BARRIER_CYCLES,
    LARGEST_CLUSTER,
    LOAD_LATENCY_SECONDS,
    WARP_REDUCTION_CYCLES,
    bytes_for_run,
    overlapped_seconds,
    seconds_in_waves,
)
from ..term_cost import ISSUED_LANES, reduction_cost, value_cost
from .held_values import held_values
from .held_vectors import behind_vector, held_slot
from .sizes import RowPartition, RowStorage, RowwiseSizes, clusters_at_once

LOADS_AHEAD = 2
"""How many vectors of each input a thread has under way while rows stay in memory."""
EXPOSED_FIRST, EXPOSED_LATER = 0.5, 0.25
"""Which share of what does not overlap by itself a CTA that is alone on a multiprocessor exposes in the first wave, and
in later ones. They were fitted on softmaxes of an H200 (``benchmarks/data/softmax``, and 16x1048576 and 64x262144)."""
BUSY_THREADS, IDLE_POWER = 1344, 0.2
"""So many threads on a multiprocessor keep its units busy; with fewer, arithmetic takes longer by this power of their
share. An H200 takes 39 us for a softmax of 8191x4099 with 1024 threads on a multiprocessor, and 34 us with 1280."""
PLAIN = frozenset({UnaryOp.NEG, UnaryOp.ABS, UnaryOp.NOT, UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.RINT})
SPECIAL_OPERATIONS = 8
"""Any other function of one operand takes special function units, of which there is one for so many float32 units."""
SEGMENT_OPERATIONS = 16
"""So many operations find the segment of a vector, by a division, and what is read of it (a guess)."""
THREAD_INSTRUCTIONS, ACCESS_INSTRUCTIONS, WIDEST_ACCESS_BYTES = 60, 2, 16
"""A thread takes about so many instructions beside its elements, and so many for each access to memory. An RMS norm of
128 columns with a rotary embedding has 199 with 16 threads a row, and 206 with 8, each of which has two vectors."""
LINE_BYTES = 128
"""A cache looks up one line of so many bytes in a cycle. Of a row, threads should have whole lines at a time: 8 threads
with 16 bytes each, or 16 threads with 8, are among the fastest settings of such an embedding on an H200."""
SHARED_ROW = 1.002
"""Where nothing else tells two settings apart, the one whose CTAs hold whole rows is the faster one: rows of 32768
floats over their mean take an H100 722 us with one CTA for each, and 740 with four."""


def rowwise_seconds(problem: RowwiseProblem, s: RowwiseSizes[Ints], limits: GpuLimits, peaks: GpuPeaks) -> Floats:
    """Return the estimated time of each setting in seconds, float64[n]."""
    circular = s.storage == RowStorage.CIRCULAR_BUFFER
    reads = np.where(s.storage == RowStorage.GLOBAL, len(problem.passes) + bool(problem.elementwise_outputs), 1)
    row_bytes = problem.column_count * (reads * problem.read_bytes + problem.written_bytes) * segment_share(problem)
    arithmetic_of_row = arithmetic_cycles(problem, s, peaks) / peaks.clock_hz

    # A circular buffer asks for the next rows while it works on one, so that latency and barriers go on at once.
    barriers = _barrier_cycles(problem, s) / peaks.clock_hz
    buffered_rows = np.maximum(s.buffered_vectors, 1) / s.vectors_per_thread
    chain = np.where(
        circular,
        np.maximum(LOAD_LATENCY_SECONDS / buffered_rows, barriers),
        LOAD_LATENCY_SECONDS * reads + barriers,
    )

    resident = limits.resident(s)
    vector_bytes = s.vector * max(problem.read_bytes, 1)
    # A group norm of 128 rows of 131072 went from 54 to 65 us on an H200 as its default became clusters of 16.
    wide = s.cluster_size == LARGEST_CLUSTER
    usable = np.where(wide, int(CLUSTERED_SHARE * peaks.multiprocessors), peaks.multiprocessors)
    clusters = clusters_at_once(resident * peaks.multiprocessors, s.cluster_size)
    clusters = np.where(wide, resident * usable // LARGEST_CLUSTER, clusters)
    clusters = np.where(circular, np.minimum(clusters, s.blocks // s.cluster_size), clusters)

    row_groups = -(-problem.row_count // s.rows_per_cta)
    at_once = np.minimum(clusters, row_groups)
    exposes = (s.storage != RowStorage.GLOBAL) & (len(problem.elementwise_outputs) > 0)
    # Rows that are prefetched for later CTAs are under way like those of the CTAs that run.
    ahead = np.where((s.prefetch_distance > 0) & (row_groups > clusters), 2, 1)

    def ctas_per_sm(running: Ints) -> Floats:
        ctas: Floats = np.maximum(running * s.cluster_size / usable, 1.0)
        return ctas

    threads = np.minimum(resident, ctas_per_sm(at_once)) * s.threads
    slowed = np.maximum(BUSY_THREADS / np.maximum(threads, 1), 1.0) ** IDLE_POWER

    def overlapping(running: Ints) -> tuple[Floats, Floats]:
        """How long a wave takes if as much as can be overlaps, and how much longer if nothing does."""
        rows = running * s.rows_per_cta
        busy = np.clip(running * s.cluster_size, 1, usable)
        transfer = rows * row_bytes / peaks.memory_bytes_per_second
        # Where a row stays in memory, no CTA has more under way than its threads have asked for.
        alone = row_bytes / s.cluster_size * LOAD_LATENCY_SECONDS / (LOADS_AHEAD * s.threads_per_row * vector_bytes)
        transfer = np.where(s.storage == RowStorage.GLOBAL, np.maximum(transfer, alone), transfer)
        arithmetic = rows * arithmetic_of_row / busy * slowed
        together = overlapped_seconds(transfer, arithmetic, chain)
        apart: Floats = transfer + arithmetic + chain
        return together, apart - together

    def wave_seconds(running: Ints) -> Floats:
        together, more = overlapping(running)
        later = EXPOSED_LATER * np.clip(2 - ahead * ctas_per_sm(at_once), 0.0, 1.0)
        later = np.where(wide, np.clip(2 - ctas_per_sm(running), 0.0, 1.0), later)
        seconds: Floats = together + exposes * later * more
        return seconds

    # Nothing overlaps with the first loads of a buffer, and with the arithmetic of the last rows.
    fill = np.where(circular, LOAD_LATENCY_SECONDS, 0.0) + _thread_cycles(problem, s) / peaks.clock_hz
    first = EXPOSED_FIRST / (ahead * ctas_per_sm(at_once))
    first = np.where(wide & (ctas_per_sm(at_once) < 2), 0.0, first)  # they expose all of it already
    fill = fill + exposes * first * overlapping(at_once)[1]
    started = BLOCK_CYCLES * np.where(circular, np.minimum(s.blocks, resident * peaks.multiprocessors), s.blocks)
    body = np.maximum(fill + seconds_in_waves(row_groups, clusters, wave_seconds), started / peaks.clock_hz)
    held = (s.cluster_size == 1) & (s.storage != RowStorage.GLOBAL)
    seconds: Floats = peaks.launch_seconds + body * np.where(held, 1.0, SHARED_ROW)
    return seconds


def segment_share(problem: RowwiseProblem) -> float:
    """Return how many times as long as its bytes memory takes for a row, whose segments may be shorter than a line."""
    if problem.segment == problem.column_count:
        return 1.0
    tensors = (*problem.row_inputs, *(c.tensor for c in problem.elementwise_outputs))
    run = problem.segment * min(tensor.dtype.bytes for tensor in tensors)
    return float(bytes_for_run(np.array([run]))[0]) / run


def arithmetic_cycles(problem: RowwiseProblem, s: RowwiseSizes[Ints], peaks: GpuPeaks) -> Floats:
    """Return how long one multiprocessor computes for one row, one cycle of a float32 unit for each operation. Threads
    without a vector work as well. Where a segment stands, or what belongs to it, is found for each vector. Where rows
    are read at other columns, all instructions count."""
    if problem.other_loads:
        return _instruction_cycles(problem, s, peaks)
    vectors = s.vectors_per_thread * s.threads_per_row * s.cluster_size
    # Elements of a vector that runs from one segment into the next may have different operands.
    segments = np.where(problem.reads_segments & (problem.columns[-1] % s.vector > 0), s.vector, 1)
    found = 0 if problem.is_plain else SEGMENT_OPERATIONS * segments
    operations = s.vector * _operations(problem, SPECIAL_OPERATIONS, s.holds_values) + found
    cycles: Floats = vectors * operations / (peaks.float32_flops_per_cycle / 2)
    return cycles


def _instruction_cycles(problem: RowwiseProblem, s: RowwiseSizes[Ints], peaks: GpuPeaks) -> Floats:
    """Return how long one multiprocessor takes for the instructions of one row that is read at other columns, too. They
    are the fewer, the more of that a thread has in its own vectors."""
    all_held = s.storage == RowStorage.REGISTERS
    names = np.stack([s.vector, s.threads_per_row, s.cluster_size, all_held], axis=1)
    distinct, number = np.unique(names, axis=0, return_inverse=True)
    found = [_cycles_of_row(problem, [int(n) for n in row], peaks) for row in distinct]
    cycles: Floats = np.array(found)[number.reshape(-1)]
    return cycles


def _cycles_of_row(problem: RowwiseProblem, sizes: Sequence[int], peaks: GpuPeaks) -> float:
    """Return ``_instruction_cycles`` of one setting: a vector, the threads of a row, the CTAs of a row, and whether
    threads hold all their vectors in registers."""
    vector, threads, ctas, all_held = sizes
    p = RowPartition(problem.column_count, vector, threads, 1, ctas)
    rows = [load for load in problem.other_loads if load.buffer in problem.row_inputs]
    slots = [held_slot(problem, load, p, index(0), all_held=bool(all_held)) for load in rows]
    own = Var(column_axis(len(problem.columns) - 1))

    def needed(load: Load) -> Load:
        """What a thread computes at another column it has at its own ones, where it holds all that is read."""
        is_held = load in problem.other_loads and None not in slots
        return replace(load, indices=(*load.indices[:-1], own)) if is_held else load

    bodies = [with_reciprocals(map_loads(c.body, needed), has_column_axis) for c in problem.elementwise_outputs]
    reads = {load for body in bodies for load in loads_of(body)}
    reads |= {load for r in problem.reductions for load in loads_of(r.body) if load in problem.other_loads}
    costs = [value_cost(body, [x for x in reads if not has_column_axis(x)], peaks) for body in bodies]
    costs += [reduction_cost(r.reducer, r.body, r.tensor.dtype, peaks) for r in problem.reductions]
    behind = {x: span.count for x in problem.other_loads if (span := behind_vector(problem, x, vector)) is not None}
    alone = behind | {x: vector for x in problem.other_loads if x not in behind and not problem.span_of(x, vector)}
    moved = [x.dtype for x in reads if has_column_axis(x) and x not in alone]
    moved += [c.tensor.dtype for c in problem.elementwise_outputs]
    accesses = sum(-(-vector * dtype.bytes // WIDEST_ACCESS_BYTES) for dtype in moved)
    accesses += sum(count for x, count in alone.items() if x in reads)
    of_vector = vector * sum(c.cycles for c in costs) + accesses * ACCESS_INSTRUCTIONS / ISSUED_LANES
    of_row = [b.dtype for b in problem.row_inputs] + [c.tensor.dtype for c in problem.elementwise_outputs]
    lines = p.vectors_per_thread * sum(-(-threads * vector * dtype.bytes // LINE_BYTES) for dtype in of_row)
    of_threads = threads * (p.vectors_per_thread * of_vector + THREAD_INSTRUCTIONS / ISSUED_LANES)
    return ctas * (of_threads + lines)


def _thread_cycles(problem: RowwiseProblem, s: RowwiseSizes[Ints]) -> Ints:
    """Return how long a thread computes for its part of a row, an operation in each cycle. A row in shared memory is
    written and read there."""
    shared = np.where(s.storage == RowStorage.REGISTERS_AND_SHARED, 2, 0)
    cycles: Ints = s.elements_per_thread * (_operations(problem, 1, s.holds_values) + shared)
    return cycles


def _operations(problem: RowwiseProblem, special: int, holds_values: Ints) -> Ints:
    """Return how many operations each element takes. One of a special function unit counts as ``special`` of them.
    ``holds_values``: where (1 or 0) values that several passes need are computed once."""

    def count(bodies: Iterable[Expr]) -> int:
        found = [e for body in bodies for e in walk(body) if isinstance(e, Binary | Unary) and has_column_axis(e)]
        return sum(special if isinstance(e, Unary) and e.op not in PLAIN else 1 for e in found)

    held = held_values(problem)
    each_pass = count([*(r.body for r in problem.reductions), *(c.body for c in problem.elementwise_outputs)])
    once = count([*(v.value for v in held.values), *held.bodies])
    operations: Ints = np.where(holds_values == 1, once, each_pass)
    return operations


def _barrier_cycles(problem: RowwiseProblem, s: RowwiseSizes[Ints]) -> Ints:
    """Return how long the threads of a row take to combine their states in all reductions. The CTAs of a cluster wait
    once more before they write, unless they have a circular buffer."""
    clustered = s.cluster_size > 1
    exchange = np.where(s.threads_per_row > WARP_LANES, CTA_BARRIER_CYCLES, 0)
    exchange = np.where(clustered, CLUSTER_BARRIER_CYCLES, exchange)
    before_writes = np.where(clustered & (s.storage != RowStorage.CIRCULAR_BUFFER), CLUSTER_BARRIER_CYCLES, 0)
    cycles: Ints = (len(problem.reductions) - s.joined_moments) * (WARP_REDUCTION_CYCLES + exchange) + before_writes
    return cycles
