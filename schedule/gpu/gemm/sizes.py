"""The sizes that follow from a setting of ``cuda_gemm``: the tile, the grid, the pipeline, registers, shared memory."""

from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES, Var
from ....ir.gpu.barrier import WARPGROUP_THREADS
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M
from ...problems.gemm import Gemm
from ...space.columns import Bools, Columns, Ints
from ..occupancy import limits_of

WARPGROUP_WARPS = WARPGROUP_THREADS // WARP_LANES
MOST_STAGES = 12
"""Stages of the pipeline beyond which more do not hide more."""
BARRIER_BYTES = 48
"""Bytes of shared memory for the barriers that belong to no stage, and for what aligns them."""
PARTIAL_PADDING = 8
"""Elements between the rows of partial sums, so that four rows of pairs, as wgmma leaves them, lie in other banks."""
PRODUCER_REGISTERS = 40
"""Registers of a thread of the producer warpgroup after it has given up the others."""
MOST_CONSUMER_REGISTERS = 240
"""Registers that ``setmaxnreg`` gives a consumer thread at most."""
REGISTERS = 512
"""Registers of one of the four partitions of a multiprocessor, for each lane of a warp."""
PARTITIONS = 4
"""Partitions of a multiprocessor. Every fourth warp of a CTA runs on the same one."""
CLUSTER_SHARES = {4: 10 / 11, 8: 6 / 7}
"""CTAs of a cluster, from which on -> share of the multiprocessors that such clusters can fill. A cluster lies within
one GPC, and GPCs have different numbers of multiprocessors."""

MMA_N = (256, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240)
"""Columns of a tile, those of all its accumulators together."""
GROUP_M = (8, 4, 16, 32)
"""Clusters along m that the tile scheduler goes through before the next along n."""

KNOBS = (
    "consumer_warpgroups",
    "ping_pong",
    "atoms_m",
    "mma_n",
    "k_atoms",
    "cluster_m",
    "cluster_n",
    "split_k",
    "group_m",
    "ctas_per_sm",
    "producer_warpgroup",
    "stream_k",
    "epilogue_stages",
)
"""The knobs that the sizes follow from."""

N = TypeVar("N", int, Ints)


