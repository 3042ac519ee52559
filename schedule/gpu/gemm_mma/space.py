"""Large and medium products on the matrix instructions of warps: see ``schedule.tile.mma``.

16-bit floats summed in float32, operands in any layout and of any alignment, batches, any pointwise functions of the
sum. On Hopper the instructions of warpgroups are faster where they can be used; there this sketch takes what they
cannot, and small products: many of one tile each, which it begins and ends sooner, and those with rows that begin
between multiples of 16 bytes, which warpgroups have copied first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES, Cast, Load
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm, gemm_of, skinny_gemm_of
from ...space.columns import Bools, Columns, Ints
from ...space.enumerate import all_settings
from ...space.knob import Knob, Quantity
from ...tile.names import FreshNameWriter
from ...tile_sketch import Plan, TileSketch
from ..gemm.mainloop import can_lower_products
from ..gemm.repack import even_product, uneven_operands
from ..occupancy import limits_of
from ..quantities import GPU_QUANTITIES, gpu_columns
from ..skinny.mma_mainloop import can_lower_skinny_mma
from .mainloop import (
    COLUMNS,
    DEPTH,
    NARROW,
    PARTIAL_PADDING,
    PIECE,
    ROWS,
    MmaSetting,
    can_lower_mma,
    lower_mma,
    piece_of,
)

BAND = 8
"""Tiles along m before the next along n."""
LEAST_SIDE = 8
"""Rows, or columns, up to which most of what matrix instructions do would be wasted."""
WIDEST_ALONE, LONGEST_ALONE = 64, 128
"""Of results, many of them, that begin and end sooner with warps than with warpgroups (4.9 us, not 5.1, for 512
products of 64^3 on an H200)."""
MOST_UNCOPIED = 1 << 24
"""Multiplications of a product with uneven rows that may gain from doing without the copy that warpgroups need."""
MOST_STAGES, MOST_WARPS, MOST_RESIDENT, MOST_SETTINGS = 6, 8, 4, 250
SPARE_REGISTERS, VALUE_REGISTERS, HELD_REGISTERS = 36, 12, 8
"""Registers for addresses and constants, roughly (from compiled kernels); more where results are not just the sums, or
where operands go through registers."""
MOST_COPIES, MOST_HELD = 32, 20
"""Of a thread in a step; of those, loads into registers (more did not fit, when compiled)."""
# cycles and rates of a multiprocessor: fitted to 200 kernels on an H200, of which they tell the times to 20 %
FLOPS_PER_CYCLE = {"sm_80": 1800, "sm_89": 900}
"""Of matrix instructions of warps; 2150 elsewhere."""
SHARED_BYTES_PER_CYCLE, L2_BYTES_PER_CYCLE = 128, 48
COPY_CYCLES = {8: 0, 4: 11, 2: 8, 1: 16}
"""Of copying so many elements for each lane of a warp, besides the bytes: four where they are taken one by one."""
LATENCY_CYCLES = 2400
"""From asking for a step to having it: shared by the steps that are asked for ahead."""
BEGIN_CYCLES, LAUNCH_CYCLES = 600, 3900
"""Of blocks that are there at once, until they multiply; of the launch."""
STAGED_PER_CYCLE, STORED_PER_CYCLE = 7.0, 3.25
"""Elements of the result, by way of shared memory or straight from where they are."""
EVENING_CYCLES, EVENED_BYTES_PER_CYCLE = 3500, 9
"""Of a launch that copies operands, and what a multiprocessor copies in it."""
EXCHANGE_CYCLES, EXCHANGE_BYTES_PER_CYCLE = 2000, 12
"""Of sums that the blocks of a cluster add up."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("stages", "stages", "stages of the ring"),
    Quantity("steps", "steps", "steps along k of a block"),
    Quantity("wave_efficiency", "1", "part of the multiply-adds of all multiprocessors' turns that the result needs"),
    Quantity("mma_cycles", "cycles", "cycles of the matrix units for all tiles of a multiprocessor"),
    Quantity("shared_cycles", "cycles", "cycles of its shared memory"),
    Quantity("l2_cycles", "cycles", "cycles of its part of the second-level cache"),
    Quantity("estimate", "cycles", "cycles that all of it may take: what the space is ordered and cut by"),
)


