"""The sizes that follow from a setting of ``cuda_gemm``: the tile, the grid, the pipeline, registers, shared memory."""

from dataclasses import dataclass
from math import prod
from typing import Generic, TypeAlias, TypeVar, cast

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.gpu.barrier import WARPGROUP_THREADS
from ....ir.gpu.tcgen05 import CHUNK_BYTES, LEAST_COLUMNS, SCALE_ROWS
from ....ir.gpu.wgmma import LINE_BYTES, SWIZZLE_128B_ELEMENTS, WGMMA_M
from ...problems.gemm import SCALED_K, Gemm
from ...space.columns import Bools, Columns, Ints, derived_once
from ...space.knob import Knob
from ..occupancy import limits_of
from ..split_k import partial_at
from .block_scales import scale_groups
from .k_atoms import b_along_k, halo_taps, k_atom_count, lines_of_b, stage_lines
from .mma_atom import promoted_k_atoms, wgmma_atom
from .result_box import can_store_by_tma

SPARE_REGISTERS = 30
"""Registers for addresses and constants, roughly (from compiled kernels)."""
MMA_N = (256, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240)
GROUP_M = (8, 4, 16, 32)

KNOBS: tuple[Knob, ...] = (
    Knob("consumer_warpgroups", (2, 1, 3), "how many warpgroups of a CTA multiply"),
    Knob("ping_pong", (0, 1), "whether each of them has tiles of its own: one multiplies while another stores"),
    Knob("atoms_m", (1, 2), "how many times 64 rows of a tile a warpgroup takes"),
    Knob("mma_n", MMA_N, "how many columns wgmma and a tile have, those of all accumulators together"),
    Knob("k_atoms", (1, 2, 4), "how many rows of 128 bytes along k a stage holds (64 places of 16 bits)"),
    Knob("cluster_m", (1, 2, 4), "how many tiles a cluster has along m; they share B by TMA multicast"),
    Knob("cluster_n", (1, 2, 4), "how many tiles a cluster has along n; they share A by TMA multicast"),
    Knob("split_k", (1, 2, 4, 8), "how many CTAs of a cluster share k of one tile"),
    Knob("group_m", GROUP_M, "how many clusters along m are scheduled before the next ones along n"),
    Knob("ctas_per_sm", (1, 2), "how many CTAs a multiprocessor should run at once"),
    Knob("producer_warpgroup", (0, 1), "whether a whole warpgroup loads, which leaves registers to the others"),
    Knob("stream_k", (0, 1), "whether CTAs share k of the last tiles; a second launch adds up these"),
    Knob("epilogue_stages", (2, 0, 1), "how many shared buffers a warpgroup stores through; 0: from registers"),
    Knob("resident_b", (0, 1), "whether the columns of B that a CTA needs stay in shared memory for all of its tiles"),
)
"""A new knob is also a field of ``GemmSizes``."""
REPACKED = "repacked"
"""Only products that TMA cannot load as they are have this knob: whether their operands are copied first, or shifted on
their way to shared memory (``shifted_rows``)."""
VERSION = 8
"""The version of the sketch. It grows whenever knobs, legality or lowering change what a schedule means."""

