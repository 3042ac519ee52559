"""The sizes that follow from a setting of ``cuda_gemm_mma``: the tile, the pipeline, registers, shared memory."""

from dataclasses import dataclass
from math import prod

import numpy as np

from ....core.target import Target
from ....ir.expr import WARP_LANES, Cast, Load
from ...problems.gemm import Gemm
from ...space.columns import Columns, Ints, derived_once
from ...space.knob import Knob
from ...tile.names import FreshNameWriter
from ..gemm.repack import as_stored, repack
from ..multistage_gemm import MultistageSizes, N
from ..occupancy import limits_of
from .operands import ATOM_M, ATOM_N, LEAST_COPY_BYTES, SCALARS, VECTOR, atom_of, copy_width, has_ldmatrix, row_padding


def gemm_mma_knobs(gemm: Gemm, target: Target) -> tuple[Knob, ...]:
    """Return the knobs on one target. A new knob is also a field of ``GemmMmaSizes``."""
    splits = (1, 2, 4) if limits_of(target).clusters else (1,)
    return (
        Knob("atoms_m", (4, 2, 1), "how many times 16 rows of a tile a warp takes"),
        Knob("atoms_n", (4, 2, 1), "how many times 16 columns of a tile a warp takes"),
        Knob("warps_m", (2, 1, 4), "how many warps a CTA has along m"),
        Knob("warps_n", (2, 1, 4), "how many warps a CTA has along n"),
        Knob("block_k", block_ks(gemm), "how many places of k a stage holds"),
        Knob("split_k", splits, "how many CTAs of a cluster share k of one tile"),
        Knob("ctas_per_sm", (1, 2, 3, 4), "how many CTAs a multiprocessor should run at once"),
        Knob("staged_epilogue", (1, 0), "whether a tile goes through shared memory, so that whole rows are stored"),
        Knob("repacked", (0, 1), "whether a first launch copies operands to rows that begin at 16 bytes"),
    )


def block_ks(gemm: Gemm) -> tuple[int, int]:
    """Return how many places of k a stage may hold, the least first."""
    return (32, 64) if has_ldmatrix(atom_of(gemm)) else (16, 32)


VERSION = 3
"""The version of the sketch. It grows whenever knobs, legality or lowering change what a schedule means."""
MOST_STAGES = 6
"""More stages than these do not hide more latency."""
PARTIAL_PADDING = 8
"""The padding between rows of partial sums, in elements. With it, four rows of pairs, as mma leaves them, lie in
different banks."""
SPARE_REGISTERS, VALUE_REGISTERS, LOADED_REGISTERS = 36, 12, 8
"""About how many registers addresses and constants take (from compiled kernels); how many more an epilogue takes that
is more than a cast, and operands that go through registers."""
COPY_CYCLES = {16: 0, 8: 11, 4: 8, 2: 16}
"""How many cycles a warp takes for one copy of each lane besides the bytes, by the bytes of a copy. They were fitted
together with the prior. Copies of single elements of 16 bits are counted by four."""


@dataclass(frozen=True)
class GemmMmaSizes(MultistageSizes[N]):
    """``atoms_m``, ``atoms_n``, ``staged_epilogue``: knobs, besides those of ``MultistageSizes``.
    ``loads``: how many copies of a thread for a stage go through registers.
    ``copy_cycles``: how many cycles a CTA's copies for a stage take besides their bytes.
    """

    atoms_m: N
    atoms_n: N
    staged_epilogue: N
    loads: N
    copy_cycles: N


@dataclass(frozen=True)
class CopyWidths:
    """How many elements of A and of B one copy can take: ``plain``, as they are, and ``repacked``. ``along_k``: whether
    their rows lie along ``k``."""

    plain: tuple[int, int]
    repacked: tuple[int, int]
    along_k: tuple[bool, bool]

    def of(self, repacked: Ints) -> tuple[Ints, Ints]:
        """Return the widths for A and for B of settings with these values of the knob."""
        a, b = (np.where(repacked == 1, *pair) for pair in zip(self.repacked, self.plain, strict=True))
        return a, b


