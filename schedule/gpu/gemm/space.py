"""Large products for Hopper devices, on matrix instructions of warpgroups: see ``schedule.tile.products``.

16-bit floats summed in float32, operands in any of the four layouts, batches, any pointwise functions of the sum, or of
several of the same left operand, whose columns then share a tile.
Where rows of operands do not begin at multiples of 16 bytes, as copies of boxes want, a launch copies them first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.expr import WARP_LANES, Cast, Load, Var
from ....ir.gpu.barrier import WARPGROUP_THREADS
from ....ir.gpu.tma import MAX_BOX_EXTENT
from ....ir.gpu.wgmma import SWIZZLE_128B_ELEMENTS, WGMMA_M
from ....ir.stmt import Kernel
from ....te.workload import Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import LARGEST_SKINNY_M, Gemm, gemm_of
from ...space.columns import Bools, Columns, Ints
from ...space.enumerate import all_settings
from ...space.knob import Knob, Quantity
from ...tile_sketch import Plan, TileSketch
from ..occupancy import limits_of
from ..quantities import GPU_QUANTITIES, gpu_columns
from .epilogue import ahead_registers, can_store_boxes, can_store_lines
from .mainloop import COPYING_REGISTERS, PARTIAL_PADDING, ProductSetting, can_lower_products, lower_products
from .prior import ProductCost
from .repack import uneven_operands

ARCHITECTURE = "sm_90a"
WIDTHS = (256, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240)
BANDS = (8, 4, 16, 32)
LEAST_STAGES, MOST_STAGES = 3, 12
BARRIER_BYTES = 48
"""Of shared memory, for barriers besides those of the stages, and for what aligns them."""
SPARE_REGISTERS = 30
"""Registers for addresses and constants, roughly (from compiled kernels)."""
VALUE_REGISTERS = 12
"""More of them, where results are not just the sums (likewise)."""
MOST_SETTINGS = 300
"""Settings of a space: those that the estimate likes best."""
MOST_TILES, MOST_BLOCKS = 4, 8
"""Of a cluster."""
CLUSTER_SHARES = {4: 10 / 11, 8: 6 / 7}
"""Blocks of a cluster, from which on -> share of the multiprocessors that such clusters can fill: each lies within one
part of the device, and those differ."""
MOST_REGISTERS = 240
"""That a warpgroup may set for its threads."""
SMALL_TILE = 64 * 128
"""Places of tiles up to which the barriers of a step of 64 places of k are worth saving."""
QUARTERS = 4
"""Parts of a multiprocessor, each with a quarter of its registers for every fourth warp of a block."""
REGISTERS = 512
"""Registers of a quarter for each lane of a warp."""
LONG_CYCLES, CLOSE = 100_000, (1.05, 1.06)
"""Products that take so long settle at the clock that their power allows, as short measurements do not show: of their
settings, those whose estimate is this close to the best are enough; of several sums, or with operands copied first,
less is known."""
LEAST_SHARE = 8
"""Steps of a block that takes an even share of all, as in CUTLASS."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("tiles", "tiles", "tiles of the result, those of the blocks of a cluster counted one by one"),
    Quantity("stages", "stages", "stages of the ring"),
    Quantity("sums", "registers", "registers of a thread that hold sums"),
    Quantity("wave_efficiency", "1", "part of the multiply-adds of all multiprocessors' turns that the result needs"),
    Quantity("mma_cycles", "cycles", "cycles of the matrix units for all tiles of a multiprocessor"),
    Quantity("shared_cycles", "cycles", "cycles of its shared memory"),
    Quantity("l2_cycles", "cycles", "cycles of its part of the second-level cache"),
    Quantity("estimate", "cycles", "cycles that all of it may take: what the space is ordered and cut by"),
)