@dataclass(frozen=True)
class MmaPlan(Plan):
    product: Gemm
    target: Target

    @cached_property
    def _pieces(self) -> tuple[tuple[int, int], ...]:
        """Elements of a copy of each operand, as they are, and evened."""
        p, even = self.product, even_product(FreshNameWriter(self.product.names), self.product)[0]
        return tuple((piece_of(q, q.a, "m")[0], piece_of(q, q.b, "n")[0]) for q in (p, even))

    @cached_property
    def _along_k(self) -> tuple[bool, bool]:
        """Whether rows of each operand lie along k."""
        p = self.product
        return piece_of(p, p.a, "m")[1], piece_of(p, p.b, "n")[1]

    @cached_property
    def _evening_cycles(self) -> float:
        """Of copying operands with uneven rows."""
        uneven = uneven_operands(self.product)
        return EVENING_CYCLES + sum(b.bytes for b in uneven) / self.target.threads / EVENED_BYTES_PER_CYCLE

    @cached_property
    def _spare(self) -> int:
        """Registers beside sums, fragments and what is copied."""
        plain = all(
            isinstance(r.value.value if isinstance(r.value, Cast) else r.value, Load) for r in self.product.results
        )
        return SPARE_REGISTERS + (0 if plain else VALUE_REGISTERS)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        splits = (1, 2, 4) if limits_of(self.target).clusters else (1,)
        return (
            Knob("rows", (4, 2, 1), "times 16 rows of a warp"),
            Knob("columns", (4, 2, 1), "times 16 columns of a warp"),
            Knob("warps_m", (2, 1, 4), "warps of a block along m"),
            Knob("warps_n", (2, 1, 4), "warps of a block along n"),
            Knob("depth", (32, 64), "places of k of a step"),
            Knob("split", splits, "blocks of a cluster that share out k of one tile"),
            Knob("resident", (1, 2, 3, 4), "blocks meant for a multiprocessor at once"),
            Knob("staged", (1, 0), "whether sums go through shared memory, so that whole rows are stored"),
            Knob("evened", (0, 1), "whether operands with uneven rows are copied first to where rows are even"),
        )

    def _sizes(self, columns: Columns) -> dict[str, Ints]:
        p, limits = self.product, limits_of(self.target)
        rows, wide, depth = columns.ints("rows"), columns.ints("columns"), columns.ints("depth")
        warps_m, warps_n = columns.ints("warps_m"), columns.ints("warps_n")
        split, resident = columns.ints("split"), columns.ints("resident")
        tile_m, tile_n = ROWS * rows * warps_m, COLUMNS * wide * warps_n
        threads = WARP_LANES * warps_m * warps_n
        tiles = -(-p.m.extent // tile_m) * -(-p.n.extent // tile_n) * prod(a.extent for a in p.batch)
        steps = -(-p.k.extent // (split * depth))
        stage, held, copies, copied = (np.zeros_like(rows) for _ in range(4))
        for side, extent in enumerate((tile_m, tile_n)):
            lines, line = (extent, depth) if self._along_k[side] else (depth, extent)
            stage = stage + 2 * lines * (line + np.where(line & (line - 1) == 0, 0, PIECE))
            piece = np.where(columns.ints("evened") == 1, self._pieces[1][side], self._pieces[0][side])
            unit = np.where(piece == 1, NARROW, piece)
            turns = -(-extent * depth // (unit * threads))
            copies, held = copies + turns, held + np.where(piece == 1, turns, 0)
            cycles = np.select([piece == n for n in COPY_CYCLES], list(COPY_CYCLES.values()))
            copied = copied + extent * depth // unit * cycles // WARP_LANES
        room = np.minimum(limits.shared_bytes_per_multiprocessor // resident - 1024, limits.shared_bytes_per_block)
        stages = np.minimum(np.minimum(room // stage, steps), MOST_STAGES)
        partials = 4 * (tile_m * (tile_n + PARTIAL_PADDING) - PARTIAL_PADDING)
        partials = np.where(columns.ints("staged") == 1, partials, 0)
        return {
            "tile_m": tile_m,
            "tile_n": tile_n,
            "threads": threads,
            "tiles": tiles,
            "steps": steps,
            "stage": stage,
            "stages": stages,
            "held": held,
            "copies": copies,
            "copied": copied,
            "registers": 8 * rows * wide
            + 8 * (rows + wide)
            + held
            + copies
            + self._spare
            + np.where(held > 0, HELD_REGISTERS, 0),
            "shared": np.maximum(np.maximum(stages, 1) * stage, partials),
            "room": room,
        }

    def legal(self, columns: Columns) -> Bools:
        usual: Bools = self._fits(columns) & (self._estimate(columns)["estimate"] <= self._bound)
        return usual

    @cached_property
    def _bound(self) -> float:
        """The estimate up to which settings are worth trying."""
        columns = all_settings(self.knobs)
        fitting = np.sort(self._estimate(columns)["estimate"][self._fits(columns)])
        return float(fitting[min(MOST_SETTINGS, len(fitting)) - 1])

    def _fits(self, columns: Columns) -> Bools:
        """Whether a setting can work, and repeats no other one."""
        p, size, limits = self.product, self._sizes(columns), limits_of(self.target)
        resident, split, staged = columns.ints("resident"), columns.ints("split"), columns.ints("staged")
        room_for = limits.resident_blocks(size["threads"], size["registers"], size["shared"])
        wanted = np.minimum(-(-size["tiles"] * split // self.target.threads), MOST_RESIDENT)
        fits = resident == np.minimum(room_for, wanted)
        fits &= (size["stages"] >= np.minimum(3, size["steps"])) & (size["shared"] <= size["room"])
        fits &= (size["threads"] <= WARP_LANES * MOST_WARPS) & (size["held"] <= MOST_HELD)
        fits &= size["copies"] <= MOST_COPIES
        # nothing is gained by a tile that is half empty
        fits &= (size["tile_m"] < 2 * p.m.extent) & (size["tile_n"] < 2 * p.n.extent)
        fits &= (columns.ints("depth") == 32) | (size["steps"] * split * columns.ints("depth") < p.k.extent + 32)
        if uneven_operands(p):
            fits &= (columns.ints("evened") == 0) | (min(self._pieces[1]) == PIECE)
        else:
            fits &= columns.ints("evened") == 0
        alone = (size["tiles"] * split <= self.target.threads * resident) & (size["steps"] >= 2)
        result: Bools = fits & ((split == 1) | (alone & (staged == 1)))
        return result

    def _estimate(self, columns: Columns) -> dict[str, NDArray[np.float64]]:
        """Cycles of a multiprocessor: of what it does at once, the slowest of its units."""
        p, size = self.product, self._sizes(columns)
        tile_m, tile_n, steps, depth = size["tile_m"], size["tile_n"], size["steps"], columns.ints("depth")
        split, staged = columns.ints("split"), columns.ints("staged") == 1
        turns = -(-size["tiles"] * split // self.target.threads)
        at_once = np.minimum(turns, columns.ints("resident"))
        mma = 2 * tile_m * tile_n * depth / FLOPS_PER_CYCLE.get(self.target.arch, 2150)
        fragments = size["threads"] // WARP_LANES * DEPTH * (columns.ints("rows") + columns.ints("columns")) * depth * 2
        shared = (fragments + 2 * (tile_m + tile_n) * depth) / SHARED_BYTES_PER_CYCLE
        l2 = 2 * (tile_m + tile_n) * depth / L2_BYTES_PER_CYCLE
        ahead = np.where(size["held"] > 0, 1, np.maximum(size["stages"] - 1, 1))
        step = at_once * (np.maximum(np.maximum(mma, l2), shared) + size["copied"])
        step = np.maximum(step, LATENCY_CYCLES / ahead)
        store = at_once * tile_m * tile_n / np.where(staged, STAGED_PER_CYCLE, STORED_PER_CYCLE) / split
        exchange = np.where(split > 1, EXCHANGE_CYCLES + 4 * tile_m * tile_n / EXCHANGE_BYTES_PER_CYCLE, 0)
        evening = np.where(columns.ints("evened") == 1, self._evening_cycles, 0)
        total = LAUNCH_CYCLES + evening + exchange + turns / at_once * (BEGIN_CYCLES + steps * step + store)
        used = p.m.extent * p.n.extent * prod(a.extent for a in p.batch)
        return {
            "wave_efficiency": used / (turns * self.target.threads * tile_m * tile_n / split),
            "mma_cycles": turns * steps * mma,
            "shared_cycles": turns * steps * shared,
            "l2_cycles": turns * steps * l2,
            "estimate": total,
        }

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        size = self._sizes(columns)
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=size["tiles"] * columns.ints("split"),
            threads=size["threads"],
            registers=size["registers"],
            shared=size["shared"],
            wanted=size["stage"] * np.maximum(size["stages"] - 1, 1) // size["threads"],
        )
        counts = {name: size[name].astype(np.float64) for name in ("stages", "steps")}
        return {**common, **counts, **self._estimate(columns)}

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_mma(self.product, KERNEL_NAME, self.setting(setting))

    def setting(self, knobs: Mapping[str, KnobValue]) -> MmaSetting:
        """What the knobs stand for."""
        codes = np.array([[k.values.index(knobs[k.name]) for k in self.knobs]], dtype=np.int16)
        stages = int(self._sizes(Columns(self.knobs, codes, {}))["stages"][0])
        return MmaSetting(
            rows=int(knobs["rows"]),
            columns=int(knobs["columns"]),
            warps_m=int(knobs["warps_m"]),
            warps_n=int(knobs["warps_n"]),
            depth=int(knobs["depth"]),
            stages=stages,
            split=int(knobs["split"]),
            band=BAND,
            resident=int(knobs["resident"]),
            staged=bool(knobs["staged"]),
            evened=bool(knobs["evened"]),
        )


def _plan(workload: Workload, target: Target) -> MmaPlan | None:
    p = gemm_of(workload)
    if p is None or not can_lower_mma(p) or min(p.m.extent, p.n.extent) <= LEAST_SIDE or p.k.extent < DEPTH:
        return None
    few = skinny_gemm_of(workload)
    if few is not None and can_lower_skinny_mma(few):
        return None
    if target.arch == "sm_90a" and few is None and can_lower_products(p) and not _gains_beside_groups(p):
        return None
    return MmaPlan(p, target)


def _gains_beside_groups(p: Gemm) -> bool:
    """Whether warps may be faster than warpgroups: many results of one tile each, or less than a copy ahead takes."""
    if uneven_operands(p):
        return prod(a.extent for a in (p.m, p.n, p.k, *p.batch)) <= MOST_UNCOPIED
    return bool(p.batch) and max(p.m.extent, p.n.extent) <= WIDEST_ALONE and p.k.extent <= LONGEST_ALONE


CUDA_GEMM_MMA = TileSketch("cuda_gemm_mma", 3, QUANTITIES, _plan)
