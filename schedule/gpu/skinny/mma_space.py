"""Products of up to 64 rows for graphics processors, on matrix instructions: see ``schedule.tile.skinny``.

16-bit floats summed in float32, the tokens along ``k``, the weights along ``k`` or ``n``, any pointwise functions of
the sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm, skinny_gemm_of
from ...space.columns import Bools, Columns, Ints
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch, UsualPlan
from ..occupancy import limits_of
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..split_k import partial_bytes
from .mma_mainloop import COLUMNS, PIECE, ROWS, SkinnySetting, can_lower, lower_skinny
from .tma_mainloop import can_lower_streams

SPARE_REGISTERS = 44
"""Registers for addresses and constants, roughly (from compiled kernels)."""
LEAST_TOKENS = 2
"""Rows of tokens below which plain arithmetic is faster."""
MOST_TOKENS_BESIDE_STREAMS = 8
"""Rows of tokens above which ``cuda_skinny_tma`` is always faster, where it can be (with 16 by 3 to 5 % on an
H200)."""
SMALL = 1 << 20
"""Weights below which it hardly matters how they are read: every setting that fits is legal."""
LEAST_IN_FLIGHT = 24 * 1024
"""Bytes of the weights that a multiprocessor must have under way to keep up with memory."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("steps", "steps", "pieces of k that a warp works through"),
    Quantity("token_bytes", "B", "bytes of the tokens that all blocks read together"),
    Quantity("exchanged_bytes", "B", "bytes of partial sums that a block gets from others of its cluster"),
    Quantity("idle_blocks", "blocks", "blocks that the last wave could run besides its own"),
)


