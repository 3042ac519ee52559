"""Which settings of ``cuda_gemm`` are legal: those that can be built, are correct, and repeat no other one."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ....core.target import Target
from ....ir.gpu.tcgen05 import SCALE_ROWS
from ....ir.gpu.tma import MAX_BOX_EXTENT
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M
from ....ir.verifier.wgmma import MAX_PENDING
from ...problems.gemm import SCALED_K, Gemm
from ...problems.image_window import ImageWindow
from ...space.columns import Bools, Ints
from ...space.constraint import Constraint
from ...space.knob import Knob
from ..occupancy import limits_of
from .epilogue import source_registers, spare_registers
from .k_atoms import b_along_k, halo_taps, joined_groups
from .mma_atom import promoted_k_atoms
from .result_box import can_store_by_tma, can_store_staged_rows
from .shifted_rows import is_shifted
from .sizes import (
    GROUP_M,
    KNOBS,
    REPACKED,
    GemmSizes,
    epilogue_subtiles,
    gemm_sizes,
    keeps_columns,
    scale_products,
    stores_tiles,
    subtile_columns,
    warpgroup_scale_columns,
)

MOST_CLUSTER_CTAS = 8
"""Every Hopper device can run clusters of so many CTAs (CUDA C++ Programming Guide, "Thread Block Clusters")."""
MMA_REGISTERS = 32
"""Before ``setmaxnreg``, ptxas wants so many registers besides the accumulators of one wgmma (from compiled
kernels)."""

FEW_SCALE_PRODUCTS = 6
"""So many products of scales fit into the registers that a thread has besides accumulators. Each further one takes two
registers, its own and that of the block at hand (from compiled kernels)."""

STREAM_K_SCALED_ACCUMULATORS = 96
"""Where a stream-K unit begins and ends stays in registers beside scales and so many accumulators (from compiled
kernels: 128 spill)."""

GROUPED_PING_PONG_ACCUMULATORS = 160
"""Where a tile begins and its group ends stays in registers beside so many accumulators (from compiled kernels: 176
spill)."""

PIXEL_ACCUMULATORS = 160
"""The addresses of pixels stay in registers beside so many accumulators (from compiled kernels: 176 spill)."""

TILE = "consumer_warpgroups ping_pong atoms_m mma_n"
GRID = f"{TILE} cluster_m cluster_n split_k ctas_per_sm stream_k k_atoms"
PIPELINE = f"{GRID} epilogue_stages resident_b"
THREADS = f"consumer_warpgroups producer_warpgroup ctas_per_sm {REPACKED}"
"""The tile, the loops over tiles and k, the stages, and the threads of a multiprocessor follow from these knobs."""

_Rule = Callable[[str, str, Callable[[GemmSizes[Ints]], Bools]], Constraint]


def gemm_constraints(gemm: Gemm, target: Target, knobs: Sequence[Knob] = KNOBS) -> tuple[Constraint, ...]:
    """Return the constraints of a space with some of the knobs. Those that none of them takes part in hold."""
    there = {knob.name for knob in knobs}

    def rule(meaning: str, names: str, holds: Callable[[GemmSizes[Ints]], Bools]) -> Constraint:
        """Return a constraint on sizes that follow from the knobs ``names`` alone."""
        read = tuple(name for name in dict.fromkeys(names.split()) if name in there)
        return Constraint(meaning, read, lambda c: holds(gemm_sizes(gemm, target, c)))

    in_tensor_memory = limits_of(target).tensor_columns > 0
    resources = _tensor_memory(rule, gemm, target) if in_tensor_memory else _accumulator_registers(rule, gemm)
    shapes = (*(() if in_tensor_memory else (_pending(rule, gemm),)), *_shapes(rule, gemm))
    rules = (
        *shapes,
        *resources,
        *_resources(rule, gemm, target),
        *_shares(rule, gemm),
        *_indivisible(rule, gemm),
        _epilogue(rule, gemm),
    )
    if REPACKED in there:
        rules = (*rules, *_shifted(rule, gemm))
    return tuple(r for r in (*rules, *_promotion(rule, gemm)) if r.knobs)


def _shifted(rule: _Rule, gemm: Gemm) -> tuple[Constraint, ...]:
    """Return what rows ask for that threads copy to shared memory."""
    of_a, of_b = (is_shifted(gemm, axis, 0) for axis in "mn")
    return (
        rule(
            "operands that are not repacked are copied by a producer_warpgroup, for all consumers, and for whole tiles "
            "(ping_pong and stream_k are 0)",
            f"{REPACKED} producer_warpgroup ping_pong stream_k",
            lambda s: (s.repacked == 1) | ((s.producer_warpgroup == 1) & (s.ping_pong + s.stream_k == 0)),
        ),
        rule(
            "where they are not repacked, CTAs of a cluster do not share them: cluster_n is 1 for A, cluster_m for B",
            f"{REPACKED} cluster_m cluster_n",
            lambda s: (s.repacked == 1) | (((s.cluster_n == 1) | (not of_a)) & ((s.cluster_m == 1) | (not of_b))),
        ),
    )


def _promotion(rule: _Rule, gemm: Gemm) -> tuple[Constraint, ...]:
    """Return what promoted accumulators ask for."""
    if not promoted_k_atoms(gemm):
        return ()
    rules = [rule("accumulators are promoted after single k atoms: k_atoms is 1", "k_atoms", lambda s: s.k_atoms == 1)]
    if gemm.scales is not None:
        spare = spare_registers(gemm)

        def scale_registers(s: GemmSizes[Ints]) -> Ints:
            return 2 * np.maximum(scale_products(s) - FEW_SCALE_PRODUCTS, 0)

        rules += [
            rule(
                "besides accumulators, the registers of a consumer thread hold products of scales, twice what is more "
                f"than {FEW_SCALE_PRODUCTS} of 2 x atoms_m for each gcd(mma_n, {SCALED_K}) columns",
                f"{TILE} {THREADS}",
                lambda s: s.registers_beside(spare) + scale_registers(s) <= s.registers,
            ),
            rule(
                f"with stream_k and scales a thread has at most {STREAM_K_SCALED_ACCUMULATORS} accumulators "
                "(atoms_m x mma_n / 2)",
                "stream_k atoms_m mma_n",
                lambda s: (s.stream_k == 0) | (s.atoms_m * s.mma_n <= 2 * STREAM_K_SCALED_ACCUMULATORS),
            ),
        ]
    return tuple(rules)


def _pending(rule: _Rule, gemm: Gemm) -> Constraint:
    """Return how many products of a stage are under way."""
    taps = halo_taps(gemm)
    if joined_groups(gemm) * taps == 1:
        return rule(
            f"at most {MAX_PENDING} wgmma (atoms_m x k_atoms) are under way at once",
            "atoms_m k_atoms",
            lambda s: s.atoms_m * s.k_atoms <= MAX_PENDING,
        )
    return rule(
        "a stage has one row of 128 bytes along k for each tap, of the channels of all groups: k_atoms is 1",
        "k_atoms",
        lambda s: s.k_atoms == taps,
    )


def _shapes(rule: _Rule, gemm: Gemm) -> tuple[Constraint, ...]:
    """Return what wgmma, tcgen05, TMA and clusters can do at all."""
    groups = joined_groups(gemm)
    rules = [
        rule(
            f"a cluster (cluster_m x cluster_n x split_k) has at most {MOST_CLUSTER_CTAS} CTAs",
            "cluster_m cluster_n split_k",
            lambda s: s.cluster_size <= MOST_CLUSTER_CTAS,
        ),
        rule(
            f"a TMA box has at most {MAX_BOX_EXTENT} rows: those of a tile of A, shared out among cluster_n CTAs",
            "consumer_warpgroups ping_pong atoms_m cluster_n",
            lambda s: s.tile_m // s.cluster_n <= MAX_BOX_EXTENT,
        ),
    ]
    if groups > 1 and b_along_k(gemm):
        rules.append(
            rule(
                f"a tile has the filters of {groups} groups (mma_n is {gemm.n.extent}, cluster_n is 1), and each of "
                "cluster_m CTAs loads as many groups",
                "mma_n cluster_m cluster_n",
                lambda s: (s.mma_n == gemm.n.extent) & (s.cluster_n == 1) & (groups % s.cluster_m == 0),
            )
        )
    elif groups > 1:
        lines = SWIZZLE_128B_ELEMENTS // groups
        rules.append(
            rule(
                f"a tile has the filters of {groups} groups (mma_n is {gemm.n.extent}, cluster_n is 1), and each of "
                f"cluster_m CTAs loads a multiple of 8 of their {lines} channels, the period of the swizzle",
                "mma_n cluster_m cluster_n",
                lambda s: (s.mma_n == gemm.n.extent) & (s.cluster_n == 1) & (lines % (8 * s.cluster_m) == 0),
            )
        )
    if b_along_k(gemm):
        rules.append(
            rule(
                "the mma_n columns of a tile of B, shared out among accumulators and cluster_m CTAs, are multiples of "
                "8, the period of the swizzle",
                "mma_n cluster_m",
                lambda s: s.mma_n % (8 * s.accumulators * s.cluster_m) == 0,
            )
        )
    elif gemm.b_window is not None:
        rules += _pixel_rules(rule, gemm.b_window)
    elif len(gemm.accumulators) > 1:
        rules.append(
            rule(
                f"each accumulator has a multiple of {SWIZZLE_128B_ELEMENTS} of the mma_n columns, a swizzled row of B",
                "mma_n",
                lambda s: s.mma_n % (SWIZZLE_128B_ELEMENTS * s.accumulators) == 0,
            )
        )
    return tuple(rules)


def _pixel_rules(rule: _Rule, window: ImageWindow) -> Iterator[Constraint]:
    """Yield what B asks for where it is images seen through a window."""
    row, taps = SWIZZLE_128B_ELEMENTS, window.halo_taps
    if taps == 1:
        yield rule(
            f"tiles have whole rows of {row} channels of a tap: mma_n is a multiple of that",
            "mma_n",
            lambda s: s.mma_n % row == 0,
        )
    else:
        yield rule(
            f"a tile has {row} channels of {taps} taps, which read from one patch: mma_n is {taps * row}",
            "mma_n",
            lambda s: s.mma_n == taps * row,
        )
    if window.patch:
        yield rule(
            "each CTA loads whole patches of pixels: no cluster_m, no cluster_n",
            "cluster_m cluster_n",
            lambda s: s.tiles_per_cluster == 1,
        )


def _tensor_memory(rule: _Rule, gemm: Gemm, target: Target) -> tuple[Constraint, ...]:
    """Return what tensor memory has room for."""
    columns = limits_of(target).tensor_columns
    scales = "" if gemm.block_scales is None else f", and {warpgroup_scale_columns(gemm)} columns of scales for each"
    whole_chunks = rule(
        f"scales of blocks come for {SCALE_ROWS} rows or columns at once: atoms_m is 2, and mma_n a multiple of that",
        "atoms_m mma_n",
        lambda s: (s.atoms_m * WGMMA_M == SCALE_ROWS) & (s.mma_n % SCALE_ROWS == 0),
    )
    return (
        rule(
            f"consumer_warpgroups x mma_n columns of accumulators{scales}, rounded up to a power of two, fit into the "
            f"{columns} of a multiprocessor ctas_per_sm times",
            "consumer_warpgroups mma_n ctas_per_sm",
            lambda s: (s.tensor_columns + s.scale_columns) * s.ctas_per_sm <= columns,
        ),
        *(() if gemm.block_scales is None else (whole_chunks,)),
    )


def _accumulator_registers(rule: _Rule, gemm: Gemm) -> tuple[Constraint, ...]:
    """Return which registers hold accumulators."""
    staged = can_store_staged_rows(gemm)
    pixels = rule(
        f"where pixels are stored from registers, a thread has at most {PIXEL_ACCUMULATORS} accumulators "
        "(atoms_m x mma_n / 2)",
        "atoms_m mma_n epilogue_stages" if staged else "atoms_m mma_n",
        lambda s: (s.accumulator_registers <= PIXEL_ACCUMULATORS) | (staged & (s.epilogue_stages > 0)),
    )
    return (
        *((pixels,) if gemm.along_pixels else ()),
        rule(
            "a producer_warpgroup leaves each of the consumer_warpgroups more registers than an equal share",
            THREADS,
            lambda s: (s.producer_warpgroup == 0) | (s.repacked == 0) | (s.consumer_registers > s.launch_registers),
        ),
        rule(
            f"the registers that a thread starts with hold mma_n / 2 accumulators of a wgmma and {MMA_REGISTERS} more",
            f"{THREADS} mma_n",
            lambda s: s.mma_n // 2 + MMA_REGISTERS <= s.launch_registers,
        ),
    )


def _resources(rule: _Rule, gemm: Gemm, target: Target) -> tuple[Constraint, ...]:
    """Return what a multiprocessor has room for."""
    limits, spare, sources = limits_of(target), spare_registers(gemm), source_registers(gemm)
    sums = ", block sums" if promoted_k_atoms(gemm) else ""
    return (
        rule(
            f"the registers of a consumer thread hold atoms_m x mma_n / 2 accumulators{sums} and about {spare} more, "
            f"of which {sources} are for an epilogue with stages",
            f"{TILE} {THREADS} epilogue_stages",
            lambda s: s.registers_beside(spare - np.where(s.epilogue_stages == 0, sources, 0)) <= s.registers,
        ),
        rule(
            "two stages fit into shared memory, or one if a CTA fills no more",
            PIPELINE,
            lambda s: s.stages >= np.minimum(2, s.stage_fills),
        ),
        rule(
            "a multiprocessor has registers and shared memory for ctas_per_sm CTAs",
            f"{PIPELINE} {THREADS}",
            lambda s: limits.resident_blocks(s.threads, s.launch_registers, s.shared_bytes) >= s.ctas_per_sm,
        ),
    )


def _shares(rule: _Rule, gemm: Gemm) -> tuple[Constraint, ...]:
    """Return how tiles and ``k`` can be shared out."""

    def is_ordered(s: GemmSizes[Ints]) -> Bools:
        clusters_m = -(-gemm.m.extent // (s.tile_m * s.cluster_m))
        if gemm.groups is not None:
            clusters_m = gemm.groups.most_tiles(gemm.m.extent, s.tile_m * s.cluster_m)
        return (s.group_m <= clusters_m) & (s.tile_n * s.cluster_n < gemm.n.extent)

    return (
        rule(
            "ping_pong has at least two consumer_warpgroups",
            "ping_pong consumer_warpgroups",
            lambda s: (s.ping_pong == 0) | (s.consumer_warpgroups > 1),
        ),
        rule(
            "with split_k all threads of a CTA add up its one tile: no ping_pong, no producer_warpgroup",
            "split_k ping_pong producer_warpgroup",
            lambda s: (s.split_k == 1) | ((s.ping_pong == 0) & (s.producer_warpgroup == 0)),
        ),
        rule(
            "with stream_k every CTA works alone: no ping_pong, no cluster_m, no cluster_n, no split_k",
            "stream_k ping_pong cluster_m cluster_n split_k",
            lambda s: (s.stream_k == 0) | ((s.ping_pong == 0) & (s.cluster_size == 1)),
        ),
        rule(
            "with split_k every cluster has one tile of the result",
            GRID,
            lambda s: (s.split_k == 1) | (s.tile_iterations == 1),
        ),
        rule(
            "with resident_b a CTA has several tiles, one after the other, all of the same columns: clusters of "
            "cluster_n tiles cover n, and there is no batch, no groups, no ping_pong, no stream_k",
            f"{GRID} resident_b",
            lambda s: (s.resident_b == 0) | keeps_columns(gemm, s),
        ),
        rule(
            f"group_m is {GROUP_M[0]} where it changes no order: with one cluster along n, or fewer along m",
            f"{TILE} cluster_m cluster_n group_m",
            lambda s: (s.group_m == GROUP_M[0]) | is_ordered(s),
        ),
    )


def _indivisible(rule: _Rule, gemm: Gemm) -> tuple[Constraint, ...]:
    """Return which tiles are of one CTA: where the rows of a call are known at run time, or a tile has several sums."""
    sums = len(gemm.accumulators)
    if gemm.groups is not None:
        return (
            rule(
                "the tiles of groups are listed at run time, and each is of one CTA: split_k is 1, stream_k is 0",
                "split_k stream_k",
                lambda s: (s.split_k == 1) & (s.stream_k == 0),
            ),
            rule(
                f"with ping_pong and groups a thread has at most {GROUPED_PING_PONG_ACCUMULATORS} accumulators "
                "(atoms_m x mma_n / 2)",
                "ping_pong atoms_m mma_n",
                lambda s: (s.ping_pong == 0) | (s.accumulator_registers <= GROUPED_PING_PONG_ACCUMULATORS),
            ),
        )
    if gemm.dynamic is not None:
        return (
            rule(
                "how many rows there are is known at run time, and stream_k shares out a known number: stream_k is 0"
                + ("" if sums == 1 else "; partial sums of several accumulators: split_k is 1"),
                "split_k stream_k",
                lambda s: (s.stream_k == 0) & ((s.split_k == 1) | (sums == 1)),
            ),
        )
    if sums > 1:
        return (
            rule(
                "partial sums of several accumulators cannot be added up: split_k is 1, stream_k is 0",
                "split_k stream_k",
                lambda s: (s.split_k == 1) & (s.stream_k == 0),
            ),
        )
    return ()


def _epilogue(rule: _Rule, gemm: Gemm) -> Constraint:
    """Return how many buffers the epilogue can use."""
    if can_store_by_tma(gemm):
        return rule(
            f"epilogue_stages is at most the number of subtiles (64 x {subtile_columns(gemm)}) that a warpgroup "
            "stores, and 0 where CTAs have no whole tiles to store (with split_k, and with stream_k if it splits every "
            "tile)",
            f"{GRID} epilogue_stages",
            lambda s: s.epilogue_stages <= np.where(stores_tiles(s), len(gemm.results) * epilogue_subtiles(gemm, s), 0),
        )
    most = 1 if can_store_staged_rows(gemm) else 0
    return rule(
        f"epilogue_stages is at most {most} for results that TMA cannot store, and 0 where CTAs have no whole tiles to "
        "store (with split_k, and with stream_k if it splits every tile)",
        f"{GRID} epilogue_stages",
        lambda s: s.epilogue_stages <= np.where(stores_tiles(s), most, 0),
    )
