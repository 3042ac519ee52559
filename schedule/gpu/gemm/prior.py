"""What a setting of ``cuda_gemm`` takes by the work of each unit, and the time that follows from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from ....ir.buffer import Buffer
from ....ir.gpu.barrier import WARPGROUP_THREADS
from ....ir.gpu.wgmma import LINE_BYTES, SWIZZLE_128B_ELEMENTS, WGMMA_M
from ...problems.gemm import Gemm, Operand
from ...space.columns import Floats, Ints
from ..peaks import GpuPeaks, UnitCycles
from ..tma_view import operand_view
from .k_atoms import b_along_k, joined_groups, mean_multiplied_k, stage_lines, tap_share
from .mma_atom import is_packed, promoted_k_atoms, splitting, wgmma_atom
from .repack import ROW_ALIGNMENT_BYTES, uneven_operands
from .result_box import can_store_by_tma, stores_pairs_of_rows
from .shifted_rows import LINE_VECTORS, copied_first, is_shifted
from .sizes import GemmSizes, epilogue_subtiles, scale_products, stage_columns

# Factors and cycles that were fitted to kernels timed on an H200. They are counted in cycles of a multiprocessor, so
# that they scale with the clock of the device at hand.
NORM = 8
"""Units that work at once take the norm of this order of what each takes: little more than the slowest."""
THREE_WARPGROUPS = 1.04
"""A k iteration takes so much longer with three consumer warpgroups."""
WIDE_CLUSTER = 1.02
"""A k iteration takes so much longer where a cluster has more tiles along n than along m."""
LATENCY_CYCLES = 1600
"""So many cycles pass until the first bytes of a stage arrive. Most of them come from memory, by way of L2."""
K_ITERATION_CYCLES = 20
"""The barriers of a k iteration take so many cycles."""
CLUSTER_CYCLES = 20
"""In each k iteration the CTAs of a cluster wait so many cycles for one another."""
DISTINCT_BYTES_PER_CYCLE, COALESCED = 26, 0.4
"""L2 itself serves so many bytes a cycle to each multiprocessor, if all of them read different lines. Requests for the
same lines at about the same time are coalesced before they reach it: n of them count as n to the power of
1 - ``COALESCED``, since not all of them come together."""
SHARED_REQUESTS = 0.2
"""What n multiprocessors read of the same lines at about the same time arrives faster: in a time that n to the power of
this divides. Settings of convolutions are ranked better without it."""
SHARED_LINE_CYCLES = 5
"""Where rows of B share lines of 128 bytes, CTAs ask for the same line several times at once. Each further time takes
all of them so many cycles."""
STORE_CYCLES = 6
"""A row of 128 bytes takes so many cycles to store by TMA."""
SUBTILE_CYCLES, SINGLE_STAGE_CYCLES = 450, 500
"""From a warpgroup's last wgmma until it has staged a subtile, so many cycles pass. Where there is a single stage, each
further subtile waits so many cycles until TMA has read it."""
EXCHANGE_CYCLES, EXCHANGE_BYTES_PER_CYCLE, IMAGE_EXCHANGE_BYTES_PER_CYCLE = 1200, 16, 24
"""With split-K, two barriers of the cluster take so many cycles, and each CTA reads so many bytes of partial sums in a
cycle. Those of convolutions were fitted apart."""
FIXUP_CYCLES = 15_000
"""With stream-K, the launch that adds up the tiles of several CTAs takes so many cycles."""

SCALED_ATOM_CYCLES, SCALE_PRODUCT_CYCLES = 100, 14
"""Scales of blocks take so many cycles of a k iteration for each wgmma atom of a warpgroup, and for each product of two
scales that a thread needs (fitted on an H100)."""
PACK_CYCLES = 3500
"""A launch that packs an operand takes so many cycles besides what it reads and writes."""
REPACK_CYCLES, REPACKED_BYTES_PER_CYCLE = 3500, 9
"""The launch that repacks operands takes so many cycles, and a multiprocessor copies so many bytes in each further
one."""

SHIFTED_INSTRUCTIONS, ISSUED_LANES = 55, 128
"""Threads that shift rows take so many instructions for a vector of 16 bytes, and a multiprocessor issues those of so
many lanes in a cycle. Compiled kernels have 41 of them. With 55 the prior is nearer to what 50 kernels took an H200."""
SHIFTED_LATENCY_CYCLES = 1500
"""They wait so long for what they have loaded at once (likewise)."""


def unit_cycles(gemm: Gemm, sizes: GemmSizes[Ints], peaks: GpuPeaks) -> UnitCycles:
    """Return what a k iteration asks of the tensor cores, of shared memory (TMA writes and wgmma reads), and of L2."""
    tile_m, mma_n = sizes.tile_m, sizes.mma_n
    element = wgmma_atom(gemm).a.bytes
    block_k = sizes.k_atoms * mean_multiplied_k(gemm)
    columns = mma_n // joined_groups(gemm)  # that a place of k is multiplied with
    read = tile_m // WGMMA_M * (WGMMA_M + columns) * block_k * element
    lines_of_a, lines_of_b = (_lines_read(gemm, axis, sizes) for axis in "mn")
    rows = np.asarray(tile_m * block_k * element * lines_of_a, np.float64)
    if gemm.window is not None:
        rows = np.asarray(stage_lines(gemm, tile_m, sizes.k_atoms), np.float64) * (LINE_BYTES * _lines_of_a_row(gemm))
    loaded = 1 / np.where(sizes.resident_b == 1, sizes.tile_iterations, 1)
    a, b = rows / sizes.cluster_n, columns / sizes.cluster_m * block_k * element * loaded * lines_of_b
    if gemm.b_window is not None and gemm.b_window.halo is not None:
        b = np.asarray(sizes.k_atoms * gemm.b_window.patch_lines * LINE_BYTES, np.float64)
    share = _multiplied_share(gemm, sizes)
    of_a, of_b = _readers(gemm, sizes)
    busy = sizes.blocks / (sizes.active_ctas_per_sm * peaks.multiprocessors)
    distinct = (a / of_a**COALESCED + b / of_b**COALESCED) * busy
    shared = SHARED_REQUESTS if gemm.window is None else 0.0
    arriving = a / of_a**shared + b / of_b**shared
    return UnitCycles(
        mma=2 * tile_m * columns * block_k * share / flops_per_cycle(gemm, peaks),
        shared=(read * share + sizes.stage_bytes + _loaded_twice(gemm, sizes)) / peaks.shared_bytes_per_cycle,
        l2=np.maximum(arriving / peaks.l2_bytes_per_cycle, distinct / DISTINCT_BYTES_PER_CYCLE),
    )


def _shifted_vectors(gemm: Gemm, sizes: GemmSizes[Ints]) -> Ints:
    """Return how many vectors of 16 bytes threads shift for a stage: of those operands whose rows begin anywhere."""
    lines = np.where(is_shifted(gemm, "m", 0), sizes.tile_m, 0)
    if is_shifted(gemm, "n", 0):
        lines = lines + np.where(sizes.resident_b == 1, 0, stage_columns(gemm, sizes.mma_n, sizes.cluster_m))
    vectors: Ints = np.where(sizes.repacked == 1, 0, lines * sizes.k_atoms * LINE_VECTORS)
    return vectors


def _loaded_twice(gemm: Gemm, sizes: GemmSizes[Ints]) -> Ints:
    """Return how many bytes threads load by way of L1 to shift rows: two vectors for each."""
    return 2 * ROW_ALIGNMENT_BYTES * _shifted_vectors(gemm, sizes)


def _shifting_cycles(gemm: Gemm, sizes: GemmSizes[Ints]) -> Floats:
    """Return how many cycles the threads of a producer take to shift the rows of a stage. They wait for each part of
    it, while other CTAs work."""
    vectors = _shifted_vectors(gemm, sizes)
    waits = SHIFTED_LATENCY_CYCLES * -(-vectors // (WARPGROUP_THREADS * sizes.held_vectors))
    cycles: Floats = waits / sizes.active_ctas_per_sm + vectors * (SHIFTED_INSTRUCTIONS / ISSUED_LANES)
    return cycles


def _readers(gemm: Gemm, sizes: GemmSizes[Ints]) -> tuple[Floats, Floats]:
    """Return how many of the clusters that run together read the same rows of A, and the same columns of B."""
    clusters_m = -(-gemm.m.extent // (sizes.tile_m * sizes.cluster_m))
    clusters_n = -(-gemm.n.extent // (sizes.tile_n * sizes.cluster_n))
    of_a: Floats = np.clip(sizes.clusters / np.minimum(sizes.group_m, clusters_m), 1, clusters_n)
    of_b: Floats = np.clip(sizes.clusters / of_a, 1, clusters_m)
    return of_a, of_b


def _shared_line_cycles(gemm: Gemm, sizes: GemmSizes[Ints]) -> Floats:
    """Return how many cycles L2 takes longer to serve B to all CTAs, one box of a TMA load after the other, where its
    rows share lines."""
    columns, clusters_m = np.minimum(sizes.tile_n, gemm.n.extent), -(-gemm.m.extent // (sizes.tile_m * sizes.cluster_m))
    boxes = sizes.k_atoms * (1 if b_along_k(gemm) else -(-columns // SWIZZLE_128B_ELEMENTS))
    loads = np.where(sizes.resident_b == 1, sizes.clusters, clusters_m) * sizes.k_iters * boxes
    return SHARED_LINE_CYCLES * further_requests(gemm) * loads.astype(np.float64)


def further_requests(gemm: Gemm) -> float:
    """Return how often a line of B is asked for by one CTA, for the rows that share it, besides the first time."""
    if gemm.b.load is None or is_packed(gemm, gemm.b):
        return 0.0
    pitch = (gemm.b.row if b_along_k(gemm) else gemm.b.k) * gemm.b.load.dtype.bytes
    width, unit = min(pitch, LINE_BYTES), gcd(pitch, LINE_BYTES)
    crossing = sum(begin + width > LINE_BYTES for begin in range(0, LINE_BYTES, unit)) * unit / LINE_BYTES
    return (1 + crossing) * LINE_BYTES / width - 1 if width else 0.0


def _multiplied_share(gemm: Gemm, sizes: GemmSizes[Ints]) -> Floats:
    """Return which share of the rows of its tiles a product multiplies: warpgroups without rows of a tile's group do
    nothing."""
    if gemm.groups is None:
        return np.ones(len(sizes.tile_m))
    rows, of_tile, of_warpgroup = gemm.m.extent, sizes.tile_m * sizes.cluster_m, WGMMA_M * sizes.atoms_m
    multiplied = gemm.groups.likely_tiles(rows, of_warpgroup) * of_warpgroup
    share: Floats = multiplied / (gemm.groups.likely_tiles(rows, of_tile) * of_tile)
    return share


def _lines_read(gemm: Gemm, axis: str, sizes: GemmSizes[Ints]) -> Floats:
    """Return ``lines_read`` of an operand in each setting, also where it is not copied first."""
    operand, shifted = gemm.a if axis == "m" else gemm.b, 1.0
    if operand.load is not None and is_shifted(gemm, axis, 0):
        tensor = operand_view(operand.load).buffer
        shifted = _lines_of(LINE_BYTES, [stride * tensor.dtype.bytes for stride in tensor.strides[:-1]])
    return np.where(sizes.repacked == 1, lines_read(gemm, operand), shifted)


def lines_read(gemm: Gemm, operand: Operand) -> float:
    """Return how many lines of 128 bytes of an operand a line in shared memory comes from: more than one where long
    rows begin amid lines, and are not copied first."""
    load = operand.load
    if load is None or gemm.b_window is not None or is_packed(gemm, operand):
        return 1.0
    buffer, repacked = load.buffer, uneven_operands(gemm, as_views=True)
    pitches = [stride * buffer.dtype.bytes for stride in buffer.strides[:-1]]
    if buffer.name in {b.name for b in repacked} or buffer.shape[-1] * buffer.dtype.bytes < LINE_BYTES:
        return 1.0
    return _lines_of(LINE_BYTES, pitches)


def _lines_of_a_row(gemm: Gemm) -> float:
    """Return how many lines of 128 bytes of an image a line in shared memory comes from, which may begin amid one of
    them."""
    assert gemm.a.load is not None and gemm.window is not None
    strides, bits = gemm.a.load.buffer.strides, gemm.a.load.dtype.bytes
    grouped = gemm.a.load.buffer.shape[-1] != gemm.window.channels
    begins = [stride * bits for stride in strides[:-1]] + ([gemm.window.channels * bits] if grouped else [])
    return _lines_of(min(LINE_BYTES, gemm.window.channels * bits) if not grouped else LINE_BYTES, begins)


def _lines_of(needed: int, pitches: Sequence[int]) -> float:
    """Return in how many lines ``needed`` bytes lie on average that begin at any sum of multiples of ``pitches``."""
    unit = gcd(LINE_BYTES, *pitches)
    crossing = sum(begin + needed > LINE_BYTES for begin in range(0, LINE_BYTES, unit))
    return 1 + crossing * unit / LINE_BYTES


def flops_per_cycle(gemm: Gemm, peaks: GpuPeaks) -> float:
    """Return what tensor cores do in a cycle: 16-bit operations, twice as many of 8 bits, half as many of TF32."""
    return peaks.tensor_flops_per_cycle * 2 / wgmma_atom(gemm).a.bytes


def _promotion_cycles(gemm: Gemm, sizes: GemmSizes[Ints], peaks: GpuPeaks) -> Floats | float:
    """Return how many cycles of a k iteration go to additions of promoted accumulators, which other warpgroups hide in
    part."""
    interval = promoted_k_atoms(gemm)
    if not interval:
        return 0.0
    additions = 2 * sizes.tile_m * sizes.mma_n / peaks.float32_flops_per_cycle / interval
    cycles: Floats = additions * np.where(sizes.consumer_warpgroups * sizes.active_ctas_per_sm > 1, 0.5, 1.0)
    if gemm.scales is not None:
        cycles = cycles + SCALED_ATOM_CYCLES * sizes.atoms_m + SCALE_PRODUCT_CYCLES * scale_products(sizes)
    return cycles


def tiles_per_sm(sizes: GemmSizes[Ints]) -> Floats:
    """Return how many tiles a multiprocessor works on one after the other, those of all its CTAs."""
    tiles = np.where(
        sizes.stream_k == 1, sizes.stage_fills / sizes.k_iters, sizes.busy_iterations * sizes.tiles_per_iteration
    )
    per_sm: Floats = tiles * sizes.active_ctas_per_sm
    return per_sm


def wave_efficiency(gemm: Gemm, sizes: GemmSizes[Ints], multiprocessors: int) -> Floats:
    """Return which share of the multiply-adds of all waves the result needs."""
    needed = len(gemm.accumulators) * gemm.m.extent * gemm.n.extent * prod(a.extent for a in gemm.batch)
    share: Floats = needed / (tiles_per_sm(sizes) * multiprocessors * sizes.tile_m * sizes.mma_n / sizes.split_k)
    return share


@dataclass(frozen=True, slots=True)
class EpilogueCycles:
    """What the epilogue of a tile takes, each float64[n]: ``exposed`` is what follows its k iterations, ``alone`` is
    what follows those of a tile that others overlap with, and ``least`` is what the units of a multiprocessor take,
    whatever overlaps."""

    exposed: Floats
    alone: Floats
    least: Floats


def prior_seconds(
    gemm: Gemm, sizes: GemmSizes[Ints], peaks: GpuPeaks, epilogue: EpilogueCycles | None = None
) -> Floats:
    """Return the estimated time of each setting in seconds. ``epilogue``: what that of a tile takes, where it is
    anything else than to store results.

    k iteration = joined(tensor cores, shared memory, L2, arrival of stages, shifts of rows) + barriers,
                  of those that have a tap
    tile        = max(k iterations + epilogue, (k iterations + staging) / tiles of a multiprocessor at once,
                      what units take for the epilogue)
    busy        = tiles of a multiprocessor x tile + adding up partial sums
    time        = launch + packing + repacking
                + joined(busy, reading all that is multiplied and writing all outputs once
                               + lines of B that are asked for again and again)
    """
    work = unit_cycles(gemm, sizes, peaks)
    packing, memory = _memory_cycles(gemm, peaks)
    before = packing + _repacking_cycles(gemm, sizes, peaks)
    shifting = _shifting_cycles(gemm, sizes) if gemm.window is None else 0.0
    iteration = joined(work.mma, work.l2, work.shared, _arrival_cycles(sizes, work), shifting)
    iteration *= np.where(sizes.consumer_warpgroups == 3, THREE_WARPGROUPS, 1.0)
    iteration *= np.where(sizes.cluster_n > sizes.cluster_m, WIDE_CLUSTER, 1.0)
    iteration += K_ITERATION_CYCLES / sizes.active_ctas_per_sm
    iteration += np.where(sizes.tiles_per_cluster > 1, CLUSTER_CYCLES, 0)
    iteration += _promotion_cycles(gemm, sizes, peaks)
    taken = epilogue or _storing(gemm, sizes)
    together = sizes.tiles_per_iteration * sizes.active_ctas_per_sm
    # a single tile may be one of a phase with all taps, and stream-K shares out those that a phase lacks, too
    alone = (tiles_per_sm(sizes) <= 1) | (sizes.stream_k == 1)
    multiplying = sizes.k_iters * iteration * np.where(alone, 1.0, tap_share(gemm))
    tile = np.maximum(multiplying + taken.exposed, (multiplying + taken.alone) / together)
    tile = np.maximum(tile, taken.least)
    busy = tiles_per_sm(sizes) * tile + _reduction_cycles(gemm, sizes, peaks)
    served = memory + _shared_line_cycles(gemm, sizes)
    seconds: Floats = peaks.launch_seconds + (before + joined(busy, served)) / peaks.clock_hz
    return seconds


def _storing(gemm: Gemm, sizes: GemmSizes[Ints]) -> EpilogueCycles:
    """Return what it takes to store the results of a tile."""
    element = gemm.results[0].tensor.dtype.bytes
    store = sizes.tile_m * sizes.tile_n * element / 128 * _store_cycles(gemm, sizes.epilogue_stages)
    together = sizes.tiles_per_iteration * sizes.active_ctas_per_sm
    exposed = np.where(together > 1, store / 4, store / sizes.split_k)
    subtiles = np.where(sizes.split_k == 1, len(gemm.results) * epilogue_subtiles(gemm, sizes), 0).astype(np.float64)
    waits = np.where(sizes.epilogue_stages == 1, np.maximum(subtiles - 1, 0), 0) if can_store_by_tma(gemm) else 0.0
    waiting = SINGLE_STAGE_CYCLES * waits
    return EpilogueCycles(exposed + waiting, SUBTILE_CYCLES * subtiles + waiting, np.zeros(len(store)))


def _arrival_cycles(sizes: GemmSizes[Ints], work: UnitCycles) -> Floats:
    """Return how many cycles apart stages arrive, on average.

    The first loads are issued at once. A stage is released when the next one is there and its own products are done, so
    that one stage less than there are is under way from then on.
    """
    waiting = np.maximum(1 - sizes.stages / np.maximum(sizes.stage_fills, 1), 0)
    apart = (LATENCY_CYCLES / sizes.active_ctas_per_sm + work.l2) / np.maximum(sizes.stages - 1, 1)
    cycles: Floats = waiting * apart + (1 - waiting) * work.l2
    return cycles


def _reduction_cycles(gemm: Gemm, sizes: GemmSizes[Ints], peaks: GpuPeaks) -> Floats:
    """Return how many cycles it takes to add up partial sums: over a cluster for split-K, in a second launch for
    stream-K."""
    tile_bytes = 4 * sizes.tile_m * sizes.mma_n
    read = EXCHANGE_BYTES_PER_CYCLE if gemm.window is None else IMAGE_EXCHANGE_BYTES_PER_CYCLE
    exchange = np.where(sizes.split_k > 1, EXCHANGE_CYCLES + tile_bytes / read, 0)
    moved = sizes.unit_rounds * tile_bytes * (1 + sizes.clusters / peaks.multiprocessors)
    fixup = FIXUP_CYCLES + moved / peaks.l2_bytes_per_cycle
    cycles: Floats = np.where(sizes.unit_rounds > 0, fixup, exchange)
    return cycles


def _memory_cycles(gemm: Gemm, peaks: GpuPeaks) -> tuple[float, float]:
    """Return how many cycles it takes to pack operands, and to read all that is multiplied and write all outputs
    once."""
    loads = {o.load.buffer.name: o.load.buffer for o in (gemm.a, *gemm.all_b) if o.load and is_packed(gemm, o)}
    planes, element = max(splitting(gemm).planes, 1), wgmma_atom(gemm).a.bytes
    before, packed = sum(b.bytes for b in loads.values()), sum(b.elements for b in loads.values()) * planes * element
    moved = sum(b.bytes for b in (*gemm.inputs, *(r.tensor for r in gemm.results if gemm.stored))) - before + packed
    each_call = [b for b in loads.values() if not gemm.is_constant(b)]
    written = sum(b.bytes + b.elements * planes * element for b in each_call)
    packing = len(each_call) * PACK_CYCLES + written / peaks.memory_bytes_per_cycle
    return packing, moved / peaks.memory_bytes_per_cycle


def _repacking_cycles(gemm: Gemm, sizes: GemmSizes[Ints], peaks: GpuPeaks) -> Floats | float:
    """Return how many cycles it takes to repack operands: all, or small ones where threads shift the others."""
    if gemm.window is not None or gemm.b_window is not None:
        return 0.0
    uneven, small = uneven_operands(gemm, as_views=True), copied_first(gemm)
    return np.where(sizes.repacked == 1, repack_cycles(gemm, uneven, peaks), repack_cycles(gemm, small, peaks))


def repack_cycles(gemm: Gemm, uneven: Sequence[Buffer], peaks: GpuPeaks) -> float:
    """Return how many cycles the launch takes that repacks these operands; 0 where there are none, or all are
    constant."""
    copied = sum(b.bytes for b in uneven if not gemm.is_constant(b))
    return REPACK_CYCLES + copied / peaks.multiprocessors / REPACKED_BYTES_PER_CYCLE if copied else 0.0


def _store_cycles(gemm: Gemm, epilogue_stages: Ints) -> Floats:
    """Return how many cycles it takes to store 128 bytes of the result: by TMA, as staged rows, or straight from
    registers."""
    if can_store_by_tma(gemm):
        return np.where(epilogue_stages > 0, STORE_CYCLES, 2 * STORE_CYCLES).astype(np.float64)
    words = gemm.results[0].tensor.dtype.bits == 32 or gemm.results[0].last_digit > 0
    pairs = gemm.a_in_registers and gemm.along_m and stores_pairs_of_rows(gemm)
    direct = 1 if pairs or (gemm.along_pixels and words) else 2 if gemm.n.extent % 2 == 0 else 4
    direct *= max(result.phases for result in gemm.results) if gemm.along_pixels else 1
    return np.where(epilogue_stages > 0, 2 * STORE_CYCLES, 2 * direct * STORE_CYCLES).astype(np.float64)


def joined(*cycles: Floats | float) -> Floats:
    """Return how long units take that work at once, given what each of them takes."""
    together: Floats = sum(c**NORM for c in cycles) ** (1 / NORM)
    return together