@dataclass(frozen=True)
class SkinnyPlan(UsualPlan):
    product: Gemm
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        splits = (1, 2) if limits_of(self.target).clusters else (1,)
        return (
            Knob("rows", (1, 2, 4), "times 16 outputs n of a warp"),
            Knob("warps_n", (1, 2, 4), "warps of a block along n, which share the tokens"),
            Knob("warps_k", (1, 2, 4, 8), "warps of a block along k"),
            Knob("chunk", (64, 128), "places of k that a warp takes at a time"),
            Knob("split", splits, "blocks of a cluster, which share out k"),
            Knob("resident", (1, 2, 3, 4), "blocks meant for a multiprocessor at once: they share its memory"),
        )

    def _sizes(self, columns: Columns) -> dict[str, Ints]:
        p, limits = self.product, limits_of(self.target)
        rows, chunk, split = columns.ints("rows"), columns.ints("chunk"), columns.ints("split")
        warps_n, warps_k, resident = columns.ints("warps_n"), columns.ints("warps_k"), columns.ints("resident")
        tiles = -(-p.m.extent // COLUMNS)
        warps, block_n = warps_n * warps_k, rows * ROWS * warps_n
        steps = -(-p.k.extent // (split * warps_k * chunk))
        weights = warps * _tile_bytes(*self._tile(rows, chunk))
        tokens = np.where(warps_n > 1, warps_k, warps) * _tile_bytes(COLUMNS * tiles * np.ones_like(rows), chunk)
        room = limits.shared_bytes_per_multiprocessor // resident - 1024
        room = np.minimum(room, limits.shared_bytes_per_block)
        stages = np.maximum(np.minimum(np.minimum(room // (weights + tokens), steps + 1), 12), 2)
        partials = partial_bytes(p.m.extent, warps_k, block_n)
        blocks = -(-p.n.extent // block_n)
        return {
            "threads": WARP_LANES * warps,
            "blocks": blocks * split,
            "steps": steps,
            "stages": stages,
            "registers": SPARE_REGISTERS + 4 * rows * tiles + 8 * rows + 4 * tiles,
            "shared": np.maximum(stages * (weights + tokens), partials),
            "room": room,
            "stage_weights": weights,
            "token_bytes": blocks * p.m.extent * p.k.extent * 2,
            "exchanged": 4 * p.m.extent * block_n * (split - 1) // split,
        }

    def _tile(self, rows: Ints, chunk: Ints) -> tuple[Ints, Ints]:
        """Lines and columns of a warp's piece of the weights, as they lie in memory."""
        return (rows * ROWS, chunk) if self.product.b.k == 1 else (chunk, rows * ROWS)

    def usual(self, columns: Columns) -> Bools:
        p, size, limits = self.product, self._sizes(columns), limits_of(self.target)
        warps_n, resident = columns.ints("warps_n"), columns.ints("resident")
        block_n = ROWS * columns.ints("rows") * warps_n
        fits = limits.resident_blocks(size["threads"], size["registers"], size["shared"]) >= resident
        deep = (size["stages"] >= 3) & (size["shared"] <= size["room"])
        under_way = size["stage_weights"] * (size["stages"] - 1) * resident
        busy = under_way >= LEAST_IN_FLIGHT
        wide = (size["threads"] >= 128) & (size["steps"] >= 2) & (block_n - p.n.extent < ROWS)
        slots = self._slots(columns)
        spread = (size["blocks"] >= self._least_blocks) & ((resident == 1) | (size["blocks"] > slots))
        spread &= (columns.ints("split") == 1) | (
            size["blocks"] <= slots * resident
        )  # clusters that must wait are late
        usual: Bools = fits & deep
        return usual if p.n.extent * p.k.extent < SMALL else usual & busy & wide & spread

    @property
    def _least_blocks(self) -> int:
        return min(self.target.threads * 3 // 4, -(-self.product.n.extent // (2 * ROWS)))

    def _slots(self, columns: Columns) -> Ints:
        """Blocks that run at once with one a multiprocessor. Clusters of more than 2 leave some idle, since they have
        to fit into parts of the device of 16 or 18 (measured on an H200: 120 of 132 run clusters of 4 or 8)."""
        split, count = columns.ints("split"), self.target.threads
        return np.where(split <= 2, count // split, count * 10 // 11 // split) * split

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        size = self._sizes(columns)
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=size["blocks"],
            threads=size["threads"],
            registers=np.minimum(size["registers"], 255),
            shared=size["shared"],
            wanted=size["stage_weights"] * (size["stages"] - 1) // size["threads"],
        )
        at_once = self._slots(columns) * columns.ints("resident")
        return {
            **common,
            "steps": size["steps"].astype(np.float64),
            "token_bytes": size["token_bytes"].astype(np.float64),
            "exchanged_bytes": size["exchanged"].astype(np.float64),
            "idle_blocks": (-size["blocks"] % at_once).astype(np.float64),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        knobs = {name: int(value) for name, value in setting.items()}
        columns = Columns(self.knobs, _codes(self.knobs, knobs), {})
        blocks = int(self._sizes(columns)["blocks"][0]) // knobs["split"]
        early = int(limits_of(self.target).early_blocks(knobs["resident"], self.target.threads))
        return lower_skinny(
            self.product,
            KERNEL_NAME,
            SkinnySetting(
                **knobs,
                stages=int(self._sizes(columns)["stages"][0]),
                ahead=blocks if blocks * knobs["split"] <= early else 0,
            ),
        )


def _codes(knobs: tuple[Knob, ...], values: Mapping[str, int]) -> NDArray[np.int16]:
    return np.array([[k.values.index(values[k.name]) for k in knobs]], dtype=np.int16)


def _tile_bytes(lines: Ints, columns: Ints) -> Ints:
    """Shared memory of a tile of 16-bit elements (see ``schedule.tile.skinny.tile_pitch``)."""
    power_of_two = (columns >= 64) & (columns & (columns - 1) == 0)
    return 2 * lines * (columns + np.where(power_of_two, 0, PIECE))


def _plan(workload: Workload, target: Target) -> SkinnyPlan | None:
    product = skinny_gemm_of(workload)
    if product is None or product.m.extent < LEAST_TOKENS or not can_lower(product):
        return None
    if target.arch == "sm_90a" and product.m.extent > MOST_TOKENS_BESIDE_STREAMS and can_lower_streams(product):
        return None
    return SkinnyPlan(product, target)


CUDA_SKINNY_MMA = TileSketch("cuda_skinny_mma", 3, QUANTITIES, _plan)
