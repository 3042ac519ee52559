"""Products of some tens of rows for Hopper devices, fed by copies of whole boxes: see ``schedule.tile.streams``.

16-bit floats summed in float32, both operands along ``k``, any pointwise functions of the sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...core.schedule import KnobValue
from ...core.target import Target
from ...ir.expr import WARP_LANES
from ...ir.gpu import GROUP_LANES, GROUP_ROWS, GROUP_RUN
from ...ir.stmt import Kernel
from ...te.workload import Workload
from ..gpu import limits_of
from ..nest import KERNEL_NAME
from ..space import Knob, Quantity
from ..tile.partials import partial_bytes
from ..tile.product import Product, product_of
from ..tile.streams import StreamSetting, can_lower_streams, lower_streams, token_rows
from .columns import Bools, Columns, Ints
from .enumerate import all_settings
from .tile_sketch import GPU_QUANTITIES, TileSketch, gpu_columns

ARCHITECTURE = "sm_90a"
LEAST_TOKENS = 9
"""Rows of tokens from which on matrix instructions of warpgroups, with copies by a warp of its own, are worth it."""
SMALL = 1 << 20
"""Weights below which it hardly matters how they are read: every setting that fits is legal."""
LEAST_IN_FLIGHT = 40 * 1024
"""Bytes of the weights that a multiprocessor must have under way to keep up with memory (measured: 32 KiB do not)."""
MOST_BOX = 256
"""Rows of a box that is copied at once."""
MOST_STAGES = 16
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
class StreamPlan:
    product: Product
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob("swapped", (0, 1), "whether tokens, padded to 64 rows, take the side of 64 rows, not the weights"),
            Knob("wide", (64, 32, 56, 96, 112, 128, 224), "outputs n of a warpgroup; 64 unless swapped"),
            Knob("groups", (1, 2, 4), "warpgroups of a block, side by side along n"),
            Knob("slabs", (1, 2, 4), "times 64 places of k that arrive together"),
            Knob("ring", (100, 70), "percent of the shared memory that the ring may take"),
            Knob("split", (1, 2), "blocks of a cluster, which share out k"),
            Knob("resident", (1, 2, 3), "blocks meant for a multiprocessor at once: they share its memory"),
        )

    def _sizes(self, columns: Columns) -> dict[str, Ints]:
        p, limits = self.product, limits_of(self.target)
        swapped, wide, groups = columns.ints("swapped"), columns.ints("wide"), columns.ints("groups")
        slabs, split, resident = columns.ints("slabs"), columns.ints("split"), columns.ints("resident")
        rows = np.where(swapped == 1, token_rows(p.m.extent, True), token_rows(p.m.extent, False))
        block_n = wide * groups
        steps = -(-p.k.extent // (split * slabs * GROUP_RUN))
        weights = 2 * GROUP_RUN * slabs * block_n
        stage = weights + 2 * GROUP_RUN * slabs * rows + 16
        room = limits.shared_bytes_per_multiprocessor // resident - 1024
        room = np.minimum(room, limits.shared_bytes_per_block) * columns.ints("ring") // 100
        stages = np.minimum(np.minimum(room // stage, steps), MOST_STAGES)
        blocks = -(-p.n.extent // block_n)
        return {
            "threads": GROUP_LANES * groups + WARP_LANES,
            "blocks": blocks * split,
            "block_n": block_n,
            "steps": steps,
            "stages": stages,
            "registers": SPARE_REGISTERS + np.where(swapped == 1, wide, rows) // 2,
            "shared": np.maximum(stages * stage, partial_bytes(p.m.extent, 1, block_n)),
            "room": room,
            "weights": weights,
            "token_bytes": blocks * p.m.extent * p.k.extent * 2,
            "exchanged": 4 * p.m.extent * block_n * (split - 1) // split,
        }

    def legal(self, columns: Columns) -> Bools:
        usual = self._usual(columns)
        return usual if self._some_usual else usual | (columns.codes == 0).all(axis=1)

    @cached_property
    def _some_usual(self) -> bool:
        """Whether any setting is as it should be; for odd shapes the plainest one stands in."""
        return bool(self._usual(all_settings(self.knobs)).any())

    def _usual(self, columns: Columns) -> Bools:
        p, size, limits = self.product, self._sizes(columns), limits_of(self.target)
        swapped, wide, resident = columns.ints("swapped"), columns.ints("wide"), columns.ints("resident")
        fits = limits.resident_blocks(size["threads"], size["registers"], size["shared"]) >= resident
        fits &= (size["block_n"] <= MOST_BOX) & ((swapped == 1) | (wide == GROUP_ROWS)) & (size["stages"] >= 2)
        usual: Bools = fits & (size["shared"] <= np.maximum(size["room"], 0)) & (size["block_n"] - p.n.extent < 64)
        if p.n.extent * p.k.extent < SMALL:
            return usual
        slots = self.target.threads * resident
        least = min(self.target.threads * 4 // 5, -(-p.n.extent // GROUP_ROWS))
        busy = size["weights"] * (size["stages"] - 1) * resident >= LEAST_IN_FLIGHT
        rounds = -(-size["blocks"] // slots)
        even = size["blocks"] >= 0.8 * rounds * slots  # the last wave is nearly full
        whole = (swapped == 0) | (p.n.extent % size["block_n"] == 0)
        needed = (columns.ints("split") == 1) | (size["blocks"] <= 2 * self.target.threads)
        usual = usual & busy & whole & needed & (size["blocks"] >= least) & (even | (rounds > 3)) & (size["steps"] >= 4)
        usual &= (columns.ints("ring") == 100) | (resident == 1)
        return usual

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        size = self._sizes(columns)
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=size["blocks"],
            threads=size["threads"],
            registers=np.minimum(size["registers"], 255),
            shared=size["shared"],
            wanted=size["weights"] * np.maximum(size["stages"] - 1, 1) // size["threads"],
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
        codes = np.array([[k.values.index(knobs[k.name]) for k in self.knobs]], dtype=np.int16)
        stages = int(self._sizes(Columns(self.knobs, codes, {}))["stages"][0])
        del knobs["ring"]
        swapped = bool(knobs.pop("swapped"))
        return lower_streams(self.product, KERNEL_NAME, StreamSetting(**knobs, swapped=swapped, stages=max(stages, 1)))


def _plan(workload: Workload, target: Target) -> StreamPlan | None:
    if target.arch != ARCHITECTURE:
        return None
    product = product_of(workload)
    if product is None or product.m.extent < LEAST_TOKENS or not can_lower_streams(product):
        return None
    return StreamPlan(product, target)


CUDA_SKINNY_STREAMS = TileSketch("cuda_skinny_streams", 1, QUANTITIES, _plan)
