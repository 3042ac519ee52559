"""Describes the settings of blocked matrix products on a processor, whatever multiplies: knobs, which settings are
legal, and what they imply. The sketches differ in their ``MicroKernel``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from ....core.schedule import KnobValue
from ....ir.rewrite import loads_of
from ....ir.stmt import Kernel
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm, Operand
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Floats, Ints, derived_once
from ...space.constraint import Constraint
from ...space.knob import Knob, Quantity
from ...tile_sketch import SizedPlan
from ..arithmetic import ceil_div, idle_share
from ..limits import MOST_SCRATCH_BYTES
from ..peaks import cpu_peaks
from ..shared_knobs import COLUMNS_INSIDE, NON_TEMPORAL, ROWS_INSIDE, store_knob
from .blocked_product import BlockedProduct
from .direct_convolution import FLATTENED, PADDED
from .kernel import CpuGemmSetting, can_accumulate
from .micro_kernel import MicroKernel
from .packing import NEVER, TASK, WHOLE
from .prior import gemm_seconds
from .promising import packed_share, promising
from .sizes import CpuGemmSizes

LEAST_WORK = 1 << 18
"""Multiply-adds below which there is nothing to block."""
LEAST_ROWS = 4
"""Rows below which reading the other operand is what takes the time."""
BLOCKS = tuple(1 << n for n in range(12))
"""How many blocks an axis is cut into."""
LEAST_KC, MOST_KC = 128, 1024
"""Steps of ``k`` in a block: with fewer, reading and writing C takes the time; with more, a panel leaves the cache."""

QUANTITIES = (
    Quantity("tasks", "tasks", "how many blocks of C threads take one after the other"),
    Quantity("idle_share", "fraction", "share of thread time that is left idle when the tasks do not divide evenly"),
    Quantity("edge_waste", "fraction", "share of the computed elements that lie beyond the edges of C and of k"),
    Quantity("accumulators", "registers", "how many registers hold the accumulators of a register tile"),
    Quantity(
        "loads_per_operation", "loads", "how many vectors and single elements are read for each vector multiply-add"
    ),
    Quantity("kc", "steps", "how many steps of k a block has"),
    Quantity("k_blocks", "blocks", "how often C is read and written"),
    Quantity("panel_bytes", "B", "how large the panel of B is that the register tiles of a task share"),
    Quantity("a_block_bytes", "B", "how large the block of A is that the panels of a task share"),
    Quantity("b_block_bytes", "B", "how large the block of B is that the register tiles of a task share"),
    Quantity("packed_share", "fraction", "how many elements tasks pack for each multiply-add of a vector"),
    Quantity("whole_bytes", "B", "how much is packed before the tasks begin, in every call"),
    Quantity(
        "scattered_reads",
        "fraction",
        "share of the operands that is read in place from rows on the same sets of a cache",
    ),
)


@dataclass(frozen=True)
class CpuGemmPlan(SizedPlan):
    """A blocked product and its settings."""

    product: BlockedProduct

    @property
    def _gemm(self) -> Gemm:
        return self.product.gemm

    @property
    def _kernel(self) -> MicroKernel:
        return self.product.micro_kernel

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        p, kernel = self._gemm, self._kernel
        mr = tuple(r for r in kernel.mr if r == kernel.mr[0] or r < p.m.extent + kernel.register_rows)
        vectors = tuple(v for v in kernel.vectors if v == 1 or (v - 1) * kernel.lanes < p.n.extent)
        kc = dict.fromkeys(self._whole_steps(-(-p.k.extent // blocks)) for blocks in BLOCKS)
        least, most = LEAST_KC * kernel.k_group, MOST_KC * kernel.k_group
        within = [d for d in kc if least <= d <= most] or [self._whole_steps(p.k.extent)]
        meaning = "is packed: never, by each task for a block of k (task), or before the tasks begin (whole)"
        order = (
            "whether the register tiles of a task that follow one another are those of a row of C (columns_inside) or "
            "of a panel of columns (rows_inside)"
        )
        rows = (
            "whether rows of pixels are packed with the padding between them (padded) or without, once for each "
            "position of the window along them (flattened)"
        )
        memory = (Knob("order", (COLUMNS_INSIDE, ROWS_INSIDE), order), store_knob())
        return (
            Knob("mr", mr, "how many rows a register tile has"),
            Knob("nr_vectors", vectors, f"how many vectors of {kernel.lanes} elements a row of a register tile has"),
            Knob("m_blocks", BLOCKS, "how many blocks the rows of C are cut into"),
            Knob("n_blocks", BLOCKS, "how many blocks the columns of C are cut into"),
            Knob("kc", tuple(sorted(within)), "how many steps of k a block has"),
            Knob("pack_a", self._packings(p.a, kernel.a_in_place), f"when the left operand {meaning}"),
            Knob("pack_b", self._packings(p.b, kernel.b_in_place), f"when the right operand {meaning}"),
            *(memory if kernel.memory_knobs else ()),
            *((Knob("image_rows", (PADDED, FLATTENED), rows),) if self.product.direct is not None else ()),
        )

    def _packings(self, operand: Operand, in_place: bool) -> tuple[str, ...]:
        """Return when an operand may be packed."""
        if self.product.is_constant(operand):
            return (WHOLE,)
        choices = ((NEVER, in_place), (TASK, True), (WHOLE, self.product.can_be_whole(operand)))
        return tuple(choice for choice, possible in choices if possible)

    def _whole_steps(self, kc: int) -> int:
        return -(-kc // self._kernel.k_step) * self._kernel.k_step

    @derived_once
    def sizes(self, columns: Columns) -> CpuGemmSizes[Ints]:
        return self.product.sizes(columns)

    # --- legality

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        kernel, image_rows = self._kernel, () if self.product.direct is None else ("image_rows",)
        rules = [
            Constraint(
                f"the accumulators of an mr x nr_vectors register tile and its operands fit {kernel.registers} "
                f"{'tile' if kernel.register_rows > 1 else 'vector'} registers",
                ("mr", "nr_vectors"),
                lambda c: kernel.fits(c.ints("mr"), c.ints("nr_vectors")),
            ),
            Constraint(
                "none of the m_blocks blocks is without a row of C, at whole register tiles of mr rows",
                ("mr", "m_blocks"),
                lambda c: self._is_canonical(self.product.m_tiles(c.ints("mr")), c.ints("m_blocks")),
            ),
            self._has_columns(image_rows),
            Constraint(
                "the packed blocks and the partial sums of a task fit its thread's scratch memory of "
                f"{MOST_SCRATCH_BYTES >> 20} MiB",
                ("mr", "nr_vectors", "m_blocks", "n_blocks", "kc", "pack_a", "pack_b", *image_rows),
                lambda c: self._scratch_bytes(c) <= MOST_SCRATCH_BYTES,
            ),
        ]
        if kernel.a_in_place:
            rules.append(self._in_place("pack_a"))
        if kernel.b_in_place:
            rules.append(self._in_place("pack_b"))
        if kernel.a_in_place and kernel.register_rows > 1:
            rules.append(
                Constraint(
                    "mr divides m where pack_a is never, because matrix tiles read whole rows",
                    ("mr", "pack_a"),
                    lambda c: ~c.flags("pack_a", NEVER) | (self._gemm.m.extent % c.ints("mr") == 0),
                )
            )
        if kernel.memory_knobs:
            rules.append(
                Constraint(
                    "order is rows_inside unless a task has several register tiles along m and several along n",
                    ("mr", "nr_vectors", "m_blocks", "n_blocks", "order"),
                    self._has_an_order,
                )
            )
        return tuple(rules)

    @staticmethod
    def _is_canonical(tiles: Ints, blocks: Ints) -> Bools:
        """Return whether ``blocks`` blocks of even sizes are needed for ``tiles`` register tiles: fewer would do the
        same else."""
        found: Bools = ceil_div(tiles, ceil_div(tiles, blocks)) == blocks
        return found

    def _has_columns(self, image_rows: tuple[str, ...]) -> Constraint:
        """Return the rule that all blocks of columns are needed, and have a panel."""
        lanes, of_panels = self._kernel.lanes, self._kernel.register_rows > 1

        def holds(c: Columns) -> Bools:
            vectors, blocks = ceil_div(self.product.n(c), lanes), c.ints("n_blocks")
            if of_panels:
                return self._is_canonical(ceil_div(vectors, c.ints("nr_vectors")), blocks)
            return self._is_canonical(vectors, blocks) & (c.ints("nr_vectors") <= ceil_div(vectors, blocks))

        rule = "none of the n_blocks blocks is without a column of C, at whole panels of nr_vectors vectors"
        if not of_panels:
            rule = "each of the n_blocks blocks has nr_vectors vectors or more, and none is without a column of C"
        return Constraint(rule, ("nr_vectors", "n_blocks", *image_rows), holds)

    def _in_place(self, knob: str) -> Constraint:
        """Return the rule of an operand in place: without a copy there are no zeros behind the end of ``k``."""
        return Constraint(
            f"kc divides k where {knob} is never",
            (knob, "kc"),
            lambda c: ~c.flags(knob, NEVER) | (self._gemm.k.extent % c.ints("kc") == 0),
        )

    def _scratch_bytes(self, c: Columns) -> Ints:
        """Return the local memory of a task, int64[n]: packed blocks, and sums that wait for the next block of ``k``
        where no output can hold them."""
        p, s = self._gemm, self.sizes(c)
        dtype = p.accumulator.dtype
        in_output = self._kernel.sums_in_output and any(can_accumulate(r, dtype) for r in p.results)
        bytes_of_sum = np.where(self.product.padded(c) | (not in_output), dtype.bytes, 0)
        sums = s.mc_tiles * s.mr * s.nc_panels * s.nr * bytes_of_sum
        a = np.where(c.flags("pack_a", TASK), s.a_block_bytes, 0)
        b = np.where(c.flags("pack_b", TASK), s.b_block_bytes, 0)
        return np.asarray(a + b + np.where(s.k_blocks > 1, sums, 0))

    def _has_an_order(self, c: Columns) -> Bools:
        s = self.sizes(c)
        return ((s.mc_tiles > 1) & (s.nc_panels > 1)) | c.flags("order", ROWS_INSIDE)

    # --- estimates

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        return promising(self.product, columns)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        return gemm_seconds(self.product, columns, cpu_peaks(self.product.target, peaks))

    def derive(self, columns: Columns) -> Mapping[str, Floats]:
        p, kernel, s = self._gemm, self._kernel, self.sizes(columns)
        packed = np.zeros(len(columns), dtype=np.float64)
        whole, scattered = packed.copy(), packed.copy()
        for use in self.product.uses(columns, s):
            packed += use.per_task * packed_share(self.product, use)
            whole += use.whole * (0 if self.product.is_constant(use.operand) else use.elements * kernel.packed_bytes)
            scattered += 0.5 * self.product.is_scattered(use)
        computed = s.m_tiles * s.mr * s.n_computed * s.k_blocks * s.kc
        found: dict[str, Ints | Floats] = {
            "tasks": s.tasks,
            "idle_share": idle_share(s.tasks, self.product.target.threads),
            "edge_waste": 1 - p.m.extent * p.n.extent * p.k.extent / computed,
            "accumulators": kernel.accumulators(s.mr, s.vectors),
            "loads_per_operation": kernel.loads_per_operation(s.mr, s.vectors),
            "kc": s.kc,
            "k_blocks": s.k_blocks,
            "panel_bytes": s.nr * s.kc * kernel.packed_bytes,
            "a_block_bytes": s.a_block_bytes,
            "b_block_bytes": s.b_block_bytes,
            "packed_share": packed,
            "whole_bytes": whole,
            "scattered_reads": scattered,
        }
        return {name: np.asarray(column, dtype=np.float64) for name, column in found.items()}

    # --- lowering

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        s: CpuGemmSizes[int] = self.sizes_of(setting)
        chosen = CpuGemmSetting(
            mr=s.mr,
            vectors=s.vectors,
            lanes=self._kernel.lanes,
            tiles=s.mc_tiles,
            panels=s.nc_panels,
            kc=s.kc,
            pack_a=str(setting["pack_a"]),
            pack_b=str(setting["pack_b"]),
            order=str(setting.get("order", ROWS_INSIDE)),
            non_temporal=setting.get("store") == NON_TEMPORAL,
            flattened=setting.get("image_rows") == FLATTENED,
            last_vectors=s.last_vectors,
        )
        return self._kernel.lower(self._gemm, KERNEL_NAME, chosen)


def reads_nothing_else(p: Gemm) -> bool:
    """Return whether the outputs are computed from the accumulators and inputs alone."""
    inputs = {b.name for b in p.inputs} | {p.accumulator.name}
    return all(load.buffer.name in inputs for r in p.results for load in loads_of(r.value))


def is_large(p: Gemm, kernel: MicroKernel) -> bool:
    """Return whether there is something to block."""
    enough = prod(a.extent for a in (p.m, p.n, p.k, *p.batch)) >= LEAST_WORK
    return enough and p.m.extent >= LEAST_ROWS and p.n.extent >= kernel.lanes