@dataclass(frozen=True)
class GemmSizes(Generic[N]):
    """All sizes of one setting (``N`` is int), or of many settings at once (``N`` is a column, int64[n]).

    The first fields are the knobs (see ``GemmPlan.knobs``); the others follow from them.

    ``accumulators``: how many sums share a tile of ``mma_n`` columns.
    ``tiles_per_iteration``: how many tiles the warpgroups of a CTA work on at once; more than one only with ping-pong.
    ``tile_m``, ``tile_n``: the tile of the result that one CTA, or with ping-pong one warpgroup, works on.
    ``threads``: threads of a CTA.
    ``cluster_tiles``: how many clusters the result is made of: groups of ``cluster_m`` by ``cluster_n`` tiles.
    ``tile_iterations``: iterations of the persistent loop over tiles.
    ``clusters``: clusters that are launched.
    ``active_ctas_per_sm``: CTAs that a multiprocessor really runs at once.
    ``k_iters``: iterations of the main loop that one CTA makes for a tile, each of ``k_atoms`` times 64 of ``k``.
    ``unit_k_iters``: with stream-K, the iterations of each CTA, over tile borders; otherwise 0.
    ``stage_fills``: how often a CTA fills a stage in all.
    ``stages``: stages of the pipeline; ``stage_bytes``: what one takes.
    ``shared_bytes``: shared memory of a CTA.
    ``accumulator_registers``: registers of a consumer thread that hold accumulators.
    ``launch_registers``: registers of each thread when the CTA starts, at most.
    ``consumer_registers``: what ``setmaxnreg`` gives consumer threads; 0 where registers stay as they are.
    ``thread_registers``: registers that a consumer thread has in the end.
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
    accumulators: N
    tiles_per_iteration: N
    tile_m: N
    tile_n: N
    threads: N
    cluster_tiles: N
    tile_iterations: N
    clusters: N
    active_ctas_per_sm: N
    k_iters: N
    unit_k_iters: N
    stage_fills: N
    stages: N
    stage_bytes: N
    shared_bytes: N
    accumulator_registers: N
    launch_registers: N
    consumer_registers: N
    thread_registers: N

    @property
    def tiles_per_cluster(self) -> N:
        return self.cluster_m * self.cluster_n

    @property
    def cluster_size(self) -> N:
        """CTAs of a cluster: those that share ``k`` of one tile follow one another."""
        return self.cluster_m * self.cluster_n * self.split_k

    @property
    def ctas(self) -> N:
        return self.clusters * self.cluster_size

    @property
    def block_k(self) -> N:
        """Elements of ``k`` of one stage."""
        return SWIZZLE_128B_ELEMENTS * self.k_atoms

    @property
    def warps(self) -> N:
        return self.threads // WARP_LANES


def gemm_sizes(gemm: Gemm, target: Target, columns: Columns) -> GemmSizes[Ints]:
    """The sizes of all settings in ``columns``."""
    k = {name: columns.ints(name) for name in KNOBS}
    accumulators = np.full(len(columns), len(gemm.accumulators), dtype=np.int64)
    tiles_per_iteration = np.where(k["ping_pong"] == 1, k["consumer_warpgroups"], 1)
    tile_m = WGMMA_M * k["atoms_m"] * k["consumer_warpgroups"] // tiles_per_iteration
    tile_n = k["mma_n"] // accumulators
    # the grid
    cluster_size = k["cluster_m"] * k["cluster_n"] * k["split_k"]
    cluster_tiles = _ceil(gemm.m.extent, tile_m * k["cluster_m"]) * _ceil(gemm.n.extent, tile_n * k["cluster_n"])
    cluster_tiles = cluster_tiles * prod(a.extent for a in gemm.batch)
    k_iters = _ceil(gemm.k.extent, k["split_k"] * k["k_atoms"] * SWIZZLE_128B_ELEMENTS)
    usable = np.full_like(cluster_size, target.threads)
    for size, share in CLUSTER_SHARES.items():
        usable = np.where(cluster_size >= size, int(target.threads * share), usable)
    together = np.maximum(usable * k["ctas_per_sm"] // cluster_size, 1)
    stream_k = k["stream_k"] == 1
    unit_k_iters = np.where(stream_k, _ceil(cluster_tiles * k_iters, together), 0)
    tile_iterations = _ceil(cluster_tiles, together * tiles_per_iteration)
    clusters = _ceil(cluster_tiles, tile_iterations * tiles_per_iteration)
    tile_iterations = np.where(stream_k, (unit_k_iters + k_iters - 2) // k_iters + 1, tile_iterations)
    clusters = np.where(stream_k, _ceil(cluster_tiles * k_iters, np.maximum(unit_k_iters, 1)), clusters)
    # registers
    producer_warpgroup = k["producer_warpgroup"] == 1
    producers = np.where(producer_warpgroup, WARPGROUP_THREADS, WARP_LANES)
    threads = WARPGROUP_THREADS * k["consumer_warpgroups"] + producers
    launch_registers = _equal_share(threads * k["ctas_per_sm"])
    warpgroups = k["consumer_warpgroups"] + 1
    pool = warpgroups * _equal_share(warpgroups * WARPGROUP_THREADS * k["ctas_per_sm"])
    most = np.minimum((pool - PRODUCER_REGISTERS) // k["consumer_warpgroups"] // 8 * 8, MOST_CONSUMER_REGISTERS)
    # shared memory
    stage_bytes = 2 * SWIZZLE_128B_ELEMENTS * k["k_atoms"] * (tile_m + _stage_columns(gemm, k["mma_n"])) + 16
    staged = np.minimum(tile_n, SWIZZLE_128B_ELEMENTS)
    staged = staged + np.where(tile_n > SWIZZLE_128B_ELEMENTS, tile_n % SWIZZLE_128B_ELEMENTS, 0)
    epilogue_bytes = 2 * k["consumer_warpgroups"] * k["epilogue_stages"] * WGMMA_M * staged
    partial_bytes = np.where(k["split_k"] > 1, 4 * tile_m * (k["mma_n"] + PARTIAL_PADDING), 0)  # in place of the stages
    limits = limits_of(target)
    room = limits.shared_bytes_per_multiprocessor // k["ctas_per_sm"] - limits.reserved_shared_bytes
    room = np.minimum(room, limits.shared_bytes_per_block) - epilogue_bytes - BARRIER_BYTES
    stage_fills = np.where(stream_k, unit_k_iters, k_iters * tile_iterations * tiles_per_iteration)
    stages = np.minimum(np.minimum(room // stage_bytes, stage_fills), MOST_STAGES)
    shared_bytes = np.maximum(np.maximum(stages, 1) * stage_bytes, partial_bytes) + epilogue_bytes + BARRIER_BYTES
    return GemmSizes(
        **k,
        accumulators=accumulators,
        tiles_per_iteration=tiles_per_iteration,
        tile_m=tile_m,
        tile_n=tile_n,
        threads=threads,
        cluster_tiles=cluster_tiles,
        tile_iterations=tile_iterations,
        clusters=clusters,
        active_ctas_per_sm=np.minimum(k["ctas_per_sm"], _ceil(clusters * cluster_size, np.maximum(usable, 1))),
        k_iters=k_iters,
        unit_k_iters=unit_k_iters,
        stage_fills=stage_fills,
        stages=stages,
        stage_bytes=stage_bytes,
        shared_bytes=shared_bytes,
        accumulator_registers=k["atoms_m"] * k["mma_n"] // 2,
        launch_registers=launch_registers,
        consumer_registers=np.where(producer_warpgroup, most, 0),
        thread_registers=np.where(producer_warpgroup, most, launch_registers),
    )


def stores_tiles(sizes: GemmSizes[Ints]) -> Bools:
    """Whether CTAs have whole tiles to store, bool[n]: not with split-K, nor where stream-K splits every tile."""
    whole: Bools = (sizes.split_k == 1) & ((sizes.stream_k == 0) | (sizes.unit_k_iters >= sizes.k_iters))
    return whole


def epilogue_subtiles(sizes: GemmSizes[Ints]) -> Ints:
    """Subtiles, of 64 rows and at most 64 columns of one output, that a consumer warpgroup stores of a tile."""
    return sizes.atoms_m * _ceil(sizes.tile_n, SWIZZLE_128B_ELEMENTS)


def b_along_k(gemm: Gemm) -> bool:
    """Whether the rows of B in memory lie along ``k``."""
    assert gemm.b.load is not None
    return gemm.b.load.indices[-1] == Var("k")


def _stage_columns(gemm: Gemm, mma_n: Ints) -> Ints:
    """Columns of B that a stage holds: whole swizzled rows where they lie along ``n``."""
    return mma_n if b_along_k(gemm) else _ceil(mma_n, SWIZZLE_128B_ELEMENTS) * SWIZZLE_128B_ELEMENTS


def _equal_share(threads: Ints) -> Ints:
    """Registers of each of ``threads`` threads of a multiprocessor at most, where all have the same number."""
    warps = _ceil(threads, WARP_LANES)
    share: Ints = np.minimum(REGISTERS // _ceil(warps, PARTITIONS) // 8 * 8, 248)
    return share


def _ceil(value: int | Ints, unit: int | Ints) -> Ints:
    """``value`` over ``unit``, rounded up."""
    quotient: Ints = -(-np.asarray(value, np.int64) // unit)
    return quotient
