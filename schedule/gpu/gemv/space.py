"""Products of up to eight rows for graphics processors, with plain arithmetic: see ``schedule.tile.gemv``.

Any element types, any producers of the operands, any pointwise functions of the sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue, Schedule
from ....core.target import Target
from ....ir.expr import WARP_LANES
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm, skinny_gemm_of
from ...space.columns import Bools, Columns, Ints, codes_of
from ...space.enumerate import all_settings
from ...space.knob import Knob, Quantity
from ...tile_sketch import TileSketch, UsualPlan
from ..occupancy import limits_of
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..skinny.mma_mainloop import can_lower
from .kernel import (
    WIDEST_BYTES,
    GemvSetting,
    even_steps,
    lower_gemv,
    piece_bytes,
    piece_elements,
    piece_words,
    pieces_of_warp,
    weights_along_k,
)

LARGEST_SKINNY_M = 8
"""Rows of tokens up to which plain arithmetic keeps up with memory."""
LONGEST_BESIDE_MATRICES = 2
"""The same where matrix instructions could be used, which are faster from then on."""
MOST_SUMS = 32
"""Sums of a thread."""
MOST_LOADED = 64
"""Registers for the pieces of the weights that a thread has under way."""
SMALL = 1 << 20
"""Weights below which it hardly matters how they are read: every setting that makes sense is legal."""
MOST_REGISTERS_SMALL = 72
"""Registers there: their guards take more than is estimated."""
MOST_REGISTERS_SINGLE = 128
"""The same for pieces of less than 16 bytes, few of which have guards."""
LEAST_LOADED_SINGLE = 16
"""Registers for such pieces (of large weights: and what they are multiplied with) that a thread has under way at
least, unless it has all of them."""
LEAST_IN_FLIGHT = 24 * 1024
"""Bytes that a multiprocessor must have under way to come near the rate of its memory."""
SPARE_REGISTERS = 24
"""Registers for addresses and constants, roughly (from compiled kernels)."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("thread_loads", "loads", "accesses to the weights that a thread has under way"),
    Quantity("steps", "steps", "how often a thread waits for weights"),
    Quantity("partial_sums", "values", "sums that the warps of a block exchange for each output"),
)


