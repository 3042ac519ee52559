"""Products of some tens of rows for Hopper devices, on the matrix units of warpgroups: see ``schedule.tile.groups``.

16-bit floats summed in float32, both operands along ``k``, any pointwise functions of the sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...core.schedule import KnobValue
from ...core.target import Target
from ...ir.gpu import GROUP_LANES, GROUP_ROWS, GROUP_RUN
from ...ir.stmt import Kernel
from ...te.workload import Workload
from ..gpu import limits_of
from ..nest import KERNEL_NAME
from ..space import Knob, Quantity
from ..tile.groups import GroupSetting, can_lower_groups, lower_groups
from ..tile.partials import partial_bytes
from ..tile.product import Product, product_of
from ..tile.skinny import COLUMNS
from .columns import Bools, Columns, Ints
from .enumerate import all_settings
from .tile_sketch import GPU_QUANTITIES, TileSketch, gpu_columns

ARCHITECTURE = "sm_90a"
LEAST_TOKENS = 17
"""Rows of tokens from which on the matrix instructions of single warps do not keep up."""
SMALL = 1 << 20
"""Weights below which it hardly matters how they are read: every setting that fits is legal."""
LEAST_IN_FLIGHT = 24 * 1024
"""Bytes of the weights that a multiprocessor must have under way to keep up with memory."""
MOST_STAGES = 12
SPARE_REGISTERS = 40
"""Registers for addresses and constants, roughly (from compiled kernels)."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("steps", "steps", "stages that a block works through"),
    Quantity("token_bytes", "B", "bytes of the tokens that all blocks read together"),
    Quantity("exchanged_bytes", "B", "bytes of partial sums that a block gets from others of its cluster"),
)


@dataclass(frozen=True)
class GroupPlan:
    product: Product
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob("groups_n", (1, 2), "warpgroups of a block along n, 64 outputs each"),
            Knob("groups_k", (1, 2, 4), "warpgroups of a block along k"),
            Knob("split", (1, 2, 4), "blocks of a cluster, which share out k"),
            Knob("resident", (1, 2, 3, 4, 5), "blocks meant for a multiprocessor at once: they share its memory"),
        )

    def _sizes(self, columns: Columns) -> dict[str, Ints]:
        p, limits = self.product, limits_of(self.target)
        groups_n, groups_k = columns.ints("groups_n"), columns.ints("groups_k")
        split, resident = columns.ints("split"), columns.ints("resident")
        token_rows = -(-p.m.extent // COLUMNS) * COLUMNS
        steps = -(-p.k.extent // (split * groups_k * GROUP_RUN))
        weights = 2 * GROUP_RUN * GROUP_ROWS * groups_n * groups_k
        stage = weights + 2 * GROUP_RUN * token_rows * groups_k
        room = limits.shared_bytes_per_multiprocessor // resident - 1024
        room = np.minimum(room, limits.shared_bytes_per_block)
        stages = np.maximum(np.minimum(np.minimum(room // stage, steps + 1), MOST_STAGES), 2)
        blocks = -(-p.n.extent // (GROUP_ROWS * groups_n))
        partials = partial_bytes(p.m.extent, groups_k, GROUP_ROWS * groups_n)
        return {
            "threads": GROUP_LANES * groups_n * groups_k,
            "blocks": blocks * split,
            "steps": steps,
            "stages": stages,
            "registers": SPARE_REGISTERS + token_rows // 2 * np.ones_like(split),
            "shared": np.maximum(stages * stage, partials),
            "room": room,
            "weights": weights,
            "token_bytes": blocks * p.m.extent * p.k.extent * 2,
            "exchanged": 4 * p.m.extent * GROUP_ROWS * groups_n * groups_k * (split - 1) // split,
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
        resident = columns.ints("resident")
        fits = limits.resident_blocks(size["threads"], size["registers"], size["shared"]) >= resident
        usual: Bools = fits & (size["shared"] <= size["room"]) & ((size["stages"] >= 3) | (size["steps"] < 3))
        if p.n.extent * p.k.extent < SMALL:
            return usual
        least = min(self.target.threads * 3 // 4, -(-p.n.extent // GROUP_ROWS))
        busy = size["weights"] * (size["stages"] - 1) * resident >= LEAST_IN_FLIGHT
        return usual & busy & (size["blocks"] >= least) & (size["blocks"] > self.target.threads * (resident - 3))

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        size = self._sizes(columns)
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=size["blocks"],
            threads=size["threads"],
            registers=size["registers"],
            shared=size["shared"],
            wanted=size["weights"] * (size["stages"] - 1) // size["threads"],
        )
        own = {"steps": "steps", "token_bytes": "token_bytes", "exchanged_bytes": "exchanged"}
        return {**common, **{name: size[key].astype(np.float64) for name, key in own.items()}}

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        knobs = {name: int(value) for name, value in setting.items()}
        codes = np.array([[k.values.index(knobs[k.name]) for k in self.knobs]], dtype=np.int16)
        stages = int(self._sizes(Columns(self.knobs, codes, {}))["stages"][0])
        return lower_groups(self.product, KERNEL_NAME, GroupSetting(**knobs, stages=stages))


def _plan(workload: Workload, target: Target) -> GroupPlan | None:
    if target.arch != ARCHITECTURE:
        return None
    product = product_of(workload)
    if product is None or product.m.extent < LEAST_TOKENS or not can_lower_groups(product):
        return None
    return GroupPlan(product, target)


CUDA_SKINNY_GROUPS = TileSketch("cuda_skinny_groups", 1, QUANTITIES, _plan)
