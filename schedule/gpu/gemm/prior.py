"""What a setting of a large product costs on a Hopper device, by the work of each unit; constants are measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from ....core.target import Target
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M
from ...problems.gemm import Gemm
from ...space.columns import Columns, Ints
from .epilogue import can_store_boxes

FLOPS_PER_CYCLE = 4096
"""Of the matrix units of a multiprocessor, dense 16-bit."""
SHARED_BYTES_PER_CYCLE = 128
L2_BYTES_PER_CYCLE = 60
"""For each multiprocessor, when all of them read."""
MEMORY_BYTES_PER_CYCLE = 2390
"""For the whole device."""
NORM = 8
"""Of what units that work at once take (as a norm)."""
EXCHANGE_CYCLES, EXCHANGE_BYTES_PER_CYCLE = 1200, 24
"""Of sums that the blocks of a cluster add up: two barriers, and what each of them reads."""
PARTS_CYCLES = 12_000
"""Of the launch that adds up tiles of several blocks."""
STEP_CYCLES, STORE_CYCLES, LAUNCH_CYCLES = 40, 6, 3000
"""Besides: of a step (barriers), of a row of 128 bytes that is stored, of a launch with its first and last tile."""


@dataclass(frozen=True)
class ProductCost:
    """Of settings of ``cuda_gemm``."""

    product: Gemm
    target: Target

    def estimate(self, columns: Columns, size: Mapping[str, Ints]) -> dict[str, NDArray[np.float64]]:
        """Cycles of a multiprocessor: of what it does one after the other, the slowest of its units. ``size``: what
        follows from the settings, by name, as the sketch has it."""
        p, sums = self.product, len(self.product.accumulators)
        wide, slabs = columns.ints("wide"), columns.ints("slabs")
        tile_m, steps = size["tile_m"], size["steps"]
        depth = slabs * SWIZZLE_128B_ELEMENTS
        mma = 2 * tile_m * wide * depth / FLOPS_PER_CYCLE
        read = tile_m // WGMMA_M * (WGMMA_M + wide) * depth * 2
        shared = (read + size["stage"]) / SHARED_BYTES_PER_CYCLE
        l2 = (tile_m / size["cluster_n"] + wide / size["cluster_m"]) * depth * 2 / L2_BYTES_PER_CYCLE
        step = _joined(mma, l2, shared) * np.where(columns.ints("groups") == 3, 1.08, 1.0)  # as measured
        split, turns, laps = columns.ints("split"), size["turns"], size["laps"]
        here = size["here"]
        step *= np.where(size["cluster_n"] > size["cluster_m"], 1.02, 1.0)
        step *= 1 + (0.4 if self._streams else 0.2) / np.maximum(size["stages"] - 1, 1)  # as measured
        step += STEP_CYCLES / here
        store = tile_m * size["tile_n"] * 2 / 128 * self._store_cycles(columns.ints("boxes"))
        even, partials = columns.ints("even") == 1, 4 * tile_m * wide
        tiles = np.where(even, size["share"] / steps, laps * turns) * here
        stored = np.where((turns > 1) | (here > 1), store / 4, store / split)
        exchange = np.where(split > 1, EXCHANGE_CYCLES + 4 * tile_m * wide / EXCHANGE_BYTES_PER_CYCLE, 0)
        added = 2 * partials * size["workers"] / (L2_BYTES_PER_CYCLE * self.target.threads)
        exchange = np.where(even, PARTS_CYCLES + partials / L2_BYTES_PER_CYCLE + added, exchange)
        total = _joined(tiles * (steps * step + stored) + exchange, self._memory_cycles)
        total += LAUNCH_CYCLES
        used = sums * p.m.extent * p.n.extent * prod(a.extent for a in p.batch)
        return {
            "wave_efficiency": used / (tiles * self.target.threads * tile_m * wide / split),
            "mma_cycles": tiles * steps * mma,
            "shared_cycles": tiles * steps * shared,
            "l2_cycles": tiles * steps * l2,
            "estimate": total,
        }

    @cached_property
    def _memory_cycles(self) -> float:
        """Of reading all inputs and writing all outputs once."""
        p = self.product
        return sum(b.bytes for b in (*p.inputs, *(r.tensor for r in p.results))) / MEMORY_BYTES_PER_CYCLE

    def _store_cycles(self, boxes: Ints) -> NDArray[np.float64]:
        """Of a row of 128 bytes of the result."""
        if can_store_boxes(self.product):
            return np.where(boxes > 0, STORE_CYCLES, 2 * STORE_CYCLES).astype(np.float64)
        alone = 2 if self.product.n.extent % 2 == 0 else 4
        return np.where(boxes > 0, 2 * STORE_CYCLES, 2 * alone * STORE_CYCLES).astype(np.float64)

    @cached_property
    def _streams(self) -> bool:
        """Whether reading the operands takes about as long as multiplying them."""
        p = self.product
        places = len(p.accumulators) * p.m.extent * p.n.extent * p.k.extent * prod(a.extent for a in p.batch)
        return 2 * places / (FLOPS_PER_CYCLE * self.target.threads) < 2 * self._memory_cycles


def _joined(*cycles: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Of units that work at once: little more than the slowest takes."""
    joined: NDArray[np.float64] = sum(c**NORM for c in cycles) ** (1 / NORM)
    return joined
