"""Products of up to 64 rows for Hopper devices, fed by copies of whole boxes: see ``schedule.tile.streams``.

16-bit floats summed in float32, tokens along ``k``, weights along ``k`` or ``n``, any pointwise functions of the sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.gpu.barrier import WARPGROUP_THREADS
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M
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
from .tma_mainloop import StreamSetting, can_lower_streams, lower_streams, token_rows

ARCHITECTURE = "sm_90a"
LEAST_TOKENS = 3
"""Rows of tokens below which plain arithmetic is faster."""
SMALL = 1 << 20
"""Weights below which it hardly matters how they are read: every setting that fits is legal."""
LEAST_RING = 64 * 1024
"""Bytes of the weights in the rings of a multiprocessor that keep memory busy (measured: 48 KiB cost 15 %)."""
STAGES = (3, 4, 5, 6, 7, 8, 9, 10, 12)
LEAST_WIDE = 32
"""Outputs ``n`` of a block that are worth its start."""
MOST_BOX = 256
"""Rows of a box that is copied at once."""
LEAST_SHARE = 0.8
"""Of the places for blocks that the last wave takes."""
SPARE_REGISTERS = 32
"""Registers for addresses and constants, roughly (from compiled kernels)."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("steps", "steps", "stages that a block works through"),
    Quantity("token_bytes", "B", "bytes of the tokens that all blocks read together"),
    Quantity("exchanged_bytes", "B", "bytes of partial sums that a block gets from others of its cluster"),
    Quantity("idle_blocks", "blocks", "blocks that the last wave could run besides its own"),
)


@dataclass(frozen=True)
class StreamPlan(UsualPlan):
    product: Gemm
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob(
                "swapped", (0, 1), "whether the tokens take the side of 64 rows, whatever their number, not the weights"
            ),
            Knob("wide", (64, 32, 40, 48, 56, 96, 112, 128, 192, 224, 256), "outputs n of a warpgroup"),
            Knob("groups", (1, 2, 4), "warpgroups of a block, side by side along n"),
            Knob("slabs", (2, 4, 1), "times 64 places of k that arrive together"),
            Knob("stages", STAGES, "how many such pieces the ring holds"),
            Knob("split", (1, 2), "blocks of a cluster, which share out k"),
            Knob("resident", (1, 2), "blocks meant for a multiprocessor at once: they share its memory"),
        )

    def _sizes(self, columns: Columns) -> dict[str, Ints]:
        p, limits = self.product, limits_of(self.target)
        swapped, wide, groups = columns.ints("swapped"), columns.ints("wide"), columns.ints("groups")
        slabs, split, resident = columns.ints("slabs"), columns.ints("split"), columns.ints("resident")
        rows = token_rows(p.m.extent)
        block_n = wide * groups
        steps = -(-p.k.extent // (split * slabs * SWIZZLE_128B_ELEMENTS))
        slab = 2 * SWIZZLE_128B_ELEMENTS * (block_n + rows)
        stage = slabs * slab + 16
        beyond = np.where(swapped == 1, 2 * SWIZZLE_128B_ELEMENTS * (WGMMA_M - rows), 0)
        room = np.minimum(limits.shared_bytes_per_multiprocessor // resident - 1024, limits.shared_bytes_per_block)
        stages = np.minimum(columns.ints("stages"), steps)
        blocks = -(-p.n.extent // block_n)
        return {
            "threads": WARPGROUP_THREADS * groups + WARP_LANES,
            "blocks": blocks * split,
            "block_n": block_n,
            "steps": steps,
            "stages": stages,
            "stages_of_two": (room - beyond) // (2 * slab + 16),
            "registers": SPARE_REGISTERS + np.where(swapped == 1, wide, rows) // 2,
            "shared": np.maximum(stages * stage + beyond, partial_bytes(p.m.extent, 1, block_n)),
            "room": room,
            "ring": 2 * SWIZZLE_128B_ELEMENTS * slabs * block_n * stages,
            "token_bytes": blocks * p.m.extent * p.k.extent * 2,
            "exchanged": 4 * p.m.extent * block_n * (split - 1) // split,
        }

    def usual(self, columns: Columns) -> Bools:
        p, size, limits = self.product, self._sizes(columns), limits_of(self.target)
        swapped, wide, groups = columns.ints("swapped"), columns.ints("wide"), columns.ints("groups")
        split, resident, stages = columns.ints("split"), columns.ints("resident"), columns.ints("stages")
        fits = limits.resident_blocks(size["threads"], size["registers"], size["shared"]) >= resident
        fits &= (size["block_n"] <= MOST_BOX) & ((swapped == 1) | (wide == WGMMA_M))
        fits &= (p.b.k == 1) | (wide % SWIZZLE_128B_ELEMENTS == 0)
        fits &= (stages == size["stages"]) | (stages == STAGES[0])
        usual: Bools = fits & (size["shared"] <= size["room"]) & (size["block_n"] - p.n.extent < 64)
        if p.n.extent * p.k.extent < SMALL:
            usual &= stages == STAGES[0]
            return usual
        usual &= size["ring"] * resident >= LEAST_RING
        usual &= (columns.ints("slabs") > 1) | (size["stages_of_two"] < STAGES[0])
        usual &= (groups == 1) | (wide >= WGMMA_M)
        usual &= ((split == 1) & (size["blocks"] > self.target.threads)) | (resident == 1)
        return usual & self._even(size, split, resident)

    def _even(self, size: Mapping[str, Ints], split: Ints, resident: Ints) -> Bools:
        """Whether all multiprocessors have about the same to do, in one wave or in large pieces."""
        slots = self.target.threads * resident
        waves = -(-size["blocks"] // slots)
        least = np.minimum(LEAST_SHARE * slots * waves, -(-self.product.n.extent // LEAST_WIDE))
        once = (waves == 1) | ((size["block_n"] >= MOST_BOX * 3 // 4) & (split == 1))
        even: Bools = once & ((size["blocks"] >= least) | (waves > 3))
        return even

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        size = self._sizes(columns)
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=size["blocks"],
            threads=size["threads"],
            registers=np.minimum(size["registers"], 255),
            shared=size["shared"],
            wanted=size["ring"] // size["threads"],
        )
        idle = -size["blocks"] % (self.target.threads * columns.ints("resident"))
        own = {"steps": "steps", "token_bytes": "token_bytes", "exchanged_bytes": "exchanged"}
        return {
            **common,
            **{name: size[key].astype(np.float64) for name, key in own.items()},
            "idle_blocks": idle.astype(np.float64),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        knobs = {name: int(value) for name, value in setting.items()}
        swapped, split, slabs = bool(knobs.pop("swapped")), knobs["split"], knobs["slabs"]
        stages = min(knobs.pop("stages"), -(-self.product.k.extent // (split * slabs * SWIZZLE_128B_ELEMENTS)))
        ahead = self.target.threads * knobs["resident"] // split
        setting_of = StreamSetting(**knobs, swapped=swapped, stages=stages, ahead=ahead)
        return lower_streams(self.product, KERNEL_NAME, setting_of)


def _plan(workload: Workload, target: Target) -> StreamPlan | None:
    if target.arch != ARCHITECTURE:
        return None
    product = skinny_gemm_of(workload)
    if product is None or product.m.extent < LEAST_TOKENS or not can_lower_streams(product):
        return None
    return StreamPlan(product, target)


CUDA_SKINNY_TMA = TileSketch("cuda_skinny_tma", 5, QUANTITIES, _plan)