WARPGROUP_WARPS = WARPGROUP_THREADS // WARP_LANES
MOST_STAGES = 12
"""More stages than these do not hide more latency."""
BARRIER_BYTES = 48
"""The barriers that belong to no stage, and what aligns them, take so many bytes of shared memory."""
GROUP_SCALE_COLUMNS = 16
"""A warpgroup has so many columns of tensor memory for each group of 4 scales of a k atom. Those of 128 rows and 256
columns take 12."""
TENSOR_MEMORY_BYTES = 48
"""The barriers of accumulators in tensor memory, and its address, take so many bytes more."""
MOST_UNITS, MOST_PIXEL_UNITS = 8, 64
"""Stream-K splits a tile into so many units at most, or into so many where k counts pixels, which are many."""
UNIT_STORE_K_ITERS = 8
"""To store the partial sums of a unit, and to add them up, takes about as long as so many k iterations."""
PRODUCER_REGISTERS = 40
"""A thread of a producer warpgroup that copies nothing itself keeps so many registers."""
COPY_REGISTERS, VECTOR_REGISTERS, COPIED_REGISTERS, MOST_HELD = 48, 8, 12, 16
"""A thread that copies rows has so many registers for each vector of 16 bytes that it holds, of MOST_HELD at most, and
so many for addresses and masks. Where consumers have no more registers than they start with, COPIED_REGISTERS of
theirs hold some of these, too (from compiled kernels)."""
FRAGMENT_PART_K = 16
"""A in registers is loaded in parts of so many places of k, of which a thread holds fragments of two: so many registers
for each atom."""
MOST_CONSUMER_REGISTERS = 240
"""``setmaxnreg`` gives a consumer thread so many registers at most."""
REGISTERS = 512
"""A partition of a multiprocessor has so many registers for each lane of a warp."""
PARTITIONS = 4
"""A multiprocessor has so many partitions. Every fourth warp of a CTA runs on the same one."""
CLUSTER_SHARES = {4: 10 / 11, 8: 6 / 7}
"""From so many CTAs on, clusters can fill only this share of the multiprocessors: a cluster lies within one GPC, and
GPCs have different numbers of multiprocessors."""

N = TypeVar("N", int, Ints)


@dataclass(frozen=True)
class GemmSizes(Generic[N]):
    """All sizes of one setting (``N`` is int), or of many settings at once (``N`` is a column, int64[n]).

    The first fields are the knobs; the others follow from them. Where taps share a halo, ``k_atoms`` counts those of
    all of them. Where sides are swapped, ``mma_n`` is what tiles have, of which the knob is the most.

    ``accumulators``: how many accumulators share the ``mma_n`` columns of a tile.
    ``tiles_per_iteration``: how many tiles the warpgroups of a CTA work on at once; with ping-pong it is more than one.
    ``tile_m``, ``tile_n``: how large the tile of a CTA is, or with ping-pong that of one warpgroup.
    ``threads``: how many threads a CTA has.
    ``cluster_tiles``: how many clusters of ``cluster_m`` by ``cluster_n`` tiles cover the results of the whole batch,
    at most where rows lie in groups.
    ``tile_iterations``: how many iterations the persistent loop over tiles has.
    ``busy_iterations``: how many of them are likely to have a tile, fewer where rows lie in groups.
    ``clusters``: how many clusters are launched.
    ``active_ctas_per_sm``: how many CTAs a multiprocessor really runs at once.
    ``k_iters``: how many k iterations, each of ``k_atoms`` k atoms, a CTA makes for a tile.
    ``unit_k_iters``, ``unit_rounds``: with stream-K, how many k iterations a unit of a shared tile has, and how many
    units a CTA has after its whole tiles; 0 where no tile is shared.
    ``stage_fills``: how often a CTA fills a stage in all.
    ``stages``, ``stage_bytes``: how many stages the pipeline has, and what each takes.
    ``b_stages``: how many B has: as many, or one for each k iteration where it is resident.
    ``reuses_stages``: 1 where the epilogue stages results in the place of A, once the one tile of a CTA is multiplied.
    ``shared_bytes``: how much shared memory a CTA takes.
    ``accumulator_registers``: how many registers of a consumer thread hold accumulators, promoted ones and fragments of
    A included.
    ``multiplied_registers``: how many of these the epilogue does not need: block sums (``promotion``), or fragments.
    ``launch_registers``: how many registers a thread has at most when the CTA starts.
    ``consumer_registers``: how many ``setmaxnreg`` gives a consumer thread; 0 where registers stay as they are.
    ``producer_registers``: how many a thread of a producer warpgroup keeps then.
    ``registers``: how many a consumer thread has in the end.
    ``held_vectors``: how many vectors of 16 bytes a thread that copies rows loads before it stores the first of them.
    ``tensor_columns``: how many columns of tensor memory a CTA allocates for accumulators; 0 where they lie in
    registers. In registers there is then what the epilogue loads at once.
    ``scale_columns``: how many columns it allocates for scales of blocks.
    """

    consumer_warpgroups: N
    ping_pong: N
    atoms_m: N
    mma_n: N
    k_atoms: N
    cluster_m: N
    cluster_n: N
    split_k: N
    group_m: N
    ctas_per_sm: N
    producer_warpgroup: N
    stream_k: N
    epilogue_stages: N
    resident_b: N
    repacked: N
    accumulators: N
    tiles_per_iteration: N
    tile_m: N
    tile_n: N
    threads: N
    cluster_tiles: N
    tile_iterations: N
    busy_iterations: N
    clusters: N
    active_ctas_per_sm: N
    k_iters: N
    unit_k_iters: N
    unit_rounds: N
    stage_fills: N
    stages: N
    stage_bytes: N
    b_stages: N
    reuses_stages: N
    shared_bytes: N
    accumulator_registers: N
    multiplied_registers: N
    launch_registers: N
    consumer_registers: N
    producer_registers: N
    registers: N
    held_vectors: N
    tensor_columns: N
    scale_columns: N

    @property
    def tiles_per_cluster(self) -> N:
        return self.cluster_m * self.cluster_n

    @property
    def cluster_size(self) -> N:
        """How many CTAs a cluster has. Those that share ``k`` of one tile follow one another."""
        return self.cluster_m * self.cluster_n * self.split_k

    @property
    def blocks(self) -> N:
        return self.clusters * self.cluster_size

    def registers_beside(self, spare: int | Ints) -> Ints:
        """Return how many registers a consumer thread needs, where an epilogue needs ``spare`` besides the
        accumulators."""
        spare = np.maximum(spare - self.multiplied_registers, SPARE_REGISTERS)
        needed: Ints = self.accumulator_registers + spare
        return needed

    @property
    def warps(self) -> N:
        return self.threads // WARP_LANES