def copy_widths(gemm: Gemm, most: int = VECTOR) -> CopyWidths:
    """Return the widths of copies of up to ``most`` elements."""
    even = repack(FreshNameWriter(gemm.names), as_stored(gemm))[0]
    (a, a_along_k), (b, b_along_k) = (copy_width(gemm, o, axis, most) for o, axis in ((gemm.a, "m"), (gemm.b, "n")))
    repacked = (copy_width(even, even.a, "m", most)[0], copy_width(even, even.b, "n", most)[0])
    return CopyWidths((a, b), repacked, (a_along_k, b_along_k))


@derived_once
def gemm_mma_sizes(gemm: Gemm, target: Target, widths: CopyWidths, columns: Columns) -> GemmMmaSizes[Ints]:
    """Return the sizes of all settings in ``columns``."""
    k = {knob.name: columns.ints(knob.name) for knob in gemm_mma_knobs(gemm, target)}
    tile_m, tile_n = ATOM_M * k["atoms_m"] * k["warps_m"], ATOM_N * k["atoms_n"] * k["warps_n"]
    threads = WARP_LANES * k["warps_m"] * k["warps_n"]
    tiles = -(-gemm.m.extent // tile_m) * -(-gemm.n.extent // tile_n) * prod(a.extent for a in gemm.batch)
    k_iters = -(-gemm.k.extent // (k["split_k"] * k["block_k"]))
    atom = atom_of(gemm)
    element, accumulator = atom.operand.bytes, atom.accumulator.bytes
    stage_bytes, loads, copies, copy_cycles = (np.zeros_like(tile_m) for _ in range(4))
    for side, (extent, width) in enumerate(zip((tile_m, tile_n), widths.of(k["repacked"]), strict=True)):
        rows, columns_of_row = (extent, k["block_k"]) if widths.along_k[side] else (k["block_k"], extent)
        stage_bytes = stage_bytes + element * rows * (columns_of_row + row_padding(atom, columns_of_row))
        loaded = width * element < LEAST_COPY_BYTES
        unit = np.where(loaded, SCALARS, width)
        own = -(-extent * k["block_k"] // (unit * threads))
        copies, loads = copies + own, loads + np.where(loaded, own, 0)
        cycles = np.select([width * element == n for n in COPY_CYCLES], list(COPY_CYCLES.values()))
        copy_cycles = copy_cycles + extent * k["block_k"] // unit * cycles // WARP_LANES
    limits = limits_of(target)
    room = limits.shared_bytes_for(k["ctas_per_sm"])
    stages = np.minimum(np.minimum(room // stage_bytes, k_iters), MOST_STAGES)
    partial_bytes = accumulator * (tile_m * (tile_n + PARTIAL_PADDING) - PARTIAL_PADDING)
    partial_bytes = np.where(k["staged_epilogue"] == 1, partial_bytes, 0)  # in the place of the stages
    fragments = accumulator * (2 * k["atoms_m"] * k["atoms_n"] + 2 * (k["atoms_m"] + k["atoms_n"]))
    through_registers = loads + copies + np.where(loads > 0, LOADED_REGISTERS, 0)
    return GemmMmaSizes(
        **k,
        tile_m=tile_m,
        tile_n=tile_n,
        tiles=tiles,
        threads=threads,
        k_iters=k_iters,
        stages=stages,
        stage_bytes=stage_bytes,
        copies=copies,
        loads=loads,
        copy_cycles=copy_cycles,
        registers=fragments + through_registers + _spare_registers(gemm),
        room=room,
        shared_bytes=np.maximum(np.maximum(stages, 1) * stage_bytes, partial_bytes),
    )


def _spare_registers(gemm: Gemm) -> int:
    """About how many registers a thread takes besides accumulators, fragments and copies."""
    values = [r.value.value if isinstance(r.value, Cast) else r.value for r in gemm.results]
    return SPARE_REGISTERS + (0 if all(isinstance(v, Load) for v in values) else VALUE_REGISTERS)