@dataclass(frozen=True)
class ProductPlan(Plan):
    """``most``: how many settings are offered, those that the estimate likes best; None: all that can work."""

    product: Gemm
    target: Target
    most: int | None = MOST_SETTINGS

    @property
    def _sums(self) -> int:
        return len(self.product.accumulators)

    @cached_property
    def _cost(self) -> ProductCost:
        return ProductCost(self.product, self.target)

    @cached_property
    def _right_along_k(self) -> bool:
        assert self.product.b.load is not None
        return self.product.b.load.indices[-1] == Var("k")

    @cached_property
    def _spare(self) -> int:
        """Registers beside the sums."""
        plain = all(
            isinstance(r.value.value if isinstance(r.value, Cast) else r.value, Load) for r in self.product.results
        )
        return SPARE_REGISTERS + ahead_registers(self.product) + (0 if plain else VALUE_REGISTERS)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob("groups", (2, 1, 3), "warpgroups of a block that multiply"),
            Knob("in_turn", (0, 1), "whether each of them takes tiles of its own, in turn"),
            Knob("rows", (1, 2), "times 64 rows of a warpgroup"),
            Knob("wide", WIDTHS, "columns of a tile"),
            Knob("slabs", (1, 2, 4), "times 64 places of k that arrive together"),
            Knob("cluster", (1, 2, 4), "tiles of a cluster along m"),
            Knob("across", (1, 2, 4), "tiles of a cluster along n"),
            Knob("split", (1, 2, 4, 8), "blocks of a cluster that share out k of one tile"),
            Knob("band", BANDS, "tiles along m before the next along n"),
            Knob("resident", (1, 2), "blocks meant for a multiprocessor at once"),
            Knob("roomy", (0, 1), "whether warps that copy are a group and leave registers to those that multiply"),
            Knob(
                "even", (0, 1), "whether steps of all tiles are dealt out evenly; a second launch adds parts of tiles"
            ),
            Knob("boxes", (2, 0, 1), "buffers through which a warpgroup stores boxes or rows; 0: threads store"),
            *self._copied,
        )

    @cached_property
    def _copied(self) -> tuple[Knob, ...]:
        """No choice, but said: why operands are copied before they are multiplied."""
        uneven = uneven_operands(self.product)
        if not uneven:
            return ()
        rows = " and ".join(f"rows of {b.name} every {b.shape[-1] * b.dtype.bytes} bytes" for b in uneven)
        return (
            Knob("copied", (1,), f"operands are first copied in even rows: boxes want multiples of 16 bytes, {rows}"),
        )

    def _sizes(self, columns: Columns) -> dict[str, Ints]:
        p, limits = self.product, limits_of(self.target)
        groups, in_turn, rows, wide = (columns.ints(name) for name in ("groups", "in_turn", "rows", "wide"))
        tile_n = wide // self._sums
        slabs, resident, boxes = (columns.ints(name) for name in ("slabs", "resident", "boxes"))
        turns = np.where(in_turn == 1, groups, 1)
        tile_m = WGMMA_M * rows * groups // turns
        cluster_m, cluster_n, split = (columns.ints(name) for name in ("cluster", "across", "split"))
        blocks = cluster_m * cluster_n * split
        tiles = -(-p.m.extent // (tile_m * cluster_m)) * -(-p.n.extent // (tile_n * cluster_n))
        tiles = tiles * prod(a.extent for a in p.batch)
        usable = np.full_like(blocks, self.target.threads)
        for size, part in CLUSTER_SHARES.items():
            usable = np.where(blocks >= size, int(self.target.threads * part), usable)
        together = usable * resident // blocks
        laps = -(-tiles // (np.maximum(together, 1) * turns))
        workers = -(-tiles // (laps * turns))
        steps = -(-p.k.extent // (split * slabs * SWIZZLE_128B_ELEMENTS))
        even = columns.ints("even") == 1
        share = np.where(even, -(-tiles * steps // np.maximum(together, 1)), 0)
        laps = np.where(even, (share + steps - 2) // steps + 1, laps)
        workers = np.where(even, -(-tiles * steps // np.maximum(share, 1)), workers)
        here = np.minimum(resident, -(-workers * blocks // np.maximum(usable, 1)))
        sums = rows * wide // 2
        roomy = columns.ints("roomy") == 1
        threads = WARPGROUP_THREADS * groups + np.where(roomy, WARPGROUP_THREADS, WARP_LANES)
        own = _share(threads * resident)
        pool = (groups + 1) * _share((groups + 1) * WARPGROUP_THREADS * resident)
        most = np.minimum((pool - COPYING_REGISTERS) // groups // 8 * 8, MOST_REGISTERS)
        held_n = wide if self._right_along_k else -(-wide // SWIZZLE_128B_ELEMENTS) * SWIZZLE_128B_ELEMENTS
        stage = 2 * SWIZZLE_128B_ELEMENTS * slabs * (tile_m + held_n) + 16
        staging = np.minimum(tile_n, SWIZZLE_128B_ELEMENTS) + np.where(
            tile_n > SWIZZLE_128B_ELEMENTS, tile_n % SWIZZLE_128B_ELEMENTS, 0
        )
        staging = 2 * groups * boxes * WGMMA_M * staging
        partials = np.where(split > 1, 4 * tile_m * (wide + PARTIAL_PADDING), 0)  # in the place of the rings
        room = np.minimum(limits.shared_bytes_per_multiprocessor // resident - 1024, limits.shared_bytes_per_block)
        uses = np.where(even, share, steps * laps * turns)
        stages = np.minimum(np.minimum((room - staging - BARRIER_BYTES) // stage, uses), MOST_STAGES)
        return {
            "threads": threads,
            "turns": turns,
            "tile_m": tile_m,
            "tile_n": tile_n,
            "cluster_m": cluster_m,
            "cluster_n": cluster_n,
            "tiles": tiles,
            "laps": laps,
            "workers": workers,
            "here": here,
            "sums": sums,
            "registers": np.where(roomy, most, 0),
            "thread_registers": np.where(roomy, most, own),
            "launched": own,
            "steps": steps,
            "share": share,
            "uses": uses,
            "stages": stages,
            "shared": np.maximum(np.maximum(stages, 1) * stage, partials) + staging + BARRIER_BYTES,
            "stage": stage,
        }

    def legal(self, columns: Columns) -> Bools:
        return self._usual(columns, self._bound)

    @cached_property
    def _bound(self) -> float:
        """The estimate up to which settings are worth trying."""
        columns = all_settings(self.knobs)
        columns = columns.kept(_sound(columns))
        columns = columns.kept(self._fits(columns))
        fitting = np.sort(self._estimate(columns)["estimate"])
        if self.most is None or not len(fitting):
            return float(fitting[-1]) if len(fitting) else 0.0
        close = fitting[0] * (CLOSE[self._sums > 1 or bool(self._copied)] if fitting[0] > LONG_CYCLES else np.inf)
        return float(min(fitting[min(self.most, len(fitting)) - 1], close))

    def _usual(self, columns: Columns, bound: float) -> Bools:
        usual = np.ones(len(columns), dtype=bool)
        for kept in (_sound, self._fits, lambda some: self._estimate(some)["estimate"] <= bound, self._well_ordered):
            usual[usual] = kept(columns.kept(usual))
        return usual

    def _well_ordered(self, columns: Columns) -> Bools:
        """Where power is short: whether the tiles under way together read as few rows and columns as any order lets
        them (others cost 1 to 2 % of most products of 10^11 multiply-adds, which short times do not show)."""
        if self.most is None:
            return np.ones(len(columns), dtype=bool)
        size, long = self._sizes(columns), self._estimate(columns)["estimate"] > LONG_CYCLES
        m, n = size["tile_m"] * size["cluster_m"], size["tile_n"] * size["cluster_n"]
        tiles_m = -(-self.product.m.extent // m)

        def read(band: Ints | int) -> Ints:
            rows = np.minimum(band, tiles_m)
            total: Ints = rows * m + -(-size["workers"] // rows) * n
            return total

        least = np.min([read(band) for band in BANDS], axis=0)
        result: Bools = ~long | (size["laps"] == 1) | (read(columns.ints("band")) <= least)
        return result

    def _fits(self, columns: Columns) -> Bools:
        """Whether a setting can work, and repeats no other one."""
        p, size, limits = self.product, self._sizes(columns), limits_of(self.target)
        rows, wide, band, resident, boxes = (
            columns.ints(name) for name in ("rows", "wide", "band", "resident", "boxes")
        )
        fits = limits.resident_blocks(size["threads"], size["launched"], size["shared"]) >= resident
        fits &= (size["stages"] >= np.minimum(LEAST_STAGES, size["uses"])) & (
            size["sums"] + self._spare <= size["thread_registers"]
        )
        fits &= size["tile_m"] // size["cluster_n"] <= MAX_BOX_EXTENT
        fits &= (columns.ints("in_turn") == 0) | (size["tiles"] > self.target.threads)
        split = columns.ints("split")
        fits &= (split == 1) | ((size["laps"] == 1) & (size["steps"] >= 2))
        pieces = rows * -(-size["tile_n"] // SWIZZLE_128B_ELEMENTS)
        # evenly: where blocks would otherwise wait for the last ones
        even, share = columns.ints("even") == 1, size["share"]
        fits &= ~even | ((share >= LEAST_SHARE) & (size["tiles"] % self.target.threads != 0) & (size["tiles"] > 1))
        parted = (split > 1) | (even & (share < size["steps"]))
        if can_store_boxes(p):
            fits &= boxes == np.where(parted, 0, np.minimum(pieces, 2))
        else:
            fits &= boxes <= (np.where(parted, 0, 1) if can_store_lines(p) else 0)
        fits &= (columns.ints("slabs") == 1) | (size["steps"] >= 4)
        # fewer blocks would crowd where earlier launches end first
        fits &= (resident == 1) | (size["here"] > 1)
        # nothing is gained by more than a tile that covers the result, or by an order of few tiles
        tiles_m = -(-p.m.extent // (size["tile_m"] * size["cluster_m"]))
        tiles_n = -(-p.n.extent // (size["tile_n"] * size["cluster_n"]))
        covered = (size["tile_m"] * size["cluster_m"] < p.m.extent + WGMMA_M) | (size["tile_m"] == WGMMA_M)
        columns_of_sums = self._sums * p.n.extent
        covered &= (wide * size["cluster_n"] < columns_of_sums + WIDTHS[1]) | (wide == WIDTHS[1])
        if self._sums > 1:
            unit = self._sums * (8 if self._right_along_k else SWIZZLE_128B_ELEMENTS)
            fits &= (wide % (unit * size["cluster_m"]) == 0) & (split == 1) & ~even
        ordered = (band == 8) | ((size["laps"] > 1) & (band <= tiles_m) & (tiles_n > 1))
        several = size["cluster_m"] * size["cluster_n"] > 1
        result: Bools = fits & covered & ordered & (~several | (size["laps"] * size["steps"] > 1))
        return result

    def _estimate(self, columns: Columns) -> dict[str, NDArray[np.float64]]:
        return self._cost.estimate(columns, self._sizes(columns))

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        size = self._sizes(columns)
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=size["workers"] * size["cluster_m"] * size["cluster_n"] * columns.ints("split"),
            threads=size["threads"],
            registers=size["thread_registers"],
            shared=size["shared"],
            wanted=size["stage"] * np.maximum(size["stages"] - 1, 1) // size["threads"],
        )
        counts = {
            "tiles": size["tiles"] * size["cluster_m"] * size["cluster_n"],
            "stages": size["stages"],
            "sums": size["sums"],
        }
        return {**common, **{name: n.astype(np.float64) for name, n in counts.items()}, **self._estimate(columns)}

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return lower_products(self.product, KERNEL_NAME, self.setting(setting))

    def setting(self, knobs: Mapping[str, KnobValue]) -> ProductSetting:
        """What the knobs stand for."""
        codes = np.array([[k.values.index(knobs[k.name]) for k in self.knobs]], dtype=np.int16)
        size = {name: int(column[0]) for name, column in self._sizes(Columns(self.knobs, codes, {})).items()}
        return ProductSetting(
            groups=int(knobs["groups"]),
            in_turn=bool(knobs["in_turn"]),
            rows=int(knobs["rows"]),
            wide=int(knobs["wide"]),
            slabs=int(knobs["slabs"]),
            stages=size["stages"],
            cluster_m=size["cluster_m"],
            cluster_n=size["cluster_n"],
            split=int(knobs["split"]),
            band=int(knobs["band"]),
            workers=size["workers"],
            resident=int(knobs["resident"]),
            boxes=int(knobs["boxes"]),
            registers=size["registers"],
            sums=self._sums,
            share=size["share"],
        )


def _sound(columns: Columns) -> Bools:
    """Which settings can work for any product."""
    groups, rows, wide, slabs = (columns.ints(name) for name in ("groups", "rows", "wide", "slabs"))
    in_turn, roomy = columns.ints("in_turn") == 1, columns.ints("roomy") == 1
    alone, split = columns.ints("resident") == 1, columns.ints("split")
    places = WGMMA_M * rows * wide * np.where(in_turn, 1, groups)
    sound = ~in_turn | ((groups == 2) & alone)
    # more registers than an equal share, where that is little; three groups would still begin with too few
    sound &= ~roomy | ((groups == 2) & alone & (rows * wide // 2 >= 96))
    sound &= (split == 1) | (~in_turn & ~roomy & alone & (places <= 128 * 128))
    sound &= (slabs == 1) | (places * slabs <= 2 * SMALL_TILE)
    cluster = columns.ints("cluster") * columns.ints("across")
    sound &= (columns.ints("even") == 0) | (~in_turn & (cluster * split == 1))
    sound &= (cluster <= MOST_TILES) & (cluster * split <= MOST_BLOCKS)
    # each block of a cluster copies whole periods of the swizzle
    result: Bools = sound & (wide % (8 * columns.ints("cluster")) == 0)
    return result


def _share(threads: Ints) -> Ints:
    """Registers of each of ``threads`` threads of a multiprocessor at most."""
    warps = -(-threads // WARP_LANES)
    share: Ints = np.minimum(REGISTERS // -(-warps // QUARTERS) // 8 * 8, 248)
    return share


def _plan(workload: Workload, target: Target) -> ProductPlan | None:
    if target.arch != ARCHITECTURE:
        return None
    p = gemm_of(workload, several=True)
    if p is None:
        return None
    alone = not p.batch and not p.others
    if (alone and min(p.m.extent, p.n.extent) <= LARGEST_SKINNY_M) or not can_lower_products(p):
        return None
    return ProductPlan(p, target)


def _whole_plan(workload: Workload, target: Target) -> ProductPlan | None:
    plan = _plan(workload, target)
    return None if plan is None else replace(plan, most=None)


VERSION = 8
CUDA_GEMM = TileSketch("cuda_gemm", VERSION, QUANTITIES, _plan)
ALL_CUDA_GEMM = TileSketch("cuda_gemm", VERSION, QUANTITIES, _whole_plan)
"""The same with every setting that can work, whatever the estimate says: for tables that are to be complete."""