_Sizes: TypeAlias = dict[str, Ints]
"""Some of the fields of ``GemmSizes``, by name."""


class _SizesInParts(GemmSizes[Ints]):
    """Sizes of which a part is worked out when something asks for it: most constraints read few, of settings that are
    many while they are counted."""

    def __init__(self, gemm: Gemm, target: Target, knobs: _Sizes) -> None:
        sizes = vars(self)
        sizes |= knobs
        sizes["_parts"] = (part(gemm, target, sizes) for part in (_tile, _registers, _grid, _pipeline))

    def __getattr__(self, name: str) -> Ints:
        """Return a size that is not there yet, after the parts up to the one that has it."""
        sizes = vars(self)
        for part in sizes.get("_parts", ()):
            sizes |= part
            if name in sizes:
                return cast(Ints, sizes[name])
        raise AttributeError(name)


@derived_once
def gemm_sizes(gemm: Gemm, target: Target, columns: Columns) -> GemmSizes[Ints]:
    """Return the sizes of all settings in ``columns``."""
    knobs = {knob.name: columns.ints(knob.name) for knob in KNOBS}
    has_choice = any(knob.name == REPACKED for knob in columns.knobs)
    knobs[REPACKED] = columns.ints(REPACKED) if has_choice else np.ones(len(columns), np.int64)
    knobs["k_atoms"] = knobs["k_atoms"] * halo_taps(gemm)
    if gemm.along_m and gemm.window is None and gemm.b_window is None:  # sides are swapped
        knobs["mma_n"] = even_mma_n(gemm.n.extent, knobs["mma_n"], knobs["cluster_m"])
    return _SizesInParts(gemm, target, knobs)


