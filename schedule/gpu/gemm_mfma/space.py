"""Products on the matrix instructions of AMD's graphics processors: see ``schedule.tile.waves``.

Floats of 16 or 32 bits summed in float32, operands in any layout, batches, any pointwise functions of the sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.gpu.mma import WAVEFRONT_LANES
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm, gemm_of
from ...space.columns import Bools, Columns, Ints
from ...space.knob import Knob, Quantity
from ...tile_sketch import Plan, TileSketch
from ..occupancy import limits_of
from ..quantities import GPU_QUANTITIES, gpu_columns
from .mainloop import PADDING, RUN, SIDE, WaveSetting, can_lower_waves, lower_waves

BAND = 8
"""Tiles along m before the next along n."""
LEAST_SIDE = 8
"""Rows, or columns, up to which most of what matrix instructions do would be wasted."""
SPARE_REGISTERS = 32
"""Registers for addresses and constants, roughly."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("steps", "steps", "steps along k of a block"),
    Quantity("products_per_byte", "1/B", "multiply-adds of a step for each byte that it brings to shared memory"),
)


@dataclass(frozen=True)
class WavePlan(Plan):
    product: Gemm
    target: Target

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob("rows", (4, 2, 1), "times 16 rows of a wave"),
            Knob("columns", (4, 2, 1), "times 16 columns of a wave"),
            Knob("waves_m", (2, 1, 4), "waves of a block along m"),
            Knob("waves_n", (2, 1, 4), "waves of a block along n"),
            Knob("depth", (32, 64, 16), "places of k of a step"),
        )

    def _sizes(self, c: Columns) -> dict[str, Ints]:
        p, depth = self.product, c.ints("depth")
        tile_m = SIDE * c.ints("rows") * c.ints("waves_m")
        tile_n = SIDE * c.ints("columns") * c.ints("waves_n")
        threads = WAVEFRONT_LANES * c.ints("waves_m") * c.ints("waves_n")
        assert p.a.load is not None
        element = p.a.load.dtype.bytes
        stage = element * (tile_m + tile_n) * (depth + PADDING)
        blocks = -(-p.m.extent // tile_m) * -(-p.n.extent // tile_n) * prod(a.extent for a in p.batch)
        fragments = 2 * (c.ints("rows") + c.ints("columns"))  # registers
        return {
            "tile_m": tile_m,
            "tile_n": tile_n,
            "threads": threads,
            "blocks": blocks,
            "shared": np.maximum(stage, 4 * tile_m * (tile_n + PADDING)),
            "registers": RUN * c.ints("rows") * c.ints("columns") + fragments + SPARE_REGISTERS,
            "steps": -(-p.k.extent // depth),
            "stage": stage,
        }

    def legal(self, columns: Columns) -> Bools:
        p, size, limits = self.product, self._sizes(columns), limits_of(self.target)
        fits = limits.resident_blocks(size["threads"], size["registers"], size["shared"]) >= 1
        # nothing is gained by a tile that is half empty, or by a step beyond the end
        fits &= (size["tile_m"] < 2 * max(p.m.extent, SIDE)) & (size["tile_n"] < 2 * max(p.n.extent, SIDE))
        result: Bools = fits & (columns.ints("depth") < p.k.extent + SIDE)
        return result

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        size = self._sizes(columns)
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=size["blocks"],
            threads=size["threads"],
            registers=size["registers"],
            shared=size["shared"],
            wanted=size["stage"] // size["threads"],
        )
        depth = columns.ints("depth")
        per_byte = size["tile_m"] * size["tile_n"] * depth / size["stage"]
        return {**common, "steps": size["steps"].astype(np.float64), "products_per_byte": per_byte}

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        knobs = {name: int(value) for name, value in setting.items()}
        return lower_waves(self.product, KERNEL_NAME, WaveSetting(**knobs, band=BAND))


def _plan(workload: Workload, target: Target) -> WavePlan | None:
    p = gemm_of(workload)
    if p is None or not can_lower_waves(p) or min(p.m.extent, p.n.extent) <= LEAST_SIDE:
        return None
    return WavePlan(p, target)


AMDGPU_GEMM = TileSketch("amdgpu_gemm", 2, QUANTITIES, _plan, kind="amdgpu")