@dataclass(frozen=True)
class GemvPlan(UsualPlan):
    product: Gemm
    target: Target

    @property
    def along_k(self) -> bool:
        return weights_along_k(self.product)

    @cached_property
    def small(self) -> bool:
        return self.product.n.extent * self.product.k.extent < SMALL

    @cached_property
    def narrow(self) -> bool:
        """Whether threads read less than 16 bytes at once."""
        return self.along_k and piece_bytes(self.product) < WIDEST_BYTES

    @property
    def knobs(self) -> tuple[Knob, ...]:
        fine = self.narrow and self.small
        own = (
            Knob("rows", (1, 2, 3, 4, 5, 6, 8) if fine else (1, 2, 4, 8), "outputs n of a warp")
            if self.along_k
            else Knob("lanes", (4, 8, 16, 2, 32), "lanes of a warp along n, each with 16 bytes; the others along k")
        )
        return (
            own,
            Knob("warps_n", (1, 2, 4, 8) if fine else (1, 2, 4), "warps of a block along n"),
            Knob("warps_k", (1, 2, 4, 8, 16, 32), "warps of a block along k"),
            Knob(
                "unroll",
                (1, 2, 4, 8, 16, 32) if self.narrow else (1, 2, 4, 8, 16),
                "most accesses of a thread along k before it uses the first",
            ),
        )

    def _sizes(self, columns: Columns) -> dict[str, Ints]:
        p, piece = self.product, piece_elements(self.product)
        warps_n, warps_k, unroll = columns.ints("warps_n"), columns.ints("warps_k"), columns.ints("unroll")
        one = np.ones_like(unroll)
        rows, lanes = (columns.ints("rows"), one) if self.along_k else (one, columns.ints("lanes"))
        width = rows if self.along_k else lanes * piece
        reach = warps_k * unroll * (WARP_LANES * piece if self.along_k else WARP_LANES // lanes)
        steps, held = -(-p.k.extent // reach), unroll
        if self.along_k:
            steps, held = even_steps(p, warps_k, unroll)
        words, sum_words = piece_words(p), -(-p.accumulator.dtype.bytes // 4)
        sums = p.m.extent * (rows if self.along_k else piece * one)
        tokens = p.m.extent * (words * (held if self.narrow else one) if self.along_k else unroll)
        alone = self.along_k & (warps_k == 1)
        return {
            "threads": WARP_LANES * warps_n * warps_k,
            "blocks": -(-p.n.extent // (warps_n * width)),
            "steps": steps,
            "loads": rows * held,
            "loaded": words * rows * held,
            "tokens": tokens,
            "sums": sums,
            "registers": SPARE_REGISTERS + words * rows * held + tokens + sum_words * (sums + piece),
            "shared": np.where(alone, 0, warps_k * p.m.extent * warps_n * width * p.accumulator.dtype.bytes),
            "spare_n": warps_n * width - p.n.extent,
            "reach": reach,
        }

    def usual(self, columns: Columns) -> Bools:
        p, size, limits = self.product, self._sizes(columns), limits_of(self.target)
        resident = limits.resident_blocks(size["threads"], size["registers"], size["shared"])
        usual: Bools = (resident >= 1) & self._modest(size) & self._useful(columns)
        if self.narrow:
            loaded = size["loaded"] if self.small else size["loaded"] + size["tokens"]
            usual &= (size["steps"] == 1) | (loaded >= LEAST_LOADED_SINGLE)
        if self.small:
            most = MOST_REGISTERS_SINGLE if self.narrow else MOST_REGISTERS_SMALL
            usual &= (size["registers"] <= most) | (size["loads"] == 1)
            usual &= size["threads"] <= 256
            return usual
        busy = self._in_flight(size) >= self._least_in_flight
        if self.narrow:
            busy |= size["steps"] == 1
        enough = (size["threads"] >= 128) & (size["loads"] >= 2) & (size["blocks"] >= self._least_blocks)
        usual &= busy & enough & (size["spare_n"] < max(p.n.extent, WARP_LANES))
        return usual

    def _modest(self, size: Mapping[str, Ints]) -> Bools:
        """Where a thread holds no more than it should."""
        sums = max(MOST_SUMS, self.product.m.extent * piece_elements(self.product))
        modest: Bools = (size["sums"] <= sums) & (size["loaded"] <= MOST_LOADED)
        return modest

    def _in_flight(self, size: Mapping[str, Ints]) -> Ints:
        """Bytes of the weights that a multiprocessor has under way."""
        resident = limits_of(self.target).resident_blocks(size["threads"], size["registers"], size["shared"])
        here = np.minimum(resident, -(-size["blocks"] // self.target.threads))
        return piece_bytes(self.product) * size["loads"] * size["threads"] * here

    @cached_property
    def _least_in_flight(self) -> int:
        """What ``_in_flight`` must be: where each piece of less than 16 bytes takes a register, and there is not room
        for many, a fourth of the most will do."""
        if not self.narrow:
            return LEAST_IN_FLIGHT
        size = self._sizes(all_settings(self.knobs))
        return min(LEAST_IN_FLIGHT, int(self._in_flight(size)[self._modest(size)].max()) // 4)

    def _useful(self, columns: Columns) -> Bools:
        """Where a setting is no other one with less of ``unroll``, and all warps have something to do."""
        p, warps_k, unroll = self.product, columns.ints("warps_k"), columns.ints("unroll")
        if self.along_k:
            useful: Bools = (unroll // 2 < pieces_of_warp(p, warps_k)) & (warps_k // 2 < pieces_of_warp(p, 1))
            return useful
        least = 4 * WARP_LANES if self.small else WARP_LANES
        useful = self._sizes(columns)["reach"] <= max(-(-p.k.extent // WARP_LANES) * WARP_LANES, least)
        return useful

    @property
    def _least_blocks(self) -> int:
        """Blocks that a setting must have: most of the multiprocessors' worth, where ``n`` is long enough."""
        narrowest = 1 if self.along_k else 4 * piece_elements(self.product)
        return min(self.target.threads * 3 // 4, self.product.n.extent // narrowest)

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        size = self._sizes(columns)
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=size["blocks"],
            threads=size["threads"],
            registers=np.minimum(size["registers"], 255),
            shared=size["shared"],
            wanted=piece_bytes(self.product) * size["loads"],
        )
        return {
            **common,
            "thread_loads": size["loads"].astype(np.float64),
            "steps": size["steps"].astype(np.float64),
            "partial_sums": columns.ints("warps_k").astype(np.float64),
        }

    def _meant(self, size: Mapping[str, Ints], resident: Ints) -> int:
        """Blocks that a multiprocessor is meant to hold at once: the compiler, if it does not know, takes registers for
        more of them, and moves loads behind products, so that the data arrives in two goes."""
        return max(1, int(np.minimum(resident, -(-size["blocks"] // self.target.threads))[0]))

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        knobs = {name: int(value) for name, value in setting.items()}
        size = self._sizes(Columns(self.knobs, codes_of(self.knobs, [Schedule.of("", 0, setting)]), {}))
        resident = limits_of(self.target).resident_blocks(size["threads"], size["registers"], size["shared"])
        chosen = GemvSetting(
            rows=knobs.get("rows", 1),
            warps_n=knobs["warps_n"],
            warps_k=knobs["warps_k"],
            lanes_n=knobs.get("lanes", 1),
            unroll=knobs["unroll"],
            ahead=int(limits_of(self.target).early_blocks(resident, self.target.threads)[0]),
            resident=self._meant(size, resident) if self.narrow else 0,
        )
        return lower_gemv(self.product, KERNEL_NAME, chosen)


def _plan(workload: Workload, target: Target) -> GemvPlan | None:
    product = skinny_gemm_of(workload)
    if product is None or product.m.extent > LARGEST_SKINNY_M:
        return None
    if product.m.extent > LONGEST_BESIDE_MATRICES and can_lower(product):
        return None
    return GemvPlan(product, target)


CUDA_GEMV = TileSketch("cuda_gemv", 4, QUANTITIES, _plan)