def _tile(gemm: Gemm, target: Target, s: _Sizes) -> _Sizes:
    """Return the tile of a CTA, or with ping-pong that of one of its warpgroups."""
    accumulators = np.full_like(s["mma_n"], len(gemm.accumulators))
    tiles_per_iteration = np.where(s["ping_pong"] == 1, s["consumer_warpgroups"], 1)
    return {
        "accumulators": accumulators,
        "tiles_per_iteration": tiles_per_iteration,
        "tile_m": WGMMA_M * s["atoms_m"] * s["consumer_warpgroups"] // tiles_per_iteration,
        "tile_n": s["mma_n"] // accumulators,
    }


def _grid(gemm: Gemm, target: Target, s: _Sizes) -> _Sizes:
    """Return how many clusters are launched, and how many iterations over tiles and over ``k`` their CTAs make."""
    cluster_size, tiles_per_iteration = s["cluster_m"] * s["cluster_n"] * s["split_k"], s["tiles_per_iteration"]
    cluster_rows, clusters_n = s["tile_m"] * s["cluster_m"], _ceil(gemm.n.extent, s["tile_n"] * s["cluster_n"])
    clusters_m = _ceil(gemm.m.extent, cluster_rows)
    if gemm.groups is not None:
        clusters_m = gemm.groups.most_tiles(gemm.m.extent, cluster_rows)
    cluster_tiles = clusters_m * clusters_n * prod(a.extent for a in gemm.batch)
    k_iters = _ceil(k_atom_count(gemm), s["split_k"] * s["k_atoms"])
    usable = np.full_like(cluster_size, target.threads)
    for size, share in CLUSTER_SHARES.items():
        usable = np.where(cluster_size >= size, int(target.threads * share), usable)
    together = np.maximum(usable * s["ctas_per_sm"] // cluster_size, 1)
    tile_iterations = _ceil(cluster_tiles, together * tiles_per_iteration)
    clusters, busy_iterations = _ceil(cluster_tiles, tile_iterations * tiles_per_iteration), tile_iterations
    if gemm.dynamic is not None or gemm.groups is not None:
        clusters = np.minimum(_ceil(cluster_tiles, tiles_per_iteration), together)
    if gemm.groups is not None:
        likely = gemm.groups.likely_tiles(gemm.m.extent, cluster_rows) * clusters_n
        busy_iterations = _ceil(likely, together * tiles_per_iteration)
    stream_k = s["stream_k"] == 1
    nothing = (np.zeros_like(k_iters),) * 3
    whole, unit_k_iters, units = nothing
    if stream_k.any():
        most = MOST_UNITS if gemm.b_window is None else MOST_PIXEL_UNITS
        whole, unit_k_iters, units = shared_tiles(cluster_tiles, k_iters, together, most_units=most)
    tile_iterations = np.where(stream_k, whole, tile_iterations)
    of_stream_k = np.where(whole > 0, np.where(units > 0, together, clusters), np.minimum(units, together))
    clusters = np.where(stream_k, of_stream_k, clusters)
    unit_k_iters, unit_rounds = (np.where(stream_k, n, 0) for n in (unit_k_iters, _ceil(units, together)))
    return {
        "cluster_tiles": cluster_tiles,
        "tile_iterations": tile_iterations,
        "busy_iterations": np.where(stream_k, tile_iterations, busy_iterations),
        "clusters": clusters,
        "active_ctas_per_sm": np.minimum(s["ctas_per_sm"], _ceil(clusters * cluster_size, np.maximum(usable, 1))),
        "k_iters": k_iters,
        "unit_k_iters": unit_k_iters,
        "unit_rounds": unit_rounds,
        "stage_fills": k_iters * tile_iterations * tiles_per_iteration + unit_rounds * unit_k_iters,
    }


def shared_tiles(tiles: Ints, k_iters: Ints, ctas: Ints, *, most_units: int = MOST_UNITS) -> tuple[Ints, Ints, Ints]:
    """Return what stream-K makes of so many tiles: how many whole tiles a CTA computes, of how many k iterations a unit
    of the others is, and how many units there are. A tile has ``most_units`` at most.

    The others are split into so many parts that all units take as short as possible. They are not split where that
    gains nothing, unless no CTA has a whole tile. Where a CTA has several units, all are equally long: the compiler
    does not keep products under way otherwise.
    """
    whole = _ceil(tiles * k_iters, ctas) // k_iters
    others = np.maximum(tiles - whole * ctas, 0)
    unit_k_iters = k_iters
    least = np.where(whole > 0, k_iters, np.iinfo(np.int64).max)
    for parts in range(2, most_units + 1):
        unit = _ceil(k_iters, parts)
        rounds = _ceil(others * _ceil(k_iters, unit), ctas)
        taken = rounds * (unit + UNIT_STORE_K_ITERS)
        better = (taken < least) & ((rounds == 1) | (k_iters % unit == 0))
        unit_k_iters, least = np.where(better, unit, unit_k_iters), np.where(better, taken, least)
    splits = (others > 0) & ((whole == 0) | (least < k_iters))
    units = np.where(splits, others * _ceil(k_iters, unit_k_iters), 0)
    return whole + ((others > 0) & ~splits), np.where(splits, unit_k_iters, 0), units


def _registers(gemm: Gemm, target: Target, s: _Sizes) -> _Sizes:
    """Return how many threads a CTA has, what registers they have, and what columns of tensor memory."""
    consumers, ctas_per_sm, has_producers = s["consumer_warpgroups"], s["ctas_per_sm"], s["producer_warpgroup"] == 1
    copies = s[REPACKED] == 0
    threads = WARPGROUP_THREADS * consumers + np.where(has_producers, WARPGROUP_THREADS, WARP_LANES)
    launch_registers = _equal_share(threads * ctas_per_sm)
    pool = (consumers + 1) * _equal_share((consumers + 1) * WARPGROUP_THREADS * ctas_per_sm)
    held = np.clip((launch_registers - COPY_REGISTERS) // VECTOR_REGISTERS // 4 * 4, 2, MOST_HELD)
    kept = np.where(copies, COPY_REGISTERS + VECTOR_REGISTERS * held, PRODUCER_REGISTERS)
    most = np.minimum((pool - kept) // consumers // 8 * 8, MOST_CONSUMER_REGISTERS)
    moves = has_producers & (~copies | (most > launch_registers))
    block_sums = {0: np.int64(0), 1: np.int64(1)}.get(promoted_k_atoms(gemm), s["atoms_m"])
    multiplied_registers = block_sums * s["mma_n"] // 2
    if gemm.a_in_registers:
        multiplied_registers = multiplied_registers + FRAGMENT_PART_K * s["atoms_m"]
    accumulator_registers = s["atoms_m"] * s["mma_n"] // 2 + multiplied_registers
    tensor_columns = scale_columns = np.zeros_like(s["tile_m"])
    if gemm.block_scales is not None:
        scale_columns = _allocated_columns(consumers * warpgroup_scale_columns(gemm))
    if limits_of(target).tensor_columns:
        accumulator_registers = s["accumulators"] * np.minimum(s["tile_n"], subtile_columns(gemm)) // 2
        tensor_columns = _allocated_columns(consumers * s["mma_n"])
    return {
        "threads": threads,
        "accumulator_registers": accumulator_registers,
        "multiplied_registers": multiplied_registers,
        "launch_registers": launch_registers,
        "consumer_registers": np.where(moves, most, 0),
        "producer_registers": kept,
        "registers": np.where(moves, most, launch_registers - np.where(copies, COPIED_REGISTERS, 0)),
        "held_vectors": held,
        "tensor_columns": tensor_columns,
        "scale_columns": scale_columns,
    }


def _pipeline(gemm: Gemm, target: Target, s: _Sizes) -> _Sizes:
    """Return how many stages shared memory has room for beside what the epilogue and the barriers take."""
    limits = limits_of(target)
    resident, columns = s["resident_b"] == 1, s["k_atoms"] * stage_columns(gemm, s["mma_n"], s["cluster_m"])
    lines = stage_lines(gemm, s["tile_m"], s["k_atoms"]) + np.where(resident, 0, columns)
    stage_bytes = LINE_BYTES * lines + 16
    resident_bytes = np.where(resident, LINE_BYTES * columns * s["k_iters"], 0)
    if gemm.block_scales is not None:
        chunks = _ceil(s["tile_m"], SCALE_ROWS) + _ceil(s["mma_n"], SCALE_ROWS)
        stage_bytes = stage_bytes + CHUNK_BYTES * s["k_atoms"] * scale_groups(gemm) * chunks
    epilogue_bytes = s["epilogue_stages"] * epilogue_stage_bytes(gemm, s["consumer_warpgroups"], s["tile_n"])
    # partial sums take the place of the stages
    partial_rows, of_row = partial_at(gemm, s["tile_m"], s["mma_n"])
    partial_bytes = np.where(s["split_k"] > 1, 4 * partial_rows * (of_row + partial_padding(gemm)), 0)
    barrier_bytes = BARRIER_BYTES + (TENSOR_MEMORY_BYTES if limits.tensor_columns else 0)
    # beside a resident B, stages also keep further CTAs away, among which launches that overlap would be uneven
    fills = np.where(resident, MOST_STAGES, s["stage_fills"])
    most = np.minimum(fills, MOST_STAGES)
    room = limits.shared_bytes_for(s["ctas_per_sm"]) - resident_bytes - barrier_bytes
    reuses = _may_stage_in_a(gemm, target, s) & (np.minimum(room // stage_bytes, most) >= s["epilogue_stages"])
    staged_bytes = np.where(reuses, 0, epilogue_bytes)
    stages = np.minimum((room - staged_bytes) // stage_bytes, most)
    held = np.maximum(np.maximum(stages, 1) * stage_bytes, partial_bytes)
    shared_bytes = held + resident_bytes + staged_bytes + barrier_bytes
    return {
        "stages": stages,
        "stage_bytes": stage_bytes,
        "b_stages": np.where(resident, s["k_iters"], stages),
        "reuses_stages": reuses.astype(np.int64),
        "shared_bytes": shared_bytes,
    }


def _may_stage_in_a(gemm: Gemm, target: Target, s: _Sizes) -> Bools:
    """Return whether a CTA has one tile, whose results can take the place of A once that is multiplied: subtiles of 64
    rows of 128 bytes of the same 16-bit type, which TMA stores, where no other warpgroup reads these rows."""
    a, window = wgmma_atom(gemm).a, gemm.window
    alike = a.bits == 16 and all(result.tensor.dtype == a for result in gemm.results) and can_store_by_tma(gemm)
    own = gemm.groups is None and gemm.b_window is None and (window is None or window.halo is None)
    if not alike or not own or limits_of(target).tensor_columns:
        return np.zeros(len(s["tile_m"]), dtype=bool)
    one = (s["tile_iterations"] * s["tiles_per_iteration"] == 1) & (s["unit_rounds"] == 0) & (s["split_k"] == 1)
    whole = stored_columns(gemm, s["tile_n"]) % subtile_columns(gemm) == 0
    found: Bools = one & (s["epilogue_stages"] > 0) & (whole | gemm.along_m)
    return found


def even_mma_n(columns: int, most: Ints, cluster_m: Ints) -> Ints:
    """Return the width of tiles that share so many columns evenly where they have at most ``most`` each. It is a
    multiple of 8, as wgmma wants it, and of 16 where several CTAs load parts of these columns for each other."""
    unit = np.where(cluster_m > 1, 16, 8)
    return _ceil(_ceil(columns, _ceil(columns, most)), unit) * unit


def partial_padding(gemm: Gemm) -> int:
    """Return the padding between rows of partial sums (``split_k.partial_at``), in elements. With it, the rows and
    pairs of columns that wgmma leaves in a warp lie in different banks."""
    return 4 if gemm.along_m else 8


def warpgroup_scale_columns(gemm: Gemm) -> int:
    """Return how many columns of tensor memory a warpgroup has for scales of blocks."""
    return GROUP_SCALE_COLUMNS * scale_groups(gemm)


def _allocated_columns(wanted: Ints) -> Ints:
    """Return how many columns of tensor memory are allocated where so many are wanted."""
    columns: Ints = np.maximum(2 ** np.ceil(np.log2(wanted)).astype(np.int64), LEAST_COLUMNS)
    return columns


def stores_tiles(sizes: GemmSizes[Ints]) -> Bools:
    """Return whether CTAs have whole tiles to store, bool[n]: not with split-K, nor where stream-K splits every
    tile."""
    whole: Bools = (sizes.split_k == 1) & (sizes.tile_iterations > 0)
    return whole


def keeps_columns(gemm: Gemm, sizes: GemmSizes[Ints]) -> Bools:
    """Return whether a CTA has several tiles, one after the other, all of the same columns of B, bool[n]."""
    several = (sizes.tile_iterations > 1) & (sizes.tiles_per_iteration == 1) & (sizes.stream_k == 0)
    kept: Bools = several & (sizes.tile_n * sizes.cluster_n >= gemm.n.extent)
    alone = not gemm.batch and gemm.groups is None
    return kept if alone else np.zeros_like(kept)


def subtile_columns(gemm: Gemm) -> int:
    """Return how many columns a subtile of the epilogue has at most: what rows of 128 bytes hold of the outputs."""
    return LINE_BYTES // gemm.results[0].tensor.dtype.bytes


def stored_columns(gemm: Gemm, tile_n: int | Ints) -> Ints:
    """Return how many columns of a tile the epilogue stages: those that the result has, in whole vectors of eight."""
    columns: Ints = np.minimum(np.asarray(tile_n, np.int64), -(-gemm.n.extent // 8) * 8)
    return columns


def epilogue_stage_bytes(gemm: Gemm, consumer_warpgroups: Ints, tile_n: Ints) -> Ints:
    """Return how many bytes an epilogue stage of all warpgroups takes. Whole subtiles share it, and a rest has its
    own."""
    side, stored = subtile_columns(gemm), stored_columns(gemm, tile_n)
    staged: Ints = np.where(stored < side, 0, side) + stored % side
    return gemm.results[0].tensor.dtype.bytes * consumer_warpgroups * WGMMA_M * staged


def epilogue_subtiles(gemm: Gemm, sizes: GemmSizes[Ints]) -> Ints:
    """Return how many subtiles of 64 rows a consumer warpgroup stores of one output of a tile."""
    return sizes.atoms_m * _ceil(sizes.tile_n, subtile_columns(gemm))


def scale_products(sizes: GemmSizes[Ints]) -> Ints:
    """Return how many products of scales of blocks a thread multiplies with: of its rows, and of groups of columns."""
    products: Ints = 2 * sizes.atoms_m * sizes.tile_n // np.gcd(sizes.tile_n, SCALED_K)
    return products


def stage_columns(gemm: Gemm, mma_n: Ints, cluster_m: Ints) -> Ints:
    """Return how many lines of 128 bytes of B a stage holds for each k atom: one for each column, or where B lies along
    ``n``, one for each place of k of 64 columns. Some overlap where taps read from one patch of pixels."""
    if gemm.b_window is not None and gemm.b_window.halo is not None:
        return np.full_like(mma_n, gemm.b_window.patch_lines)
    if b_along_k(gemm):
        return mma_n
    return _ceil(mma_n, SWIZZLE_128B_ELEMENTS) * lines_of_b(gemm, cluster_m)


def _equal_share(threads: Ints) -> Ints:
    """Return how many registers each of ``threads`` threads of a multiprocessor can have if all have the same
    number."""
    warps = _ceil(threads, WARP_LANES)
    share: Ints = np.minimum(REGISTERS // _ceil(warps, PARTITIONS) // 8 * 8, 248)
    return share


def _ceil(value: int | Ints, unit: int | Ints) -> Ints:
    """``value`` over ``unit``, rounded up."""
    quotient: Ints = -(-np.asarray(value, np.int64) // unit)
    return quotient
